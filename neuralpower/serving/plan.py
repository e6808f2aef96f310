"""Which devices serve a rate and keep a promise: each layout's highest rate, and the replicas that it takes.

Candidates are screened first: what a replica could serve if its steps were always as full as the promise
allows, and what a request alone waits for. The most promising are then simulated, until no other could be
half as dear as the best. The replicas are the rate over one replica's highest rate, rounded up: requests are
shared out evenly.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.ask.words import PLANNED
from neuralpower.devices.cluster import Layout, enough_for
from neuralpower.devices.spec import DeviceSpec, find_spec
from neuralpower.errors import InputError, ModelError, one_line
from neuralpower.files.cache import key_of
from neuralpower.files.json_files import json_text
from neuralpower.files.stages import counted
from neuralpower.learn.files.predictor_lookup import chosen
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import Step
from neuralpower.prediction.costs.footprint import Each, Made, Terms, each_of
from neuralpower.prediction.explore.outcomes import Outcomes
from neuralpower.prediction.rows import Interval
from neuralpower.processes.pool import Pool
from neuralpower.serving.deployment import Deployment, Setup
from neuralpower.serving.results import Load, Target
from neuralpower.serving.surface import priced
from neuralpower.serving.traffic import highest_rate
from neuralpower.serving.workload import Workload
from neuralpower.version import __version__

LAYOUTS = tuple(Layout(tensor=ranks) for ranks in (1, 2, 4, 8))  # of a replica
MOST_APART = 4  # replicas of a sort that stand against one of the other
WORSE = 2.0  # times as dear as the best found: what cannot be below is not simulated
ENOUGH = 8  # ways that are known: then only what could be the best is simulated
LATE = 1.05  # times as late as promised: what is later by its steps alone is not simulated
MEDIAN = 50  # the percentile from which on a mean below the promise is needed
SPANS = 24  # of a day, each with replicas of its own
BEGIN = 0.8  # of what full steps would serve: where the search for the highest rate begins
IN_PROCESS = 4  # candidates for which no further process is started


@dataclass(frozen=True)
class Candidate:
    """A replica to try."""

    device: str
    layout: Layout
    weights: str | None = None  # their quantisation; None: the checkpoint's
    prefills: int = 0  # that read prompts alone, for `decodes` that do not; 0: each replica does both
    decodes: int = 1

    @property
    def devices(self) -> int:
        """Devices of one such group of replicas."""
        return (self.prefills + self.decodes) * self.layout.ranks

    def __str__(self) -> str:
        """As it is listed."""
        stages = f" in {self.layout.pipeline} stages" if self.layout.pipeline > 1 else ""
        weights = f", weights {self.weights}" if self.weights else ""
        apart = f", {self.prefills} prefill to {self.decodes} decode" if self.prefills else ""
        return f"{self.layout.ranks} x {self.device}{stages}{weights}{apart}"


@dataclass(frozen=True)
class Choice:
    """One way to serve the rate."""

    candidate: Candidate
    replicas: int  # groups, where prompts are read apart
    highest: float  # requests per second of one replica at which the promise holds
    load: Load  # of one replica at that rate
    price: float | None  # of a device for an hour; None: not given
    over_time: tuple[int, ...] = ()  # replicas in each part of a day
    front: bool = False  # whether no other is better in devices, price and joules at once
    each: Each | None = None  # what a token takes at the highest rate; None: not requested

    @property
    def device(self) -> str:
        """Its slug."""
        return self.candidate.device

    @property
    def layout(self) -> Layout:
        """The layout of a replica."""
        return self.candidate.layout

    @property
    def devices(self) -> int:
        """All devices."""
        return self.replicas * self.candidate.devices

    @property
    def goodput(self) -> float | None:
        """Requests per second of one replica that hold all targets, at its highest rate."""
        held = self.load.goodput_per_s
        return None if held is None else self.highest * (held / self.load.requests_per_s)

    @property
    def cost(self) -> float | None:
        """Price of all devices for an hour; over a day, of those that run, in the mean."""
        return None if self.price is None else self.price * self.mean_devices

    @property
    def mean_devices(self) -> float:
        """Devices that run, over time."""
        if not self.over_time:
            return self.devices
        return self.candidate.devices * sum(self.over_time) / len(self.over_time)

    @property
    def power_w(self) -> float | None:
        """Watts of all devices at their highest rate; None where it is not known."""
        drawn = self.load.drawn
        return None if drawn is None else drawn.power_w * self.mean_devices / self.candidate.devices

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        p95 = {name: getattr(self.load, name)["p95"] for name in ("ttft_s", "tpot_s", "latency_s")}
        return {
            "device": self.device,
            "layout": str(self.layout),
            "weights": self.candidate.weights,
            "prefill_replicas": self.candidate.prefills,
            "decode_replicas": self.candidate.decodes,
            "replicas": self.replicas,
            "devices": self.devices,
            "highest_rate": self.highest,
            "goodput": self.goodput,
            "cost_per_hour": self.cost,
            "power_w": self.power_w,
            "each": None if self.each is None else self.each.to_json(),
            "replicas_over_time": list(self.over_time),
            "front": self.front,
            "p95": p95,
        }


@dataclass(frozen=True)
class Plan:
    """All ways, the best first, and why others are none."""

    model: str
    rate: float  # the highest that comes
    targets: tuple[Target, ...]
    choices: tuple[Choice, ...]
    skipped: tuple[tuple[str, str], ...]  # (device and layout, reason)
    by: str = PLANNED[0]
    span_s: float | None = None  # of each part of a day; None: one rate
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "schema": 1,
            "model": self.model,
            "rate": self.rate,
            "by": self.by,
            "span_s": self.span_s,
            "targets": [str(target) for target in self.targets],
            "choices": [choice.to_json() for choice in self.choices],
            "skipped": [{"what": what, "reason": reason} for what, reason in self.skipped],
            "notes": list(self.notes),
        }


class Interrupted(KeyboardInterrupt):  # noqa: N818  # as its base
    """Ctrl-C while candidates are simulated: `plan` has those that were."""

    def __init__(self, plan: Plan) -> None:
        """Keep the plan."""
        super().__init__()
        self.plan = plan


@dataclass(frozen=True)
class Wanted:
    """What a plan is to serve, on what.

    Args:
        model: a name.
        workload: requests as they come; their lengths count, and how bursty they are.
        rate: requests per second in all; None: as the workload's arrivals change over its time.
        targets: the promise.
        devices: their sheets.
        prices: of a device for an hour, by the slug of its sheet.
        budget: most price for an hour of all devices; None: any.
        layouts: those of a replica to try.
        weights: their quantisations to try; None: the checkpoint's.
        apart: whether replicas that read prompts alone are tried, too.
        by: "devices", "cost" or "energy".
        executor: "local", or "ray": the cluster that RAY_ADDRESS names.
        keep: a file for what is done; what it has already is not done again.
        how: further fields of `Setup`.
    """

    model: str
    workload: Workload
    rate: float | None
    targets: tuple[Target, ...]
    devices: Sequence[DeviceSpec]
    prices: Mapping[str, float] = field(default_factory=dict)
    budget: float | None = None
    layouts: Sequence[Layout] = LAYOUTS
    weights: Sequence[str | None] = (None,)
    apart: bool = False
    by: str = PLANNED[0]
    executor: str = "local"
    keep: Path | None = None
    how: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError for a rate that is none, no targets, or a ranking or a budget without prices."""
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate > 0):
            raise InputError(f"rate {self.rate:g}: requests per second, above 0 and finite")
        if not self.targets:
            raise InputError("a plan needs a promise: ttft=500ms,tpot=30ms@p95")
        if self.by not in PLANNED:
            raise InputError(f"ranking {self.by!r}: choose one of {', '.join(PLANNED)}")
        for what, given in (("ranking by cost", self.by == "cost"), ("budget", self.budget is not None)):
            if given and not self.prices:
                raise InputError(f"a {what} needs prices: --price h100-sxm=2.49,l40s=0.79")

    def tries(self) -> list[list[Candidate]]:
        """The candidates of each device."""
        ways = list(itertools.product(self.layouts, self.weights))
        return [[Candidate(spec.slug, *way) for way in ways] for spec in self.devices]

    def deployed(self, candidate: Candidate) -> Deployment:
        """A candidate with the model on it; raises as `Setup.deployed`."""
        layout = candidate.layout
        cluster = None if layout.alone else enough_for(find_spec(candidate.device), layout)
        longest = int((self.workload.prompt + self.workload.output).max())
        how = {"longest": longest, **self.how, "weights": candidate.weights, "prefills": candidate.prefills}
        predictor = _predictor(candidate.device)
        return Setup(self.model, predictor, layout=layout, cluster=cluster, keeps=True, **how).deployed()

    def dear(self, devices: float, watts: float, device: str) -> float:
        """What the ranking compares; an unknown price is as high as the highest, unknown watts infinite."""
        if self.by == "energy":
            return math.inf if math.isnan(watts) else watts
        if self.by == "cost":
            return devices * self.prices.get(device, max(self.prices.values()))
        return devices


