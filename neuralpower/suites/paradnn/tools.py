"""`neuralpower paradnn report`, `merge`, `matmul` and `roof`."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuralpower.ask import texts
from neuralpower.cli import parsing
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import examples
from neuralpower.cli.output import say
from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text
from neuralpower.files.paths import check_regular, is_file

if TYPE_CHECKING:
    import pandas as pd

    from neuralpower.suites.roofs import Roof

app = typer.Typer()
FORMATS = ("png", "svg", "pdf")
TF32 = "Use TF32; default: from compute capability 8.0 on."


@app.command(
    epilog=examples(
        "neuralpower paradnn report paradnn/fc-cpu --out reports/fc",
        "neuralpower paradnn report sweeps/t4.csv sweeps/l4.csv --formats png",
    )
)
def report(
    sources: list[Path] = typer.Argument(
        help="Folders of sweeps, or CSV tables; several devices are compared."
    ),
    out: Path = typer.Option(
        Path("paradnn-report"), "--out", "-o", help="Output folder for the page, its pictures and tables."
    ),
    spec: str | None = typer.Option(None, help="Device or spec sheet, if the table's device name has none."),
    formats: Annotated[
        str, choice("format of pictures", FORMATS, help="Formats of the pictures, with commas", several=True)
    ] = "png,svg",
    operators: str | None = typer.Option(
        None, help="Families whose operators are profiled here, such as fc,rnn."
    ),
) -> None:
    """Write heat maps, regressions, rooflines and comparisons of sweeps as a page."""
    import pandas as pd

    from neuralpower.files.csv_files import write_csv
    from neuralpower.report.page import write_html, write_markdown
    from neuralpower.suites.paradnn.page import page_of
    from neuralpower.suites.paradnn.points import Point, family_named
    from neuralpower.suites.paradnn.run import operator_times
    from neuralpower.suites.paradnn.sweep import Setup

    pictures = texts.names(formats, "formats") or ()
    points = pd.concat([_frame(source) for source in sources], ignore_index=True)
    profiled = []
    for name in texts.names(operators, "operators") or ():
        family = family_named(name)
        point = Point.of(name, family.kinds[0], family.defaults)
        profiled.append(operator_times(point, Setup(), repeats=3, warmup=1))
    page = page_of(points, _roofs(points, spec), profiled)
    write_html(page, out / "paradnn.html")
    write_markdown(page, out / "paradnn.md", out / "pictures", pictures)
    for stem, table in page.tables():
        write_csv(out / f"{stem}.csv", [table.header, *table.rows], "folder")
    known = points.astype(object).where(points.notna(), None)
    write_csv(out / "points.csv", [points.columns, *known.itertuples(index=False)], "folder")
    say(out / "paradnn.html")


def _frame(source: Path) -> pd.DataFrame:
    from neuralpower.suites.paradnn.sweep import csv_frame, frame, read_results

    return csv_frame(source) if is_file(source) else frame(read_results(source))


def _roofs(points: pd.DataFrame, spec: str | None) -> dict[tuple[str, str], Roof]:
    """Roofs by device and dtype, for devices with a spec sheet."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.devices.spec import find_spec, spec_of
    from neuralpower.suites.roofs import theoretical

    given = None if spec is None else spec_of(spec)
    roofs = {}
    for device, dtype in {*zip(points["device"].map(str), points["dtype"].map(str), strict=True)}:
        sheet = given
        with contextlib.suppress(InputError):
            sheet = find_spec(read_cpu().name if device == f"{platform.node()}-cpu" else device)
        if sheet is not None and dtype in sheet.peak_flops:
            roofs[device, dtype] = theoretical(sheet, dtype)
    return roofs


