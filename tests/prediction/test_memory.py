"""Computed peaks of tiny networks, and the memory of a real run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from neuralpower.errors import InputError, ModelError, StepError
from neuralpower.layers.workspace import workspace_blocks
from neuralpower.networks.inputs.promised_values import tensors_within
from neuralpower.networks.running import grouped_product
from neuralpower.optimizers.registry import KNOWN, optimizers_of
from neuralpower.platforms import CPU, PLATFORMS, Platform, platform_named
from neuralpower.prediction.memory.peak import Memory, forward_memory, memory_of, peak, training_memory
from neuralpower.profiling import profile
from neuralpower.profiling.steps import Step, accounted
from neuralpower.profiling.stopwatch import HostClock
from neuralpower.trace.lifetimes import Lifetimes, Storage
from neuralpower.trace.recipe import TRAINING, default_loss
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace

NVIDIA = platform_named("nvidia")


def step_memory(*args: Any, platform: Platform = CPU, **settings: Any) -> Memory:
    return training_memory(training_lifetimes(*args, platform=platform, **settings), platform=platform)


def chain(layers: int = 3, width: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def test_a_storage_lives_from_the_call_that_returned_it_until_it_is_freed() -> None:
    # a: calls 1 to 2, 10 B; b: calls 2 to 3, 20 B; weights: always, 5 B. Call 2 has all of them: 35 B.
    weights, a, b = (
        Storage(0, None, 5, "weights"),
        Storage(1, 2, 10, "activations"),
        Storage(2, 3, 20, "activations"),
    )
    assert peak([weights, a, b])[0] == 35
    assert peak([weights, a, b])[1]["activations"] == 30
    # were `a` freed before call 2, call 2 and 3 have 5 + 20
    assert peak([weights, a._replace(death=1), b])[0] == 25
    assert peak([])[0] == 0


def test_a_view_is_no_memory_and_a_freed_tensor_is_counted_out() -> None:
    seen = Lifetimes()
    x = torch.zeros(8)  # 32 B
    seen.hold([x], "inputs")
    y = x + 1
    assert seen.called(y) == 32
    assert seen.called(y[2:]) == 0
    assert (seen.live, seen.peak) == (64, 64)
    del y
    assert (seen.live, seen.peak) == (32, 64)
    assert [(s.birth, s.death) for s in seen.storages()] == [(0, None), (1, 2)]


def test_the_forward_peak_of_a_chain_of_linear_layers() -> None:
    # weights 3 x 4 x 4 x 4 B = 192; x [2, 4] is 32 B; at the second layer its input and its output live:
    # 2 x 32
    found = forward_memory(trace(chain(), (torch.zeros(2, 4),)))
    assert (found.weights_bytes, found.inputs_bytes, found.activations_bytes) == (192, 32, 64)
    assert found.tensor_bytes == found.low_bytes == 288
    assert found.value_bytes == 288 + CPU.framework.forward_bytes
    assert (
        found.high_bytes == 288 + 2 * CPU.framework.forward_bytes + 265
    )  # four times the activations, a 32nd of all
    assert sum(found.parts.values()) == found.value_bytes


def test_a_residual_connection_keeps_its_input_alive() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = chain(2)

        def forward(self, x: Tensor) -> Tensor:
            doubled: Tensor = x * 2
            return doubled + self.inner(doubled)

    # at the second linear layer: doubled, its inner's first output and its second output live: 3 x 32;
    # weights 128
    found = forward_memory(trace(Residual(), (torch.zeros(2, 4),)))
    assert found.activations_bytes == 96


@pytest.mark.parametrize(
    ("optimizer", "states"), [("sgd", 0), ("momentum", 1), ("rmsprop", 1), ("adam", 2), ("adamw", 2)]
)
def test_an_optimizers_state_is_its_numbers_per_parameter_and_a_step_count(
    optimizer: str, states: int
) -> None:
    # 3 tensors of 16 parameters, 64 B each; a step count of 4 B per tensor for all that count steps
    counts = 12 if optimizer in ("rmsprop", "adam", "adamw") else 0
    stored = training_lifetimes(chain(), (torch.zeros(2, 4),), optimizer=optimizer).storages
    assert sum(s.bytes for s in stored if s.part == "optimizer") == states * 192 + counts
    assert sum(s.bytes for s in stored if s.part == "gradients") == 192


def test_the_training_peak_of_wide_layers_is_in_the_optimizer() -> None:
    # one layer of 100 x 100: weights, gradient, two moments of 40,000 B each and a count; Adam's step adds
    # two temporaries of that size (the root of the second moment, and the same divided), at a time when
    # activations are gone
    found = step_memory(chain(1, 100), (torch.zeros(1, 100),), optimizer="adam")
    assert found.weights_bytes == found.gradients_bytes == 40_000
    assert found.optimizer_bytes == 80_004
    assert found.activations_bytes == pytest.approx(2 * 40_000, abs=16)
    assert (
        found.needed_bytes == found.tensor_bytes + CPU.framework.training_bytes + CPU.framework.compiler_bytes
    )
    assert found.heap_bytes < 1000  # holes are found for all of it


def test_making_an_optimizer_brings_torchs_compiler_unless_transformers_has_brought_it() -> None:
    transformers = pytest.importorskip("transformers")
    x, small = (
        (torch.zeros(1, 4),),
        transformers.BertConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2),
    )
    step, gradients = step_memory(chain(), x), step_memory(chain(), x, stepped=False)
    assert step.framework_bytes - gradients.framework_bytes == CPU.framework.compiler_bytes
    assert gradients.optimizer_bytes == 0
    assert gradients.gradients_bytes == step.gradients_bytes
    bert = step_memory(transformers.BertModel(small), (torch.zeros(1, 4, dtype=torch.long),))
    assert bert.framework_bytes == CPU.framework.training_bytes


def test_on_an_accelerator_an_optimizer_has_temporaries_for_all_parameters_at_once() -> None:
    # six layers of 40,000 B: the roots of all second moments at once, where a loop holds three tensors at
    # most
    one = step_memory(chain(6, 100), (torch.zeros(1, 100),), optimizer="adam")
    every = step_memory(chain(6, 100), (torch.zeros(1, 100),), optimizer="adam", platform=NVIDIA)
    assert one.activations_bytes == pytest.approx(120_000, abs=16)
    assert every.activations_bytes == pytest.approx(240_000, abs=32)
    assert every.framework_bytes == NVIDIA.framework.training_bytes
    looping = step_memory(chain(6, 100), (torch.zeros(1, 100),), optimizer="adam:loop", platform=NVIDIA)
    assert looping.activations_bytes == one.activations_bytes


@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_a_fused_optimizer_has_no_temporaries(optimizer: str) -> None:
    asked = (chain(6, 100), (torch.zeros(1, 100),))
    loop, every, fused = (
        step_memory(*asked, optimizer=f"{optimizer}{way}") for way in ("", ":foreach", ":fused")
    )
    assert fused.optimizer_bytes == every.optimizer_bytes == loop.optimizer_bytes
    assert fused.needed_bytes <= loop.needed_bytes <= every.needed_bytes
    if optimizer == "adamw":
        assert (
            every.activations_bytes
            == step_memory(*asked, optimizer="adamw", platform=NVIDIA).activations_bytes
        )
        assert fused.activations_bytes < 40_000 < loop.activations_bytes


def real_peak(model: nn.Module, args: tuple[Any, ...], phase: str, optimizer: str = "adamw") -> int:
    """Bytes of tensors at the peak of the second real run, accounted operator by operator."""
    model = copy.deepcopy(model).train(phase == TRAINING)
    weights = [*model.parameters()]
    made = optimizers_of(optimizer, weights, [], "loop")[0] if phase == TRAINING else None
    step = Step(model, args, {}, phase, None, made)
    step.run(HostClock())
    return accounted(step, HostClock(), None)[1]


def test_a_convolution_works_on_copies_in_blocks_of_channels() -> None:
    # input [8, 64, 56, 56]: 6,422,528 B; 128 output channels at half the height and width: 8 x 128 x 28 x 28
    # x 4 = 3,211,264 B; weights [128, 64, 1, 1]: 32,768 B. Copies of input and weights: more than one of the
    # output.
    x = torch.empty(8, 64, 56, 56, device="meta")
    narrow = nn.Conv2d(64, 128, 1, 2, device="meta")
    found = forward_memory(trace(narrow, (x,)))
    assert found.workspace_bytes == 6_422_528 + 32_768
    # of 3 channels none is copied, but for the weights' 64 x 3 x 7 x 7 x 4 = 37,632 B; the output is, 8 x 64
    # x 112 x 112 x 4 B
    stem = nn.Conv2d(3, 64, 7, 2, 3, device="meta")
    picture = torch.empty(8, 3, 224, 224, device="meta")
    assert forward_memory(trace(stem, (picture,))).workspace_bytes == 25_690_112
    # 17 channels are copied as 32, 33 as 48: 4 x 56 x 56 x 4 B x 48 = 2,408,448 B beside the output of 33
    odd = nn.Conv2d(17, 33, 3, padding=1, device="meta")
    assert (
        forward_memory(trace(odd, (torch.empty(4, 17, 56, 56, device="meta"),))).workspace_bytes == 2_408_448
    )


def test_a_convolutions_backward_pass_copies_its_input_and_the_gradient() -> None:
    # gradients for input and weights: beside them copies of input and gradient, 4 x 32 x 28 x 28 x 4 B =
    # 401,408 B each, and at that time the weights' gradient as a copy, not yet itself
    shape = {"dtype": torch.float32, "device": "meta"}
    x, w = torch.empty(4, 32, 28, 28, **shape), torch.empty(32, 32, 3, 3, **shape)
    rest = ([32], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    for mask, extra in (([True, True, True], 2 * 401_408), ([False, True, True], 2 * 401_408)):
        assert workspace_blocks("aten.convolution_backward", (x, x, w, *rest, mask), {}, None) == (extra,)
    # for the input alone: copies of the gradient, 401,408 B, and of the weights, 36,864 B, besides the copied
    # result
    only = workspace_blocks("aten.convolution_backward", (x, x, w, *rest, [True, False, False]), {}, None)
    assert only == (401_408 + 36_864,)


def test_a_convolution_has_no_copies_where_channels_come_last_or_the_sample_is_small() -> None:
    weight = torch.empty(64, 64, 3, 3, device="meta")
    last = torch.empty(8, 64, 56, 56, device="meta").to(memory_format=torch.channels_last)
    small = torch.empty(1, 64, 14, 14, device="meta")  # 12,544 numbers
    for x in (last, small):
        assert workspace_blocks("aten.conv2d", (x, weight), {}, torch.empty_like(x)) == ()
    assert workspace_blocks("aten.relu", (last,), {}, last) == ()


def test_an_lstm_puts_a_layers_weights_into_another_order() -> None:
    # the second of two layers, 32 wide: weights 2 x 4 x 32 x 32 = 8,192; 3 x 5 steps with 4 x 32 gates =
    # 1,920; output of the layer below 15 x 32 = 480: 10,592 numbers of 4 B. The first has 4 x 32 x (16 + 32)
    # = 6,144 weights.
    model = nn.LSTM(16, 32, num_layers=2, device="meta")
    found = trace(model, (torch.empty(5, 3, 16, device="meta"),)).storages
    assert [s.bytes for s in found if s.part == "workspace"] == [42_368]


def test_work_space_is_a_cpus_and_beside_the_tensors() -> None:
    stored = [
        Storage(0, None, 100, "weights"),
        Storage(1, 2, 30, "activations"),
        Storage(1, 1, 50, "workspace", (50,), "onednn"),
    ]
    on_cpu, elsewhere = memory_of(stored), memory_of(stored, platform=NVIDIA)
    assert on_cpu.value_bytes == 100 + 30 + 50 + CPU.framework.forward_bytes + CPU.framework.onednn_bytes
    assert on_cpu.tensor_bytes == elsewhere.tensor_bytes == 130
    assert on_cpu.margin_bytes == CPU.framework.forward_bytes + 325  # four times 30 + 50, and a 32nd of 180
    assert elsewhere.workspace_bytes == NVIDIA.product_bytes


def test_micro_batches_add_up_gradients_and_checkpoints_drop_activations() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}
    with torch.device("meta"):
        model = transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes))
    ids = torch.zeros(8, 64, dtype=torch.int64)
    usual, more = step_memory(model, (ids,)), step_memory(model, (ids,), accumulation=3)
    # at the end of a first forward pass there is no gradient yet; at the end of the second all but the unused
    # pooler's
    assert (usual.gradients_bytes, more.activations_bytes) == (0, usual.activations_bytes)
    assert more.gradients_bytes == 4 * sum(
        p.numel() for n, p in model.named_parameters() if "pooler" not in n
    )
    assert step_memory(model, (ids,), checkpointing=True).activations_bytes < usual.activations_bytes / 2
    with pytest.raises(ModelError, match="has no activation checkpointing to switch on"):
        step_memory(chain(), (torch.zeros(2, 4),), checkpointing=True)


def test_a_grouped_product_of_experts_has_the_shapes_of_its_kernel() -> None:
    rows, experts, ends = torch.empty(10, 4), torch.empty(3, 4, 6), torch.empty(3, dtype=torch.int32)
    assert grouped_product(rows, experts, ends).shape == (10, 6)
    assert grouped_product(rows.T, torch.empty(10, 6), ends).shape == (3, 4, 6)  # the experts' gradient


class Convolutional(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )


class Masked(nn.Linear):
    """A network that fills masked places and skips layers at random, as speech networks do."""

    def __init__(self) -> None:
        super().__init__(32, 32)
        self.filling = nn.Parameter(torch.zeros(32))

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        x[torch.tensor([[True, False, False, False] * 3] * 4)] = self.filling
        return x if torch.rand([]) < 0 else super().forward(x).relu()


@pytest.fixture
def slow_attention() -> Iterator[None]:
    """Without the one operator for a whole encoder layer, which hides its tensors."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