@functools.lru_cache(maxsize=4)
def _predictor(device: str) -> Predictor:
    """The best predictor for a device, by its slug."""
    return chosen(None, device)


def plan(wanted: Wanted) -> Plan:
    """Rank devices and layouts that serve a rate.

    Raises:
        InputError: replicas over time of requests that come at no time.
        Interrupted: Ctrl-C, once a candidate is simulated.
    """
    workload = wanted.workload
    parts, span_s = ((wanted.rate,), None) if wanted.rate is not None else _over_time(workload)
    if span_s is not None:
        wanted = replace(wanted, workload=_evened(workload))
    skipped: list[tuple[str, str]] = []
    choices: list[Choice] = []
    kept, tries = _Kept(wanted), wanted.tries()
    several = wanted.executor == "local" and sum(map(len, tries)) > IN_PROCESS
    with Pool(-1 if several else 1) as pool:
        screened, notes = _screened(wanted, tries, max(parts), skipped, pool)
        undone = len(screened)
        try:
            for one, answer in _answers(wanted, screened, kept, choices, pool):
                choice = _choice(wanted, one, answer, parts)
                if isinstance(choice, Choice):
                    choices.append(choice)
                else:
                    skipped.append((str(one.candidate), choice))
                undone -= 1
        except KeyboardInterrupt:
            if not choices:
                raise
    if any(one.highest * one.load.latency_s["mean"] >= one.load.requests for one in choices):
        count = workload.count
        notes = (*notes, f"{count:,} requests tell no higher rates of a replica; take more with --requests")
    if undone:
        on = (
            "the same command continues"
            if wanted.keep
            else "with --keep FILE the same command would continue"
        )
        notes = (*notes, f"interrupted: {undone} of {len(screened)} candidates are not simulated; {on}")
    marked = [replace(one, front=not any(_beats(other, one) for other in choices)) for one in choices]
    ranked, notes = tuple(sorted(marked, key=_order(wanted.by))), (*notes, *kept.notes)
    model, targets, by = wanted.model, wanted.targets, wanted.by
    found = Plan(model, max(parts), targets, ranked, tuple(skipped), by, span_s, notes)
    if undone:
        raise Interrupted(found)
    return found


