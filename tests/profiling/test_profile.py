"""A profile counts all work, adds up and leaves the model as it was; bugs of other profilers, one by one."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _len_torch_dispatch_stack  # type: ignore[attr-defined]

import neuralpower
from benchmarks.flops import counted, networks
from neuralpower.api import functions
from neuralpower.errors import DeviceError, InputError, ModelError
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.running import is_composite
from neuralpower.networks.sources import resolve
from neuralpower.profiling import NetworkProfile, profile
from neuralpower.profiling.conventions import CONVENTIONS
from neuralpower.profiling.row_builder import Builder
from neuralpower.profiling.rows import OVERHEAD, REMAINDER
from neuralpower.profiling.steps import Repeat, Runs, Spread
from neuralpower.profiling.stopwatch import Account, Event
from neuralpower.trace.tracer import trace
from tests.beit import small_beit
from tests.program import done, run
from tests.sampled import some_always
from tests.simulated import hundred_watts

GPT2 = "transformers:GPT2Model?n_layer=2&n_embd=64&n_head=4&vocab_size=100&bos_token_id=0&eos_token_id=0"
BERT = (
    "transformers:BertModel?num_hidden_layers=2&hidden_size=64&num_attention_heads=4&intermediate_size=256"
    "&vocab_size=100"
)


class Block(nn.Module):
    """A residual block with a batch norm, a dropout, a direct parameter and functional calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.ones(8))
        self.unused = nn.Linear(3, 3)
        self.calls = 0
        self.modes: list[bool] = []

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        self.calls += 1
        self.cache = x
        y = (
            torch.nn.functional.dropout(torch.relu(self.norm(self.linear(x))), 0.5, self.training)
            * self.scale
        )
        if fail:
            raise RuntimeError("out of luck")
        return x + y


class Attention(nn.Module):
    def forward(self, q: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q)


class Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def quick(model: nn.Module, args: Any = (), kwargs: Any = None, **options: Any) -> NetworkProfile:
    """A profile of few runs."""
    return profile(model, args, kwargs, **{"warmup": 1, "repeat": 4, "convention": "matmul", **options})


def counts(model: nn.Module, *args: Any, **kwargs: Any) -> NetworkProfile:
    """A profile that runs nothing and counts products."""
    return profile(model, args, kwargs, runtime=False, convention="matmul")


def named(model: str, seq_len: int = 32, **options: Any) -> NetworkProfile:
    source = resolve(model)
    module = source.build(options.pop("on", "cpu"))
    inputs = source.inputs(module, InputRequest(seq_len=seq_len))
    return quick(module, inputs.args, inputs.kwargs, **options)


# ---- what is counted ----


DEEP = """
    zoo:resnet101 zoo:resnet152 zoo:resnet200 zoo:resnet269 zoo:wide_resnet50 zoo:inception4
    zoo:inception_resnet_v2 zoo:densenet201
""".split()  # slow, and more of the same
COMPARED = [*networks()]


@pytest.mark.parametrize("model", some_always(COMPARED, lambda model: model not in DEEP))
def test_flops_are_those_of_pytorchs_counter(model: str) -> None:
    ours, theirs = counted(model)
    assert ours == theirs


def test_at_least_sixty_networks_are_compared() -> None:
    assert len(COMPARED) - len(DEEP) >= 60


def test_a_transposed_convolution_is_counted_by_its_input() -> None:
    # T15: 5 * 5 input positions * 2 * 2 kernel * 4 in * 8 out = 3,200 multiply-adds
    assert counts(nn.ConvTranspose2d(4, 8, 2, stride=2), torch.randn(1, 4, 5, 5)).total.macs == 3_200


@pytest.mark.parametrize(
    ("model", "parameters", "flops"),
    [
        # T16, linear: 2 layers * 2 * 32 tokens * 64 * (192 + 64 + 256 + 256) = 6,291,456
        # attention: 2 layers * 4 * 4 heads * 32 * 32 * 16 = 524,288
        (GPT2, 172_032, 6_291_456 + 524_288),
        # the same, and the pooler on one token: 2 * 64 * 64 = 8,192
        (BERT, 143_552, 6_291_456 + 524_288 + 8_192),
    ],
)
def test_a_transformer_loses_nothing(model: str, parameters: int, flops: int) -> None:
    found = named(model, on="meta", runtime=False)
    assert (found.total.parameters, found.total.flops) == (parameters, flops)
    assert sum(row.parameters for row in found.rows) == parameters
    assert found.check().passed


