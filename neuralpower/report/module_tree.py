"""The layers of a prediction as a tree of modules, each with the sums of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neuralpower.predict.prediction import Interval, Prediction, Row
from neuralpower.report.number_format import quantity
from neuralpower.report.page import Columns, Nested, Share, Table

VISIBLE = 0.005  # share of the time from which a module has its own line
DEEPEST = 5  # levels of the tree


def row_columns(p: Prediction) -> Columns[Row]:
    """A row of a prediction: its time, share, and energy if known."""
    columns: Columns[Row] = {
        "calls": lambda row: row.count,
        "share": lambda row: Share(row.share),
        "latency": lambda row: quantity(row.runtime_s, "s"),
        "energy": lambda row: quantity(row.energy_j, "J"),
        "FLOP": lambda row: quantity(row.flops, "FLOP"),
        "moved": lambda row: quantity(row.bytes, "B"),
    }
    known = any(row.power_w is not None for row in p.rows)
    return {name: cell for name, cell in columns.items() if known or name != "energy"}


@dataclass
class Node:
    """A module, with the sums of its calls."""

    name: str
    rows: list[Row] = field(default_factory=list)
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of the whole time."""
        return sum(row.share for row in self.rows)

    def lines(self, depth: int = 0) -> Iterator[tuple[int, str, list[Row]]]:
        """(depth, name, rows) of each shown module within, and of the others together."""
        small = []
        for child in self.children.values():
            if child.share < VISIBLE:
                small.append(child)
                continue
            while len(child.children) == 1 and child.rows == (only := [*child.children.values()][0]).rows:
                child = Node(f"{child.name}.{only.name}", only.rows, only.children)
            yield depth, child.name, child.rows
            if depth + 1 < DEEPEST:
                yield from child.lines(depth + 1)
        if small:
            name = small[0].name if len(small) == 1 else f"{len(small)} others"
            yield depth, name, [row for child in small for row in child.rows]


def module_tree(p: Prediction) -> Table:
    """The modules as an indented table, each with its time and energy."""
    root = Node("")
    for row in p.rows:
        node = root
        for name in row.path.split(".") if row.path else ("(model)",):
            node = node.children.setdefault(name, Node(name))
            node.rows.append(row)
    lines = [(Nested(name, depth), _summed(rows)) for depth, name, rows in root.lines()]
    columns = row_columns(p)
    rows = tuple((name, *(cell(row) for cell in columns.values()), row.kind) for name, row in lines)
    note = f"Modules below {VISIBLE:.1%} of the time stand together."
    return Table("Module tree", ("module", *columns, "kinds"), rows, note)


def _summed(rows: Sequence[Row]) -> Row:
    """All rows as one."""
    power = None
    if all(row.power_w is not None for row in rows) and (seconds := sum(row.runtime_s for row in rows)):
        watts = sum(row.energy_j or 0.0 for row in rows) / seconds
        power = Interval(watts, watts, watts)
    sums = {
        name: sum(getattr(row, name) for row in rows) for name in ("runtime_s", "low_s", "high_s", "share")
    }
    kinds = [*dict.fromkeys(row.kind for row in rows)]
    more = f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
    return Row(
        "", ", ".join(kinds[:3]) + more, sum(row.count for row in rows), flops=sum(row.flops for row in rows),
        bytes=sum(row.bytes for row in rows), bound="", basis="", power_w=power, **sums,
    )  # fmt: skip
