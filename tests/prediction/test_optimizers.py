"""What optimizers keep and make, casts of a GPU, adapters and frozen weights: memory of training steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import neuralpower
from neuralpower.devices.layout import Layout
from neuralpower.errors import InputError, ModelError
from neuralpower.networks.adapters import Lora, with_adapters, with_lora
from neuralpower.networks.inputs.input_request import InputRequest
from neuralpower.networks.sources import resolve
from neuralpower.optimizers.registry import KNOWN, States, canonical, optimizers_of
from neuralpower.platforms import CPU, Platform, platform_named
from neuralpower.prediction.fits.fit import fit, memory
from neuralpower.prediction.memory.cuda_allocator import replayed
from neuralpower.prediction.memory.peak import peak
from neuralpower.prediction.weights import chosen, scheme_asked
from neuralpower.trace.followed import with_quantised
from neuralpower.trace.lifetimes import ACTIVATIONS, GRADIENTS, OPTIMIZER, WEIGHTS, StepLifetimes
from neuralpower.trace.operators.casts import cast_dtype, cast_rules, casting
from neuralpower.trace.recipe import TRAINING, Recipe
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace
from neuralpower.trace.weights import weights_of
from tests.asking import requested
from tests.program import done, run

NVIDIA = platform_named("nvidia")
LLAMA = (
    "transformers:llama?num_hidden_layers=2&hidden_size=64&num_attention_heads=4&num_key_value_heads=4"
    "&intermediate_size=128&vocab_size=100"
)
MIB = 2**20
TINY = 528.0 * 2**20  # bytes of a device in which little fits but CUDA's context


class Net(nn.Module):
    """An embedding of 50 x 128, a hidden product of 128 x 128 with a bias, and a last one to 10."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 128)
        self.hidden = nn.Linear(128, 128)
        self.head = nn.Linear(128, 10, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, places: Tensor) -> Tensor:
        hidden: Tensor = self.hidden(self.table(places))
        return self.head(hidden.relu())


TABLE, HIDDEN, BIAS, HEAD = 50 * 128, 128 * 128, 128, 1280
ALL = TABLE + HIDDEN + BIAS + HEAD


def step(model: nn.Module, *args: Any, **how: Any) -> StepLifetimes:
    return training_lifetimes(model, args, **{"platform": NVIDIA, **how})


def parts(found: StepLifetimes) -> Counter[str]:
    """Bytes by part, without single numbers such as counts of steps."""
    sizes = Counter[str]()
    for one in found.storages:
        sizes[one.part] += one.bytes if one.bytes > 8 else 0
    return sizes


# ---- what optimizers keep


