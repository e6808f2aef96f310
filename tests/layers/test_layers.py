"""The contract that every layer kind keeps, present and future."""

import dataclasses
import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from neuralpower.errors import DatasetError, Unmodelled
from neuralpower.layers import KINDS, Hardware, Layer, columns_of, layer_kind
from neuralpower.layers.base import Draw, of_real, torch_dtype
from neuralpower.layers.convolution import Conv2d, Conv3d, Convolution, ConvTranspose2d
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.movement import Movement
from neuralpower.layers.pointwise import effort
from neuralpower.layers.pooling import Pool2d, Pool3d, Pooling
from neuralpower.layers.recurrent import Recurrent
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.rows import defaults, field_names, from_row, to_row
from neuralpower.layers.softmax import Softmax
from neuralpower.measure.collect.plan import affordable, draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.networks.running import META
from neuralpower.trace.tracer import trace, trace_call

HARDWARE = Hardware(cores=4)
QUICK = PRESETS["quick"]
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
CONTRACT = {
    "linear": "rows in_features out_features bias",
    "matmul": "batch rows inner columns",
    "attention": "batch query_heads key_heads query_length key_length head_size causal masked",
    "norm": "function rows width spatial",
    "activation": "function elements",
    "elementwise": "function elements operands broadcast",
    "softmax": "rows width",
    "embedding": "tokens vocabulary width",
    "movement": "function elements",
    "reduction": "function elements outputs",
    "recurrent": "function batch steps input_size hidden_size num_layers bidirectional",
    "optimizer": "function tensors elements",
    "conv2d": "batch in_channels in_height in_width out_channels kernel_height kernel_width stride_height "
    "stride_width padding_height padding_width dilation_height dilation_width groups bias",
    "pool2d": "function batch channels in_height in_width kernel_height kernel_width stride_height "
    "stride_width padding_height padding_width",
    "pool3d": "function batch channels in_depth in_height in_width kernel_depth kernel_height kernel_width "
    "stride_depth stride_height stride_width padding_depth padding_height padding_width",
}


def layers_of(kind: type[Layer], count: int = 20, seed: int = 0) -> list[Layer]:
    return list(draw(kind, count, seed, QUICK))


@pytest.mark.parametrize("kind", CONTRACT)
def test_a_table_with_the_contracts_columns_alone_is_enough(kind: str) -> None:
    needed = [name for name in field_names(KINDS[kind]) if name not in defaults(KINDS[kind])]
    assert set(needed) <= set(CONTRACT[kind].split()) <= set(field_names(KINDS[kind]))


def test_there_is_a_kind_for_every_sort_of_convolution() -> None:
    assert {"conv1d", "conv2d", "conv3d", "conv_transpose2d", *CONTRACT} <= set(KINDS)


@every_kind
def test_a_row_gives_its_layer_back(kind: type[Layer]) -> None:
    for layer in layers_of(kind):
        assert from_row(kind, to_row(layer)) == layer
        assert (
            from_row(kind, {name: str(value) for name, value in to_row(layer).items()}) == layer
        )  # as a csv has it


@every_kind
def test_the_trace_of_a_built_layer_is_that_layer(kind: type[Layer]) -> None:
    for layer in layers_of(kind, 25, seed=1):
        traced = trace_call(layer.build(META))
        assert traced.layers == (layer,)
        assert traced.unmodelled == ()


@every_kind
def test_a_built_layer_runs_on_the_cpu_with_finite_results(kind: type[Layer]) -> None:
    small = [layer for layer in layers_of(kind, 40) if layer.flops() < 2e7 and sum(layer.bytes()) < 4e6][:4]
    assert small
    torch.manual_seed(0)  # of 200,000 random divisors one is 0 in a run out of a hundred
    for layer in small:
        call = layer.build(torch.device("cpu"))
        output = call()
        first = output[0] if isinstance(output, tuple) else output
        assert first is None or bool(torch.isfinite(first).all())  # an optimizer's step returns nothing
        assert all(isinstance(tensor, torch.Tensor) for tensor in call.warm)