@pytest.mark.parametrize(
    ("model", "args", "flops"),
    [
        # T17: two products of 2 * 4 heads * 16 * 16 * 8
        (Attention(), (torch.randn(1, 4, 16, 8),), 32_768),
        # 2 * 2 sequences * 5 steps * 4 gates * 16 * (8 + 16)
        (nn.LSTM(8, 16, batch_first=True), (torch.randn(2, 5, 8),), 30_720),
        (nn.GRU(8, 16, batch_first=True), (torch.randn(2, 5, 8),), 23_040),  # three gates
        # T20, without gradients: 4 projections of 2 * 12 rows * 16 * 16, attention 4 * 2 * 4 * 6 * 6 * 4
        (
            nn.MultiheadAttention(16, 4, batch_first=True).eval().requires_grad_(False),
            (torch.randn(2, 6, 16),) * 3,
            24_576 + 4_608,
        ),
        # and two feed-forward products of 2 * 12 * 16 * 32
        (
            nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(),
            (torch.randn(2, 6, 16),),
            24_576 * 2 + 4_608,
        ),
        # T20: einsum, 2 * 4 * 5 * 6 * 7
        (
            Function(lambda a, b: torch.einsum("bij,bjk->bik", a, b)),
            (torch.ones(4, 5, 6), torch.ones(4, 6, 7)),
            1_680,
        ),
        # T20: all leading axes of a linear layer's input, 2 * 3 * 4 * 5 * 6
        (nn.Linear(5, 6), (torch.randn(3, 4, 5),), 720),
    ],
)
def test_what_other_profilers_count_as_nothing(
    model: nn.Module, args: tuple[Tensor, ...], flops: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # need_weights and nested tensors
        found = profile(model, args, runtime=False, convention="matmul")
    assert found.total.flops == flops
    assert found.unmodelled == ()


def test_lengths_of_their_own_in_a_nested_tensor_are_profiled() -> None:
    # an operator without a kernel asks for the sizes; 5 + 7 rows of 4 numbers by 4 x 3: 12 * 4 * 3 * 2
    class Ragged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, *samples: Tensor) -> Any:
            return self.linear(torch.nested.as_nested_tensor(list(samples), layout=torch.jagged)).values()

    assert not is_composite(torch.ops.aten.sym_size.default)
    assert quick(Ragged(), (torch.ones(5, 4), torch.ones(7, 4))).total.flops == 288


def test_attention_grows_with_the_square_of_the_length() -> None:
    # T20: twice the length, four times the products
    once, twice = (counts(Attention(), torch.randn(1, 4, n, 8)).total.flops for n in (16, 32))
    assert twice == 4 * once  # type: ignore[operator]


def test_a_backward_pass_counts_each_gradient_once() -> None:
    # T18: 8 channels * 8 * 8 positions * 9 weights * 2 = 9,216 forward; each of two gradients takes the same
    depthwise = nn.Conv2d(8, 8, 3, groups=8)
    x = torch.randn(1, 8, 10, 10)
    wanted = quick(depthwise, x.clone().requires_grad_(), phase="training", repeat=1)
    assert {row.phase: row.flops for row in wanted.rows if row.kind == "conv2d"} == {
        "forward": 9_216,
        "backward": 18_432,
    }
    assert x.grad is None
    # nobody asks for the gradient of the input
    first = quick(depthwise, x, phase="training", repeat=1)
    assert [row.flops for row in first.rows if row.phase == "backward" and row.kind == "conv2d"] == [9_216]


