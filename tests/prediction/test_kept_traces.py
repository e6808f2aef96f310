"""Traces that are kept: another device is answered without torch, and as a new trace is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import neuralpower
from neuralpower.files.cache import ANSWERS, SWITCH, TRACES
from neuralpower.learn.files.predictor_lookup import chosen
from neuralpower.prediction.kept import kept, kept_sizes
from neuralpower.prediction.request import Request
from neuralpower.trace import follow
from neuralpower.trace.followed import Recorded
from tests.networks.test_diffusion import folder
from tests.program import done

ROOT = Path(__file__).parent.parent.parent
PROGRAM = (
    "import sys\n"
    "from neuralpower.cli import main\n"
    "sys.argv = ['neuralpower', 'predict', *sys.argv[1:], '--json']\n"
    "try:\n"
    "    code = main()\n"
    "except SystemExit as stop:\n"
    "    code = stop.code\n"
    "print('torch' in sys.modules, file=sys.stderr)\n"
    "sys.exit(code)\n"
)
QUESTIONS = (
    ("zoo:deep_mnist", "-b", "3"),
    ("zoo:deep_mnist", "-b", "2", "--phase", "training"),
    ("zoo:deep_mnist", "--run", "compile"),
    ("gpt2?num_hidden_layers=2", "--phase", "decode", "--context", "64"),
    ("gpt2?num_hidden_layers=2", "--phase", "prefill", "--prompt", "32", "--weights", "int4:64"),
)


def answer(*words: str) -> dict[str, Any]:
    """The JSON of a command, in this process."""
    return json.loads(done("predict", *words, "--json"))


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_another_device_is_answered_as_without_the_cache(
    question: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = answer(*question, "--device", "l40s", "--no-cache")
    monkeypatch.setenv(SWITCH, str(tmp_path))
    answer(*question, "--device", "h100")
    monkeypatch.setattr(follow, "record", None)  # which nothing calls
    assert answer(*question, "--device", "l40s") == new


def test_a_pipeline_is_kept_with_what_it_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = (str(folder(tmp_path / "small")), "--steps", "3", "--offload", "model", "--dtype", "bfloat16")
    new = answer(*question, "--device", "l40s", "--no-cache")
    monkeypatch.setenv(SWITCH, str(tmp_path / "kept"))
    answer(*question, "--device", "h100")
    monkeypatch.setattr(follow, "record", None)  # which nothing calls
    again = answer(*question, "--device", "l40s")
    assert again == new and again["images"]["steps"] == 3


def test_a_kept_trace_is_priced_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, str(tmp_path))
    answer(*QUESTIONS[3], "--device", "h100")
    command = [sys.executable, "-c", PROGRAM, *QUESTIONS[3], "--device", "l40s"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.split()[-1] == "False"


def test_a_file_that_is_cut_off_is_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, str(tmp_path))
    first = answer(*QUESTIONS[0], "--device", "h100")
    files = list((tmp_path / TRACES).iterdir())
    assert len(files) == 3  # of the network, of the pass, and of other batches
    for file in files:
        data = json.loads(file.read_text())
        if "packed" in data["answer"]:
            data["answer"]["packed"] = data["answer"]["packed"][:100]
            file.write_text(json.dumps(data))
    for file in (tmp_path / ANSWERS).iterdir():
        file.unlink()
    assert answer(*QUESTIONS[0], "--device", "h100") == first


def test_a_sweep_of_devices_follows_each_size_once() -> None:
    devices = ["h100", "h200", "b200", "a100-sxm4-80gb", "l40s", "t4"]
    found = neuralpower.sweep("zoo:deep_mnist", device=devices, batch_size=[1, 8, 32])
    assert (len(found.points), found.traces) == (18, 3)
    steps = neuralpower.sweep("zoo:deep_mnist", device=devices, batch_size=[1, 8, 32], phase="training")
    assert (len(steps.points), steps.traces) == (18, 3)


WINDOWED = "gemma-2-2b?num_hidden_layers=2&sliding_window=64"
MIXTURE = "mixtral-8x7b?num_hidden_layers=1"
SIZED = (
    (("gpt2?num_hidden_layers=2", "--phase", "decode", "--context", "64"), ("--context", "700", "-b", "24")),
    # below a window's length, and of a mixture
    ((WINDOWED, "--phase", "decode", "--context", "40"), ("--context", "29")),
    ((MIXTURE, "--phase", "decode", "--context", "64"), ("--context", "333", "-b", "3")),
    (("gpt2?num_hidden_layers=2", "--phase", "prefill", "--prompt", "32", "-b", "4"), ("--prompt", "45")),
    (("zoo:deep_mnist",), ("-b", "3")),
    (("zoo:deep_mnist", "--phase", "training"), ("-b", "48")),
)


@pytest.mark.parametrize(("first", "then"), SIZED, ids=str)
def test_another_size_is_answered_as_without_the_cache(
    first: tuple[str, ...], then: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = answer(*first, *then, "--device", "l40s", "--no-cache")
    monkeypatch.setenv(SWITCH, str(tmp_path))
    monkeypatch.setattr(kept, "SOON_S", 60.0)
    answer(*first, "--device", "h100")
    monkeypatch.setattr(follow, "record", None)  # which nothing calls
    assert answer(*first, *then, "--device", "l40s") == new


def test_sizes_that_take_long_are_kept_after_the_second_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[Request] = []

    def record(asked: Any, question: Any) -> Recorded:
        followed.append(asked)
        return real(asked, question)

    real = follow.record
    monkeypatch.setenv(SWITCH, str(tmp_path))
    monkeypatch.setattr(follow, "record", record)
    monkeypatch.setattr(kept, "SOON_S", 0.0)
    counts = []
    for batch in ("1", "3", "4"):
        answer("zoo:deep_mnist", "-b", batch, "--device", "h100")
        counts.append(len(followed))
    assert counts[0] == 1  # nothing but what was asked
    assert counts[1] > 2 and counts[2] == counts[1]


def test_a_size_beyond_those_followed_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = answer("zoo:deep_mnist", "-b", "1000", "--device", "h100", "--no-cache")
    monkeypatch.setenv(SWITCH, str(tmp_path))
    answer("zoo:deep_mnist", "--device", "h100")
    assert answer("zoo:deep_mnist", "-b", "1000", "--device", "h100") == new


def test_passes_that_differ_in_more_than_forms_have_no_function() -> None:
    passes = {(b, None): recorded(b) for b in (2, 3, 5, 11)}
    assert kept_sizes.solved(passes, "cudnn") is not None
    passes[(11, None)] = recorded(12)
    assert kept_sizes.solved(passes, "cudnn") is None


def recorded(batch: int) -> Recorded:
    """A small network's pass."""
    asked = Request("zoo:deep_mnist", batch)
    question = asked.question(chosen("h100").platform)
    return follow.record(asked.asked(asked.source(), question.run), question)
