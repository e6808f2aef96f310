"""`neuralpower paradnn`: run or predict parameterised networks, one at a time or as a sweep.

The three families share the options of `Common`, under their names here and in older programs.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from neuralpower.ask.panels import INPUT, MEASURING, OUTPUT, SPACE, TARGET
from neuralpower.ask.words import PARADNN_MODES, PARADNN_OPTIMIZERS, RAN_PHASES, RMSPROPS
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import Command, OptionGroup, examples, with_options
from neuralpower.cli.known_names import checked_predictor, completed_places, completed_predictors
from neuralpower.errors import InputError, unknown, whole_number
from neuralpower.suites.paradnn import tools

Size = int | None
Text = str | None


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


HELP = "ParaDnn's networks with sizes for parameters (Wang, Wei, Brooks, MLSys 2020)"
app = typer.Typer(name="paradnn", no_args_is_help=True, help=f"{HELP}: run, swept, predicted, compared.")
app.add_typer(tools.app)
EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}  # refused with a reason
TPU_FLAGS = (
    "use_tpu tpu tpu_name tpu_zone gcp_project master num_shards num_cores iterations iterations_per_loop "
    "model_dir data_dir skip_host_call transpose_input infeed_threads tpu_job_name"
).split()
BATCH, INPUT_SIZE, OUTPUT_SIZE = (f"--{name}-size" for name in ("batch", "input", "output"))
VARIANT = "pytorch: one square matrix for each layer; paradnn: one less."
USUAL = {"cnn": "residual", "rnn": "lstm"}  # kinds by default
KMP = {"KMP_BLOCKTIME": "30", "KMP_AFFINITY": "granularity=fine,compact,1,0"}


def with_common(function: Command) -> Command:
    """The command with its own options and those of `Common`; other arguments are refused."""
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    asked = with_options(function, [context])

    @functools.wraps(asked)
    def command(ctx: typer.Context, **given: Any) -> None:
        refuse_extra(ctx.args)
        if given["mkl"]:
            intel_openmp()
        asked(**given)

    return command


def intel_openmp() -> bool:
    """Set ParaDnn's values for Intel OpenMP if the user has set none; False if torch is loaded already.

    A torch with GNU's OpenMP ignores them.
    """
    if "torch" in sys.modules:  # and its threads have started
        return False
    for name, value in KMP.items():
        os.environ.setdefault(name, value)
    return True


def refuse_extra(arguments: Sequence[str]) -> None:
    """Raise InputError for arguments that are not options; flags of a TPU get their own message."""
    for argument in arguments:
        option = argument.partition("=")[0]
        name = option.lstrip("-").replace("-", "_")
        text = f"argument {argument!r}: unexpected; see --help"
        if argument.startswith("-") and name in TPU_FLAGS:
            text = f"--{name}: is for TPUs on Google's cloud, which are not supported; leave it out"
        elif argument.startswith("-"):
            text = f"unknown option: {option}; see --help"
        raise InputError(text)


# ---- the families ----


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


@app.command(
    "fc",
    context_settings=EXTRA,
    epilog=examples(
        "neuralpower paradnn fc --layers 8 --nodes 1024 --batch-size 64",
        "neuralpower paradnn fc --benchmark --predictor nvidia-t4 --out sweeps/fc",
    ),
)
@with_common
def fully_connected(asked: Dense, common: Common) -> None:
    """Fully connected networks."""
    given = {**vars(asked)}
    for name, size in {"layers": 4, "batch_size": 128}.items() if asked.tf_defaults else ():
        given[name] = size if given[name] is None else given[name]
    _run("fc", given, common)


@app.command(
    "cnn",
    context_settings=EXTRA,
    epilog=examples(
        "neuralpower paradnn cnn --blocks 2 --filters 32 --batch-size 8",
        "neuralpower paradnn cnn --sample 20 --time-budget 20m --out sweeps/cnn",
    ),
)
@with_common
def convolutional(asked: Images, common: Common) -> None:
    """Convolutional networks: residual and bottleneck blocks."""
    given = {**vars(asked)}
    if asked.resnet_layers is not None:
        given["blocks"] = _equal_blocks(asked.resnet_layers, asked.blocks)
    _run("cnn", given, common)


@app.command(
    "rnn",
    context_settings=EXTRA,
    epilog=examples(
        "neuralpower paradnn rnn --cell gru --length 50 --batch-size 64",
        "neuralpower paradnn rnn --grid --device cuda:0 --dtype f32,bf16",
    ),
)
@with_common
def recurrent(asked: Texts, common: Common) -> None:
    """Recurrent language models: plain, LSTM and GRU cells."""
    sizes_asked, text = {**vars(asked)}, asked.input_size
    if text is not None:
        sizes = _numbers("input_size", text, 3)
        for name, size in zip(("length", "vocabulary", "embed"), sizes, strict=True):
            if sizes_asked[name] not in (None, size):
                both = f"input_size {text!r} and --{name} {sizes_asked[name]}"
                raise InputError(f"{both}: they differ; give only one")
            sizes_asked[name] = size
    _run("rnn", sizes_asked, common)


def _run(family: str, given: Mapping[str, Any], common: Common) -> None:
    """Run one point, or the sweep around it; without a kind, the usual one, or all in a sweep."""
    from neuralpower.suites.paradnn.points import FAMILIES, Point
    from neuralpower.suites.paradnn.terminal import run

    known, kind = FAMILIES[family], given["kind"]
    sizes = {name: usual if given[name] is None else given[name] for name, usual in known.defaults.items()}
    run(Point.of(family, kind or USUAL[family], sizes), (kind,) if kind else known.swept_kinds, common)


def _numbers(name: str, text: str, count: int) -> list[int]:
    try:
        found = [whole_number(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != count or min(found) < 0:
        raise InputError(f"{name} {text!r}: write {count} whole numbers with commas between them")
    return found


def _equal_blocks(text: str, blocks: int | None) -> int:
    """The number of blocks of each group; raises InputError if they differ."""
    numbers = {*_numbers("resnet_layers", text, 4), *([] if blocks is None else [blocks])}
    if len(numbers) > 1:
        given = f"resnet_layers {text!r}{'' if blocks is None else f' and --blocks {blocks}'}"
        other = "zoo:paradnn_cnn?blocks=[3,4,6,3] for `neuralpower predict` or `profile`"
        rule = f"all groups need the same number of blocks; for another network use the MODEL {other}"
        raise InputError(f"{given}: {rule}")
    return numbers.pop()
