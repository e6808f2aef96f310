"""What one layer keeps of a sequence, read from the model's own cache after 2 and after 3 tokens.

    full      keys and values, or latents, of every token
    sliding   the same of the last `window` tokens
    cross     keys and values of the encoder's tokens, a fixed number
    state     a state of fixed size: linear attention, state-space layers

What grows between the two lengths is kept for each token; a state does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from neuralpower.late import Tensor

if TYPE_CHECKING:
    from neuralpower.networks.decoder import Decoder

FULL, SLIDING, CROSS, STATE = "full", "sliding", "cross", "state"
INDEX_AXES = 3  # of an index key [batch, tokens, numbers]; keys and values have heads, too
WIDE = 4  # bytes of a number of a recurrent state in transformers, which keeps it in float32


@dataclass(frozen=True)
class CacheLayer:
    """The cache of one layer of one rank, for one sequence."""

    kind: str
    token_numbers: int = 0  # for each token
    window: int = 0  # sliding: tokens
    tokens: int = 0  # cross: of the encoder
    state_numbers: int = 0  # recurrent, that transformers keeps in float32
    conv_numbers: int = 0  # of a convolution's last inputs, one fewer than its kernel, in the model's type
    index_numbers: int = 0  # for each token: the key by which sparse attention chooses what it reads
    rotary_numbers: int = 0  # of `token_numbers`, in a latent row of sparse attention
    block: int = field(default=0, compare=False)  # of the network, from 0

    def token_bytes(self, width: float) -> int:
        """Bytes of a token with `width` bytes for each number of its keys and values.

        Sparse attention over latents (DeepSeek-V3.2) keeps the index key in 8 bits whatever the width. With a
        width of 1 its latent row has a scale for every 128 numbers, and rotary numbers in 16 bits: 656 B of
        512 and 64 (FlashMLA's README; vLLM's `fp8_ds_mla`, SGLang's NSA pool).
        """
        if not self.index_numbers:
            return math.ceil(self.token_numbers * width)
        index = _scaled(self.index_numbers)
        if width > 1:
            return math.ceil(self.token_numbers * width) + index
        return _scaled(self.token_numbers - self.rotary_numbers) + 2 * self.rotary_numbers + index

    def state_bytes(self, recurrent: float, itemsize: float) -> int:
        """Bytes of the state with `recurrent` bytes for each number of it."""
        return round(self.state_numbers * recurrent + self.conv_numbers * itemsize)

    def shared(self, ranks: int, heads: int, whole: int) -> CacheLayer:
        """The layer on one of several ranks: `whole` numbers of a token are `heads` keys and values.

        Heads that are fewer than ranks are repeated. Latents, which have no heads, stay whole.
        """
        if self.kind == STATE:
            return replace(
                self, state_numbers=self.state_numbers // ranks, conv_numbers=self.conv_numbers // ranks
            )
        own = max(heads // ranks, 1) * whole // heads
        return replace(self, token_numbers=own) if self.token_numbers == whole else self


def cache_layers(decoder: Decoder) -> tuple[CacheLayer, ...]:
    """The layers of a decoder's cache, for a batch of 1; raises as `Decoder.cache`."""
    short, longer = decoder.cache(2), decoder.cache(3)
    own = [_layer(a, b) for a, b in zip(_parts(short), _parts(longer), strict=True)]
    cross = getattr(short, "cross_attention_cache", None)
    encoded = [_cross(part) for part in getattr(cross, "layers", ())]
    numbered = [*enumerate(own), *enumerate(encoded)]
    kept = [replace(layer, block=block) for block, layer in numbered if layer is not None]
    return (*kept, *_of_images(decoder.config, kept))


def _of_images(config: Any, kept: Sequence[CacheLayer]) -> list[CacheLayer]:
    """Layers that read one image, which a cache that is filled by a text alone lacks: Llama 3.2's.

    An image has a token for each patch of each tile, and one more a tile.
    """
    places = getattr(config.get_text_config(decoder=True), "cross_attention_layers", None)
    vision = getattr(config, "vision_config", None)
    sizes = [getattr(vision, name, None) for name in ("image_size", "patch_size", "max_num_tiles")]
    if not places or not kept or not all(isinstance(size, int) for size in sizes):
        return []
    image, patch, tiles = (int(size or 1) for size in sizes)
    one = CacheLayer(CROSS, token_numbers=kept[0].token_numbers, tokens=tiles * ((image // patch) ** 2 + 1))
    return [replace(one, block=place) for place in places]


def _parts(cache: Any) -> Sequence[Any]:
    """The layers of a cache; itself where it has none."""
    own = getattr(cache, "self_attention_cache", cache)
    return list(getattr(own, "layers", ())) or [own]


def _tensors(part: Any) -> Iterator[Tensor]:
    """The tensors of a layer, without counters."""
    from neuralpower.networks.inputs.known_values import tensors_within

    return (tensor for tensor in tensors_within(part) if tensor.dim() > 0)


def _layer(short: Any, longer: Any) -> CacheLayer | None:
    """What a layer keeps; None for one that keeps nothing."""
    before, after = list(_tensors(short)), list(_tensors(longer))
    grown = [(b.numel() - a.numel(), a.dim()) for a, b in zip(before, after, strict=True)]
    index = sum(more for more, axes in grown if axes == INDEX_AXES)
    token = sum(more for more, _ in grown) - index
    if token and index:
        rotary = min(more for more, axes in grown if axes != INDEX_AXES)
        return CacheLayer(FULL, token_numbers=token, index_numbers=index, rotary_numbers=rotary)
    token += index
    if token:
        window = getattr(short, "sliding_window", None)
        kind = FULL if window is None else SLIDING
        return CacheLayer(kind, token_numbers=token, window=int(window or 0))
    wide = [tensor.numel() for tensor in before if tensor.element_size() == WIDE and tensor.dim() > 2]
    recurrent = max(wide, default=0) if len(before) > 1 else sum(wide)
    convolution = sum(tensor.numel() for tensor in before) - recurrent
    # last inputs of convolutions [batch, channels, kernel], of which engines keep all but the oldest
    held = list(_tensors(getattr(short, "conv_states", None)))
    if held:
        recurrent = sum(tensor.numel() for tensor in before) - sum(tensor.numel() for tensor in held)
        convolution = sum(one.numel() // one.shape[-1] * (one.shape[-1] - 1) for one in held)
    if recurrent + convolution == 0:
        return None
    return CacheLayer(STATE, state_numbers=recurrent, conv_numbers=convolution)


def _scaled(numbers: int) -> int:
    """Bytes of numbers of 8 bits with a scale in float32 for every 128 of them."""
    return numbers + 4 * math.ceil(numbers / 128)


def _cross(part: Any) -> CacheLayer | None:
    """The keys and values of an encoder's tokens."""
    kept = list(_tensors(part))
    if not kept:
        return None
    tokens = int(kept[0].shape[-2])
    return CacheLayer(CROSS, token_numbers=sum(t.numel() for t in kept) // max(tokens, 1), tokens=tokens)