NETWORKS = [
    (nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 8)), (torch.zeros(16, 32),)),
    (Convolutional(), (torch.zeros(2, 3, 8, 8),)),
    (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (torch.zeros(2, 24, 16),)),
    (Masked(), (torch.zeros(4, 12, 32),)),
]


@pytest.mark.parametrize(("model", "args"), NETWORKS, ids=["linear", "convolutional", "attention", "masked"])
def test_what_is_predicted_is_what_a_real_run_holds(
    model: nn.Module, args: tuple[Any, ...], slow_attention: None
) -> None:
    predicted = forward_memory(trace(model, args)).tensor_bytes
    assert predicted == pytest.approx(real_peak(model.eval(), args, "forward"), rel=0.03)


@pytest.mark.parametrize(
    "optimizer",
    [
        name
        for name, known in KNOWN.items()
        # sparseadam takes no dense gradient; old versions of torch lack some
        if isinstance(known.make, str) and name not in ("sparseadam", "muon") and hasattr(optim, known.make)
    ],
)
@pytest.mark.parametrize(("model", "args"), NETWORKS, ids=["linear", "convolutional", "attention", "masked"])
def test_what_is_predicted_of_a_training_step_is_what_a_real_one_holds(
    model: nn.Module, args: tuple[Any, ...], optimizer: str
) -> None:
    predicted = step_memory(model, args, optimizer=optimizer).tensor_bytes
    real = real_peak(
        model, args, TRAINING, optimizer
    )  # its gradients are still there, as the optimizer's tensors are
    assert predicted == pytest.approx(real, rel=0.03)


