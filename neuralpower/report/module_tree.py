"""The lines of a module tree: columns that a text, a notebook and a page share, and the page's table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.tree import Branch, together
from neuralpower.report.number_format import binary, quantity
from neuralpower.report.page import Cell, Nested, Share, Table

VISIBLE = 0.005  # share of the time from which a module has its own line on a page
DEEPEST = 5  # levels of a page's tree


def _output(branch: Branch) -> str:
    """[1, 64, 56, 56], and how many tensors more."""
    if not branch.outputs:
        return "-"
    more = f" +{branch.outputs - 1}" if branch.outputs > 1 else ""
    return f"{[*branch.output]}{more}"


COLUMNS: Mapping[str, Callable[[Branch], str]] = {
    "output": _output,
    "parameters": lambda line: quantity(line.parameters, "").strip() if line.parameters else "-",
    "FLOP": lambda line: quantity(line.flops, "FLOP") if line.flops else "-",
    "latency": lambda line: quantity(line.runtime_s, "s"),
    "memory (weights + outputs)": lambda line: binary(line.memory_bytes) if line.memory_bytes else "-",
}


def named(branch: Branch) -> str:
    """Its name, its class, and how many equal ones it stands for: "[0-11] (BertLayer) x12"."""
    kind = f" ({branch.type})" if branch.type not in ("", branch.name) else ""
    times = f" x{branch.times}" if branch.times > 1 else ""
    return f"{branch.name}{kind}{times}"


def module_tree(p: Prediction) -> Table:
    """The modules as an indented table, each with its sizes, time and memory."""
    rows: list[tuple[Cell, ...]] = []
    for line in _visible(p.tree(DEEPEST).root):
        name = Nested(named(line), line.depth)
        rows.append((name, Share(line.share), *(cell(line) for cell in COLUMNS.values())))
    note = f"Modules below {VISIBLE:.1%} of the time stand together."
    return Table("Module tree", ("module", "share", *COLUMNS), tuple(rows), note)


def _visible(branch: Branch) -> Iterator[Branch]:
    """A line, those below it that are to be seen, and the others together."""
    yield branch
    small = [inner for inner in branch.branches if inner.share < VISIBLE]
    for inner in branch.branches:
        if inner not in small:
            yield from _visible(inner)
    if len(small) == 1:
        yield small[0]
    elif small:
        yield together(f"{len(small)} others", small)
