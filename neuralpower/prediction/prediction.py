"""A prediction: rows, sums, memory, and how well they are known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from neuralpower.errors import CoverageError, InputError
from neuralpower.files.json_files import Declared, named, plain
from neuralpower.learn.estimates import (
    BASES,
    BORROWED,
    EXTRAPOLATED,
    HERE,
    IN_RANGE,
    TOLD,
    UNTRAINED,
    in_words,
)
from neuralpower.learn.regressor import NINETY
from neuralpower.prediction.costs.energy import mean_power
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.rows import (
    Interval,
    Row,
    Unmodelled,
    merged,
    with_shares,
    within,
)
from neuralpower.prediction.several_devices import Parallel
from neuralpower.prediction.shown import Shown
from neuralpower.prediction.tree import Branch, ModuleShape, tree_of
from neuralpower.quantisation.totals import Quantised
from neuralpower.trace.question import EAGER
from neuralpower.trace.recipe import Recipe
from neuralpower.trace.records import Savings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SCHEMA = 1
LAUNCHES = "launch overhead"  # kind of the row of what the device waits for its host's launches
FRESH = "fresh memory"  # kind of the row of what a CPU's allocator fetches anew in each pass
BUBBLE = "pipeline bubble"  # kind of the row of what a pipeline stage waits for others
HOST = "host"  # bound of that row
NEGLIGIBLE = 1e-9  # of the time: rounding of a sum
MEANT = {  # what people try -> what it is called
    **{"latency": "runtime_s (s, with bounds)", "latency_s": "runtime_s", "time": "runtime_s"},
    **{"latency_ms": "runtime_s.value * 1e3", "runtime": "runtime_s", "runtime_ms": "runtime_s.value * 1e3"},
    **{
        "total_energy": "energy_j",
        "energy_joules": "energy_j",
        "power_watts": "power_w",
        "memory_mb": "memory",
    },
    **{"fps": "batch_size / runtime_s.value", "co2": "footprint", "cost": "footprint", "plot_html": "plot()"},
    **{"energy": "energy_j", "power": "power_w", "memory_bytes": "memory.value_bytes"},
    **{"peak_memory": "memory.value_bytes", "by": "by_kind() or by_module()", "layers": "rows"},
    **{"throughput": "batch_size / runtime_s.value", "samples_per_s": "batch_size / runtime_s.value"},
    **{"tokens_per_s": "generation.tokens_per_s", "bounds": "runtime_s.low and runtime_s.high"},
    **{
        "table": "rows",
        "to_dict": "to_json()",
        "to_dataframe": "to_pandas()",
        "summary": "print(prediction)",
    },
    **{"params": "parameters", "num_parameters": "parameters", "total_flops": "flops", "macs": "flops / 2"},
}
COVERED, TRAINED = 0.9, 0.5  # shares of the time below which a prediction warns
HALF = 0.6745  # deviations within which half of a normal distribution lies
HOST_BOUND = 1.3  # times the device's work: from here on a network is the host's


@dataclass(frozen=True)
class Training:
    recipe: Recipe
    samples: int  # that a step takes: batch size times micro-batches
    steps: Mapping[str, Interval]  # forward, backward, optimizer (s): the rows of each, without waits
    model_flops: int  # forward and backward, without what is computed again
    peak_flops_per_s: float | None  # of the dtype, dense; None where it is not known
    derived: tuple[str, ...] = ()  # kinds whose backward pass was not measured, but follows from formulas

    def utilisation(self, runtime_s: float) -> float | None:
        """Model-FLOPs utilisation: of the dense peak (Chowdhery et al., PaLM, 2022, appendix B)."""
        return self.model_flops / runtime_s / self.peak_flops_per_s if self.peak_flops_per_s else None

    def to_json(self, runtime_s: float) -> dict[str, object]:
        """As a JSON object, given the step's time."""
        return {
            **plain({f"{step}_s": interval for step, interval in self.steps.items()}),
            **named(self.recipe, "optimizer implementation accumulation checkpointing"),
            "samples": self.samples,
            "samples_per_s": self.samples / runtime_s,
            **named(self, "derived model_flops"),
            "model_flops_utilisation": self.utilisation(runtime_s),
        }


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """The predicted latency, energy and memory of a network on a device; times in seconds.

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
    assumptions: tuple[str, ...] = ()  # made in the prediction
    generation: Declared | None = None  # of a prefill, a decoder's step or a whole generation
    images: Declared | None = None  # of a pipeline of diffusion: what its call makes
    memory: Memory | None = None  # at the peak
    device_memory_bytes: float | None = None  # by the device's sheet
    origin: str = ""  # for a device given by name: how its times are known, as text
    origins: Mapping[str, float] = field(default_factory=dict)  # the same as shares of the layers' time
    warned: tuple[str, ...] = ()  # as text: why the bounds may be too narrow, or what cannot be run
    passes: tuple[str, ...] = ()  # names of the trace passes that ran, in order (`neuralpower.trace.passes`)
    savings: Savings | None = None  # of the way to run, where calls were joined
    run: str = EAGER  # one of `neuralpower.trace.question.RUNS`
    parallel: Parallel | None = None  # on several devices: what is said of all
    weights: Quantised | None = None  # None where they are as `dtype` says
    footprint: Declared | None = None  # energy, money and carbon, where options request them
    modules: tuple[ModuleShape, ...] = field(default=(), compare=False)  # of the network; what `tree` shows

    def __getattr__(self, name: str) -> Any:
        """Say what an attribute is called that other tools have under another name."""
        hint = f"; write {MEANT[name]}" if name in MEANT else ""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self
        )

    @property
    def flops(self) -> int:
        return sum(row.flops for row in self.rows)

    @property
    def expected_error(self) -> float:
        """The relative error of the latency that half of all such predictions stay below, by its bounds."""
        low, high = self.runtime_s.low, self.runtime_s.high
        return math.exp(HALF * math.log(high / low) / 2 / NINETY) - 1 if low > 0 else 0.0

    @property
    def coverage(self) -> float:
        """Share of the layers' time by regressors that were trained on such calls, not borrowed ones.

        1 where no layer takes any time.
        """
        return min(max(0.0, 1 - _share_by(self, *UNTRAINED)), 1.0)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Kinds and operators without trained data, those that take most of the time first."""
        rows = sorted((row for row in self.rows if row.basis in UNTRAINED), key=lambda row: -row.runtime_s)
        return tuple(dict.fromkeys(row.kind for row in rows))

    @property
    def borrowed(self) -> float:
        """Share of the layers' time by regressors that were trained on other calls."""
        return _share_by(self, BORROWED)

    @property
    def trained_here(self) -> float | None:
        """Share of the layers' time that was trained on this device; None where that is not known."""
        return sum(self.origins.get(name, 0.0) for name in HERE) if self.origins else None

    @property
    def power_share_trained(self) -> float | None:
        """Share of the layers' time whose power regressors say; None where none is known."""
        if self.power_w is None:
            return None
        total = sum(row.share for row in self.rows)
        return min(sum(row.share for row in self.rows if row.power_trained) / (total or 1.0), 1.0)

    @property
    def extrapolated(self) -> float:
        """Share of the layers' time outside what was sampled."""
        return _share_by(self, EXTRAPOLATED)

    @property
    def host_bound(self) -> bool | None:
        """Whether the host sets the pace; None where its part is not known."""
        if self.idle_s is None:
            return None
        return self.runtime_s.value > HOST_BOUND * (self.runtime_s.value - self.idle_s)

    @property
    def basis(self) -> str:
        """The least well known that makes up 5 % of the layers' time."""
        return next((basis for basis in reversed(BASES) if _share_by(self, basis) >= 0.05), IN_RANGE)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the prediction is less certain than its bounds, or cannot be run, as text."""
        texts = list(self.warned)
        coverage, trained = self.coverage, self.trained_here
        if coverage < COVERED:
            texts.append(
                f"only {percent(coverage)} of the time rests on measurements, "
                f"{percent(1 - coverage)} on formulas alone"
            )
        if trained is not None and trained < TRAINED and coverage - trained > NEGLIGIBLE:
            texts.append(
                f"only {percent(trained)} of the time was measured on this device; "
                "the other times are scaled from similar devices"
                if trained >= TOLD
                else "nobody measured these kernels on this device; all times are scaled from other devices"
            )
        return tuple(texts)

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.assumptions

    @property
    def launch_row(self) -> Row | None:
        """The row of launch overhead, the device's wait for its host: rows and this one add up to the whole.

        None where it does not wait, or the host's part is not known apart.
        """
        rows_s = _rows_s(self) + _bubble_s(self)
        waits_s = self.runtime_s.value - rows_s
        if waits_s <= NEGLIGIBLE * self.runtime_s.value:
            return None
        return Row(
            path="",
            kind=LAUNCHES,
            count=sum(row.count for row in self.rows),
            runtime_s=waits_s,
            low_s=max(self.runtime_s.low - rows_s, 0.0),
            high_s=max(self.runtime_s.high - rows_s, waits_s),
            flops=0,
            bytes=0,
            bound=HOST,
            basis=HOST,
            share=waits_s / self.runtime_s.value,
            power_w=_waiting_w(self),
        )

    @property
    def with_launches(self) -> tuple[Row, ...]:
        """The layers' rows, and that of their launches where it takes time: they add up to the whole."""
        return (*self.rows, *_launches(self))

    @property
    def bubble_row(self) -> Row | None:
        """What the slowest pipeline stage waits for others; None where it does not."""
        bubble_s = _bubble_s(self)
        if bubble_s <= NEGLIGIBLE * self.runtime_s.value:
            return None
        share = bubble_s / self.runtime_s.value
        low, high = (share * bound for bound in (self.runtime_s.low, self.runtime_s.high))
        return Row("", BUBBLE, 1, bubble_s, low, high, 0, 0, HOST, HOST, share, _waiting_w(self))

    def by_kind(self) -> list[Row]:
        """One row per kind, and one for launch overhead, the slowest first."""
        rows = merged(self.rows, lambda row: ("", row.kind))
        rows = [*within(rows, self.runtime_s), *_launches(self)]
        return sorted(rows, key=lambda row: -row.runtime_s)

    def by_module(self, depth: int = 2) -> list[Row]:
        """One row per module down to `depth` names of its path, as they first run, then launch overhead."""
        rows = merged(self.rows, lambda row: (".".join(row.path.split(".")[:depth]), ""))
        return [*within(rows, self.runtime_s), *_launches(self)]

    def tree(self, depth: int = 3) -> Tree:
        """The module tree down to `depth` names of a path: output shapes, parameters, FLOP, latency, memory.

        `print` draws it; to go through its lines, iterate. Raises InputError for a depth below 1.
        """
        root = tree_of(self.model, self.rows, self.modules, self.runtime_s.value, depth)
        return Tree(self, root, depth)

    def plot(self, by: str = "kind", *, top: int = 15, ax: Axes | None = None) -> Axes:
        """Bars of the latency (ms) by "kind", "layer" or "module", the slowest `top` of them.

        Args:
            by: what has a bar of its own.
            top: how many bars; the others are one bar together.
            ax: where to draw; by default new axes.

        Raises:
            InputError: another `by`, or there is no matplotlib.
        """
        axes: Axes = type(self).drawing().plot(self, by, top, ax)
        return axes

    def to_pandas(self) -> pd.DataFrame:
        """One row per folded layer, SI units: the columns, as in `predict --csv`, and the `layer` itself.

        The last row is that of launch overhead, where there is any.

        Raises InputError where there is no pandas.
        """
        try:
            import pandas as pd
        except ImportError:
            raise InputError("to_pandas needs pandas: pip install pandas") from None
        return pd.DataFrame([{**row.cells(), "layer": row.layer} for row in self.with_launches])

    def to_json(self) -> dict[str, object]:
        """The contract of `predict --json`."""
        return {
            "schema": SCHEMA,
            **named(
                self,
                """
                model predictor device batch_size dtype phase runtime_s power_w energy_j
                memory_bytes=memory.bounds memory device_memory_bytes? power_reason? power_share_trained
                host_bound flops parameters expected_error coverage borrowed trained_here extrapolated basis
                """,
            ),
            "launch_overhead_s": 0.0 if self.launch_row is None else self.launch_row.runtime_s,
            **named(self, "warnings unmodelled"),
            "training": self.training and self.training.to_json(self.runtime_s.value),
            "generation": plain(self.generation),
            **({} if self.images is None else named(self, "images")),  # of pipelines alone
            "trace": {"method": self.method, "notes": [*self.notes, *self.remarks]},
            **named(self, "parallel run origin? savings passes weights footprint? layers=rows"),
            "by_kind": plain(self.by_kind()),
        }


