"""What models do on devices: traced once, then priced at any size, and kept while the server runs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.api.loaded import chosen
from neuralpower.api.predicting import predicted
from neuralpower.devices.cluster import ONE, Layout, cluster_of
from neuralpower.devices.spec import find_spec
from neuralpower.errors import ModelError, NeuralPowerError, one_line, shortened_names
from neuralpower.layers.base import torch_dtype
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.decoder import Decoder
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.phases import DECODE, GENERATE, PREFILL, Phase, Step
from neuralpower.networks.source import Source
from neuralpower.networks.sources import resolve
from neuralpower.prediction.beside import KIND
from neuralpower.prediction.case import followed
from neuralpower.prediction.compose import composed
from neuralpower.prediction.costs.footprint import Each, Made, each_of, made_by, terms_in
from neuralpower.prediction.explore.outcomes import Outcomes
from neuralpower.prediction.memory.peak import Memory, forward_memory, training_memory
from neuralpower.prediction.parallel import serving_memories
from neuralpower.prediction.prediction import LAUNCHES, Prediction
from neuralpower.prediction.request import Request, dtype_for, request_of
from neuralpower.prediction.rows import Interval
from neuralpower.prediction.weights import with_weights
from neuralpower.serving.surface import NoForm, StepSurface, surface_of
from neuralpower.trace.followed import Followed
from neuralpower.trace.question import ENGINE, Question, usual_run
from neuralpower.web.laws import Law, law_of
from neuralpower.web.view import Takes, View

BATCHES = tuple(2**n for n in range(9))  # of the curves
TRAINED = (1, 4, 16, 64)  # the same for steps of training and passes without a law, which take longer
NODES = 5  # contexts of a generation's steps that are priced
MOST_TOKENS = 2**21  # of a prefill on a curve
MOST_KEPT = 64  # of each sort
MOST_POINTS = 4096
SECONDS = ("runtime_s", "low_s", "high_s")  # of outcomes: value and bounds
JOULES = ("energy_j", "energy_low_j", "energy_high_j")


@dataclass(frozen=True)
class Point:
    """A pass at one batch size."""

    batch: int
    seconds: Interval
    amount: int  # tokens, or samples, that it reads or makes
    energy_j: Interval | None = None  # of all devices
    memory: tuple[float, float, float] | None = None  # bytes of a device: value, low, high

    @property
    def rate(self) -> Interval:
        """Tokens, or samples, per second."""
        s = self.seconds
        return Interval(self.amount / s.value, self.amount / s.high, self.amount / s.low)


@dataclass(frozen=True)
class Answer:
    """A model on one device, or on equal ones that share it."""

    device: str  # slug
    name: str
    unit: str  # of what it makes: token, sample, image
    here: Point
    curve: tuple[Point, ...]  # over the batch size, with `here`
    kinds: Mapping[str, Interval]  # seconds of the layers of each kind, the largest first
    room_bytes: float | None = None  # of a device
    left_bytes: float | None = None  # of them that `fit` lets a network take
    ranks: int = 1
    price: float | None = None  # of a device for an hour
    region: str = ""  # whose grid feeds it

    def each(self, point: Point) -> Each:
        """What a token or a sample takes at a batch size."""
        made = Made(self.name, self.unit, point.amount, point.seconds, point.energy_j, self.ranks)
        return each_of(made, terms_in({"price": self.price, "region": self.region or None}))


@dataclass(frozen=True)
class Failure:
    """What the command prints instead of an answer."""

    device: str
    text: str


def failure(device: str, error: NeuralPowerError) -> Failure:
    """An error as the command prints it."""
    return Failure(device, f"error: {shortened_names(one_line(error))}")


@dataclass
class _Kept:
    """The latest of what was made, by what it depends on; errors are kept, too."""

    most: int
    known: dict[Hashable, Any] = field(default_factory=dict)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What is known under the key, else what `make` makes; raises what it raised."""
        if key not in self.known:
            while len(self.known) >= self.most:
                self.known.pop(next(iter(self.known)))
            try:
                self.known[key] = make()
            except NeuralPowerError as error:
                self.known[key] = error
        found = self.known[key] = self.known.pop(key)
        if isinstance(found, NeuralPowerError):
            raise found
        return found


