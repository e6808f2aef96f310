"""Options of a run of ParaDnn's networks, for all families."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from typer import Option

from neuralpower.cli.choices import PARADNN_MODES, PARADNN_OPTIMIZERS, RAN_PHASES, RMSPROPS, choice
from neuralpower.cli.commands import OptionGroup
from neuralpower.cli.known_names import checked_predictor, completed_places, completed_predictors
from neuralpower.cli.panels import MEASURING, OUTPUT, SPACE, TARGET
from neuralpower.errors import InputError, unknown

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