@dataclass(frozen=True, repr=False)
class Tree(Shown):
    """The module tree of a prediction; `print` draws it."""

    prediction: Prediction
    root: Branch
    depth: int

    def __iter__(self) -> Iterator[Branch]:
        return self.root.lines()


def joined(
    first: Prediction, others: Sequence[Prediction], runtime_s: Interval, energy_j: Interval | None
) -> Prediction:
    """One prediction of several passes after each other, with all their rows, each with its share of all."""
    everything = (first, *others)
    rows = [row for p in everything for row in p.rows]
    whole_s, total = runtime_s.value, sum(row.runtime_s for row in rows)
    origins = merged_origins([(p.origins, sum(row.runtime_s for row in p.rows)) for p in everything])
    power = None
    if energy_j is not None:
        power = mean_power(energy_j, runtime_s, [p.power_w for p in everything if p.power_w is not None])
    return replace(
        first,
        runtime_s=runtime_s,
        rows=with_shares(rows, runtime_s),
        unmodelled=tuple(replace(u, share=u.runtime_s / whole_s) for p in everything for u in p.unmodelled),
        notes=tuple(dict.fromkeys(note for p in everything for note in p.notes)),
        power_w=power,
        energy_j=energy_j,
        power_reason=next((p.power_reason for p in everything if p.power_reason), ""),
        idle_s=None if first.idle_s is None else max(runtime_s.value - total, 0.0),
        assumptions=tuple(dict.fromkeys(text for p in everything for text in p.assumptions)),
        warned=tuple(dict.fromkeys(text for p in everything for text in p.warned)),
        origins=origins,
        origin=in_words(origins) if first.origin else "",
    )