@app.command(
    epilog=examples(
        "neuralpower paradnn merge sweeps/one sweeps/two --out sweeps/both.csv",
        "neuralpower paradnn merge sweeps/*.csv",
    )
)
def merge(
    sources: list[Path] = typer.Argument(
        help="CSV tables, or folders of sweeps; a later point replaces an earlier one."
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write the table to this file; default: print it."
    ),
) -> None:
    """Merge tables into one CSV; each point occurs once."""
    from neuralpower.files.atomic import replace_file
    from neuralpower.suites.paradnn.sweep import merged, read_csv, read_results, row_of

    tables: list[tuple[str, list[list[str]]]] = []
    for source in sources:
        check_regular(source)
        if is_file(source):
            tables.append(read_csv(source))
        else:
            timed = (r for r in read_results(source) if r.flops_per_s is not None)
            tables += [(result.point.family, [row_of(result)]) for result in timed]
    text = merged(tables)
    if out is None:
        say(text, end="")
    else:
        replace_file(out, text)
        say(out)


@app.command(
    epilog=examples(
        "neuralpower paradnn matmul --size 4096", "neuralpower paradnn matmul --device cuda:0 --dtype bf16"
    )
)
def matmul(
    size: int = typer.Option(16384, help="Rows and columns of a matrix."),
    input_type: str = typer.Option("f32", "--dtype", help="f32, bf16, f16 or f64."),
    device: str = typer.Option("cpu", help="cpu, or cuda:0."),
    warmup: int = typer.Option(20, help="Products before the timed products."),
    steps: int = typer.Option(10, help="Timed products."),
    tf32: bool | None = typer.Option(None, "--tf32/--no-tf32", help=TF32),
    as_json: bool = typer.Option(False, "--json", help="Print the numbers as JSON."),
) -> None:
    """Time the product of two square matrices, with the profiler's table."""
    from neuralpower.suites.roofs import matmul_benchmark

    dtype, how = parsing.dtype(input_type), {"warmup": warmup, "steps": steps}
    result = matmul_benchmark(size, dtype, device, **how, tf32=tf32, profiled=not as_json)
    if as_json:
        names = ("machine", "size", "dtype", "tf32", "product_s", "steps", "flops_per_s")
        say(json_text({"schema": 1, **{name: getattr(result, name) for name in names}}))
        return
    say(f"{result.machine}: {size} x {size} in {dtype}{' with TF32' if result.tf32 else ''}")
    say(f"{result.product_s:.6g} s a product, {result.flops_per_s / 1e12:.4g} TFLOP/s")
    say(result.table)


@app.command(
    epilog=examples(
        "neuralpower paradnn roof nvidia-t4 nvidia-l4 --dtype float16",
        "neuralpower paradnn roof --measure cpu",
    )
)
def roof(
    specs: list[str] = typer.Argument(None, help="Devices or spec sheets."),
    dtype: str = typer.Option("float32", help="Dtype of the products."),
    measure: str | None = typer.Option(None, help="Also measure here: cpu, or cuda:0."),
    size: int = typer.Option(4096, help="Rows and columns of the measured product."),
) -> None:
    """Print the theoretical roofs of spec sheets, and this machine's measured roof."""
    from neuralpower.devices.spec import spec_of
    from neuralpower.report.grid import grid
    from neuralpower.suites.roofs import cache_roof, figures, measured, theoretical

    kind = parsing.dtype(dtype)
    roofs = [theoretical(spec_of(name), kind) for name in specs or ()]
    if measure is not None:
        roofs.append(measured(measure, kind, size))
    if not roofs:
        raise InputError("no device given: name a spec sheet, such as nvidia-t4, or add --measure cpu")
    cells = [[r.device, r.how, f"{r.flops_per_s / 1e12:.2f}", f"{r.bytes_per_s / 1e9:.2f}"] for r in roofs]
    say(grid(["device", "from", "TFLOP/s", "GB/s"], cells, left=2))
    if measure is not None:
        if measure.startswith("cuda"):
            import torch

            known = figures(torch.cuda.get_device_properties(torch.device(measure)))
            say(grid(["by its clocks", ""], [[name, f"{value:.2f}"] for name, value in known.items()]))
        rate = cache_roof(measure)
        if rate is not None:
            say(f"a copy inside the last cache: {rate / 1e9:.1f} GB/s")
