"""The columns of a dataset's tables, and how columns of other names are recognised and computed.

`latency_ms` is `runtime_s` in milliseconds.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from neuralpower.devices.spec import HIGHEST_W
from neuralpower.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

SHORTEST_S, LONGEST_S = 1e-8, 1e4  # beyond, a time is a broken clock or a wrong unit
LOWEST_W = 1e-3  # a microcontroller asleep draws less, and runs no network
SHORT, WHOLE, SAMPLES = "short", "whole", "samples"  # how a sealed table keeps numbers: see `Column.kept`


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column that a table may have besides the fields of its kind; numbers are SI."""

    name: str
    low: float = -math.inf
    high: float = math.inf  # limits of a row that is used
    help: str = ""  # in the header of a template
    unit: str = ""  # as text
    called: str = ""  # words by which other programs call the quantity
    scales: Mapping[str, str] = field(default_factory=dict)
    """Their units, and what a value is multiplied by, or divided by where that is written more plainly."""
    read: bool = False  # means something in anybody's table; others are a collection's own
    key: bool = False  # distinguishes measurements
    kept: str = ""  # seven digits of it are plenty; whole also where a row that failed has none; or raw times


_COLUMNS = (
    Column(name="dtype", read=True, help="such as float32, bfloat16; empty: float32"),
    Column(name="phase", read=True, help="forward or backward; empty: forward"),
    Column(
        name="runtime_s",
        low=SHORTEST_S,
        high=LONGEST_S,
        help="seconds of one call (1.5 ms is 0.0015)",
        unit="seconds",
        called="runtime latency time duration elapsed took wall t",
        scales={"": "", "s": "", "sec": "", "secs": "", "second": "", "seconds": "", "ms": "/1000",
                "msec": "/1000", "millis": "/1000", "milliseconds": "/1000", "us": "/1e6", "usec": "/1e6",
                "micros": "/1e6", "microseconds": "/1e6", "ns": "/1e9", "nanoseconds": "/1e9",
                "min": "*60", "minutes": "*60"},
        read=True,
    ),
    Column(
        name="power_w",
        low=LOWEST_W,
        high=HIGHEST_W,
        help="watts while it runs; may be empty",
        unit="watts",
        called="power watts watt draw",
        scales={"": "", "w": "", "watt": "", "watts": "", "mw": "/1000", "milliwatts": "/1000",
                "kw": "*1000"},
        read=True,
    ),
    Column(
        name="energy_j",
        low=0,
        unit="joules",
        called="energy joules joule",
        scales={"": "", "j": "", "joule": "", "joules": "", "mj": "/1000", "millijoules": "/1000",
                "uj": "/1e6", "wh": "*3600", "kwh": "*3.6e6"},
        read=True,
    ),
    Column(name="energy_u_rel", low=0, read=True),
    *(Column(name=name, read=True, kept=SHORT) for name in ("dispatch_s", "sentinel_s", "sentinel_again_s")),
    Column(name="status", read=True, help="ok, or empty; other rows are not used"),
    Column(name="session_id", read=True),
    *(
        Column(name=name, read=True, key=True)
        for name in ("config_id", "device_key", "software_key", "protocol_version")
    ),
    Column(name="replicate", read=True, key=True, kept=WHOLE),
    *(
        Column(name=name, kept=SHORT)
        for name in """
            runtime_median_s runtime_mean_s runtime_q25_s runtime_q75_s runtime_min_s runtime_low_s
            runtime_high_s runtime_eager_s first_call_s wall_s power_wall_s sentinel_slowdown steal
            nivcsw_per_call minflt_per_call start_s window_runtime_s window_s settle_s
        """.split()
    ),
    *(
        Column(name=name, kept=WHOLE)
        for name in "flops bytes n block_k copies warmups attempt ticks throttle_bits".split()
    ),
    Column(name="samples_s", kept=SAMPLES),
)  # fmt: skip
COLUMNS = {column.name: column for column in _COLUMNS}
READ = tuple(column.name for column in _COLUMNS if column.read)
KEY = tuple(column.name for column in _COLUMNS if column.key)


def is_samples(name: str) -> bool:
    """Whether a column holds raw times, which are most of a table."""
    return name in COLUMNS and COLUMNS[name].kept == SAMPLES