@pytest.mark.parametrize(
    ("model", "x", "kind", "flops"),
    [
        # 3,200 multiply-adds forward
        (nn.ConvTranspose2d(4, 8, 2, stride=2), torch.randn(1, 4, 5, 5), "conv_transpose2d", 6_400),
        (Attention(), torch.randn(1, 4, 16, 8), "attention", 32_768),
        (nn.Linear(5, 6), torch.randn(3, 4, 5), "linear", 720),
        (nn.LSTM(8, 16, batch_first=True), torch.randn(2, 5, 8), "recurrent", 30_720),
    ],
)
def test_backward_products_take_twice_the_forward_pass(
    model: nn.Module, x: Tensor, kind: str, flops: int
) -> None:
    whole = model if kind != "attention" else nn.Sequential(nn.Linear(8, 8), model)
    found = quick(whole, x.requires_grad_(), phase="training", repeat=1)
    assert [row.flops for row in found.rows if row.kind == kind and row.phase == "forward"] == [flops]
    assert [row.flops for row in found.rows if row.kind == kind and row.phase == "backward"] == [2 * flops]


def test_an_operator_without_a_kind_is_named_and_never_zero() -> None:
    # T21
    found = quick(Function(lambda x: torch.linalg.inv_ex(x)[0] @ x), torch.eye(16))
    assert [u.operator for u in found.unmodelled] == ["aten.linalg_inv_ex"]
    assert [row.flops for row in found.rows if row.operator == "aten.linalg_inv_ex"] == [None]
    assert found.coverage < 1
    assert "unmodelled: aten.linalg_inv_ex x1" in found.table()
    assert found.total.flops == 2 * 16**3


def test_a_higher_order_operator_is_counted_by_what_it_runs_and_timed_by_its_name() -> None:
    from torch._higher_order_ops.cond import cond_op

    model = Function(lambda x: cond_op(True, lambda y: y @ y, lambda y: y, (x,)))
    counted, timed = counts(model, torch.eye(4)), quick(model, torch.eye(4))
    assert counted.unmodelled == ()
    assert [u.operator for u in timed.unmodelled] == ["cond"]
    assert counted.total.flops == timed.total.flops == 2 * 4**3


def test_own_rules_count_what_no_kind_does() -> None:
    class Inverse(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.inv_ex(super().forward(x))[0]

    model = nn.Sequential(Inverse(4, 4), nn.Linear(4, 4))
    x = torch.randn(4, 4)
    # by operator: 2 * 4 * 4 * 4 = 128 of each linear layer, and n^3 of the inverse
    by_name = profile(
        model, x, runtime=False, custom={"aten.linalg_inv_ex": lambda inputs, outputs: inputs[0][0] ** 3}
    )
    assert (by_name.total.flops, by_name.unmodelled) == (128 + 128 + 64, ())
    # by class, subclasses too: the rule speaks for all that runs inside
    rule = {nn.Linear: lambda module, inputs, outputs: 1000 * module.in_features + inputs[0][0]}
    assert profile(model, x, runtime=False, custom=rule).total.flops == 2 * 4_004


def test_conventions_differ_as_they_are_said_to() -> None:
    # 3 * 4 outputs: 2 * 12 * 5 = 120; norm 5 and gelu 8 per element
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.GELU())
    x = torch.randn(3, 5)
    found = {c: profile(model, x, runtime=False, convention=c).total.flops for c in CONVENTIONS}
    assert found["matmul"] == 120
    assert found["all-ops"] == 120 + 60 + 96
    assert found["pytorch-api"] == 12 * (2 * 5 - 1 + 1) + 2 * 12
    assert found["fvcore"] == 120 + 2 * 60  # five multiply-adds per normalised element
    assert found["thop"] == 120 + 2 * 48  # four


def test_the_headline_names_the_batch_and_the_shape_of_a_sample() -> None:
    model = nn.Linear(5, 4)
    for shape, said in (((3, 7, 5), "batch 3 of 7x5"), ((3, 5), "batch 3 of 5")):
        found = counts(model, torch.randn(shape))
        assert found.headline().startswith(f"Linear, {said}, float32, forward, on ")
        assert found.to_json()["input_shape"] == list(shape)
    assert counts(Function(lambda: torch.ones(2) * 2)).headline().startswith("Function, batch -, float32")


