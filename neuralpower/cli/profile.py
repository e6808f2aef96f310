"""`neuralpower profile`: run a network here and say what each of its layers works, moves, keeps and takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.commands import OptionGroup, with_options
from neuralpower.cli.output import say
from neuralpower.errors import CoverageError, InputError, unknown
from neuralpower.files.json_files import json_text

if TYPE_CHECKING:
    from neuralpower.profiling import NetworkProfile

app = Typer()


class Profile(OptionGroup):
    """The run of a network, and its tables and files."""

    model: shared_options.Model
    sizes: shared_options.Sizes
    device: Annotated[str, Option(help="cpu, cuda or cuda:0.")] = "cpu"
    phase: Annotated[str, Option(help="forward, or training: forward, loss, backward, optimizer step.")] = (
        "forward"
    )
    by: Annotated[str, Option(help="Rows of the table: layer, module, kind or operator.")] = "layer"
    sort: Annotated[str, Option(help="runtime_s, flops, bytes, parameters, memory, calls or order.")] = (
        "runtime_s"
    )
    depth: shared_options.Depth = 3
    top: Annotated[int, Option(help="Rows to print; 0 for all.")] = 15
    unit: Annotated[str, Option(help="flop, or mac: 2 FLOP.")] = "flop"
    convention: Annotated[
        str, Option(help="What counts: all-ops (as predict), matmul, thop, fvcore or pytorch-api.")
    ] = "all-ops"
    repeat: Annotated[
        int, Option(help="Runs without instrumentation, and half as many with; 0 counts and runs nothing.")
    ] = 20
    warmup: Annotated[int, Option(help="Runs before these.")] = 5
    power: Annotated[str, Option(help="auto: where a meter works; nvml or rapl: or fail; none.")] = "auto"
    strict: Annotated[
        bool, Option("--strict", help="End with code 3 where an operator's work is not counted.")
    ] = False
    as_json: Annotated[bool, Option("--json", help="Print the whole profile as JSON.")] = False
    csv: Annotated[Path | None, Option(help="Write the rows of --by to this file.")] = None
    markdown: Annotated[Path | None, Option(help="Write the table as Markdown to this file.")] = None
    trace_file: Annotated[
        Path | None, Option(help="Write a run for chrome://tracing or Perfetto to this file.")
    ] = None


@app.command()
@with_options
def profile(asked: Profile) -> None:
    """Run the network with and without instrumentation, and print and write its rows."""
    shape = _checked_shape(asked)
    _check_names(asked)
    result = _run(asked, shape)

    from neuralpower.profiling.result import written

    view: dict[str, Any] = {"by": asked.by, "depth": asked.depth}
    if asked.csv is not None:
        result.to_csv(asked.csv, **view)
    if asked.markdown is not None:
        written(result.to_markdown(asked.sort, asked.top, **view) + "\n", asked.markdown)
    if asked.trace_file is not None:
        result.to_chrome_trace(asked.trace_file)
    say(
        json_text(result.to_json())
        if asked.as_json
        else result.table(asked.sort, asked.top, marked=True, **view)
    )
    if asked.strict and result.unmodelled:
        names = ", ".join(u.operator for u in result.unmodelled[:5])
        advice = "leave out --strict, or count them by own rules (custom=)"
        raise CoverageError(f"coverage {result.coverage:.1%}: {names} not counted; {advice}")


def _checked_shape(asked: Profile) -> tuple[int, ...] | None:
    """The shape of one sample; raises InputError for impossible numbers. Quick: imports no torch."""
    parsing.check_batch_size(asked.sizes.batch_size)
    numbers = {name: getattr(asked, name) for name in ("top", "depth", "repeat", "warmup")}
    if min(numbers.values()) < 0 or asked.depth < 1:
        text = ", ".join(f"{name} {number}" for name, number in numbers.items())
        raise InputError(f"{text}: depth must be 1 or more, the others 0 or more")
    if asked.trace_file is not None and not asked.repeat:
        raise InputError("a trace file shows a run, and --repeat 0 makes none; choose --repeat 1 or more")
    return asked.sizes.shape


def _check_names(asked: Profile) -> None:
    """Raise InputError for an unknown name, or a file that cannot be written."""
    from neuralpower.files.atomic import check_place
    from neuralpower.profiling.conventions import check_convention
    from neuralpower.profiling.result import SORTS, VIEWS
    from neuralpower.profiling.steps import PHASES

    named = (("view", asked.by, VIEWS), ("order", asked.sort, SORTS), ("phase", asked.phase, PHASES))
    for what, value, known in named:
        if value not in known:
            raise unknown(what, value, known)
    check_convention(asked.convention, asked.unit, asked.phase)
    parsing.check_file(asked.csv, "rows.csv")
    parsing.check_file(asked.markdown, "table.md")
    if asked.trace_file is not None:
        check_place(asked.trace_file, "trace.json")


def _run(asked: Profile, shape: tuple[int, ...] | None) -> NetworkProfile:
    """The network's profile; raises NeuralPowerError."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.layers.base import torch_dtype
    from neuralpower.measure.cpu.timer import prepare_process
    from neuralpower.measure.cuda.runtime import device_named
    from neuralpower.networks.sources import InputRequest, resolve
    from neuralpower.profiling import profile as run

    sizes, place = asked.sizes, device_named(asked.device)
    target = str(place) if asked.repeat else "meta"
    source = resolve(asked.model)
    batch = source.batch_size(sizes.batch_size, shape)
    request = InputRequest(batch, sizes.seq_len, shape, torch_dtype(sizes.full_dtype))
    network = source.build(target, request.dtype)
    inputs = source.inputs(network, request, device=target)
    if asked.phase == "training":
        network.train()
    if asked.repeat:
        prepare_process(read_cpu().cores)
    return run(
        network,
        inputs.args,
        inputs.kwargs,
        phase=asked.phase,
        warmup=asked.warmup,
        repeat=max(asked.repeat, 1),
        runtime=bool(asked.repeat),
        power=asked.power,
        flop_unit=asked.unit,
        convention=asked.convention,
        name=asked.model,
    )