def _choice(wanted: Wanted, one: _Screened, answer: Answer, parts: Sequence[float]) -> Choice | str:
    """What serves `parts`, the requests per second of each part of a day; or why it cannot be chosen."""
    if isinstance(answer, str):
        return answer
    if answer is None:
        takes = f"{one.watts:.3g} W" if wanted.by == "energy" else f"{one.devices} devices"
        return f"not simulated: {one.over(wanted) or f'it takes {takes} or more'}"
    highest, load = answer
    counts = tuple(max(math.ceil(part / highest), 1) for part in parts)
    over, price = counts if len(counts) > 1 else (), wanted.prices.get(one.candidate.device)
    choice = Choice(one.candidate, max(counts), highest, load, price, over)
    return _over_budget(choice.cost, wanted) or choice


def _over_budget(cost: float | None, wanted: Wanted) -> str | None:
    """Why the budget excludes what costs that much for an hour; None if it does not."""
    if wanted.budget is None or (cost is not None and cost <= wanted.budget):
        return None
    takes = "its price is not known" if cost is None else f"it takes {cost:.2f} an hour or more"
    return f"{takes}: the budget is {wanted.budget:g}"


def with_each(found: Plan, terms: Terms, prices: Mapping[str, float]) -> Plan:
    """The plan with what a token of each way takes, without bounds."""

    def told(choice: Choice) -> Choice:
        load, count = choice.load, choice.candidate.devices
        joules = None if load.drawn is None else Interval(*(load.drawn.power_w,) * 3)
        made = Made(choice.device, "token", load.tokens_per_s, Interval(1.0, 1.0, 1.0), joules, count)
        return replace(choice, each=each_of(made, replace(terms, price=prices.get(choice.device))))

    choices = tuple(map(told, found.choices))
    return replace(found, choices=choices, notes=(*terms.warnings, *found.notes))


