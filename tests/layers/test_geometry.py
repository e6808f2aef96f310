"""Fields say what an operator returns: paddings by name, packed sequences, products, requested gradients."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.utils.flop_counter import FlopCounterMode

import neuralpower
from neuralpower.errors import DatasetError, Unmodelled
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.convolution import Conv2d, Conv3d
from neuralpower.layers.embedding import Embedding
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.movement import Movement
from neuralpower.layers.norm import Norm
from neuralpower.layers.pooling import Pool2d
from neuralpower.layers.recurrent import Recurrent
from neuralpower.layers.rows import from_row, to_row
from neuralpower.layers.tensors import check_output
from neuralpower.layers.training import backward_of
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.networks.running import META
from neuralpower.prediction.memory.peak import peak
from neuralpower.trace.passes import applied
from neuralpower.trace.question import Knows, Question
from neuralpower.trace.recipe import default_loss
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.tracer import trace, trace_call

CPU = torch.device("cpu")
uneven = pytest.mark.filterwarnings("ignore:Using padding='same'")


def backward_tasks(found: Trace, knows: Knows) -> tuple[Task, ...]:
    return applied(found, Question("backward", knows=knows)).tasks


class Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """What the function returns."""
        return self.function(*args)


def products(found: Trace) -> int:
    """FLOP of the layers that multiply."""
    return sum(layer.flops() for layer in found.layers if layer.multiplies)


def counted(model: nn.Module, *args: Any) -> int:
    """FLOP as torch.utils.flop_counter has them."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*args)
    return int(counter.get_total_flops())


# ---- paddings by name ----


