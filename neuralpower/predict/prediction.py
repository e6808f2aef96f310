"""What a prediction holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from neuralpower.errors import InputError
from neuralpower.layers import Layer
from neuralpower.layers.base import FORWARD
from neuralpower.learn.estimates import BASES, EXTRAPOLATED, IN_RANGE, UNLEARNT
from neuralpower.predict.memory.peak import Memory
from neuralpower.predict.tree import ModuleShape, Tree, tree_of
from neuralpower.quantisation.totals import Quantised
from neuralpower.shown import Shown, drawn_by
from neuralpower.trace.question import EAGER
from neuralpower.trace.recipe import Recipe
from neuralpower.trace.records import Savings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SCHEMA = 1
BOUNDS = ("value", "low", "high")  # of an interval
VISIBLY = 1.05  # times the network's: from here on its rows' sum wants an explanation
HOST_BOUND = 1.3  # times the device's work: from here on a network is the host's


@dataclass(frozen=True)
class Interval:
    """A value with its 90 % bounds."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """As a JSON object."""
        return {"value": self.value, "low": self.low, "high": self.high}


class Part(Protocol):
    """Something more that a prediction says, such as what it means for a text's tokens."""

    def to_json(self) -> dict[str, object]:
        """As a JSON object."""


# of tables of a prediction's rows
COLUMNS = (
    *"path kind count runtime_s low_s high_s flops bytes bound share basis power_w energy_j step".split(),
)
SUMMED = ("count", "runtime_s", "low_s", "high_s", "flops", "bytes", "share")  # of rows that are merged


@dataclass(frozen=True)
class Row:
    """`count` equal calls together; `path` names their modules, ranges of repeated blocks in brackets."""

    path: str
    kind: str
    count: int
    runtime_s: float
    low_s: float
    high_s: float
    flops: int
    bytes: int
    bound: str  # compute or memory: the side of the roofline that the calls lie on
    basis: str
    share: float = 0.0  # of the whole
    power_w: Interval | None = None
    power_trained: bool = False  # whether a regressor says the power, or it is carried from others
    step: str = FORWARD  # of a training step: forward, backward or optimizer
    layer: Layer | None = None  # None of what is not modelled, and of different ones together
    parts: tuple[str, ...] = ()  # names of the calls that a trace pass joined to this one, in order
    paths: tuple[str, ...] = field(default=(), repr=False)  # of each of its calls, which `path` sums up

    @property
    def energy_j(self) -> float | None:
        """Of all calls together."""
        return None if self.power_w is None else self.power_w.value * self.runtime_s

    def cells(self) -> dict[str, Any]:
        """Its numbers and words by COLUMNS; of power the value alone."""
        cells = {name: getattr(self, name) for name in COLUMNS}
        return {**cells, "power_w": None if self.power_w is None else self.power_w.value}

    def to_json(self) -> dict[str, object]:
        """As a JSON object, which calls the step a phase."""
        cells = self.cells()
        return {"phase": cells.pop("step"), **cells, "parts": list(self.parts)}


@dataclass(frozen=True)
class Unmodelled:
    """Calls that no regressor describes: their share is a roofline estimate."""

    operator: str
    reason: str
    count: int
    runtime_s: float
    share: float

    def to_json(self) -> dict[str, object]:
        """As a JSON object."""
        return {
            "operator": self.operator,
            "reason": self.reason,
            "count": self.count,
            "runtime_s": self.runtime_s,
            "share": self.share,
        }