def test_a_profiles_account_is_the_same_as_before_it_was_shared() -> None:
    # 64 x 64 weights and biases 16,640 B, and input, output and the one between of 256 x 64 x 4 B each
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    found = profile(model, torch.randn(256, 64), warmup=0, repeat=1)
    assert found.total.peak_memory_bytes == 16_640 + 3 * 65_536


def test_keys_and_values_of_a_cache_are_told_apart() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(intermediate_size=64, vocab_size=100, **sizes)
    with torch.device("meta"):
        model = transformers.LlamaModel._from_config(config)
    found = forward_memory(trace(model, (torch.zeros(3, 10, dtype=torch.int64),)))
    # 2 layers x keys and values x 3 samples x 2 heads x 10 tokens x 8 wide x 4 B
    assert found.cache_bytes == 2 * 2 * 3 * 2 * 10 * 8 * 4


def test_a_step_that_asks_whether_a_mask_is_the_usual_one_has_a_memory() -> None:
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)  # asks whether it is causal
    plain, masked = (
        step_memory(model, (torch.zeros(2, 5, 16), torch.zeros(2, 4, 16)), {"tgt_mask": m})
        for m in (None, mask)
    )
    assert masked.weights_bytes == plain.weights_bytes > 0
    assert plain.tensor_bytes < masked.tensor_bytes < 1.05 * plain.tensor_bytes