def _over_time(workload: Workload) -> tuple[tuple[float, ...], float]:
    """(requests per second of each part of the workload's time, seconds of a part)."""
    whole = float(workload.arrival_s[-1])
    if workload.users or whole <= 0:
        raise InputError("replicas over time: the requests come at no time; give a trace with arrivals")
    span = whole / SPANS
    counts, _ = np.histogram(workload.arrival_s, bins=SPANS, range=(0.0, whole))
    return tuple(float(count) / span for count in counts), span


def _evened(workload: Workload, most: int = 400) -> Workload:
    """Requests of a day as they come at one rate: evenly drawn from all of them, with a Poisson process."""
    random = np.random.default_rng(0)
    chosen = np.linspace(0, workload.count - 1, min(most, workload.count)).round().astype(int)
    gaps = random.exponential(1.0, len(chosen))
    return Workload(np.cumsum(gaps) - gaps[0], workload.prompt[chosen], workload.output[chosen])


@dataclass(frozen=True)
class _Screening:
    """What a replica could do at most, by its steps alone."""

    prompts: float  # requests per second whose prompts it reads, if it does nothing else
    answers: float  # and whose answers it makes
    both: float
    joules: float  # of a request; NaN where it is not known
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Screened:
    """A candidate that fits."""

    candidate: Candidate
    groups: int  # of replicas that the rate takes at least
    most: float  # requests per second that one group could serve
    watts: float  # of the whole rate, at least; NaN where it is not known

    @property
    def devices(self) -> int:
        """Devices that the rate takes at least."""
        return self.groups * self.candidate.devices

    def dear(self, wanted: Wanted) -> float:
        """What the ranking compares, at least."""
        return wanted.dear(self.devices, self.watts, self.candidate.device)

    def over(self, wanted: Wanted) -> str | None:
        """Why the budget excludes it; None if it does not, or if fewer devices run at other times."""
        price = wanted.prices.get(self.candidate.device)
        least = None if price is None else price * self.devices
        return None if wanted.rate is None else _over_budget(least, wanted)


def _screen(wanted: Wanted, candidates: Sequence[Candidate]) -> list[_Screening | str]:
    """What replicas on one device could do; or why they cannot. All their steps are priced at once."""
    found: list[_Screening | str] = []
    fitting: list[tuple[int, Deployment, list[Step]]] = []
    for number, candidate in enumerate(candidates):
        try:
            deployment = wanted.deployed(candidate)
            found.append("")
            fitting.append((number, deployment, _told(deployment, wanted.workload)))
        except (InputError, ModelError) as error:
            found.append(one_line(error))
    if fitting:
        outcomes = priced([(deployment.surface, steps) for _, deployment, steps in fitting])
        for (number, deployment, steps), outcome in zip(fitting, outcomes, strict=True):
            found[number] = _most(deployment, wanted, steps, outcome)
    return found


def _told(deployment: Deployment, workload: Workload) -> list[Step]:
    """The steps that screening prices: a chunk of a prompt, then decodes of ever more requests."""
    prompt, output = float(workload.prompt.mean()), float(workload.output.mean())
    engine = deployment.engine
    most = int(np.clip(engine.blocks * engine.block / (prompt + output), 1, engine.requests))
    counts = sorted({*(2**i for i in range(int(math.log2(most)) + 1)), most})
    held = max(round(prompt + output / 2), 1)
    new = min(engine.budget, max(round(prompt), 1))
    return [Step(chunks=((new, 0),)), *(Step(contexts=(held,) * count) for count in counts)]


