"""Everything counted or named, nothing left on the model."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import neuralpower
from neuralpower.errors import InputError, ModelError
from neuralpower.layers.rows import to_row
from neuralpower.networks.running import WAYS
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.trace import tracer
from neuralpower.trace.operators.described import FLOPS_PER_BYTE
from neuralpower.trace.records import Trace
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import Asked, trace, trace_by, trace_call
from tests.beit import small_beit

TINY_GPT2 = "transformers:GPT2Model?n_layer=2&n_embd=64&n_head=4&vocab_size=100&bos_token_id=0&eos_token_id=0"
TINY_BERT = (
    "transformers:BertModel?num_hidden_layers=2&hidden_size=64&num_attention_heads=4&intermediate_size=256"
    "&vocab_size=100"
)


def traced(model: str, seq_len: int | None = None, batch_size: int = 1) -> Trace:
    source = resolve(model)
    module = source.build("meta")
    inputs = source.inputs(module, InputRequest(batch_size=batch_size, seq_len=seq_len))
    return trace(module, inputs.args, inputs.kwargs)


class Block(nn.Module):
    """A residual block with everything that hooks miss: functional calls, `@`, einsum, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.scale = torch.tensor([2.0] * 8)  # a plain attribute: stays on the CPU
        self.calls = 0
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        self.calls += 1
        self.seen.append(x)
        self.cache = x
        y = torch.relu(self.norm(self.linear(x))) * self.scale
        if fail:
            raise RuntimeError("out of luck")
        return x + torch.einsum("bi,bi->bi", y, y) + y @ self.linear.weight


def test_gpt2_counts() -> None:
    # linear: 2 layers * 2 * 32 tokens * 64 * (192 + 64 + 256 + 256) = 6,291,456
    # attention: 2 layers * 4 * 4 heads * 32 * 32 * 16 = 524,288
    result = traced(TINY_GPT2, 32)
    assert result.parameters == 64 * 100 + 1024 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64
    assert (
        sum(layer.flops() for layer in result.layers if layer.kind in ("linear", "attention"))
        == 6_291_456 + 524_288
    )
    assert result.method == "meta"


def test_bert_is_traced_whole_and_in_order() -> None:
    result = traced("transformers:BertModel?num_hidden_layers=2", 64)
    kinds = [layer.kind for layer in result.layers]
    assert (kinds.count("linear"), kinds.count("attention"), kinds.count("norm")) == (13, 2, 5)
    paths = [call.path for call in result.calls if call.layer.kind == "linear"]
    assert paths[0] == "encoder.layer.0.attention.self.query"
    assert paths[-1] == "pooler.dense"
    assert result.unmodelled == ()


@pytest.mark.parametrize(
    "model", [TINY_GPT2, TINY_BERT, "zoo:resnet18", "zoo:vgg11", "zoo:googlenet", "zoo:densenet121"]
)
def test_flops_are_what_pytorch_counts(model: str) -> None:
    source = resolve(model)
    module = source.build("meta")
    inputs = source.inputs(module, InputRequest(batch_size=2))
    on_meta = [a.to("meta") for a in inputs.args], {k: v.to("meta") for k, v in inputs.kwargs.items()}
    result = trace(module, *on_meta)
    with (
        torch.no_grad(),
        FlopCounterMode(display=False) as counter,
    ):  # without inference mode attention is bmm
        module(*on_meta[0], **on_meta[1])
    ours = sum(
        layer.flops() for layer in result.layers if layer.kind in ("linear", "matmul", "attention", "conv2d")
    )
    assert ours == counter.get_total_flops()


def test_multi_head_attention_is_counted_in_eval_and_without_gradients() -> None:
    # 4 projections of 2 * 12 rows * 16 * 16 = 24,576
    # scores and context: 4 * 2 sequences * 4 heads * 6 * 6 * 4 = 4,608
    module = nn.MultiheadAttention(16, 4, batch_first=True).eval().requires_grad_(False)
    x = torch.randn(2, 6, 16)
    result = trace(module, (x, x, x), {"need_weights": False})
    assert (
        sum(layer.flops() for layer in result.layers if layer.kind in ("linear", "matmul", "attention"))
        == 24_576 + 4_608
    )