@dataclass(frozen=True)
class Training:
    """One training step, by what it is made of."""

    recipe: Recipe
    samples: int  # that a step takes: batch size times micro-batches
    steps: Mapping[str, Interval]  # forward, backward, optimizer (s)
    model_flops: int  # forward and backward, without what is computed again
    peak_flops_per_s: float | None  # of the dtype, dense; None where it is not known
    derived: tuple[str, ...] = ()  # kinds whose backward pass was not measured, and is what its formulas say

    def utilisation(self, runtime_s: float) -> float | None:
        """Model-FLOPs utilisation: of the dense peak (Chowdhery et al., PaLM, 2022, appendix B)."""
        return self.model_flops / runtime_s / self.peak_flops_per_s if self.peak_flops_per_s else None

    def to_json(self, runtime_s: float) -> dict[str, object]:
        """As a JSON object, given the step's time."""
        return {
            **{f"{step}_s": interval.to_json() for step, interval in self.steps.items()},
            "optimizer": self.recipe.optimizer,
            "implementation": self.recipe.implementation,
            "accumulation": self.recipe.accumulation,
            "checkpointing": self.recipe.checkpointing,
            "samples": self.samples,
            "samples_per_s": self.samples / runtime_s,
            "derived": list(self.derived),
            "model_flops": self.model_flops,
            "model_flops_utilisation": self.utilisation(runtime_s),
        }


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """What a network will take on a device; times in seconds.

    `print` gives the table of `neuralpower predict`. Predictions are compared with `==`, and can be pickled.
    """

    model: str
    predictor: str
    device: str
    batch_size: int
    dtype: str
    phase: str
    runtime_s: Interval
    rows: tuple[Row, ...]
    unmodelled: tuple[Unmodelled, ...]
    parameters: int
    method: str  # how it was traced
    notes: tuple[str, ...] = ()
    power_w: Interval | None = None
    energy_j: Interval | None = None
    power_reason: str = ""  # why there is no power
    idle_s: float | None = None  # that the device waits for the host; None where only the sum is known
    training: Training | None = None
    assumptions: tuple[str, ...] = ()  # what was taken for granted
    generation: Part | None = None  # of a prefill, a decoder's step or a whole generation
    memory: Memory | None = None  # at the peak
    origin: str = ""  # of a device by its name, how its times are known, in words
    passes: tuple[str, ...] = ()  # names of the trace passes that ran, in order (`neuralpower.trace.passes`)
    savings: Savings | None = None  # of the way to run, where calls were joined
    run: str = EAGER  # one of `neuralpower.trace.question.RUNS`
    weights: Quantised | None = None  # None where they are as `dtype` says
    modules: tuple[ModuleShape, ...] = field(default=(), compare=False)  # of the network; what `tree` shows

    @property
    def flops(self) -> int:
        """Of all rows."""
        return sum(row.flops for row in self.rows)

    @property
    def coverage(self) -> float:
        """Share of the time that regressors account for; shares add up to 1 but for rounding."""
        return max(0.0, 1 - sum(row.share for row in self.rows if row.basis in UNLEARNT))

    @property
    def power_share_trained(self) -> float | None:
        """Share of the time whose power regressors say, the rest being carried; None where none is known."""
        if self.power_w is None:
            return None
        return min(sum(row.share for row in self.rows if row.power_trained), 1.0)

    @property
    def extrapolated(self) -> float:
        """Share of the time outside what was sampled."""
        return sum(row.share for row in self.rows if row.basis == EXTRAPOLATED)

    @property
    def host_bound(self) -> bool | None:
        """Whether the host sets the pace; None where its part is not known."""
        if self.idle_s is None:
            return None
        return self.runtime_s.value > HOST_BOUND * (self.runtime_s.value - self.idle_s)

    @property
    def basis(self) -> str:
        """The least well known that makes up 5 % of the time."""
        shares = {basis: sum(row.share for row in self.rows if row.basis == basis) for basis in BASES}
        return next((basis for basis in reversed(BASES) if shares[basis] >= 0.05), IN_RANGE)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was taken for granted, and why rows add up to more than the whole."""
        rows_s = sum(row.runtime_s for row in self.rows)
        if rows_s <= VISIBLY * self.runtime_s.value:
            return self.assumptions
        total = f"the rows add up to {rows_s * 1e3:.3g} ms"
        return *self.assumptions, f"{total}: each call holds the host's launch, which a queue of calls hides"

    def by_kind(self) -> list[Row]:
        """One row per kind, the slowest first."""
        return _merged(self.rows, lambda row: ("", row.kind))

    def by_module(self, depth: int = 2) -> list[Row]:
        """One row per module down to `depth` names of its path, in the order they first run."""
        return _merged(self.rows, lambda row: (".".join(row.path.split(".")[:depth]), ""), in_order=True)

    def tree(self, depth: int = 3) -> Tree:
        """The module tree down to `depth` names of a path: output shapes, parameters, FLOP, latency, memory.

        `print` draws it; to go through its lines, iterate. Raises InputError for a depth below 1.
        """
        return tree_of(self, depth)

    def plot(self, by: str = "kind", *, top: int = 15, ax: Axes | None = None) -> Axes:
        """Bars of the latency (ms) by "kind", "layer" or "module", the slowest `top` of them.

        Args:
            by: what has a bar of its own.
            top: how many bars; the others are one bar together.
            ax: where to draw; by default axes of a new figure.

        Raises:
            InputError: another `by`, or there is no matplotlib.
        """
        axes: Axes = drawn_by().plot(self, by, top, ax)
        return axes

    def to_pandas(self) -> pd.DataFrame:
        """One row per folded layer, SI units: COLUMNS, as in `predict --csv`, and the `layer` itself.

        Raises InputError where there is no pandas.
        """
        try:
            import pandas as pd
        except ImportError:
            raise InputError("to_pandas needs pandas: pip install pandas") from None
        cells = [{**row.cells(), "layer": row.layer} for row in self.rows]
        return pd.DataFrame(cells, columns=[*COLUMNS, "layer"])

    def to_json(self) -> dict[str, object]:
        """The contract of `predict --json`."""

        def plain(names: str) -> dict[str, object]:
            return {name: getattr(self, name) for name in names.split()}

        return {
            "schema": SCHEMA,
            **plain("model predictor device batch_size dtype phase"),
            "runtime_s": self.runtime_s.to_json(),
            "power_w": self.power_w.to_json() if self.power_w else None,
            "energy_j": self.energy_j.to_json() if self.energy_j else None,
            "memory_bytes": self.memory.bounds_json() if self.memory else None,
            "memory": self.memory.to_json() if self.memory else None,
            "power_reason": self.power_reason or None,
            "power_share_trained": self.power_share_trained,
            **plain("host_bound flops parameters coverage extrapolated basis"),
            "unmodelled": [u.to_json() for u in self.unmodelled],
            "training": self.training.to_json(self.runtime_s.value) if self.training else None,
            "generation": None if self.generation is None else self.generation.to_json(),
            "trace": {"method": self.method, "notes": [*self.notes, *self.remarks]},
            "run": self.run,
            "origin": self.origin or None,
            "savings": self.savings.to_json() if self.savings else None,
            "passes": list(self.passes),
            "weights": None if self.weights is None else self.weights.to_json(),
            "layers": [row.to_json() for row in self.rows],
        }


def joined(
    first: Prediction, others: Sequence[Prediction], runtime_s: Interval, energy_j: Interval | None
) -> Prediction:
    """One prediction of several passes after each other, with all their rows, each with its share of all."""
    everything = (first, *others)
    shared, total = with_shares([row for p in everything for row in p.rows])
    power = None
    if energy_j is not None:
        power = Interval(*(getattr(energy_j, bound) / getattr(runtime_s, bound) for bound in BOUNDS))
    return replace(
        first,
        runtime_s=runtime_s,
        rows=shared,
        unmodelled=tuple(replace(u, share=u.runtime_s / total) for p in everything for u in p.unmodelled),
        notes=tuple(dict.fromkeys(note for p in everything for note in p.notes)),
        power_w=power,
        energy_j=energy_j,
        power_reason=next((p.power_reason for p in everything if p.power_reason), ""),
        idle_s=None if first.idle_s is None else max(runtime_s.value - total, 0.0),
        assumptions=tuple(dict.fromkeys(text for p in everything for text in p.assumptions)),
    )


def with_shares(rows: Sequence[Row]) -> tuple[tuple[Row, ...], float]:
    """(the rows, each with its share of all, the time of all)."""
    total = sum(row.runtime_s for row in rows) or 1e-12
    return tuple(replace(row, share=row.runtime_s / total) for row in rows), total


def ranges(paths: Sequence[str]) -> str:
    """Equal paths as themselves, paths that differ in numbered blocks with their numbers in brackets."""
    if len(set(paths)) == 1:
        return paths[0]
    columns = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(names[0] if len(set(names)) == 1 else f"[{_runs(names)}]" for names in columns)


def _runs(names: Sequence[str]) -> str:
    numbers = sorted({int(name) for name in names})
    parts = []
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)


def _merged(rows: Sequence[Row], key: Callable[[Row], tuple[str, str]], in_order: bool = False) -> list[Row]:
    """One row for each path and kind that `key` gives; a kind of "" stands for all that there are."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    merged = [
        Row(
            path,
            kind or ", ".join(sorted({r.kind for r in some})),
            bound=max(some, key=lambda r: r.runtime_s).bound,
            basis=max((r.basis for r in some), key=BASES.index),
            power_w=_mean_power(some),
            power_trained=all(r.power_trained for r in some),
            **_sums(some),
        )
        for (path, kind), some in groups.items()
    ]
    return merged if in_order else sorted(merged, key=lambda row: -row.runtime_s)


def _sums(rows: Sequence[Row]) -> dict[str, Any]:
    return {name: sum(getattr(row, name) for row in rows) for name in SUMMED}


def _mean_power(rows: Sequence[Row]) -> Interval | None:
    """Over the rows' time; None where one of them is not known."""
    known = [(row.power_w, row.runtime_s) for row in rows if row.power_w is not None]
    total = sum(seconds for _, seconds in known)
    if len(known) < len(rows) or total <= 0:
        return None
    return Interval(*(sum(getattr(p, bound) * s for p, s in known) / total for bound in BOUNDS))
