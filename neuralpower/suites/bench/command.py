"""`neuralpower bench`: time a network's training, inference or data ingestion, once or for a grid."""

from __future__ import annotations

import inspect
import itertools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from neuralpower.ask.words import INPUT, MEASURING, OUTPUT, RAN_PHASES, SUMMARIES
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import OptionGroup, Spelled, examples, with_options
from neuralpower.cli.output import say
from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import visible
from neuralpower.suites.bench.options import FALSE, FIELDS, TRUE, TRUTH, Options, arguments, boolean

app = typer.Typer()
BOOLEANS = {name for name, field in FIELDS.items() if field.metadata["metavar"] == TRUTH}
BOOLEANS |= {"print_docker", "sysinfo", "retry_failed"}


PANELS = {
    INPUT: "model batch_size input_shape seq_len dtype autocast config grid trust_code",
    MEASURING: """
        forward_only num_batches num_warmup_batches device num_gpus cudnn_benchmark cudnn_fastest seed
        monitor_frequency dist_backend local_rank master_port
    """,
    "Data": "data data_dir data_backend data_shuffle data_loader_only num_loader_threads",
    OUTPUT: "out retry_failed monitor_file print_docker sysinfo",
}
"""Names of the options under each heading of --help."""
SHORT = {"batch_size": ("-b",), "out": ("-o",)}


def with_booleans(arguments: Sequence[str]) -> list[str]:
    """Arguments with an explicit value for each boolean: a bare flag becomes `true`."""
    completed: list[str] = []
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, _ = argument.partition("=")
        is_truth = name.startswith("--") and name[2:].replace("-", "_") in BOOLEANS
        bare = is_truth and not equals and following.lower() not in (*TRUE, *FALSE)
        completed.append(f"{argument}=true" if bare else argument)
    return completed


