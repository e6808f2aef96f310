"""Options of `neuralpower paradnn fc`, `cnn` and `rnn`: those of a run, and the sizes of each family."""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from neuralpower.ask import texts
from neuralpower.ask.words import (
    INPUT,
    MEASURING,
    OUTPUT,
    PARADNN_MODES,
    PARADNN_OPTIMIZERS,
    RAN_PHASES,
    RMSPROPS,
    SPACE,
    TARGET,
)
from neuralpower.cli import parsing
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import OptionGroup, examples
from neuralpower.cli.known_names import checked_predictor, completed_places, completed_predictors
from neuralpower.cli.output import say
from neuralpower.errors import InputError, unknown
from neuralpower.files.json_files import json_text
from neuralpower.files.paths import check_regular, is_file

if TYPE_CHECKING:
    import pandas as pd

    from neuralpower.suites.roofs import Roof

Size = int | None
Text = str | None
BATCH, INPUT_SIZE, OUTPUT_SIZE = (f"--{name}-size" for name in ("batch", "input", "output"))
VARIANT = "pytorch: one square matrix for each layer; paradnn: one less."


class Common(OptionGroup):
    """Options of a run, for all families."""

    panel = MEASURING
    panels = {  # noqa: RUF012  # read as a frozen dataclass
        SPACE: "benchmark grid sample seed time_budget point_budget shard slurm again",
        TARGET: "device predict predictor",
        OUTPUT: "out as_json operators",
    }

    benchmark: Annotated[bool, Option("-b", "--benchmark", help="Every batch, input and output size.")] = (
        False
    )
    grid: Annotated[bool, Option("--grid", help="Every point of the paper's sweep.")] = False
    sample: Annotated[Size, Option(help="Number of points to draw at random from the sweep.")] = None
    seed: Annotated[int, Option(help="Seed of the sample.")] = 0
    use_gpu: Annotated[int, Option("--use-gpu", hidden=True)] = 0
    device: Annotated[Text, Option(help="cpu, or cuda:0.", autocompletion=completed_places)] = None
    input_type: Annotated[
        str, Option("--dtype", help="f32, bf16, f16 or f64; a sweep accepts several, with commas.")
    ] = "f32"
    mode: Annotated[
        str, choice("phase", RAN_PHASES, "--phase", help="Phase to run", meant=PARADNN_MODES.get)
    ] = "training"
    optimizer: Annotated[str, choice("optimizer", PARADNN_OPTIMIZERS, help="Optimizer")] = "rms"
    rmsprop: Annotated[
        str, choice("RMSprop", RMSPROPS, "--rmsprop-compat", help="Framework whose RMSprop is used")
    ] = "paradnn"
    amp: Annotated[bool, Option("--amp", help="Float32 weights under autocast to the input type.")] = False
    tf32: Annotated[bool, Option("--tf32/--no-tf32", help="Products of float32 in TF32, on CUDA.")] = False
    warmup_steps: Annotated[int, Option("--warmup-steps", help="Steps before the timed steps.")] = 300
    steps: Annotated[int, Option("--steps", help="Timed steps.")] = 100
    mkl: Annotated[int, Option(help="1: set Intel OpenMP's blocking time and affinity.")] = 1
    intra: Annotated[int, Option("--intra", help="Threads of an operator; 0: all cores.")] = 0
    inter: Annotated[int, Option("--inter", help="Operators that run at a time; 0: one.")] = 0
    time_budget: Annotated[Text, Option("--time-budget", help="Time budget of a sweep, such as 20m.")] = None
    point_budget: Annotated[
        Text, Option("--point-budget", help="Time budget of a point; it runs fewer steps to keep it.")
    ] = None
    shard: Annotated[Text, Option(help="I/N: share I of N jobs; writes to its own folder.")] = None
    slurm: Annotated[Size, Option(help="Print a job array of this size for sbatch, and exit.")] = None
    again: Annotated[Text, Option(help="States to run again, such as oom,failed.")] = None
    predict: Annotated[bool, Option("--predict", help="Predict the times; run nothing.")] = False
    predictor: Annotated[
        Text,
        Option(
            help="Name or file; default: this machine's.",
            callback=checked_predictor,
            autocompletion=completed_predictors,
        ),
    ] = None
    out: Annotated[
        Path | None, Option("--out", "-o", help="Folder of a sweep; default: paradnn/FAMILY-DEVICE.")
    ] = None
    as_json: Annotated[bool, Option("--json", help="Print a single run's numbers as JSON.")] = False
    operators: Annotated[
        bool, Option("--operators", help="Also print a single run's time by kind of operator.")
    ] = False

    @property
    def swept(self) -> bool:
        return self.benchmark or self.grid or self.sample is not None

    @property
    def predicted(self) -> bool:
        return self.predict or self.predictor is not None

    @property
    def place(self) -> str:
        """Torch's name of the device; raises InputError."""
        if self.use_gpu not in (0, 1):
            raise InputError(f"use_gpu {self.use_gpu}: 0 is the CPU, 1 the first GPU")
        named = self.device or ("cuda:0" if self.use_gpu else "cpu")
        named = "cuda:0" if named in ("gpu", "cuda") else named
        if not re.fullmatch(r"cpu|cuda:[0-9]+", named):
            raise unknown("device", named, ["cpu", "cuda:0"])
        return named


