"""The options that a run of ParaDnn's networks has, whatever its family."""

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
    """The options of a run, whatever its networks."""

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
    sample: Annotated[Size, Option(help="So many points of the sweep, drawn at random.")] = None
    seed: Annotated[int, Option(help="Seed of the sample.")] = 0
    use_gpu: Annotated[int, Option("--use-gpu", hidden=True)] = 0
    device: Annotated[Text, Option(help="cpu, or cuda:0.", autocompletion=completed_places)] = None
    input_type: Annotated[
        str, Option("--dtype", help="f32, bf16, f16 or f64; of a sweep several, with commas.")
    ] = "f32"
    mode: Annotated[
        str, choice("phase", RAN_PHASES, "--phase", help="What is run", meant=PARADNN_MODES.get)
    ] = "training"
    optimizer: Annotated[str, choice("optimizer", PARADNN_OPTIMIZERS, help="Optimizer")] = "rms"
    rmsprop: Annotated[str, choice("RMSprop", RMSPROPS, "--rmsprop-compat", help="Whose RMSprop")] = "paradnn"
    amp: Annotated[bool, Option("--amp", help="Float32 weights under autocast to the input type.")] = False
    tf32: Annotated[bool, Option("--tf32/--no-tf32", help="Products of float32 in TF32, on CUDA.")] = False
    warmup_steps: Annotated[int, Option("--warmup-steps", help="Steps before the timed ones.")] = 300
    steps: Annotated[int, Option("--steps", help="Timed steps.")] = 100
    mkl: Annotated[int, Option(help="1: Intel OpenMP's blocking time and affinity.")] = 1
    intra: Annotated[int, Option("--intra", help="Threads of an operator; 0: cores.")] = 0
    inter: Annotated[int, Option("--inter", help="Operators at a time; 0: one.")] = 0
    time_budget: Annotated[Text, Option("--time-budget", help="Of a sweep, such as 20m.")] = None
    point_budget: Annotated[Text, Option("--point-budget", help="Of a point: fewer steps, then.")] = None
    shard: Annotated[Text, Option(help="I/N: this job's share of N, in a folder of its own.")] = None
    slurm: Annotated[Size, Option(help="Print an array of so many jobs for sbatch, and end.")] = None
    again: Annotated[Text, Option(help="States to try once more, such as oom,failed.")] = None
    predict: Annotated[bool, Option("--predict", help="Fill the table from a predictor; nothing is run.")] = (
        False
    )
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
    as_json: Annotated[bool, Option("--json", help="A single run's figures as JSON.")] = False
    operators: Annotated[
        bool, Option("--operators", help="A single run's time by kind of operator, too.")
    ] = False

    @property
    def swept(self) -> bool:
        """Whether more than one point is asked for."""
        return self.benchmark or self.grid or self.sample is not None

    @property
    def predicted(self) -> bool:
        """Whether a predictor says the times."""
        return self.predict or self.predictor is not None

    @property
    def place(self) -> str:
        """The device as torch names it; raises InputError."""
        if self.use_gpu not in (0, 1):
            raise InputError(f"use_gpu {self.use_gpu}: 0 is the CPU, 1 the first GPU")
        named = self.device or ("cuda:0" if self.use_gpu else "cpu")
        named = "cuda:0" if named in ("gpu", "cuda") else named
        if not re.fullmatch(r"cpu|cuda:\d+", named):
            raise unknown("device", named, ["cpu", "cuda:0"])
        return named
