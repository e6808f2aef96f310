"""The zoo holds the networks it names: their sizes, their work, and that each runs."""

from __future__ import annotations

import runpy
from dataclasses import FrozenInstanceError, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from neuralpower.errors import ModelError
from neuralpower.networks.zoo import ZOO, base, zoo_entry, zoo_model
from neuralpower.networks.zoo.blocks import Activation, relu
from neuralpower.networks.zoo.composed import CLASSES, SORTS, composed_inputs
from neuralpower.networks.zoo.mobilenet import (
    Shuffle,
    SqueezeExcite,
    hard_swish,
    inverted_residual,
    relu6,
    swish,
)

BATCH_SIZE = 2

# id: input shape, classes, parameters, GFLOP of one example forward (matrix products and convolutions,
# 1 multiply-add = 2 FLOP).
GOLDEN = {
    "acoustic_model": ((540,), 8192, 34_678_784, 0.0693),
    "deep_mnist": ((784,), 10, 11_972_510, 0.0239),
    "sensor_net": ((784,), 16, 2_919_440, 0.0058),
    "alexnet": ((3, 227, 227), 1000, 62_378_344, 2.2705),
    "alexnet_owt": ((3, 227, 227), 1000, 61_100_840, 1.4284),
    "googlenet": ((3, 224, 224), 1000, 6_998_552, 2.9277),
    "inception3": ((3, 299, 299), 1000, 23_851_784, 11.4264),
    "inception4": ((3, 299, 299), 1000, 42_711_400, 24.5079),
    "overfeat": ((3, 231, 231), 1000, 145_920_872, 5.6028),
    "resnet18": ((3, 224, 224), 1000, 11_693_736, 3.6538),
    "resnet34": ((3, 224, 224), 1000, 21_801_896, 7.3532),
    "resnet50": ((3, 224, 224), 1000, 25_557_032, 8.1784),
    "resnet101": ((3, 224, 224), 1000, 44_549_160, 15.6028),
    "resnet152": ((3, 224, 224), 1000, 60_192_808, 23.0273),
    "resnet200": ((3, 224, 224), 1000, 64_673_832, 30.0150),
    "resnet269": ((3, 224, 224), 1000, 102_073_384, 40.0598),
    "vgg11": ((3, 224, 224), 1000, 132_863_336, 15.2182),
    "vgg13": ((3, 224, 224), 1000, 133_047_848, 22.6169),
    "vgg16": ((3, 224, 224), 1000, 138_357_544, 30.9405),
    "vgg19": ((3, 224, 224), 1000, 143_667_240, 39.2641),
}

# id: parameters, and multiply-adds of one 224x224 image in 1e9, rounded as torchvision documents them.
TORCHVISION = {
    "squeezenet": (1_235_496, 0.35),
    "mobilenet_v2": (3_504_872, 0.30),
    "mobilenet_v3_large": (5_483_032, 0.22),
    "densenet121": (7_978_856, 2.83),
    "shufflenet_v2": (2_278_604, 0.14),
    "mnasnet": (4_383_312, 0.31),
    "efficientnet_b0": (5_288_548, 0.39),
    "resnext50": (25_028_904, 4.23),
    "wide_resnet50": (68_883_240, 11.40),
}

OTHERS = {
    "inception_resnet_v2",
    "mobilenet_v1",
    "convmixer",
    "unet",
    "lstm_language_model",
    "text_cnn",
    "video_cnn",
}
QUICK = ("sensor_net", "squeezenet", "mobilenet_v3_large", "shufflenet_v2", "text_cnn", "video_cnn")


@dataclass(frozen=True)
class Traced:
    """What a pass of one network on the meta device shows."""

    parameters: int
    gflop: float
    """The FLOP of one example."""
    shape: torch.Size


@cache
def traced(id: str) -> Traced:
    """Builds the network on the meta device and runs a batch of two."""
    entry = zoo_entry(id)
    with torch.device("meta"):
        network = entry.build().eval()
        inputs = entry.inputs(BATCH_SIZE)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outputs = network(*inputs)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Traced(parameters, counter.get_total_flops() / BATCH_SIZE / 1e9, outputs.shape)


def test_the_zoo_holds_the_golden_networks_and_the_others() -> None:
    assert {*GOLDEN, *TORCHVISION, *OTHERS} <= set(ZOO)


def test_every_entry_stands_under_its_id() -> None:
    assert {id: entry.id for id, entry in ZOO.items()} == {id: id for id in ZOO}


@pytest.mark.parametrize("id", GOLDEN)
def test_a_golden_network_has_its_parameters_and_flop(id: str) -> None:
    input_shape, classes, parameters, gflop = GOLDEN[id]
    assert (ZOO[id].input_shape, ZOO[id].classes) == (input_shape, classes)
    assert traced(id).parameters == parameters
    # Four decimals are coarser than a thousandth where the network is small: 0.0058 stands for 0.0058388.
    assert traced(id).gflop == pytest.approx(gflop, rel=1e-3, abs=5e-5)


def test_the_flop_of_a_perceptron_are_two_per_weight() -> None:
    # 784 * 1024 + 1024 * 1024 + 1024 * 1024 + 1024 * 16 = 2,916,352 weights
    assert traced("sensor_net").gflop == 2 * 2_916_352 / 1e9