# Next to a quantity's word these change nothing: `avg_latency_ms`, `gpu_time_us`.
BESIDE = set("avg average mean median gpu cpu device kernel forward total measured call in per".split())
# Usual names of fields that have no letters in common.
ALIASES = {
    "m": "rows", "tokens": "rows", "batch_size": "batch rows", "bs": "batch rows",
    "n": "out_features columns", "k": "in_features inner", "in_dim": "in_features", "out_dim": "out_features",
    "input_size": "in_features", "output_size": "out_features",
    "cin": "in_channels", "cout": "out_channels", "c_in": "in_channels",
    "c_out": "out_channels", "h": "in_height", "w": "in_width", "height": "in_height", "width": "in_width",
    "heads": "query_heads", "num_heads": "query_heads", "head_dim": "head_size", "seq_len": "query_length",
    "op": "function", "name": "model function", "network": "model", "precision": "dtype", "type": "dtype",
    "pass": "phase", "hidden_size": "width", "vocab_size": "vocabulary", "numel": "elements",
}  # fmt: skip
NEAR = 0.75  # share of equal letters, from which on a name suggests a field


class Meant(NamedTuple):
    """A column of a table, the column it stands for, and the expression that gives the one from the other."""

    given: str
    column: str
    expression: str

    @property
    def mapping(self) -> str:
        """The text for `--map`, quoted for a shell where needed."""
        text = f"{self.column}={self.expression}"
        return text if re.fullmatch(r"[\w=/.]+", text) else f"'{text}'"

    @property
    def words(self) -> str:
        """`runtime_s (seconds)`."""
        known = COLUMNS.get(self.column)
        return f"{self.column} ({known.unit})" if known and known.unit else self.column


def meant_by(given: Sequence[str], missing: Collection[str]) -> Iterator[Meant]:
    """Which columns of a table may stand for those that it lacks, each at most once, in the table's order."""
    left = list(missing)
    for name in given:
        found = _quantity(name, left) or _field(name, left)
        if found is not None:
            left.remove(found.column)
            yield found


def quantity_of(name: str) -> Meant | None:
    """The time, power or energy that a column holds by its name and unit; None where it names none."""
    return _quantity(name, COLUMNS)


def _quantity(name: str, wanted: Collection[str]) -> Meant | None:
    parts = [part for part in re.split(r"[^a-z]+", name.lower()) if part and part not in BESIDE]
    for column in _COLUMNS:
        if column.name not in wanted or not parts or parts[0] not in column.called.split() or len(parts) > 2:
            continue
        unit = parts[1] if len(parts) == 2 else ""
        if unit in column.scales:
            return Meant(name, column.name, f"{_spelled(name)}{column.scales[unit]}")
    return None


def _field(name: str, wanted: Collection[str]) -> Meant | None:
    alias = [one for one in ALIASES.get(name.lower(), "").split() if one in wanted]
    fields = [one for one in wanted if one not in COLUMNS or not COLUMNS[one].called]
    near = alias or difflib.get_close_matches(name.lower(), fields, n=1, cutoff=NEAR)
    return Meant(name, near[0], _spelled(name)) if near else None


def _spelled(name: str) -> str:
    """A column's name within an expression: quoted where it is not a plain word."""
    return name if name.isidentifier() else f'"{name}"'


# ---- Columns computed from other columns by simple arithmetic: `runtime_s=latency_ms/1000` ----
# An expression holds numbers, names of columns, + - * / and parentheses, and nothing else: it is read as a
# tree and computed here. Python never runs it.


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
    columns: dict[str, str] = {}
    for text in texts:
        column, equals, expression = (part.strip() for part in text.partition("="))
        if not (column and equals and expression):
            raise InputError(
                f"--map {text!r:.200}: must be COLUMN=EXPRESSION, such as runtime_s=latency_ms/1000"
            )
        if column in columns:
            raise InputError(f"--map {text!r:.200}: {column} is mapped twice; keep one of them")
        columns[column] = expression
    return columns


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
        return pd.Series(number_column(value), index=value.index)
    return value


def number_column(values: pd.Series, truths: bool = False) -> np.ndarray:
    """A column as float64, NaN where it holds no number; `truths`: true and false, as text too, count."""
    import pandas as pd

    if values.dtype.kind in "mM" or (values.dtype.kind == "b" and not truths):
        return np.full(len(values), np.nan)  # of moments and durations the unit would be the file's
    if values.dtype.kind not in "biuf":
        known = {"true": 1 if truths else np.nan, "false": 0 if truths else np.nan}
        values = values.astype(object).map(lambda value: known.get(str(value).strip().lower(), value))
    try:
        numbers = pd.to_numeric(values, errors="coerce")
    except OverflowError:  # an integer of hundreds of digits
        numbers = values.map(_float)
    return numbers.to_numpy(dtype=np.float64, copy=True, na_value=np.nan)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