def test_products_of_a_few_rows_are_a_group_of_a_cpu_not_of_an_accelerator() -> None:
    products = [Linear(rows=rows, in_features=8, out_features=8, bias=False) for rows in (1, 2, 16, 17)]
    assert [str(p.views.cpu.group(p)) for p in products] == ["vector", "few", "few", "matrix"]
    assert [str(p.views.kernels.group(p)) for p in products] == ["vector", "matrix", "matrix", "matrix"]
    summed = Reduction(function="sum", elements=8, outputs=1)
    assert summed.views.cpu.group(summed) == summed.views.kernels.group(summed) == "all"


@every_kind
def test_formulas_hold_for_a_table_as_for_its_layers(kind: type[Layer]) -> None:
    layers = layers_of(kind)
    table = columns_of(kind, layers)
    flops, moved, terms = table.flops(), table.bytes(), table.views.cpu.terms(table, HARDWARE)
    groups = np.broadcast_to(np.asarray(table.views.cpu.group(table)), (len(layers),))
    for i, layer in enumerate(layers):
        assert layer.flops() == np.broadcast_to(flops, len(layers))[i]
        assert tuple(layer.bytes()) == tuple(np.broadcast_to(part, len(layers))[i] for part in moved)
        assert str(layer.views.cpu.group(layer)) == groups[i]
        for name, value in layer.views.cpu.terms(layer, HARDWARE).items():
            assert value == pytest.approx(float(np.broadcast_to(terms[name], len(layers))[i]), rel=1e-12)
        for name, value in layer.views.cpu.features(layer, Hardware()).items():
            assert math.isfinite(value), name


@every_kind
def test_work_and_terms_are_never_negative(kind: type[Layer]) -> None:
    for layer in layers_of(kind):
        assert layer.flops() >= 0
        assert sum(layer.bytes()) > 0
        assert layer.parameters() >= 0
        assert all(value >= 0 for value in layer.views.cpu.terms(layer, HARDWARE).values())


@every_kind
def test_flops_are_what_pytorch_counts_where_it_does(kind: type[Layer]) -> None:
    # torch counts grouped and transposed convolutions too high (see the tests of the tracer), attention and
    # recurrent cells on a CPU as 0: those have hand arithmetic below
    layers = [layer for layer in layers_of(kind, 30) if getattr(layer, "groups", 1) == 1]
    if kind.kind in ("linear", "matmul", "conv1d", "conv2d", "conv3d"):
        for layer in layers:
            with FlopCounterMode(display=False) as counter:
                layer.build(META)()
            assert layer.flops() == counter.get_total_flops()
    elif kind.kind == "attention":
        for layer in layers:
            with FlopCounterMode(display=False) as counter:
                q, k, v = (t.contiguous() for t in layer.build(META).args)
                repeat = q.shape[1] // k.shape[1]
                k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
                q @ k.transpose(2, 3) @ v
            assert layer.flops() == counter.get_total_flops()
    else:
        reads = [layer.bytes() for layer in layers]
        # no arithmetic unit does more than 256 FLOP per byte that such a layer touches
        bound = 2000 if kind.kind in ("recurrent", "conv_transpose2d") else 256
        assert all(layer.flops() <= bound * sum(moved) for layer, moved in zip(layers, reads, strict=True))


@every_kind
def test_a_sweep_is_seeded_distinct_and_within_bounds(kind: type[Layer]) -> None:
    layers = layers_of(kind, 60, seed=3)
    assert layers == layers_of(kind, 60, seed=3)
    assert layers != layers_of(kind, 60, seed=4)
    assert len(set(layers)) == len(layers) == 60
    assert all(affordable(layer, QUICK) for layer in layers)


def test_softmax_flops() -> None:
    # 12 rows * 5 wide = 60 elements; max, subtract, exp, sum, divide: 60 * 5 = 300
    assert Softmax(rows=12, width=5).flops() == 300


def test_lstm_and_gru_flops() -> None:
    # 4 gates (3 for a GRU) * 16 * (8 + 16) weights = 1,536; 2 FLOP * 2 sequences * 5 steps * 1,536 = 30,720
    cell = Recurrent(
        function="lstm", batch=2, steps=5, input_size=8, hidden_size=16, num_layers=1, bidirectional=False
    )
    assert cell.flops() == 30_720
    assert dataclasses.replace(cell, function="gru").flops() == 23_040
    # 1,536 weights and two biases of 64
    assert cell.parameters() == 1_536 + 128


