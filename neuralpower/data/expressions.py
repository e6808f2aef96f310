"""Columns computed from other columns by simple arithmetic: `runtime_s=latency_ms/1000`.

An expression holds numbers, names of columns, + - * / and parentheses, and nothing else: it is read as a
tree and computed here. Python never runs it.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neuralpower.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

MOST_LETTERS = 500
ALLOWED = 'numbers, column names ("in quotes" where they hold spaces), + - * / and parentheses'
BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def mapping(texts: Sequence[str]) -> dict[str, str]:
    """{"runtime_s": "latency_ms/1000"} for ["runtime_s=latency_ms/1000"]; raises InputError."""
    found: dict[str, str] = {}
    for text in texts:
        column, equals, expression = (part.strip() for part in text.partition("="))
        if not (column and equals and expression):
            raise InputError(
                f"--map {text!r:.200}: must be COLUMN=EXPRESSION, such as runtime_s=latency_ms/1000"
            )
        if column in found:
            raise InputError(f"--map {text!r:.200}: {column} is mapped twice; keep one of them")
        found[column] = expression
    return found


def mapped(table: pd.DataFrame, columns: Mapping[str, str], words: Sequence[str] = ()) -> pd.DataFrame:
    """The table with each of `columns` computed from its own, by expression.

    `words`: columns of text; a name that is not a column is written into them as it is
    (`dtype=bfloat16`). Raises InputError.
    """
    made: dict[str, Any] = {}
    for column, expression in columns.items():
        if column in words and expression not in table and expression.isidentifier():
            made[column] = expression
            continue
        made[column] = _value(_parsed(expression), expression, table)
    blank = table.isna().all(axis=1)
    found = table.assign(**made)
    if blank.any():
        found.loc[blank] = None  # a blank line stays one
    return found


def _parsed(expression: str) -> ast.expr:
    if len(expression) > MOST_LETTERS:
        raise InputError(f"--map: an expression of {len(expression)} letters; write {MOST_LETTERS} at most")
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"--map {expression!r}: is not an expression; write {ALLOWED}") from None


def _value(node: ast.expr, expression: str, table: pd.DataFrame) -> Any:
    """A number, or a column [rows]; raises InputError."""
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        sides = [_number(_value(side, expression, table)) for side in (node.left, node.right)]
        try:
            return BINARY[type(node.op)](*sides)
        except ZeroDivisionError:
            raise InputError(f"--map {expression!r}: divides by 0; correct it") from None
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](_number(_value(node.operand, expression, table)))
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        if not math.isfinite(node.value):
            raise InputError(f"--map {expression!r}: holds an infinite number; correct it")
        return node.value
    name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
    if not isinstance(name, str):
        raise InputError(f"--map {expression!r}: holds {ast.unparse(node)!r:.60}; write {ALLOWED}")
    if name not in table:
        raise unknown("column", name, map(str, table.columns))
    return table[name]


def _number(value: Any) -> Any:
    """A column as numbers, NaN where a cell holds none; a number as it is."""
    import pandas as pd

    if isinstance(value, pd.Series):
        from neuralpower.data.screening import number_column

        return pd.Series(number_column(value), index=value.index)
    return value
