"""Backward passes that a model writes itself are traced as written, not derived from the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv1d_input, conv1d_weight
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from neuralpower.layers.rows import to_row
from neuralpower.networks.running import META
from neuralpower.prediction.memory.peak import training_memory
from neuralpower.profiling import profile
from neuralpower.trace.passes import applied
from neuralpower.trace.question import Knows, Question
from neuralpower.trace.recipe import Recipe, default_loss
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace

PRODUCTS = ("linear", "matmul", "conv1d")
ROWS, WIDTH, CLASSES = 32, 16, 50


def training_tasks(found: Trace, recipe: Recipe, knows: Knows) -> tuple[Task, ...]:
    return applied(found, Question("training", recipe=recipe, knows=knows)).tasks


class FusedLoss(Function):
    """Cross entropy of x W^T in parts of 8 rows; its forward pass makes the gradients, as fused losses do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        """The sum over all rows."""
        of_x, of_weight, loss = torch.empty_like(x), torch.zeros_like(weight), x.new_zeros(())
        for i in range(0, len(x), 8):
            part, place = x[i : i + 8], target[i : i + 8]
            shares = (part @ weight.t()).softmax(-1)
            loss = loss + F.nll_loss(shares.log(), place, reduction="sum")
            back = shares - F.one_hot(place, len(weight)).to(shares.dtype)
            if ctx.needs_input_grad[0]:
                of_x[i : i + 8] = back @ weight
            if weight.requires_grad:
                of_weight += back.t() @ part
        ctx.save_for_backward(of_x, of_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """What is there, times the gradient."""
        of_x, of_weight = ctx.saved_tensors
        return of_x * gradient, of_weight * gradient, None


class Rounded(Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Whole numbers."""
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """As if nothing was rounded."""
        return gradient


class Reversed(Function):
    """A reversed gradient: the forward pass is a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        """The same numbers."""
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Reversed."""
        return gradient.neg() * ctx.factor, None


class OwnGelu(Function):
    """GELU with a backward pass of three functions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """GELU."""
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Erf, exp and what joins them."""
        (x,) = ctx.saved_tensors
        return gradient * (torch.erf(x) + x * torch.exp(x))


class Product(Function):
    """x W^T, whose context is set up apart."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        """The product."""
        return x @ weight.t()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Both operands are kept."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """A product for each requested gradient."""
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return gradient @ weight if needs_x else None, gradient.t() @ x if needs_weight else None


class Several(Function):
    """A product, twice its input, and places; missing gradients come as None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Any:
        """Three outputs, of which two have gradients."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        places = x.argmax(-1)
        ctx.mark_non_differentiable(places)
        return x @ weight.t(), x * 2, places

    @staticmethod
    def backward(ctx: Any, product: Tensor | None, double: Tensor | None, _: Tensor | None) -> Any:
        """The gradient of each input that needs one."""
        x, weight = ctx.saved_tensors
        of_x = None if double is None else double * 2
        if product is None:
            return of_x, None
        return product @ weight if of_x is None else of_x + product @ weight, product.t() @ x


class Nested(Function):
    """A function that calls another in both of its passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(x, weight)
        y: Tensor = Product.apply(x, weight)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The product once more, and its own backward pass."""
        with torch.enable_grad():
            x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            y = Product.apply(x, weight)
        return torch.autograd.grad(y, (x, weight), gradient)


class Again(Function):
    """A block that keeps only its input and runs again; its weights and its input get gradients."""

    @staticmethod
    def forward(ctx: Any, block: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The block."""
        ctx.block = block
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The block again, and back."""
        (x,) = ctx.saved_tensors
        x = x.detach()
        x.requires_grad = True
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class AgainGrad(Function):
    """The same, with the weights among its inputs."""

    @staticmethod
    def forward(ctx: Any, block: Callable[[Tensor], Tensor], x: Tensor, *weights: Tensor) -> Tensor:
        """The block."""
        ctx.block = block
        ctx.save_for_backward(x, *weights)
        return block(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The block again, and back."""
        x, *weights = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.block(x)
        return None, *torch.autograd.grad(y, (x, *weights), gradient)


class OwnCheckpoint(Function):
    """A checkpoint as libraries write it, which asks what requires a gradient."""

    @staticmethod
    def forward(ctx: Any, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """The block."""
        ctx.block = block
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return block(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The block again, and back through what asks."""
        inputs = tuple(one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors)
        with torch.enable_grad():
            outputs = [ctx.block(*inputs)]
        asking = [output for output in outputs if output.requires_grad]
        torch.autograd.backward(asking, [gradient for _ in asking])
        return None, *(one.grad for one in inputs)


class Reversible(Function):
    """A pair of streams whose inputs are made again of its outputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, first: Any, second: Any) -> Any:
        """Each stream is added what a function makes of the other."""
        ctx.first, ctx.second = first, second
        x = x + first(y)
        y = y + second(x)
        ctx.save_for_backward(x.detach(), y.detach())
        return x, y

    @staticmethod
    def backward(ctx: Any, of_x: Tensor, of_y: Tensor) -> Any:
        """Both functions again, the second first."""
        x, y = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            made = ctx.second(x)
            made.backward(of_y)
        of_x, y = of_x + x.grad, y - made
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            made = ctx.first(y)
            made.backward(of_x)
        return of_x, of_y + y.grad, None, None


class Written(Function):
    """A function that writes into its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Twice as much."""
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Twice as much."""
        return gradient * 2


class Doubling(Function):
    """What the next ones begin with."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Twice as much."""
        return x * 2


class Blocked(Doubling):
    """A function through which no gradient goes."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        """None."""


class OwnSoftmax(Function):
    """With the operator that autograd itself calls for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Softmax."""
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Autograd's own."""
        (y,) = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, y, -1, y.dtype)


class OwnConvolution(Function):
    """With the two halves of a convolution's backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Over one place."""
        ctx.save_for_backward(x, weight)
        return F.conv1d(x[None], weight[..., None])[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Each half by itself."""
        x, weight = ctx.saved_tensors
        of_x = conv1d_input(x[None].shape, weight[..., None], gradient[None])
        of_weight = conv1d_weight(x[None], weight[..., None].shape, gradient[None])
        return of_x[0], of_weight[..., 0]


class Asking(Doubling):
    """Its backward pass asks for a value, which neither meta nor fake tensors have."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Twice any gradient."""
        return gradient * 2 if gradient.sum().item() < 1e9 else gradient * 3


class Raising(Asking):
    """Its backward pass never runs."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Raise."""
        raise ValueError("no values are good enough")


class Net(nn.Module):
    """Whatever a function makes of x [32, 16] with two square matrices and a table."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.one, self.two = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.table = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def in_turn(net: Net, x: Tensor) -> Tensor:
    for _ in range(10):
        x = Product.apply(x, net.two.weight)
    return x


def labels() -> Tensor:
    return torch.zeros(ROWS, dtype=torch.int64)


CASES: dict[str, Any] = {
    "fused loss": lambda net, x: FusedLoss.apply(net.one(x), net.table, labels()),
    "fused loss of an input": lambda net, x: FusedLoss.apply(x, net.table, labels()),
    "straight through": lambda net, x: net.two(Rounded.apply(net.one(x))),
    "reversal": lambda net, x: net.two(Reversed.apply(net.one(x), 0.5)),
    "own gelu": lambda net, x: net.two(OwnGelu.apply(net.one(x))),
    "apart": lambda net, x: Product.apply(net.one(x), net.two.weight),
    "of weights alone": lambda net, x: Product.apply(x, net.two.weight),
    "twice": lambda net, x: Product.apply(Product.apply(net.one(x), net.two.weight), net.two.weight),
    "in a loop": in_turn,
    "first of several": lambda net, x: Several.apply(net.one(x), net.two.weight)[0],
    "second of several": lambda net, x: Several.apply(net.one(x), net.two.weight)[1],
    "two of several": lambda net, x: sum(Several.apply(net.one(x), net.two.weight)[:2]),
    "nested": lambda net, x: Nested.apply(net.one(x), net.two.weight),
    "run again": lambda net, x: Again.apply(lambda v: net.two(torch.relu(net.two(v))), net.one(x)),
    "run again with weights": lambda net, x: AgainGrad.apply(
        lambda v: F.linear(v, net.two.weight).relu(), net.one(x), net.two.weight
    ),
    "own checkpoint": lambda net, x: OwnCheckpoint.apply(
        lambda v: F.linear(F.linear(v, net.two.weight).relu(), net.two.weight), net.one(x)
    ),
    "reversible": lambda net, x: sum(
        Reversible.apply(
            net.one(x),
            net.one(x),
            lambda v: F.linear(v, net.two.weight),
            lambda v: F.linear(v, net.two.weight),
        )
    ),
    "written": lambda net, x: net.two(Written.apply(net.one(x).clone())),
    "blocked": lambda net, x: net.two(Blocked.apply(net.one(x))),
    "softmax": lambda net, x: net.two(OwnSoftmax.apply(net.one(x))),
    "convolution": lambda net, x: OwnConvolution.apply(net.one(x)[:WIDTH], net.two.weight),
    "checkpointed": lambda net, x: checkpoint(
        lambda v: net.two(Product.apply(net.one(v), net.two.weight)), x, use_reentrant=False
    ),
    "checkpointed last": lambda net, x: checkpoint(
        lambda v: Product.apply(net.one(v), net.two.weight), x, use_reentrant=False
    ),
    "checkpointed reentrant": lambda net, x: checkpoint(
        lambda v: Product.apply(v, net.two.weight), net.one(x), use_reentrant=True
    ),
    "hook": lambda net, x: net.two(hooked(net.one(x), lambda gradient: gradient @ net.two.weight)),
}


def hooked(y: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
    y.register_hook(hook)
    return y


def traced(function: Any) -> Trace:
    return trace(Net(function), (torch.empty(ROWS, WIDTH, device=META),), training=True, loss=default_loss)


def product_flops(found: Trace) -> float:
    """The FLOP of products in forward and backward pass."""
    tasks = training_tasks(found, Recipe("adam", "loop"), lambda kind, phase: False)
    return sum(task.share * task.layer.flops() for task in tasks if task.layer.kind in PRODUCTS)


@pytest.mark.parametrize("case", CASES)
def test_flops_of_a_step_are_those_that_pytorch_counts(case: str) -> None:
    net = Net(CASES[case])
    with FlopCounterMode(display=False) as counter:
        default_loss(net(torch.randn(ROWS, WIDTH))).backward()
    found = traced(CASES[case])
    assert found.method == "meta"
    assert product_flops(found) == counter.get_total_flops()
    got = [p.numel() for p in net.parameters() if p.grad is not None]
    assert [numbers for _, numbers in found.trained] == got


def test_a_fused_losss_gradients_are_made_once() -> None:
    # x [32, 16], W [50, 16]: one product is 2 x 32 x 16 x 50 = 51,200 FLOP, and three of them are in the
    # forward pass. The layer before it takes 2 x 32 x 16 x 16 = 16,384 forward and as many for its weights'
    # gradient.
    found = traced(CASES["fused loss"])
    assert product_flops(found) == 3 * 51_200 + 2 * 16_384
    (own,) = found.own_backward
    # what the loss takes backward: of_x [32, 16] and of_weight [50, 16] times a number
    assert [(call.layer.kind, to_row(call.layer)["elements"]) for call in own.calls] == [
        ("elementwise", ROWS * WIDTH),
        ("elementwise", CLASSES * WIDTH),
    ]


def test_what_a_backward_pass_runs_again_is_no_work_of_the_models_own() -> None:
    tasks = training_tasks(traced(CASES["run again"]), Recipe(), lambda kind, phase: True)
    assert [task.path for task in tasks if task.again] == ["two", "", "two"]


def test_a_gradient_that_is_none_goes_no_further() -> None:
    found = traced(CASES["blocked"])
    assert [call.gradient for call in found.calls if call.path == "one"] == [0.0]
    assert [numbers for _, numbers in found.trained] == [WIDTH * WIDTH]


def test_a_loops_backward_passes_recur_as_its_forward_passes_do() -> None:
    found = traced(CASES["in a loop"])
    forward = [call.layer.recurs for call in found.calls if call.layer.kind in PRODUCTS]
    backward = [call.layer.recurs for own in found.own_backward for call in own.calls]
    assert forward.count(True) == 9
    assert backward.count(True) == 2 * 9


def test_what_needs_values_is_followed_where_there_are_some() -> None:
    found = traced(lambda net, x: net.two(Asking.apply(net.one(x))))
    assert found.method == "cpu"
    assert found.assumptions == ()
    assert "Asking.backward raises" in found.notes[0]


def test_what_cannot_be_followed_at_all_is_derived_and_said() -> None:
    found = traced(lambda net, x: net.two(Raising.apply(net.one(x))))
    assert found.method == "meta"
    assert found.assumptions == (
        "the backward pass of Raising is derived from its forward pass, since it cannot be "
        "followed: Raising.backward raises "
        "ValueError: no values are good enough",
    )
    # 2 x 32 x 16 x 16 FLOP: two products forward, one for the first layer's weights, two for the second
    assert product_flops(found) == 5 * 16_384


def test_a_pass_that_trains_nothing_runs_no_backward_pass() -> None:
    net = Net(lambda net, x: net.two(Raising.apply(net.one(x))))
    for training in (False, None):
        assert trace(net, (torch.empty(ROWS, WIDTH),), training=training).assumptions == ()


@pytest.mark.parametrize("case", ["fused loss", "own gelu", "run again", "two of several"])
def test_a_profile_counts_the_same_products(case: str) -> None:
    net = Net(CASES[case])
    found = profile(net, torch.randn(ROWS, WIDTH), phase="training", warmup=0, repeat=1)
    assert found.total.matmul_flops == product_flops(traced(CASES[case]))


def test_a_network_is_as_before() -> None:
    own = {name: vars(kind)[name] for kind, name in ((Function, "apply"), (Tensor, "register_hook"))}
    engine, net = vars(torch.autograd)["_engine_run_backward"], Net(CASES["run again"])
    trace(net, (torch.empty(ROWS, WIDTH),), training=True, loss=default_loss)
    assert own == {"apply": vars(Function)["apply"], "register_hook": vars(Tensor)["register_hook"]}
    assert vars(torch.autograd)["_engine_run_backward"] is engine
    assert all(p.requires_grad and p.grad is None for p in net.parameters())


def test_hooks_that_are_not_priced_are_named() -> None:
    net = Net(lambda net, x: net.two(net.one(x)))
    net.one.register_full_backward_hook(lambda *_: None)
    net.two.weight.register_hook(lambda gradient: gradient * 2)
    found = trace(net, (torch.empty(ROWS, WIDTH),), training=True, loss=default_loss)
    assert found.assumptions == ("hooks on gradients are not counted: one, two.weight",)


def test_an_operators_registered_backward_pass_is_followed() -> None:
    # outside of this test no library has it
    made = torch.library.custom_op(
        "neuralpower_test::product",
        lambda x, w: x @ w.t(),
        mutates_args=(),
        schema="(Tensor x, Tensor w) -> Tensor",
    )
    made.register_fake(lambda x, w: x.new_empty(len(x), len(w)))
    made.register_autograd(
        lambda ctx, g: (g @ ctx.saved_tensors[1], g.t() @ ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    found = traced(lambda net, x: made(net.one(x), net.two.weight))
    assert [(call.operator, call.once) for call in found.unmodelled] == [("neuralpower_test.product", True)]
    # two products of the layer, forward and for its weights, and two backward of the operator: 16,384 FLOP
    # each
    assert product_flops(found) == 4 * 16_384
    assert [numbers for _, numbers in found.trained] == [WIDTH * WIDTH] * 2


def test_what_a_function_keeps_is_there_until_its_backward_pass() -> None:
    # 1,024 x 256 numbers are 1 MiB: x, y = 2 x and a product that depends on nothing that is kept
    class Keeps(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, count: int) -> Tensor:
            ctx.kept = [x * n for n in range(count)]
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return gradient * ctx.kept[0], None

    class Model(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count, self.scale = count, nn.Parameter(torch.ones(256))

        def forward(self, x: Tensor) -> Any:
            return Keeps.apply(x * self.scale, self.count).sum()

    peaks = [
        training_memory(
            training_lifetimes(Model(count), (torch.empty(1024, 256, device=META),), loss=lambda y: y)
        ).tensor_bytes
        for count in (1, 4)
    ]
    assert peaks[1] - peaks[0] == 3 * 2**20