def test_flop_and_multiply_adds_differ_by_two_and_headers_say_which() -> None:
    # T19
    model, x = nn.Linear(5, 4), torch.randn(3, 5)
    flop, mac = (profile(model, x, runtime=False, flop_unit=unit) for unit in ("flop", "mac"))
    assert flop.total.flops == mac.total.flops == 120
    assert mac.total.macs == 60
    assert "120 FLOP" in flop.table() and " FLOP " in flop.table()
    assert "60 MAC" in mac.table() and "FLOP" not in mac.table()
    assert flop.records()[0]["flops"] == 120
    assert mac.records()[0]["macs"] == 60
    assert mac.to_csv().splitlines()[0].endswith(",macs")


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: quick(nn.DataParallel(m), x),
        lambda m, x: quick(m, (), {"x": x}),
        lambda m, x: quick(torch.compile(m, backend="eager"), x),
        lambda m, x: quick(type("Sub", (nn.Sequential,), {})(m), x),
    ],
    ids=["DataParallel", "keywords only", "compiled", "subclass"],
)
def test_every_way_of_calling_counts_the_same(call: Callable[..., NetworkProfile]) -> None:
    # T14: 2 * 4 * 8 * 8
    assert call(Block().eval(), torch.randn(4, 8)).total.flops == 512


def test_dictionaries_and_profiles_inside_profiles_count_too() -> None:
    inner = nn.Linear(8, 8)

    def forward(batch: dict[str, Tensor]) -> Tensor:
        quick(nn.Linear(2, 2), torch.randn(1, 2), repeat=1)
        return inner(batch["x"])

    model = Function(forward)
    model.inner = inner
    assert (
        sum(r.flops or 0 for r in quick(model, ({"x": torch.randn(4, 8)},)).rows if r.path == "inner") == 512
    )


# ---- the rows ----


@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize("model", [GPT2, BERT])
def test_rows_add_up_to_the_whole(model: str, phase: str) -> None:
    found = named(model, phase=phase, repeat=6)
    assert sum(row.share or 0 for row in found.rows) == pytest.approx(1)
    assert sum(row.runtime_s or 0 for row in found.rows) == pytest.approx(found.total.runtime_s)
    for view in (found.by_kind(), found.by_operator(), found.by_layer()):
        assert sum(row.share or 0 for row in view) == pytest.approx(1)
        assert sum(row.parameters for row in view) == found.total.parameters
        assert sum(row.flops or 0 for row in view) == found.total.flops
    modules = {row.path: row for row in found.by_module(1)}
    apart = [row.share or 0 for path, row in modules.items() if not path or path.startswith("(")]
    assert sum(apart) == pytest.approx(1)
    assert sum(row.self_s or 0 for row in found.by_module()) == pytest.approx(found.total.runtime_s)
    if phase == "training":
        assert sum(found.total.phases_s.values()) == pytest.approx(found.total.runtime_s)
        assert {row.phase for row in found.rows} >= {"forward", "backward", "optimizer"}


def test_layers_of_some_size_explain_nine_tenths() -> None:
    model = nn.Sequential(*(nn.Linear(768, 768) for _ in range(12)))
    check = profile(model, torch.randn(128, 768), warmup=2, repeat=8).check()
    assert check.passed, check.problems
    assert check.shares == pytest.approx(1)
    # 12 layers * 2 * 128 * 768 * 768
    assert check.flops == check.flop_counter == 1_811_939_328


def test_a_check_names_what_is_wrong() -> None:
    import dataclasses

    found = quick(nn.Linear(8, 8), torch.randn(4, 8))
    broken = dataclasses.replace(found, rows=found.rows[1:], recount=lambda: (512, 511))
    problems = broken.check().problems
    assert any("shares add up to" in p for p in problems)
    assert any("parameters add up to 0, the model has 72" in p for p in problems)
    assert any("512 FLOP, PyTorch's counter gives 511" in p for p in problems)