@uneven
@pytest.mark.parametrize(
    ("model", "shape", "flops"),
    [
        # 64 positions of 16 taps of 16 * 32 channels; the input is padded to 9 x 9 first
        (nn.Conv2d(16, 32, 4, padding="same"), (1, 16, 8, 8), 2 * 64 * 16 * 16 * 32),
        (nn.Conv2d(16, 32, (4, 3), padding="same"), (2, 16, 8, 6), 2 * 2 * 48 * 12 * 16 * 32),
        (nn.Conv2d(16, 16, 2, padding="same", groups=16), (1, 16, 8, 8), 2 * 64 * 4 * 16),
        (nn.Conv2d(16, 8, 2, padding="same", groups=4, dilation=3), (16, 9, 9), 2 * 81 * 4 * 16 * 8 // 4),
        (nn.Conv1d(6, 5, 2, padding="same", dilation=3), (2, 6, 9), 2 * 2 * 9 * 2 * 6 * 5),
        (nn.Conv1d(6, 5, 4, padding="same"), (6, 9), 2 * 9 * 4 * 6 * 5),
        (nn.Conv3d(3, 4, (2, 3, 4), padding="same"), (2, 3, 5, 6, 7), 2 * 2 * 210 * 24 * 3 * 4),
        # even: the same on both sides
        (nn.Conv2d(16, 32, 2, padding="same", dilation=2), (1, 16, 8, 8), 2 * 64 * 4 * 16 * 32),
        (nn.Conv2d(16, 32, 4, padding="valid"), (1, 16, 8, 8), 2 * 25 * 16 * 16 * 32),
    ],
)
def test_a_padding_by_name_gives_as_many_positions_as_the_operator_returns(
    model: nn.Module, shape: tuple[int, ...], flops: int
) -> None:
    x = torch.zeros(shape)
    found = trace(model, (x,))
    assert products(found) == flops == counted(model, x)
    assert found.unmodelled == ()
    assert found.calls[-1].outputs[0][-x.dim() :] == tuple(model(x).shape)  # one sample is given a batch of 1


@uneven
def test_an_uneven_padding_is_a_copy_that_is_padded_on_one_side_as_pytorch_runs_it() -> None:
    model, x = nn.Conv2d(16, 32, (4, 3), padding="same"), torch.zeros(2, 16, 8, 8)
    found = trace(model, (x,))
    pad, convolution = found.layers
    # 3 rows in all are 1 above and 2 below: a row is added below, then 1 on both sides; columns have 1 each
    assert pad == Movement(function="pad", elements=2 * 16 * 9 * 8)
    assert isinstance(convolution, Conv2d)
    assert convolution.made == (2, 32, 8, 8)
    assert (convolution.in_height, convolution.padding_height, convolution.padding_width) == (9, 1, 1)
    assert convolution.bytes() == (8 * 16 * 9 * 8, 4 * (32 * 16 * 12 + 32), 8 * 32 * 64)
    # the copy lives beside the image, the weights and the result
    _, parts = peak([storage for storage in found.storages if storage.part != "workspace"])
    assert parts["activations"] == 8 * 16 * 9 * 8 + 8 * 32 * 64
    # the general operator of convolutions works on copies in blocks of 16 channels: the image and the
    # weights, freed before the result is copied
    (room,) = (storage.bytes for storage in found.storages if storage.library == "onednn")
    assert room == 4 * (2 * 16 * 72 + 32 * 16 * 12)


@uneven
def test_a_functional_padding_by_name_is_read_like_a_modules() -> None:
    weight = torch.zeros(4, 3, 4, 4)
    for padding, positions in (("same", 64), ("valid", 25)):
        model = Function(lambda x, padding=padding: F.conv2d(x, weight, padding=padding))
        assert products(trace(model, (torch.zeros(2, 3, 8, 8),))) == 2 * 2 * positions * 16 * 12


@uneven
def test_an_uneven_padding_is_profiled_forward_and_backward() -> None:
    model, x = nn.Conv2d(4, 6, 4, padding="same"), torch.randn(2, 4, 8, 8, requires_grad=True)
    found = neuralpower.profile(model, x, phase="training", repeat=1, warmup=1, convention="matmul")
    once = 2 * 2 * 64 * 16 * 4 * 6
    assert [row.flops for row in found.rows if row.kind == "conv2d"] == [once, 2 * once]
    assert {row.phase for row in found.rows if row.kind == "movement" and row.runtime_s} == {
        "forward",
        "backward",
    }
    assert found.unmodelled == ()


# ---- fields say what an operator returns ----


def shaped() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls whose shapes are easily read wrongly."""
    x, volume, row = (
        torch.empty(size, device=META) for size in ((2, 4, 10, 11), (2, 4, 7, 8, 9), (2, 4, 11))
    )
    w2, w3 = torch.empty(4, 6, 3, 3, device=META), torch.empty(4, 6, 3, 3, 3, device=META)
    yield (
        "transposed",
        lambda: F.conv_transpose2d(x, w2, stride=(3, 2), padding=1, output_padding=(2, 0), dilation=2),
    )
    yield "transposed along one", lambda: F.conv_transpose1d(row, w2[:, :, 0], stride=3, output_padding=2)
    yield (
        "transposed volume",
        lambda: F.conv_transpose3d(volume, w3, stride=(3, 2, 1), output_padding=(2, 0, 0)),
    )
    for ceil_mode in (False, True):
        yield f"pool {ceil_mode}", partial(F.max_pool2d, x, 3, 2, 1, ceil_mode=ceil_mode)
        yield f"pool of volume {ceil_mode}", partial(F.avg_pool3d, volume, 2, 2, ceil_mode=ceil_mode)
        yield f"pool along one {ceil_mode}", partial(F.avg_pool1d, row, 4, 3, ceil_mode=ceil_mode)
    yield "dilated pool", lambda: F.max_pool2d(x, 3, 1, dilation=2)
    yield "adaptive", lambda: F.adaptive_avg_pool2d(x, (7, 4))
    yield "adaptive to more", lambda: F.adaptive_max_pool2d(x, (13, 20))
    yield "unfold", lambda: F.unfold(x, 3, padding=1, stride=2)
    yield "fold", lambda: F.fold(torch.empty(2, 36, 30, device=META), (10, 11), 3, stride=2, padding=1)
    yield "interpolate", lambda: F.interpolate(x, size=(7, 23), mode="bilinear")
    yield "linear of a vector", lambda: F.linear(torch.empty(5, device=META), torch.empty(7, 5, device=META))
    yield "broadcast product", lambda: x[:, :1] @ torch.empty(4, 11, 3, device=META)
    query, key = (torch.empty(2, count, 5, 8, device=META) for count in (6, 2))
    yield "grouped heads", lambda: F.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    yield (
        "lstm",
        lambda: nn.LSTM(4, 6, 2, bidirectional=True, proj_size=3, batch_first=True, device=META)(row.mT),
    )
    table, places = torch.empty(9, 4, device=META), torch.zeros(7, dtype=torch.long, device=META)
    starts = torch.zeros(3, dtype=torch.long, device=META)
    yield "bags", lambda: F.embedding_bag(places, table, starts)
    yield "bags and their end", lambda: F.embedding_bag(places, table, starts, include_last_offset=True)


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in shaped()])
def test_what_can_be_read_is_read_with_the_shape_that_it_returns(call: Callable[[], Any]) -> None:
    found = trace_call(call)
    assert found.unmodelled == () and found.calls
    for made in found.calls:
        said = made.layer.output_shape(made.operator)
        if said is not None:
            assert torch.Size(said).numel() == torch.Size(made.outputs[0]).numel()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_says_its_shape_says_that_of_what_it_builds(kind: str) -> None:
    layer = from_row(KINDS[kind], to_row(next(iter(_drawn(kind)))))
    for made in trace_call(layer.build(META)).calls:
        said = made.layer.output_shape(made.operator)
        assert said is None or torch.Size(said).numel() == torch.Size(made.outputs[0]).numel()
    if layer.multiplies:
        assert layer.output_shape(KINDS[kind].operators[0]) is not None


def _drawn(kind: str) -> Iterator[Layer]:
    return iter(draw(KINDS[kind], 3, 0, PRESETS["quick"]))


@pytest.mark.parametrize(
    ("said", "real", "agrees"),
    [
        ((6, 5), (2, 3, 5), True),  # axes joined
        ((2, 3, 5), (3, 2, 5), True),  # in another order
        ((1, 4, 5), (4, 5), True),
        ((4, 5), (4, 6), False),
        ((4, 5), (4,), False),
        ((4,), (4, 5), False),
        ((10,), (4, 5), False),
    ],
)
def test_another_shape_than_the_operators_is_refused(
    said: tuple[int, ...], real: tuple[int, ...], agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = from_row(Pool2d, to_row(next(iter(_drawn("pool2d")))))
    monkeypatch.setattr(Pool2d, "output_shape", lambda self, operator: said)
    if agrees:
        check_output(layer, "aten.max_pool2d", torch.empty(real, device=META))
    else:
        with pytest.raises(Unmodelled, match=r"aten.max_pool2d returns \(4,.*its fields as pool2d give"):
            check_output(layer, "aten.max_pool2d", (torch.empty(real, device=META),))


def test_a_call_that_its_fields_cannot_say_is_unmodelled_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Embedding, "output_shape", lambda self, operator: (1, 2))
    found = trace(nn.Embedding(5, 4), (torch.zeros(3, dtype=torch.long),))
    assert found.layers == ()
    (missing,) = found.unmodelled
    assert missing.reason == "aten.embedding returns (3, 4), its fields as embedding give (1, 2)"


def test_attention_with_a_broadcast_query_is_the_products_that_it_is_made_of() -> None:
    query, key = torch.empty(1, 4, 5, 8, device=META), torch.empty(3, 4, 7, 8, device=META)
    found = trace_call(lambda: F.scaled_dot_product_attention(query, key, key))
    # the fields would say a batch of 1; 3 batches of 4 heads, 5 queries, 7 keys, 8 numbers, two products
    assert products(found) == 2 * 2 * 3 * 4 * 5 * 7 * 8
    assert {layer.kind for layer in found.layers if layer.multiplies} == {"matmul"}


def test_a_transposed_convolution_of_volumes_reads_and_writes_what_it_does() -> None:
    model, x = (
        nn.ConvTranspose3d(8, 4, 3, 2, padding=1, output_padding=1, groups=2),
        torch.zeros(3, 8, 5, 6, 7),
    )
    (layer,) = trace(model, (x,)).layers
    assert isinstance(layer, Conv3d) and layer.transposed
    assert layer.made == tuple(model(x).shape)
    # weights [8, 4 / 2, 3, 3, 3], biases of the 4 channels that come out
    assert layer.bytes() == (4 * x.numel(), 4 * (8 * 2 * 27 + 4), 4 * model(x).numel())
    assert layer.parameters() == sum(p.numel() for p in model.parameters())
    assert trace_call(layer.build(META)).layers == (layer,)
    assert layer.build(CPU)().shape == model(x).shape
    alike = from_row(Conv3d, {**to_row(layer), "transposed": False})
    assert alike.bytes() == (layer.bytes().output, 4 * (8 * 2 * 27 + 8), layer.bytes().input)
    assert alike.flops() == layer.flops()


def test_bags_write_as_many_rows_as_there_are_bags() -> None:
    model = nn.EmbeddingBag(1000, 16, mode="sum")
    for mode, bags in ((False, 3), (True, 2)):  # the last offset is the end, or it begins a bag
        model.include_last_offset = mode
        found = trace(model, (torch.zeros(40, dtype=torch.long), torch.tensor([0, 10, 40 if mode else 20])))
        (layer,) = found.layers
        assert layer == Embedding(tokens=40, vocabulary=1000, width=16, bags=bags)
        # 40 rows of 16 are added up
        assert (layer.flops(), layer.bytes()) == (640, (320, 2560, 64 * bags))
        assert trace_call(layer.build(META)).layers == (layer,)


# ---- packed sequences ----

LENGTHS = (20, 7, 3)


def packed() -> PackedSequence:
    return pack_sequence([torch.zeros(length, 5) for length in LENGTHS])


def of_recurrent(found: Trace) -> Recurrent:
    (layer,) = (layer for layer in found.layers if isinstance(layer, Recurrent))
    return layer


class Padded(nn.Module):
    """Packs, runs and pads again."""

    def __init__(self, kind: Callable[..., nn.Module], first: bool) -> None:
        super().__init__()
        self.first, self.inner = first, kind(5, 7, batch_first=first)

    def forward(self, x: Tensor, lengths: Any) -> Tensor:
        """As long as the longest."""
        given = pack_padded_sequence(x, lengths, batch_first=self.first, enforce_sorted=False)
        output, _ = self.inner(given)
        return pad_packed_sequence(output, batch_first=self.first)[0]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (nn.LSTM, {}),
        (nn.GRU, {}),
        (nn.RNN, {"nonlinearity": "relu"}),
        (nn.LSTM, {"num_layers": 3, "bidirectional": True, "bias": False}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
    ],
    ids=str,
)
def test_a_packed_sequence_is_as_much_work_as_it_has_steps(
    kind: type[nn.RNNBase], settings: dict[str, Any]
) -> None:
    model = kind(5, 7, **settings)
    found = trace(model, (packed(),))
    layer = of_recurrent(found)
    # 20 + 7 + 3 = 30 steps, at each of which every number of every matrix is multiplied and added once
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert layer.flops() == 2 * 30 * weights
    assert (layer.batch, layer.steps, layer.packed_steps, layer.weights) == (3, 20, 30, weights)
    output, _ = model(packed())
    assert layer.bytes() == (4 * 30 * 5, 4 * weights, 4 * output.data.numel())
    assert layer.output_shape("aten.lstm") == tuple(output.data.shape)
    assert sum(part.flops() for part in backward_of(layer)) == 2 * layer.flops()
    # the result [30, outputs] is a tensor of the run
    assert 4 * output.data.numel() in [
        s.bytes for s in found.storages if s.death is None and s.part == "activations"
    ]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("lengths", [[7, 20, 3], (torch.tensor([7, 20, 3]))], ids=["list", "tensor"])
def test_what_is_packed_inside_counts_its_steps_in_any_order(lengths: Any, first: bool) -> None:
    model = Padded(nn.GRU, first)
    found = trace(model, (torch.zeros(3, 20, 5) if first else torch.zeros(20, 3, 5), lengths))
    assert products(found) == 2 * 30 * 3 * 7 * (5 + 7)
    assert found.unmodelled == ()


def test_sequences_of_one_length_are_those_that_are_not_packed() -> None:
    model = nn.LSTM(5, 7, 2)
    alike = of_recurrent(trace(model, (pack_padded_sequence(torch.zeros(6, 4, 5), torch.tensor([6] * 4)),)))
    assert alike == of_recurrent(trace(model, (torch.zeros(6, 4, 5),)))
    assert alike.packed_steps == 0


def test_a_packed_training_step_takes_twice_the_products_backward() -> None:
    found = neuralpower.profile(nn.LSTM(5, 7), (packed(),), phase="training", repeat=1, warmup=1)
    once = 2 * 30 * 4 * 7 * (5 + 7)
    assert [row.flops for row in found.rows if row.kind == "recurrent"] == [once, 2 * once]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    "more", [{"packed_steps": 30}, {"proj_size": 4}, {"packed_steps": 23, "proj_size": 4}]
)
def test_a_packed_layer_is_built_as_it_was_read(more: dict[str, int]) -> None:
    layer = Recurrent(
        function="lstm",
        batch=4,
        steps=20,
        input_size=5,
        hidden_size=7,
        num_layers=2,
        bidirectional=True,
        **more,
    )
    assert from_row(Recurrent, to_row(layer)) == layer
    assert of_recurrent(trace_call(layer.build(META))) == layer
    output, _ = layer.build(CPU)()
    output = output.data if isinstance(output, PackedSequence) else output
    assert output.numel() * 4 == layer.bytes().output


@pytest.mark.parametrize("steps", [22, 81])
def test_packed_steps_that_cannot_be_are_refused(steps: int) -> None:
    row = {"function": "gru", "batch": 4, "steps": 20, "input_size": 5, "hidden_size": 7, "num_layers": 1}
    from_row(Recurrent, {**row, "bidirectional": False, "packed_steps": 23})
    with pytest.raises(DatasetError, match="packed steps must be enough"):
        from_row(Recurrent, {**row, "bidirectional": False, "packed_steps": steps})


# ---- products by other names ----


def filled(*sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(size) for size in sizes)


@pytest.mark.parametrize(
    ("function", "sizes", "flops"),
    [
        # for each of 5 outputs [2, 3] by [3, 4], then 2 rows of 4 by the others: 2 * 5 * (2 * 3 * 4 + 2 * 4)
        (F.bilinear, ((2, 3), (2, 4), (5, 3, 4), (5,)), 320),
        (F.bilinear, ((2, 3), (2, 4), (5, 3, 4)), 320),
        (F.bilinear, ((3,), (4,), (5, 3, 4)), 160),
        (F.bilinear, ((6, 2, 7), (6, 2, 9), (1, 7, 9)), 2 * 12 * (7 + 1) * 9),
        # a column by a row, each number added to one that is there
        (torch.addr, ((3, 4), (3,), (4,)), 2 * 12),
        (torch.addmv, ((3,), (3, 4), (4,)), 2 * 12),
        (torch.mv, ((3, 4), (4,)), 2 * 12),
        (torch.dot, ((4,), (4,)), 8),
        (torch.vdot, ((4,), (4,)), 8),
        (torch.inner, ((3, 4), (5, 4)), 2 * 3 * 4 * 5),
        (torch.baddbmm, ((2, 3, 5), (2, 3, 4), (2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (torch.baddbmm, ((1, 1, 5), (2, 3, 4), (2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (torch.addbmm, ((3, 5), (2, 3, 4), (2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (torch.addmm, ((3, 5), (3, 4), (4, 5)), 2 * 3 * 4 * 5),
        # ((a b) c) takes 3 * 4 * 5 + 3 * 5 * 6 multiply-adds, (a (b c)) more
        (lambda *m: torch.linalg.multi_dot(m), ((3, 4), (4, 5), (5, 6)), 2 * (60 + 90)),
        (lambda a, b: torch.tensordot(a, b, dims=2), ((2, 3, 4), (3, 4, 5)), 2 * 2 * 12 * 5),
        (lambda a, w, b: torch.einsum("bi,oij,bj->bo", a, w, b), ((2, 3), (5, 3, 4), (2, 4)), 320),
        # 50 rows of 3 numbers and two for their squares, by 60
        (torch.cdist, ((50, 3), (60, 3)), 2 * 50 * 60 * 5),
        # 10 places of 2 samples, 3 taps of 3 * 4 channels, a place of padding on both sides
        (lambda x, w, b: torch.conv_tbc(x, w, b, 1), ((10, 2, 3), (3, 3, 4), (4,)), 2 * 10 * 2 * 3 * 12),
        (lambda x, w, b: torch.conv_tbc(x, w, b), ((10, 2, 3), (3, 3, 4), (4,)), 2 * 8 * 2 * 3 * 12),
        # no products: elements by elements
        (torch.kron, ((2, 3), (4, 5)), 0),
        (torch.outer, ((3,), (4,)), 0),
    ],
)
def test_products_by_other_names_take_what_they_multiply_and_add(
    function: Callable[..., Tensor], sizes: tuple[tuple[int, ...], ...], flops: int
) -> None:
    found = trace(Function(function), filled(*sizes))
    assert products(found) == flops
    assert found.unmodelled == ()


@pytest.mark.parametrize(("function", "flops"), [(torch.kron, 120), (torch.outer, 6)])
def test_outer_products_multiply_each_pair_once(function: Callable[..., Tensor], flops: int) -> None:
    sizes = ((2, 3), (4, 5)) if function is torch.kron else ((2,), (3,))
    assert trace(Function(function), filled(*sizes)).flops == flops


def test_a_bilinear_bias_is_an_addition_of_its_own() -> None:
    found = trace(nn.Bilinear(3, 4, 5), filled((2, 3), (2, 4)))
    # 320 of products, 2 * 5 numbers get a bias
    assert [(call.layer.kind, call.layer.flops()) for call in found.calls] == [
        ("matmul", 320),
        ("elementwise", 10),
    ]


def test_other_trilinear_products_are_named() -> None:
    x, weight, y = _trilinear()
    found = trace_call(lambda: torch._trilinear(x, weight, y, [1, 3], [0], [1, 2], [3]))
    assert [missing.reason for missing in found.unmodelled] == [
        "aten._trilinear over other axes than a bilinear layer has"
    ]


def _trilinear() -> tuple[Tensor, ...]:
    return tuple(torch.empty(size, device=META) for size in ((2, 3), (5, 3, 4), (2, 4)))


# ---- requested gradients ----


def backward(model: nn.Module, *args: Any, knows: bool = False) -> list[Task]:
    """The tasks of the model's own backward pass, without those of a loss."""
    found = trace(model, args, training=True, loss=default_loss)
    return [task for task in backward_tasks(found, lambda kind, phase: knows) if task.path != "(loss)"]


def done(tasks: list[Task]) -> tuple[float, float]:
    """FLOP of products, and of everything else."""
    every = [(task.layer.multiplies, task.flops_and_bytes()[0]) for task in tasks]
    return sum(flops for product, flops in every if product), sum(
        flops for product, flops in every if not product
    )


def frozen(module: nn.Module, *names: str) -> nn.Module:
    """The module, in which these parameters ask for no gradient."""
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def asking(*sizes: int) -> Tensor:
    return torch.zeros(sizes, requires_grad=True)


def counted_backward(model: nn.Module, *args: Tensor) -> int:
    """FLOP of a real backward pass as torch.utils.flop_counter has them."""
    loss = default_loss(model(*args))
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    return int(counter.get_total_flops())


LINEAR = 2 * 4 * 6 * 5  # of 4 rows, 6 inputs, 5 outputs
IMAGE = 2 * 2 * 36 * 9 * 3 * 4  # of 2 images of 6 x 6 positions, 9 taps of 3 * 4 channels
ROW = 2 * 2 * 8 * 3 * 3 * 4  # of 2 rows of 8 positions, 3 taps of 3 * 4 channels


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("model", "x", "multiplied", "rest"),
    [
        # a product for each of the two factors that asks; a bias's gradient adds up all of the output's
        (nn.Linear(6, 5), torch.zeros(4, 6), LINEAR, 4 * 5),
        (nn.Linear(6, 5), asking(4, 6), 2 * LINEAR, 4 * 5),
        (nn.Linear(6, 5, bias=False), torch.zeros(4, 6), LINEAR, 0),
        (frozen(nn.Linear(6, 5), "weight"), torch.zeros(4, 6), 0, 4 * 5),  # BitFit: the bias alone
        (frozen(nn.Linear(6, 5), "weight"), asking(4, 6), LINEAR, 4 * 5),
        (frozen(nn.Linear(6, 5), "weight", "bias"), asking(4, 6), LINEAR, 0),
        (frozen(nn.Linear(6, 5), "bias"), torch.zeros(4, 6), LINEAR, 0),
        (nn.Conv2d(3, 4, 3), torch.zeros(2, 3, 8, 8), IMAGE, 2 * 36 * 4),
        (nn.Conv2d(3, 4, 3), asking(2, 3, 8, 8), 2 * IMAGE, 2 * 36 * 4),
        (frozen(nn.Conv2d(3, 4, 3), "weight"), torch.zeros(2, 3, 8, 8), 0, 2 * 36 * 4),
        (frozen(nn.Conv2d(3, 4, 3), "weight"), asking(2, 3, 8, 8), IMAGE, 2 * 36 * 4),
        (frozen(nn.Conv2d(3, 4, 3), "bias"), torch.zeros(2, 3, 8, 8), IMAGE, 0),
        (nn.Conv1d(3, 4, 3), torch.zeros(2, 3, 10), ROW, 2 * 8 * 4),
        (frozen(nn.Conv1d(3, 4, 3), "weight", "bias"), asking(2, 3, 10), ROW, 0),
    ],
)
def test_each_gradient_is_made_where_it_is_asked_for(
    model: nn.Module, x: Tensor, multiplied: int, rest: int, known: bool
) -> None:
    tasks = backward(model, x, knows=known)
    if known and multiplied:  # one task, of a pass that was measured as a whole
        (task,) = tasks
        assert task.flops_and_bytes()[0] == multiplied + rest
        assert task.share == multiplied / (2 * task.layer.flops())
    else:
        assert done(tasks) == (multiplied, rest)
    if not isinstance(model, nn.Conv1d) or x.requires_grad:
        assert counted_backward(model, x) == multiplied