def test_a_transformer_encoder_layer_is_counted_on_its_slow_path() -> None:
    module = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    result = trace(module, (torch.randn(2, 6, 16),))
    # projections 24,576; feed-forward 2 * 2 * 12 * 16 * 32 = 24,576; attention 4,608
    assert (
        sum(layer.flops() for layer in result.layers if layer.kind in ("linear", "matmul", "attention"))
        == 53_760
    )
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_an_lstm_is_one_layer_and_functional_calls_are_seen() -> None:
    result = trace(nn.LSTM(8, 16, batch_first=True), (torch.randn(2, 5, 8),))
    assert [layer.flops() for layer in result.layers if layer.kind == "recurrent"] == [30_720]
    kinds = [layer.kind for layer in trace(Block(), (torch.randn(4, 8),)).layers]
    assert {"linear", "norm", "activation", "elementwise", "matmul"} <= set(kinds)


def test_views_are_free_and_copies_are_not() -> None:
    x = torch.empty(2, 6, 4, device="meta")
    assert trace_call(lambda: x.transpose(1, 2).unsqueeze(0)[..., :2].detach()).layers == ()
    copied = trace_call(lambda: x.transpose(1, 2).reshape(2, 24))
    layers: tuple[Any, ...] = copied.layers
    assert [(layer.kind, layer.elements, layer.run) for layer in layers] == [("movement", 48, 1)]


def test_an_operator_without_a_kind_is_named() -> None:
    result = trace_call(lambda: torch.linalg.inv_ex(torch.empty(4, 4, device="meta")))
    assert [u.operator for u in result.unmodelled] == ["aten.linalg_inv_ex"]
    assert result.unmodelled[0].bytes >= 2 * 64
    assert "no layer kind" in result.unmodelled[0].reason


def test_a_shared_module_has_a_path_for_each_caller_and_its_parameters_once() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Sequential(shared, nn.ReLU()), nn.Sequential(shared))
    result = trace(model, (torch.randn(1, 4),))
    assert [call.path for call in result.calls if call.layer.kind == "linear"] == ["0.0", "1.0"]
    assert result.parameters == 20


