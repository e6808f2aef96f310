"""Memory of one request at many sizes: what its passes make is followed, and its peak is kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from neuralpower.errors import InputError, ModelError
from neuralpower.files.stages import stage
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.networks.decoder import pass_of
from neuralpower.networks.diffusion.pictures import Picture
from neuralpower.networks.inputs.size_limits import TOKENS
from neuralpower.networks.passes import Pass
from neuralpower.networks.phases import DECODE, GENERATE, MOST_REQUESTS, PREFILL, Phase
from neuralpower.networks.sharding import Sharding, sharded
from neuralpower.networks.source import Source
from neuralpower.prediction.fits.engine_fit import check_ranks_of
from neuralpower.prediction.fits.shallow import Passed, Shallow
from neuralpower.prediction.fits.shortened import shortened
from neuralpower.prediction.memory.over_time import Lived, lived
from neuralpower.prediction.memory.peak import Memory, forward_memory, training_memory
from neuralpower.prediction.parallel import one_micro_batch, serving_memories, stage_memories
from neuralpower.prediction.request import Request
from neuralpower.prediction.weights import chosen, scheme_asked
from neuralpower.quantisation.totals import Quantised, totals
from neuralpower.trace.follow import follow, frozen, of_calls, repeating, shape_of
from neuralpower.trace.followed import Followed, with_quantised
from neuralpower.trace.lifetimes import StepLifetimes
from neuralpower.trace.passes import OF_CALLS, applied
from neuralpower.trace.passes.quantisation import quantised
from neuralpower.trace.question import COMPILE, ENGINE, Question
from neuralpower.trace.recipe import TRAINING, Recipe
from neuralpower.trace.records import Trace
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace
from neuralpower.trace.weights import weights_of

BUILT = "model dtype lora memory_format".split()  # fields of a request that a network depends on
MOST_CALLS = 20_000  # in a trace, which takes seconds: a scan in Python makes more with each token


class Probe:
    """Memory of the request at other sizes; each is traced once."""

    def __init__(self, request: Request, like: Probe | None = None) -> None:
        """`like`: of another request for the same network."""
        self.run = request.run_on(request.platform)
        self.request = request = replace(request, run=self.run)
        self.dtype = torch_dtype(request.dtype)
        self.source: Source = request.source()
        phase = request.way
        # number of blocks, None for all -> a network of that depth; one that is sharded changes
        alike = like is not None and like.builds_like(request)
        self._built: dict[int | None, nn.Module] = like._built if like is not None and alike else {}
        self.module = self._build(None)
        self.scheme = chosen(scheme_asked(request.weights), self.source.weights, phase, self.module)
        self.quantised: Quantised | None = None
        # what is frozen, and how it is sharded
        self.notes: tuple[str, ...] = tuple(frozen(self.module) if phase == TRAINING else ())
        # the memory of each stage, where there are several
        self.stages: dict[tuple[int, int | None], list[Memory]] = {}
        if not request.layout.alone:
            check_ranks_of(request, self.module, self.source.name)
            self.module, done = self._sharded(self.module)
            self.notes += done.notes
        same = like is not None and like.request.weights == request.weights
        known = like.shallow.agreements() if like is not None and same else {}
        # a compiled step does not say what a block makes, and quantised weights have no blocks' names
        apart = {TRAINING} if self.run == COMPILE or self.scheme is not None else ()
        self.shallow: Shallow = Shallow(self.module, self._short, request.platform, known, apart)
        self.own_length: int | None = None
        self.picture: Picture | None = None  # of a pipeline of diffusion, as it was last traced
        # the last picture's trace, which offloading and quantisation then change
        self._recorded: dict[object, Trace] = {} if like is None else like._recorded
        self.seen: Callable[[Lived], None] | None = None
        self._known: dict[tuple[int, int | None], Memory] = {}
        self._calls: dict[tuple[int, int | None], int] = {}

    def _sharded(self, module: nn.Module) -> tuple[nn.Module, Sharding]:
        """The module of one rank, and how it was made; raises InputError as `sharded`."""
        request = self.request
        how = request.sharding(self.run if request.engine is None else ENGINE)
        about = replace(request.inputs, seq_len=request.length)
        return sharded(module, how, partial(self.source.inputs, module, about, "meta"))

    def builds_like(self, other: Request) -> bool:
        """Whether the networks of another request are those of this one, unsharded."""
        both = self.request, other
        if any(one.sharding(one.run_on(one.platform)).needed for one in both):
            return False
        return all(getattr(self.request, name) == getattr(other, name) for name in BUILT)

    def _build(self, blocks: int | None) -> nn.Module:
        """The network with the first `blocks` blocks, or all."""
        if blocks not in self._built:
            source = self.source if blocks is None else shortened(self.source, blocks)
            self._built[blocks] = source.build("meta", self.dtype)
        return self._built[blocks]

    def _short(self, blocks: int) -> nn.Module:
        """The network with the first `blocks` blocks, on one rank."""
        module = self._build(blocks)
        return module if self.request.layout.alone else self._sharded(module)[0]

    def quantised_bytes(self) -> int | None:
        """Bytes of the weights under the scheme; None without one. Traces a pass of two tokens."""
        if self.scheme is None:
            return None
        one = self._asked(self.module, 1, 2, PREFILL)
        self._weighed(trace(self.module, one.inputs.args, one.inputs.kwargs))
        return None if self.quantised is None else self.quantised.bytes

    @property
    def traces(self) -> int:
        return len(self._known)

    def __call__(self, batch: int, length: int | None) -> Memory:
        """At the peak; raises InputError or ModelError."""
        if (batch, length) not in self._known:
            self._known[batch, length] = self._memory(batch, length)
        return self._known[batch, length]

    def longest_traced(self, batch: int) -> float:
        """Where a trace reaches MOST_CALLS by the two longest so far; infinite where calls do not grow."""
        sizes = ((size, calls) for (b, size), calls in self._calls.items() if b == batch and size is not None)
        if len(known := sorted(sizes)) < 2:
            return float("inf")
        (before, fewer), (last, calls) = known[-2:]
        more = max(MOST_CALLS - calls, 0)
        return last + more * (last - before) / (calls - fewer) if calls > fewer else float("inf")

    def _memory(self, batch: int, length: int | None) -> Memory:
        """Memory of one pass; for a generation, the larger of its prefill and its last step."""
        size = f"batch {batch}{f', length {length}' if length else ''}"
        stage(f"tracing {self.source.name}, {size} (trace {self.traces + 1})")
        phase = self.request.phase
        if phase.name != GENERATE:
            return self._pass_memory(phase.name, batch, length, length)
        found = [self._pass_memory(PREFILL, batch, length, length)]
        made = phase.new_tokens or TOKENS  # the first by the prefill
        if made > 1:
            context = (length or self.own_length or TOKENS) + made - 2
            found.append(self._pass_memory(DECODE, batch, length, context))
        return max(found, key=lambda memory: memory.high_bytes)

    def _pass_memory(self, name: str, batch: int, length: int | None, tokens: int | None) -> Memory:
        """Memory of a pass over `tokens` tokens, in its prompt or its cache."""
        layout = self.request.layout
        if not layout.alone and (name == TRAINING or layout.pipeline > 1):
            return self._rank_memory(self._asked(self.module, batch, tokens, name), batch, length)
        follow = partial(self._passed, batch=batch, tokens=tokens, name=name)
        found, self._calls[batch, length] = self.shallow(name, follow)
        if self.seen is not None and layout.alone:
            self.seen(lived(self.source.name, name, found, self.request.platform))
        memory = self._peak(found)
        if not layout.alone:
            self._keep_stages(batch, length, [memory])
        return memory

    def _peak(self, traced: Trace | StepLifetimes) -> Memory:
        """The memory at the peak of a pass or a step."""
        request = self.request
        if not isinstance(traced, Trace):
            return training_memory(traced, platform=request.platform)
        if request.layout.alone:
            memory = forward_memory(traced, platform=request.platform, run=self.run)
        else:
            (memory,) = serving_memories(traced, self._question())
        return replace(memory, phase=request.phase.name)

    def _passed(self, module: nn.Module, batch: int, tokens: int | None, name: str) -> Passed:
        """A pass or a step of a network, the whole one or a shallow one."""
        asked = self._asked(module, batch, tokens, name)
        if name == TRAINING:
            step = self._step(asked, self.request.recipe)
            return Passed(step, step.end)
        if not self.request.layout.alone:
            followed = self._followed(asked)
            return Passed(followed.work, len(followed.trace.every_call))
        try:
            traced = self._weighed(self._trace(asked), module is self.module)
            traced = repeating(replace(traced, about=shape_of(asked)), asked.inputs)
            traced = applied(traced, self._question(), OF_CALLS)
        except ModelError as error:
            if tokens is not None and ("index" in str(error) or "size" in str(error)):
                raise InputError(str(error)) from error
            raise
        return Passed(traced, len(traced.every_call))

    def _trace(self, asked: Pass) -> Trace:
        """The calls of a pass, plain; those of a picture are kept for changes that leave them as they are."""
        self.picture = asked.inputs.picture
        if self.picture is None:
            return trace(asked.module, asked.inputs.args, asked.inputs.kwargs)
        key = (asked.module, self.picture.guidance, *(tensor.shape for tensor in asked.inputs.tensors))
        if key not in self._recorded:
            while len(self._recorded) > 1:  # the first is the request's own, to which others come back
                self._recorded.popitem()
            self._recorded[key] = trace(asked.module, asked.inputs.args, asked.inputs.kwargs)
        return self._recorded[key]

    def _followed(self, one: Pass) -> Followed:
        """A rank's pass or step, with its tasks."""
        found = follow(one, one_micro_batch(self._question()))
        assert isinstance(found, Followed)  # generations come pass by pass
        if one.module is self.module:
            self.quantised = found.work.quantised
        return found

    def _followed_shallow(self, asked: Pass) -> Followed | None:
        """The same of a step whose few blocks stand for all; None where they do not, or for stages."""
        phase, layout = self.request.phase.name, self.request.layout
        if phase != TRAINING or layout.pipeline > 1:
            return None
        once = replace(self.request.recipe, accumulation=1)

        def stepped(module: nn.Module) -> Passed:
            step = self._step(replace(asked, module=module), once)
            return Passed(step, step.end)

        passed = self.shallow.by_few(TRAINING, stepped)
        if passed is None or isinstance(passed.found, Trace):
            return None
        traced = of_calls(asked, one_micro_batch(self._question()))
        return Followed(asked, traced, traced, passed.found)

    def _step(self, asked: Pass, recipe: Recipe) -> StepLifetimes:
        """What a step of training makes."""
        request = self.request
        step = training_lifetimes(
            asked.module,
            asked.inputs.args,
            asked.inputs.kwargs,
            recipe=recipe,
            platform=request.platform,
            autocast=request.cast,
            compiled=self.run == COMPILE,
            holds_output=asked.inputs.labelled,
        )
        self.notes += tuple(n for n in (asked.inputs.note, step.note) if n and n not in self.notes)
        if self.scheme is None:
            return step
        weights = weights_of(asked.module)
        self.quantised = totals(self.scheme, weights, self.scheme.forms(weights, {}), {})
        return with_quantised(step, weights, self.scheme)

    def _question(self) -> Question:
        """The question of a pass or step."""
        return self.request.question(self.request.platform, self.scheme, run=self.run)

    def _rank_memory(self, one: Pass, batch: int, length: int | None) -> Memory:
        """Memory of the fullest device of a layout with stages, or in a step of training."""
        request, found = self.request, self._followed_shallow(one) or self._followed(one)
        self._calls[batch, length] = len(found.trace.every_call)
        stages = stage_memories(found, self._question())
        if not stages:
            raise InputError(f"{self.source.name}: its memory is not known: {'; '.join(found.notes)}")
        self._keep_stages(batch, length, stages)
        return replace(max(stages, key=lambda memory: memory.high_bytes), phase=request.phase.name)

    def _keep_stages(self, batch: int, length: int | None, stages: list[Memory]) -> None:
        """Keep the stages' memory, of a generation those of its larger pass."""
        known = self.stages.get((batch, length), [])
        most, before = (max((one.high_bytes for one in some), default=-1) for some in (stages, known))
        if most > before:
            self.stages[batch, length] = stages

    def _weighed(self, traced: Trace, whole: bool = True) -> Trace:
        """The trace with its weights quantised, where they are; `whole`: of all blocks."""
        if self.scheme is None:
            return traced
        traced = quantised(traced, self.scheme)
        if whole:
            self.quantised = traced.quantised
        return traced

    def _asked(self, module: nn.Module, batch: int, length: int | None, name: str) -> Pass:
        """Shapes alone; notes the length that a model takes by itself."""
        about = replace(self.request.inputs, batch_size=batch, seq_len=length)
        phase, lengths = Phase(PREFILL if name == PREFILL else FORWARD), self.request.phase.lengths
        if lengths is not None and length is None:  # those of the request, over and over in a larger batch
            self.own_length = max(lengths)
            if batch <= MOST_REQUESTS:
                each = tuple(itertools.islice(itertools.cycle(lengths), batch))
                return pass_of(self.source, about, Phase(name, lengths=each), module)
            length = self.own_length
            about = replace(about, seq_len=length)
        if decodes := name == DECODE:
            own = self.request.seq_len if self.request.phase.name == DECODE else None
            about, phase = replace(about, seq_len=own), Phase.decode(context=length)
        one = pass_of(self.source, about, phase, module)
        if length is None:
            ids = one.inputs.kwargs.get("input_ids")
            self.own_length = one.context if decodes else None if ids is None else int(ids.shape[-1])
        return one
