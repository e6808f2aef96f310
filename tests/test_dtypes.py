"""The registry of element types: sizes, names, refusals, and that one entry is enough for a new one."""

import subprocess
import sys

import pytest
import torch

from neuralpower.cli import parsing
from neuralpower.devices.hardware import Hardware
from neuralpower.devices.spec import KEYS
from neuralpower.dtypes import (
    ALIASES,
    AUTOCAST_DTYPES,
    BOOLEAN,
    DTYPES,
    NETWORK_DTYPES,
    PEAK,
    PEAKS,
    Dtype,
    _registry,
    full_name,
)
from neuralpower.errors import InputError
from neuralpower.layers.base import torch_dtype, typed
from neuralpower.layers.linear import Linear
from neuralpower.layers.softmax import Softmax

META = torch.device("meta")
each = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
IN_TORCH = [dtype for dtype in DTYPES.values() if dtype.torch]


@pytest.mark.parametrize("dtype", IN_TORCH, ids=lambda dtype: dtype.name)
def test_a_type_that_torch_has_is_what_torch_says_of_it(dtype: Dtype) -> None:
    own = torch_dtype(dtype.name)
    assert dtype.bits == 8 * own.itemsize
    assert dtype.itemsize == own.itemsize
    assert isinstance(dtype.itemsize, int)
    assert dtype.floating == own.is_floating_point
    assert dtype.complex == own.is_complex
    assert dtype.integer == (not (own.is_floating_point or own.is_complex) and dtype.sort != BOOLEAN)
    assert torch.empty(3, dtype=own).numel() == 3


@each
def test_an_entry_refers_to_entries_alone(dtype: Dtype) -> None:
    for other in (dtype.stored_as, dtype.accumulates_in, dtype.parts, dtype.peak):
        assert other is None or other in DTYPES
    assert dtype.peak is None or DTYPES[dtype.peak].peak == dtype.peak  # which sheets can hold
    assert dtype.peak is None or PEAK + dtype.peak in KEYS
    assert dtype.stored_as is None or DTYPES[dtype.stored_as].torch == dtype.torch
    assert dtype.parts is None or 2 * DTYPES[dtype.parts].bits == dtype.bits
    assert dtype.accumulates_in is None or DTYPES[dtype.accumulates_in].bits >= dtype.bits


def test_four_bits_are_half_a_byte() -> None:
    assert {DTYPES[name].itemsize for name in ("int4", "uint4", "float4_e2m1fn", "mxfp4", "nvfp4")} == {0.5}
    assert DTYPES["int4"].integer
    assert DTYPES["float4_e2m1fn"].floating
    assert (DTYPES["mxfp4"].group, DTYPES["nvfp4"].group, DTYPES["int4"].group) == (32, 16, 0)


def test_an_alias_leads_to_its_type() -> None:
    aliases = {
        "bf16": "bfloat16",
        "fp8": "float8_e4m3fn",
        "half": "float16",
        "tf32": "tensorfloat32",
        "fp4": "float4_e2m1fn",
    }
    for alias, name in aliases.items():
        assert full_name(alias) == parsing.dtype(alias) == name
    assert parsing.dtype("float33") == "float33"  # which whoever needs it refuses
    assert set(ALIASES).isdisjoint(DTYPES)


@pytest.mark.parametrize("name", [dtype.name for dtype in DTYPES.values() if not dtype.torch])
def test_a_type_that_torch_has_no_tensors_of_is_refused_in_one_line(name: str) -> None:
    for make in (
        lambda: torch_dtype(name),
        lambda: Softmax(dtype=name, rows=2, width=4).build(torch.device("cpu")),
        lambda: Linear(dtype=name, rows=2, in_features=4, out_features=1, bias=False).build(META),
    ):
        with pytest.raises(InputError, match=f"^dtype {name}: torch has no tensors of it; choose") as refusal:
            make()
        assert "\n" not in str(refusal.value)


def test_what_networks_and_sheets_take_follows_from_the_entries() -> None:
    assert set(NETWORK_DTYPES) == {"float64", "float32", "bfloat16", "float16"}
    assert set(AUTOCAST_DTYPES) == {"bfloat16", "float16"}
    assert {f"peak_flops_{name}" for name in PEAKS} == {key for key in KEYS if key.startswith("peak_flops_")}


def test_a_type_without_a_peak_of_its_own_has_that_of_its_kin() -> None:
    hardware = Hardware(peak_flops_per_s={"float32": 1e13, "float8_e4m3fn": 4e14, "float64": 5e12})
    assert hardware.peak("float8_e5m2") == hardware.peak("float8_e4m3fn") == 4e14
    assert hardware.peak("int64") == hardware.peak("mxfp4") == 5e12  # the slowest, where no peak holds
    assert Hardware(peak_flops_per_s={"float4_e2m1fn": 8e14}).peak("nvfp4") == 8e14


def test_a_way_to_multiply_leaves_other_layers_in_the_type_of_memory() -> None:
    product = Linear(rows=2, in_features=4, out_features=4, bias=False)
    assert typed(product, "tensorfloat32").dtype == "tensorfloat32"
    assert typed(Softmax(rows=2, width=4), "tensorfloat32").dtype == "float32"
    assert typed(Softmax(rows=2, width=4), "bfloat16").dtype == "bfloat16"


def test_two_entries_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="'bf16' stands twice"):
        _registry((Dtype(name="a", bits=16, aliases=("bf16",)), Dtype(name="bf16", bits=16)))


def test_the_registry_imports_no_torch() -> None:
    program = "import sys, neuralpower.dtypes\nassert 'torch' not in sys.modules"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