def test_the_users_module_is_left_as_it_was() -> None:
    model = Block().train()
    twin = copy.deepcopy(model)
    generator = torch.random.get_rng_state()
    trace(model, (torch.randn(4, 8, generator=torch.Generator().manual_seed(0)),), training=True)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    assert model.__dict__.keys() == twin.__dict__.keys()
    assert (model.calls, model.seen) == (0, [])
    assert model.training
    assert all(m.training for m in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert next(model.parameters()).device.type == "cpu"
    assert torch.isfinite(model(torch.randn(4, 8))).all()


def test_the_users_module_is_left_as_it_was_when_its_forward_raises() -> None:
    model = Block()
    twin = copy.deepcopy(model)
    with pytest.raises(ModelError, match="Block: its forward raises RuntimeError: out of luck"):
        trace(model, (torch.randn(4, 8),), {"fail": True})
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    assert model.__dict__.keys() == twin.__dict__.keys()
    assert not nn.modules.module._global_forward_hooks
    first = trace(model, (torch.randn(4, 8),))
    assert trace(model, (torch.randn(4, 8),)) == first  # and a second trace counts the same


@pytest.mark.parametrize(
    ("said", "quoted"), [("", "ValueError"), (" \n", "ValueError"), ("a\nb", "ValueError: a")]
)
def test_what_a_forward_raises_is_quoted_where_it_says_something(said: str, quoted: str) -> None:
    class Raising(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(said)

    with pytest.raises(ModelError, match=f"Raising: its forward raises {quoted}; check the inputs"):
        trace(Raising(), (torch.randn(4, 8),))


def test_whoever_made_the_inputs_is_told_that_they_do_not_fit() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(ModelError, match="cannot be multiplied.*; check the inputs"):
        trace(model, (torch.randn(4, 9),))
    source = resolve(model)
    made = source.inputs(model, InputRequest(input_shape=(9,)), "meta")
    with pytest.raises(
        ModelError, match=r"; the inputs that were made do not fit .* in Python: predict\(model, inputs"
    ):
        trace(model, made.args, made.kwargs)


def test_what_functions_cache_for_a_class_is_neither_left_nor_found() -> None:
    model, pixels = small_beit(32, blocks=3)
    model.eval()
    first = trace(model, (pixels,))
    training_lifetimes(model, (pixels,))
    with torch.no_grad():
        assert torch.isfinite(
            model(pixels).last_hidden_state
        ).all()  # it was not left with tensors without values
    assert trace(model, (pixels,)) == first
    ranges = [call for call in first.calls if call.operator.endswith("arange")]
    assert len(ranges) <= 2  # worked out once, as a real pass does, not by each block


def test_a_forward_that_decides_by_its_inputs_gets_their_values_and_says_so() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) if float(x.sum()) > 0 else self.linear(self.linear(x))

    result = trace(Picky(), (torch.ones(2, 4),))
    assert result.method == "fake"  # where inputs are real
    assert [note.split(":")[0] for note in result.notes] == ["meta"]
    assert [layer.kind for layer in result.layers if layer.kind == "linear"] == ["linear"]


def test_what_random_numbers_decide_is_decided_alike_every_time() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            chosen = self.gate(x + torch.randn_like(x)).argmax(-1)
            return torch.cat([expert(x[chosen == i]) for i, expert in enumerate(self.experts)])

    with torch.device("meta"):
        model = Routed()
    found = set()
    for seed in range(3):
        torch.manual_seed(seed)
        found.add(trace(model, (torch.empty(16, 8, device="meta"),)).calls)
    assert len(found) == 1


def test_wrappers_are_looked_through() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    wrapped = trace(nn.DataParallel(model), (torch.randn(2, 4),))
    assert [call.path for call in wrapped.calls] == ["0"]


def test_a_mask_that_the_model_made_itself_counts_as_all_ones() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
            return x if mask.all() else x + 1

    assert all(layer.kind != "elementwise" for layer in trace(Masked(), (torch.randn(3, 3),)).layers)


def test_experts_are_grouped_products() -> None:
    model = (
        "transformers:MixtralModel?num_hidden_layers=1&hidden_size=64&intermediate_size=128&"
        "num_local_experts=4"
    )
    result = traced(model + "&num_attention_heads=4&num_key_value_heads=2&vocab_size=100", 32)
    # 32 tokens to 2 of 4 experts each: 64 rows, 16 per expert
    layers: tuple[Any, ...] = result.layers
    experts = [layer for layer in layers if layer.kind == "matmul" and layer.batch == 4]
    assert result.method == "meta"
    sizes = [(layer.rows, layer.inner, layer.columns) for layer in experts]
    assert sizes == [(16, 64, 256), (16, 128, 64)]


class Loop(nn.Module):
    """Runs its layer as often as a buffer says."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("steps", torch.tensor(10))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(self.steps)):
            x = self.linear(x)
        return x


@pytest.mark.parametrize("model", [Loop(), "tests.trace.test_trace:Loop"], ids=["module", "function"])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_forward_that_reads_a_buffer_finds_the_value_it_was_built_with(
    model: str | nn.Module, copies: int
) -> None:
    found = model
    for _ in range(copies):
        found = resolve(found).build("meta")
    assert isinstance(found, nn.Module)
    assert all(t.is_meta for t in (*found.parameters(), *found.buffers()))
    result = trace(found, (torch.randn(4, 8),))
    # ten times 2 * 4 * 8 * 8
    assert (result.flops, result.method) == (5_120, "cpu")


def test_buffers_of_a_module_on_meta_are_anything_where_a_run_asks() -> None:
    with torch.device("meta"):
        module = Loop()
    found = trace(resolve(module).build("meta"), (torch.zeros(1, 8),))
    assert (found.method, len(found.layers)) == ("cpu", 1)  # ones, as of all numbers that nobody knows


def test_a_model_that_cannot_be_built_for_its_values_says_so(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom tests.trace.test_trace import Loop\n\n\nclass Here(Loop):\n    def "
        "__init__(self):\n"
        "        super().__init__()\n        if not self.steps.is_meta:\n            raise "
        "MemoryError('not here')\n"
    )
    model = resolve(f"{tmp_path}/net.py:Here").build("meta")
    with pytest.raises(ModelError, match=r"net.py:Here cannot be built: MemoryError: not here"):
        trace(model, (torch.randn(4, 8),))


def test_an_exported_program_is_traced(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    torch.export.save(torch.export.export(model, (torch.randn(2, 8),)), tmp_path / "model.pt2")
    kinds = [layer.kind for layer in traced(str(tmp_path / "model.pt2"), batch_size=2).layers]
    assert kinds == ["linear", "activation", "linear"]


def test_an_optimizer_step_is_one_layer() -> None:
    parameters = [nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(4))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    result = trace(_Stepping(torch.optim.Adam(parameters)), ())
    assert [(layer.kind, to_row(layer)["tensors"], to_row(layer)["elements"]) for layer in result.layers] == [
        ("optimizer", 2, 10)
    ]


class _Stepping(nn.Module):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.optimizer = optimizer

    def forward(self) -> None:
        self.optimizer.step()


class Inside(nn.Linear):
    """Makes a tensor of its own by a function, before its product."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__(4, 4)
        self.make = make

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.make(input))