def test_times_join_their_rows_by_path_and_call() -> None:
    # T6, T7: runs in another order than the trace; a view, and an operator that the trace does not know
    model = nn.Sequential(nn.Linear(4, 4), Function(lambda x: (x + 1) + 1), nn.Linear(4, 4))
    ran = [
        ("2", "aten.linear", 0.4),
        ("1", "aten.add", 0.1),
        ("0", "aten.linear", 0.2),
        ("1", "aten.add", 0.05),
        ("1", "aten.view", 0.01),
        ("1", "aten.mystery", 0.04),
    ]
    events = tuple(Event("forward", path, name, name, 0, 0, 0, 0) for path, name, _ in ran)
    once = Repeat(events, tuple(seconds for *_, seconds in ran), ())
    # 0.8 s of operators in timed runs of 0.9 s, 0.06 s longer than the clean runs
    runs = Runs({"": Spread((0.84,) * 2)}, Spread((0.9,)), (once,), None, None, 3.0, 1.7)
    builder = Builder(model, trace(model, (torch.ones(1, 4),)), runs, "matmul")
    rows = builder.rows()
    assert builder.rows() == rows  # counts do not add up over calls
    assert {(row.path, row.kind, row.runtime_s) for row in rows if row.explains} == {
        ("0", "linear", 0.2),
        ("1", "elementwise", 0.1),
        ("1", "elementwise", 0.05),
        ("2", "linear", 0.4),
        ("1", "view", 0.01),
        ("1", "aten.mystery", 0.04),
    }
    assert [row.flops for row in rows if row.kind == "aten.mystery"] == [None]
    apart = {row.path: row.runtime_s for row in rows if not row.explains}
    assert apart == {REMAINDER: pytest.approx(0.1), OVERHEAD: pytest.approx(-0.06)}
    assert sum(row.share or 0 for row in rows) == pytest.approx(1)
    assert runs.instrumentation_s == pytest.approx(0.06)


def test_repeated_blocks_are_folded_and_named() -> None:
    found = named(BERT, on="meta", runtime=False)
    row = next(row for row in found.by_layer() if row.path.endswith("intermediate.dense"))
    assert (row.path, row.count) == ("encoder.layer.[0-1].intermediate.dense", 2)
    assert row.flops == 2 * 2 * 32 * 64 * 256


def test_rows_are_sorted_by_what_is_asked_for_and_by_work_where_nothing_was_timed() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 32), nn.Linear(32, 4))  # 64, 512 and 256 FLOP a row
    found = counts(model, torch.randn(1, 4))

    def order(**options: str) -> list[str]:
        return [line.split()[0] for line in found.table(**options).splitlines()[6:-1]]

    assert order() == order(sort="flops") == ["1", "2", "0"]
    assert order(sort="order") == ["0", "1", "2"]
    assert found.table(top=1).splitlines()[7].startswith("(2 more)")


def test_a_network_that_caches_for_its_class_can_be_trained_after_a_profile() -> None:
    model, pixels = small_beit(48)
    profile(model, (pixels,))
    model(pixels).last_hidden_state.sum().backward()
    (table,) = (p for name, p in model.named_parameters() if "relative_position_bias_table" in name)
    assert table.grad is not None


def test_a_module_that_is_never_called_has_its_parameters_and_no_calls() -> None:
    found = quick(Block().eval(), torch.randn(4, 8))
    unused = next(row for row in found.by_module() if row.path == "unused")
    assert (unused.count, unused.flops, unused.parameters, unused.runtime_s) == (0, 0, 12, None)
    assert next(row for row in found.by_module() if row.path == "").parameters == 72 + 16 + 8 + 12


def test_a_shared_module_has_a_row_per_caller_and_parameters_once() -> None:
    # T11
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared, nn.ReLU())})
    model.forward = lambda x: model["b"](model["a"](x))
    found = quick(model, torch.randn(4, 8))
    assert [(row.path, row.flops) for row in found.rows if row.kind == "linear"] == [
        ("a.0", 512),
        ("b.0", 512),
    ]
    assert found.total.parameters == sum(row.parameters for row in found.rows) == 72
    assert model(torch.randn(4, 8)).shape == (4, 8)


