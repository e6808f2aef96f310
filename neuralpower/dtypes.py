"""The registry of element types: all that the package knows of one stands in its entry. It imports no torch.

A new type is one more entry in `_ENTRIES`. Options, spec sheets, layers and collections ask the registry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

FLOAT, INTEGER, COMPLEX, BOOLEAN = "float", "integer", "complex", "boolean"  # kinds of numbers
FEWEST_NETWORK_BITS = 16  # of the numbers of a module: transformers builds in no shorter ones
HALF_BITS = 16  # of the numbers that autocast takes products in
PEAK = "peak_flops_"  # how the key of a spec sheet begins
TENSORFLOAT32 = "tensorfloat32"


@dataclass(frozen=True, kw_only=True)
class Dtype:
    """An element type: its size, its arithmetic, and the names under which others know it."""

    name: str
    bits: float  # of one number, without the scales of groups; 4 bits are half a byte
    sort: str = FLOAT
    torch: str | None = None  # name of torch's type; None where torch has none, or packs several in one
    aliases: tuple[str, ...] = ()  # the first is the shortest
    label: str = ""  # in tables and charts, where it is not `name`
    stored_as: str | None = None  # the type that it is in memory, where it is only a way to multiply
    accumulates_in: str | None = None  # the type in which sums of products are kept; None: its own
    parts: str | None = None  # the real type of which a complex number is a pair
    peak: str | None = None  # the type whose peak on a spec sheet holds for it; None: sheets have none
    group: int = 0  # numbers that share a scale by the format's own definition; 0: none do
    scale_bits: float = 16  # of a group: its scale, and its zero point where it has one

    @property
    def floating(self) -> bool:
        """Whether its numbers are real and have an exponent: a gradient can pass through them."""
        return self.sort == FLOAT

    @property
    def integer(self) -> bool:
        return self.sort == INTEGER

    @property
    def complex(self) -> bool:
        """Whether its numbers are pairs of real ones."""
        return self.sort == COMPLEX

    @property
    def itemsize(self) -> float:
        """Bytes of one number: an int where they are whole, else a fraction."""
        return int(self.bits) // 8 if self.bits % 8 == 0 else self.bits / 8

    @property
    def short(self) -> str:
        """The shortest of its names."""
        return self.aliases[0] if self.aliases else self.name

    @property
    def of_networks(self) -> bool:
        """Whether the weights of a module can be cast to it."""
        return self.floating and self.torch == self.name and self.bits >= FEWEST_NETWORK_BITS


# Types of weights in GGUF files: numbers in a block, bits of one, and what else the block holds, in bits.
# Source: the structs of llama.cpp's ggml/src/ggml-common.h (ggml-org/llama.cpp).
GGUF: Mapping[str, tuple[int, int, int]] = {
    "q4_0": (32, 4, 16),
    "q4_1": (32, 4, 32),
    "q5_0": (32, 5, 16),
    "q5_1": (32, 5, 32),
    "q8_0": (32, 8, 16),
    "q2_k": (256, 2, 160),
    "q3_k": (256, 3, 112),
    "q4_k": (256, 4, 128),
    "q5_k": (256, 5, 128),
    "q6_k": (256, 6, 144),
    "iq3_xxs": (256, 3, 16),
    "iq3_s": (256, 3, 112),
    "iq4_nl": (32, 4, 16),
    "iq4_xs": (256, 4, 64),
}

_ENTRIES = (
    Dtype(name="float64", bits=64, torch="float64", aliases=("f64", "fp64", "double"), peak="float64"),
    Dtype(name="float32", bits=32, torch="float32", aliases=("f32", "fp32", "float"), peak="float32"),
    Dtype(  # float32 in memory, products of 10-bit mantissas on tensor cores
        name=TENSORFLOAT32,
        bits=32,
        accumulates_in="float32",
        torch="float32",
        aliases=("tf32",),
        label="TF32",
        stored_as="float32",
        peak=TENSORFLOAT32,
    ),
    Dtype(
        name="bfloat16",
        bits=16,
        accumulates_in="float32",
        torch="bfloat16",
        aliases=("bf16",),
        peak="bfloat16",
    ),
    Dtype(
        name="float16",
        bits=16,
        accumulates_in="float32",
        torch="float16",
        aliases=("f16", "fp16", "half"),
        peak="float16",
    ),
    # Groups of 8-bit floats have float32 scales (DeepSeek-V3, arXiv:2412.19437, section 3.3).
    Dtype(
        name="float8_e4m3fn",
        bits=8,
        accumulates_in="float32",
        torch="float8_e4m3fn",
        aliases=("fp8",),
        label="float8",
        peak="float8_e4m3fn",
        scale_bits=32,
    ),
    Dtype(
        name="float8_e5m2",
        bits=8,
        accumulates_in="float32",
        torch="float8_e5m2",
        peak="float8_e4m3fn",
        scale_bits=32,
    ),
    # torch holds two of them in a `float4_e2m1fn_x2`; a group's scale is one byte.
    Dtype(
        name="float4_e2m1fn",
        bits=4,
        accumulates_in="float32",
        aliases=("fp4",),
        label="float4",
        peak="float4_e2m1fn",
        scale_bits=8,
    ),
    # OCP Microscaling Formats, version 1.0: a scale of type E8M0 for 32 numbers
    Dtype(name="mxfp4", bits=4, accumulates_in="float32", peak="float4_e2m1fn", group=32, scale_bits=8),
    Dtype(name="mxfp8", bits=8, accumulates_in="float32", peak="float8_e4m3fn", group=32, scale_bits=8),
    # NVIDIA's Blackwell: a scale of type E4M3 for 16 numbers
    Dtype(name="nvfp4", bits=4, accumulates_in="float32", peak="float4_e2m1fn", group=16, scale_bits=8),
    Dtype(name="int8", bits=8, accumulates_in="int32", sort=INTEGER, torch="int8", peak="int8"),
    Dtype(name="int4", bits=4, accumulates_in="int32", sort=INTEGER, peak="int4"),
    # A group has a zero point of 4 bits besides its scale, as in AWQ and GPTQ.
    Dtype(name="uint4", bits=4, accumulates_in="int32", sort=INTEGER, peak="int4", scale_bits=20),
    Dtype(name="int3", bits=3, accumulates_in="int32", sort=INTEGER),
    Dtype(name="int2", bits=2, accumulates_in="int32", sort=INTEGER),
    Dtype(name="uint3", bits=3, accumulates_in="int32", sort=INTEGER, scale_bits=19),  # GPTQ's
    Dtype(name="uint2", bits=2, accumulates_in="int32", sort=INTEGER, scale_bits=18),
    # bitsandbytes: 16 quantiles of a normal distribution (QLoRA, arXiv:2305.14314, section 3). 64 numbers
    # share a scale of 8 bits, and 256 of these scales one of 32 bits ("double quantization").
    Dtype(name="nf4", bits=4, accumulates_in="float32", group=64, scale_bits=8.125),
    *(
        Dtype(name=name, bits=bits, accumulates_in="int32", sort=INTEGER, group=group, scale_bits=scale_bits)
        for name, (group, bits, scale_bits) in GGUF.items()
    ),
    Dtype(name="complex64", bits=64, sort=COMPLEX, torch="complex64", parts="float32"),
    Dtype(name="complex128", bits=128, sort=COMPLEX, torch="complex128", parts="float64"),
    Dtype(name="int64", bits=64, sort=INTEGER, torch="int64"),
    Dtype(name="int32", bits=32, sort=INTEGER, torch="int32"),
    Dtype(name="int16", bits=16, sort=INTEGER, torch="int16"),
    Dtype(name="uint8", bits=8, accumulates_in="int32", sort=INTEGER, torch="uint8"),
    Dtype(name="bool", bits=8, sort=BOOLEAN, torch="bool"),
)


def _registry(entries: tuple[Dtype, ...]) -> dict[str, Dtype]:
    """Entries by name; raises ValueError for a name or alias that stands twice."""
    taken = [name for entry in entries for name in (entry.name, *entry.aliases)]
    for name in taken:
        if taken.count(name) > 1:
            raise ValueError(f"dtype {name!r} stands twice in the registry")
    return {entry.name: entry for entry in entries}


DTYPES: Mapping[str, Dtype] = _registry(_ENTRIES)
ALIASES: Mapping[str, str] = {alias: entry.name for entry in _ENTRIES for alias in entry.aliases}
FLOATING = tuple(entry.name for entry in _ENTRIES if entry.floating)
MEASURABLE = tuple(entry.name for entry in _ENTRIES if entry.floating and entry.torch)
NETWORK_DTYPES = tuple(entry.name for entry in _ENTRIES if entry.of_networks)  # that a module can be cast to
AUTOCAST_DTYPES = tuple(entry.name for entry in _ENTRIES if entry.of_networks and entry.bits == HALF_BITS)
PEAKS = tuple(entry.name for entry in _ENTRIES if entry.peak == entry.name)  # of spec sheets


def full_name(text: str) -> str:
    """The name behind an alias, such as "bfloat16" for "bf16"; any other text as it is."""
    return ALIASES.get(text, text)


def peaks_of(peaks: Mapping[str, float], dtype: str) -> float | None:
    """FLOP/s of a type: its own, else that of the type whose peak holds for it, else None."""
    if dtype in peaks:
        return peaks[dtype]
    entry = DTYPES.get(dtype)
    return None if entry is None or entry.peak is None else peaks.get(entry.peak)


def floats_of(peaks: Mapping[str, float]) -> tuple[str, ...]:
    """The floating types that a device has, by its peaks."""
    return tuple(name for name in FLOATING if peaks_of(peaks, name) is not None)


def instead_of(dtype: str, has: Collection[str]) -> str:
    """A hint for a device without this type: the type that it would run as, and the ones to choose."""
    entry, networks = DTYPES.get(dtype), [one for one in NETWORK_DTYPES if one in has]
    wide = next((one for one in networks if DTYPES[one].bits == HALF_BITS), (networks or ["float32"])[0])
    choice = f"choose {', '.join(one for one in networks) or 'another device'}"
    if entry is not None and entry.bits < HALF_BITS:
        return f"such weights would be unpacked and multiplied in {wide} (weight-only); {choice}"
    return f"it would run as {'float32' if 'float32' in networks else wide}; {choice}"
