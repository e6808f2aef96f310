"""A named network, the sizes of its inputs and a phase -> the pass or generation that runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from neuralpower.errors import InputError
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.networks.caches import cache_bytes
from neuralpower.networks.copies import is_castable
from neuralpower.networks.decoder import Decoder, pass_of
from neuralpower.networks.inputs.inputs import batch_of, called_with
from neuralpower.networks.inputs.size_limits import TOKENS, InputRequest
from neuralpower.networks.passes import Pass
from neuralpower.networks.phases import DECODE, GENERATE, PREFILL, Phase, mean_length
from neuralpower.networks.sharding import Sharding, sharded
from neuralpower.networks.source import Source
from neuralpower.networks.sources import resolve
from neuralpower.networks.users_code import users_code
from neuralpower.quantisation.schemes import Scheme

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn


@dataclass(frozen=True)
class Generating:
    """A generation: its prefill, and the decoder that makes the steps after it."""

    decoder: Decoder
    prefill: Pass
    prompt: int
    new_tokens: int  # per sample; the prefill makes the first
    first: int  # tokens in the cache before the first step
    cache_bytes: int  # for all samples, at the end
    lengths: tuple[int, ...] = ()  # of the prompts, where they differ; `prompt` and `first` are their mean

    @property
    def batch_size(self) -> int:
        return self.prefill.batch_size

    def step(self, context: int) -> Pass:
        """The step with `context` tokens in the cache, the mean of all samples."""
        if not self.lengths:
            return self.decoder.decode(context)
        return self.decoder.of_lengths([length + context - self.first for length in self.lengths], DECODE)

    @property
    def weights(self) -> Scheme | None:
        """How a checkpoint's weights are quantised."""
        return self.prefill.weights

    @property
    def sharding(self) -> Sharding | None:
        """How the network was sharded; None on one device."""
        return self.prefill.sharding

    @property
    def steps(self) -> int:
        return self.new_tokens - 1


Asked = Pass | Generating


def asked_of(
    model: str | Path | nn.Module | Source,
    request: InputRequest,
    phase: Phase,
    *,
    own_batch: bool = False,
    sharding: Sharding | None = None,
) -> Asked:
    """The pass or the whole generation that a phase runs on the meta device.

    Args:
        model: what `resolve` takes, or where the network comes from.
        request: the sizes of its inputs.
        phase: the phase to run.
        own_batch: whether inputs that come with the network say the batch size, where there are any.
        sharding: the layout whose rank is followed, in place of one device.

    Raises:
        ModelError: the model is not found or cannot be built, or its forward raises.
        InputError: as `pass_of`; more tokens than the model has positions for; as `sharded`.
    """
    source = resolve(model)
    if own_batch:
        request = replace(request, batch_size=source.batch_size(None, request.input_shape))
    module = source.build("meta", request.dtype)
    done: Sharding | None = None
    if sharding is not None and sharding.needed:
        module, done = sharded(module, sharding, partial(source.inputs, module, request, "meta"))
    if phase.name == GENERATE:
        phase.check()
        with users_code(f"{source.name} cannot be read"):
            decoder = Decoder(module, phase.applied(request), GENERATE)
        found = _generating(decoder, phase)
        prefill = replace(found.prefill, weights=source.weights, sharding=done)
        return replace(found, prefill=prefill)
    with users_code(f"the inputs of {source.name} cannot be made"):
        return replace(pass_of(source, request, phase, module), sharding=done)


def _generating(decoder: Decoder, phase: Phase) -> Generating:
    if phase.lengths is not None and min(phase.lengths) < max(phase.lengths):
        return _generating_each(decoder, phase.lengths, phase.new_tokens or TOKENS)
    if phase.lengths is not None:
        phase = replace(phase, prompt=phase.lengths[0], lengths=None)
    new_tokens, before = phase.new_tokens or TOKENS, decoder.tokens_before(phase.prompt)
    last = before + new_tokens - 1
    decoder.fits(last, f"a prompt and {new_tokens} new tokens take")
    prefill, prompt = decoder.prefill(phase.prompt), decoder.prompt(phase.prompt)
    return Generating(decoder, prefill, prompt, new_tokens, before, cache_bytes(decoder.cache(last)))


def _generating_each(decoder: Decoder, lengths: tuple[int, ...], new_tokens: int) -> Generating:
    """A generation after prompts of these lengths."""
    last, first = max(lengths) + new_tokens - 1, mean_length(lengths)
    decoder.fits(last, f"the longest prompt and {new_tokens} new tokens take")
    prefill = decoder.of_lengths(lengths, PREFILL)
    end = decoder.of_lengths([length + new_tokens - 1 for length in lengths], DECODE)
    return Generating(decoder, prefill, first, new_tokens, first, end.cache_bytes, lengths)


def given_to(source: Source, inputs: Any, dtype: str, batch_size: int | None, *, checked: bool) -> Pass:
    """A forward pass of a network with the caller's inputs.

    Args:
        source: of the network.
        inputs: as `called_with` takes them.
        dtype: of the network's weights.
        batch_size: samples; None: the first size of the first tensor, or 1.
        checked: whether floating inputs have to be of that dtype.

    Raises:
        InputError: inputs without a sample, or of another dtype.
        ModelError: the network cannot be built.
    """
    given = called_with(inputs)
    if batch_of(given) == 0:
        raise InputError("inputs hold no sample: their first side is 0 long; give one or more")
    found = {tensor.dtype for tensor in given.tensors if is_castable(tensor)}
    if checked and found and torch_dtype(dtype) not in found:  # no device would run that
        names = ", ".join(sorted(str(one).removeprefix("torch.") for one in found))
        raise InputError(
            f"inputs are {names}, but dtype is {dtype}; give inputs of this dtype, or leave dtype out"
        )
    batch = int(batch_size or batch_of(given) or 1)
    module = source.build("meta", torch_dtype(dtype))
    return Pass(FORWARD, module, given, batch_size=batch, weights=source.weights)