def test_tensors_are_found_in_containers_and_objects_but_not_in_modules() -> None:
    class Box:
        def __init__(self) -> None:
            self.inner = {"a": [torch.zeros(1), 2], "b": self, "c": nn.Linear(2, 2)}

    assert [t.numel() for t in tensors_within(Box())] == [1]
    assert list(tensors_within(None)) == []


def test_a_module_is_left_as_it_was() -> None:
    model = Convolutional()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step_memory(model, (torch.zeros(2, 3, 8, 8),))
    assert model.training
    assert all(parameter.grad is None and not parameter.is_meta for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(InputError, match="no parameter that requires a gradient: there is nothing to train"):
        step_memory(nn.ReLU(), (torch.zeros(2),))
    with pytest.raises(InputError, match="unknown optimizer 'adm': did you mean adam"):
        step_memory(chain(), (torch.zeros(2, 4),), optimizer="adm")
    with pytest.raises(InputError, match="rmsprop: torch has no fused one"):
        step_memory(chain(), (torch.zeros(2, 4),), optimizer="rmsprop:fused")
    with pytest.raises(InputError, match="unknown implementation of an optimizer 'vast'"):
        step_memory(chain(), (torch.zeros(2, 4),), optimizer="momentum:vast")
    with pytest.raises(StepError, match="a training step on tensors without values raises RuntimeError"):
        step_memory(chain(), (torch.zeros(2, 5),))
    with pytest.raises(InputError, match="nothing to train on; wrap the network"):
        default_loss([torch.zeros(2)])


def test_weights_that_are_no_parameters_are_refused_and_get_no_gradient() -> None:
    outside = nn.Linear(4, 4)

    class Net(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(outside(x))

    with pytest.raises(
        InputError, match=r"Net: its forward uses weights of \(4, 4\) that are not its parameters"
    ):
        step_memory(Net(nn.Linear(4, 4)), (torch.zeros(2, 4),))
    assert outside.weight.grad is None
    outside.requires_grad_(False)
    assert step_memory(Net(nn.Linear(4, 4)), (torch.zeros(2, 4),)).gradients_bytes == 80


def test_a_loss_of_ones_own_is_used() -> None:
    small = step_memory(chain(), (torch.zeros(64, 4),), loss=lambda output: output[:1].sum())
    usual = step_memory(chain(), (torch.zeros(64, 4),))
    assert small.activations_bytes < usual.activations_bytes


def test_memory_without_tensors_is_the_frameworks() -> None:
    code = PLATFORMS["accelerator"].framework.forward_bytes
    found = memory_of((), platform=PLATFORMS["accelerator"])
    assert found == Memory("forward", 0, 0, 0, 0, 0, 0, 0, code, 0, code, 0, assumed=True)
