"""Options of `neuralpower paradnn fc`, `cnn` and `rnn`: those of a run, and the sizes of each family."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from typer import Option

from neuralpower.ask.panels import INPUT, MEASURING, OUTPUT, SPACE, TARGET
from neuralpower.ask.words import PARADNN_MODES, PARADNN_OPTIMIZERS, RAN_PHASES, RMSPROPS
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import OptionGroup
from neuralpower.cli.known_names import checked_predictor, completed_places, completed_predictors
from neuralpower.errors import InputError, unknown

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
