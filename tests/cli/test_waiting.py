"""The line for whoever waits: what it says, and that it goes before anything is printed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from neuralpower.cli.collect import pace
from neuralpower.cli.waiting import FIRST_S, LEFT_S, Waiting, said
from neuralpower.files.stages import counted, heard_by, stage
from neuralpower.measure.collect.request import Progress
from neuralpower.measure.collect.schedule import Estimate

ROOT = Path(__file__).parents[2]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_line_says_what_is_done_and_after_a_while_what_is_left() -> None:
    clock = Clock()
    waiting = Waiting(clock)
    try:
        waiting.hear("tracing", 0, 10)
        assert waiting.line() == "tracing 0 of 10, 0 s"
        clock.now_s += LEFT_S - 1
        waiting.hear("tracing", 4, 10)
        assert waiting.line() == "tracing 4 of 10, 4 s"
        clock.now_s += 2
        waiting.hear("tracing", 5, 10)
        assert waiting.line() == "tracing 5 of 10, 6 s, about 6 s left"  # five took 6 s, five are left
        waiting.hear("fitting", 0, None)
        assert waiting.line() == "fitting, 6 s"
    finally:
        waiting.end()


def test_a_stage_is_told_to_whoever_listens_and_to_nobody_else() -> None:
    heard: list[tuple[str, int, int | None]] = []
    stage("before")
    with heard_by(lambda *one: heard.append(one)):
        stage("loading")
        assert list(counted([7, 8], "tracing")) == [7, 8]
    stage("after")
    assert heard == [("loading", 0, None), ("tracing", 0, 2), ("tracing", 1, 2)]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (90, "90 s"), (780, "13 min"), (9000, "2.5 h")])
def test_times_are_said_in_the_unit_that_people_count_in(seconds: float, text: str) -> None:
    assert said(seconds) == text


def test_a_collection_says_what_is_left_of_the_plan_and_of_the_budget() -> None:
    at = Progress(3369, 180, Estimate(0, 0, 0.0, 0), measured=180, spent_s=45.0, budget_s=49.0)
    assert pace(at) == "4/s, whole plan: 13.3 minutes left, budget: 4 s left, 0 failed"


SLOW = """
import sys, time
from neuralpower.cli import output, waiting
from neuralpower.files.stages import stage
waiting.FIRST_S = waiting.EACH_S = 0.1
with waiting.shown_while_it_takes(True):
    stage("counting sheep")
    time.sleep(1.0)
    output.tell("note: a remark")
    stage("more sheep")
    time.sleep(0.8)
    output.say("the result")
time.sleep(0.3)
"""


def shown(wanted_terminal: bool) -> str:
    """All that a slow command sends to its terminal, or to a pipe."""
    if not wanted_terminal:
        ran = subprocess.run([sys.executable, "-c", SLOW], cwd=ROOT, capture_output=True, check=True)
        return (ran.stderr + ran.stdout).decode()
    here, there = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW], cwd=ROOT, stdout=there, stderr=there, env=environment
    )
    os.close(there)
    found = b""
    try:
        while part := os.read(here, 4096):
            found += part
    except OSError:  # the terminal is closed at the end
        pass
    os.close(here)
    assert process.wait() == 0
    return found.decode()


def test_a_terminal_shows_the_line_which_is_gone_before_anything_is_printed() -> None:
    text = shown(True)
    assert "counting sheep" in text
    assert "more sheep" in text
    before, remark, after = text.partition("note: a remark")
    assert remark
    assert before.endswith("\x1b[2K")  # the line is erased
    assert after.partition("the result")[0].endswith("\x1b[2K")
    assert "sheep" not in after.partition("the result")[2]
    assert FIRST_S >= 2


def test_a_pipe_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURALPOWER_PROGRESS", "on")
    lines = shown(False).splitlines()
    assert [line for line in lines if "sheep" not in line] == ["note: a remark", "the result"]
    assert lines[0].startswith("counting sheep, ") and any("more sheep, " in line for line in lines)


def test_a_pipe_gets_no_line_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURALPOWER_PROGRESS", "off")
    assert shown(False) == "note: a remark\nthe result\n"
