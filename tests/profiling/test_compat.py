"""The older profilers' calls: their shapes, their files, and what they got wrong."""

from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _len_torch_dispatch_stack  # type: ignore[attr-defined]

import neuralpower
from neuralpower import compat
from neuralpower.errors import InputError

FLOP_FILE = "Layer Name,Input Features,Output Features,Dict Size of Emb,Emb Vector Size,Norm Size,FLOPs"
TIME_FILE = "Layer Name,Self CPU total,CPU total,GPU total"
COMBINED_FILE = (
    "Layer_Name,Input_Features,Output_Features,Dict_Size_of_Emb,Emb_Vector_Size,Norm_Size,FLOPs,"
    "Self_CPU_total,CPU_total,GPU_total"
)


class Tagger(nn.Module):
    """Embeds, attends to itself with a residual, normalises and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.block = nn.ModuleDict({"query": nn.Linear(16, 16), "norm": nn.LayerNorm(16)})
        self.tag = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        y = nn.functional.scaled_dot_product_attention(self.block["query"](x), x, x)
        return self.tag(self.block["norm"](x + y))


IDS = torch.arange(12).reshape(2, 6)
# 2 * 12 rows * 16 * 16, 4 * 2 sequences * 6 * 6 * 16, 2 * 12 rows * 16 * 4
FLOPS = 6_144 + 4_608 + 1_536
PARAMETERS = 800 + 272 + 32 + 68


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_work_and_parameters_come_back_and_the_file_is_written() -> None:
    assert compat.profile(Tagger(), inputs=(IDS,), want_op_file=True) == (FLOPS, PARAMETERS)
    assert Path("output_file.csv").read_text().splitlines() == [
        FLOP_FILE,
        "Tagger,-,-,-,-,-,4608",
        "embedding,-,-,50,16,-,0",
        "block.query,16,16,-,-,-,6144",
        "block.norm,-,-,-,-,16,0",
        "tag,16,4,-,-,-,1536",
    ]


def test_no_file_is_written_unasked() -> None:
    compat.profile(Tagger(), (IDS,))
    compat.profile_f_t(Tagger(), (IDS,))
    assert list(Path().iterdir()) == []


def test_profile_f_t_returns_and_writes_times_beside_the_work() -> None:
    # T1: the original dies, for its table is None
    assert compat.profile_f_t(Tagger(), inputs=(IDS,), want_op_file=True) == (FLOPS, PARAMETERS)
    assert Path("output_file.csv").read_text().splitlines()[0] == COMBINED_FILE
    lines = {line["Layer Name"]: line for line in compat.read_op_file("output_file.csv")}
    # T7: full names, times are numbers and belong to their layer
    assert list(lines) == ["Tagger", "embedding", "block.query", "block.norm", "tag"]
    assert lines["block.query"]["FLOPs"] == 6_144
    assert 0 < lines["tag"]["Self CPU total"] == lines["tag"]["CPU total"] < lines["Tagger"]["CPU total"]
    assert lines["tag"]["GPU total"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"inputs": (IDS,)},
        {"inp_data": (IDS,)},
        {"inputs": IDS},
        {"kwargs": {"ids": IDS}},
        {"inp_data": (IDS,), "cuda_": False, "verbose": False},
    ],
)
def test_older_names_of_arguments_are_taken(arguments: dict[str, Any]) -> None:
    assert compat.profile(Tagger(), **arguments) == (FLOPS, PARAMETERS)


def test_two_names_at_once_are_refused() -> None:
    with pytest.raises(InputError, match="two names of the same argument"):
        compat.profile(Tagger(), (IDS,), inp_data=(IDS,))


def test_custom_operators_of_thop_count_and_leave_nothing() -> None:
    class Scaled(nn.Linear):
        """A subclass counts as its class."""

    def rule(module: Any, inputs: Any, output: Tensor) -> None:
        module.total_ops += torch.DoubleTensor([output.numel() * 100])

    model = nn.Sequential(Scaled(4, 8), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    # 100 multiply-adds for each of 24 and 6 outputs
    assert compat.profile(model, (x,), custom_ops={nn.Linear: rule}) == (2 * 100 * 30, 40 + 18)
    assert not any(name.startswith("total_") for module in model.modules() for name in module._buffers)
    assert not any(module._forward_hooks for module in model.modules())
    assert set(model.state_dict()) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_conventions_of_the_others_are_at_hand() -> None:
    # Linear (2 in - 1 + bias) per output: 12 * 16 * 32 + 12 * 4 * 32; norm 2 * 12 * 16; embedding 50 * 16
    flops, _ = compat.profile(Tagger(), (IDS,), convention="pytorch-api")
    assert flops == 6_144 + 1_536 + 384 + 800


def test_nothing_is_printed() -> None:
    # T22
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        compat.profile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(1, 4),), verbose=True)
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [(1000, "1.00K"), (999, "999.00"), (1e6, "1.00M"), (2.5e9, "2.50G"), (1e12, "1.00T"), (0, "0.00")],
)
def test_a_clever_format_is_not_too_clever(number: float, text: str) -> None:
    # T19: thop has "1000.00B" for 1000
    assert compat.clever_format(number) == text


def test_several_numbers_are_formatted_at_once() -> None:
    assert compat.clever_format([1500, 2e6], "%.1f") == ("1.5K", "2.0M")


# ---- torchprof ----


def test_leaf_modules_are_timed_while_the_context_is_open() -> None:
    model = Tagger()
    with neuralpower.Profile(model, use_cuda=False) as prof:
        model(IDS)
        model(IDS)
    model(IDS)
    times = prof.times()
    assert list(times) == ["embedding", "block.query", "block.norm", "tag"]
    assert {t.calls for t in times.values()} == {2}
    assert all(0 < t.self_cpu_s <= t.cpu_s < 10 and t.gpu_s is None for t in times.values())
    table = prof.display(show_events=False)
    assert table == str(prof)
    assert (
        table.splitlines()[0].split() == "Module Self CPU total CPU total GPU total Number of Calls".split()
    )
    assert "addmm" not in table and "addmm" in prof.display(show_events=True)
    assert list(Path().iterdir()) == []


def test_raw_gives_modules_and_their_operators() -> None:
    model = Tagger()
    with neuralpower.Profile(model) as prof:
        model(IDS)
    modules, operators = prof.raw()  # type: ignore[misc]
    assert [m.path for m in modules if m.leaf] == [
        ("Tagger", "embedding"),
        ("Tagger", "block", "query"),
        ("Tagger", "block", "norm"),
        ("Tagger", "tag"),
    ]
    assert modules[0].module is model
    assert [o.name for o in operators["Tagger", "embedding"]] == ["aten.embedding"]


def test_the_time_file_has_its_header_and_numbers() -> None:
    model = Tagger()
    with neuralpower.Profile(model, want_op_file=True) as prof:
        model(IDS)
    prof.display()
    assert Path("output_file.csv").read_text().splitlines()[0] == TIME_FILE
    lines = compat.read_op_file("output_file.csv")
    assert [line["Layer Name"] for line in lines] == ["embedding", "block.query", "block.norm", "tag"]
    assert all(isinstance(line["CPU total"], float) and line["GPU total"] is None for line in lines)


@pytest.mark.parametrize("paths", [["0"], [("Sequential", "0")], [("0",)]])
def test_given_paths_are_listed_instead_of_leaves(paths: list[Any]) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
    with neuralpower.Profile(model, paths=paths) as prof:
        model(torch.randn(2, 4))
    times = prof.times()
    assert list(times) == ["0"]
    assert times["0"].self_cpu_s == 0 < times["0"].cpu_s  # its modules work, it does not


def test_a_context_is_entered_once_only() -> None:
    prof = neuralpower.Profile(nn.Linear(2, 2))
    with prof, pytest.raises(InputError, match="has been entered before"), prof:
        pass


def test_an_unknown_path_is_refused() -> None:
    with (
        pytest.raises(InputError, match="Linear has no module 'head'"),
        neuralpower.Profile(nn.Linear(2, 2), paths=["head"]),
    ):
        pass


def test_a_disabled_context_does_nothing() -> None:
    model = nn.Linear(2, 2)
    with neuralpower.Profile(model, enabled=False) as prof:
        model(torch.randn(1, 2))
    assert prof.raw() is None
    assert str(prof) == "<unprofiled Linear>"


def test_an_exception_inside_leaves_nothing_attached() -> None:
    # T12
    model = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), neuralpower.Profile(model):
        model(torch.randn(1, 2))
        math.fmod(1 // 0, 1)
    assert not nn.modules.module._global_forward_hooks
    assert _len_torch_dispatch_stack() == 0


# ---- files ----


def test_the_older_order_of_the_combined_file_is_read() -> None:
    header = "Layer Name, FLOPs, Self CPU total, CPU total, GPU total, Input Features, Output Features"
    Path("old.csv").write_text(
        f"{header}, Dict Size of Emb, Emb Vector Size, Norm Size\nh.0, 12, 0.5, 1, -, 4, 3, 0, 0, -\n"
    )
    assert compat.read_op_file("old.csv") == [
        {
            "Layer Name": "h.0",
            "FLOPs": 12,
            "Self CPU total": 0.5,
            "CPU total": 1.0,
            "GPU total": None,
            "Input Features": 4,
            "Output Features": 3,
            "Dict Size of Emb": None,
            "Emb Vector Size": None,
            "Norm Size": None,
        }
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with ''"),
        ("a,b\n1,2\n", "begins with 'a,b'"),
        (f"{TIME_FILE}\nx,1\n", ":2: has 2 values, the header 4"),
    ],
)
def test_another_file_is_refused_in_one_line(text: str, message: str) -> None:
    Path("other.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        compat.read_op_file("other.csv")


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        compat.read_op_file("none.csv")


def test_a_folder_that_cannot_be_written_is_named() -> None:
    Path("output_file.csv").mkdir()
    with pytest.raises(InputError, match="output_file.csv: cannot be written"):
        compat.profile(nn.Linear(2, 2), (torch.randn(1, 2),), want_op_file=True)
