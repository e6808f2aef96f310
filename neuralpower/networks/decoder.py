"""The passes of each phase of generation, with their inputs and caches.

The cache is of the model's own class, filled by its own forward pass on the meta device: two tokens show what
its layers keep, and what grows with the text is then given the requested length. A cache of a class
that is not known here is filled by a pass over the whole context.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import BoundError, InputError, ModelError, NeuralPowerError, quoted
from neuralpower.layers.base import FORWARD, Call
from neuralpower.networks.caches import (
    CACHES,
    GROWING,
    Again,
    cache_bytes,
    cache_of,
    grow,
    layers_of,
    shapes_of,
)
from neuralpower.networks.inputs.arguments import text, transformers_inputs
from neuralpower.networks.inputs.arguments.forward import Forward
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.known_values import tensors_within, without_values
from neuralpower.networks.inputs.size_limits import TOKENS, InputRequest, overflows
from neuralpower.networks.passes import Pass
from neuralpower.networks.phases import DECODE, GENERATE, PREFILL, STEP, Phase, Step, mean_length
from neuralpower.networks.running import (
    META,
    WAYS,
    Answers,
    Ways,
    converted,
    on_cpu,
    values_change_nothing,
    with_values,
)
from neuralpower.networks.source import Source
from neuralpower.networks.users_code import raised, users_code

PROBE = 2  # tokens; one token alone would look like a step


def pass_of(source: Source, request: InputRequest, phase: Phase, module: nn.Module | None = None) -> Pass:
    """The forward call of a phase; for a generation its prefill.

    Args:
        source: where the model comes from.
        request: batch size, text length (for an encoder-decoder that of its encoder) and dtype.
        phase: the phase to run.
        module: the model, if it has been built already; on the meta device by default.

    Raises:
        InputError: numbers that are not positive or contradict each other, more positions than the model has,
            or a model that keeps no cache.
        ModelError: the model cannot be built, or its forward raises.
    """
    return replace(_pass(source, request, phase, module), weights=source.weights)


def _pass(source: Source, request: InputRequest, phase: Phase, module: nn.Module | None) -> Pass:
    phase.check()
    request = phase.applied(request)
    module = module if module is not None else source.build("meta", request.dtype)
    if phase.name == FORWARD:
        inputs = source.inputs(module, request, "meta")
        return Pass(FORWARD, module, inputs, batch_size=request.batch_size)
    decoder = Decoder(module, request, phase.name)
    if phase.name == STEP:
        return decoder.step(phase.requests_of_step())
    if phase.lengths is not None:
        return decoder.of_lengths(phase.lengths)
    if phase.name != DECODE:
        return decoder.prefill(phase.prompt)
    if request.seq_len is not None and not decoder.encodes_text:
        raise InputError(
            f"--seq-len {request.seq_len} is what the encoder of a pair reads, and {decoder.name} has "
            "none for text; give --context alone"
        )
    return decoder.decode(phase.context)


class Decoder:
    """A language model of transformers that keeps what it has read in a cache."""

    def __init__(
        self, module: nn.Module, request: InputRequest, phase: str = DECODE, ways: Ways = WAYS
    ) -> None:
        """`ways` to fill a cache are tried in turn; raises InputError for a module that keeps no cache."""
        request.check()
        self.module, self.request, self.phase, self.ways = module, request, phase, ways
        self.name = type(module).__name__
        self.parameters = inspect.signature(module.forward).parameters
        self.open = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self.parameters.values())
        self.config: Any = getattr(module, "config", None)
        self.cache_name = next((name for name in CACHES if name in self.parameters), None)
        if self.cache_name is None or not hasattr(self.config, "model_type"):
            raise self._no_cache()
        self.is_pair = bool(getattr(self.config, "is_encoder_decoder", False))  # of an encoder and a decoder
        self.encodes_text = self.is_pair and "input_ids" in self.parameters
        self.limit = (text.decoder_positions if self.is_pair else text.positions)(Forward(module, request))

    def _no_cache(self) -> InputError:
        can_turn = getattr(self.config, "is_decoder", None) is False and self.cache_name is not None
        other = "choose a causal language model of transformers"
        way = "override it (MODEL?is_decoder=true)" if can_turn else other
        return InputError(
            f"phase {self.phase} needs a model with a KV cache, and {self.name} has "
            f"none, like any encoder; choose --phase forward, or {way}"
        )

    def prompt(self, prompt: int | None) -> int:
        """Tokens of a prompt: the given number, else the request's length or the default."""
        usual = TOKENS if self.limit is None else min(TOKENS, self.limit)
        return prompt if prompt is not None else self.request.seq_len or usual

    def tokens_before(self, prompt: int | None) -> int:
        """Tokens in the cache after the prefill: only the start token in the decoder of a text encoder."""
        return 1 if self.encodes_text else self.prompt(prompt)

    def prefill(self, prompt: int | None = None) -> Pass:
        """The prompt, with an empty cache; a head computes the last position's logits, as in `generate`."""
        length = self.prompt(prompt)
        kwargs = self._first(length, 1 if self.encodes_text else length)
        if "logits_to_keep" in self.parameters:
            kwargs["logits_to_keep"] = 1
        tokens, inputs = self.tokens_before(prompt), Inputs(kwargs=kwargs)
        return Pass(PREFILL, self.module, inputs, 0, tokens, batch_size=self.request.batch_size)

    def decode(self, context: int | None = None) -> Pass:
        """One step; raises InputError where the model has no position for its token."""
        if context is None:
            context = TOKENS if self.limit is None else max(min(TOKENS, self.limit - 1), 1)
        self.fits(context + 1, f"context {context} and the new token take")
        cache = self.cache(context)
        kwargs: dict[str, Any] = {str(self.cache_name): cache, **self._use_cache()}
        if self.is_pair:
            kwargs |= {"decoder_input_ids": self._ids(1), "encoder_outputs": self._probed[1]}
        else:
            ids = "input_ids" if "input_ids" in self.parameters else next(iter(self.parameters))
            kwargs[ids] = self._ids(1)
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        for name, parameter in self.parameters.items():
            if parameter.default is inspect.Parameter.empty and parameter.kind not in several:
                kwargs.setdefault(name, None)  # as in `generate`
        return Pass(DECODE, self.module, Inputs(kwargs=kwargs), context, 1, cache, self.request.batch_size)

    def of_lengths(self, lengths: Sequence[int], phase: str | None = None) -> Pass:
        """A prefill of prompts, or a step against contexts, of these lengths.

        Raises InputError where the longest does not fit, or for a pair whose decoder does not read a text.
        """
        step = (phase or self.phase) == DECODE
        if self.is_pair:
            raise InputError(
                f"--lengths: {self.name} is a pair of an encoder and a decoder, which needs texts of one "
                "length; give --prompt or --context"
            )
        longest, low = max(lengths), mean_length(lengths)
        self.fits(longest + step, f"{'context' if step else 'prompt'} {longest} takes")
        made = self.decode if step else self.prefill
        if min(lengths) == longest:
            return made(longest)
        return replace(made(low), lengths=tuple(lengths), longer=made(low + 1))

    def step(self, step: Step) -> Pass:
        """A step of an engine.

        Raises InputError where the longest request, or all new tokens, do not fit, or for a pair.
        """
        if self.is_pair:
            raise InputError(
                f"--phase {STEP}: {self.name} is a pair of an encoder and a decoder, which has no such step; "
                f"choose --phase {PREFILL} or {DECODE}"
            )
        self.fits(step.longest, "the longest request takes")
        decodes = None
        if step.contexts:
            several = Decoder(self.module, replace(self.request, batch_size=len(step.contexts)), DECODE)
            if not step.chunks:
                return several.of_lengths(step.contexts, DECODE)
            decodes = several.decode(step.context)
        alone = Decoder(self.module, replace(self.request, batch_size=1), PREFILL)
        prompt = alone.prefill(step.tokens)
        kwargs = dict(prompt.inputs.kwargs)
        if "logits_to_keep" in self.parameters:
            kwargs["logits_to_keep"] = step.sequences
        before = Counter([*step.contexts, *(held for _, held in step.chunks if held)])
        held = sum(count * cache_bytes(alone.cache(tokens)) for tokens, count in before.items())
        return replace(prompt, name=STEP, inputs=Inputs(kwargs=kwargs), step=step, decodes=decodes, held=held)

    def fits(self, tokens: int, what: str) -> None:
        """Raise InputError where the model has no positions for this number of tokens."""
        if self.limit is not None and tokens > self.limit:
            raise InputError(
                f"{what} {tokens} positions, but {self.name} is made for {self.limit}; give less, or "
                "override the configuration's number of positions "
                f"(MODEL?max_position_embeddings={tokens}, or what it calls it)"
            )

    def cache(self, context: int) -> Any:
        """The model's own cache on the meta device, as it is after `context` tokens."""
        cache = converted(self._probed[0], _on_meta)
        layers = layers_of(cache)
        known = {(type(layer).__module__, type(layer).__name__) for layer in layers} <= GROWING
        if layers and known:
            for layer in layers:
                grow(layer, context)
            return cache
        if not layers and shapes_of(cache) == shapes_of(self._read(PROBE + 1)[0]):
            return cache  # a state of fixed size
        return self._read(context)[0]

    @property
    def windows(self) -> tuple[int, ...]:
        """Sliding windows of the cache's layers: where a step's sizes stop growing."""
        found = {getattr(layer, "sliding_window", None) for layer in layers_of(self._probed[0])}
        return tuple(sorted(window for window in found if isinstance(window, int)))

    @cached_property
    def _probed(self) -> tuple[Any, Any]:
        """(cache, encoder's outputs) after a text of PROBE tokens."""
        return self._read(PROBE)

    def _read(self, tokens: int) -> tuple[Any, Any]:
        """(cache, encoder's outputs) on the meta device after a first pass over `length` tokens."""
        encoder = self.prompt(None) if self.encodes_text else tokens
        encoded: list[Any] = []
        half = self.module.get_encoder() if self.is_pair else nn.Module()  # type: ignore[operator]
        with half.register_forward_hook(lambda _module, _args, output: encoded.append(output)):
            output = _shapes_of_run(self.module, self._first(encoder, tokens), self.ways)
        cache = cache_of(output)
        if cache is None or next(tensors_within(cache), None) is None:
            raise self._no_cache()
        whole = [one for one in encoded if getattr(one, "last_hidden_state", None) is not None]
        return converted(cache, _on_meta), converted(whole[-1], _on_meta) if whole else None

    def _first(self, length: int, decoder_length: int) -> dict[str, Any]:
        """Keywords of a pass over `length` tokens of text; a pair's decoder reads `decoder_length`."""
        what = f"{decoder_length} tokens of the decoder take" if self.is_pair else f"prompt {length} takes"
        self.fits(decoder_length, what)
        asked = length if self.encodes_text or not self.is_pair else None
        request = replace(self.request, seq_len=asked)
        kwargs = without_values(lambda _: transformers_inputs(self.module, request).kwargs)
        if "decoder_input_ids" in kwargs:
            kwargs["decoder_input_ids"] = self._ids(decoder_length)
        return {**kwargs, **self._use_cache()}

    def _ids(self, length: int) -> Tensor:
        ids: Tensor = without_values(lambda _: text.ids(Forward(self.module, self.request), length))
        return ids

    def _use_cache(self) -> dict[str, bool]:
        names = {"use_cache": self.open, **({"use_mems": False} if self.cache_name == "mems" else {})}
        return {name: True for name, always in names.items() if always or name in self.parameters}


