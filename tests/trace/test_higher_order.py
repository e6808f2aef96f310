"""Operators that take functions, and gradients that a forward pass takes itself: FLOP by hand or by torch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as hop_map
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.wrap import wrap, wrap_with_autocast, wrap_with_set_grad_enabled
from torch._ops import HigherOrderOperator
from torch.autograd import forward_ad, functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import neuralpower
from neuralpower.errors import ModelError
from neuralpower.layers.attention import Attention, window_of
from neuralpower.platforms import CPU
from neuralpower.prediction.memory.peak import peak
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace

# torch scripts helpers when it first compiles or derives forward, and calls what it has deprecated
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:return_lse is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),
]

X, W = torch.randn(8, 16), torch.randn(16, 16)
PRODUCT = 2 * 8 * 16 * 16  # FLOP of X @ W


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def products_of(model: Any, *inputs: Tensor, unmodelled: Sequence[str] = (), **how: Any) -> int:
    """FLOP of the products of a traced function or module, all of whose operators are known."""
    module = model if isinstance(model, nn.Module) else Calls(model)
    found = trace(module, inputs, **how)
    assert [call.operator for call in found.unmodelled] == [*unmodelled]
    return sum(int(call.layer.flops()) for call in found.calls if call.layer.multiplies)


def positive(x: Tensor) -> Tensor:
    return x.sum() > 0


def nested(x: Tensor, w: Tensor) -> Any:
    def inner(y: Tensor) -> Any:
        return torch.cond(y.sum() > 1, lambda z: (z @ w) @ w, lambda z: z * 1, (y,))

    return torch.cond(positive(x), inner, lambda y: y @ w, (x,))


def three_times(x: Tensor, w: Tensor) -> Any:
    def goes_on(i: Tensor, y: Tensor) -> Any:
        return i < 3

    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, y @ w

    return while_loop(goes_on, body, (torch.tensor(0), x))


def row_by_row(x: Tensor, w: Tensor) -> Any:
    def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return state @ w + row, state * 1.0

    return scan(step, x.new_zeros(1, 16), x.reshape(8, 1, 16))


def multiplied_on(x: Tensor, w: Tensor) -> Any:
    def together(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    return associative_scan(together, w.expand(4, 16, 16).contiguous(), 0, combine_mode="generic")


def in_parts(x: Tensor, w: Tensor) -> Any:
    def product(rows: Tensor) -> Tensor:
        return rows @ w

    return hop_map(product, x.reshape(4, 2, 16))


# function -> products of X @ W that it makes
COUNTED: dict[str, tuple[Callable[[Tensor, Tensor], Any], float]] = {
    "cond": (lambda x, w: torch.cond(positive(x), lambda y: y @ w, lambda y: y * 2, (x,)), 1),
    "cond, the other": (lambda x, w: torch.cond(positive(x), lambda y: y * 2, lambda y: y @ w, (x,)), 1),
    "cond, both": (lambda x, w: torch.cond(positive(x), lambda y: y @ w, lambda y: (y @ w) @ w, (x,)), 2),
    "cond in cond": (nested, 2),
    "while_loop": (three_times, 3),
    "map": (in_parts, 1),
    "scan": (row_by_row, 1),
    # a tree over 4 elements: 2 and 1 combinations up, 1 down, each of 16 x 16 x 16
    "associative_scan": (multiplied_on, 4 * 16 / 8),
    "invoke_subgraph": (lambda x, w: torch.compiler.nested_compile_region(lambda y: y @ w)(x), 1),
    "wrap": (lambda x, w: wrap(lambda y: y @ w, x), 1),
    "wrap_with_set_grad_enabled": (
        lambda x, w: wrap_with_set_grad_enabled(True, lambda y: y @ w, x),
        1,
    ),
    "wrap_with_autocast": (
        lambda x, w: wrap_with_autocast("cpu", torch.bfloat16, True, None, lambda y: y @ w, x),
        1,
    ),
    "strict_mode": (lambda x, w: strict_mode(lambda y: y @ w, (x,)), 1),
    "foreach_map": (lambda x, w: foreach_map(torch.matmul, [x, x], [w, w]), 2),
    "out_dtype": (
        lambda x, w: out_dtype(torch.ops.aten.mm.default, torch.int32, x.to(torch.int8), w.to(torch.int8)),
        1,
    ),
    "checkpoint": (lambda x, w: checkpoint(lambda y: y @ w, x, use_reentrant=False), 1),
    "torch.compile": (lambda x, w: torch.compile(lambda y: y @ w)(x), 1),
    "vmap": (lambda x, w: torch.vmap(lambda row: row @ w)(x), 1),
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_an_operator_is_given_is_counted(name: str) -> None:
    function, times = COUNTED[name]
    assert products_of(function, X, W) == times * PRODUCT


def test_of_branches_the_costlier_one_counts_and_both_are_said() -> None:
    found = trace(Calls(COUNTED["cond, both"][0]), (X, W))
    assert "cond: of its branches (4,096 and 8,192 FLOP) the costlier one counts" in found.assumptions
    assert found.method == "meta"


class Branches(nn.Module):
    """`cond` between two layers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 32)
        self.back = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, self.one, lambda y: self.back(self.other(y)), (x,))


