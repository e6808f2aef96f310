"""Which passes a phase of generation makes, with which inputs and with which cache.

    forward    the whole input once, as it is called in training and in evaluation
    prefill    the whole prompt once, keys and values are kept, the last position alone gets logits
    decode     one new token per sample against `context` tokens in the cache
    generate   a prefill, then decode steps against prompt, prompt + 1, ... tokens

An encoder-decoder's prefill is its encoder and the first step of its decoder; its context counts the decoder's tokens.

The cache is of the model's own class, filled by its own forward pass on the meta device: two tokens show what its layers
keep, and what grows with the text is then given the length that was asked for. A cache of a class that is not known here
is filled by a pass over the whole context.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import BoundError, InputError, ModelError, NeuralPowerError, is_count, quoted, unknown
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.layers.call import Call
from neuralpower.networks.inputs import (
    TOKENS,
    InputRequest,
    Inputs,
    positions,
    reads_text,
    token_ids,
    transformers_inputs,
)
from neuralpower.networks.promised_values import tensors_within, without_values
from neuralpower.networks.running import META, WAYS, Answers, Run, converted, with_values
from neuralpower.networks.size_limits import overflows
from neuralpower.networks.source import Source
from neuralpower.networks.users_code import raised, users_code

PREFILL, DECODE, GENERATE = "prefill", "decode", "generate"
PHASES = (FORWARD, PREFILL, DECODE, GENERATE)
PREDICTED = (*PHASES, "training", BACKWARD)  # all that a prediction can be asked for
CACHES = (
    "past_key_values",
    "cache_params",
    "state",
    "mems",
    "past_buckets_states",
)  # names of arguments and outputs
PROBE = 2  # tokens; one alone would be taken for a step
GROWING = frozenset(
    """
    DynamicLayer DynamicSlidingWindowLayer LinearAttentionLayer LinearAttentionAndFullAttentionLayer
    LinearAttentionAndSlidingWindowAttentionLayer DummyLayer
    """.split()
)  # layers of transformers' caches of which it is known what grows: keys and values along their last axis but one


@dataclass(frozen=True)
class Phase:
    """What is asked of a language model; None leaves a number to the request or to its default."""

    name: str = FORWARD
    batch: int | None = None
    context: int | None = None  # decode: tokens in the cache before the step
    prompt: int | None = None  # prefill, generate
    new_tokens: int | None = None  # generate; the first is the prefill's

    @classmethod
    def forward(cls) -> Phase:
        """The whole input once."""
        return cls()

    @classmethod
    def prefill(cls, prompt: int | None = None, batch: int | None = None) -> Phase:
        """A prompt of so many tokens per sample (the request's length)."""
        return cls(PREFILL, batch, prompt=prompt)

    @classmethod
    def decode(cls, batch: int | None = None, context: int | None = None) -> Phase:
        """One token per sample against `context` earlier ones."""
        return cls(DECODE, batch, context)

    @classmethod
    def generate(cls, prompt: int | None = None, new_tokens: int = TOKENS, batch: int | None = None) -> Phase:
        """`new_tokens` after a prompt."""
        return cls(GENERATE, batch, prompt=prompt, new_tokens=new_tokens)

    def check(self, known: Sequence[str] = PHASES) -> None:
        """Raise InputError for a name that is none of `known`, a number that is not whole and positive, or one that is not read."""
        if self.name not in known:
            raise unknown("phase", self.name, known)
        reads = {PREFILL: ("prompt",), DECODE: ("context",), GENERATE: ("prompt", "new_tokens")}.get(
            self.name, ()
        )
        for name in ("batch", "context", "prompt", "new_tokens"):
            value, option = getattr(self, name), "--" + name.replace("_", "-")
            if value is None:
                continue
            if not is_count(value):
                raise InputError(
                    f"{name} is {value}, but a whole number of at least 1 is needed, of 2**53 at most"
                )
            if name != "batch" and name not in reads:
                homes = {"context": "decode", "prompt": "prefill or generate", "new_tokens": "generate"}
                raise InputError(
                    f"{option} {value} belongs to --phase {homes[name]}, not to {self.name}; leave it out"
                )

    def applied(self, request: InputRequest) -> InputRequest:
        """The request with this phase's batch and prompt; raises InputError where it has another length."""
        if self.prompt is not None and request.seq_len not in (None, self.prompt):
            raise InputError(
                f"--prompt {self.prompt} and --seq-len {request.seq_len} both are the prompt's length; leave one out"
            )
        return replace(
            request, batch_size=self.batch or request.batch_size, seq_len=self.prompt or request.seq_len
        )

    @property
    def label(self) -> str:
        """Its name and numbers."""
        given = (("context", self.context), ("prompt", self.prompt), ("new", self.new_tokens))
        return " ".join([self.name, *(f"{name} {value}" for name, value in given if value is not None)])


@dataclass(frozen=True)
class Pass:
    """One forward call: its module and inputs, which a caller must not change; `cache` is among the inputs."""

    name: str
    module: nn.Module = field(repr=False)
    inputs: Inputs = field(repr=False)
    context: int = 0  # tokens in the cache before it
    tokens: int = 0  # new ones per sample
    cache: Any = field(default=None, repr=False)
    batch_size: int = 1  # samples

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache holds before the pass."""
        return cache_bytes(self.cache)


def passes(
    source: Source, request: InputRequest, phase: Phase, module: nn.Module | None = None
) -> tuple[Pass, ...]:
    """The forward calls that a phase is made of; of a generation its prefill, its first and its last step.

    Args:
        source: of the model.
        request: batch size, text length (of an encoder-decoder: of its encoder) and dtype.
        phase: what is asked for.
        module: of the source, where it has been built already; on the meta device by default.

    Raises:
        InputError: numbers that are not positive or say two things, more positions than the model has, or a model that keeps
            no cache.
        ModelError: the model cannot be built, or its forward raises.
    """
    phase.check()
    request = phase.applied(request)
    module = module if module is not None else source.build("meta", request.dtype)
    if phase.name == FORWARD:
        inputs = source.inputs(module, request, "meta")
        return (Pass(FORWARD, module, inputs, batch_size=request.batch_size),)
    decoder = Decoder(module, request, phase.name)
    if phase.name == DECODE:
        if request.seq_len is not None and not decoder.encodes_text:
            raise InputError(
                f"--seq-len {request.seq_len} is what the encoder of a pair reads, and {decoder.name} has none for text; "
                "give --context alone"
            )
        return (decoder.decode(phase.context),)
    first = decoder.prefill(phase.prompt)
    if phase.name == PREFILL:
        return (first,)
    before = decoder.tokens_before(phase.prompt)
    last = before + (phase.new_tokens or TOKENS) - 2
    if last < before:
        return (first,)
    return (first, *(decoder.decode(context) for context in sorted({before, last})))


def keep(cache: Any) -> Callable[[], None]:
    """What puts a cache back as it is now: a step appends to it, or writes numbers of the same size into it."""
    if isinstance(cache, list):
        kept = list(cache)
        return lambda: cache.__setitem__(slice(None), kept)
    held = vars(cache) if hasattr(cache, "__dict__") else None
    parts = [] if held is None else [cache, *(part for part in held.values() if hasattr(part, "layers"))]
    parts += [layer for part in list(parts) for layer in getattr(part, "layers", ())]
    before = [(part, {name: _shallow(value) for name, value in vars(part).items()}) for part in parts]

    def restore() -> None:
        for part, attributes in before:
            vars(part).update((name, _shallow(value)) for name, value in attributes.items())

    return restore


def _shallow(value: Any) -> Any:
    return dict(value) if type(value) is dict else list(value) if type(value) is list else value


def cache_bytes(cache: Any) -> int:
    """Bytes of all tensors of a cache."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_within(cache))


class Decoder:
    """A language model of transformers that keeps what it has read in a cache."""

    def __init__(
        self,
        module: nn.Module,
        request: InputRequest,
        phase: str = DECODE,
        ways: Sequence[tuple[str, Run]] = WAYS,
    ) -> None:
        """`ways` to fill a cache are tried in turn; raises InputError for what is no such model."""
        request.check()
        self.ways = ways
        self.module, self.request, self.phase = module, request, phase
        self.name = type(module).__name__
        self.parameters = inspect.signature(module.forward).parameters
        self.open = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self.parameters.values())
        self.config: Any = getattr(module, "config", None)
        self.cache_name = next((name for name in CACHES if name in self.parameters), None)
        if self.cache_name is None or not hasattr(self.config, "model_type"):
            raise self._no_cache()
        self.is_pair = bool(getattr(self.config, "is_encoder_decoder", False))  # of an encoder and a decoder
        self.encodes_text = self.is_pair and reads_text(module)
        self.limit = positions(module, decoder=self.is_pair)

    def _no_cache(self) -> InputError:
        turned = getattr(self.config, "is_decoder", None) is False and self.cache_name is not None
        way = (
            "override it (MODEL?is_decoder=true)"
            if turned
            else "choose a causal language model of transformers"
        )
        return InputError(
            f"phase {self.phase} needs a model that keeps a cache of what it has read, and {self.name} keeps none, as "
            f"an encoder has none; choose --phase forward, or {way}"
        )

    def prompt(self, prompt: int | None) -> int:
        """Tokens of a prompt: what was asked for, else the request's length or the default."""
        if prompt is not None:
            return prompt
        return self.request.seq_len or (TOKENS if self.limit is None else min(TOKENS, self.limit))

    def tokens_before(self, prompt: int | None) -> int:
        """Tokens in the cache after the prefill: a text encoder's decoder has read its start token alone."""
        return 1 if self.encodes_text else self.prompt(prompt)

    def prefill(self, prompt: int | None = None) -> Pass:
        """The prompt, with an empty cache; a head computes the last position's logits, as `generate` asks it to."""
        length = self.prompt(prompt)
        kwargs = self._first(length, 1 if self.encodes_text else length)
        if "logits_to_keep" in self.parameters:
            kwargs["logits_to_keep"] = 1
        tokens, samples = self.tokens_before(prompt), self.request.batch_size
        return Pass(PREFILL, self.module, Inputs(kwargs=kwargs), 0, tokens, batch_size=samples)

    def decode(self, context: int | None = None) -> Pass:
        """One step; raises InputError where the model has no position for its token."""
        if context is None:
            context = TOKENS if self.limit is None else max(min(TOKENS, self.limit - 1), 1)
        self.fits(context + 1, f"context {context} and the new token take")
        cache = self.cache(context)
        kwargs: dict[str, Any] = {str(self.cache_name): cache, **self._use_cache()}
        ids = "decoder_input_ids" if self.is_pair else self._ids_name()
        kwargs[ids] = self._ids(1)
        if self.is_pair:
            kwargs["encoder_outputs"] = self._probed[1]
        for name in _needed(self.parameters):
            kwargs.setdefault(name, None)  # as `generate` has it
        return Pass(DECODE, self.module, Inputs(kwargs=kwargs), context, 1, cache, self.request.batch_size)

    def fits(self, tokens: int, what: str) -> None:
        """Raise InputError where the model has no positions for so many tokens."""
        if self.limit is not None and tokens > self.limit:
            raise InputError(
                f"{what} {tokens} positions, but {self.name} is made for {self.limit}; give less, or override the "
                f"configuration's number of positions (MODEL?max_position_embeddings={tokens}, or what it calls it)"
            )

    def cache(self, context: int) -> Any:
        """The model's own cache on the meta device, as it is after `context` tokens."""
        cache = converted(self._probed[0], _on_meta)
        parts = [cache.self_attention_cache] if hasattr(cache, "self_attention_cache") else [cache]
        layers = [layer for part in parts for layer in getattr(part, "layers", ())]
        if layers and all(_grows(layer) for layer in layers):
            for layer in layers:
                _grow(layer, context)
            return cache
        if not layers and _shapes(cache) == _shapes(self._read(PROBE + 1)[0]):
            return cache  # a state of fixed size
        return self._read(context)[0]

    @property
    def windows(self) -> tuple[int, ...]:
        """Sliding windows of the cache's layers: where a step's sizes stop to grow."""
        cache = self._probed[0]
        layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
        found = {getattr(layer, "sliding_window", None) for layer in layers}
        return tuple(sorted(window for window in found if isinstance(window, int)))

    @cached_property
    def _probed(self) -> tuple[Any, Any]:
        """(cache, encoder's outputs) after a text of PROBE tokens."""
        return self._read(PROBE)

    def _read(self, tokens: int) -> tuple[Any, Any]:
        """(cache, encoder's outputs) on the meta device after a first pass over so many tokens."""
        encoder = self.prompt(None) if self.encodes_text else tokens
        half = self.module.get_encoder() if self.is_pair else None  # type: ignore[operator]  # every PreTrainedModel has it
        with _outputs_of(half) as encoded:
            output = _shapes_of_run(self.module, self._first(encoder, tokens), self.ways)
        cache = next((found for name in CACHES if (found := getattr(output, name, None)) is not None), None)
        if cache is None or next(tensors_within(cache), None) is None:
            raise self._no_cache()
        whole = [one for one in encoded if getattr(one, "last_hidden_state", None) is not None]
        return converted(cache, _on_meta), converted(whole[-1], _on_meta) if whole else None

    def _first(self, length: int, decoder_length: int) -> dict[str, Any]:
        """Keywords of a pass over a whole text of `length` tokens, of which a pair's decoder reads `decoder_length`."""
        if not self.is_pair:
            self.fits(length, f"prompt {length} takes")
        else:
            self.fits(decoder_length, f"{decoder_length} tokens of the decoder take")
        asked = length if self.encodes_text or not self.is_pair else None
        request = replace(self.request, seq_len=asked)
        kwargs = without_values(lambda _: transformers_inputs(self.module, request).kwargs)
        if "decoder_input_ids" in kwargs:
            kwargs["decoder_input_ids"] = self._ids(decoder_length)
        return {**kwargs, **self._use_cache()}

    def _ids(self, length: int) -> Tensor:
        ids: Tensor = without_values(lambda _: token_ids(self.module, self.request, length))
        return ids

    def _use_cache(self) -> dict[str, bool]:
        names = ("use_cache", "use_mems") if self.cache_name == "mems" else ("use_cache",)
        return {
            name: True for name in names if name in self.parameters or (self.open and name == "use_cache")
        }

    def _ids_name(self) -> str:
        return "input_ids" if "input_ids" in self.parameters else next(iter(self.parameters))


