"""ParaDnn's networks have the sizes and the work that follow from their parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neuralpower.errors import ModelError
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.networks.zoo import ZOO
from neuralpower.networks.zoo.paradnn import SWEEPS, pooled_size
from neuralpower.profiling.conventions import product_flops
from neuralpower.trace.tracer import trace

# (block, blocks per group, filters, image, outputs): parameters, and GFLOP of one image forward, convolutions
# and dense layer, 1 multiply-add = 2 FLOP
CONVOLUTIONAL = {
    ("residual", 1, 16, 200, 500): (374_244, 0.1313),
    ("residual", 1, 16, 224, 1000): (438_744, 0.1572),
    ("residual", 8, 64, 200, 1500): (49_574_556, 12.7243),
    ("bottleneck", 1, 16, 200, 500): (762_884, 0.1918),
    ("bottleneck", 1, 16, 250, 1000): (2_555_384, 0.2961),
    ("bottleneck", 1, 16, 300, 1500): (12_795_884, 0.4456),
    ("bottleneck", 8, 64, 300, 1500): (98_681_116, 28.5491),
}
SMALL = "layers=4&nodes=1024&input_size=2000&output_size=200"


def built(model: str) -> nn.Module:
    return resolve(model).build("meta")


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def matrices(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)


def product_gflop(model: str) -> float:
    source = resolve(model)
    module = source.build("meta")
    inputs = source.inputs(module, InputRequest(batch_size=1))
    return sum(product_flops(layer) for layer in trace(module, inputs.args, inputs.kwargs).layers) / 1e9


def test_the_paper_s_network_has_as_many_weights_as_its_formula_says() -> None:
    # 1024^2 * (4 - 1) + 1024 * (2000 + 200) = 3,145,728 + 2,252,800 = 5,398,528
    assert matrices(built(f"zoo:paradnn_fc?{SMALL}")) == 5_398_528


def test_the_pytorch_variant_has_one_square_matrix_more() -> None:
    # 5,398,528 + 1024^2 = 6,447,104, 19.4 % more; biases of 5 * 1024 + 200 = 5,320 make it 6,452,424
    network = built(f"zoo:paradnn_fc?{SMALL}&variant=pytorch")
    assert matrices(network) == 6_447_104
    assert matrices(network) / 5_398_528 - 1 == pytest.approx(0.194, abs=5e-4)
    assert parameters(network) == 6_452_424


def test_every_linear_layer_but_the_last_is_rectified() -> None:
    kinds = [
        type(part).__name__ for part in built("zoo:paradnn_fc?layers=2&nodes=4&variant=pytorch").children()
    ]
    assert kinds == ["Linear", "ReLU", "Linear", "ReLU", "Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("sizes", CONVOLUTIONAL, ids=lambda sizes: "-".join(map(str, sizes)))
def test_a_convolutional_network_has_its_parameters_and_flop(sizes: tuple[str, int, int, int, int]) -> None:
    block, blocks, filters, image, outputs = sizes
    sizes_of = f"block={block}&blocks={blocks}&filters={filters}&input_size={image}&output_size={outputs}"
    model = f"zoo:paradnn_cnn?{sizes_of}"
    count, gflop = CONVOLUTIONAL[sizes]
    assert parameters(built(model)) == count
    assert product_gflop(model) == pytest.approx(gflop, abs=5e-5)


@pytest.mark.parametrize(("image", "side"), [(193, 1), (200, 1), (224, 1), (250, 2), (300, 4)])
def test_the_pooled_map_grows_with_the_image(image: int, side: int) -> None:
    # 300 -> 150 -> 75 -> 38 -> 19 -> 10, and a 7x7 pool of stride 1 leaves 10 - 6 = 4
    assert pooled_size(image) == side
    with torch.device("meta"):
        network = ZOO["paradnn_cnn"].build(input_size=image)
    assert network.get_submodule("classifier").in_features == 128 * side**2


def test_an_image_too_small_for_the_pool_is_refused() -> None:
    with pytest.raises(ModelError, match="image of 192 pixels: the 7x7 average pool .* choose 193 or more"):
        built("zoo:paradnn_cnn?input_size=192")


def test_groups_can_have_different_numbers_of_blocks() -> None:
    network = built("zoo:paradnn_cnn?blocks=[3,4,6,3]&block=bottleneck&filters=64")
    # the ResNet50 of this zoo, which projects in the first block of every group, too
    assert parameters(network) == 25_557_032
    with pytest.raises(ModelError, match="there are 4 groups"):
        built("zoo:paradnn_cnn?blocks=[3,4]")


def test_blocks_start_as_their_shortcut() -> None:
    network = ZOO["paradnn_cnn"].build(blocks=1, block="bottleneck")
    assert not network.get_parameter("group2.block1.body.expand.normalisation.weight").any()
    assert network.get_parameter("group2.block1.body.middle.normalisation.weight").all()
    norm = network.get_submodule("stem.normalisation")
    assert isinstance(norm, nn.BatchNorm2d)
    assert (norm.momentum, norm.eps) == (0.1, 1e-5)


@pytest.mark.parametrize(("cell", "gates"), [("rnn", 1), ("lstm", 4), ("gru", 3)])
def test_a_recurrent_network_has_its_parameters(cell: str, gates: int) -> None:
    # embedding 8 * 10; each of 2 layers: `gates` times two 10x10 matrices and biases of 10; scores 10 * 8 + 8
    network = built(f"zoo:paradnn_rnn?cell={cell}&layers=2&embed=10&vocabulary=8")
    assert parameters(network) == 80 + 2 * gates * 220 + 88


def test_inputs_follow_the_sizes_of_the_network() -> None:
    def shape(model: str, **asked: int) -> tuple[int, ...]:
        source = resolve(model)
        return tuple(source.inputs(source.build("meta"), InputRequest(batch_size=3, **asked)).args[0].shape)

    assert shape("zoo:paradnn_fc?input_size=70") == (3, 70)
    assert shape("zoo:paradnn_cnn?input_size=200") == (3, 3, 200, 200)
    assert shape("zoo:paradnn_rnn?length=7&vocabulary=4") == (3, 7)
    assert shape("zoo:paradnn_rnn", seq_len=9) == (3, 9)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("zoo:paradnn_fc?layers=0", "layers 0 of .*: must be a whole number, 1 or more"),
        ("zoo:paradnn_fc?nodes=1.5", "nodes 1.5 of .*: must be a whole number"),
        ("zoo:paradnn_fc?nodes=many", "nodes 'many' of .*: must be a whole number"),
        ("zoo:paradnn_cnn?blocks=[3,0,6,3]", r"blocks \[3, 0, 6, 3\] of .*: must be a whole number"),
        ("zoo:paradnn_fc?variant=keras", "variant 'keras': choose paradnn or pytorch"),
        ("zoo:paradnn_cnn?block=dense", "block 'dense': choose residual or bottleneck"),
        ("zoo:paradnn_rnn?cell=mamba", "cell 'mamba': choose rnn or lstm or gru"),
        ("zoo:paradnn_fc?width=3", "it takes layers, nodes, input_size, output_size, variant"),
    ],
)
def test_wrong_keywords_are_refused(model: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        built(model)


def test_the_sweeps_have_the_paper_s_points() -> None:
    def points(id: str) -> int:
        count = 1
        for values in SWEEPS[id].values():
            count *= len(values)
        return count

    # 6 layers * 9 nodes * 4 inputs * 5 outputs * 9 batches
    assert points("paradnn_fc") == 9_720
    # 2 kinds of blocks * 8 numbers * 3 filters * 3 images * 3 outputs * 5 batches
    assert points("paradnn_cnn") == 2_160
    # 3 cells * 4 layers * 3 widths * 3 lengths * 5 vocabularies * 4 batches
    assert points("paradnn_rnn") == 2_160
    assert SWEEPS["paradnn_rnn"]["vocabulary"] == (2, 8, 32, 128, 512)
    assert {id for id, entry in ZOO.items() if entry.sweep and id.startswith("paradnn")} == set(SWEEPS)