def test_a_branch_is_named_by_its_modules_and_trained() -> None:
    found = trace(Branches(), (X,), training=True, loss=lambda y: y.sum())
    assert [call.path for call in found.calls if call.layer.kind == "linear"] == ["other", "back"]
    # weights of both, and the input of the second
    assert [call.gradient for call in found.calls if call.layer.kind == "linear"] == [0.5, 1.0]


@pytest.mark.parametrize("decomposed", [False, True])
def test_an_exported_program_keeps_its_branches(decomposed: bool) -> None:
    class Network(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Any:
            return torch.cond(x.sum() > 0, lambda x, w: x @ w, lambda x, w: x * 2, (x, w))

    products_of(COUNTED["cond"][0], X, W)  # leaves nothing in the compiler that an export would find
    program = torch.export.export(Network(), (X, W))
    module = (program.run_decompositions() if decomposed else program).module()
    assert products_of(module, X, W) == PRODUCT


def test_an_operator_that_cannot_be_followed_is_refused_by_its_name() -> None:
    class Foreign(HigherOrderOperator):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    operator = Foreign("neuralpower_foreign")
    with pytest.raises(ModelError, match="calls neuralpower_foreign, which cannot be followed; write it as"):
        trace(Calls(lambda x: operator(lambda y: y, x)), (X,))
    with pytest.raises(ModelError, match="give combine_mode='generic'"):
        trace(Calls(lambda x: associative_scan(torch.add, x, 0)), (X,))


Q = torch.randn(2, 4, 32, 16)  # batch, heads, length, size
ATTENDED = 4 * 2 * 4 * 32 * 32 * 16  # FLOP of both its products, as torch counts them for any mask


def blocks(rule: Callable[..., Tensor]) -> BlockMask:
    return create_block_mask(rule, None, None, 32, 32, device="cpu")


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < 8)


DOCUMENTS = torch.arange(32) // 8


