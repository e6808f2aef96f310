"""`neuralpower profile`: run a network here and say what each of its layers works, moves, keeps and takes."""

from __future__ import annotations

from pathlib import Path

import typer

from neuralpower.cli import options
from neuralpower.cli.output import say
from neuralpower.files.json_files import json_text

app = typer.Typer()


@app.command()
def profile(
    model: str = options.MODEL,
    batch_size: int | None = options.BATCH_SIZE,
    seq_len: int | None = options.SEQ_LEN,
    input_shape: str | None = options.INPUT_SHAPE,
    dtype: str = options.DTYPE,
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:0."),
    phase: str = typer.Option("forward", help="forward, or training: forward, loss, backward, optimizer step."),
    by: str = typer.Option("layer", help="Rows of the table: layer, module, kind or operator."),
    sort: str = typer.Option("runtime_s", help="runtime_s, flops, bytes, parameters, memory, calls or order."),
    depth: int = options.DEPTH,
    top: int = typer.Option(15, help="Rows to print; 0 for all."),
    unit: str = typer.Option("flop", help="flop, or mac: 2 FLOP."),
    convention: str = typer.Option("matmul", help="What counts: matmul, all-ops, thop, fvcore or pytorch-api."),
    repeat: int = typer.Option(
        20, help="Runs without instrumentation, and half as many with; 0 counts and runs nothing."
    ),
    warmup: int = typer.Option(5, help="Runs before these."),
    power: str = typer.Option("auto", help="auto: where a meter works; nvml or rapl: or fail; none."),
    strict: bool = typer.Option(False, "--strict", help="End with code 3 where an operator's work is not counted."),
    as_json: bool = typer.Option(False, "--json", help="Print the whole profile as JSON."),
    csv: Path | None = typer.Option(None, help="Write the rows of --by to this file."),
    markdown: Path | None = typer.Option(None, help="Write the table as Markdown to this file."),
    trace_file: Path | None = typer.Option(None, help="Write a run for chrome://tracing or Perfetto to this file."),
) -> None:
    """Profile a network on this machine, layer by layer."""
    from neuralpower.errors import CoverageError, InputError, unknown, writing

    options.check_batch_size(batch_size)
    if top < 0 or depth < 1 or repeat < 0 or warmup < 0:
        raise InputError(
            f"top {top}, depth {depth}, repeat {repeat}, warmup {warmup}: depth must be 1 or more, the others 0 or more"
        )
    if trace_file is not None and not repeat:
        raise InputError("a trace file shows a run, and --repeat 0 makes none; choose --repeat 1 or more")
    shape = options.shape(input_shape)

    from neuralpower.data.dataset import check_place
    from neuralpower.devices.host import read_cpu
    from neuralpower.files.atomic import aside
    from neuralpower.layers.base import torch_dtype
    from neuralpower.measure.cpu.timer import prepare_process
    from neuralpower.measure.cuda.runtime import device_named
    from neuralpower.networks.sources import InputRequest, resolve
    from neuralpower.profiling import profile as run
    from neuralpower.profiling.conventions import check_convention
    from neuralpower.profiling.result import SORTS, VIEWS
    from neuralpower.profiling.steps import PHASES

    for what, value, known in (("view", by, VIEWS), ("order", sort, SORTS), ("phase", phase, PHASES)):
        if value not in known:
            raise unknown(what, value, known)
    check_convention(convention, unit, phase)
    options.check_file(csv, "rows.csv")
    options.check_file(markdown, "table.md")
    if trace_file is not None:
        check_place(trace_file, "trace.json")
    place = device_named(device)
    target = str(place) if repeat else "meta"
    source = resolve(model)
    request = InputRequest(source.batch_size(batch_size, shape), seq_len, shape, torch_dtype(options.dtype(dtype)))
    network = source.build(target, request.dtype)
    inputs = source.inputs(network, request, device=target)
    if phase == "training":
        network.train()
    if repeat:
        prepare_process(read_cpu().cores)
    result = run(
        network,
        inputs.args,
        inputs.kwargs,
        phase=phase,
        warmup=warmup,
        repeat=max(repeat, 1),
        runtime=bool(repeat),
        power=power,
        flop_unit=unit,
        convention=convention,
        name=model,
    )
    if csv is not None:
        result.to_csv(csv, by=by, depth=depth)
    if markdown is not None:
        with writing(markdown, "file"), aside(markdown) as new:
            new.write_text(result.to_markdown(sort, top, by=by, depth=depth) + "\n", encoding="utf-8")
    if trace_file is not None:
        result.to_chrome_trace(trace_file)
    say(json_text(result.to_json()) if as_json else result.table(sort, top, by=by, depth=depth))
    if strict and result.unmodelled:
        names = ", ".join(u.operator for u in result.unmodelled[:5])
        raise CoverageError(
            f"coverage {result.coverage:.1%}: {names} not counted; leave out --strict, or count them by own rules (custom=)"
        )