@dataclass(frozen=True)
class _Asked:
    """A view on one device, resolved."""

    view: View
    device: str
    model: str  # as `resolve` takes it
    stamp: int  # time of change of its file
    predictor: Predictor
    source: Source
    dtype: str
    run: str

    @property
    def layout(self) -> Layout:
        return Layout(tensor=self.view.ranks) if self.view.ranks > 1 else ONE

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What followed passes depend on: quantised products and gradients depend on the device, too."""
        view, platform = self.view, self.predictor.platform
        own = view.weights or self.source.weights is not None or view.phase == "training" or view.ranks > 1
        return (
            self.model,
            self.stamp,
            self.dtype,
            view.weights,
            view.shape,
            view.ranks,
            platform.name,
            self.device if own else "",
        )

    def options(self, batch: int, **more: Any) -> dict[str, Any]:
        """Options of `predict`."""
        found = {**self.view.options(self.device, batch), "dtype": self.dtype, **more}
        return {name: value for name, value in found.items() if value is not None and name != "device"}


class KeptAnswers:
    """KeptAnswers views; what it has followed and priced is kept. Not for several threads at once."""

    def __init__(self) -> None:
        self._surfaces, self._laws, self._sources = _Kept(MOST_KEPT), _Kept(MOST_KEPT), _Kept(MOST_KEPT)
        self._predictions, self._memories = _Kept(MOST_POINTS), _Kept(MOST_POINTS)
        self._answers, self._priced = _Kept(MOST_POINTS), _Kept(MOST_KEPT)

    def each(self, view: View, model: str) -> list[Answer | Failure]:
        """The answer on each device; `model`: as `resolve` takes it."""
        found: list[Answer | Failure] = []
        for device, price in zip(view.devices, view.prices, strict=True):
            try:
                plain = replace(view.alone(device), prices=(None,), region="")
                plain = replace(plain, input=View.input, output=View.output)
                answered = partial(self.answer, plain, device, model)
                known: Answer = self._answers.get((plain, model, _stamp(model)), answered)
                found.append(replace(known, price=price, region=view.region))
            except NeuralPowerError as error:
                found.append(failure(device, error))
        return found

    def takes(self, model: str) -> Takes:
        """What a model takes; raises NeuralPowerError for one that cannot be built."""
        return self._sources.get((model, _stamp(model), "takes"), lambda: _takes(self._source(model)))  # type: ignore[no-any-return]

    def answer(self, view: View, device: str, model: str) -> Answer:
        """The answer on one device; raises NeuralPowerError as `predict`."""
        asked = self._asked(view, device, model)
        fast = view.speaks and asked.run == ENGINE and view.context is not None
        surface = self._surface(asked) if fast else None
        unit, points, kinds = self._passed(asked) if surface is None else self._stepped(asked, surface)
        spec = find_spec(device)
        return Answer(
            device=device,
            name=spec.name,
            unit=unit,
            here=next(point for point in points if point.batch == view.batch),
            curve=tuple(points),
            kinds=dict(sorted(kinds.items(), key=lambda one: -one[1].value)),
            room_bytes=(room := spec.get("memory_bytes")),
            left_bytes=None if room is None else asked.predictor.platform.left_bytes(room, view.phase),
            ranks=view.ranks,
        )

    def prediction(self, view: View, device: str, model: str) -> Prediction:
        """The layers of the pass, of a generation those of a middle step; raises as `answer`."""
        asked = self._asked(view, device, model)
        stepped = view.speaks and asked.run == ENGINE and view.context is not None
        if stepped and asked.layout.alone:
            length, phase = view.context or 1, view.phase
            if phase == GENERATE:
                length, phase = length + view.new // 2, DECODE
            law = self._law(asked, phase, length)
            if law is not None and law.priced:
                return self._composed(asked, phase, law, length)
        return self.predicted(view, device, model)

    def predicted(self, view: View, device: str, model: str) -> Prediction:
        """What the command `predict` answers; raises as it does."""
        asked = self._asked(view, device, model)
        return self._predicted(asked, view.batch)

    def surface(self, view: View, device: str, model: str) -> StepSurface:
        """The steps of the model under an engine; raises NeuralPowerError."""
        asked = self._asked(view, device, model)
        found = self._surface(asked)
        if found is None:
            raise ModelError(f"{view.model}: its steps under an engine follow no form of its tokens")
        return found

    # ---- what is followed ----

    def _source(self, model: str) -> Source:
        found: Source = self._sources.get((model, _stamp(model)), lambda: resolve(model))
        return found

    def _asked(self, view: View, device: str, model: str) -> _Asked:
        predictor = chosen(device).predictor
        run = usual_run(predictor.platform, view.phase)
        stamp, source = _stamp(model), self._source(model)
        key = (model, stamp, view.dtype, device, run)
        dtype, _ = self._sources.get(key, lambda: dtype_for(model, view.dtype or None, predictor, run))
        return _Asked(view, device, model, stamp, predictor, source, dtype, run)

    def _surface(self, asked: _Asked) -> StepSurface | None:
        """The steps on the device; None where their sizes follow no form."""
        view = asked.view

        def made() -> StepSurface:
            cluster = None if asked.layout.alone else cluster_of(view.place(asked.device))
            how: dict[str, Any] = {"dtype": asked.dtype, "layout": asked.layout, "cluster": cluster}
            return surface_of(asked.model, asked.predictor, weights=view.weights or None, **how)

        try:
            found: StepSurface = self._surfaces.get(asked.key, made)
        except NoForm:
            return None
        return replace(found, predictor=asked.predictor)

    def _law(self, asked: _Asked, phase: str, length: int) -> Law | None:
        """The law of the passes of a phase at a length; None where there is none."""
        fixed = (*asked.key, phase, length)
        steps = phase in (PREFILL, DECODE)
        if fixed not in self._laws.known and (steps or asked.view.context is not None):
            for beyond in (True, False) if phase == DECODE else (True,):
                key = (*asked.key, phase, f"beyond windows: {beyond}")
                found: Law | None = self._laws.get(key, partial(self._solved, asked, phase, None, beyond))
                if found is not None and (found.priced or steps) and found.holds(length):
                    return found
        if steps:
            return None
        one: Law | None = self._laws.get(fixed, partial(self._solved, asked, phase, length))
        return one

    def _solved(self, asked: _Asked, phase: str, length: int | None, beyond: bool = True) -> Law | None:
        """The law of a phase at a length; None: at any beyond the windows of a cache, or within them."""
        if not asked.layout.alone and not asked.view.speaks:
            return None  # a layout's replicas and stages need more than one pass

        def passed(batch: int, tokens: int) -> Followed:
            request = self._request(asked, phase, batch, tokens)
            found = followed(request.asked(asked.source, asked.run), self._question(asked, request))
            assert isinstance(found, Followed)  # generations are no passes
            return found

        try:
            decodes, lengths = phase == DECODE, (0.0, float("inf"))
            windows = [*passed(2, 64).work.about.windows.values()] if decodes else []
            if windows:
                lengths = (float(max(windows)), lengths[1]) if beyond else (0.0, min(windows) - 1.0)
            return law_of(passed, decodes=decodes, length=length, lengths=lengths)
        except NeuralPowerError:  # a network that takes some sizes alone
            return None

    def _request(self, asked: _Asked, phase: str, batch: int, length: int | None) -> Request:
        """The request of a pass of a phase, of a generation its prefill or a step."""
        options = asked.options(batch)
        if phase in (DECODE, PREFILL):
            options["phase"] = Phase.decode(context=length) if phase == DECODE else Phase.prefill(length)
            options = {n: v for n, v in options.items() if n not in ("context", "prompt", "new_tokens")}
        elif asked.view.context is not None:
            options["seq_len"] = length
        return replace(request_of(asked.model, options, dtype=asked.dtype), model=asked.source)

    @staticmethod
    def _question(asked: _Asked, request: Request) -> Question:
        predictor = asked.predictor
        question = request.question(predictor.platform, knows=predictor.knows, run=asked.run)
        return with_weights(question, asked.source.weights, predictor, None)

    # ---- what is priced ----

    def _stepped(self, asked: _Asked, surface: StepSurface) -> Priced:
        """Steps of an engine."""
        view = asked.view
        length = view.context or 1
        most = MOST_TOKENS if view.phase == DECODE else MOST_TOKENS // length
        batches = sorted({view.batch, *(batch for batch in BATCHES if batch <= most)})
        passes, weights = _passes(view)
        at = batches.index(view.batch)
        place = at * len(passes)

        def priced(some: Sequence[int]) -> Iterator[Steps]:
            found, kinds = surface.with_kinds([make(batch) for batch in some for make in passes])
            for i in range(0, len(some) * len(passes), len(passes)):
                own = slice(i, i + len(passes))
                yield found.at(own), {kind: part.at(own) for kind, part in kinds.items()}

        known = self._priced.get((*asked.key, asked.device, view.phase, length, view.new), dict[int, Steps])
        if missing := [batch for batch in batches if batch not in known]:
            known.update(zip(missing, priced(missing), strict=True))
        found = Outcomes.joined([known[batch][0] for batch in batches])
        if view.phase != DECODE and view.batch * length > surface.captured:
            found = self._launched(asked, found, place)
        shape = len(batches), len(passes)
        each = {
            name: np.asarray(getattr(found, name)).reshape(shape) @ weights for name in (*SECONDS, *JOULES)
        }
        amount = {DECODE: 1, PREFILL: length, GENERATE: view.new}[view.phase]
        memory = self._memory_line(asked, batches)
        points = [
            Point(
                batch,
                Interval(*(float(each[name][i]) for name in SECONDS)),
                batch * amount,
                _energy([float(each[name][i]) * view.ranks for name in JOULES]),
                memory.get(batch),
            )
            for i, batch in enumerate(batches)
        ]
        here = found.at(slice(place, place + len(passes)))
        return "token", points, _kinds(here, known[view.batch][1], weights)

    def _launched(self, asked: _Asked, found: Outcomes, place: int) -> Outcomes:
        """The outcomes with the host's launches of one prefill, as `predict` follows them call by call."""
        length = asked.view.context or 1
        law = self._law(asked, PREFILL, length) if asked.layout.alone else None
        if law is None or not law.priced:
            return found
        p = self._composed(asked, PREFILL, law, length)
        energy = (np.nan,) * 3 if p.energy_j is None else _ends(p.energy_j)
        waits = sum(row.runtime_s for row in p.by_kind() if row.kind == LAUNCHES)
        exact = dict(zip((*SECONDS, *JOULES, "launch_s"), (*_ends(p.runtime_s), *energy, waits), strict=True))
        columns = {name: np.array(getattr(found, name), dtype=float) for name in exact}
        for name, value in exact.items():
            columns[name][place] = value
        return replace(found, **columns)

    def _composed(self, asked: _Asked, phase: str, law: Law, length: int) -> Prediction:
        """A pass of a law, priced as `predict` does."""
        batch = asked.view.batch
        question = self._question(asked, self._request(asked, phase, batch, length))
        work = law.at(batch, length).work
        return composed(work, asked.predictor, question, model=asked.view.model, batch_size=batch)

    def _passed(self, asked: _Asked) -> Priced:
        """Passes and steps of training, each priced alone."""
        view = asked.view
        here = self._predicted(asked, view.batch)
        points = [_point(here, view.batch)]
        usual = asked.layout.alone and here.images is None
        law = self._law(asked, view.phase, view.context or 1) if usual and not view.speaks else None
        few = view.phase == "training" or law is None or not law.priced
        for batch in set(TRAINED if few else BATCHES) - {view.batch} if usual else ():
            with contextlib.suppress(NeuralPowerError):  # a network that takes some batches alone
                points.append(_point(self._predicted(asked, batch), batch))
        kinds = {row.kind: Interval(row.runtime_s, row.low_s, row.high_s) for row in here.by_kind()}
        return made_by(here).unit, sorted(points, key=lambda point: point.batch), kinds

    def _predicted(self, asked: _Asked, batch: int) -> Prediction:
        """The prediction at a batch size: by the law, where there is one and it holds."""

        def made() -> Prediction:
            view = asked.view
            law = None
            if asked.layout.alone and not view.speaks and batch > 1:
                law = self._law(asked, view.phase, view.context or 1)
            if law is None or not law.priced:
                return predicted(chosen(asked.device).predictor, asked.model, None, asked.options(batch))
            found = law.at(batch, view.context or 1)
            question = self._question(asked, self._request(asked, view.phase, batch, view.context))
            prediction = composed(found.work, asked.predictor, question, model=view.model, batch_size=batch)
            memory = _memory(found, asked)
            room = find_spec(asked.device).get("memory_bytes")
            return replace(prediction, memory=memory, device_memory_bytes=room)

        view = asked.view
        drawn = (view.resolution, view.steps, view.frames)
        sizes = (view.phase, view.context, view.new if view.phase == GENERATE else 0, *drawn, batch)
        found: Prediction = self._predictions.get((*asked.key, asked.device, *sizes), made)
        return found

    def _memory_line(self, asked: _Asked, batches: Sequence[int]) -> dict[int, tuple[float, float, float]]:
        """Bytes at each batch size: replayed at two, and on their line; empty where not known."""
        here = asked.view.batch
        other = batches[-1] if here * 2 <= batches[-1] else batches[0]
        found = self._stepped_memory(asked, here), self._stepped_memory(asked, other)
        if found[0] is None or found[1] is None:
            return {}
        ends = np.array(found)
        each = (ends[1] - ends[0]) / (other - here) if other != here else ends[0] * 0
        lines = {batch: (ends[0] + each * (batch - here)).tolist() for batch in batches}
        return {batch: (value, low, high) for batch, (value, low, high) in lines.items()}

    def _stepped_memory(self, asked: _Asked, batch: int) -> tuple[float, float, float] | None:
        """Bytes of a step or a prefill; of a generation the more of its prefill and its last step."""
        view = asked.view
        length = view.context or 1
        passes = {PREFILL: [(PREFILL, length)], DECODE: [(DECODE, length)]}.get(view.phase)
        if passes is None:
            passes = [(PREFILL, length), *([(DECODE, length + view.new - 2)] if view.new > 1 else [])]
        found = [self._pass_memory(asked, phase, batch, size) for phase, size in passes]
        known = [memory for memory in found if memory is not None]
        if len(known) < len(found):
            return None
        return _bytes(max(known, key=lambda memory: memory.high_bytes))

    def _pass_memory(self, asked: _Asked, phase: str, batch: int, length: int) -> Memory | None:
        """The memory of a pass; None where no law says it."""
        law = self._law(asked, phase, length)
        if law is None:
            return None
        key = (*asked.key, asked.device, phase, batch, length)

        def made() -> Memory:
            passed = law.at(batch, length)
            if asked.layout.alone:
                return _memory(passed, asked)
            question = self._question(asked, self._request(asked, phase, batch, length))
            return max(serving_memories(passed.work, question), key=lambda memory: memory.high_bytes)

        found: Memory = self._memories.get(key, made)
        return found