def of_document(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return DOCUMENTS[q] == DOCUMENTS[k]


@pytest.mark.parametrize(
    ("options", "fields", "flops", "said"),
    [
        ({}, {}, ATTENDED, ""),
        ({"score_mod": lambda score, b, h, q, k: score + (q - k)}, {}, ATTENDED, "score_mod are not counted"),
        ({"block_mask": causal}, {"causal": True}, ATTENDED, ""),
        ({"block_mask": near}, {"causal": True, "window": 8}, ATTENDED // 4, ""),
        ({"block_mask": of_document}, {}, ATTENDED, "blocks that its mask leaves out are counted, too"),
        ({"return_lse": True}, {}, ATTENDED, ""),
    ],
)
def test_flex_attention_is_one_kernel(options: Any, fields: Any, flops: int, said: str) -> None:
    given = {n: blocks(value) if n == "block_mask" else value for n, value in options.items()}
    for call in (flex_attention, torch.compile(flex_attention)):
        found = trace(Calls(lambda q, call=call: call(q, q, q, **given)), (Q,))
        (layer,) = [c.layer for c in found.calls if c.layer.kind == "attention"]
        alike = {"batch": 2, "query_heads": 4, "key_heads": 4, "query_length": 32, "key_length": 32}
        wanted = {"head_size": 16, "causal": False, "masked": False, **alike, **fields}
        assert layer == Attention(**wanted)
        assert layer.flops() == flops
        assert any(said in note for note in found.assumptions)


def test_flex_attention_with_fewer_heads_of_keys_and_a_mask_of_its_own_forward() -> None:
    def forward(q: Tensor) -> Any:
        mask = create_block_mask(causal, None, None, 32, 32, device=str(q.device))
        return flex_attention(q, q[:, :2], q[:, :2], block_mask=mask, enable_gqa=True)

    assert products_of(forward, Q) == ATTENDED


def test_flex_attention_with_values_of_another_size_is_followed_in_its_parts() -> None:
    # scores as before, and half of the other product
    assert products_of(lambda q: flex_attention(q, q, q[..., :8]), Q) == ATTENDED * 3 // 4


def test_a_window_is_read_from_a_rule() -> None:
    assert window_of(causal, 300, 300) == 0
    assert window_of(near, 300, 300) == 8
    assert window_of(near, 1, 300) is None  # one query has no window among its keys
    assert window_of(lambda b, h, q, k: q * k >= 0, 300, 300) is None  # all
    assert window_of(lambda b, h, q, k: torch.tensor([])[q] > k, 300, 300) is None  # it raises


# gradients that a forward pass takes itself


def energy(y: Tensor, w: Tensor) -> Tensor:
    return (y @ w).tanh().sum()


def forces(x: Tensor, w: Tensor) -> Tensor:
    place = x.detach().requires_grad_(True)
    with torch.enable_grad():
        return torch.autograd.grad(energy(place, w), place)[0]


def twice(x: Tensor, w: Tensor) -> Tensor:
    place = x.detach().requires_grad_(True)
    with torch.enable_grad():
        (first,) = torch.autograd.grad(energy(place, w), place, create_graph=True)
        return torch.autograd.grad(first.square().sum(), place)[0]


def stepped(x: Tensor, w: Tensor) -> Any:
    place = x.detach().requires_grad_(True)
    with torch.enable_grad():
        energy(place, w).backward()
    return place.grad


def dual(x: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, x) @ w).tangent


TAKING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "grad": forces,
    "grad of grad": twice,
    "backward": stepped,
    "forward_ad": dual,
    "jacobian": lambda x, w: functional.jacobian(lambda y: (y @ w).tanh(), x),
    "jacobian at once": lambda x, w: functional.jacobian(lambda y: (y @ w).tanh(), x, vectorize=True),
    "hessian": lambda x, w: functional.hessian(lambda y: energy(y, w), x[:2]),
    "vjp": lambda x, w: functional.vjp(lambda y: (y @ w).tanh(), x, x),
    "jvp": lambda x, w: functional.jvp(lambda y: (y @ w).tanh(), x, x),
    "vhp": lambda x, w: functional.vhp(lambda y: energy(y, w), x, x),
    "hvp": lambda x, w: functional.hvp(lambda y: energy(y, w), x, x),
    "func.grad": lambda x, w: torch.func.grad(lambda y: energy(y, w))(x),
    "func.jacrev": lambda x, w: torch.func.jacrev(lambda y: (y @ w).tanh())(x),
    "func.jacfwd": lambda x, w: torch.func.jacfwd(lambda y: (y @ w).tanh())(x),
    "func.hessian": lambda x, w: torch.func.hessian(lambda y: energy(y, w))(x[:2]),
    "func.jvp": lambda x, w: torch.func.jvp(lambda y: (y @ w).tanh(), (x,), (x,)),
}


