"""`neuralpower bench`: time a network's training, inference or data ingestion, once or for a grid of parameters."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from neuralpower.cli.output import say
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import visible

app = typer.Typer()
BOOLEANS = (
    "forward_only autocast data_shuffle data_loader_only cudnn_benchmark cudnn_fastest print_docker sysinfo retry_failed"
).split()
WORDS = ("true", "on", "t", "1", "false", "off", "f", "0")


def named(arguments: Sequence[str]) -> list[str]:
    """Arguments with underscores in option names, and a value behind every truth: a bare flag is true."""
    found: list[str] = []
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        found.append(name + equals + value)
        if name.removeprefix("--") in BOOLEANS and not equals and following.lower() not in WORDS:
            found[-1] += "=true"
    return found


class Spelled(TyperCommand):
    """A command whose options are spelled with underscores or hyphens, and whose truths may stand bare."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments as they are `named`."""
        return super().parse_args(ctx, named(args))


def _option(name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(None, f"--{name}", help=text, metavar=metavar, show_default=False)


TRUTH = "[true|false]"


@app.command(cls=Spelled)
def bench(
    model: str | None = _option("model", "Id of the zoo (see `neuralpower models`), or any MODEL. Required."),
    batch_size: str | None = _option("batch_size", "Samples per device. Required.", "N"),
    forward_only: str | None = _option("forward_only", "Inference instead of training (false).", TRUTH),
    num_batches: str | None = _option("num_batches", "Timed batches (100).", "N"),
    num_warmup_batches: str | None = _option("num_warmup_batches", "Batches before them (1).", "N"),
    num_gpus: str | None = _option("num_gpus", "Devices, a process each (1).", "N"),
    device: str | None = _option("device", "cpu or gpu (cpu)."),
    dtype: str | None = _option("dtype", "float, float32, float16, bfloat16 or float64 (float)."),
    autocast: str | None = _option("autocast", "Keep float32 weights and compute products in the dtype.", TRUTH),
    data_dir: str | None = _option("data_dir", "Images; without it data are synthetic.", "PATH"),
    data: str | None = _option("data", "synthetic, or synthetic/pinned, /pageable, /device, /gpu."),
    data_backend: str | None = _option("data_backend", "caffe_lmdb or image_folder (caffe_lmdb)."),
    data_shuffle: str | None = _option("data_shuffle", "Another order in each epoch (false).", TRUTH),
    data_loader_only: str | None = _option("data_loader_only", "Load data and run no network (false).", TRUTH),
    cudnn_benchmark: str | None = _option("cudnn_benchmark", "Let cuDNN try its algorithms (true).", TRUTH),
    cudnn_fastest: str | None = _option("cudnn_fastest", "Recorded; PyTorch knows no such thing (false).", TRUTH),
    num_loader_threads: str | None = _option("num_loader_threads", "Loader processes; 0 loads in between (4).", "N"),
    dist_backend: str | None = _option("dist_backend", "nccl or gloo (nccl; on CPUs gloo)."),
    local_rank: str | None = _option("local_rank", "Of this process, where LOCAL_RANK is not set (0).", "N"),
    master_port: str | None = _option("master_port", "Where several processes meet (any that is free).", "PORT"),
    input_shape: str | None = _option("input_shape", "Of one sample, such as 3x224x224."),
    seq_len: str | None = _option("seq_len", "Tokens per sample.", "N"),
    seed: str | None = _option("seed", "Of weights, data and their order (0).", "N"),
    monitor_frequency: str | None = _option(
        "monitor_frequency", "Samples a second of what the process uses; 0: off.", "HZ"
    ),
    monitor_file: Path | None = typer.Option(
        None, "--monitor_file", help="Write these samples there, not as result lines."
    ),
    config: Path | None = typer.Option(None, "--config", help="JSON file of exp. and pytorch. parameters."),
    grid: list[str] | None = typer.Option(None, "--grid", metavar="NAME=A,B", help="Values of an option; repeatable."),
    out: Path | None = typer.Option(
        None, "--out", metavar="DIR", help="Keeps a grid's results; run again, it goes on."
    ),
    retry_failed: str | None = _option("retry_failed", "Run a grid's failed points again.", TRUTH),
    print_docker: str | None = _option("print_docker", "Print the container command and end.", TRUTH),
    sysinfo: str | None = _option("sysinfo", "Print what is known of this machine and end.", TRUTH),
    trust_code: bool = typer.Option(False, "--trust_code", help="Run a model of --config that is code."),
) -> None:
    """Benchmark a network: training, inference, or loading data; prints result lines."""
    given = {k: v for k, v in locals().items() if v is not None}
    from neuralpower.errors import InputError
    from neuralpower.suites.bench.config import Config, check_models, container_command, read_config
    from neuralpower.suites.bench.grid import axes_of, points_of
    from neuralpower.suites.bench.options import FIELDS, boolean

    if boolean(sysinfo or "false"):
        from neuralpower.suites.bench.system import described

        say(json_text(dict(described()), indent=2))
        return
    read = read_config(config) if config is not None else Config()
    told = {name: value for name, value in given.items() if name in FIELDS}
    spoken = axes_of(grid or ())
    if config is not None and "model" not in {*told, *spoken}:
        check_models(read, config, trust_code)
    axes = {**{name: values for name, values in read.axes.items() if name not in told}, **spoken}
    fixed = {name: value for name, value in {**read.options, **told}.items() if name not in axes}
    twice = sorted(spoken.keys() & told.keys())
    if twice:
        raise InputError(f"{twice[0]}: given as an option and as --grid; give it once")
    points = points_of(fixed, axes)
    if boolean(print_docker or "false"):
        home = Path(__file__).parent.parent.parent
        for point in points:
            say(shlex.join(container_command(point, read.settings, home)))
        return
    if read.settings["exp.docker"]:
        _warn("exp.docker is set, and this runs on the host; --print_docker prints the command of a container")
    if axes and out is None:
        raise InputError("a grid without a folder for its results; add --out DIR")
    if out is not None and not axes:
        raise InputError(
            f"--out {out}: holds a grid's results; add --grid NAME=A,B, or leave it out and keep what is printed"
        )
    if out is not None and axes:
        _grid(points, out, boolean(retry_failed or "false"))
    else:
        _one(points[0], monitor_file)


def _one(options: Any, monitor_file: Path | None) -> None:
    from neuralpower.suites.bench.distributed import launch, world_of
    from neuralpower.suites.bench.lines import result_line
    from neuralpower.suites.bench.options import arguments
    from neuralpower.suites.bench.run import Bench

    world = world_of(options)
    if world is None:
        extra = [] if monitor_file is None else [f"--monitor_file={monitor_file}"]
        launch(options, [*arguments(options), *extra], say, _warn)
        return
    Bench(
        options,
        world,
        lambda name, value: say(result_line(name, value)),
        _warn,
        monitor_file=monitor_file,
    ).run()


def _grid(points: Sequence[Any], out: Path, retry_failed: bool) -> None:
    from neuralpower.report.tables import grid as table
    from neuralpower.suites.bench.grid import run_grid, values_of
    from neuralpower.suites.bench.summaries import exploration

    try:
        records = run_grid(points, out, lambda text: print(visible(text), file=sys.stderr), retry_failed=retry_failed)
    except KeyboardInterrupt:
        print(f"what was measured is in {out}; give the same command again to continue", file=sys.stderr)
        raise
    summary = exploration(values_of(records))
    say(table(summary.header, summary.texts(), left=4))


def _warn(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(visible(f"warning: {text}"), file=sys.stderr)