@pytest.mark.parametrize(
    ("optimizer", "kept"),
    [
        ("sgd", 0),
        ("momentum", 4 * ALL),
        ("lion", 4 * ALL),
        ("nadam", 8 * ALL),
        ("radam", 8 * ALL),
        ("adadelta", 8 * ALL),
        ("adamax", 8 * ALL),
        ("asgd", 4 * ALL),
        # tensors below 4,096 numbers stay float32; the others have 1 byte and a scale for 256 numbers, twice
        ("adamw8bit", 2 * (TABLE + HIDDEN) + 8 * (25 + 64) + 8 * (BIAS + HEAD)),
        ("lion8bit", TABLE + HIDDEN + 4 * (25 + 64) + 4 * (BIAS + HEAD)),
        # a row and a column of each matrix, and all of the bias
        ("adafactor", 4 * (50 + 128 + 128 + 128 + 10 + 128 + BIAS)),
        ("transformers-adafactor", 4 * (50 + 128 + 128 + 128 + 10 + 128 + BIAS)),
        # a momentum of the hidden matrix; moments of the table, the bias and the head
        ("muon", 4 * HIDDEN + 8 * (TABLE + BIAS + HEAD)),
    ],
)
def test_an_optimizer_keeps_its_states(optimizer: str, kept: int) -> None:
    name = KNOWN[optimizer].make
    if isinstance(name, str) and not hasattr(torch.optim, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    found = step(Net(), torch.zeros(4, dtype=torch.int64), optimizer=optimizer)
    assert parts(found)[OPTIMIZER] == kept


def test_paged_states_are_on_the_device_for_one_update_alone() -> None:
    model, x = nn.Sequential(nn.Linear(400, 300), nn.Linear(300, 10)), torch.zeros(2, 400)
    found = step(model, x, optimizer="paged_adamw_32bit")
    assert parts(found)[OPTIMIZER] == 8 * (300 + 3000 + 10)  # below 100,000 numbers
    made = [one.bytes for one in found.storages if one.part == ACTIVATIONS and one.birth > found.passes[-1]]
    assert sorted(made)[-2:] == [4 * 120_000] * 2


def test_an_unknown_optimizer_keeps_the_states_that_are_given() -> None:
    x = torch.zeros(4, dtype=torch.int64)
    assert parts(step(Net(), x, optimizer="mine", states=States(3)))[OPTIMIZER] == 12 * ALL
    half = step(Net(), x, optimizer="mine", states=States.parsed("1.5:bf16"))
    assert parts(half)[OPTIMIZER] == 3 * ALL


@pytest.mark.parametrize("text", ["", "two", "-1", "nan", "1e9", "2:float4_e2m1fn", "2:nothing", "2:"])
def test_states_that_cannot_be_are_refused(text: str) -> None:
    if text == "2:":
        assert States.parsed(text) == States(2)
        return
    with pytest.raises(InputError, match=r"optimizer|dtype"):
        States.parsed(text)


def test_names_of_trainers_are_understood() -> None:
    names = ("paged_adamw_8bit", "AdamW8bit", "adamw_bnb_8bit", "Lion", "adamw_torch", "other")
    found = [canonical(name) for name in names]
    assert found == ["pagedadamw8bit", "adamw8bit", "adamw8bit", "lion", "adamw", "other"]


def test_an_unknown_optimizer_is_refused_in_one_line_that_says_the_way_out() -> None:
    for command in (("predict", LLAMA, "--device", "h100"), ("fit", LLAMA, "--memory", "1GB")):
        ran = run(*command, "--phase", "training", "--optimizer", "adan")
        assert ran.code == 2
        (line,) = ran.err.splitlines()
        assert "unknown optimizer 'adan': did you mean" in line
        assert "--optimizer-states 2" in line


def test_an_optimizer_that_torch_lacks_is_predicted_but_not_run() -> None:
    with pytest.raises(InputError, match="optimizer lion: its steps are predicted, not run"):
        Recipe("lion").optimizer_of(Net().parameters())
    with pytest.raises(InputError, match="lion: torch has no fused one; choose loop"):
        Recipe("lion", "fused")


def test_muon_steps_hidden_matrices_and_adamw_the_rest() -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("an older torch")
    model = Net()
    made = optimizers_of("muon", [*model.parameters()], [False, True, False, False])
    sizes = [[p.numel() for group in one.param_groups for p in group["params"]] for one in made]
    assert sizes == [[HIDDEN], [TABLE, BIAS, HEAD]]


def test_the_time_of_a_step_without_data_is_that_of_its_bytes_by_another_optimizer() -> None:
    loaded, found = neuralpower.load("h100"), {}
    for name in ("adamw", "lion", "adamw8bit"):
        done = loaded.predict(Net(), torch.zeros(4, dtype=torch.int64), phase="training", recipe=Recipe(name))
        said = [note for note in done.assumptions if f"the time of {name}'s step is assumed" in note]
        assert bool(said) == (name != "adamw")
        found[name] = sum(row.bytes for row in done.rows if row.kind == "optimizer")
    # parameters, gradients and states of 4 bytes in, parameters and states out; 8 bits have 2 x 1.016 bytes
    assert found["adamw"] == 4 * ALL * (3 + 4)
    assert found["lion"] == 4 * ALL * (3 + 2)
    assert found["adamw8bit"] == pytest.approx(ALL * (12 + 4 * (1 + 1 / 64)), rel=1e-3)


# ---- casts


class Wide(nn.Module):
    """A product, then what a GPU computes in float32 and a CPU in the product's type."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y: Tensor = self.product(x)
        return y, self.norm(y), y.softmax(-1), y.pow(2), y.relu()


@pytest.mark.parametrize(("platform", "wide"), [(CPU, False), (NVIDIA, True)])
def test_an_autocast_casts_what_the_platform_casts(platform: Platform, wide: bool) -> None:
    model, x = Wide(), torch.zeros(2, 64)
    with cast_rules(platform), casting(torch.bfloat16):
        kinds = [one.dtype for one in model(x)]
    other = torch.float32 if wide else torch.bfloat16
    assert kinds == [torch.bfloat16, other, other, other, torch.bfloat16]


def test_rules_of_a_gpu_last_as_long_as_their_block() -> None:
    with cast_rules(NVIDIA):
        pass
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.softmax(torch.zeros(2, 3, dtype=torch.bfloat16), -1).dtype == torch.bfloat16


def test_a_softmax_under_autocast_reads_16_bits_and_keeps_32() -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = nn.Linear(64, 1024, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.product(x)
            return scores.log_softmax(-1)

    found = step(Scores(), torch.zeros(512, 64), autocast=torch.bfloat16, loss=lambda y: y.mean())
    born = [one for one in found.storages if one.part == ACTIVATIONS and one.birth <= found.passes[0]]
    sizes = sorted((one.bytes for one in born), reverse=True)
    assert sizes[:3] == [4 * 512 * 1024, 2 * 512 * 1024, 2 * 64 * 1024]  # no float32 copy of the scores


def test_copies_of_weights_last_for_the_forward_pass_of_an_autocast() -> None:
    model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(3)))
    found = step(model, torch.zeros(2, 128), autocast=torch.bfloat16)
    ends = [one.death for one in found.storages if one.part == ACTIVATIONS and one.bytes == 2 * 128 * 128]
    forward = found.passes[0]
    assert len([end for end in ends if end is not None and end >= forward]) >= 3
    assert parts(found)[GRADIENTS] == 3 * 4 * 128 * 128


# What is made of a product in 16 bits (q) and a softmax in float32 (a) -> its type on a GPU, by the lists
# `AT_FORALL_LOWER_PRECISION_FP` and `AT_FORALL_PROMOTE` of torch's ATen/autocast_mode.h
MIXED: dict[str, tuple[Callable[[nn.Module, Tensor, Tensor], Tensor], torch.dtype]] = {
    "einsum": (lambda m, q, a: torch.einsum("bqk,bkd->bqd", a, q), torch.bfloat16),
    "einsum of three": (lambda m, q, a: torch.einsum("bqk,bkd,bqe->bde", a, q, a), torch.bfloat16),
    "einsum without a sum": (lambda m, q, a: torch.einsum("bqk,bqk->bqk", a, q), torch.float32),
    "matmul": (lambda m, q, a: a @ q, torch.bfloat16),
    "vector": (lambda m, q, a: torch.mv(a[0], q[0, 0]), torch.bfloat16),
    "chain": (lambda m, q, a: torch.linalg.multi_dot([a[0], q[0], a[1]]), torch.bfloat16),
    "GRU cell": (lambda m, q, a: m.gru(q[0], a[0]), torch.bfloat16),  # type: ignore[operator]
    "LSTM cell": (lambda m, q, a: m.lstm(q[0], (a[0], a[0]))[0], torch.bfloat16),  # type: ignore[operator]
    "RNN cell": (lambda m, q, a: m.rnn(q[0], a[0]), torch.bfloat16),  # type: ignore[operator]
    "tensordot": (lambda m, q, a: torch.tensordot(a, q, dims=([2], [2])), torch.float32),
    "inner": (lambda m, q, a: torch.inner(a, q), torch.float32),
    "bilinear": (lambda m, q, a: m.bilinear(a, q), torch.float32),  # type: ignore[operator]
    "scatter_add": (lambda m, q, a: a.scatter_add(1, torch.zeros_like(a).long(), q), torch.float32),
    "cat": (lambda m, q, a: torch.cat([a, q]), torch.float32),
}


TYPES: list[torch.dtype] = []


class Mixed(nn.Module):
    """One of MIXED, behind a linear layer."""

    def __init__(self, made: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.made, self.note = made, TYPES.append
        self.linear, self.bilinear = nn.Linear(16, 16), nn.Bilinear(16, 16, 4)
        self.gru, self.lstm, self.rnn = nn.GRUCell(16, 16), nn.LSTMCell(16, 16), nn.RNNCell(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """X [8, 16, 16]."""
        q = self.linear(x)
        found = self.made(self, q, q.float().softmax(-1))
        self.note(found.dtype)
        return found


@pytest.mark.parametrize("name", MIXED)
def test_operands_of_two_types_are_cast_as_on_the_device(name: str) -> None:
    made, on_gpu = MIXED[name]
    model = Mixed(made)
    found = neuralpower.predict(model, (8, 16, 16), device="rtx-4090", phase="training", autocast="bfloat16")
    assert found.memory is not None
    how: Any = {"autocast": torch.bfloat16, "training": True}
    with cast_rules(NVIDIA):
        TYPES.clear()
        trace(model, (torch.zeros(8, 16, 16),), **how)
    assert set(TYPES) == {on_gpu}
    try:  # PyTorch itself, on this CPU
        with torch.autocast("cpu", torch.bfloat16):
            real = model(torch.zeros(8, 16, 16)).dtype
    except RuntimeError:
        return  # it is refused on CPUs
    with cast_rules(CPU):
        TYPES.clear()
        trace(model, (torch.zeros(8, 16, 16),), **how)
    assert set(TYPES) == {real}


def test_an_autocast_is_of_16_bits() -> None:
    assert cast_dtype("bf16") == torch.bfloat16
    with pytest.raises(InputError, match="unknown dtype of an autocast 'float32'"):
        cast_dtype("float32")


# (optimizer, autocast, checkpointing) -> bytes allocated at the peak on an NVIDIA H200 with torch 2.11: GPT-2
# small without dropout, batch 4, 512 tokens, two steps of forward, backward, step and zero_grad
MEASURED = {
    ("adafactor", False, False): 3_931_241_984,
    ("adamw", True, True): 2_965_312_000,
}


@pytest.mark.parametrize(("optimizer", "autocast", "checkpointing"), MEASURED)
def test_peaks_of_gpt2_are_those_of_a_gpu(optimizer: str, autocast: bool, checkpointing: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    ids = torch.zeros((4, 512), dtype=torch.int64, device="meta")
    found = training_lifetimes(
        model,
        (),
        {"input_ids": ids, "labels": ids},
        optimizer=optimizer,
        platform=NVIDIA,
        checkpointing=checkpointing,
        autocast=torch.bfloat16 if autocast else None,
    )
    real = MEASURED[optimizer, autocast, checkpointing]
    handles = (32 * MIB, 32 * MIB)
    assert replayed(found.storages, handles=handles).peak_allocated == pytest.approx(real, rel=0.005)


# ---- adapters and frozen weights


def small(
    lora: str | None, dtype: torch.dtype = torch.float32, **how: Any
) -> tuple[nn.Module, StepLifetimes]:
    source = with_lora(resolve(LLAMA), lora, TRAINING)
    module = source.build("meta", dtype)
    inputs = source.inputs(module, InputRequest(2, 32, None, dtype), "meta")
    return module, training_lifetimes(module, inputs.args, inputs.kwargs, platform=NVIDIA, **how)


def test_adapters_alone_have_gradients_and_states() -> None:
    _, whole = small(None)
    module, found = small("8")
    numbers = 2 * 2 * 8 * (64 + 64)  # two layers, query and value, rank 8
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) == numbers
    assert (parts(found)[GRADIENTS], parts(found)[OPTIMIZER]) == (4 * numbers, 8 * numbers)
    assert parts(found)[WEIGHTS] - parts(whole)[WEIGHTS] == 4 * numbers
    kept = [
        sum(
            s.bytes
            for s in one.storages
            if s.part == ACTIVATIONS and s.birth <= one.passes[0] < (s.death or 0)
        )
        for one in (whole, found)
    ]
    assert kept[1] < kept[0]  # products with frozen weights keep no inputs


def test_adapters_of_16_bit_weights_are_float32_and_checkpointing_reaches_them() -> None:
    module, found = small("8:all-linear", torch.bfloat16, checkpointing=True)
    trained = [p for p in module.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    assert len(trained) == 2 * 2 * 7  # of two layers, seven products each
    assert parts(found)[GRADIENTS] == 4 * sum(p.numel() for p in trained)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "lora rank 0: must be a whole number"),
        ("x", "lora 'x': must be a rank"),
        ("8:", "lora '8:': must be a rank"),
        ("9999", "lora rank 9999: must be a whole number from 1 to 4096"),
    ],
)
def test_a_rank_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Lora.parsed(text)


def test_modules_that_are_not_there_are_refused() -> None:
    with pytest.raises(
        InputError, match="unknown module of Net in lora 8:hiden: 'hiden': did you mean hidden"
    ):
        with_adapters(Net(), Lora(8, ("hiden",)))
    with pytest.raises(ModelError, match="Sequential has no Linear module to adapt"):
        with_adapters(nn.Sequential(nn.Conv2d(3, 4, 1)), Lora(8))
    with pytest.raises(InputError, match="lora 8 belongs to phase training, not to forward"):
        with_lora(resolve(LLAMA), "8", "forward")
    with pytest.raises(InputError, match="adapters of tensor or expert ranks are not supported"):
        with_lora(resolve(LLAMA), "8", TRAINING, Layout(tensor=2))


def test_an_adapted_product_computes_its_addition() -> None:
    model = with_adapters(nn.Sequential(nn.Linear(6, 4)), Lora(2))
    product: Any = next(model.children())
    x = torch.randn(3, 6)
    product.lora_b.data.normal_()
    addition = 2 * x @ product.lora_a.T @ product.lora_b.T
    assert torch.allclose(model(x), x @ product.weight.T + product.bias + addition, atol=1e-6)
    assert isinstance(product, nn.Linear)


def test_a_module_of_the_users_is_not_adapted_in_place() -> None:
    model = Net()
    source = with_lora(resolve(model), "2:hidden", TRAINING)
    built = source.build("meta")
    assert "hidden.lora_a" in dict(built.named_parameters())
    assert "hidden.lora_a" not in dict(model.named_parameters())
    assert all(p.requires_grad for p in model.parameters())


def test_frozen_parts_of_a_users_module_have_no_gradients() -> None:
    model = Net()
    model.hidden.requires_grad_(False)
    found = step(model, torch.zeros(4, dtype=torch.int64))
    assert parts(found)[GRADIENTS] == 4 * (TABLE + HEAD)
    assert parts(found)[OPTIMIZER] == 8 * (TABLE + HEAD)


def test_quantised_frozen_weights_take_their_bytes_and_are_widened_one_by_one() -> None:
    module, plain = small("8", torch.bfloat16)
    scheme = chosen(scheme_asked("nf4"), None, TRAINING, module)
    assert scheme is not None
    found = with_quantised(plain, weights_of(module), scheme)
    name = "layers.0.self_attn.q_proj.weight"
    (weight,) = [one.bytes for one in found.storages if one.name == name]
    blocks = 64 * 64 // 64
    tables = 4 * (16 + 256)  # what codes and scales stand for
    assert weight == 64 * 64 // 2 + blocks + 4 * blocks // 256 + tables
    widened = [one for one in found.storages if one not in plain.storages and not one.name]
    # seven products of two layers: forward, and backward but for the first three, whose input has no gradient
    assert len(widened) == 2 * 2 * 7 - 3
    assert {one.bytes for one in widened} == {2 * 64 * 64, 2 * 64 * 128}
    assert all(one.birth == one.death for one in widened)


def test_weights_that_are_trained_cannot_be_quantised() -> None:
    module = resolve(LLAMA).build("meta", torch.bfloat16)
    with pytest.raises(InputError, match="train adapters with --lora 16"):
        chosen(scheme_asked("nf4"), None, TRAINING, module)


def test_fit_answers_for_adapters_on_quantised_weights() -> None:
    request = requested(LLAMA, 1, 32, dtype="bfloat16", phase=TRAINING, platform=NVIDIA)
    whole, adapted = memory(request), memory(replace(request, lora="8"))
    found = fit(replace(request, lora="8", weights="nf4", remedies=False), TINY)
    assert found.memory.weights_bytes < adapted.weights_bytes
    assert adapted.optimizer_bytes < whole.optimizer_bytes
    assert any("parameters are trained, the others are frozen" in note for note in found.notes)
    options: dict[str, Any] = {
        "lora": 8,
        "autocast": "bfloat16",
        "optimizer_states": 2,
        "master_weights": True,
    }
    for name, value in options.items():
        with pytest.raises(InputError, match=f"{name} {value} belongs to phase training, not to forward"):
            neuralpower.fit(LLAMA, TINY, device="t4", **{name: value})


# ---- float32 masters


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        ("sgd", 0),
        ("adamw", 8 * ALL),
        # as of float32 weights: states of 8 bits stay as they are
        ("adamw8bit", 2 * (TABLE + HIDDEN) + 8 * (25 + 64) + 8 * (BIAS + HEAD)),
    ],
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_masters_gradients_and_states_of_16_bit_weights_are_float32(
    optimizer: str, states: int, accumulation: int
) -> None:
    model, x = Net().bfloat16(), torch.zeros(4, dtype=torch.int64)
    found = step(model, x, optimizer=optimizer, masters=True, accumulation=accumulation)
    sizes = parts(found)
    assert (sizes[WEIGHTS], sizes[GRADIENTS]) == (2 * ALL, 4 * ALL)
    assert sizes[OPTIMIZER] == 4 * ALL + states


def test_weights_of_32_bits_are_their_own_masters() -> None:
    model = Net().bfloat16()
    model.head.float()
    model.hidden.register_forward_hook(lambda module, args, output: output.float())
    sizes = parts(step(model, torch.zeros(4, dtype=torch.int64), optimizer="lion", masters=True))
    assert sizes[OPTIMIZER] == 4 * ALL + 4 * (ALL - HEAD)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float32"}, "master weights of float32 weights: .* choose dtype bfloat16"),
        ({"autocast": "bfloat16"}, "master weights and autocast: .* choose dtype float32"),
        ({"lora": "8"}, "master weights and lora 8: .* leave master weights out"),
    ],
)
def test_masters_of_weights_that_have_none_are_refused(changes: dict[str, Any], message: str) -> None:
    how = {"dtype": "bfloat16", "phase": TRAINING, "platform": NVIDIA, "master_weights": True}
    with pytest.raises(InputError, match=message):
        memory(requested(LLAMA, 1, 32, **{**how, **changes}))


# ---- over several devices


def test_replicas_share_out_the_states_of_each_optimizer_and_frozen_weights() -> None:
    def on(layout: Layout, **how: Any) -> Any:
        request = requested(LLAMA, 2, 32, phase=TRAINING, platform=NVIDIA, layout=layout, **how)
        return memory(request)

    alone, zero1 = Layout(data=2), Layout(data=2, shard="zero1")
    assert on(zero1, optimizer="lion").optimizer_bytes == pytest.approx(
        on(alone, optimizer="lion").optimizer_bytes / 2, rel=0.01
    )
    zero3 = on(Layout(data=2, shard="zero3"), lora="8").weights_bytes
    assert zero3 == pytest.approx(on(alone, lora="8").weights_bytes / 2, rel=0.01)


# ---- one word, one meaning


RESNET18 = 11_689_512  # parameters, as torchvision prints them


@pytest.mark.parametrize(("name", "states"), [("sgd", 0), ("momentum", 1), ("adamw", 2), ("lion", 1)])
def test_a_name_means_the_same_optimizer_wherever_it_is_asked(name: str, states: int) -> None:
    wanted = pytest.approx(4 * states * RESNET18, rel=1e-3)
    how: Any = {"device": "h100", "phase": "training"}
    predicted = neuralpower.predict("zoo:resnet18", recipe=Recipe(name), **how)
    assert predicted.memory is not None and predicted.memory.optimizer_bytes == wanted
    assert neuralpower.fit("zoo:resnet18", optimizer=name, **how).memory.optimizer_bytes == wanted
    assert neuralpower.memory("zoo:resnet18", optimizer=name, **how).optimizer_bytes == wanted
    printed = [
        json.loads(
            done(command, "zoo:resnet18", *"--device h100 --phase training --json --optimizer".split(), name)
        )
        for command in ("predict", "fit")
    ]
    assert [one["memory"]["optimizer_bytes"] for one in printed] == [wanted, wanted]
    two = neuralpower.fit("zoo:resnet18", optimizer=name, layout=Layout(data=2), **how)
    assert two.memory.optimizer_bytes == wanted
    parameters = [torch.nn.Parameter(torch.ones(4))]
    if name != "lion":  # no class of torch
        made = Recipe(name).optimizer_of(parameters)
        parameters[0].grad = torch.ones(4)
        made.step()
        kept = [value for value in made.state[parameters[0]].values() if getattr(value, "numel", int)() == 4]
        assert len(kept) == states


def test_a_step_of_sgd_moves_three_numbers_a_parameter_and_says_so() -> None:
    how: Any = {"device": "h100", "phase": "training", "batch_size": 1}
    plain, other = (
        neuralpower.predict("zoo:resnet18", recipe=Recipe(name), **how) for name in ("sgd", "momentum")
    )
    moved = [sum(row.bytes for row in one.rows if row.step == "optimizer") for one in (plain, other)]
    assert moved == [pytest.approx(3 * 4 * RESNET18, rel=1e-3), pytest.approx(5 * 4 * RESNET18, rel=1e-3)]
    assert any("write momentum for sgd with momentum" in text for text in plain.assumptions)
    assert not any("write momentum" in text for text in other.assumptions)


class Own(nn.Module):
    """A network that casts its products itself, as `how` says."""

    def __init__(self, how: Callable[[], Any]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Softmax(-1), nn.Linear(8, 8))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        with self.how():
            y: Tensor = self.net(x)
            return y


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # no CUDA here, an older name
@pytest.mark.parametrize(
    ("how", "on_cpu", "on_gpu"),
    [
        (lambda: torch.autocast("cpu"), torch.bfloat16, torch.bfloat16),
        (lambda: torch.autocast("cpu", dtype=torch.float16), torch.float16, torch.float16),
        (lambda: torch.autocast("cuda", dtype=torch.bfloat16), None, torch.bfloat16),
        (lambda: torch.autocast("cuda"), None, torch.float16),
        (lambda: torch.amp.autocast("cuda", torch.bfloat16), None, torch.bfloat16),
        (lambda: torch.cuda.amp.autocast(), None, torch.float16),
        (lambda: torch.cuda.amp.autocast(dtype=torch.bfloat16), None, torch.bfloat16),
        (lambda: torch.autocast("cuda", enabled=False), None, None),
        (lambda: torch.autocast("cpu", enabled=False), None, None),
    ],
)
def test_a_network_that_casts_itself_is_cast_as_one_that_is_asked_to(
    how: Callable[[], Any], on_cpu: torch.dtype | None, on_gpu: torch.dtype | None
) -> None:
    own, x = Own(how).eval(), torch.zeros(2, 8)
    for platform, dtype in ((CPU, on_cpu), (NVIDIA, on_gpu)):
        with cast_rules(platform):
            asked = [(call.operator, call.layer) for call in trace(own.net, (x,), autocast=dtype).calls]
            found = [(call.operator, call.layer) for call in trace(own, (x,)).calls]
        assert found == asked
        steps = [
            training_lifetimes(model, (x,), {}, platform=platform, stepped=False, autocast=low)
            for model, low in ((own, None), (own.net, dtype))
        ]
        needed = [peak(step.storages)[0] for step in steps]
        assert needed[0] == pytest.approx(needed[1], abs=256)  # copies of weights are freed with the block


def test_a_block_without_casts_is_left_alone_by_a_block_around_it() -> None:
    model = Own(lambda: torch.autocast("cpu", enabled=False))
    with cast_rules(NVIDIA):
        found = trace(model, (torch.zeros(2, 8),), autocast=torch.bfloat16)
    assert {call.layer.dtype for call in found.calls} == {"float32"}
