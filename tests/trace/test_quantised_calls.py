"""Modules that `torch.ao.quantization` makes do the products of the networks that they were made from."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.nn.quantized as nnq
import torch.ao.nn.quantized.dynamic as nnqd
import torch.ao.quantization as quantization
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import neuralpower
from neuralpower.layers import Layer
from neuralpower.layers.linear import Linear
from neuralpower.trace.lifetimes import WEIGHTS
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace

# torch calls what it has deprecated, and has deprecated quantised tensors as a whole
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
ENGINE = next(
    name for name in ("x86", "fbgemm", "qnnpack") if name in torch.backends.quantized.supported_engines
)


def traced(model: nn.Module, *inputs: Tensor) -> Trace:
    """The trace of a network all of whose operators are known."""
    found = trace(model.eval(), inputs)
    assert [call.operator for call in found.unmodelled] == []
    return found


def products(found: Trace) -> list[Layer]:
    return [call.layer for call in found.calls if call.layer.multiplies]


def flops(found: Trace) -> int:
    return sum(int(layer.flops()) for layer in products(found))


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(64, 32), (8, 64)),
        (nn.Linear(64, 32, bias=False), (2, 4, 64)),
        (nn.LSTM(16, 32, num_layers=2), (5, 4, 16)),
        (nn.LSTM(16, 32, bidirectional=True, batch_first=True), (5, 4, 16)),
        (nn.GRU(16, 32), (5, 4, 16)),
        (nn.LSTMCell(16, 32), (4, 16)),
        (nn.GRUCell(16, 32), (4, 16)),
        (nn.RNNCell(16, 32), (4, 16)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_dynamic_layer_does_as_many_multiply_adds(
    layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    network, x = nn.Sequential(layer), torch.randn(*shape)
    made = quantization.quantize_dynamic(copy.deepcopy(network), {type(layer)}, dtype=dtype)
    assert type(made[0]) is not type(layer)
    (steps,) = {len(products(traced(network, x)))} if not isinstance(layer, nn.RNNCellBase) else (2,)
    assert flops(traced(made, x)) == flops(traced(network, x)) > 0
    assert len(products(traced(made, x))) <= steps


def test_a_dynamic_product_reads_and_writes_float32_and_rounds_it() -> None:
    made = quantization.quantize_dynamic(nn.Sequential(nn.Linear(256, 512)), {nn.Linear})
    (layer,) = products(traced(made, torch.randn(32, 256)))
    shape = {"rows": 32, "in_features": 256, "out_features": 512, "bias": True}
    assert layer == Linear(dtype="int8", output_dtype="float32", quantises=True, **shape)
    # x and y of 4 B, weights of 1 B
    moved = layer.bytes()
    assert (moved.input, moved.output) == (4 * 32 * 256, 4 * 32 * 512)
    assert 256 * 512 <= moved.weights < 2 * 256 * 512


def test_its_time_is_that_of_the_product_not_of_a_launch() -> None:
    network = nn.Sequential(nn.Linear(4096, 4096))
    made = quantization.quantize_dynamic(copy.deepcopy(network), {nn.Linear})
    x, predictor = torch.randn(256, 4096), neuralpower.load("amd-epyc-2c")
    quantised, plain = predictor.predict(made, x), predictor.predict(network, x)
    assert quantised.flops == plain.flops == 2 * 256 * 4096 * 4096
    assert not quantised.unmodelled
    assert quantised.runtime_s.value > 0.05 * plain.runtime_s.value


class Static(nn.Module):
    """A layer between the two ends of what is quantised."""

    def __init__(self, layer: nn.Module, then: nn.Module) -> None:
        super().__init__()
        self.quant, self.layer, self.then = quantization.QuantStub(), layer, then
        self.relu, self.dequant = nn.ReLU(), quantization.DeQuantStub()

    def forward(self, x: Tensor) -> Any:
        return self.dequant(self.relu(self.then(self.layer(self.quant(x)))))


def converted(model: nn.Module, x: Tensor, fused: list[str], trained: bool) -> nn.Module:
    """The network after static quantisation, or after training that is aware of it."""
    torch.backends.quantized.engine = ENGINE
    fuse = quantization.fuse_modules_qat if trained else quantization.fuse_modules
    model = fuse(model.train(trained), [fused]) if fused else model.train(trained)
    of = quantization.get_default_qat_qconfig if trained else quantization.get_default_qconfig
    model.qconfig = of(ENGINE)
    (quantization.prepare_qat if trained else quantization.prepare)(model, inplace=True)
    model(x)
    return quantization.convert(model.eval())


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("layer", "then", "shape"),
    [
        (nn.Linear(64, 32), nn.Identity(), (8, 64)),
        (nn.Conv1d(8, 16, 3, stride=2), nn.Identity(), (2, 8, 32)),
        (nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), (2, 8, 16, 16)),
        (nn.Conv2d(8, 16, 3, groups=4, dilation=2), nn.Identity(), (2, 8, 16, 16)),
        (nn.Conv3d(8, 16, 3), nn.Identity(), (1, 8, 6, 6, 6)),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_static_layer_does_as_many_multiply_adds_in_8_bits(
    layer: nn.Module, then: nn.Module, shape: tuple[int, ...], fused: bool, trained: bool
) -> None:
    network, x = Static(copy.deepcopy(layer), copy.deepcopy(then)), torch.randn(*shape)
    plain = traced(copy.deepcopy(network), x)
    names = [*(["layer"]), *(["then"] if isinstance(then, nn.BatchNorm2d) else []), "relu"]
    found = traced(converted(network, x, names if fused else [], trained), x)
    assert flops(found) == flops(plain) > 0
    assert {one.dtype for one in products(found)} == {"int8"}
    counted = {c.operator: sum(c.layer.bytes()) for c in found.calls if c.layer.kind == "movement"}
    assert counted["aten.quantize_per_tensor"] == 5 * x.numel()  # 4 B in, 1 B out
    if fused:  # nothing but the two casts besides it
        assert [c.layer.kind for c in found.calls].count("movement") == len(found.calls) - 1 == 2


class Quantised(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(torch.quantize_per_tensor(x, 0.1, 128, torch.quint8)).dequantize()


@pytest.mark.parametrize(
    ("layer", "twin", "shape"),
    [
        (nnqd.Conv1d, nn.Conv1d, (2, 4, 16)),
        (nnqd.Conv2d, nn.Conv2d, (2, 4, 16, 16)),
        (nnqd.Conv3d, nn.Conv3d, (1, 4, 6, 6, 6)),
        (nnqd.ConvTranspose1d, nn.ConvTranspose1d, (2, 4, 8)),
        (nnqd.ConvTranspose2d, nn.ConvTranspose2d, (2, 4, 8, 8)),
        (nnq.ConvTranspose1d, nn.ConvTranspose1d, (2, 4, 8)),
        (nnq.ConvTranspose2d, nn.ConvTranspose2d, (2, 4, 8, 8)),
        (nnq.ConvTranspose3d, nn.ConvTranspose3d, (1, 4, 4, 4, 4)),
    ],
)
def test_convolutions_of_each_sort_are_read_from_their_packed_weights(
    layer: Any, twin: Any, shape: tuple[int, ...]
) -> None:
    made, x = layer(4, 8, 3, stride=2), torch.randn(*shape)
    network = nn.Sequential(made) if layer.__module__.startswith(nnqd.__name__) else Quantised(made)
    assert flops(traced(network, x)) == flops(traced(twin(4, 8, 3, stride=2), x)) > 0


@pytest.mark.parametrize(
    ("function", "kind", "name"),
    [
        (lambda x: torch.ops.quantized.add(x, x, 0.1, 128), "elementwise", "add"),
        (lambda x: torch.ops.quantized.add_relu(x, x, 0.1, 128), "elementwise", "add"),
        (lambda x: torch.ops.quantized.mul(x, x, 0.1, 128), "elementwise", "mul"),
        (lambda x: torch.ops.quantized.mul_scalar(x, 2.0), "elementwise", "mul"),
        (lambda x: torch.ops.quantized.cat([x, x], 1, 0.1, 128), "movement", "cat"),
        (lambda x: torch.ops.quantized.leaky_relu(x, 0.1, False, 0.1, 128), "activation", "leaky_relu"),
        (lambda x: torch.ops.quantized.hardswish(x, 0.1, 128), "activation", "hardswish"),
        (lambda x: torch.ops.quantized.elu(x, 0.1, 128), "activation", "elu"),
        (lambda x: torch.ops.quantized.softmax(x, -1, 0.1, 128), "softmax", None),
        (lambda x: torch.ops.quantized.layer_norm(x, [16], None, None, 1e-5, 0.1, 128), "norm", "layer"),
        (lambda x: torch.ops.quantized.group_norm(x, 2, None, None, 1e-5, 0.1, 128), "norm", "group"),
        (lambda x: torch.ops.quantized.matmul(x, x, 0.1, 128), "matmul", None),
        (torch.relu, "activation", "relu"),
        (torch.sigmoid, "activation", "sigmoid"),
        (lambda x: F.max_pool2d(x, 2), "pool2d", "max"),
        (lambda x: F.adaptive_avg_pool2d(x, 1), "pool2d", "adaptive_avg"),
    ],
)
def test_operators_of_quantised_tensors_are_those_of_plain_ones_in_a_byte(
    function: Callable[[Tensor], Tensor], kind: str, name: str | None
) -> None:
    _, layer, _ = (call.layer for call in traced(Quantised(function), torch.randn(2, 8, 16, 16)).calls)
    assert (layer.kind, getattr(layer, "function", None)) == (kind, name)
    assert layer.dtype in ("int8", "uint8")
    assert layer.flops() >= (0 if name == "cat" else 2 * 8)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_tables_of_bytes_are_looked_up(kind: Any) -> None:
    network = nn.Sequential(kind(1000, 64)).eval()
    network[0].qconfig = quantization.float_qparams_weight_only_qconfig  # type: ignore[assignment]
    made, places = quantization.convert(quantization.prepare(network)), torch.randint(0, 1000, (8, 5))
    alike = (traced(one, places).layers for one in (made, nn.Sequential(kind(1000, 64))))
    one, other = ([layer for layer in layers if layer.kind == "embedding"] for layers in alike)
    assert one == other
    assert len(one) == 1


def test_a_network_that_is_quantised_as_a_graph() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 16)

        def forward(self, x: Tensor) -> Any:
            y = torch.relu(self.norm(self.conv(x)))
            y = F.avg_pool2d(torch.cat([y, y], 1)[:, :8] + y, 2)
            return torch.sigmoid(self.head(y.mean((2, 3))) * 2)

    network, x = Network().eval(), torch.randn(2, 3, 16, 16)
    prepared = prepare_fx(copy.deepcopy(network), quantization.get_default_qconfig_mapping(ENGINE), (x,))
    prepared(x)
    assert flops(traced(convert_fx(prepared), x)) == flops(traced(network, x))
    assert flops(traced(prepared, x)) == flops(traced(network, x))  # with its observers


def test_a_network_that_learns_to_be_quantised_is_followed() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).train()
    network.qconfig = quantization.get_default_qat_qconfig(ENGINE)
    x = torch.randn(2, 3, 16, 16)
    prepared = quantization.prepare_qat(network, inplace=False)
    assert flops(traced(prepared, x)) == 2 * 2 * 8 * 14 * 14 * 3 * 9


def embeddings(four_bits: bool) -> nn.Module:
    """A bag of 100 x 16 in rows of 8 or 4 bits."""
    own = quantization.float_qparams_weight_only_qconfig
    network: Any = nn.Sequential(nn.EmbeddingBag(100, 16, mode="sum"))
    network.qconfig = None
    network[0].qconfig = quantization.float_qparams_weight_only_qconfig_4bit if four_bits else own
    quantization.prepare(network, inplace=True)
    quantization.convert(network, inplace=True)
    return network


def dynamic(layer: nn.Module, dtype: torch.dtype = torch.qint8) -> nn.Module:
    return quantization.quantize_dynamic(nn.Sequential(layer), {type(layer)}, dtype=dtype)


IDS = torch.zeros(4, 3, dtype=torch.int64)
# Bytes: weights of 1 B and a scale with a zero point of 4 + 4 B, biases of 4 B; in float16 weights of 2 B.
PACKED = {
    "linear": (lambda: dynamic(nn.Linear(64, 32)), torch.zeros(8, 64), 64 * 32 + 8 + 4 * 32),
    "no bias": (lambda: dynamic(nn.Linear(64, 32, bias=False)), torch.zeros(8, 64), 64 * 32 + 8),
    "float16": (lambda: dynamic(nn.Linear(64, 32), torch.float16), torch.zeros(8, 64), 2 * 64 * 32 + 4 * 32),
    "lstm": (
        lambda: dynamic(nn.LSTM(16, 32)),
        torch.zeros(5, 4, 16),
        128 * 16 + 8 + 128 * 32 + 8 + 2 * 4 * 128,
    ),
    "gru, float16": (
        lambda: dynamic(nn.GRU(16, 32), torch.float16),
        torch.zeros(5, 4, 16),
        2 * (96 * 16 + 96 * 32) + 2 * 4 * 96,
    ),
    "gru cell": (
        lambda: dynamic(nn.GRUCell(16, 32)),
        torch.zeros(4, 16),
        96 * 16 + 8 + 96 * 32 + 8 + 2 * 4 * 96,
    ),
    "bags": (lambda: embeddings(False), IDS, 100 * (16 + 8)),
    "bags of 4 bits": (lambda: embeddings(True), IDS, 100 * (16 // 2 + 4)),
    # each channel has its scale and its zero point
    "static": (
        lambda: converted(Static(nn.Linear(64, 32), nn.Identity()), torch.zeros(8, 64), [], False),
        torch.zeros(8, 64),
        64 * 32 + 32 * 8 + 4 * 32,
    ),
    "convolution": (
        lambda: converted(Static(nn.Conv2d(8, 16, 3), nn.Identity()), torch.zeros(2, 8, 16, 16), [], False),
        torch.zeros(2, 8, 16, 16),
        16 * 8 * 9 + 16 * 8 + 4 * 16,
    ),
    "convolution of a line": (
        lambda: converted(Static(nn.Conv1d(8, 16, 3), nn.Identity()), torch.zeros(2, 8, 32), [], False),
        torch.zeros(2, 8, 32),
        16 * 8 * 3 + 16 * 8 + 4 * 16,
    ),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_weights_are_parameters_and_in_memory(name: str) -> None:
    make, x, size = PACKED[name]
    made = make()
    found = traced(made, x)
    assert found.parameter_bytes == size
    assert sum(one.bytes for one in found.storages if one.part == WEIGHTS) >= size
    memory = neuralpower.load("amd-epyc-2c").predict(made, x).memory
    # buffers: a scale of float32 and a zero point of int64 where numbers are turned into 8 bits
    assert memory is not None
    assert memory.weights_bytes in (size, size + 12)


def test_a_quantised_network_has_the_parameters_that_it_was_made_from() -> None:
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LSTM(64, 32, bidirectional=True))
    made = quantization.quantize_dynamic(copy.deepcopy(network), {nn.Linear, nn.LSTM})
    x = torch.zeros(5, 4, 64)
    assert traced(made, x).parameters == sum(p.numel() for p in network.parameters())
    twice = nn.Sequential(made[0], nn.ReLU(), made[0])  # a shared layer counts once
    assert traced(twice, x).parameters == 64 * 64 + 64
