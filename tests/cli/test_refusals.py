"""Refusals keep their exit codes and their lines: scripts read the codes, people the lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.program import run

REFUSALS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("refusals.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=[" ".join(one["arguments"]) for one in REFUSALS])
def test_a_refusal_keeps_its_code_and_its_line(refusal: dict[str, Any]) -> None:
    ran = run(*refusal["arguments"])
    said = ran.err.strip().splitlines()
    assert (ran.code, said[-1][: len(refusal["line"])] if said else "") == (refusal["code"], refusal["line"])