@pytest.mark.parametrize("name", TAKING)
def test_gradients_within_a_forward_pass_are_counted_as_torch_counts_them(name: str) -> None:
    with FlopCounterMode(display=False) as counter:
        TAKING[name](X, W)
    assert products_of(TAKING[name], X, W) == counter.get_total_flops() >= 2 * PRODUCT


class Potential(nn.Module):
    """An energy of places [atoms, 3], and its forces."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, places: Tensor) -> tuple[Tensor, Tensor]:
        places = places.requires_grad_(True)
        with torch.enable_grad():
            found = self.net(places).sum()
            (slope,) = torch.autograd.grad(found, places, create_graph=self.training)
        return found, -slope


def test_forces_of_a_small_network_are_followed() -> None:
    # 32 atoms: 2 x 32 x (3 x 64 + 64 x 64 + 64) forward, and as much for the gradient of the places
    model, places = Potential(), torch.randn(32, 3)
    assert products_of(model, places) == 2 * 2 * 32 * (3 * 64 + 64 * 64 + 64) == 557_056
    assert "its forward pass takes gradients itself" in " ".join(trace(model, (places,)).assumptions)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not places.requires_grad
    # in training a gradient passes through the forces, too: weights get one from each of the five layers
    trained = trace(model, (places,), training=True, loss=lambda found: found[1].square().sum())
    assert {name for name in trained.trained_names if name.endswith("weight")} == {
        f"net.{i}.weight" for i in (0, 2, 4)
    }


def test_weights_that_a_forward_pass_adapts_itself_are_followed() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                weights = list(self.layer.parameters())
                slopes = torch.autograd.grad(self.layer(x).square().mean(), weights)
                return F.linear(x, *(w - 0.1 * g for w, g in zip(weights, slopes, strict=True)))

    assert products_of(Adapted(), X) == 3 * PRODUCT  # forward, of the weights, with the new ones


def image_gradient(layer: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        place = x.detach().requires_grad_(True)
        with torch.enable_grad():
            return torch.autograd.grad(layer(place).sum(), place)[0]

    return forward


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(3, 8, 3), (2, 3, 16)),
        (nn.Conv2d(3, 8, 3), (2, 3, 16, 16)),
        (nn.Conv3d(3, 8, 3), (2, 3, 4, 8, 8)),
        (nn.ConvTranspose2d(3, 8, 3), (2, 3, 8, 8)),
        (nn.LSTM(16, 32, batch_first=True), (2, 8, 16)),
        (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (2, 8, 32)),
    ],
)
def test_the_gradient_of_a_layers_input_takes_as_many_multiply_adds_again(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    def run(x: Tensor) -> Any:
        output = layer(x)
        return output[0] if isinstance(output, tuple) else output

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return image_gradient(run)(x)

    module = Network().eval()
    whole = trace(layer.eval(), (torch.randn(*shape),))
    once = sum(int(call.layer.flops()) for call in whole.calls if call.layer.multiplies)
    both = products_of(module, torch.randn(*shape))
    if isinstance(layer, nn.TransformerEncoderLayer):  # each product of two activations has two gradients
        once += 4 * 2 * 4 * 8 * 8 * 8 // 2
    first_state = 2 * 2 * 32 * 4 * 32 if isinstance(layer, nn.LSTM) else 0  # nobody asks for its gradient
    assert both in (2 * once, 2 * once - first_state)


@pytest.mark.parametrize(
    "layer",
    [
        torch.relu,
        F.gelu,
        F.silu,
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.adaptive_avg_pool2d(x, 3),
        lambda x: F.group_norm(x, 2),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.layer_norm(x, (16,)),
        lambda x: F.rms_norm(x, (16,)),
        lambda x: torch.softmax(x, -1),
        lambda x: F.log_softmax(x, -1),
        lambda x: x[:, 2:4],
        lambda x: x.max(-1)[0],
        lambda x: x.cumsum(-1),
        lambda x: F.dropout(x, 0.1),
    ],
)
def test_backward_operators_of_autograd_are_known(layer: Callable[[Tensor], Tensor]) -> None:
    assert products_of(image_gradient(layer), torch.randn(2, 8, 16, 16)) == 0


def test_where_no_gradient_is_taken_composite_operators_stay_whole() -> None:
    found = trace(nn.Linear(16, 16), (X,))
    assert [call.operator for call in found.calls] == ["aten.linear"]
    assert not any("takes gradients" in note for note in found.assumptions)
    assert math.isclose(found.flops, PRODUCT)


def test_a_step_through_branches_has_a_time_and_a_memory() -> None:
    found = neuralpower.load("amd-epyc-2c").predict(Branches(), X, phase="training")
    # the costlier branch: two products of 2 x 8 x 16 x 32 FLOP, gradients of both weights and of one input
    assert found.flops > 5 * 2 * 8 * 16 * 32
    assert not any("its memory is not known" in remark for remark in found.remarks)
    assert found.memory is not None
    # gradients of the layers of that branch alone: 16 x 32 + 32, 32 x 16 + 16
    assert found.memory.parts["gradients"] == 4 * (16 * 32 + 32 + 32 * 16 + 16)


class Weighted(nn.Module):
    """A function of X and a weight [16, 16]."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.w, self.function = nn.Parameter(W.clone()), function

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.w)