@pytest.mark.parametrize("id", TORCHVISION)
def test_a_network_of_torchvision_has_its_parameters_and_flop(id: str) -> None:
    parameters, multiply_adds = TORCHVISION[id]
    assert traced(id).parameters == parameters
    assert traced(id).gflop / 2 == pytest.approx(multiply_adds, abs=0.0051)


def test_inception_resnet_has_its_parameters() -> None:
    # as timm counts those of the authors' weights
    assert traced("inception_resnet_v2").parameters == 55_843_464


def test_the_language_model_has_its_parameters() -> None:
    # embedding 10,000 * 650; 2 layers of 4 gates: 650 * 650 twice, 2 biases; scores 650 * 10,000 + 10,000
    assert (
        traced("lstm_language_model").parameters == 6_500_000 + 2 * 4 * (2 * 650 * 650 + 2 * 650) + 6_510_000
    )


def test_keywords_reach_the_builder() -> None:
    with torch.device("meta"):
        network = ZOO["convmixer"].build(width=768, depth=32, kernel=7)
    # ConvMixer-768/32 of arXiv 2201.09792, table 1: 21.1 million
    assert sum(parameter.numel() for parameter in network.parameters()) == pytest.approx(21.1e6, abs=5e4)


@pytest.mark.parametrize("id", ZOO)
def test_every_network_traces_on_meta(id: str) -> None:
    assert traced(id).shape[0] == BATCH_SIZE
    assert ZOO[id].classes in traced(id).shape[1:]


@pytest.mark.parametrize("id", QUICK)
def test_random_weights_give_finite_outputs(id: str) -> None:
    torch.manual_seed(0)
    network = ZOO[id].build().eval()
    with torch.no_grad():
        assert network(*ZOO[id].inputs(1)).isfinite().all()


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("block", SORTS)
def test_composed_networks_end_as_they_say(block: str, axes: int) -> None:
    for end, sizes in (("classes", []), ("positions", [4] * axes), ("restored", [16] * axes)):
        network = (
            ZOO["composed"].build(block=block, axes=axes, norm="group", width=24, depth=1, end=end).eval()
        )
        with torch.no_grad():
            scores = network(*composed_inputs(2, axes, 16))
        assert list(scores.shape) == [2, CLASSES, *sizes]
        assert scores.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"block": "residul"}, "did you mean residual"),
        ({"norm": "layer"}, "norm"),
        ({"axes": 3}, "axes 3"),
        ({"width": 20}, "multiple of 8"),
        ({"size": 30, "stages": 3}, "multiple of 4"),
    ],
)
def test_what_cannot_be_composed_is_said(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        ZOO["composed"].build(**settings)


@pytest.mark.parametrize("activation", [hard_swish, relu, relu6, swish])
def test_activations_in_place_leave_the_gradients_as_they_are(activation: Activation) -> None:
    torch.manual_seed(0)
    block = inverted_residual(
        4, 4, 8, 3, 1, activation=activation, gates=SqueezeExcite(8, 2, activation, nn.Sigmoid)
    )
    x = torch.randn(2, 4, 5, 5)
    block(x).square().sum().backward()
    gradients = [parameter.grad for parameter in block.parameters()]
    block.zero_grad()
    for module in block.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]
    block(x).square().sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in block.parameters()], gradients)


def test_the_channels_are_interleaved() -> None:
    x = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert Shuffle()(x).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_a_second_file_with_a_taken_id_is_refused_at_import(tmp_path: Path) -> None:
    file = tmp_path / "second.py"
    file.write_text(
        "from torch import nn\n"
        "from neuralpower.zoo import zoo_model\n"
        "@zoo_model('vgg16', title='Second', input_shape=(4,), classes=4)\n"
        "def second():\n"
        "    return nn.Linear(4, 4)\n"
    )
    with pytest.raises(ModelError, match="'vgg16' is taken by VGG16"):
        runpy.run_path(str(file))
    assert ZOO["vgg16"].title == "VGG16"


def test_an_unknown_id_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError, match="unknown zoo network 'resnet51'.*resnet50"):
        zoo_entry("resnet51")


def test_an_entry_and_the_zoo_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ZOO["vgg16"].title = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        ZOO["vgg16"] = ZOO["vgg19"]  # type: ignore[index]


def test_one_decorated_builder_is_all_that_a_new_network_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "REGISTRY", {})

    @zoo_model("line", title="Line", input_shape=(3,), classes=1)
    def line(classes: int = 1) -> nn.Module:
        return nn.Linear(3, classes)

    entry = base.REGISTRY["line"]
    assert (entry.id, entry.title, entry.input_shape, entry.classes) == ("line", "Line", (3,), 1)
    assert entry.build is line
    assert entry.build(classes=7)(*entry.inputs(5)).shape == (5, 7)


def test_token_networks_take_token_ids() -> None:
    tokens: Tensor = ZOO["text_cnn"].inputs(3)[0]
    assert tokens.shape == (3, 56)
    assert tokens.dtype == torch.int64