def _most(
    deployment: Deployment, wanted: Wanted, steps: Sequence[Step], outcomes: Outcomes
) -> _Screening | str:
    """What full steps allow; why not, where even requests that never meet miss the promise.

    A request takes its tokens' share of the steps' time, by the decodes in them, and what its prompt adds to
    them. The time per token is that of the steps and of the prompts between them.
    """
    workload, engine = wanted.workload, deployment.engine
    prompt, output = float(workload.prompt.mean()), max(float(workload.output.mean()) - 1, 1e-9)
    (new, _), *_ = steps[0].chunks
    chunks, each = prompt / new, 1 + engine.draft * engine.acceptance
    reading, times = float(outcomes.runtime_s[0]), outcomes.runtime_s[1:] / each
    counts = np.array([len(step.contexts) for step in steps[1:]])
    limits = {one.measure: one.seconds for one in wanted.targets if one.percentile >= MEDIAN}
    alone = {"ttft_s": chunks * reading, "tpot_s": float(times[0])}
    for measure, seconds in alone.items():
        if seconds > LATE * limits.get(measure, math.inf):
            target = next(one for one in wanted.targets if one.measure == measure)
            return f"an empty system misses its target: {target} takes {seconds * 1e3:.3g} ms or more"
    added = chunks * max(reading - float(times[0]), 0.0)  # by a prompt, to steps that read all weights anyway
    rates = 1 / (added + output * times / counts)
    between = times + counts * added / output  # time per token
    held = rates[between <= LATE * limits.get("tpot_s", math.inf)]
    ways = engine.stages * engine.data
    joules = chunks * outcomes.energy_j[0] + output * (outcomes.energy_j[1:] / each / counts).min()
    return _Screening(
        ways / (chunks * reading),
        ways * float((counts / times).max()) / output,
        ways * float(held.max(initial=rates[0])),
        float(joules) * deployment.layout.ranks / deployment.layout.pipeline,
        deployment.notes,
    )


def _screened(
    wanted: Wanted,
    tries: Sequence[Sequence[Candidate]],
    rate: float,
    skipped: list[tuple[str, str]],
    pool: Pool,
) -> tuple[list[_Screened], tuple[str, ...]]:
    """(candidates that fit, the most promising first; notes); `tries` are those of each device."""
    found: list[_Screened] = []
    notes: list[str] = []
    answers = pool.results(_screen, [(wanted, some) for some in tries])
    pairs = (pair for some, each in zip(tries, answers, strict=True) for pair in zip(some, each, strict=True))
    for candidate, answer in counted(pairs, "screening:", sum(map(len, tries))):
        if isinstance(answer, str):
            skipped.append((str(candidate), answer))
            continue
        notes += answer.notes
        groups = [(candidate, answer.both)]
        if wanted.apart:
            ratio = answer.answers / answer.prompts
            prefills, decodes = (int(np.clip(round(part), 1, MOST_APART)) for part in (ratio, 1 / ratio))
            group = replace(candidate, prefills=prefills, decodes=decodes)
            groups.append((group, min(prefills * answer.prompts, decodes * answer.answers)))
        for group, most in groups:
            found.append(_Screened(group, math.ceil(rate / most), most, rate * answer.joules))
    return sorted(found, key=lambda one: one.dear(wanted)), tuple(dict.fromkeys(notes))


Answer = tuple[float, Load] | str | None  # the highest rate and its load, why there is none, or not asked


def _tried(wanted: Wanted, candidate: Candidate, guess: float) -> Answer:
    """Simulate a candidate."""
    try:
        deployment = wanted.deployed(candidate)
        highest, tried = highest_rate(
            deployment, wanted.workload, wanted.targets, replicas=candidate.decodes, guess=guess
        )
    except (InputError, ModelError) as error:
        return one_line(error)
    deployment.keep()
    return highest, next(load for load in tried if load.rate == highest)