def at_the_peak(module: nn.Module, x: Tensor) -> int:
    """Bytes at the peak of a step."""
    return peak(training_lifetimes(module, (x,), {}, platform=CPU, stepped=False).storages)[0]


@pytest.mark.parametrize("name", sorted(COUNTED.keys() - {"out_dtype"}))
def test_the_memory_of_a_step_is_followed_through_what_an_operator_is_given(name: str) -> None:
    # input, weight and its gradient
    assert at_the_peak(Weighted(COUNTED[name][0]), X) > X.nbytes + 2 * W.nbytes


def test_a_branch_keeps_its_operands_and_runs_again_in_the_backward_pass() -> None:
    def wide(y: Tensor) -> Tensor:  # 64 times as much as its input, and as its output
        return y.repeat(1, 64).exp().sin().exp().reshape(8, 64, 16).sum(1)

    def branch(y: Tensor) -> Any:
        return torch.cond(positive(y), wide, wide, (y,))

    plain = at_the_peak(Weighted(lambda x, w: wide(wide(x @ w))), X)
    kept = at_the_peak(Weighted(lambda x, w: branch(branch(x @ w))), X)
    # the two exponentials of one of them, 8 x 1,024 numbers each, but for the operands
    assert plain - kept > 2 * 8 * 1024 * 4 - 4 * X.nbytes


def test_the_fused_kernel_keeps_no_scores() -> None:
    class Network(nn.Module):
        def __init__(self, fused: bool) -> None:
            super().__init__()
            self.layer, self.fused = nn.Linear(16, 48), fused

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.layer(x).view(2, 512, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
            if self.fused:
                mask = create_block_mask(causal, None, None, 512, 512, device=str(x.device))
                return flex_attention(q, k, v, block_mask=mask)
            return torch.softmax(q @ k.mT, -1) @ v

    x, scores = torch.randn(2, 512, 16), 2 * 4 * 512 * 512 * 4
    sizes = {fused: at_the_peak(Network(fused), x) for fused in (True, False)}
    tensor = 2 * 512 * 16 * 4  # x, q, k, v, the output, and a gradient of each, at most
    assert sizes[True] < 16 * tensor < scores < sizes[False]
