"""`neuralpower profile`: run a network here; print time, work, traffic and memory of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, Typer

from neuralpower.ask import texts
from neuralpower.ask.options import Sizes
from neuralpower.ask.output import View
from neuralpower.ask.words import CONVENTIONS, INPUT, MEASURING, OUTPUT, ROWS, SORTS, UNITS
from neuralpower.cli import parsing
from neuralpower.cli.choices import choice, power_meters
from neuralpower.cli.commands import MeasuredDevice, Model, OptionGroup, examples, flag, with_options
from neuralpower.cli.output import say
from neuralpower.errors import CoverageError, InputError
from neuralpower.files.json_files import json_text
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.profiling import NetworkProfile

app = Typer()


class RanSizes(OptionGroup):
    """Options: the inputs of a network that runs here."""

    panel = INPUT

    batch_size: Annotated[int | None, flag(Sizes, "batch_size")] = None
    seq_len: Annotated[int | None, flag(Sizes, "seq_len")] = None
    input_shape: Annotated[str | None, flag(Sizes, "input_shape")] = None
    dtype: Annotated[str, flag(Sizes, "dtype", "profile")] = "float32"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one sample; raises InputError."""
        return texts.shape(self.input_shape)


class Measuring(OptionGroup):
    """Options: how the network runs."""

    panel = MEASURING

    repeat: Annotated[
        int, Option(help="Runs without instrumentation; half this number with it. 0: only count.")
    ] = 20
    warmup: Annotated[int, Option(help="Warm-up runs.")] = 5
    power: Annotated[
        str,
        choice(
            "power meter", power_meters, help="auto, none, or a meter's name (error if it does not work)."
        ),
    ] = "auto"


class Rows(OptionGroup):
    """Options: rows, their order, and what they count."""

    panel = OUTPUT

    by: Annotated[str, choice("view", ROWS, help="Rows of the table")] = "layer"
    sort: Annotated[str, choice("order", SORTS, help="Order of the rows")] = "runtime_s"
    depth: Annotated[int, flag(View, "depth")] = 3
    top: Annotated[int, Option(help="Rows to print; 0 for all.")] = 15
    unit: Annotated[str, choice("FLOP unit", UNITS, help="Unit of work; 1 mac is 2 flop.")] = "flop"
    convention: Annotated[
        str, choice("convention", CONVENTIONS, help="Operations that count as work; all-ops: same as predict")
    ] = "all-ops"
    strict: Annotated[bool, Option("--strict", help="Exit 3 if an operator's work is not counted.")] = False


class Profile(OptionGroup):
    """Options: the run of a network, and its tables and files."""

    panel = INPUT

    model: Model
    phase: Annotated[str, flag(Sizes, "phase", "profile")] = "forward"
    sizes: RanSizes
    device: MeasuredDevice = "cpu"
    measuring: Measuring
    rows: Rows
    as_json: Annotated[
        bool, Option("--json", help="Print the whole profile as JSON.", rich_help_panel=OUTPUT)
    ] = False
    csv: Annotated[Path | None, Option(help="Write the rows to this file.", rich_help_panel=OUTPUT)] = None
    markdown: Annotated[
        Path | None, Option(help="Write the table as Markdown to this file.", rich_help_panel=OUTPUT)
    ] = None
    trace_file: Annotated[
        Path | None,
        Option(
            help="Write a run's timeline for chrome://tracing or Perfetto to this file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None


@app.command(
    epilog=examples(
        "neuralpower profile transformers:bert --seq-len 128 --by kind",
        "neuralpower profile net.py:build -b 8 --phase training --device cuda:0",
    )
)
@with_options
def profile(options: Profile) -> None:
    """Run the network with and without instrumentation, and print and write its rows."""
    shape = _checked_shape(options)
    _check_names(options)
    result = _run(options, shape)

    from neuralpower.profiling.result import written

    view: dict[str, Any] = {"by": options.rows.by, "depth": options.rows.depth}
    if options.csv is not None:
        result.to_csv(options.csv, **view)
    if options.markdown is not None:
        written(result.to_markdown(options.rows.sort, options.rows.top, **view) + "\n", options.markdown)
    if options.trace_file is not None:
        result.to_chrome_trace(options.trace_file)
    say(
        json_text(result.to_json())
        if options.as_json
        else result.table(options.rows.sort, options.rows.top, marked=True, **view)
    )
    if options.rows.strict and result.unmodelled:
        names = ", ".join(u.operator for u in result.unmodelled[:5])
        advice = "leave --strict out, or count them in Python with custom="
        raise CoverageError(f"coverage {result.coverage:.1%}: {names} not counted; {advice}")


def _checked_shape(options: Profile) -> tuple[int, ...] | None:
    """The shape of one sample; raises InputError for impossible numbers. Quick: imports no torch."""
    parsing.check_batch_size(options.sizes.batch_size)
    numbers = {name: getattr(options.rows, name) for name in ("top", "depth")}
    numbers |= {name: getattr(options.measuring, name) for name in ("repeat", "warmup")}
    if min(numbers.values()) < 0 or options.rows.depth < 1:
        text = ", ".join(f"{name} {number}" for name, number in numbers.items())
        raise InputError(f"{text}: depth must be 1 or more, the others 0 or more")
    if options.trace_file is not None and not options.measuring.repeat:
        raise InputError("a trace file needs a run; choose --repeat 1 or more")
    return options.sizes.shape


def _check_names(options: Profile) -> None:
    """Raise InputError for an unknown name, or a file that cannot be written."""
    from neuralpower.files.atomic import check_place
    from neuralpower.profiling.conventions import check_convention

    check_convention(options.rows.convention, options.rows.unit, options.phase)
    parsing.check_file(options.csv, "rows.csv")
    parsing.check_file(options.markdown, "table.md")
    if options.trace_file is not None:
        check_place(options.trace_file, "trace.json")


def _run(options: Profile, shape: tuple[int, ...] | None) -> NetworkProfile:
    stage("importing torch and transformers")
    from neuralpower.devices.host import read_cpu
    from neuralpower.layers.base import torch_dtype
    from neuralpower.measure.cpu.timer import prepare_process
    from neuralpower.measure.cuda.runtime import device_named
    from neuralpower.networks.sources import InputRequest, resolve
    from neuralpower.profiling import profile as run

    sizes, place = options.sizes, device_named(options.device)
    target = str(place) if options.measuring.repeat else "meta"
    source = resolve(options.model)
    batch = source.batch_size(sizes.batch_size, shape)
    dtype = torch_dtype(parsing.dtype(sizes.dtype))
    request = InputRequest(batch, sizes.seq_len, shape, dtype, labels=options.phase == "training")
    network = source.build(target, request.dtype)
    inputs = source.inputs(network, request, device=target)
    if options.phase == "training":
        network.train()
    if options.measuring.repeat:
        prepare_process(read_cpu().cores)
    stage(f"running {options.model}")
    return run(
        network,
        inputs.args,
        inputs.kwargs,
        phase=options.phase,
        warmup=options.measuring.warmup,
        repeat=max(options.measuring.repeat, 1),
        runtime=bool(options.measuring.repeat),
        power=options.measuring.power,
        flop_unit=options.rows.unit,
        convention=options.rows.convention,
        name=options.model,
    )
