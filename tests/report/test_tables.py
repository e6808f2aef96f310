"""Answers at a glance: the first lines of a table, its warnings, and its form on a terminal."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neuralpower.cli import answers, output
from neuralpower.devices.cluster import Layout
from neuralpower.devices.names import reading
from neuralpower.devices.spec import find_spec
from neuralpower.files.terminal import has_colours, shown, styled, unstyled, visible
from neuralpower.learn.estimates import (
    BORROWED,
    CARRIED,
    CARRIED_BY,
    IN_RANGE,
    LIKE,
    MEASURED,
    ROOFLINE,
    TRAINED_HERE,
    WEIGHTS_LAW,
)
from neuralpower.learn.keys import ANY, named
from neuralpower.learn.unmeasured.any_device import roofline_of
from neuralpower.prediction.compose import compose
from neuralpower.prediction.explore.compare import Side, compare
from neuralpower.prediction.explore.sweep import Sweep, SweepPoint
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.prediction import LAUNCHES, Prediction, joined
from neuralpower.prediction.rows import Interval, Row, with_shares
from neuralpower.prediction.several_devices import Parallel
from neuralpower.profiling import profile
from neuralpower.report.grid import at_most, grid
from neuralpower.report.number_format import bar, binary, many, share
from neuralpower.report.results.explored import comparison_table, sweep_table
from neuralpower.report.tables import prediction_table
from neuralpower.trace.tracer import trace

ESCAPE = re.compile(r"\x1b\[\d+m")


def row(kind: str, seconds: float, basis: str = IN_RANGE, watts: float | None = None) -> Row:
    power = None if watts is None else Interval(watts, watts, watts)
    return Row(kind, kind, 1, seconds, seconds / 2, seconds * 2, 10**9, 10**6, "memory", basis, power_w=power)


def prediction(rows: Sequence[Row], seconds: float, **more: object) -> Prediction:
    fields = {
        **{"model": "zoo:net", "predictor": "gpu", "device": "GPU", "batch_size": 4, "dtype": "bfloat16"},
        **{"phase": "forward", "unmodelled": (), "parameters": 11_700_000, "method": "meta"},
    }
    whole = Interval(seconds, seconds / 2, seconds * 2)
    return Prediction(
        runtime_s=whole,
        rows=with_shares(rows, whole),
        **(fields | more),
    )


def lines(p: Prediction, by: str = "kind", marked: bool = False) -> list[str]:
    return prediction_table(p, by, 3, 0, marked=marked).splitlines()


def detailed(p: Prediction) -> list[str]:
    return prediction_table(p, "kind", 3, 0, full=True).splitlines()


# ---- what comes first ----


def test_at_most_four_lines_stand_before_the_table_and_narrow_tables_spare_columns() -> None:
    rows = [row(kind, 1e-3, watts=100.0) for kind in ("linear", "attention", "collective", "a" * 14)]
    p = prediction(rows, 4e-3, origins={TRAINED_HERE: 1.0}, assumptions=tuple("abcde"))
    known = replace(p, power_w=Interval(100, 50, 200), energy_j=Interval(0.4, 0.1, 1.0))
    text = lines(known)
    assert text.index("") == 4  # no memory is known
    assert max(map(len, text[:10])) <= 80
    assert [line for line in text if line.startswith("Note: ")] == ["Note: a", "Note: b", "Note: c"]
    assert text[-1] == "(2 more notes with -v)"
    with at_most(200):
        wide = lines(known)
    assert wide[4].split()[-3:] == ["FLOP", "bound", "basis"] != text[5].split()[-3:]
    assert len(detailed(known)) > len(text)


def test_the_first_line_says_what_on_what_and_how_and_nothing_stands_before_it_without_a_doubt() -> None:
    p = prediction([row("linear", 4e-3)], 4e-3, origins={TRAINED_HERE: 1.0})
    with at_most(200):
        first, headline, *_ = lines(p)
    assert first == "zoo:net, forward, batch 4, bfloat16, on GPU: expect 33% error; measured on this device"
    assert headline == "latency 4 ms (2 to 8 ms, 90 %), 1000 samples/s"
    assert p.warnings == () and p.to_json()["warnings"] == []


def test_the_lines_before_a_table_fit_a_narrow_terminal_and_say_all_there() -> None:
    p = prediction([row("linear", 4e-3, watts=400.0)], 4e-3, origins={TRAINED_HERE: 0.9, CARRIED_BY: 0.1})
    memory = Memory("forward", 10**10, 0, 0, 0, 0, 10**9, 0, 0, 0, 10**8, 10**10)
    p = replace(
        p,
        **{"model": "llama-3.1-8b", "phase": "training", "device": "nvidia-h100-sxm5-80gb"},
        power_w=Interval(489, 370, 642),
        energy_j=Interval(1.956, 1.48, 2.568),
        memory=memory,
        device_memory_bytes=80 * 2**30,
    )
    head = lines(p)[: lines(p).index("")]
    assert len(head) == 4 and max(map(len, head)) <= 80
    with at_most(200):
        wide = lines(p)[: lines(p).index("")]
    for said in (
        "expect 33% error",
        "4 ms (2 to 8 ms, 90 %)",
        "1000 samples/s",
        "489 W (370 to 642 W)",
        "1.96 J",
    ):
        assert said in "\n".join(head) and said in "\n".join(wide)
    assert "memory 10.2 of 80 GiB" in "\n".join(head) and "; the device has 80 GiB" in wide[-1]


PARTLY = "partly measured on this device, 25% rests on formulas alone"


@pytest.mark.parametrize(
    ("bases", "origins", "warnings", "why"),
    [
        ((IN_RANGE, MEASURED), {TRAINED_HERE: 1.0}, [], "measured on this device"),
        # a quarter of the time is not covered: 1 s of 4
        ((IN_RANGE, ROOFLINE), {TRAINED_HERE: 0.75}, ["only 75% of the time rests"], PARTLY),
        ((IN_RANGE, WEIGHTS_LAW), {TRAINED_HERE: 0.75}, ["only 75% of the time rests"], PARTLY),
        ((IN_RANGE, BORROWED), {TRAINED_HERE: 0.75, LIKE: 0.25}, ["only 75% of the time rests"], PARTLY),
        (
            (CARRIED, IN_RANGE),
            {CARRIED_BY: 0.75, TRAINED_HERE: 0.25},
            ["only 25% of the time was measured"],
            "25% measured on this device",
        ),
        (
            (CARRIED, ROOFLINE),
            {CARRIED_BY: 0.75},
            ["only 75% of the time rests on measurements, 25% on formulas", "nobody measured these kernels"],
            "nobody measured this device, 25% rests on formulas alone",
        ),
        (
            (ROOFLINE, ROOFLINE),
            {},
            ["only 0% of the time rests on measurements"],
            "nobody measured such layers, 100%",
        ),
    ],
)
def test_the_first_line_says_how_sure_it_is_and_what_cannot_run_stands_before_it(
    bases: tuple[str, str], origins: dict[str, float], warnings: list[str], why: str
) -> None:
    p = prediction([row("linear", 3.0, bases[0]), row("norm", 1.0, bases[1])], 4.0, origins=origins)
    warning, first, *_ = lines(replace(p, warned=("out of memory",)))
    assert warning == "Warning: out of memory"
    with at_most(200):
        _, wide, *_ = lines(replace(p, warned=("out of memory",)))
    assert first.startswith("zoo:net, ") and wide.startswith(f"{first.partition(' on ')[0]} on GPU: expect ")
    assert wide.endswith(why) or f"error; {why}" in wide
    assert len(p.warnings) == len(warnings)
    for text, begin in zip(p.warnings, warnings, strict=True):
        assert text.startswith(begin)


def test_coverage_states_the_part_of_related_devices() -> None:
    rows = [row("linear", 3.0, CARRIED), row("norm", 1.0)]
    text = "\n".join(detailed(prediction(rows, 4.0, origins={CARRIED_BY: 0.75, TRAINED_HERE: 0.25})))
    assert "100 % of the time rests on measurements, 75 % on those of similar devices; " in text
    own = "\n".join(detailed(prediction(rows, 4.0, origins={TRAINED_HERE: 1.0})))
    assert "100 % of the time rests on measurements; " in own


def test_a_borrowed_regressor_does_not_cover() -> None:
    p = prediction([row("linear", 3.0), row("norm", 1.0, BORROWED)], 4.0)
    assert (p.coverage, p.borrowed, p.extrapolated) == (0.75, 0.25, 0.0)
    assert p.uncovered == ("norm",)
    assert p.to_json()["borrowed"] == 0.25
    assert (
        "75 % of the time rests on measurements, 25 % is borrowed from similar layers; 0 % is outside"
        in "\n".join(detailed(p))
    )


def test_a_key_is_named_without_what_is_pooled() -> None:
    assert named(("linear", "float32", "forward", "vector")) == "linear vector (float32, forward)"
    assert named(("softmax", ANY, "forward", "all")) == "softmax (forward)"
    assert named(("softmax", ANY, ANY, ANY)) == "softmax"


# ---- sums ----


def test_launches_are_a_row_that_completes_time_and_energy() -> None:
    # 1 ms at 100 W and 1 ms at 300 W are 0.4 J; the other 2 ms of 4 take the other 0.1 J
    joules = Interval(0.5, 0.4, 0.6)
    rows = [row("linear", 1e-3, watts=100.0), row("norm", 1e-3, watts=300.0)]
    p = prediction(rows, 4e-3, energy_j=joules, power_w=Interval(125.0, 100.0, 150.0))
    views = (p.by_kind(), p.by_module(1), p.with_launches)
    for view in views:
        assert sum(one.runtime_s for one in view) == pytest.approx(4e-3)
        assert sum(one.share for one in view) == pytest.approx(1)
        assert sum(one.energy_j or 0 for one in view) == pytest.approx(0.5)
    assert p.by_kind()[0].kind == LAUNCHES and p.by_kind()[0].share == pytest.approx(0.5)
    assert len(p.rows) == 2
    for by in ("kind", "layer", "module"):
        (said,) = [line for line in lines(p, by) if line.startswith(LAUNCHES)]
        assert " 2 ms " in said and " 50.0% ████ " in said
    assert "Note: bound by launch overhead: the device waits for its host 50% of the time" in lines(p)
    data = p.to_json()
    assert data["launch_overhead_s"] == pytest.approx(2e-3)
    kinds, layers = data["by_kind"], data["layers"]
    assert isinstance(kinds, list) and isinstance(layers, list)
    assert sum(one["runtime_s"] for one in kinds) == pytest.approx(4e-3)
    assert len(layers) == 2
    assert p.coverage == 1  # of what the device does
    assert len(p.to_pandas()) == 3


def test_what_waits_for_nobody_has_no_row_of_launches() -> None:
    p = prediction([row("linear", 0.1), row("norm", 0.2)], 0.1 + 0.2)
    assert p.launch_row is None and len(p.by_kind()) == 2 and p.to_json()["launch_overhead_s"] == 0


def test_two_passes_together_say_how_all_of_their_time_is_known() -> None:
    one = prediction([row("linear", 3.0)], 3.0, origins={TRAINED_HERE: 1.0}, origin="trained", warned=("a",))
    other = prediction([row("linear", 1.0)], 2.0, origins={CARRIED_BY: 1.0}, origin="carried", warned=("a",))
    both = joined(one, [other], Interval(5.0, 4.0, 6.0), None)
    assert both.trained_here == pytest.approx(0.75)  # of the layers' 4 s
    assert both.origin.startswith("75% trained on this device, 25% scaled")
    assert both.warned == ("a",)
    launches = both.launch_row
    assert launches is not None and launches.runtime_s == pytest.approx(1.0)


def test_the_flop_of_a_network_are_the_same_in_profile_and_predict() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(784, 5))
    x = torch.zeros(2, 3, 16, 16)
    t4 = replace(roofline_of(find_spec("nvidia-t4")), answers=("float32",))
    predicted = compose(trace(model.eval(), (x,)), t4, model="m", batch_size=2)
    profiled = profile(model, x, runtime=False)
    # conv 2*2*196*27*4, norm 5 a number, ReLU 1 a number, linear 2*2*784*5
    assert profiled.total.flops == predicted.flops == 84_672 + 6 * 1_568 + 15_680
    assert "(all-ops)" in profiled.table()


# ---- terminals ----


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def said(text: str, where: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(output, "_results", None)
    monkeypatch.setattr(sys, "stdout", where)
    output.say(text)
    return where.getvalue()


def test_only_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    p = prediction([row("linear", 3.0), row("norm", 1.0, ROOFLINE)], 4.0, warned=("beware",))
    marked, plain = prediction_table(p, "kind", 3, 0, marked=True), prediction_table(p, "kind", 3, 0)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    on_screen = said(marked, Screen(), monkeypatch)
    assert "\x1b[33mWarning: beware\x1b[0m" in on_screen
    assert "\x1b[1mlatency 4 s" in on_screen
    assert re.search(r"\x1b\[32m *in-range\x1b\[0m", on_screen)
    assert re.search(r"\x1b\[31m *roofline\x1b\[0m", on_screen)
    assert ESCAPE.sub("", on_screen) == said(marked, io.StringIO(), monkeypatch) == f"{plain}\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert said(marked, Screen(), monkeypatch) == f"{plain}\n"
    monkeypatch.delenv("NO_COLOR")
    assert has_colours(True) and not has_colours(False)
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colours(True)


def test_a_warning_on_stderr_is_yellow_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    output.tell("Warning: \x1bbeware")
    output.tell("done")
    assert screen.getvalue() == "\x1b[33mWarning: \\x1bbeware\x1b[0m\ndone\n"


def test_a_kept_answer_has_its_colours_where_it_is_printed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(answers, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(answers, "question_of", lambda model, options: {"model": model})
    monkeypatch.setattr(output, "_results", None)
    pipe, screen = io.StringIO(), Screen()
    for where in (pipe, screen):
        monkeypatch.setattr(sys, "stdout", where)
        answers.answered("m", {}, lambda: output.say(styled("latency", "bold")))
    assert pipe.getvalue() == "latency\n"
    assert screen.getvalue() == "\x1b[1mlatency\x1b[0m\n"


def test_a_name_cannot_bring_styles_of_its_own() -> None:
    name = styled("net", "bad")
    assert visible(name) == r"\ue103net\ue1ff"
    p = prediction([row(name, 1.0)], 1.0, model=name)
    assert "\x1b[31mnet" not in shown("\n".join(lines(p, marked=True)), colours=True)
    assert unstyled(name) == "net"


def test_blocks_are_letters_where_there_are_none() -> None:
    assert shown("▏▌█", colours=False, encoding="ascii") == " ##"
    assert shown("▏▌█", colours=False, encoding="utf-8") == "▏▌█"


# ---- numbers ----


def test_memory_is_said_in_binary_units() -> None:
    sizes = (None, 0, 512, 24 * 2**30, 85_899_345_920, 1010 * 2**20, 1.5 * 2**20, 2**40)
    assert [*map(binary, sizes)] == ["-", "0 B", "512 B", "24 GiB", "80 GiB", "1010 MiB", "1.5 MiB", "1 TiB"]


def test_how_a_decimal_size_is_read_is_said() -> None:
    assert reading("24GB") == ("24GB is read in powers of 1000: 22.4 GiB. A card sold as 24GB may have 24GiB")
    assert [reading(text) for text in ("24GiB", "512b", 24e9)] == ["", "", ""]


def test_shares_and_counts_in_words() -> None:
    assert [*map(share, (1.0, 0.992, 0.007, 0.0, 1e-5))] == ["100 %", "99.2 %", "0.7 %", "0 %", "< 0.1 %"]
    assert (many(650, "parameters"), many(11.7e6, "parameters")) == ("650 parameters", "11.7 M parameters")


def test_a_bar_is_exact_to_an_eighth_of_a_letter() -> None:
    # 8 letters are 64 eighths
    assert [bar(n / 64) for n in (0, 1, 8, 12, 64)] == [
        "        ",
        "▏       ",
        "█       ",
        "█▌      ",
        "████████",
    ]
    assert bar(-0.2) == " " * 8 and bar(1.7) == "█" * 8


def test_no_part_has_a_bound_above_that_of_the_whole() -> None:
    parts = [replace(row("conv2d", 1.0), path=f"layer{i}", high_s=9.0) for i in range(2)]
    found = prediction(parts, 2.0)  # 4 s at most
    assert [one.high_s for one in found.rows] == [4.0, 4.0]
    assert [one.high_s for one in (*found.by_kind(), *found.by_module(1))] == [4.0, 4.0, 4.0]


def test_a_kind_shows_how_most_of_its_time_is_known_and_its_worst_part() -> None:
    parts = [row("conv2d", 3.0), row("conv2d", 1.0, ROOFLINE), row("norm", 1.0, BORROWED)]
    found = prediction(parts, 5.0)
    assert [one.basis for one in found.by_kind()] == [f"{IN_RANGE}; worst: {ROOFLINE}", BORROWED]
    longer = prediction([row("conv2d", 1.0), row("conv2d", 3.0, ROOFLINE)], 4.0)
    assert [one.basis for one in longer.by_kind()] == [ROOFLINE]


def test_what_is_of_a_rank_says_so() -> None:
    one = prediction([row("linear", 2.0)], 2.0)
    assert "11.7 M parameters\n" in "\n".join(detailed(one))
    shared = {
        "layout": Layout(tensor=4),
        "micro_batches": 1,
        "samples": 4,
        "tokens": 0,
        "communication_s": 0.0,
    }
    waits = {"bubble_s": 0.0, "exposed_s": Interval(0.0, 0.0, 0.0), "samples_per_s": Interval(2.0, 1.0, 4.0)}
    rest = {"cluster": None, "tokens_per_s": None, "utilisation": None, "energy_j": None, "stages": ()}
    several = Parallel(**shared, **waits, **rest, runtime_s=2.0, cycle_s=2.0, idle_s=0.0, notes=())
    text = "\n".join(detailed(replace(one, parallel=several)))
    assert "1 GFLOP of a rank, 11.7 M parameters of a rank" in text


# ---- comparisons and sweeps ----


def test_a_comparison_says_what_both_sides_have_in_common_and_whose_a_doubt_is() -> None:
    gpu = roofline_of(find_spec("nvidia-t4"))
    sure = prediction([row("linear", 2.0)], 2.0, warned=("other machine",))
    doubtful = replace(
        sure, rows=with_shares([row("linear", 2.0, ROOFLINE)], Interval(2.0, 1.0, 4.0)), run="graph"
    )
    found = compare(Side("a", sure, gpu), Side("b", doubtful, gpu))
    assert comparison_table(found).splitlines()[:4] == [
        "Warning: other machine",
        "Warning: B: only 0% of the time rests on measurements, 100% on formulas alone",
        "A against B: forward, bfloat16, on GPU (gpu)",
        "",
    ]
    assert found.to_json()["warnings"] == list(found.warnings)


def point(**more: Any) -> SweepPoint:
    names: dict[str, Any] = {
        "model": "m",
        "predictor": "p",
        "device": "d",
        "batch_size": 1,
        "seq_len": None,
        "dtype": "float32",
    }
    figures = dict.fromkeys(("energy_j", "memory_bytes", "memory_high_bytes", "fits"))
    times = {"runtime_s": 1e-3, "low_s": 5e-4, "high_s": 2e-3, "samples_per_s": 1e3}
    return SweepPoint(**{**names, **figures, **times, "basis": "formula", "coverage": 1.0, **more})


def test_top_of_a_sweep_keeps_starred_points_then_the_fastest_in_their_order() -> None:
    rates = {1: 5e3, 2: 1e3, 4: 3e3, 8: 4e3}
    points = tuple(point(batch_size=n, samples_per_s=rate, best=n == 2) for n, rate in rates.items())
    text = sweep_table(Sweep(points, "throughput and latency", 1), top=3).splitlines()
    start = next(i for i, line in enumerate(text) if line.startswith("-"))
    assert [line.removeprefix("*").split()[1] for line in text[start + 1 : start + 4]] == ["1", "2", "8"]
    assert text[start + 4] == "(1 more)"


@pytest.mark.parametrize("width", [50, 60, 80, 120, None])
def test_a_table_fits_by_sparing_columns_then_the_middle_of_long_texts(width: int | None) -> None:
    header = ["layer", "kind", "latency", "spared", "basis"]
    path, basis = "a.very." * 8 + "last", "carried; worst: extrapolated"
    with at_most(width):
        text = grid(header, [[path, "linear", "1 ms", "1234567", basis]], 2, spared=("spared",))
    lines = text.splitlines()
    assert width is None or max(map(len, lines)) <= width
    assert ("spared" in lines[0]) is (width in (120, None)) and "1 ms" in lines[2]
    assert ("last" in lines[2], path in lines[2]) == (True, width in (120, None))


def test_a_sweep_says_that_launches_set_the_pace_and_that_points_do_not_fit() -> None:
    points = (point(launch_share=0.86, fits=False), point(launch_share=0.1, fits=True))
    with at_most(None):
        text = sweep_table(Sweep(points, "throughput and latency", 1, warnings=("beware",))).splitlines()
    assert text[:2] == ["Warning: beware", "Warning: out of memory at 1 of 2 points: see column fits"]
    assert text[2] == "m, forward, eager, on d"
    assert sum("launch overhead" in line for line in text) == 2  # the point's, and the note
    assert "Note: 1 of 2 points bound by launch overhead, up to 86% of the time: " in "\n".join(text)
    assert "* Pareto-optimal (throughput and latency)" in text
    none = sweep_table(Sweep((point(launch_share=None),), "throughput and latency", 1))
    assert "launch overhead" not in none and "bound by" not in none