class Frozen(nn.Module):
    """A product with one side that asks, and one that does not."""

    def __init__(self, left: bool) -> None:
        super().__init__()
        self.left = left
        self.weight = nn.Parameter(torch.zeros(2, 3, 4) if left else torch.zeros(2, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        """[2, 3, 5]."""
        return torch.bmm(self.weight, x) if self.left else torch.bmm(x, self.weight)


@pytest.mark.parametrize("left", [False, True])
def test_a_product_with_one_frozen_side_has_one_product_back(left: bool) -> None:
    model, x = Frozen(left), torch.zeros(2, 4, 5) if left else torch.zeros(2, 3, 4)
    once = 2 * 2 * 3 * 4 * 5
    tasks = backward(model, x)
    assert done(tasks) == (once, 0) and counted_backward(model, x) == once
    (task,) = tasks
    # grad A [3, 4] = grad C [3, 5] B^T; grad B [4, 5] = A^T [4, 3] grad C
    sides = (3, 5, 4) if left else (4, 3, 5)
    assert isinstance(task.layer, Matmul)
    assert (task.layer.rows, task.layer.inner, task.layer.columns) == sides
    x.requires_grad_()
    assert done(backward(model, x)) == (2 * once, 0)


def test_a_norm_without_trained_scale_makes_the_gradient_of_its_input_alone() -> None:
    def moved(model: nn.Module, x: Tensor) -> list[float]:
        return [
            sum(task.flops_and_bytes()[1] for task in backward(model, x, knows=way)) for way in (False, True)
        ]

    x, elements = asking(4, 6), 4 * 4 * 6
    # gradient and input are read, a gradient written, three of 24 numbers; scale and shift read both again
    assert moved(nn.LayerNorm(6, elementwise_affine=False), x) == [3 * elements] * 2
    assert moved(nn.LayerNorm(6), x.detach()) == [2 * elements + 2 * 4 * 6] * 2
    assert moved(nn.LayerNorm(6), x) == [5 * elements + 2 * 4 * 6] * 2
    assert moved(frozen(nn.BatchNorm1d(6), "weight", "bias"), x) == [3 * elements] * 2
    assert moved(frozen(nn.GroupNorm(2, 6), "weight"), x) == [5 * elements + 2 * 4 * 6] * 2
    assert moved(frozen(nn.RMSNorm(6), "weight"), x) == [3 * elements] * 2


def test_an_embedding_has_a_gradient_of_its_table_alone() -> None:
    tokens = torch.zeros(7, dtype=torch.long)
    # zeros for 9 * 4 numbers, then 7 rows are added
    assert [task.layer.kind for task in backward(nn.Embedding(9, 4), tokens)] == ["movement", "embedding"]
    head = nn.Sequential(frozen(nn.Embedding(9, 4), "weight"), nn.Linear(4, 3))
    assert [task.path for task in backward(head, tokens)] == ["1", "1"]  # weight and bias of the head


class Adapted(nn.Module):
    """A frozen product and a trained low-rank one (LoRA)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = frozen(nn.Linear(6, 5), "weight", "bias")
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[4, 5]."""
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def test_a_frozen_base_passes_gradients_to_its_input_alone() -> None:
    both = nn.Sequential(Adapted(), nn.Linear(5, 6, bias=False), Adapted())
    frozen(both, "1.weight")
    x = torch.zeros(4, 6)
    tasks = backward(both, x)
    down, up, base = 2 * 4 * 6 * 2, 2 * 4 * 2 * 5, 2 * 4 * 6 * 5
    # second block: input and weights of down and up, input of base; then the input of the frozen head between
    # them; first block: weights of both, the input of up
    products_back = 2 * (down + up) + base + base + down + 2 * up
    assert done(tasks)[0] == products_back == counted_backward(both, x)
    assert not [task for task in tasks if task.path == "0.base"]


def test_a_frozen_recurrent_layer_goes_back_through_its_steps_alone() -> None:
    once = 2 * 5 * 2 * 4 * 7 * (3 + 7)  # 5 steps of 2 sequences
    lstm = nn.LSTM(3, 7, bias=False)
    assert done(backward(lstm, torch.zeros(5, 2, 3)))[0] == 2 * once
    assert done(backward(frozen(lstm, "weight_ih_l0", "weight_hh_l0"), asking(5, 2, 3)))[0] == once


class Shifted(nn.Module):
    """What is broadcast is added or multiplied."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], trained: bool) -> None:
        super().__init__()
        self.function, self.one = function, nn.Parameter(torch.zeros(6), requires_grad=trained)

    def forward(self, x: Tensor) -> Tensor:
        """[4, 6]."""
        return self.function(x, self.one)


@pytest.mark.parametrize(
    ("function", "trained", "x", "flops"),
    [
        # 24 numbers: the gradient of a bias adds all of them up, that of a scale multiplies them first
        (torch.add, True, torch.zeros(4, 6), 24),
        (torch.add, True, asking(4, 6), 24),
        (torch.add, False, asking(4, 6), 0),
        (torch.mul, True, torch.zeros(4, 6), 48),
        (torch.mul, True, asking(4, 6), 72),
        (torch.mul, False, asking(4, 6), 24),
    ],
)
def test_what_is_broadcast_is_summed_where_its_gradient_is_asked_for(
    function: Callable[[Tensor, Tensor], Tensor], trained: bool, x: Tensor, flops: int
) -> None:
    for known in (False, True):
        assert done(backward(Shifted(function, trained), x, knows=known)) == (0, flops)


@pytest.mark.parametrize("convolution", [nn.Conv2d, nn.ConvTranspose2d, nn.Conv3d, nn.ConvTranspose3d])
def test_a_convolutions_bias_sums_what_comes_out(convolution: Any) -> None:
    axes = 2 if "2d" in convolution.__name__ else 3
    model, x = frozen(convolution(3, 4, 3, stride=2), "weight"), torch.zeros(2, 3, *[7] * axes)
    assert done(backward(model, x)) == (0, model(x).numel())


def test_each_side_of_a_bilinear_layer_has_a_product_back() -> None:
    model, x, y = nn.Bilinear(3, 4, 5, bias=False), asking(2, 3), asking(2, 4)
    once = 2 * 5 * 2 * 3 * 4
    # torch's profiler shows: x1 a product, and 5 * 2 * 12 numbers scaled; W, 5 * 2 * 3; x2, 5 * 2 * 4
    assert done(backward(model, x, y)) == (3 * once, 120 + 30 + 40)
    assert done(backward(model, x.detach(), y.detach())) == (once, 30)
    assert done(backward(frozen(model, "weight"), x, y.detach())) == (once, 120)


def test_what_is_added_to_a_product_as_a_whole_takes_nothing_back() -> None:
    added, left, right = nn.Linear(5, 5, bias=False), torch.zeros(4, 6), torch.zeros(6, 5)
    model = Function(lambda x: torch.addmm(added(x), left, right))
    model.added = added
    assert [task.layer.kind for task in backward(model, torch.zeros(4, 5))] == [
        "linear"
    ]  # the weights of `added`


def test_a_profile_counts_the_gradients_that_are_asked_for() -> None:
    model, x = nn.Linear(6, 5), torch.zeros(4, 6)
    found = neuralpower.profile(model, x, phase="training", runtime=False, convention="all-ops")
    (row,) = (row for row in found.rows if row.kind == "linear" and row.phase == "backward")
    assert (row.matmul_flops, row.elementwise_flops) == (LINEAR, 20)


@pytest.mark.parametrize("function", ["batch", "batch_training", "group", "instance"])
def test_maps_in_the_channels_last_format_are_timed_as_images(function: str) -> None:
    layer = Norm(function=function, rows=2, width=8, spatial=12, strided=True)
    x = layer.build(torch.device("cpu")).args[0]
    assert x.shape == (2, 8, 3, 4)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.stride(1) == 1
    read = Norm.from_call(
        f"aten.{function.partition('_')[0]}_norm", x, x, training=function == "batch_training"
    )
    assert read == layer


@pytest.mark.parametrize("last", [True, False])
def test_weights_lie_in_the_format_of_their_input_off_a_cpu(last: bool) -> None:
    sizes = {"in": 6, "kernel": 3, "stride": 1, "padding": 1, "dilation": 1}
    fields = Conv2d.fields_of({name: (size, size) for name, size in sizes.items()})
    layer = Conv2d(batch=2, in_channels=4, out_channels=8, groups=1, bias=False, channels_last=last, **fields)
    x, weight = layer.build(torch.device("meta")).args[:2]
    for tensor in (x, weight):
        assert tensor.is_contiguous(memory_format=torch.channels_last) == last
        assert tensor.is_contiguous() != last
    assert layer.build(torch.device("cpu")).args[1].is_contiguous()