def test_depthwise_convolution_flops() -> None:
    # 8 channels, 8 x 8 outputs of 9 multiply-adds: 8 * 64 * 9 * 2 = 9,216
    sizes = {"in": (10, 10), "kernel": (3, 3), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    channels = {"in_channels": 8, "out_channels": 8, "groups": 8}
    layer = Conv2d(batch=1, bias=False, **channels, **Conv2d.fields_of(sizes))
    assert layer.flops() == 9_216
    assert layer.parameters() == 72
    assert str(layer.views.cpu.group(layer)) == "depthwise"


def test_transposed_convolution_flops() -> None:
    # 25 input positions * 4 * 8 * 2 * 2 = 3,200 multiply-adds
    module = torch.nn.ConvTranspose2d(4, 8, 2, stride=2, device="meta")
    traced = trace_call(lambda: module(torch.empty(1, 4, 5, 5, device="meta")))
    assert [layer.flops() for layer in traced.layers] == [6_400]


def test_a_kind_or_an_operator_cannot_be_taken_twice() -> None:
    with pytest.raises(ValueError, match="'softmax' is already defined by neuralpower.layers.softmax"):
        layer_kind("softmax")(Linear)
    with pytest.raises(ValueError, match="'aten.softmax' already belongs to kind 'softmax'"):
        layer_kind("another", "aten.softmax")(Linear)
    assert "another" not in KINDS


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("many", "must be a number"),
        (-1, "whole number from 0"),
        (2**60, "whole number from 0"),
        (2.5, "whole number"),
        (None, "no value"),
    ],
)
def test_a_field_that_is_no_size_is_refused(value: object, said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        from_row(Softmax, {"rows": value, "width": 4})


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_an_lstm_that_projects_its_output_does_as_much_as_it_has_weights() -> None:
    model = nn.LSTM(512, 1024, 2, proj_size=128, bidirectional=True)
    layer = trace(model, (torch.zeros(10, 8, 512),)).layers[-1]
    assert isinstance(layer, Recurrent)
    # by direction: 4 * 1024 * (512 + 128), then * (256 + 128), and in both layers 128 * 1024
    assert layer.weights == 2 * (4 * 1024 * (640 + 384) + 2 * 128 * 1024)
    assert layer.weights == sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert layer.flops() == 2 * 10 * 8 * layer.weights


def test_a_transposed_convolution_along_one_axis_is_one_of_height_1() -> None:
    model, x = nn.ConvTranspose1d(8, 4, 5, 2, padding=1, output_padding=1, groups=2), torch.zeros(3, 8, 10)
    found = trace(model, (x,))
    (layer,) = found.layers
    assert isinstance(layer, ConvTranspose2d) and found.unmodelled == ()
    assert layer.out_sizes == (1, model(x).shape[-1])
    # each of 3 * 10 inputs meets 5 taps of 8 * 4 / 2 channels
    assert layer.macs() == 3 * 10 * 5 * 8 * 4 // 2


@pytest.mark.parametrize(
    ("model", "shape", "macs"),
    [
        # outputs * taps * channels
        (nn.Conv1d(4, 6, 3), (4, 10), 6 * 8 * 3 * 4),
        (nn.Conv2d(4, 6, 3), (4, 10, 10), 6 * 64 * 9 * 4),
        (nn.ConvTranspose1d(4, 6, 2, 2), (4, 10), 10 * 2 * 4 * 6),
        (nn.ConvTranspose2d(4, 6, 2, 2), (4, 10, 10), 100 * 4 * 4 * 6),
        (nn.ConvTranspose3d(4, 6, 2, 2), (4, 10, 10, 10), 1000 * 8 * 4 * 6),
    ],
)
def test_a_convolution_takes_one_sample_without_a_batch(
    model: nn.Module, shape: tuple[int, ...], macs: int
) -> None:
    found = trace(model, (torch.zeros(shape),))
    assert (found.flops, found.unmodelled) == (2 * macs, ())


def test_a_transposed_convolution_over_a_volume_is_the_convolution_back() -> None:
    model, x = (
        nn.ConvTranspose3d(8, 4, 3, 2, padding=1, output_padding=1, groups=2),
        torch.zeros(3, 8, 5, 6, 7),
    )
    found = trace(model, (x,))
    (layer,) = found.layers
    assert isinstance(layer, Conv3d) and found.unmodelled == ()
    assert (layer.sizes("in"), layer.out_sizes) == (model(x).shape[2:], (5, 6, 7))
    # each of 3 * 5 * 6 * 7 inputs meets 27 taps of 8 * 4 / 2 channels
    assert layer.macs() == 3 * 5 * 6 * 7 * 27 * 8 * 4 // 2


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_operator_of_every_convolution_is_read_as_that_of_its_axes(axes: int, transposed: bool) -> None:
    x, weight = (torch.empty(sizes, device=META) for sizes in ((2, 4, *[9] * axes), (4, 4, *[3] * axes)))
    one = F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d
    usual = trace_call(lambda: one[axes - 1 + 3 * transposed](x, weight, None, 2, 1))
    settings = ([2] * axes, [1] * axes, [1] * axes, transposed, [0] * axes, 1)
    general = trace_call(lambda: torch.ops.aten.convolution(x, weight, None, *settings))
    assert general.layers == usual.layers and len(general.layers) == 1


def test_a_convolution_of_complex_numbers_is_three_of_real_ones() -> None:
    x, weight = (
        torch.empty(sizes, dtype=torch.complex64, device=META) for sizes in ((1, 4, 9, 9), (6, 4, 3, 3))
    )
    found = trace_call(lambda: F.conv2d(x, weight))
    # 49 outputs of 9 taps of 4 * 6 channels each
    assert [layer.flops() for layer in found.layers if layer.kind == "conv2d"] == [2 * 49 * 9 * 24] * 3
    assert found.unmodelled == ()


@pytest.mark.parametrize(("dim", "run"), [(-1, 3), (1, 30)])
def test_a_gated_unit_reads_its_two_halves(dim: int, run: int) -> None:
    # [4, 10, 6]: halves of 3 numbers side by side, or of 5 rows of 6
    (layer,) = trace_call(lambda: F.glu(torch.empty(4, 10, 6, device=META), dim)).layers
    assert isinstance(layer, Elementwise)
    assert (layer.elements, layer.operands, layer.broadcast, layer.run) == (4 * 10 * 6 // 2, 2, False, run)
    assert layer.bytes() == (2 * 4 * 120, 0, 4 * 120)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")
@pytest.mark.parametrize("kind", ["conv1d", "conv2d", "conv3d"])
def test_small_convolutions_are_those_that_pytorch_does_not_give_to_onednn(kind: str) -> None:
    found, threads = set(), torch.get_num_threads()
    torch.set_num_threads(2)  # with one, kernels of 1 position go another way
    try:
        for layer in layers_of(KINDS[kind], 120, seed=3):
            assert isinstance(layer, Convolution)
            if sum(layer.bytes()) > 2**24 or layer.channels_last:
                continue
            x, w, bias, stride, padding, dilation, groups = layer.build(torch.device("cpu")).args
            sizes = [list(values) for values in (stride, padding, dilation)]
            backend = torch._C._select_conv_backend(x, w, bias, *sizes, False, [0] * len(stride), groups)
            native = layer.views.cpu.features(layer, Hardware())["native"] == 1
            assert native == (backend.name != "Mkldnn"), (layer, backend)
            found.add(backend.name)
    finally:
        torch.set_num_threads(threads)
    assert len(found) > 1


def square(**sizes: int) -> dict[str, int]:
    """Fields of a two-dimensional kind whose sizes are equal along both axes."""
    return {
        f"{name.rstrip('_')}_{axis}": size for name, size in sizes.items() for axis in ("height", "width")
    }


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="vectors of other lengths")
def test_grouped_convolutions_are_in_blocks_where_onednn_has_them_so() -> None:
    cases = [(64, 64, 4, 3, 1), (32, 64, 4, 1, 0), (24, 24, 2, 3, 1), (24, 24, 4, 3, 1), (64, 72, 4, 3, 1)]
    cases += [(60, 60, 60, 3, 1), (64, 64, 64, 31, 15), (64, 128, 64, 3, 1)]
    layers = [
        Conv2d(
            batch=2,
            in_channels=inner,
            out_channels=outer,
            groups=groups,
            bias=False,
            **square(in_=28, kernel=kernel, stride=1, padding=padding, dilation=1),
        )
        for inner, outer, groups, kernel, padding in cases
    ]
    run = (
        "import sys, torch; torch.set_grad_enabled(False)\n"
        "for i, o, g, k, p in eval(sys.argv[1]):\n"
        "    torch.conv2d(torch.ones(2, i, 28, 28), torch.ones(o, i // g, k, k), None, 1, p, 1, g)\n"
    )
    env = {**os.environ, "ONEDNN_VERBOSE": "1", "OMP_NUM_THREADS": "2"}
    told = subprocess.check_output([sys.executable, "-c", run, repr(cases)], env=env, text=True)
    ran = [line.split(",") for line in told.splitlines() if ",exec,cpu,convolution," in line]
    implementations = [next(part for part in parts if "jit" in part) for parts in ran]
    blocks = [int(layer.views.cpu.features(layer, Hardware())["block"]) for layer in layers]
    assert blocks == [16, 8, 4, 0, 0, 16, 0, 0]
    assert ["gemm" in name for name in implementations] == [block == 0 for block in blocks]


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="PyTorch was built without MKL")
def test_small_products_are_those_that_pytorch_does_not_give_to_mkl() -> None:
    layers = [
        Matmul(batch=batch, rows=rows, inner=inner, columns=columns)
        for batch in (1, 3)
        for rows, inner, columns in (
            (19, 7, 3),
            (20, 5, 4),
            (1, 1, 399),
            (1, 1, 400),
            (399, 1, 1),
            (8, 64, 8),
        )
    ]
    run = (
        "import sys, torch\n"
        "for b, m, k, n in eval(sys.argv[1]):\n"
        "    print('next', flush=True); torch.bmm(torch.ones(b, m, k), torch.ones(b, k, n))\n"
    )
    sizes = repr([(layer.batch, layer.rows, layer.inner, layer.columns) for layer in layers])
    env = {**os.environ, "MKL_VERBOSE": "1"}
    told = subprocess.check_output([sys.executable, "-c", run, sizes], env=env, text=True)
    native = [layer.views.cpu.features(layer, Hardware())["native"] == 1 for layer in layers]
    assert ["SGEMM" not in part for part in told.split("next")[1:]] == native
    assert set(native) == {True, False}