def _stamp(model: str) -> int:
    """When the file of a model was changed, in ns; 0 where it is none."""
    location = model.partition("?")[0]
    for text in (location, location.rpartition(":")[0]):
        with contextlib.suppress(OSError, ValueError):
            if text and (path := Path(text).expanduser()).exists():
                return path.stat().st_mtime_ns
    return 0


def _takes(source: Source) -> Takes:
    """What a model takes, tried on inputs without values."""
    if source.steered is not None:
        return Takes(decodes=False, reads=False, draws=True)
    module = source.build("meta", torch_dtype("bfloat16"))
    limit = getattr(getattr(module, "config", None), "max_position_embeddings", None)
    reads = _works(lambda: source.inputs(module, InputRequest(1, seq_len=2), "meta"))
    decodes = reads and _works(lambda: Decoder(module, InputRequest(1)))
    return Takes(decodes, reads, positions=float(limit) if isinstance(limit, int) else float("inf"))


def _works(trial: Callable[[], object]) -> bool:
    try:
        trial()
    except NeuralPowerError:
        return False
    return True


Steps = tuple[Outcomes, dict[str, Outcomes]]
"""Steps of a batch size: all their layers, and those of each kind."""
Priced = tuple[str, list[Point], dict[str, Interval]]
"""What an answer counts, its points over the batch size, and the seconds of each kind at the asked one."""