def percent(share: float) -> str:
    """A share in whole percents, a small one with a digit behind the point."""
    return f"{share:.{1 if 0 < share < 0.1 else 0}%}"


def merged_origins(parts: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Shares of all, from (shares of a part, its time) of each."""
    total = sum(seconds for shares, seconds in parts if shares)
    found: dict[str, float] = {}
    for shares, seconds in parts:
        for name, share in shares.items():
            found[name] = found.get(name, 0.0) + share * seconds / (total or 1.0)
    return found


def check_coverage(prediction: Prediction, least: float | None, option: str) -> None:
    """Raise CoverageError for a coverage below the least one, which the option names."""
    if least is not None and prediction.coverage < least:
        lost = ", ".join(prediction.uncovered[:5])
        text = f"coverage {prediction.coverage:.1%} is below {least:.1%}: {lost}"
        raise CoverageError(f"{text}; lower {option}, or collect these kinds")


def fresh_memory_of(prediction: Prediction) -> Row | None:
    """Its row of fresh memory; None where memory is kept."""
    return next((row for row in prediction.rows if row.kind == FRESH), None)


def _launches(prediction: Prediction) -> list[Row]:
    return [row for row in (prediction.bubble_row, prediction.launch_row) if row is not None]


def _bubble_s(prediction: Prediction) -> float:
    return 0.0 if prediction.parallel is None else prediction.parallel.bubble_s


def _rows_s(prediction: Prediction) -> float:
    return sum(row.runtime_s for row in prediction.rows)


def _waiting_w(prediction: Prediction) -> Interval | None:
    """Power while the device waits, whatever for: the energy that the rows leave; None if not known."""
    waits_s = prediction.runtime_s.value - _rows_s(prediction)
    joules = [row.energy_j for row in prediction.rows if row.runtime_s]
    if prediction.energy_j is None or waits_s <= 0 or any(energy is None for energy in joules):
        return None
    left_j = max(prediction.energy_j.value - sum(energy or 0.0 for energy in joules), 0.0)
    return Interval(*(3 * (left_j / waits_s,)))


def _share_by(prediction: Prediction, *bases: str) -> float:
    """Share of the layers' time that is known in these ways."""
    layers = [row for row in prediction.rows if row.kind != FRESH]
    total = sum(row.share for row in layers)
    return sum(row.share for row in layers if row.basis in bases) / (total or 1.0)