class Dense(OptionGroup):
    """Options: sizes of a fully connected network, and its variant."""

    panel = INPUT

    layers: Annotated[Size, Option("--layers", help="Hidden layers; 8.")] = None
    nodes: Annotated[Size, Option("--nodes", help="Width of each hidden layer; 1024.")] = None
    batch_size: Annotated[Size, Option(BATCH, help="Samples in a step; 1024.")] = None
    input_size: Annotated[Size, Option(INPUT_SIZE, help="Width of the inputs; 1000.")] = None
    output_size: Annotated[Size, Option(OUTPUT_SIZE, help="Classes; 100.")] = None
    kind: Annotated[str, Option("--variant", help=VARIANT)] = "pytorch"
    tf_defaults: Annotated[
        bool, Option("--tf-defaults", help="TensorFlow's defaults: 4 layers, batch 128.")
    ] = False


class Images(OptionGroup):
    """Options: sizes of a convolutional network, and its block."""

    panel = INPUT

    blocks: Annotated[Size, Option("--blocks", help="Blocks in each of four groups; 1.")] = None
    filters: Annotated[Size, Option("--filters", help="Filters in the first group; 16.")] = None
    batch_size: Annotated[Size, Option(BATCH, help="Images in a step; 8.")] = None
    input_size: Annotated[Size, Option(INPUT_SIZE, help="Height and width of an image; 224.")] = None
    output_size: Annotated[Size, Option(OUTPUT_SIZE, help="Classes; 1000.")] = None
    kind: Annotated[Text, Option("--block-fn", help="residual or bottleneck; a grid has both.")] = None
    resnet_layers: Annotated[Text, Option("--resnet-layers", help='Blocks by group, such as "1,1,1,1".')] = (
        None
    )


class Texts(OptionGroup):
    """Options: sizes of a recurrent network, and its cell."""

    panel = INPUT

    layers: Annotated[Size, Option("--layers", help="Recurrent layers; 5.")] = None
    embed: Annotated[Size, Option("--embed", help="Width of embedding and cells; 100.")] = None
    length: Annotated[Size, Option("--length", help="Tokens in a sequence; 50.")] = None
    vocabulary: Annotated[Size, Option("--vocabulary", help="Tokens in the vocabulary; 1024.")] = None
    input_size: Annotated[
        Text, Option("--input-size", help='Length, vocabulary and width, as in "50,1024,100".')
    ] = None
    batch_size: Annotated[Size, Option(BATCH, help="Sequences in a step; 128.")] = None
    kind: Annotated[Text, Option("--cell", help="lstm, gru or rnn; a grid has all.")] = None


# `neuralpower paradnn report`, `merge`, `matmul` and `roof`.

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
