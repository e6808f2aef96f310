"""What comes with a network keeps its values: a trace that asks for a number gets the one that was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, ModelError
from neuralpower.networks.inputs.input_values import weightless
from neuralpower.networks.inputs.known_values import HELD_BYTES, made_up, with_values
from neuralpower.networks.running import WAYS
from neuralpower.networks.source import Source
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import Asked, trace, trace_by

NETS = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)

class Steps(Base):
    def forward(self, x, steps):
        for _ in range(int(steps * 2 - 5)):
            x = self.layer(x)
        return x

class Lightning(Steps):
    def __init__(self):
        super().__init__()
        self.example_input_array = (torch.Tensor(4, 8), torch.tensor(5))

class Chosen(Base):
    def forward(self, x, ids):
        return self.layer(x[ids == 3]), self.layer(torch.masked_select(x, (ids == 3)[:, None]).view(-1, 8))

class Lists(Base):
    def forward(self, x, counts):
        for count in counts.tolist():
            for _ in range(count):
                x = self.layer(x)
        rows = self.layer(x).repeat_interleave(counts, 0)
        mask = torch.arange(6, device=x.device)[None] < counts[:, None]
        return self.layer(rows), self.layer(rows[: mask.sum().item()])

class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(8, 8, batch_first=True, bias=False)
        self.last = nn.Linear(8, 8, bias=False)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x * 1.0, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.last(out)

class Floats(Base):
    def forward(self, x, level):
        while level > 0.5:
            level, x = level * 0.5, self.layer(x)
        return x

def steps(): return Steps(), (torch.randn(4, 8), torch.tensor(5))
def alone(): return Steps()
def chosen(): return Chosen(), (torch.randn(4, 8), torch.tensor([3, 1, 3, 3]))
def lists(): return Lists(), {"x": torch.randn(2, 8), "counts": torch.tensor([2, 3])}
def packed(): return Packed(), (torch.randn(2, 20, 8), torch.tensor([16, 12]))
def floats(): return Floats(), (torch.ones(4, 8), torch.tensor(4.0))
def nothing(): return Steps(), (torch.randn(4, 8), torch.empty((), dtype=torch.long))
def example_inputs(batch_size): return torch.empty(batch_size, 8), torch.tensor(3)
"""


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    return path


def traced(source: Source, batch: int | None = None, ways: Any = WAYS) -> Trace:
    """As a prediction does it: the module on meta, its inputs promised."""
    model = source.build("meta")
    inputs = source.inputs(model, InputRequest(source.batch_size(batch)), "meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    return trace_by(ways, model, Asked(inputs.args, inputs.kwargs))


def products(found: Trace) -> int:
    return sum(layer.flops() for layer in found.layers if layer.multiplies)


@pytest.mark.parametrize(
    ("name", "batch", "flops"),
    [
        # 5 * 2 - 5 = 5 products of 4 x 8 by 8 x 8, 2 FLOP per multiply-add
        ("steps", None, 5 * 2 * 4 * 8 * 8),
        ("steps", 8, 5 * 2 * 8 * 8 * 8),
        ("Lightning", None, 5 * 2 * 4 * 8 * 8),
        # example_inputs beside it: 3 * 2 - 5 = 1 product, of the batch's one row
        ("alone", None, 1 * 2 * 1 * 8 * 8),
        # 3 of 4 ids are 3, twice; of 8 ids, which are the 4 twice, 6
        ("chosen", None, 2 * 2 * 3 * 8 * 8),
        ("chosen", 8, 2 * 2 * 6 * 8 * 8),
        # 2 + 3 products of 2 rows and one more, then 2 + 3 repeated rows, then the first 5 of them
        ("lists", None, 2 * 8 * 8 * (6 * 2 + 5 + 5)),
        # 16 steps of 28 / 16 = 2 sequences, rounded, by 4 gates of 8 + 8 by 8 numbers; then 2 x 16 rows
        ("packed", None, 2 * (16 + 12) * 4 * 16 * 8 + 2 * 32 * 8 * 8),
        # 4, 2, 1 are above 0.5
        ("floats", None, 3 * 2 * 4 * 8 * 8),
    ],
)
def test_a_number_that_is_asked_for_is_the_one_that_was_given(
    nets: Path, name: str, batch: int | None, flops: int
) -> None:
    source = resolve(f"{nets}:{name}")
    found = traced(source, batch)
    assert (products(found), found.method) == (flops, "fake")  # no weight has memory
    assert found.assumptions == ()
    assert products(traced(source, batch, WAYS[2:])) == flops  # as a real run has it


def test_a_module_in_python_is_called_with_its_example() -> None:
    class Net(nn.Linear):
        example_input_array = (torch.ones(3, 4),)

    source = resolve(Net(4, 5))
    assert traced(source).flops == 2 * 3 * 4 * 5
    assert traced(source, 7).flops == 2 * 7 * 4 * 5
    inputs = source.inputs(source.build(), InputRequest(2, input_shape=(4,)))
    assert inputs.args[0].shape == (2, 4)
    with pytest.raises(InputError, match="seq_len is 5, but Net brings its inputs"):
        source.inputs(source.build(), InputRequest(seq_len=5))


def test_numbers_that_are_given_stay_and_what_was_not_written_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def net():\n"
        "    mask = torch.full((4, 4), float('-inf')).triu(1)\n"
        "    part = torch.empty(4, 8)\n    part[:] = 7.5\n"
        "    flags = torch.zeros(2).bool()\n"
        "    return nn.Linear(8, 8), (torch.empty(4, 8), part, mask, torch.Tensor(4, 8), flags)\n"
    )
    source = resolve(f"{tmp_path / 'net.py'}:net")
    model = source.build("meta")
    for inputs in (source.inputs(model, InputRequest(4)), source.inputs(model, InputRequest(4), "meta")):
        empty, part, mask, sized, flags = (with_values(tensor) for tensor in inputs.args)
        assert (part == 7.5).all() and not flags.any()
        assert mask.equal(torch.full((4, 4), float("-inf")).triu(1))
        assert 0.5 < empty.std() < 2 and 0.5 < sized.std() < 2
        assert [bool(made_up(t)) for t in (empty, part, mask, sized, flags)] == [
            True,
            False,
            False,
            True,
            False,
        ]


