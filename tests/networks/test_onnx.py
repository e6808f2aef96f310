"""ONNX files: exported networks cost what the networks cost, and a stranger's file is refused in a line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neuralpower
from neuralpower.errors import InputError, ModelError
from neuralpower.networks.onnx_files.reading import MOST_OPSET
from neuralpower.networks.sources import resolve
from neuralpower.prediction.prediction import Prediction
from neuralpower.trace.tracer import trace

onnx = pytest.importorskip("onnx")
helper = onnx.helper


class Attending(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.heads = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        n, steps, width = x.shape
        parts = self.qkv(self.first(x)).view(n, steps, 3, self.heads, width // self.heads)
        y = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4).unbind(0))
        x = x + self.out(y.transpose(1, 2).reshape(n, steps, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Recurring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(16, 32, batch_first=True, bidirectional=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x)[0])


def convolving() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU6(), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Hardswish()),
        *(nn.Conv2d(16, 32, 1), nn.SiLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(32, 10),
    )


def growing() -> nn.Module:
    return nn.Sequential(
        *(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.InstanceNorm2d(8, affine=True),
            nn.LeakyReLU(),
            nn.Upsample(scale_factor=2),
        ),
        *(nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.PixelShuffle(2), nn.Softmax(1)),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (Attending, (2, 32, 64)),
    "convolutions": (convolving, (2, 3, 32, 32)),
    "gru": (Recurring, (2, 20, 16)),
    "images": (growing, (1, 3, 16, 16)),
}


def exported(name: str, folder: Path, opset: int, dynamic: Any = None) -> tuple[nn.Module, Tensor, Path]:
    """(a network with different numbers everywhere, an input, the file)."""
    pytest.importorskip("onnxscript")
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(shape)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    file = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            torch.onnx.export(
                *(model, (x,), file),
                opset_version=opset,
                dynamo=True,
                verbose=False,
                external_data=False,
                dynamic_shapes=dynamic,
            )
        finally:
            logging.disable(logging.NOTSET)
    return model, x, file


def flops(prediction: Prediction) -> int:
    return sum(row.flops for row in prediction.rows)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("opset", [18, 20])
def test_an_exported_network_costs_what_the_network_costs(tmp_path: Path, name: str, opset: int) -> None:
    model, x, file = exported(name, tmp_path, opset)
    of_module = neuralpower.predict(model, (x,), device="h100", run="eager")
    of_file = neuralpower.predict(str(file), device="h100", run="eager", batch_size=x.shape[0])
    assert flops(of_file) == pytest.approx(flops(of_module), rel=0.01)
    assert of_file.parameters == of_module.parameters
    assert not of_file.unmodelled


def test_vectors_that_an_exporter_has_joined_are_parameters_of_their_own(tmp_path: Path) -> None:
    helper, array = onnx.helper, onnx.numpy_helper.from_array
    held = [array(np.eye(8, dtype="float32"), "w"), array(np.zeros(8, dtype="float32"), "b")]
    nodes = [helper.make_node("Gemm", [a, "w", "b"], [b]) for a, b in ("xy", "yz")]
    x, z = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 8]) for name in ("x", "z"))
    graph, opset = helper.make_graph(nodes, "two", [x], [z], held), helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), tmp_path / "two.onnx")
    found = neuralpower.predict(str(tmp_path / "two.onnx"), device="h100")
    assert found.parameters == 64 + 2 * 8, "the matrix is used twice, as one"


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("both", [False, True])
def test_recurrent_layers_one_after_the_other_are_one_call(kind: Any, both: bool, tmp_path: Path) -> None:
    model, x, file = kind(8, 16, num_layers=3, bidirectional=both), torch.randn(5, 2, 8), tmp_path / "x.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        logging.disable(logging.CRITICAL)
        try:
            torch.onnx.export(model.eval(), (x,), file, opset_version=18, dynamo=True, verbose=False)
        finally:
            logging.disable(logging.NOTSET)
    of_module = neuralpower.predict(model, (x,), device="h100", run="compile")
    of_file = neuralpower.predict(str(file), device="h100", run="compile")
    assert of_file.runtime_s.value == pytest.approx(of_module.runtime_s.value, rel=0.05)
    assert [row.layer for row in of_file.rows if row.kind == "recurrent"] == [
        row.layer for row in of_module.rows if row.kind == "recurrent"
    ]


@pytest.mark.parametrize("name", ["attention", "images", "convolutions"])
def test_the_file_computes_what_the_network_computes(tmp_path: Path, name: str) -> None:
    model, x, file = exported(name, tmp_path, 18)
    module = resolve(str(file)).build("cpu")
    held = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(file).graph.initializer}
    for weight, own in module._names.items():  # type: ignore[operator, union-attr]  # of OnnxModule
        getattr(module, str(own)).data.copy_(torch.from_numpy(held[weight].copy()))
    with torch.inference_mode():
        torch.testing.assert_close(module(x), model(x), rtol=1e-3, atol=1e-3)


def test_sizes_that_vary_are_given_by_name(tmp_path: Path) -> None:
    dynamic = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("steps")},)
    _, _, file = exported("attention", tmp_path, 18, dynamic)
    with pytest.raises(ModelError, match="sizes steps of its inputs vary; add --dim steps=N"):
        neuralpower.predict(str(file), device="h100")
    given = neuralpower.predict(str(file), device="h100", dim="batch=4,steps=16")
    shaped = neuralpower.predict(str(file), device="h100", batch_size=4, input_shape=(16, 64))
    assert flops(given) == flops(shaped) > 0
    with pytest.raises(ModelError, match="no size of an input is called width"):
        neuralpower.predict(str(file), device="h100", dim="width=4")
    with pytest.raises(InputError, match="is exported for 64"):
        neuralpower.predict(str(file), device="h100", input_shape=(16, 65))
    with pytest.raises(InputError, match="names sizes of an ONNX file"):
        neuralpower.predict("zoo:resnet18", device="h100", dim="batch=4")


def test_fit_leaves_a_batch_that_the_file_fixes(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 8])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 8])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "fixed", [x], [y])
    file = tmp_path / "fixed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), file)
    found = neuralpower.fit(str(file), device="h100")
    assert found.fits and found.largest_batch == 4
    assert any("fixes its batch" in note for note in found.notes)


def test_a_fixed_first_size_of_another_input_is_no_batch(tmp_path: Path) -> None:
    edges = helper.make_tensor_value_info("edges", onnx.TensorProto.INT64, [2, 30])
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [7, 8])
    graph = helper.make_graph([helper.make_node("Gather", ["x", "edges"], ["y"])], "net", [x, edges], [Y])
    file = tmp_path / "edges.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), file)
    assert neuralpower.predict(str(file), device="h100").runtime_s.value > 0


X = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 8])
Y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)


def made(folder: Path, nodes: list[Any], weights: list[Any] = (), opset: int = 18, **more: Any) -> Path:  # type: ignore[assignment]
    graph = helper.make_graph(nodes, "made", more.pop("inputs", [X]), [Y], list(weights))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)]
    file = folder / "made.onnx"
    file.write_bytes(helper.make_model(graph, opset_imports=imports, **more).SerializeToString())
    return file


def weight(name: str, *sizes: int) -> Any:
    return onnx.numpy_helper.from_array(np.ones(sizes, np.float32), name)


def node(op: str, inputs: str, output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def followed(file: Path, batch: int = 4) -> Any:
    source = resolve(str(file))
    module = source.build()
    from neuralpower.networks.inputs.size_limits import InputRequest

    return trace(module, source.inputs(module, InputRequest(batch), "meta").args)


def test_steps_that_an_exporter_unrolled_are_one_recurrent_layer(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", 1, [3, 4, 16])  # steps first
    nodes = [node("MatMul", "x w", "a"), node("Add", "a c", "p")]
    for step in range(3):
        before = f"l{step}" if step else "first"
        nodes += (
            [node("MatMul", f"t{step - 1} r", f"m{step}"), node("Add", f"m{step} b", before)] if step else []
        )
        nodes += [
            node("Slice", f"p {step} {step + 1} 0", f"s{step}"),
            node("Squeeze", f"s{step} 0", f"q{step}"),
        ]
        nodes += [node("Add", f"{before} q{step}", f"d{step}"), node("Tanh", f"d{step}", f"t{step}")]
    nodes += [node("Concat", "t0 t1 t2", "y", axis=0)]
    numbers = [known(str(one), [one]) for one in range(4)]
    weights = [weight("w", 16, 32), weight("c", 32), weight("r", 32, 32), weight("b", 32)]
    file = made(tmp_path, nodes, [*numbers, *weights, weight("first", 1, 4, 32)], inputs=[x])
    found = followed(file, 3)
    module = torch.nn.RNN(16, 32)
    own = trace(module, (torch.zeros(3, 4, 16),))
    assert [call.layer for call in found.calls] == [call.layer for call in own.calls]
    assert found.parameters == sum(one.numel() for one in module.parameters())


def test_suppression_of_boxes_says_that_it_keeps_the_most(tmp_path: Path) -> None:
    found = followed(
        made(tmp_path, [node("NonMaxSuppression", "x p m")], [known("m", [10])], 11, inputs=FOUND), 1
    )
    assert any("the most boxes" in text for text in found.assumptions)


def test_sizes_and_weights_that_are_computed_cost_nothing(tmp_path: Path) -> None:
    flat = onnx.numpy_helper.from_array(np.array([-1], np.int64), "flat")
    nodes = [
        node("Shape", "x", "s"),
        node("Mul", "w half", "w2"),
        node("MatMul", "x w2", "m"),
        node("Reshape", "m flat", "r"),
        node("Reshape", "r s", "y"),
    ]
    found = followed(made(tmp_path, nodes, [weight("w", 8, 8), weight("half", 1), flat]))
    assert [layer.kind for layer in found.layers] == ["linear"]
    assert found.flops == 2 * 4 * 8 * 8
    assert found.parameters == 64


def test_of_two_branches_the_costlier_is_taken(tmp_path: Path) -> None:
    def branch(name: str, made_by: Any) -> Any:
        return helper.make_graph([made_by], name, [], [helper.make_tensor_value_info("b", 1, None)])

    nodes = [
        node("ReduceMax", "x", "most", keepdims=0),
        node("Greater", "most zero", "c"),
        node(
            "If",
            "c",
            then_branch=branch("then", node("Relu", "x", "b")),
            else_branch=branch("else", node("MatMul", "x w", "b")),
        ),
    ]
    zero = onnx.numpy_helper.from_array(np.array(0, np.float32), "zero")
    found = followed(made(tmp_path, nodes, [weight("w", 8, 8), zero]))
    assert "linear" in [layer.kind for layer in found.layers]
    assert any("branches" in text for text in found.assumptions)


def test_a_loop_of_a_known_number_of_turns_is_followed(tmp_path: Path) -> None:
    kinds: Any = ((7, "i", []), (9, "go", []), (1, "h", None))
    inputs = [helper.make_tensor_value_info(name, kind, sizes) for kind, name, sizes in kinds]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("going", 9), ("z", 1))]
    nodes = [node("Identity", "go", "going"), node("MatMul", "h w", "z")]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    turns = onnx.numpy_helper.from_array(np.array(5, np.int64), "turns")
    file = made(
        tmp_path, [node("Loop", "turns  x".replace("  ", " none "), body=body)], [turns, weight("w", 8, 8)]
    )
    model = onnx.load(file)
    model.graph.node[0].input[1] = ""
    file.write_bytes(model.SerializeToString())
    assert followed(file).flops == 5 * 2 * 4 * 8 * 8


def known(name: str, values: Any) -> Any:
    return onnx.numpy_helper.from_array(np.array(values), name)


def integers(*sizes: int) -> Any:
    return known("w", np.ones(sizes, np.int8))


PICTURE = [helper.make_tensor_value_info("x", 2, [1, 8, 16, 16])]
SCALES = [known("s", np.float32(0.1)), known("z", np.uint8(0)), known("t", np.int8(0))]
QUANTISED = "x s z w s t s z"
SAMPLED = [
    helper.make_tensor_value_info(name, 1, sizes)
    for name, sizes in (("x", [1, 8, 16, 16]), ("g", [1, 20, 20, 2]))
]
FOUND = [
    helper.make_tensor_value_info(name, 1, sizes) for name, sizes in (("x", [1, 100, 4]), ("p", [1, 20, 100]))
]
TURNED = [
    helper.make_tensor_value_info("x", 1, [2, 4, 64, 32]),
    helper.make_tensor_value_info("p", 7, [2, 64]),
]
OFFSET = [
    helper.make_tensor_value_info(name, 1, sizes)
    for name, sizes in (("x", [1, 8, 16, 16]), ("o", [1, 18, 16, 16]))
]


@pytest.mark.parametrize(
    ("nodes", "weights", "opset", "inputs", "products"),
    [
        (
            [node("QLinearConv", QUANTISED, pads=[1] * 4)],
            [*SCALES, integers(16, 8, 3, 3)],
            10,
            PICTURE,
            294_912,
        ),
        ([node("ConvInteger", "x w z")], [*SCALES, integers(16, 8, 3, 3)], 10, PICTURE, 225_792),
        ([node("QLinearMatMul", QUANTISED)], [*SCALES, integers(16, 32)], 10, PICTURE, 8 * 16 * 16 * 32),
        ([node("MatMulInteger", "x w")], [integers(16, 32)], 10, PICTURE, 8 * 16 * 16 * 32),
        ([node("GridSample", "x g", mode="bilinear")], [], 16, SAMPLED, 0),
        ([node("GridSample", "x g", mode="linear", padding_mode="border")], [], 20, SAMPLED, 0),
        ([node("NonMaxSuppression", "x p m")], [known("m", [10])], 11, FOUND, 0),
        (
            [node("RotaryEmbedding", "x c c p")],
            [onnx.numpy_helper.from_array(np.ones((128, 16), np.float32), "c")],
            23,
            TURNED,
            0,
        ),
        (
            [node("DeformConv", "x w o", pads=[1] * 4)],
            [weight("w", 16, 8, 3, 3)],
            19,
            OFFSET,
            16 * 8 * 9 * 256,
        ),
        (
            [
                node("SplitToSequence", "x", "q", axis=1, keepdims=0),
                node("SequenceAt", "q i", "a"),
                node("SequenceConstruct", "a a", "r"),
                node("SequenceInsert", "r a", "l"),
                node("ConcatFromSequence", "l", "c", axis=0, new_axis=1),
                node("MatMul", "c w"),
            ],
            [known("i", 1), weight("w", 16, 32)],
            12,
            SAMPLED[:1],
            3 * 16 * 16 * 32,
        ),
    ],
)
def test_rare_operators_cost_their_products(
    tmp_path: Path, nodes: list[Any], weights: list[Any], opset: int, inputs: list[Any], products: int
) -> None:
    found = followed(
        made(tmp_path, nodes, weights, opset, inputs=inputs),
        batch=inputs[0].type.tensor_type.shape.dim[0].dim_value,
    )
    assert not found.unmodelled
    several = ("linear", "matmul", "conv2d")
    assert sum(layer.flops() for layer in found.layers if layer.kind in several) == 2 * products


def external(location: str) -> Any:
    tensor = onnx.TensorProto(name="w", dims=[8, 1000], data_type=1, data_location=1)
    tensor.external_data.add(key="location", value=location)
    return tensor


PRODUCT = node("MatMul", "x w")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"nodes": [helper.make_node("Odd", ["x"], ["y"], domain="mine")]}, "mine::Odd, of a domain"),
        ({"nodes": [node("Relu", "x")], "opset": 6}, "is of opset 6"),
        ({"nodes": [node("Relu", "x")], "opset": MOST_OPSET + 1}, "is of opset"),
        ({"nodes": [PRODUCT], "weights": [external("gone.bin")]}, "gone.bin, which is missing"),
        ({"nodes": [PRODUCT], "weights": [external("../../etc/passwd")]}, "outside of its folder"),
        ({"nodes": [PRODUCT], "weights": [external("/etc/passwd")]}, "outside of its folder"),
        ({"nodes": [node("Relu", "b", "a"), node("Relu", "a", "b"), node("Relu", "a")]}, "a cycle"),
        (
            {"nodes": [PRODUCT], "weights": [onnx.TensorProto(name="w", dims=[10**18, 10**18], data_type=1)]},
            "none has",
        ),
        (
            {"nodes": [PRODUCT], "weights": [onnx.TensorProto(name="w", dims=[8, 9], data_type=1)]},
            "fill its sizes",
        ),
        (
            {"nodes": [PRODUCT], "weights": [onnx.TensorProto(name="w", dims=[-8, 9], data_type=1)]},
            "none has",
        ),
        ({"nodes": [node("StringConcat", "x x")]}, "operator of ONNX"),
        ({"nodes": [node("NonZero", "x")]}, "only a run knows how many"),
        ({"nodes": [PRODUCT], "weights": [weight("w", 9, 9)]}, "does not take inputs"),
    ],
)
def test_a_file_that_cannot_be_read_says_why_in_a_line(
    tmp_path: Path, how: dict[str, Any], said: str
) -> None:
    file = made(tmp_path, how.pop("nodes"), **how)
    with pytest.raises(ModelError, match=said) as caught:
        followed(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"no protobuf", b"\x08\x07\x12"])
def test_what_is_no_onnx_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(data)
    with pytest.raises(ModelError, match="is not an ONNX file"):
        resolve(str(file))
    with pytest.raises(ModelError, match="there is no file"):
        resolve(str(tmp_path / "gone.onnx"))