class Scattering(nn.Module):
    """Writes into a table [10, 4] at places of its own."""

    def __init__(self, write: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.write = write

    def forward(self, table: Tensor) -> Tensor:
        return self.write(table)


PLACES = torch.zeros(30, dtype=torch.long)
ROWS = torch.zeros(30, 4)


@pytest.mark.parametrize(
    ("write", "function", "elements", "run"),
    [
        (lambda t: t.index_add(0, PLACES, ROWS), "index_add", 30 * 4, 4),  # 30 messages to 10 nodes
        (lambda t: t.index_add(1, PLACES[:4], ROWS[:10]), "index_add", 10 * 4, 1),
        (
            lambda t: t.scatter_reduce(0, PLACES.to(META)[:, None].expand(-1, 4), ROWS, "amax"),
            "scatter_rows",
            30 * 4,
            4,
        ),
        (
            lambda t: t.scatter_add_(0, PLACES.to(META)[:3, None].expand(-1, 4), ROWS[:3]),
            "scatter_rows",
            3 * 4,
            4,
        ),
        (lambda t: t.scatter_add_(1, PLACES.to(META)[:3, None].expand(-1, 4), ROWS[:3]), "scatter", 3 * 4, 0),
        (
            lambda t: t.scatter_add_(0, PLACES[:12].view(3, 4), ROWS[:3]),
            "scatter",
            3 * 4,
            0,
        ),  # each number has a place
        (lambda t: t.scatter_add_(0, PLACES[:3, None], ROWS[:3]), "scatter", 3, 0),
        (
            lambda t: t.index_add(0, PLACES[:3], ROWS[:3]),
            "index_add",
            10 * 4,
            4,
        ),  # a new table is written as a whole
        (
            lambda t: t.index_copy_(0, PLACES[:3], ROWS[:3]),
            "index_add",
            3 * 4,
            4,
        ),  # a cache in its place is not
        (lambda t: t.index_put_((PLACES[:3],), ROWS[:3]), "scatter", 3 * 4, 0),
        (lambda t: t.index_put_((PLACES[:3, None], PLACES[:2]), torch.ones(())), "scatter", 3 * 2, 0),
        (lambda t: t.index_put_((torch.ones(10, dtype=torch.bool),), torch.ones(())), "scatter", 10 * 4, 0),
    ],
)
def test_a_scatter_is_as_large_as_what_it_writes(
    write: Callable[[Tensor], Tensor], function: str, elements: int, run: int
) -> None:
    *_, layer = trace(Scattering(write), (torch.zeros(10, 4),)).layers
    row = to_row(layer)
    assert (row["function"], row["elements"], row["run"]) == (function, elements, run)


def test_what_is_built_of_a_movement_is_that_movement() -> None:
    source, seen = Draw(3), set()
    for _ in range(400):
        layer = Movement.sample(source)
        if layer.function in ("index_add", "scatter_rows", "unfold", "fold"):
            built = [found for found in trace_call(layer.build(META)).layers if found.kind == "movement"]
            assert layer in built
            seen.add(layer.function)
    assert seen == {"index_add", "scatter_rows", "unfold", "fold"}


def test_distinct_numbers_are_sought_among_all() -> None:
    found = trace(Scattering(torch.unique), (torch.zeros(10, 4, dtype=torch.long),)).layers
    assert [(to_row(layer)["function"], to_row(layer)["elements"]) for layer in found] == [("unique", 40)]
    call = Movement(dtype="int64", function="unique", elements=1000).build(torch.device("cpu"))
    assert 1 < len(call()) < 1000


def test_a_matrix_that_is_added_to_a_product_hides_none_of_it() -> None:
    def product(*added: int) -> Layer:
        left, right = torch.empty(4, 8, device=META), torch.empty(8, 6, device=META)
        (layer,) = trace_call(lambda: torch.addmm(torch.empty(added, device=META), left, right)).layers
        return layer

    assert product(4, 6) == product(6)
    assert product(4, 6).flops() == 2 * 4 * 8 * 6


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (
            lambda: torch.cdist(torch.empty(5, 30, 8, device=META), torch.empty(5, 40, 8, device=META)),
            2 * 5 * 30 * 40 * (8 + 2),  # their squares are two more columns
        ),
        (lambda: torch._int_mm(*torch.empty(2, 32, 32, dtype=torch.int8, device=META)), 2 * 32**3),
        # 4 * 5 rows by a matrix of 8 x 6 for each of 7 outputs, each of these 6 times one of the other input
        (
            lambda: nn.Bilinear(8, 6, 7, device=META)(*(torch.empty(4, 5, n, device=META) for n in (8, 6))),
            2 * 20 * 48 * 7 + 2 * 20 * 6 * 7,
        ),
    ],
)
def test_products_by_other_names_are_products(function: Callable[[], Tensor], flops: int) -> None:
    found = trace_call(function)
    assert [layer.flops() for layer in found.layers if layer.kind == "matmul"] == [flops]
    assert found.unmodelled == ()


