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
def profile(asked: Profile) -> None:
    """Run the network with and without instrumentation, and print and write its rows."""
    shape = _checked_shape(asked)
    _check_names(asked)
    result = _run(asked, shape)

    from neuralpower.profiling.result import written

    view: dict[str, Any] = {"by": asked.rows.by, "depth": asked.rows.depth}
    if asked.csv is not None:
        result.to_csv(asked.csv, **view)
    if asked.markdown is not None:
        written(result.to_markdown(asked.rows.sort, asked.rows.top, **view) + "\n", asked.markdown)
    if asked.trace_file is not None:
        result.to_chrome_trace(asked.trace_file)
    say(
        json_text(result.to_json())
        if asked.as_json
        else result.table(asked.rows.sort, asked.rows.top, marked=True, **view)
    )
    if asked.rows.strict and result.unmodelled:
        names = ", ".join(u.operator for u in result.unmodelled[:5])
        advice = "leave --strict out, or count them in Python with custom="
        raise CoverageError(f"coverage {result.coverage:.1%}: {names} not counted; {advice}")


def _checked_shape(asked: Profile) -> tuple[int, ...] | None:
    """The shape of one sample; raises InputError for impossible numbers. Quick: imports no torch."""
    parsing.check_batch_size(asked.sizes.batch_size)
    numbers = {name: getattr(asked.rows, name) for name in ("top", "depth")}
    numbers |= {name: getattr(asked.measuring, name) for name in ("repeat", "warmup")}
    if min(numbers.values()) < 0 or asked.rows.depth < 1:
        text = ", ".join(f"{name} {number}" for name, number in numbers.items())
        raise InputError(f"{text}: depth must be 1 or more, the others 0 or more")
    if asked.trace_file is not None and not asked.measuring.repeat:
        raise InputError("a trace file needs a run; choose --repeat 1 or more")
    return asked.sizes.shape


def _check_names(asked: Profile) -> None:
    """Raise InputError for an unknown name, or a file that cannot be written."""
    from neuralpower.files.atomic import check_place
    from neuralpower.profiling.conventions import check_convention

    check_convention(asked.rows.convention, asked.rows.unit, asked.phase)
    parsing.check_file(asked.csv, "rows.csv")
    parsing.check_file(asked.markdown, "table.md")
    if asked.trace_file is not None:
        check_place(asked.trace_file, "trace.json")


def _run(asked: Profile, shape: tuple[int, ...] | None) -> NetworkProfile:
    stage("importing torch and transformers")
    from neuralpower.devices.host import read_cpu
    from neuralpower.layers.base import torch_dtype
    from neuralpower.measure.cpu.timer import prepare_process
    from neuralpower.measure.cuda.runtime import device_named
    from neuralpower.networks.sources import InputRequest, resolve
    from neuralpower.profiling import profile as run

    sizes, place = asked.sizes, device_named(asked.device)
    target = str(place) if asked.measuring.repeat else "meta"
    source = resolve(asked.model)
    batch = source.batch_size(sizes.batch_size, shape)
    dtype = torch_dtype(parsing.dtype(sizes.dtype))
    request = InputRequest(batch, sizes.seq_len, shape, dtype, labels=asked.phase == "training")
    network = source.build(target, request.dtype)
    inputs = source.inputs(network, request, device=target)
    if asked.phase == "training":
        network.train()
    if asked.measuring.repeat:
        prepare_process(read_cpu().cores)
    stage(f"running {asked.model}")
    return run(
        network,
        inputs.args,
        inputs.kwargs,
        phase=asked.phase,
        warmup=asked.measuring.warmup,
        repeat=max(asked.measuring.repeat, 1),
        runtime=bool(asked.measuring.repeat),
        power=asked.measuring.power,
        flop_unit=asked.rows.unit,
        convention=asked.rows.convention,
        name=asked.model,
    )
