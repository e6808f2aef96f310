"""Exchanges between real processes, by gloo on this CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuralpower.data.dataset import read_dataset
from neuralpower.data.screening import screen
from neuralpower.errors import DatasetError, DeviceError, InputError
from neuralpower.measure.exchanges.run import FUNCTIONS, Exchanges, collect_exchanges, measured
from tests.program import Ran, run


def refused(ran: Ran, *words: str) -> None:
    """One line on stderr, exit code 2."""
    assert (ran.code, ran.out) == (2, "")
    (error,) = (line for line in ran.err.splitlines() if line.startswith("error: "))
    assert all(word in error for word in words)


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """A rank's program of a test's own."""
    (folder / "a_rank.py").write_text(f"import os, signal, sys, time\nrank = int(sys.argv[2])\n{text}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "a_rank"


def test_two_processes_measure_every_function(tmp_path: Path) -> None:
    rows, unsupported = collect_exchanges("gloo", (2,), tmp_path / "data", 60.0, largest_bytes=1500)
    dataset = read_dataset(tmp_path / "data")
    table = dataset.tables["collective"]
    assert set(table.function) | unsupported == set(FUNCTIONS)
    assert len(screen("collective", table)) == rows == len(table) >= 8
    assert (table.library == "gloo").all()
    assert (table.runtime_s > 1e-6).all()
    assert (table.runtime_q25_s <= table.runtime_q75_s).all()
    with pytest.raises(DatasetError, match="already; choose another --out"):
        collect_exchanges("gloo", (2,), tmp_path / "data", 60.0)


def test_the_order_is_a_shuffled_list_of_buffers_that_the_ranks_share() -> None:
    order = Exchanges("gloo", 4, 1.0).order()
    assert order == Exchanges("gloo", 4, 9.0).order() != Exchanges("gloo", 4, 1.0, seed=1).order()
    assert all(elements % 4 == 0 for _, elements in order)
    assert {function for function, _ in order} == set(FUNCTIONS) - {"send_recv"}  # two ranks send
    assert "send_recv" in {function for function, _ in Exchanges("gloo", 2, 1.0).order()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(60)",
            "rank 1 of 2 was killed by signal 9",
        ),
        ("sys.exit(3) if rank else time.sleep(60)", "rank 1 of 2 failed with exit code 3 while they met"),
        (
            'print(\'{"begun": ["all_reduce", 256]}\', flush=True) if not rank else None; time.sleep(60)',
            "2 ranks gave no answer for 0.5 s while they exchanged 1,024 bytes by all_reduce",
        ),
    ],
)
def test_a_rank_that_ends_or_hangs_ends_all_in_one_line(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceError) as found:
        measured(Exchanges("gloo", 2, 1.0), patience_s=0.5, module=module(tmp_path, monkeypatch, text))
    assert words in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "glo"], ["unknown backend 'glo'", "did you mean gloo"]),
        (["--backend", "nccl"], ["backend nccl: needs 2 GPUs or more", "choose --backend gloo"]),
        (["--kinds", "collective,linear"], ["measured apart", "--kinds linear"]),
        (["--kinds", "collective", "--ranks", "1"], ["ranks '1'", "as in 2,4"]),
        (["--backend", "gloo", "--kinds", "linear"], ["only collectives have one"]),
        (["--kinds", "collective", "--backend", "gloo", "--device", "cuda"], ["choose --backend nccl"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_collect_data_refuses_what_cannot_exchange(
    arguments: list[str], words: list[str], tmp_path: Path
) -> None:
    refused(run("collect-data", *arguments, "--out", str(tmp_path / "data")), *words)
    assert not (tmp_path / "data").exists()


def test_ranks_are_two_or_more() -> None:
    with pytest.raises(InputError, match="an exchange takes 2 or more"):
        Exchanges("gloo", 1, 1.0)