def _shapes_of_run(module: nn.Module, kwargs: dict[str, Any], ways: Ways) -> Any:
    """The outputs of a forward pass in the first way that works; raises ModelError."""
    what = f"{type(module).__name__}: its forward"
    failures: list[BaseException] = []
    for _, run in ways:
        if run is on_cpu and values_change_nothing(module, failures):
            break
        try:
            with users_code(what):
                return run(module, (), kwargs, Answers())
        except BoundError as error:
            raise BoundError(f"{type(module).__name__}: {error}") from error
        except NeuralPowerError as error:
            failures.append(raised(error))
            if overflows(failures[-1]):
                break
    failure, way_out = next(iter(failures), None), "choose --phase forward"
    raise ModelError(f"{what} raises {quoted(failure)} (while its cache is filled); {way_out}") from failure


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=META)


def cached_call(source: Source, request: InputRequest, phase: Phase) -> Call:
    """A prefill or a step on the CPU with random weights and inputs, and a cache of random content.

    Raises:
        InputError: as `pass_of`; a generation, which is many calls.
        ModelError: as `pass_of`.
    """
    if phase.name == GENERATE:
        raise InputError(
            f"--phase {GENERATE} is a prefill and many steps, not one call; choose {PREFILL} or {DECODE}"
        )
    module = source.build("cpu", request.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one = pass_of(source, request, phase, module)
        kwargs = {name: converted(value, with_values) for name, value in one.inputs.kwargs.items()}
    return Call(Again(module, kwargs), (), kwargs, recurs=True)