def test_what_is_made_up_and_decides_is_said(nets: Path) -> None:
    (text,) = traced(resolve(f"{nets}:nothing")).assumptions
    assert (
        "depends on values that are made up" in text
        and "steps (given as memory that nothing was written to" in text
    )


def test_random_inputs_that_decide_are_said() -> None:
    class Picking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[x[:, 0] > 0])

    source = resolve(Picking(4, 4))
    model = source.build()
    inputs = source.inputs(model, InputRequest(16, input_shape=(4,)), "meta")
    found = trace(model, inputs.args, inputs.kwargs)
    rows = int((with_values(inputs.args[0])[:, 0] > 0).sum())
    assert products(found) == 2 * rows * 4 * 4
    assert any("made up: x (random numbers)" in text for text in found.assumptions)
    assert trace(model, (torch.ones(3, 4),)).assumptions == ()  # given


def test_weights_of_a_large_network_take_no_memory_for_its_inputs(tmp_path: Path) -> None:
    # 300,000 x 300,000 floats are 360 GB
    (tmp_path / "large.py").write_text(
        NETS + "\ndef large():\n"
        "    model = Steps()\n    model.table = nn.Embedding(300_000, 300_000)\n"
        "    model.own = nn.Parameter(torch.empty(300_000, 300_000))\n"
        "    return model, (torch.randn(4, 8), torch.tensor(4))\n"
    )
    found = traced(resolve(f"{tmp_path / 'large.py'}:large"))
    assert (products(found), found.method) == (3 * 2 * 4 * 8 * 8, "fake")


def test_weightless_leaves_ties_and_small_tensors() -> None:
    with weightless():
        layer = nn.Linear(3, 4)
        layer.again = layer.weight
        layer.own = nn.Parameter(torch.ones(2))
        given, large = torch.arange(3), torch.zeros(HELD_BYTES)
    assert layer.again is layer.weight and layer.own.is_meta and layer.weight.is_meta
    assert given.tolist() == [0, 1, 2] and large.is_meta
    assert not nn.Linear(3, 4).weight.is_meta