def test_memory_is_what_tensors_take() -> None:
    # weights 4 * (64 * 64 + 64) = 16,640; input, two outputs 4 * 256 * 64 = 65,536; the hidden one lives on
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    found = quick(model, torch.randn(256, 64))
    assert [row.activation_bytes for row in found.rows if row.kind in ("linear", "activation")] == [
        65_536,
        65_536,
    ]
    assert found.total.peak_memory_bytes == 16_640 + 3 * 65_536
    assert (
        profile(model, torch.randn(256, 64), warmup=0, repeat=1, memory=False).total.peak_memory_bytes is None
    )


def test_freed_tensors_no_longer_count() -> None:
    account = Account([])
    x = torch.empty(10)
    account.note(("forward", "", "f"), (), x, 0)
    account.note(("forward", "", "view"), (), x.view(2, 5), 0)
    assert (account.lifetimes.live, account.peak) == (40, 40)
    del x
    assert (account.lifetimes.live, account.peak) == (0, 40)


def test_a_stray_repeat_does_not_count() -> None:
    # of 1, 2, 3, 4, 5, 6, 7, 100 the middle half is 3, 4, 5, 6
    assert Spread((1.0, 100.0, 2.0, 3.0, 4.0, 7.0, 6.0, 5.0)).runtime_s == 4.5


def test_repeats_end_by_time() -> None:
    found = profile(nn.Linear(8, 8), torch.randn(4, 8), warmup=0, repeat=10_000, time_limit_s=0.02)
    assert 3 <= len(found.total.spread.samples_s) < 10_000  # type: ignore[union-attr]


# ---- nothing is left on the model ----