@contextmanager
def _outputs_of(module: nn.Module | None) -> Iterator[list[Any]]:
    """What the module's forward returns meanwhile, in order."""
    seen: list[Any] = []
    handle = (
        module.register_forward_hook(lambda _module, _args, output: seen.append(output)) if module else None
    )
    try:
        yield seen
    finally:
        if handle is not None:
            handle.remove()


def _needed(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Names of those that a call has to give."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        name
        for name, p in parameters.items()
        if p.default is inspect.Parameter.empty and p.kind not in several
    ]


def _shapes_of_run(module: nn.Module, kwargs: dict[str, Any], ways: Sequence[tuple[str, Run]]) -> Any:
    """The outputs of a forward pass in the first way that works; raises ModelError."""
    failure: BaseException | None = None
    for _, run in ways:
        try:
            with users_code(f"{type(module).__name__}: its forward"):
                return run(module, (), kwargs, Answers())
        except BoundError as error:
            raise BoundError(f"{type(module).__name__}: {error}") from error
        except NeuralPowerError as error:
            failure = failure or raised(error)
            if overflows(raised(error)):
                break
    raise ModelError(
        f"{type(module).__name__}: its forward raises {quoted(failure)} (while its cache is filled); choose --phase forward"
    ) from failure


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=META)