RAGGED = [torch.zeros(2, 4), torch.zeros(3, 4)]
PLAIN = torch.zeros(2, 4)


def held(module: nn.Module, tensor: Tensor) -> nn.Module:
    """The module with a parameter, or a buffer."""
    if isinstance(tensor, nn.Parameter):
        module.register_parameter("held", tensor)
    else:
        module.register_buffer("held", tensor)
    return module


@pytest.mark.filterwarnings(
    "ignore"
)  # that TorchScript is deprecated, nested tensors and lazy layers are new
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (torch.jit.trace(nn.Linear(4, 4), PLAIN), PLAIN), "it is TorchScript"),
        (
            lambda: (nn.Sequential(nn.LazyLinear(4)), PLAIN),
            "0.weight has no shape before its layer has seen an input",
        ),
        (lambda: (nn.Sequential(nn.LazyBatchNorm2d()), PLAIN), "0.weight has no shape before"),
        *(
            (
                lambda make=make, hold=hold: hold(make(torch.eye(4))),
                rf"a tensor of \(4, 4\) is torch.{name}, and only dense",
            )
            for name, make in {
                "sparse_coo": Tensor.to_sparse,
                "sparse_csr": Tensor.to_sparse_csr,
                "sparse_csc": Tensor.to_sparse_csc,
                "sparse_bsr": lambda x: x.to_sparse_bsr((2, 2)),
                "sparse_bsc": lambda x: x.to_sparse_bsc((2, 2)),
            }.items()
            for hold in (
                lambda x: (nn.Linear(4, 4), x),
                lambda x: (held(nn.Linear(4, 4), x), PLAIN),
                lambda x: (held(nn.Linear(4, 4), nn.Parameter(x)), PLAIN),
            )
        ),
        (
            lambda: (nn.Linear(4, 4), torch.nested.nested_tensor(RAGGED)),
            "a tensor is nested, .*; give it padded, or with layout=torch.jagged",
        ),
        (
            lambda: (Inside(lambda x: torch.sparse.mm(torch.eye(2).to_sparse(), x)), PLAIN),
            "it makes tensors that are sparse or nested, and only dense ones",
        ),
        (
            lambda: (Inside(lambda x: torch.nested.nested_tensor([x, x[:1]]).to_padded_tensor(0.0)), PLAIN),
            "it makes tensors that are sparse or nested, and only dense ones",
        ),
        *(
            (
                lambda make=make: (Inside(lambda x: make(torch.eye(2)) @ x), PLAIN),
                "it makes tensors that are sparse or nested, and only dense ones",
            )
            for make in (
                Tensor.to_sparse_csr,
                Tensor.to_sparse_csc,
                lambda x: x.to_sparse_bsr((1, 1)),
                lambda x: x.to_sparse_bsc((1, 1)),
                lambda x: torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), x[0, :1], (2, 2)),
                lambda x: torch.sparse.spdiags(x[:1], torch.tensor([0]), (2, 2)),
            )
        ),
        (lambda: (Inside(lambda x: x.to_sparse().to_dense()), PLAIN), "it makes tensors that are sparse"),
        (lambda: (nn.Linear(4, 4), {"x": PLAIN}), r"where forward takes a mapping itself, give \(mapping,\)"),
    ],
)
@pytest.mark.parametrize("phase", ["forward", "training"])
def test_what_cannot_be_followed_is_named(
    make: Callable[[], tuple[nn.Module, Tensor]], message: str, phase: str
) -> None:
    with pytest.raises(InputError, match=message):
        neuralpower.load("amd-epyc-2c").predict(*make(), phase=phase)