def _answers(
    wanted: Wanted, screened: Sequence[_Screened], kept: _Kept, choices: Sequence[Choice], pool: Pool
) -> Iterator[tuple[_Screened, Answer]]:
    """(candidate, answer) of each, the most promising first; what the file keeps is not simulated again.

    `choices` are those that were answered, as they come. Once a candidate cannot come near the best of them,
    none after it can: they are no more promising.
    """

    def hopeless(one: _Screened) -> bool:
        known = ((each.devices, each.power_w or math.inf, each.device) for each in choices)
        best = min((wanted.dear(*each) for each in known), default=math.inf)
        return one.dear(wanted) > (WORSE if len(choices) < ENOUGH else 1.0) * best

    left = [one for one in screened if str(one.candidate) not in kept.answers and not one.over(wanted)]
    calls = [(wanted, one.candidate, BEGIN * one.most) for one in left]
    found: Generator[Answer, None, None] = (
        _on_ray(calls) if wanted.executor == "ray" else pool.results(_tried, calls)
    )
    for one in counted(screened, "simulating:"):
        answer = kept.answers.get(str(one.candidate))
        if answer is None and not (one.over(wanted) or hopeless(one)):
            answer = next(found)
            kept.add(str(one.candidate), answer)
        yield one, answer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # joblib's, of simulations that nobody waits for
        found.close()


def _on_ray(calls: Sequence[tuple[Wanted, Candidate, float]]) -> Generator[Answer, None, None]:
    """On the nodes of a Ray cluster, which have neuralpower installed; raises InputError."""
    try:
        import ray
    except ImportError:
        raise InputError("executor ray: Ray is not installed; pip install ray") from None
    with nullcontext() if ray.is_initialized() else ray.init(log_to_driver=False, logging_level="error"):
        tried = ray.remote(_tried)
        for reference in [tried.remote(*call) for call in calls]:
            yield ray.get(reference)


class _Kept:
    """A file with a line for each simulated candidate of the same question."""

    def __init__(self, wanted: Wanted) -> None:
        """Read what is there; raises InputError for a file of something else."""
        self.path = path = wanted.keep
        asked = {
            "model": wanted.model,
            "targets": [str(one) for one in wanted.targets],
            "how": str(wanted.how),
        }
        self.key = key_of(
            {**asked, "prompt": wanted.workload.prompt.tolist(), "output": wanted.workload.output.tolist()}
        )
        self.answers: dict[str, Answer] = {}
        self.notes: tuple[str, ...] = ()
        others = set()
        if path is None or not path.exists():
            return
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                if (made := row.get("version")) != __version__:
                    others.add(str(made or "an earlier one"))
                elif row["key"] == self.key:
                    load = row.get("load")
                    found = row["reason"] if load is None else (row["highest"], Load.from_json(load))
                    self.answers[row["candidate"]] = found
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"--keep {path}, line {number}: is none of a plan ({error}); choose another file"
                ) from error
        if others:
            self.notes = (
                f"{path} has results of neuralpower {', '.join(sorted(others))}; they are simulated again "
                f"by {__version__}",
            )

    def add(self, name: str, answer: Answer) -> None:
        """Write an answer at the end of the file."""
        if self.path is None or answer is None:
            return
        row: dict[str, Any] = {"version": __version__, "key": self.key, "candidate": name}
        if isinstance(answer, str):
            row["reason"] = answer
        else:
            row |= {"highest": answer[0], "load": answer[1].to_json()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json_text(row) + "\n")


def _figures(choice: Choice) -> list[float]:
    """What a choice takes of each: devices, price, watts; unknown ones are no worse than others."""
    return [choice.mean_devices, choice.cost or 0.0, choice.power_w or 0.0]


def _beats(one: Choice, other: Choice) -> bool:
    """Whether one takes no more of anything, and less of something."""
    pairs = list(zip(_figures(one), _figures(other), strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _order(by: str) -> Callable[[Choice], tuple[float, ...]]:
    """What choices are ranked by: unknown costs come last."""
    if by == "cost":
        return lambda choice: (math.inf if choice.cost is None else choice.cost, choice.devices)
    if by == "energy":
        return lambda choice: (math.inf if choice.power_w is None else choice.power_w, choice.devices)
    return lambda choice: (choice.mean_devices, -choice.highest)