class Complex(nn.Module):
    """A product of complex numbers in one of the ways that there are."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.zeros(6, 4, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "function",
    [
        F.linear,
        lambda x, w: F.linear(x, w, w[:, 0]),
        lambda x, w: x @ w.mT,
        lambda x, w: torch.einsum("bi,oi->bo", x, w),
    ],
)
def test_a_product_of_complex_numbers_is_four_of_real_ones(
    function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    # 2 rows * 6 * 4 products, each of 4 multiply-adds
    found = trace(Complex(function, dtype), (torch.zeros(2, 4, dtype=dtype),))
    products = [layer for layer in found.layers if layer.multiplies]
    assert [layer.flops() for layer in products] == [2 * 2 * 6 * 4 * 4]
    assert {torch_dtype(layer.dtype) for layer in products} == {dtype.to_real()}
    assert found.unmodelled == ()


def test_attention_of_complex_numbers_is_made_of_no_products_of_real_ones() -> None:
    with pytest.raises(Unmodelled, match="products of complex numbers are not modelled"):
        of_real(layers_of(KINDS["attention"])[0])


@pytest.mark.parametrize(
    ("pooling", "size", "side", "window"),
    [
        (nn.AdaptiveAvgPool2d(7), 14, 7, 2),
        (nn.AdaptiveAvgPool2d(7), 10, 7, 2),  # windows of 2 and 3 that overlap
        (nn.AdaptiveAvgPool2d(8), 4, 8, 1),  # each number twice a side
        (nn.MaxPool2d(3, 2, ceil_mode=True), 112, 56, 3),  # the last window has two rows
        (nn.MaxPool2d(3, 2), 112, 55, 3),
        (nn.MaxPool2d(3, 1, padding=1, dilation=2), 9, 7, 3),
    ],
)
def test_a_pooling_is_built_with_as_many_outputs_as_it_has(
    pooling: nn.Module, size: int, side: int, window: int
) -> None:
    x = torch.zeros(1, 3, size, size)
    (pool,) = trace(pooling, (x,)).layers
    assert isinstance(pool, Pool2d)
    assert pooling(x).shape == (1, 3, side, side)
    assert (pool.out_positions, pool.window) == (side**2, window**2)
    call = pool.build(torch.device("cpu"))
    assert call.function(*call.args, **call.kwargs).shape == (1, 3, side, side)


def test_normalisation_over_neighbouring_channels_is_a_pooling_along_them() -> None:
    # torch pads 8 channels by 2 on both sides and averages 5: 2 images of 12 x (4 * 6), 8 x 24 windows of 5
    model = nn.LocalResponseNorm(5)
    found = trace(model, (torch.empty(2, 8, 4, 6),))
    (pool,) = (layer for layer in found.layers if layer.kind == "pool2d")
    assert (to_row(pool)["in_height"], to_row(pool)["in_width"], pool.flops()) == (12, 24, 2 * 8 * 24 * 5)
    assert found.unmodelled == ()


@pytest.mark.parametrize(
    ("pooling", "out", "window"),
    [
        (nn.MaxPool3d((1, 2, 2)), (6, 7, 4), 4),  # as C3D begins: frames are kept
        (nn.MaxPool3d(3, 2, padding=1), (3, 7, 5), 27),
        (nn.MaxPool3d(3, 2, return_indices=True), (2, 6, 4), 27),
        (nn.MaxPool3d(2, ceil_mode=True), (3, 7, 5), 8),  # the last window has one column
        (nn.AvgPool3d((2, 7, 3), 1), (5, 8, 7), 42),
        (nn.AdaptiveAvgPool3d((None, 1, 1)), (6, 1, 1), 126),
        (nn.AdaptiveAvgPool3d((1, 7, 7)), (1, 7, 7), 24),  # of 9 columns windows of 2 and 3 that overlap
        (nn.AdaptiveMaxPool3d(1), (1, 1, 1), 756),
        (nn.AdaptiveMaxPool3d(2, return_indices=True), (2, 2, 2), 105),
    ],
)
@pytest.mark.parametrize("batch", [(2,), ()])
def test_a_pooling_of_volumes_reads_as_many_numbers_as_it_has_windows(
    pooling: nn.Module, out: tuple[int, ...], window: int, batch: tuple[int, ...]
) -> None:
    found = trace(pooling, (torch.zeros(*batch, 3, 6, 14, 9),))
    (pool,) = found.layers
    assert isinstance(pool, Pool3d) and found.unmodelled == ()
    assert (pool.out_positions, pool.window) == (math.prod(out), window)
    assert pool.flops() == math.prod(batch) * 3 * math.prod(out) * window
    call = pool.build(torch.device("cpu"))
    assert call.function(*call.args, **call.kwargs).shape == (*(batch or (1,)), 3, *out)


def test_the_mean_of_a_whole_volume_is_the_reduction_that_runs() -> None:
    (layer,) = trace(nn.AdaptiveAvgPool3d(1), (torch.zeros(2, 3, 4, 5, 6),)).layers
    assert layer == Reduction(function="mean", elements=2 * 3 * 4 * 5 * 6, outputs=2 * 3)


@pytest.mark.parametrize("kind", ["pool2d", "pool3d"])
def test_a_pooling_knows_its_memory_format(kind: str) -> None:
    for layer in layers_of(KINDS[kind], 40):
        assert isinstance(layer, Pooling)
        last = type(layer)(**{**to_row(layer), "channels_last": True})
        map_of_one = layer.channels == 1 or layer.in_positions == 1
        assert map_of_one or trace_call(last.build(META)).layers == (last,)


@pytest.mark.parametrize(
    ("call", "function", "elements", "run"),
    [
        (lambda x: torch.sort(x), "sort", 600, 30),
        (lambda x: torch.sort(x, 0), "sort", 600, 20),
        (lambda x: torch.sort(x, dim=1, descending=True, stable=True), "sort", 600, 30),
        (lambda x: torch.argsort(x, dim=0, stable=True), "sort", 600, 20),
        (lambda x: torch.topk(x, 3), "topk", 600, 30),
        (lambda x: torch.topk(x, 3, dim=0), "topk", 600, 20),
        (lambda x: torch.kthvalue(x, 2, 0), "topk", 600, 20),
        (lambda x: torch.searchsorted(x[0], x[:5]), "search", 150, 0),
        (lambda x: torch.histc(x, 10), "select", 600, 0),
    ],
)
def test_what_looks_through_rows_is_counted_by_what_it_reads(
    call: Callable[[Tensor], object], function: str, elements: int, run: int
) -> None:
    (layer,) = trace_call(lambda: call(torch.empty(20, 30, device=META))).layers
    assert isinstance(layer, Movement)
    assert (layer.function, layer.elements, layer.run) == (function, elements, run)


@pytest.mark.parametrize(
    ("x", "y", "run"),
    [
        ((50, 7), (50, 1), 7),  # a number for each row of seven
        ((50, 7), (7,), 7),
        ((50, 40), (50, 1), 0),  # rows of forty are long
        ((9, 1, 3), (8, 3), 3),  # each with each
        ((2, 6, 3, 4), (6, 1, 1), 12),
        ((50, 7, 1, 1), (50, 1, 1, 1), 7),  # axes of one place are none
    ],
)
def test_a_broadcast_over_few_numbers_says_over_how_many(
    x: tuple[int, ...], y: tuple[int, ...], run: int
) -> None:
    (layer,) = trace_call(lambda: torch.empty(x, device=META) * torch.empty(y, device=META)).layers
    assert isinstance(layer, Elementwise)
    assert (layer.run, layer.broadcast) == (run, True)


def test_the_places_of_a_mask_are_looked_for_among_all() -> None:
    class Chosen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rows, _ = torch.where(x > 0)
            return x[rows]

    found = [layer for layer in trace(Chosen(), (torch.ones(6, 5),)).layers if isinstance(layer, Movement)]
    assert [(layer.function, layer.elements) for layer in found] == [("select", 30), ("index", 150)]


def test_complex_numbers_have_code_of_their_own() -> None:
    x = torch.empty(8, 9, dtype=torch.complex64, device=META)
    groups = [
        Elementwise.views.cpu.group(trace_call(functools.partial(call, x)).layers[0])
        for call in (lambda v: v * v, torch.exp, torch.neg)
    ]
    assert groups == ["complex", "complex_transcendental", "complex"]
    assert effort("exp") == "transcendental"
    drawn = [layer for layer in draw(Elementwise, 400, 3, PRESETS["quick"]) if layer.dtype == "complex64"]
    assert len(drawn) > 10
    assert all(layer.build(torch.device("cpu"))().dtype == torch.complex64 for layer in drawn[:10])
