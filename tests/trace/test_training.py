"""Training steps: what gradients go through, the tasks of a step, a step on a device of known costs."""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction, _checkpoint_without_reentrant_generator, checkpoint
from torch.utils.flop_counter import FlopCounterMode

from neuralpower.data.dataset import Dataset
from neuralpower.devices.host import read_cpu
from neuralpower.errors import InputError, ModelError
from neuralpower.layers import KINDS, Call, Hardware, Layer
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.linear import Linear
from neuralpower.layers.movement import Movement
from neuralpower.layers.optimizer import Optimizer
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.rows import from_row, to_row
from neuralpower.learn.networks.pace import NetworkSpeed
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.train import train
from neuralpower.measure.calls import Backward, TrainingStep, call_of
from neuralpower.measure.collect.plan import affordable, draw, kinds_named, make_plan
from neuralpower.measure.collect.request import PRESETS
from neuralpower.measure.cpu.timer import Sentinel, Timing, time_calls
from neuralpower.networks.phases import Phase
from neuralpower.networks.running import META, WAYS, Run
from neuralpower.prediction.compose import compose
from neuralpower.prediction.evaluation import evaluate as evaluation
from neuralpower.prediction.evaluation.evaluate import evaluate
from neuralpower.prediction.request import Request
from neuralpower.trace.passes import applied
from neuralpower.trace.question import Knows, Question
from neuralpower.trace.recipe import Recipe, default_loss
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.tracer import Asked, trace, trace_by
from tests.beit import small_beit

CPU = torch.device("cpu")


def training_tasks(found: Trace, recipe: Recipe, knows: Knows) -> tuple[Task, ...]:
    return applied(found, Question("training", recipe=recipe, knows=knows)).tasks


def backward_tasks(found: Trace, knows: Knows) -> tuple[Task, ...]:
    return applied(found, Question("backward", knows=knows)).tasks


class Net(nn.Module):
    """Whatever a function makes of x with two square matrices."""

    def __init__(self, function: Any, width: int = 8) -> None:
        super().__init__()
        self.function = function
        self.one = nn.Linear(width, width, bias=False, device="meta")
        self.two = nn.Linear(width, width, bias=False, device="meta")

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def traced(function: Any, x: Tensor | None = None) -> Trace:
    x = torch.empty(4, 8, device=META) if x is None else x
    return trace(Net(function), (x,), training=True)


def shares(t: Trace) -> list[tuple[str, float]]:
    return [(call.layer.kind, call.gradient) for call in t.calls]


# ---- what a gradient goes through ----


def test_an_input_asks_for_no_gradient_and_what_depends_on_a_weight_does() -> None:
    t = traced(lambda net, x: net.two(torch.relu(net.one(torch.exp(x)))))
    # exp of the input has no backward pass; the first product has one of its two, that of the weights
    assert shares(t) == [("elementwise", 0.0), ("linear", 0.5), ("activation", 1.0), ("linear", 1.0)]
    assert t.gradients == ()
    assert t.trained == (("float32", 64), ("float32", 64))


@pytest.mark.parametrize(("way", "run"), WAYS)
def test_an_input_that_requires_a_gradient_gets_one(way: str, run: Run) -> None:
    net, x = Net(lambda net, x: net.two(torch.exp(x))), torch.empty(4, 8, requires_grad=True)
    found = trace_by([(way, run)], net, Asked((x,), training=True))
    assert shares(found) == [("elementwise", 1.0), ("linear", 1.0)]


def test_what_is_frozen_or_detached_asks_for_none() -> None:
    net = Net(lambda net, x: net.two(net.one(x).detach()))
    net.two.weight.requires_grad = False
    t = trace(net, (torch.empty(4, 8, device=META),), training=True)
    assert [call.gradient for call in t.calls if call.layer.kind == "linear"] == [0.5, 0.0]
    assert t.trained == (("float32", 64),)


@pytest.mark.parametrize(("way", "run"), WAYS)
@pytest.mark.parametrize("disabled", [torch.no_grad, torch.inference_mode])
def test_what_a_model_runs_without_gradients_asks_for_none(disabled: Any, way: str, run: Run) -> None:
    def frozen(net: Net, x: Tensor) -> Tensor:
        with disabled():
            x = net.one(x)
        return net.two(x)

    t = trace_by([(way, run)], Net(frozen), Asked((torch.empty(4, 8),), training=True, loss=default_loss))
    assert shares(t)[:2] == [("linear", 0.0), ("linear", 0.5)]