# ---- what is known without walking through it ----


class Returned(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{"num_layers": 2, "bidirectional": True}, {"proj_size": 3}, {}, {"nonlinearity": "relu"}],
    ids=str,
)
def test_recurrent_outputs_have_the_shapes_of_real_ones(settings: dict[str, Any], first: bool) -> None:
    made = {"batch_first": first, **settings}
    kinds = (
        [nn.RNN]
        if "nonlinearity" in made
        else [nn.LSTM]
        if "proj_size" in made
        else [nn.LSTM, nn.GRU, nn.RNN]
    )
    for kind in kinds:
        model, x = kind(4, 6, **made), torch.randn(3, 5, 4)
        (call,) = (call for call in trace(model, (x,)).calls if call.layer.kind == "recurrent")
        output, state = model(x)
        states = state if isinstance(state, tuple) else (state,)
        assert call.outputs == tuple(tuple(t.shape) for t in (output, *states))


def test_a_hundred_thousand_steps_are_one_call() -> None:
    found = trace(nn.LSTM(8, 8), (torch.empty(100_000, 1, 8, device="meta"),)).layers
    assert [to_row(layer)["steps"] for layer in found if layer.kind == "recurrent"] == [100_000]


DECOMPOSED: list[tuple[Any, float]] = [
    (torch.linalg.inv, 2 * 64**3),
    (torch.linalg.cholesky, 64**3 / 3),
    (torch.linalg.svd, 26 * 64**3),
    (torch.linalg.pinv, 26 * 64**3),
    (torch.linalg.eigh, 9 * 64**3),
    (torch.linalg.eig, 25 * 64**3),
    (torch.linalg.det, 2 / 3 * 64**3),
    (lambda x: torch.linalg.solve(x, x), (2 / 3 + 2) * 64**3),
    (torch.fft.fft2, 5 * 64**2 * 12),
    (torch.fft.rfft, 5 * 64**2 * 6),
]


@pytest.mark.parametrize(("function", "flops"), DECOMPOSED)
def test_the_work_of_a_decomposition_counts_beside_its_bytes(function: Any, flops: float) -> None:
    for batch in ((), (1000,)):
        x = torch.empty(*batch, 64, 64, device="meta")
        (call,) = trace(Returned(function), (x,)).unmodelled
        work = math.prod(batch) * flops / FLOPS_PER_BYTE
        assert call.work_bytes == pytest.approx(max(call.bytes, work), abs=1)
    small = trace(Returned(function), (torch.empty(2, 2, device="meta"),)).unmodelled
    assert [call.work_bytes >= call.bytes for call in small] == [True]


class Faulty(nn.Module):
    """Raises what values do not change."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, features, bias=False, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"{self.linear(x).dim()} axes are too few")


@pytest.mark.parametrize(("features", "drawn"), [(16, True), (2**15, False)])
def test_a_large_network_is_not_run_with_values_to_see_an_error_again(
    features: int, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def on_cpu(*_: object) -> None:
        seen.append("cpu")
        raise ValueError("2 axes are too few")

    monkeypatch.setattr(tracer, "on_cpu", on_cpu)
    ways = [*WAYS[:2], ("cpu", on_cpu)]
    with pytest.raises(ModelError, match="2 axes are too few"):
        trace_by(ways, Faulty(features), Asked((torch.ones(2, features, device="meta"),)))
    assert bool(seen) == drawn