def test_inputs_beyond_what_is_held_are_made_up_and_said(nets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuralpower.networks.inputs.input_values.HELD_BYTES", 2**20)
    nets.write_text(
        NETS.replace("torch.randn(4, 8), torch.tensor(5))", "torch.zeros(2**17, 8), torch.tensor(3))")
    )
    source = resolve(f"{nets}:steps")
    inputs = source.inputs(source.build("meta"), InputRequest(2**17), "meta")
    x, steps = (with_values(tensor) for tensor in inputs.args)
    assert int(steps) == 3 and not made_up(steps)
    assert "beyond the 1 MiB that are kept" in made_up(x)


def test_a_functions_own_inputs_win_over_those_beside_it(nets: Path) -> None:
    source = resolve(f"{nets}:steps")
    assert source.inputs(source.build()).args[1] == 5
    source = resolve(f"{nets}:alone")
    assert source.inputs(source.build()).args[1] == 3


def test_what_a_call_without_values_writes_to_is_known_no_more() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            ids[0] = self.layer(x).argmax()
            return self.layer(x[ids == 9])

    module = Writing()
    ids = torch.tensor([9, 9, 9])
    found = trace(module, (torch.ones(3, 4), ids))
    # 3 rows, then 2: the first id is one of 4 outputs, which only a real run says
    assert (products(found), found.method) == (2 * 5 * 4 * 4, "cpu")
    assert ids.tolist() == [9, 9, 9]


# ---- types ----


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (nn.Linear(4, 4), (torch.zeros(2, 4, dtype=torch.long),)),
        (nn.Linear(4, 4), (torch.zeros(2, 4, dtype=torch.float16),)),
        (nn.Conv2d(4, 4, 1, groups=4), (torch.zeros(1, 4, 8, 8, dtype=torch.uint8),)),
        (nn.Sequential(nn.GELU()), (torch.zeros(2, 4, dtype=torch.long),)),
        (nn.Softmax(-1), (torch.zeros(2, 4, dtype=torch.int32),)),
        (nn.BatchNorm1d(4), (torch.zeros(2, 4, dtype=torch.long),)),
        (nn.Bilinear(4, 4, 4), (torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.float64))),
        (nn.Embedding(4, 4), (torch.zeros(2),)),
        (nn.CrossEntropyLoss(), (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int32))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_types_that_pytorch_refuses_are_refused_without_values(
    module: nn.Module, args: tuple[Tensor, ...]
) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        module.eval()(*args)
    for way in WAYS[:2]:
        with pytest.raises(InputError):
            trace_by((way,), module, Asked(args))
    model = resolve(module).build("meta")
    with pytest.raises(InputError) as caught:
        trace(model, args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (nn.ReLU(), (torch.zeros(2, 4, dtype=torch.long),)),
        (nn.Embedding(4, 4), (torch.zeros(2, dtype=torch.int32),)),
        (nn.LayerNorm(4), (torch.zeros(2, 4, dtype=torch.float16),)),
        (nn.MaxPool2d(2), (torch.zeros(1, 2, 4, 4, dtype=torch.long),)),
        (nn.CrossEntropyLoss(), (torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_types_that_pytorch_takes_are_taken(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    module.eval()(*args)
    for way in WAYS[:2]:
        trace_by((way,), module, Asked(args))


# ---- fields of a configuration ----

SMALL = "num_hidden_layers=1&hidden_size=64&num_attention_heads=4&num_key_value_heads=2&vocab_size=100"


def test_a_field_that_only_the_models_code_reads_can_be_overridden() -> None:
    model: Any = resolve(f"transformers:Qwen3MoeModel?head_dim=128&num_experts=2&{SMALL}").build()
    assert model.layers[0].self_attn.q_proj.out_features == 4 * 128
    model = resolve(
        f"transformers:mixtral?head_dim=32&num_local_experts=2&intermediate_size=8&{SMALL}"
    ).build()
    assert model.layers[0].self_attn.q_proj.out_features == 4 * 32


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "transformers:Qwen3MoeModel?head_dimm=128",
            "unknown field of Qwen3MoeConfig .*'head_dimm': did you mean head_dim",
        ),
        ("transformers:qwen3_moe?to_dict=3", "unknown field of Qwen3MoeConfig .*'to_dict'"),
        ("transformers:llama?foo=1", "unknown field of LlamaConfig .*'foo'"),
        ("transformers:bert?rope_theta=1", "unknown field of BertConfig"),
        ("transformers:bert?cache_dir=x", "unknown field of BertConfig .*'cache_dir'"),
    ],
)
def test_a_field_that_no_code_reads_is_refused(model: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(model)