def _kinds(found: Outcomes, kinds: Mapping[str, Outcomes], weights: np.ndarray) -> dict[str, Interval]:
    """Seconds by kind of the steps of a batch size; what is left belongs to no layer, and has no bounds."""
    parts = {
        kind: Interval(*(float(np.asarray(getattr(part, name)) @ weights) for name in SECONDS))
        for kind, part in kinds.items()
    }
    whole, launches = (float(np.asarray(s) @ weights) for s in (found.runtime_s, found.launch_s))
    left = whole - launches - sum(part.value for part in parts.values())
    parts |= {LAUNCHES: Interval(*(launches,) * 3), KIND: Interval(*(left,) * 3)}
    return {kind: part for kind, part in parts.items() if part.value > 1e-3 * whole}


def _passes(view: View) -> tuple[list[Callable[[int], Step]], np.ndarray]:
    """(steps of a batch size, how often each runs) of a phase."""
    length = view.context or 1

    def prefill(batch: int) -> Step:
        return Step(chunks=((length, 0),) * batch)

    def decode(context: int) -> Callable[[int], Step]:
        return lambda batch: Step(contexts=(context,) * batch)

    if view.phase == PREFILL:
        return [prefill], np.ones(1)
    if view.phase == DECODE:
        return [decode(length)], np.ones(1)
    first, last = length, length + view.new - 2
    if view.new == 1:
        return [prefill], np.ones(1)
    nodes = sorted(set(np.linspace(first, last, min(NODES, view.new - 1)).round().astype(int).tolist()))
    weights = np.ones(len(nodes))
    for i, (low, high) in enumerate(itertools.pairwise(nodes)):  # as on straight lines between them
        weights[i : i + 2] += (high - low - 1) / 2
    return [prefill, *map(decode, nodes)], np.concatenate([np.ones(1), weights])


def _point(found: Prediction, batch: int) -> Point:
    """The point of a prediction."""
    several, made = found.parallel, made_by(found)
    energy = found.energy_j if several is None else several.energy_j
    memory = None if found.memory is None else _bytes(found.memory)
    return Point(batch, found.runtime_s, int(made.count), energy, memory)


def _memory(found: Followed, asked: _Asked) -> Memory:
    platform = asked.predictor.platform
    if found.lifetimes is not None:
        return training_memory(found.lifetimes, platform=platform)
    return forward_memory(found.work, platform=platform, run=asked.run)


def _bytes(memory: Memory) -> tuple[float, float, float]:
    return memory.value_bytes, memory.low_bytes, memory.high_bytes


def _ends(value: Interval) -> tuple[float, float, float]:
    return value.value, value.low, value.high


def _energy(joules: Sequence[float]) -> Interval | None:
    """Joules with their bounds; None where they are not known."""
    return Interval(*joules) if np.isfinite(joules[0]) else None
