"""The table of options, continued: the form of a result and its files, of the command line alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typing_extensions import TypedDict

from neuralpower.ask import words
from neuralpower.ask.options import (
    Comparing,
    Device,
    Evaluating,
    Explaining,
    Fitting,
    Gating,
    Laying,
    Limits,
    Option,
    Planning,
    Predicting,
    Room,
    Serving,
    Standings,
    Sweeping,
    Trained,
)
from neuralpower.ask.words import MEASURING, OUTPUT, TARGET


class View(TypedDict, total=False):
    by: Annotated[
        str,
        Option("Rows of the table; tree: all modules.", OUTPUT, "kind", what="view", words=words.VIEWS),
    ]
    depth: Annotated[int, Option("Module nesting depth for --by module.", OUTPUT, 3)]


class Top(TypedDict, total=False):
    top: Annotated[
        int,
        Option(
            "Rows to print; 0 for all.",
            OUTPUT,
            0,
            least=0,
            of={
                "predict": {"default": 15, "least": None},
                "parallel": {"default": 15},
                "score": {"default": 20},
                "explain": {"default": 15},
                "rank": {"default": 15},
            },
        ),
    ]


class Output(TypedDict, total=False):
    """The form of the result, and its file."""

    form: Annotated[
        str | None,
        Option(
            "Output format; default: by the ending of --out, else a table.",
            OUTPUT,
            flags="--format",
            what="format",
            words=words.FORMATS,
        ),
    ]
    out: Annotated[Path | None, Option("Write the result to this file instead.", OUTPUT, flags="--out -o")]
    as_json: Annotated[bool, Option("The same as --format json.", OUTPUT, default=False, flags="--json")]


class Lines(TypedDict, total=False):
    csv: Annotated[
        Path | None,
        Option(
            "Write a line per layer to this file.",
            OUTPUT,
            of={"sweep": {"help": "Write a line per point to this file."}},
        ),
    ]


class Plot(TypedDict, total=False):
    plot: Annotated[
        Path | None,
        Option(
            "Draw the result: a page FILE.html, or a picture FILE.png or FILE.svg.",
            OUTPUT,
            flags="--plot --html",
        ),
    ]


class Picture(TypedDict, total=False):
    """A drawing of the memory, and whether an answer is kept."""

    memory_picture: Annotated[
        Path | None,
        Option(
            "Draw memory over time: FILE.html, .png, .svg, or .pickle for pytorch.org/memory_viz.", OUTPUT
        ),
    ]
    no_cache: Annotated[bool, Option("Compute again; ignore the cached answer.", OUTPUT, default=False)]


class Predict(Device, Trained, Predicting, Limits, View, Top, Output, Lines, Plot, Picture, total=False):
    device_spec: Annotated[str | None, Option("", names="device", hidden=True)]
    trace_file: Annotated[Path | None, Option("Write the timeline for ui.perfetto.dev to this file.", OUTPUT)]


class Compare(Device, Trained, Comparing, Output, Plot, total=False):
    """The command `compare`."""


class Gate(Device, Trained, Gating, Output, total=False):
    baseline: Annotated[Path | None, Option("The baseline's file, which belongs in your repository.", OUTPUT)]
    update: Annotated[bool, Option("Write today's answers as the baseline.", OUTPUT, default=False)]
    junit: Annotated[Path | None, Option("Write the report for test servers: FILE.xml.", OUTPUT)]
    github: Annotated[
        bool, Option("Print annotations for a GitHub workflow after the report.", OUTPUT, default=False)
    ]


class Rank(Device, Standings, Top, Output, Plot, total=False):
    """The command `rank`."""


class Fit(Device, Trained, Room, Fitting, Output, Picture, total=False):
    """The command `fit`."""


class Explain(Device, Trained, Explaining, Top, Output, Plot, total=False):
    """The command `explain`."""


class Sweep(Device, Trained, Sweeping, Top, Output, Lines, Plot, total=False):
    """The command `sweep`."""


class Parallel(Trained, Laying, Top, Output, total=False):
    """The command `parallel`."""


class Traffic(Trained, Serving, Output, total=False):
    device: Annotated[
        str, Option("Devices of one replica: l40s, 2xh100-sxm.", TARGET, metavar="<[Nx]DEVICE>")
    ]


class Plan(Planning, Output, total=False):
    """The command `plan`."""


class Trust(TypedDict, total=False):
    """What a file may do."""

    trust_code: Annotated[
        bool, Option("Run models of the file that are code: functions, .pt2.", default=False)
    ]


class Score(Device, Trained, Trust, Top, Output, total=False):
    by: Annotated[str, Option("What ranks them.", OUTPUT, "latency", what="score", words=words.SCORES)]


class Evaluate(Evaluating, Trust, total=False):
    measured: Annotated[
        Path | None,
        Option(
            "CSV of networks measured elsewhere: model, batch_size, dtype, latency_ms, device, ...", MEASURING
        ),
    ]
    device: Annotated[
        str | None,
        Option(
            "Device to measure: cpu or cuda:0. With --measured: the measured device.", TARGET, names="device"
        ),
    ]
    predictor: Annotated[
        str | None,
        Option(
            "Name or file; this device's by default. With --measured several, such as "
            "neuralpower,mine.json,roofline.",
            TARGET,
            names="baseline",
        ),
    ]
    rounds: Annotated[int, Option("Runs of each network, spread over time.", MEASURING, 21)]
    as_json: Annotated[bool, Option("Print the numbers as JSON.", OUTPUT, default=False, flags="--json")]
    plot: Annotated[
        Path | None,
        Option(
            "--measured: plot predicted against measured, as FILE.html, .png or .svg.",
            OUTPUT,
            flags="--plot --html",
        ),
    ]
    trace_file: Annotated[
        Path | None,
        Option("Write predicted and measured timelines for ui.perfetto.dev to this file.", OUTPUT),
    ]