class WithBooleans(Spelled):
    """A command whose boolean options need no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_booleans(args))


def _option(name: str, text: str, metavar: str | None = None) -> Any:
    panel = next(panel for panel, names in PANELS.items() if name in names.split())
    spelled = (f"--{name.replace('_', '-')}", *SHORT.get(name, ()))
    return typer.Option(*spelled, help=text, metavar=metavar, show_default=False, rich_help_panel=panel)


def _parameter(name: str, about: Mapping[str, Any]) -> inspect.Parameter:
    hint = Annotated[str | None, _option(name, about["help"], about["metavar"])]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=None)


File = Path | None
_truth = partial(_option, metavar=TRUTH)


class Asked(OptionGroup):
    """Options of the command besides the `Options` of a benchmark."""

    phase: Annotated[
        str | None,
        choice("phase", RAN_PHASES, help="forward: the same as --forward-only.", rich_help_panel=INPUT),
    ] = None
    monitor_file: Annotated[
        File, _option("monitor_file", "Write the monitor's samples to this file, not as result lines.")
    ] = None
    config: Annotated[File, _option("config", "JSON file of exp. and pytorch. parameters.")] = None
    grid: Annotated[list[str] | None, _option("grid", "Values of an option; repeatable.", "NAME=A,B")] = None
    out: Annotated[File, _option("out", "Folder for a grid's results; run again to resume.", "DIR")] = None
    retry_failed: Annotated[str, _truth("retry_failed", "Run failed points of the grid again.")] = "false"
    print_docker: Annotated[str, _truth("print_docker", "Print the container command and exit.")] = "false"
    sysinfo: Annotated[str, _truth("sysinfo", "Print a description of this machine and exit.")] = "false"
    trust_code: Annotated[
        bool, _option("trust_code", "Run a model of --config that is code; it runs with your rights.")
    ] = False


@app.command(
    cls=WithBooleans,
    epilog=examples(
        "neuralpower bench --model resnet50 --batch-size 32 --forward-only",
        "neuralpower bench --model vgg16 --grid batch_size=8,16 --out results/vgg",
    ),
)
@partial(with_options, first=[_parameter(name, field.metadata) for name, field in FIELDS.items()])
def bench(options: Asked, **spelled: str | None) -> None:
    """Benchmark a network: training, inference, or loading data; prints result lines."""
    from neuralpower.suites.bench.options import Config, check_models, container_command, read_config
    from neuralpower.suites.bench.results import axes_of, points_of

    if boolean(options.sysinfo):
        from neuralpower.suites.bench.run import described

        say(json_text(described(), indent=2))
        return
    config, out = options.config, options.out
    read = Config() if config is None else read_config(config)
    told = {name: value for name, value in spelled.items() if value is not None}
    if options.phase is not None:
        _settle(options.phase == "forward", told)
    spoken = axes_of(options.grid or ())
    if config is not None and "model" not in {*told, *spoken}:
        check_models(read, config, options.trust_code)
    axes = {**{name: values for name, values in read.axes.items() if name not in told}, **spoken}
    fixed = {name: value for name, value in {**read.options, **told}.items() if name not in axes}
    if twice := sorted(spoken.keys() & told.keys()):
        raise InputError(f"{twice[0]}: given as an option and as --grid; give it once")
    points = points_of(fixed, axes)
    if boolean(options.print_docker):
        for point in points:
            say(shlex.join(container_command(point, read.settings, Path(__file__).parents[3])))
        return
    if read.settings["exp.docker"]:
        way = "--print-docker prints the container's command"
        _warn(f"exp.docker is set, but this runs on the host; {way}")
    if axes and out is None:
        raise InputError("a grid needs a folder for its results; add --out DIR")
    if out is not None and not axes:
        text = "is the folder of a grid; add --grid NAME=A,B, or leave --out out and keep the printed lines"
        raise InputError(f"--out {out}: {text}")
    if out is not None:
        _grid(points, out, boolean(options.retry_failed))
    else:
        _one(points[0], options.monitor_file)


def _settle(forward: bool, told: dict[str, str]) -> None:
    """Set --forward-only from the phase; raises InputError if both are given and differ."""
    if "forward_only" in told and boolean(told["forward_only"]) != forward:
        raise InputError("--phase and --forward-only contradict each other; leave one of them out")
    told["forward_only"] = str(forward).lower()


def _one(options: Options, monitor_file: Path | None) -> None:
    from neuralpower.suites.bench.distributed import launch, world_of
    from neuralpower.suites.bench.results import result_line
    from neuralpower.suites.bench.run import Bench

    world = world_of(options)
    if world is None:
        extra = [] if monitor_file is None else [f"--monitor-file={monitor_file}"]
        launch(options, [*arguments(options), *extra], say, _warn)
    else:
        Bench(options, world, lambda name, value: say(result_line(name, value)), _warn, monitor_file).run()


def _grid(points: Sequence[Options], out: Path, retry_failed: bool) -> None:
    from neuralpower.report.grid import grid as table
    from neuralpower.suites.bench.results import exploration, run_grid, values_of

    def show(text: str) -> None:
        print(visible(text), file=sys.stderr)

    try:
        records = run_grid(points, out, show, retry_failed=retry_failed)
    except KeyboardInterrupt:
        print(f"{out} has the results so far; run the same command again to resume", file=sys.stderr)
        raise
    summary = exploration(values_of(records))
    say(table(summary.header, summary.texts(), left=4))


def _warn(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(visible(f"Warning: {text}"), file=sys.stderr)


# ---- `neuralpower bench-log`: logs of benchmarks as tables, JSON and CSV ----


Logs = Annotated[
    list[Path],
    typer.Argument(help="Log files, folders of logs (*.log, *.txt, *.out), or folders of a grid."),
]
Summaries = Annotated[list[str], choice("summary", SUMMARIES, help="Repeatable")]


@app.command(
    epilog=examples(
        "neuralpower bench-log run.log", "neuralpower bench-log results/ --summary strong --csv all.csv"
    )
)
def bench_log(
    logs: Logs,
    summary: Summaries = ["exploration"],  # noqa: B006  # read, never changed
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print all values and the summaries as JSON.", rich_help_panel=OUTPUT),
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="Write a line per log to this file.", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Read result lines back, and summarise them: exploration, scaling, statistics, shares of time."""
    from neuralpower.report.grid import grid
    from neuralpower.suites.bench.results import SUMMARIES as MADE
    from neuralpower.suites.bench.results import read_logs, write_csv

    names = [*MADE] if "all" in summary else summary
    logs_read = [log for path in logs for log in read_logs(path)]
    for log in logs_read:
        if log.unreadable:
            text = f"Warning: {log.source}: {log.unreadable[0][:80]!r} has no value; the line was cut off"
            print(visible(text), file=sys.stderr)
    if csv is not None:
        write_csv(logs_read, csv)
    tables = {name: MADE[name]([log.values for log in logs_read]) for name in names}
    if as_json:
        results = [{"source": log.source, **log.values} for log in logs_read]
        summaries = {name: table.to_json() for name, table in tables.items()}
        say(json_text({"schema": 1, "results": results, "summaries": summaries}))
        return
    for number, table in enumerate(tables.values()):
        say(("\n" if number else "") + table.title)
        say(grid(table.header, table.texts(), left=4) if table.rows else "no results to summarise")