class Same:
    """What a model was before."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.twin = model, copy.deepcopy(model)
        self.gradients = [None if p.grad is None else p.grad for p in model.parameters()]
        self.generator = torch.random.get_rng_state()
        self.modes = [m.training for m in model.modules()]

    def check(self) -> None:
        """It is the same now."""
        torch.testing.assert_close(self.model.state_dict(), self.twin.state_dict(), rtol=0, atol=0)
        assert [m.training for m in self.model.modules()] == self.modes
        assert all(p.grad is g for p, g in zip(self.model.parameters(), self.gradients, strict=True))
        assert torch.equal(torch.random.get_rng_state(), self.generator)
        assert self.model.__dict__.keys() == self.twin.__dict__.keys()
        for module in self.model.modules():
            assert not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
            assert not any(name.startswith("total_") for name in (*module.__dict__, *module._buffers))
        assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks
        assert _len_torch_dispatch_stack() == 0


@pytest.mark.parametrize("convention", ["matmul", "thop"])
@pytest.mark.parametrize("training", [False, True])
def test_a_profile_leaves_no_trace(training: bool, convention: str) -> None:
    # T10, T13: batch norm, dropout, a counter and a cache; one module in another mode than the rest
    model = nn.Sequential(Block(), Block()).train(training)
    first = model[0]
    assert isinstance(first, Block)
    first.norm.eval()
    first.linear.weight.grad = torch.ones(8, 8)
    same = Same(model)
    quick(model, torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), convention=convention)
    same.check()
    assert first.calls == 0


def test_a_training_step_leaves_no_trace() -> None:
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    for block in model:
        block.__dict__.update(calls=0, cache=None)
    before = copy.deepcopy(optimizer.state_dict())
    same = Same(model)
    found = quick(
        model,
        torch.randn(4, 8, generator=torch.Generator().manual_seed(0)),
        phase="training",
        optimizer=optimizer,
        loss=lambda y: y.sum(),
        convention="all-ops",
    )
    same.check()
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)
    step = next(row for row in found.rows if row.phase == "optimizer")
    # 2 * (72 + 16 + 8 + 12) = 216 parameters; each takes part in 2 * (1 + 2 states) + 2 FLOP
    assert (step.kind, step.flops) == ("optimizer", 216 * 8)


def test_after_an_exception_nothing_is_attached_and_counts_do_not_grow() -> None:
    # T12: the first exception is met while tracing, the second one only in a real run
    model = Block().eval()
    same = Same(model)
    with pytest.raises(ModelError, match="out of luck"):
        quick(model, torch.ones(4, 8), {"fail": True})
    same.check()
    with pytest.raises(ModelError, match="it was traced, but running it raises RuntimeError: late"):
        quick(Function(_late), torch.ones(4, 8))
    assert _len_torch_dispatch_stack() == 0
    first, second = (quick(model, torch.ones(4, 8)).total.flops for _ in range(2))
    assert first == second == 512


def _late(x: Tensor) -> Tensor:
    if not x.is_meta and _len_torch_dispatch_stack() > 0:
        raise RuntimeError("late")
    return x + 1


def test_a_model_that_cannot_be_copied_is_profiled() -> None:
    # T13: deepcopy refuses tensors that are no leaves
    model = nn.Linear(8, 8)
    model.product = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError):
        copy.deepcopy(model)
    assert quick(model, torch.randn(4, 8)).total.flops == 512


def test_nothing_but_data_is_printed() -> None:
    # T22: thop prints while it registers its rules
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        quick(Block().eval(), torch.randn(4, 8), convention="thop")
    assert out.getvalue() == ""


# ---- files and refusals ----


def test_files_hold_numbers_and_say_their_schema(tmp_path: Path) -> None:
    found = quick(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(2, 3, 8, 8))
    data = json.loads(found.to_json(tmp_path / "p.json") and (tmp_path / "p.json").read_text())
    assert data["schema"] == 1
    assert data["flops"] == 2 * data["macs"] == 2 * 2 * 36 * 9 * 3 * 4
    row = next(row for row in data["layers"] if row["kind"] == "conv2d")
    assert row["config"]["kernel_height"] == 3 and row["inputs"][0] == [2, 3, 8, 8]
    assert isinstance(row["runtime_s"], float) and row["q25_s"] <= row["q75_s"]
    assert data["environment"]["threads"] == torch.get_num_threads()
    assert (data["power_w"] is None) == bool(data["power_reason"])
    frame = found.to_pandas("kind")
    assert set(frame["kind"]) == {"conv2d", "activation", "remainder", "overhead"}
    assert frame["share"].sum() == pytest.approx(1)
    assert len(found.to_csv(tmp_path / "p.csv").splitlines()) == len(found.by_layer()) + 1
    events = [e for e in found.to_chrome_trace(tmp_path / "p.trace")["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in events if e["cat"] == "forward"] == ["aten.conv2d", "aten.relu"]
    assert all(e["dur"] > 0 and e["ts"] >= 0 for e in events)
    assert found.to_markdown(by="module").count("\n| ") >= 3
    with pytest.raises(InputError, match="cannot be written"):
        found.to_csv(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"convention": "foo"}, "unknown convention 'foo'"),
        ({"flop_unit": "gflop"}, "unknown FLOP unit 'gflop'"),
        ({"phase": "backward"}, "unknown phase 'backward'"),
        ({"phase": "training", "convention": "thop"}, "counts no backward pass"),
        ({"repeat": 0}, "repeat 0: warmup must be 0 or more, repeat 1 or more"),
        ({"repeat": "a"}, "repeat 'a': warmup must be 0 or more, repeat 1 or more, both whole numbers"),
        ({"warmup": 0.5}, "warmup 0.5, repeat 20: warmup must be 0 or more"),
        ({"power": "sun"}, "unknown power meter 'sun'"),
        ({"device": "cuda:0"}, r"is on cpu, not on cuda:0; move it there with .to\('cuda:0'\)"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        profile(nn.Linear(8, 8), torch.randn(4, 8), **options)


def test_what_cannot_run_or_be_trained_is_refused() -> None:
    with pytest.raises(InputError, match="is on meta and cannot run"):
        quick(nn.Linear(8, 8, device="meta"), torch.randn(4, 8))
    with pytest.raises(InputError, match="no parameter that requires a gradient"):
        quick(nn.Linear(8, 8).requires_grad_(False), torch.randn(4, 8), phase="training")
    with pytest.raises(InputError, match="nothing to train on; wrap the network"):
        model = nn.Linear(8, 8)
        quick(nn.Sequential(model, Function(lambda x: x.argmax())), torch.randn(4, 8), phase="training")
    with pytest.raises(InputError, match="there is no timed run"):
        counts(nn.Linear(8, 8), torch.randn(4, 8)).to_chrome_trace()


def test_too_large_a_batch_is_a_device_error() -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.expand(2**46, 4).contiguous()  # 1 PiB

    with pytest.raises(DeviceError, match="choose a smaller batch"):
        quick(Large(), torch.randn(1, 4))


def test_the_package_offers_the_function() -> None:
    assert neuralpower.profile is functions.profile


# ---- the command ----


def test_the_command_prints_a_table_and_writes_files(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("p.csv", "p.md", "p.json")]
    out = done(
        *(
            "profile",
            BERT,
            "--seq-len",
            32,
            "--repeat",
            2,
            "--warmup",
            0,
            "--by",
            "kind",
            "--unit",
            "mac",
            "--top",
            2,
            "-v",
        ),
        *("--csv", files[0], "--markdown", files[1], "--trace-file", files[2]),
    )
    assert " MMAC (all-ops), 144 k parameters, " in out
    assert "(between operators)" in out and "more)" in out
    assert all(file.stat().st_size > 100 for file in files)


def test_the_command_counts_without_running_and_speaks_json() -> None:
    data = json.loads(done("profile", "zoo:alexnet", "--repeat", 0, "--json"))
    assert data["runtime_s"] is None
    assert data["parameters"] == 62_378_344
    assert data["matmul_flops"] == pytest.approx(2.2705e9, rel=1e-3)
    assert data["convention"] == "all-ops"
    assert data["flops"] == data["matmul_flops"] + data["elementwise_flops"]


def test_strict_ends_with_three_where_an_operator_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "inverse.py").write_text(
        "import torch\n"
        "class Inverse(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.linalg.inv_ex(x)[0]\n"
        "def network():\n"
        "    return Inverse(), (torch.eye(4)[None],)\n"
    )
    ran = run("profile", f"{tmp_path}/inverse.py:network", "--repeat", 1, "--strict")
    assert ran.code == 3
    assert "aten.linalg_inv_ex" in ran.out
    assert "aten.linalg_inv_ex not counted" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--batch-size", 0), 2, "batch size 0"),
        (("--by", "colour"), 2, "unknown view 'colour'"),
        (("--sort", "colour"), 2, "unknown order 'colour'"),
        (("--phase", "sleep"), 2, "unknown phase 'sleep'"),
        (("--unit", "watt"), 2, "unknown FLOP unit 'watt'"),
        (("--device", "mps"), 2, "unknown device 'mps': known: cpu, cuda, cuda:0"),
        (("--device", "cuda:007"), 2, "unknown device 'cuda:007'"),
        (("--device", "cuda:99"), 4, "device cuda:99: torch finds no such CUDA device here"),
        (("--device", "cuda:999999999"), 4, "device cuda:999999999: torch finds no such CUDA device here"),
        (("--device", f"cuda:{2**64}"), 2, f"unknown device 'cuda:{2**64}': known: cpu, cuda, cuda:0"),
        (("--dtype", "float8_e4m3fn", "--repeat", 1), 2, "check dtype, inputs and device"),
        (("--repeat", 0, "--trace-file", "x"), 2, "a trace file needs a run"),
        (("--repeat", -1), 2, "repeat -1"),
    ],
)
def test_the_command_refuses_in_one_line(arguments: tuple[object, ...], code: int, message: str) -> None:
    ran = run("profile", "zoo:deep_mnist", *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert message in ran.err


# ---- power ----


def test_a_network_has_power_where_a_meter_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meter = hundred_watts(tmp_path)
    monkeypatch.setattr("neuralpower.profiling.open_meter", lambda power, device: meter)
    model, x = nn.Linear(64, 64), torch.ones(8, 64)
    total = profile(model, x, repeat=2, power="rapl").total
    assert total.power_w == pytest.approx(100, rel=0.05)
    assert total.energy_j is not None
    assert total.energy_j > 0


def test_a_network_without_a_meter_has_no_power_and_a_reason() -> None:
    model, x = nn.Linear(4, 4), torch.ones(1, 4)
    with pytest.raises(InputError, match="unknown power meter 'magic'"):
        profile(model, x, power="magic")
    assert profile(model, x, repeat=1, power="none").power_reason == ""