class Product(torch.autograd.Function):
    """x W^T, with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(x, weight)
        return x @ weight.mT


@pytest.mark.parametrize(("way", "run"), WAYS)
def test_what_an_autograd_function_runs_has_a_backward_pass(way: str, run: Run) -> None:
    apply = vars(torch.autograd.Function)["apply"]
    net = Net(lambda net, x: Product.apply(net.one(x), net.two.weight))
    t = trace_by([(way, run)], net, Asked((torch.empty(4, 8),), training=True, loss=default_loss))
    assert shares(t)[:2] == [("linear", 0.5), ("matmul", 1.0)]
    assert vars(torch.autograd.Function)["apply"] is apply


def test_a_tensor_used_twice_gathers_two_gradients() -> None:
    def residual(net: Net, x: Tensor) -> Tensor:
        y = net.one(x)
        return y + net.two(y)  # y [4, 8] is used twice

    assert [call.layer for call in traced(residual).gradients] == [
        Elementwise(function="add", elements=32, operands=2, broadcast=False, inplace=True)
    ]


def test_a_weight_used_twice_gathers_two_gradients() -> None:
    t = traced(lambda net, x: net.one(net.one(x)))
    assert [to_row(call.layer)["elements"] for call in t.gradients] == [64]


@dataclasses.dataclass(slots=True)
class Output:
    """What a network may return."""

    places: Tensor
    scores: Tensor


def test_a_networks_own_class_of_output_has_a_loss() -> None:
    scores = torch.full((3,), 2.0, requires_grad=True)
    assert default_loss(Output(torch.ones(3, dtype=torch.int64), scores)).item() == 4.0


def test_a_head_that_the_loss_does_not_read_has_no_backward_pass() -> None:
    def heads(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        trunk = net.one(x)
        return torch.exp(trunk), net.two(trunk)[:, :3]

    t = trace(Net(heads), (torch.empty(4, 8, device=META),), training=True, loss=default_loss)
    assert shares(t)[:3] == [("linear", 0.5), ("elementwise", 1.0), ("linear", 0.0)]
    assert t.gradients == ()  # neither is the trunk's gathered, nor is the part made whole
    # 4 x 8 by 8 x 8: 512 each way, and 32 powers; the second product is 512 of 1,056
    assert t.assumptions == (
        "the loss does not read 48% of the forward pass, which has no backward pass: two; "
        "to include it, return the loss of all outputs",
    )


def test_a_loss_that_reads_all_outputs_leaves_nothing_to_say() -> None:
    def heads(net: Net, x: Tensor) -> Tensor:
        trunk = net.one(x)
        return torch.exp(trunk).mean() + net.two(trunk).mean()

    assert (
        trace(Net(heads), (torch.empty(4, 8, device=META),), training=True, loss=default_loss).assumptions
        == ()
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda net, x: net.two(torch.relu(net.one(x))),
        lambda net, x: net.one(x),  # two is not called
        lambda net, x: (net.one(x), net.two(x)),  # nor is it read
        lambda net, x: net.one(x).detach() + net.two(x),
        lambda net, x: x @ net.one.weight[:4].t() + net.two.weight.sum(),
    ],
)
@pytest.mark.parametrize(("way", "run"), WAYS)
def test_the_optimizer_steps_over_the_parameters_that_get_a_gradient(
    function: Any, way: str, run: Run
) -> None:
    network = Net(function).to_empty(device="cpu")
    default_loss(network(torch.randn(4, 8))).backward()
    got = [p.numel() for p in network.parameters() if p.grad is not None]
    assert got
    x = torch.empty(4, 8, device=META)
    t = trace_by([(way, run)], Net(function), Asked((x,), training=True, loss=default_loss))
    assert [numbers for _, numbers in t.trained] == got
    *_, step = training_tasks(t, Recipe("adam", "loop"), known)
    assert step.layer == Optimizer(function="adam", tensors=len(got), elements=sum(got))


def test_a_loss_reads_what_was_written_into_a_part_of_it() -> None:
    def written(net: Net, x: Tensor) -> Tensor:
        states = torch.zeros_like(x)
        part = states[:, :4]
        part += net.one(x)[:, :4]
        return states

    t = trace(Net(written), (torch.empty(4, 8, device=META),), training=True, loss=default_loss)
    assert ("linear", 0.5) in shares(t)


def test_what_is_written_in_place_is_used_once() -> None:
    assert traced(lambda net, x: net.two(torch.relu_(net.one(x)))).gradients == ()


def test_the_gradient_of_a_part_is_one_of_the_whole() -> None:
    t = traced(lambda net, x: torch.exp(net.one(x)[:, :3]))
    assert [call.layer for call in t.gradients] == [Movement(function="pad", elements=32)]


def test_parts_of_a_split_are_joined_and_what_was_expanded_is_summed() -> None:
    def split(net: Net, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.exp(part) for part in net.one(x).chunk(2, dim=-1))

    assert [call.layer for call in traced(split).gradients] == [Movement(function="cat", elements=32)]
    t = traced(lambda net, x: torch.exp(net.one(x)[:, None].expand(4, 5, 8)))
    assert [call.layer for call in t.gradients] == [
        Reduction(function="sum", elements=160, outputs=32, last=False)
    ]


def test_a_factor_without_a_gradient_halves_the_pass() -> None:
    t = traced(lambda net, x: net.one(x) * x)
    assert shares(t)[1] == ("elementwise", 0.5)


def test_a_bilinear_layer_has_a_product_for_each_gradient() -> None:
    bilinear = nn.Bilinear(8, 8, 5, device="meta")
    # 4 rows, 5 outputs, 8 and 8 inputs: 2 * 4 * 5 * 8 * (8 + 1) FLOP forward, twice as much for a measured
    # backward pass; the gradient of the weights is a product of 2 * 4 * 5 * 8 * 8, and so is that of each
    # input
    alone = trace(bilinear, (torch.empty(4, 8, device=META),) * 2, training=True).calls[0]
    assert alone.gradient == pytest.approx(8 / 9 / 2)
    net = Net(lambda net, x: bilinear(net.one(x), net.two(x)))
    net.bilinear = bilinear
    *_, (kind, share), (added, _) = shares(trace(net, (torch.empty(4, 8, device=META),), training=True))
    assert (kind, added) == ("matmul", "elementwise")
    assert share == pytest.approx(3 * 8 / 9 / 2)


def test_a_mask_that_is_added_to_a_product_is_none_of_its_factors() -> None:
    mask = torch.empty(1, 8, 8, device=META)
    t = traced(lambda net, x: torch.baddbmm(mask, net.one(x)[None].mT, net.two(x)[None]))
    assert shares(t) == [("linear", 0.5), ("linear", 0.5), ("matmul", 1.0)]


def test_a_gradient_goes_through_complex_numbers() -> None:
    t = traced(lambda net, x: net.two(torch.fft.irfft(torch.fft.rfft(net.one(x)))))
    assert shares(t) == [("linear", 0.5), ("linear", 1.0)]
    t = traced(lambda net, x: torch.view_as_real(torch.fft.fft(net.one(x))))
    assert t.gradients == ()  # pairs of numbers are complex ones as they lie


def test_what_is_written_into_parts_asks_as_a_whole_and_what_is_detached_does_not() -> None:
    def scan(net: Net, x: Tensor) -> Tensor:
        states = torch.zeros_like(x)
        apart = states.detach()
        for step in range(len(x)):
            states[step] = net.one(x[step])
        return net.two(states) + net.two(apart)

    assert [share for kind, share in shares(traced(scan)) if kind == "linear"] == [0.5] * 4 + [1.0, 0.5]


def test_the_loss_is_part_of_the_pass() -> None:
    t = trace(
        Net(lambda net, x: net.one(x)), (torch.empty(4, 8, device=META),), training=True, loss=default_loss
    )
    assert [(call.path, call.layer.kind) for call in t.calls] == [
        ("one", "linear"),
        ("(loss)", "elementwise"),
        ("(loss)", "reduction"),
    ]
    assert t.calls[-1].gradient == 1


def test_a_loss_needs_something_that_floats() -> None:
    with pytest.raises(InputError, match="a Tensor without a floating tensor that has a gradient"):
        default_loss(torch.ones(3, dtype=torch.int64))
    with torch.inference_mode():
        inferred = torch.ones(3)
    for without_gradient in (torch.ones(3), inferred):
        with pytest.raises(InputError, match="nothing to train on"):
            default_loss(without_gradient)


def test_autocast_casts_the_operands_of_products() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    t = trace(model, (torch.empty(4, 8),), training=True, autocast=torch.bfloat16)
    assert t.method == "fake"
    found = Counter((call.layer.kind, call.layer.dtype) for call in t.calls)
    # x, weights and bias are cast before the product; the norm takes what comes
    assert found == {("movement", "float32"): 3, ("linear", "bfloat16"): 1, ("norm", "bfloat16"): 1}


# ---- the tasks of a step ----


def known(kind: str, phase: str) -> bool:
    return True


CHAIN = traced(lambda net, x: net.two(net.one(x)))


def test_a_step_goes_forward_and_back_in_the_opposite_order() -> None:
    tasks = training_tasks(CHAIN, Recipe("adam", "loop"), known)
    assert [(task.path, task.layer.phase, task.share) for task in tasks] == [
        ("one", "forward", 1.0),
        ("two", "forward", 1.0),
        ("two", "backward", 1.0),
        ("one", "backward", 0.5),
        ("", "optimizer", 1.0),
    ]
    assert tasks[-1].layer == Optimizer(function="adam", tensors=2, elements=128)


def test_what_was_not_measured_backward_does_what_its_formulas_say() -> None:
    tasks = backward_tasks(CHAIN, lambda kind, phase: False)
    # two products each, grad x and grad W, of 4 x 8 x 8 multiply-adds
    assert [(task.path, task.layer.phase, task.layer.flops()) for task in tasks] == [
        (path, "gradient", 512)
        for path in ("two", "two", "one")  # nobody asks for the gradient of the input
    ]
    assert [task.share for task in tasks] == [1.0, 1.0, 1.0]


def test_micro_batches_repeat_the_passes_and_add_to_the_gradients() -> None:
    tasks = training_tasks(CHAIN, Recipe(accumulation=3), known)
    assert Counter(task.step for task in tasks) == {FORWARD: 6, BACKWARD: 6 + 2 * 2, "optimizer": 1}
    added = [task.layer for task in tasks if task.layer.kind == "elementwise"]
    assert [to_row(layer)["elements"] for layer in added] == [
        64
    ] * 4  # two weights, from the second micro-batch on


def test_gradients_and_optimizers_are_of_the_weights_dtypes() -> None:
    mixed = nn.Sequential(
        nn.Linear(8, 8, bias=False, dtype=torch.bfloat16, device="meta"), Cast(), nn.LayerNorm(8)
    )
    t = trace(mixed, (torch.empty(4, 8, dtype=torch.bfloat16, device=META),), training=True)
    *_, low, high = training_tasks(t, Recipe("adam", "loop"), known)
    assert low.layer == Optimizer(dtype="bfloat16", function="adam", tensors=1, elements=64)
    assert high.layer == Optimizer(dtype="float32", function="adam", tensors=2, elements=16)
    again = training_tasks(t, Recipe("adam", "loop", accumulation=2), known)
    added = [task.layer.dtype for task in again if task.layer.kind == "elementwise" and task.path == ""]
    assert added == ["bfloat16", "float32", "float32"]


def test_checkpointing_runs_repeated_blocks_again() -> None:
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8, device="meta"), nn.ReLU()) for _ in range(3)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.head = blocks, nn.Linear(8, 8, device="meta")

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.blocks(x))

    t = trace(Model(), (torch.empty(4, 8, device=META),), training=True)
    again = [task for task in training_tasks(t, Recipe(checkpointing=True), known) if task.again]
    assert [task.path for task in again] == [f"blocks.{i}.{j}" for i in (2, 1, 0) for j in range(2)]
    assert {(task.step, task.layer.phase) for task in again} == {("backward", "forward")}


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_model_checkpoints_itself_runs_again(reentrant: bool) -> None:
    ways = CheckpointFunction, _checkpoint_without_reentrant_generator

    def step(net: Net, x: Tensor) -> Tensor:
        return net.two(checkpoint(lambda x: torch.relu(net.one(x)), x, use_reentrant=reentrant))

    tasks = training_tasks(traced(step), Recipe(), known)
    assert [task.path for task in tasks if task.again] == ["one", ""]
    found = torch.utils.checkpoint
    assert (found.CheckpointFunction, found._checkpoint_without_reentrant_generator) == ways


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(
    "block",
    [
        lambda net, x: net.one(x),
        lambda net, x: x + net.two(torch.relu(net.one(x))),
        lambda net, x: x + 2 * net.two(net.one(x)),
        lambda net, x: torch.cat((x, net.two(net.one(x)))),
        lambda net, x: x * net.two(net.one(x)),
        lambda net, x: torch.layer_norm(x + net.two(net.one(x)), (8,)),
        lambda net, x: x + torch.dropout(net.two(net.one(x)), 0.1, True),
    ],
)
def test_a_checkpointed_block_runs_again_as_far_as_its_backward_pass_needs(
    block: Any, reentrant: bool
) -> None:
    net = Net(lambda net, x: checkpoint(lambda x: block(net, x), x, use_reentrant=reentrant))
    x = torch.ones(4, 8, requires_grad=True)
    tasks = training_tasks(trace(net, (x,), training=True), Recipe(), lambda *_: False)
    with FlopCounterMode(display=False) as counter:
        net.to_empty(device="cpu")(x).sum().backward()
    assert (
        sum(t.share * t.layer.flops() for t in tasks if t.layer.kind == "linear") == counter.get_total_flops()
    )


def test_checkpointing_spares_the_product_at_a_blocks_end() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2)))
    t = trace(model, (torch.empty(4, 8, device=META),), training=True)
    again = [task for task in training_tasks(t, Recipe(checkpointing=True), known) if task.again]
    assert [task.path for task in again] == ["1.0", "1.1", "0.0", "0.1"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adan"}, "unknown optimizer 'adan'.*adam"),
        (
            {"optimizer": "rmsprop", "implementation": "fused"},
            "rmsprop: torch has no fused one; choose loop or foreach",
        ),
        ({"implementation": "foreahc"}, "foreahc.*foreach"),
        ({"accumulation": 0}, "accumulation 0: must be 1 micro-batch or more"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe(**settings)


def test_nothing_to_train_is_refused() -> None:
    t = trace(nn.ReLU(), (torch.empty(4, 8, device=META),), training=True)
    with pytest.raises(InputError, match="no parameter of the model requires a gradient"):
        training_tasks(t, Recipe(), known)


class Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


# ---- a device whose costs are known ----


def seconds(layer: Layer) -> float:
    """The synthetic device: 5 us a call, 200 GFLOP/s, 10 GB/s; three times as much backward."""
    return (3 if layer.phase == "backward" else 1) * (5e-6 + layer.flops() / 2e11 + sum(layer.bytes()) / 1e10)


@pytest.fixture(scope="module")
def learnt() -> Predictor:
    tables = {}
    for kind in ("linear", "activation", "optimizer", "elementwise", "reduction"):
        layers = list(draw(KINDS[kind], 90, 0, PRESETS["quick"]))
        if kind != "optimizer":
            layers += [dataclasses.replace(v, phase="backward") for v in layers if v.dtype == "float32"]
        tables[kind] = pd.DataFrame([{**to_row(layer), "runtime_s": seconds(layer)} for layer in layers])
    meta = {"schema": 1, "device": "synthetic", "hardware": {"peak_flops_per_s": {"float32": 4e11}}}
    return train(Dataset(Path("synthetic"), meta, tables), jobs=1, learner="lasso").predictor


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 256))


def mlp_step(recipe: Recipe, learnt: Predictor) -> Any:
    t = trace(mlp(), (torch.empty(64, 512),), training=True, loss=default_loss)
    return compose(t, learnt, model="mlp", batch_size=64, phase="training", recipe=recipe)


def test_a_step_is_the_sum_of_its_three_parts(learnt: Predictor) -> None:
    p = mlp_step(Recipe("momentum"), learnt)
    one = Linear(rows=64, in_features=512, out_features=1024, bias=True)
    two = Linear(rows=64, in_features=1024, out_features=256, bias=True)
    forward = seconds(one) + seconds(two)
    assert p.training is not None
    parts = p.training.steps
    # beside the two products: relu, square and mean of 64 x 256 to 64 x 1024 numbers, tens of microseconds
    # each
    assert forward < parts["forward"].value < forward + 3e-4
    # the first product's half: no gradient of its input
    assert parts["backward"].value > 3 * (seconds(one) / 2 + seconds(two))
    elements = 512 * 1024 + 1024 + 1024 * 256 + 256
    step = seconds(Optimizer(function="sgd", tensors=4, elements=elements))
    assert parts["optimizer"].value == pytest.approx(step, rel=0.05)
    assert p.runtime_s.value == pytest.approx(sum(part.value for part in parts.values()), rel=1e-6)
    assert Counter(row.step for row in p.rows)["optimizer"] == 1
    assert p.training.derived == ()


@pytest.mark.parametrize(
    ("accelerator", "said", "implementation"),
    [(False, "", "loop"), (True, "", "foreach"), (True, "loop", "loop"), (False, "fused", "fused")],
)
def test_the_optimizer_runs_as_torch_chooses_for_the_device_unless_it_is_said(
    accelerator: bool, said: str, implementation: str, learnt: Predictor
) -> None:
    other = {
        ("conv2d", "float32", "forward", "dense"): next(iter(learnt.regressors.values()))
    }  # the predictor was trained in float32
    bare = dataclasses.replace(
        learnt, hardware=Hardware(platform="accelerator" if accelerator else "cpu"), regressors=other
    )
    p = mlp_step(Recipe("adam", said), bare)
    (step,) = (to_row(row.layer) for row in p.rows if row.step == "optimizer")
    assert step["implementation"] == p.to_json()["training"]["implementation"] == implementation


def test_utilisation_counts_the_models_own_work_against_the_dense_peak(learnt: Predictor) -> None:
    plain, again = (mlp_step(Recipe("momentum", accumulation=n), learnt) for n in (1, 2))
    assert plain.training is not None
    assert again.training is not None
    # 64 rows: 2 x 512 x 1024 + 2 x 1024 x 256 FLOP forward; backward half of the first's two products, both
    # of the second's
    one, two = 64 * 2 * 512 * 1024, 64 * 2 * 1024 * 256
    assert plain.training.model_flops == pytest.approx(one + two + one + 2 * two, rel=0.01)
    taken = plain.runtime_s.value
    assert plain.training.utilisation(taken) == pytest.approx(plain.training.model_flops / taken / 4e11)
    assert again.training.samples == 128
    assert again.training.model_flops == pytest.approx(2 * plain.training.model_flops, rel=0.01)
    described = plain.to_json()["training"]
    assert isinstance(described, dict)
    assert described["samples_per_s"] == pytest.approx(64 / taken)


# ---- measuring ----


def timed(layers: list[Layer]) -> list[Timing | Exception]:
    return time_calls([call_of(layer, CPU) for layer in layers], Sentinel(), random.Random(0), rounds=3)


def test_backward_passes_and_optimizers_are_timed_as_layers_are() -> None:
    layers = [
        Linear(rows=8, in_features=16, out_features=4, bias=True, phase="backward"),
        Optimizer(function="adamw", implementation="fused", tensors=2, elements=100),
        Reduction(function="argmax", elements=8, outputs=2, phase="backward"),
    ]
    backward, step, none = timed(layers)
    assert isinstance(backward, Timing)
    assert isinstance(step, Timing)
    assert len(backward.samples_s) == len(step.samples_s) == 3
    assert min(*backward.samples_s, *step.samples_s) > 0
    assert "no gradient passes through this call" in str(none)


def test_what_autograd_takes_to_start_is_no_part_of_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    # a start is 20 us and a node 2 us: a layer of one node is 2 us long, and one of 30 nodes 60 us
    now, real = [0], torch.autograd.grad

    def grad(targets: Any, leaves: Any, *args: Any, **kwargs: Any) -> Any:
        now[0] += 20_000
        node = targets[0].grad_fn
        while node is not None and node.next_functions:
            now[0] += 2_000
            node = node.next_functions[0][0]
        return real(targets, leaves, *args, **kwargs)

    def clock() -> int:
        now[0] += 1
        return now[0]

    def chain(count: int, x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = x.abs()
        return x

    monkeypatch.setattr(torch.autograd, "grad", grad)
    calls = [Call(Backward(partial(chain, count)), (torch.ones(3),)) for count in (1, 30)]
    forward = Call(torch.add, (torch.ones(3), torch.ones(3)))
    one, many, other = time_calls(
        [*calls, forward], Sentinel(clock), random.Random(0), rounds=3, clock_ns=clock
    )
    assert isinstance(one, Timing)
    assert isinstance(many, Timing)
    assert isinstance(other, Timing)
    assert one.samples_s == pytest.approx([2e-6] * 3, rel=1e-2)
    assert many.samples_s == pytest.approx([60e-6] * 3, rel=1e-2)
    assert one.to_row()["start_s"] == pytest.approx(20e-6, rel=1e-2)
    assert "start_s" not in other.to_row()


def test_a_start_that_a_dataset_says_is_in_its_backward_rows_is_taken_off_them(tmp_path: Path) -> None:
    # 25 us of 125; another collection of the same device has no such start in its 100
    meta = {"schema": 1, "device": "some CPU"}

    def collected(name: str, first: int, backward_s: float, **more: float) -> Dataset:
        fields = {"rows": range(first, first + 40), "in_features": 64, "out_features": 64, "bias": False}
        tables = [
            pd.DataFrame(
                {
                    "phase": phase,
                    **fields,
                    "runtime_s": seconds,
                    "config_id": [f"{phase}{i}" for i in range(first, first + 40)],
                }
            )
            for phase, seconds in (("forward", 125e-6), ("backward", backward_s))
        ]
        return Dataset(tmp_path / name, {**meta, **more}, {"linear": pd.concat(tables, ignore_index=True)})

    datasets = [collected("later", 41, 100e-6), collected("earlier", 1, 125e-6, autograd_start_s=25e-6)]
    predictor = train(datasets, "lasso", jobs=1).predictor
    for rows in (20, 60):
        layers = [
            Linear(rows=rows, phase=phase, in_features=64, out_features=64, bias=False)
            for phase in ("forward", "backward")
        ]
        assert predictor.estimate(layers).runtime_s == pytest.approx([125e-6, 100e-6], rel=1e-3)


def test_a_cpu_measures_one_layer_in_three_backward() -> None:
    phases = ("forward", "backward", "optimizer")
    preset = PRESETS["quick"]
    items = make_plan(preset, kinds_named(["linear"], phases), ["none"], ["float32"], 0, phases=phases)
    found = Counter(item["row"]["phase"] for item in items)
    forward = [item["row"] for item in items if item["row"]["phase"] == "forward"]
    small = [
        row for row in forward if affordable(from_row(KINDS["linear"], {**row, "phase": "backward"}), preset)
    ]
    assert len(small) > 0.7 * len(forward)
    assert 3 * found["backward"] == pytest.approx(len(small), rel=0.1)


def test_a_step_trains_the_network_and_knows_its_parts() -> None:
    now = iter(range(0, 10**12, 10**9))  # every look at the clock takes a second
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    before = [p.detach().clone() for p in model.parameters()]
    step = TrainingStep(
        Call(model, (torch.ones(2, 4),)), Recipe("momentum", accumulation=2), clock_ns=lambda: next(now)
    )
    with torch.inference_mode():
        step()
    assert step.parts_s(1) == {"forward": 2.0, "backward": 2.0, "optimizer": 1.0}
    assert all(not torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_a_network_without_checkpointing_of_its_own_is_refused() -> None:
    with pytest.raises(ModelError, match="Sequential has no activation checkpointing"):
        TrainingStep(Call(nn.Sequential(nn.Linear(4, 4)), ()), Recipe(checkpointing=True))


def test_a_step_follows_a_pass_in_inference_mode_of_a_network_that_caches_for_its_class() -> None:
    model, pixels = small_beit(40)
    with torch.inference_mode():
        small_beit(40)[0](pixels)
    step = TrainingStep(Call(model, (pixels,)), Recipe("momentum"))
    step()
    assert step.parts_s(1)["backward"] > 0


def test_an_evaluated_step_is_measured_in_its_parts(learnt: Predictor) -> None:
    (e,) = evaluate(
        [Request("zoo:deep_mnist", 2, phase=Phase("training"), recipe=Recipe("momentum"))], learnt, rounds=2
    )
    assert set(e.parts_s) == {"forward", "backward", "optimizer"}
    assert 0 < sum(e.parts_s.values()) <= 1.2 * max(e.timing.samples_s)
    assert e.prediction.training is not None


def test_a_steps_slow_down_is_that_of_all_its_layers(
    learnt: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # backward passes alone follow the machine, which is twice as slow as usual
    regressors = {
        k: dataclasses.replace(r, exponent=float(k[2] == "backward")) for k, r in learnt.regressors.items()
    }
    followed = dataclasses.replace(learnt, regressors=regressors, sentinel_s=1.0, speed=None)

    def timed(calls: list[Call], *_: object, **__: object) -> list[Timing]:
        calls[0]()
        return [Timing((2.0,), 2.0, 2.0, 2.0, 0.0, (), 0.0)]

    monkeypatch.setattr(evaluation, "time_calls", timed)
    (e,) = evaluate(
        [Request("zoo:deep_mnist", 2, phase=Phase("training"), recipe=Recipe("momentum"))], followed
    )
    rows = [row for row in e.prediction.rows if row.layer is not None]
    backward = [row.runtime_s for row in rows if row.layer is not None and row.layer.phase == "backward"]
    share = sum(backward) / sum(row.runtime_s for row in rows)
    assert 0.1 < share < 0.9
    assert e.slowdown == pytest.approx(1 + share, rel=1e-3)


def at_paces(monkeypatch: pytest.MonkeyPatch, *rounds: list[float]) -> Iterator[list[float]]:
    """Each network takes the time of the sentinel in the same measurement (s)."""
    paces = iter(rounds)

    def timed(*_: object, **__: object) -> list[Timing]:
        return [Timing((pace,), pace, pace, pace, 0.0, (), 0.0) for pace in next(paces)]

    monkeypatch.setattr(evaluation, "time_calls", timed)
    return paces


def test_what_met_a_slow_machine_is_measured_again_and_the_quieter_time_kept(
    learnt: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the sentinel usually takes a second; beside the first two networks twice and thrice that, then once and
    # four times; with the first so quick, the third's spell was a slow one, too
    paces = at_paces(monkeypatch, [2.0, 3.0, 1.1], [1.0, 4.0], [2.5, 1.2])
    speed = NetworkSpeed(1.0, 1.0, 1.0, slowest=1.25)
    here = dataclasses.replace(learnt, device=read_cpu().name, speed=speed)
    cases = [Request("zoo:deep_mnist", batch) for batch in (1, 2, 3)]
    first, second, third = evaluate(cases, here)
    assert [e.request.batch_size for e in (first, second, third)] == [1, 2, 3]
    assert (first.measured_s, first.too_slow, first.slowdown) == (1.0, None, 1.0)
    assert (second.measured_s, second.too_slow, second.slowdown) == (2.5, 2.5, 1.25)
    assert (third.measured_s, third.over, third.too_slow) == (1.1, 1.1, None)
    assert next(paces, None) is None


def test_spells_slower_than_others_are_measured_again_but_not_those_of_the_usual_speed(
    learnt: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces = at_paces(monkeypatch, [0.8, 0.99, 1.15, 1.01], [0.9, 0.95])
    here = dataclasses.replace(
        learnt, device=read_cpu().name, speed=NetworkSpeed(1.0, 1.0, 1.0, slowest=1.25)
    )
    found = evaluate([Request("zoo:deep_mnist", batch) for batch in (1, 2, 3, 4)], here)
    assert [e.measured_s for e in found] == [0.8, 0.99, 0.9, 0.95]
    assert next(paces, None) is None
    elsewhere = dataclasses.replace(here, device="Another CPU")
    at_paces(monkeypatch, [0.8, 1.15])
    found = evaluate([Request("zoo:deep_mnist", batch) for batch in (1, 2)], elsewhere)
    assert [e.measured_s for e in found] == [0.8, 1.15]


def test_the_wait_for_cores_that_others_had_is_corrected_and_a_quieter_time_kept(
    learnt: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the sentinel, which is short, takes its usual time throughout; the second network waits half of its time
    def timing(measured_s: float, waited_s: float) -> Timing:
        return Timing((measured_s,), measured_s, 1.0, 1.0, 0.0, (), 0.0, waited_s=(waited_s,))

    quiet, shared, less = timing(3.0, 0.0), timing(4.0, 2.0), timing(2.5, 0.5)
    rounds = iter([[quiet, shared], [shared], [less]])
    monkeypatch.setattr(evaluation, "time_calls", lambda *_, **__: next(rounds))
    elsewhere = dataclasses.replace(learnt, device="Another CPU")
    first, second = evaluate([Request("zoo:deep_mnist", batch) for batch in (1, 2)], elsewhere)
    assert (first.measured_s, first.waited, first.corrected_s) == (3.0, 0.0, 3.0)
    assert (second.measured_s, second.waited, second.corrected_s) == pytest.approx((2.5, 0.2, 2.0))
    assert next(rounds, None) is None


def test_what_fails_when_it_is_measured_once_more_was_measured(
    learnt: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [RuntimeError("no memory is left")]
    timings = iter([[Timing((2.0,), 2.0, 2.0, 2.0, 0.0, (), 0.0)], lost, lost])
    monkeypatch.setattr(evaluation, "time_calls", lambda *_, **__: next(timings))
    here = dataclasses.replace(
        learnt, device=read_cpu().name, speed=NetworkSpeed(1.0, 1.0, 1.0, slowest=1.25)
    )
    (e,) = evaluate([Request("zoo:deep_mnist")], here)
    assert (e.measured_s, e.too_slow) == (2.0, 2.0)