def _shapes(cache: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors_within(cache)]


def _grows(layer: Any) -> bool:
    """Whether it is known which of a cache layer's tensors grow."""
    return type(layer).__name__ in GROWING and type(layer).__module__ == "transformers.cache_utils"


def _grow(layer: Any, context: int) -> None:
    """Give a cache layer the length that it has after `context` tokens; a window of w keeps w - 1 for its next query."""
    window = getattr(layer, "sliding_window", None)
    kept = context if window is None else min(context, int(window) - 1)
    for name in ("keys", "values"):
        tensor = getattr(layer, name, None)
        if isinstance(tensor, Tensor) and tensor.dim() >= 3:
            setattr(layer, name, tensor.new_empty((*tensor.shape[:-2], kept, tensor.shape[-1])))
    if isinstance(getattr(layer, "cumulative_length", None), int):
        layer.cumulative_length = context


class Again:
    """A pass of `module` that finds its cache as it was before the one before it: restoring it takes microseconds."""

    def __init__(self, module: nn.Module, kwargs: Mapping[str, Any]) -> None:
        self.module = module
        self.restore = [keep(value) for name, value in kwargs.items() if name in CACHES]

    def __call__(self, **kwargs: Any) -> Any:
        """Run it; what the module returns."""
        self.rewind()
        return self.module(**kwargs)

    def rewind(self) -> None:
        """Put the cache back."""
        for restore in self.restore:
            restore()


def cached_call(source: Source, request: InputRequest, phase: Phase) -> Call:
    """A prefill or a step on the CPU with random weights and inputs, and a cache of random content."""
    module = source.build("cpu", request.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        (one,) = passes(source, request, phase, module)
        kwargs = {name: converted(value, with_values) for name, value in one.inputs.kwargs.items()}
    return Call(Again(module, kwargs), (), kwargs, recurs=True)
