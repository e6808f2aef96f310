"""What quantised weights take in memory, by formats that say so: packing, scales, zero points, indices."""

import math

import pytest

from neuralpower.dtypes import GGUF
from neuralpower.errors import InputError
from neuralpower.quantisation.asked import FORMATS, parsed
from neuralpower.quantisation.formats import ROW, TENSOR, Format
from neuralpower.quantisation.gguf import MIXTURES

SQUARE = (1, 4096, 4096)  # one matrix of 16,777,216 weights
HALF = 8_388_608  # bytes of 4 bits each


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("int4", 4096 * 32 * 2),  # a float16 scale for each group of 128
        ("int4:64", 4096 * 64 * 2),
        ("awq", 4096 * 32 * 2 + 4096 * 32 // 2),  # and a zero point of 4 bits
        ("gptq", 4096 * 32 * 2 + 4096 * 32 // 2 + 4096 * 4),  # and an int32 for each input
        ("mxfp4", 4096 * 128),  # a byte for 32
        ("nvfp4", 4096 * 256 + 8),  # a byte for 16, and two float32
        ("nf4", 4096 * 64 + 1024 * 4 + (16 + 256) * 4),  # a byte for 64, a float32 for 256 of them, two codes
        ("int8", HALF + 4096 * 2),
        ("w8a8", HALF + 4096 * 2),
        ("fp8", HALF + 4096 * 4),
        ("fp8:128", HALF + 32 * 32 * 4),
    ],
)
def test_bytes_are_those_of_the_format(name: str, beside: int) -> None:
    form = parsed(name).form
    assert form is not None
    assert form.bytes(SQUARE) == HALF + beside
    assert form.bytes((8, 4096, 4096)) == 8 * form.bytes(SQUARE)
    assert form.bits(SQUARE) == pytest.approx(8 * (HALF + beside) / 4096**2)


def test_blocks_at_the_edge_are_whole_scales() -> None:
    form = Format(dtype="float8_e4m3fn", group=128, rows=128, scale_bits=32, ragged=True)
    assert form.bytes((1, 576, 7168)) == 576 * 7168 + math.ceil(576 / 128) * 56 * 4  # DeepSeek-V3's kv_a_proj
    form.check("anywhere", (1, 576, 100))
    one = Format(dtype="float8_e4m3fn", group=TENSOR, scale_bits=32)
    assert one.bytes((3, 10, 10)) == 3 * 104


def test_blocks_of_llama_cpp_have_the_sizes_of_their_structs() -> None:
    sizes = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "iq4_nl": 18}
    sizes |= {"q2_k": 84, "q3_k": 110, "q4_k": 144, "q5_k": 176, "q6_k": 210}
    sizes |= {"iq3_xxs": 98, "iq3_s": 110, "iq4_xs": 136}
    assert sizes.keys() == GGUF.keys()
    for name, size in sizes.items():
        assert Format(dtype=name).bytes((1, 1, GGUF[name][0])) == size


def test_a_device_without_the_arithmetic_widens_weights() -> None:
    form = FORMATS["fp8"]
    assert form.on({"float8_e4m3fn": 2e15}) is form
    widened = form.on({"bfloat16": 3e14, "int8": 6e14})
    assert (widened.activations, widened.dtype, widened.group) == ("", "float8_e4m3fn", ROW)
    assert widened.bytes(SQUARE) == form.bytes(SQUARE)
    few = FORMATS["w8a8"].on({"bfloat16": 2.2e15, "int8": 1.5e14})  # as Blackwell Ultra has
    assert few.activations == "" and FORMATS["w8a8"].on({"bfloat16": 3e14, "int8": 6e14}).activations
    assert FORMATS["nvfp4"].on({"float4_e2m1fn": 9e15}).activations == "nvfp4"  # whose peak that is
    scheme = parsed("fp8").on({"bfloat16": 3e14})
    assert scheme.widened == ("float8_e4m3fn",)
    assert parsed("int4").on({}).widened == ()


@pytest.mark.parametrize("name", [*FORMATS, *MIXTURES, "W4A16", "Q4_K_M", "q4-k-m", "FP8:128", "nvfp4:16"])
def test_names_are_read_in_any_case(name: str) -> None:
    scheme = parsed(name)
    assert bool(scheme.form) != bool(scheme.mixture)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int5", "unknown weights 'int5': did you mean .*int4"),
        ("q4_k_xl", "unknown weights 'q4_k_xl': did you mean .*q4_k_m"),
        ("int4:", "a group must be a number of inputs; write int4:64"),
        ("int4:x", "a group must be a number of inputs"),
        ("int4:0", "a group must be a number of inputs"),
        ("int4:-1", "a group must be a number of inputs"),
        ("nvfp4:32", "nvfp4 has groups of 16 by definition; write nvfp4"),
        ("mxfp4:16", "mxfp4 has groups of 32 by definition"),
        ("q8_0:32", "Q8_0 has fixed blocks; leave :32 out"),
        ("", "unknown weights ''"),
    ],
)
def test_what_names_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parsed(text)


def test_a_group_that_does_not_divide_names_the_layer() -> None:
    form = parsed("int4:96").form
    assert form is not None
    said = "model.q_proj: groups of 96 weights \\(int4\\) do not divide its 4096 inputs; .* such as 128"
    with pytest.raises(InputError, match=said):
        form.check("model.q_proj", SQUARE)
    form.check("model.q_proj", (1, 7, 9600))
    with pytest.raises(InputError, match="choose another format"):
        form.check("odd", (1, 7, 81))
    blocks = parsed("nf4").form  # of weights in a row, whatever the matrix
    assert blocks is not None
    blocks.check("odd", (1, 7, 81))
