"""The options that a run of ParaDnn's networks has, whatever its family."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from typer import Option

from neuralpower.cli.commands import OptionGroup
from neuralpower.errors import InputError, unknown

Size = int | None
Text = str | None


class Common(OptionGroup):
    """The options of a run, whatever its networks."""

    benchmark: Annotated[bool, Option("-b", "--benchmark", help="Every batch, input and output size.")] = (
        False
    )
    grid: Annotated[bool, Option("--grid", help="Every point of the paper's sweep.")] = False
    sample: Annotated[Size, Option(help="So many points of the sweep, drawn at random.")] = None
    seed: Annotated[int, Option(help="Of the sample.")] = 0
    use_gpu: Annotated[int, Option("--use_gpu", "--use-gpu", help="1: cuda:0.")] = 0
    device: Annotated[Text, Option(help="cpu, or cuda:0.")] = None
    input_type: Annotated[
        str,
        Option("--input_type", "--data_type", "--dtype", help="f16, bf16, f32, f64; of a sweep several."),
    ] = "f32"
    mode: Annotated[str, Option(help="train or infer.")] = "train"
    optimizer: Annotated[str, Option(help="rms, sgd, momentum or adam.")] = "rms"
    rmsprop: Annotated[
        str, Option("--rmsprop-compat", help="paradnn, tensorflow, ifarm, pytorch or keras.")
    ] = "paradnn"
    amp: Annotated[bool, Option("--amp", help="Float32 weights under autocast to the input type.")] = False
    tf32: Annotated[bool, Option("--tf32/--no-tf32", help="Products of float32 in TF32, on CUDA.")] = False
    warmup_steps: Annotated[
        int, Option("--warmup_steps", "--warmup-steps", help="Before the timed ones.")
    ] = 300
    steps: Annotated[int, Option("--train_steps", "--train-steps", "--steps", help="Timed steps.")] = 100
    mkl: Annotated[int, Option(help="1: Intel OpenMP's blocking time and affinity.")] = 1
    intra: Annotated[
        int, Option("--intra", "--num_intra_threads", help="Threads of an operator; 0: cores.")
    ] = 0
    inter: Annotated[int, Option("--inter", "--num_inter_threads", help="Operators at a time; 0: one.")] = 0
    time_budget: Annotated[Text, Option("--time-budget", help="Of a sweep, such as 20m.")] = None
    point_budget: Annotated[Text, Option("--point-budget", help="Of a point: fewer steps, then.")] = None
    shard: Annotated[Text, Option(help="I/N: this job's share of N, in a folder of its own.")] = None
    slurm: Annotated[Size, Option(help="Print an array of so many jobs for sbatch, and end.")] = None
    again: Annotated[Text, Option(help="States to try once more, such as oom,failed.")] = None
    predict: Annotated[bool, Option("--predict", help="Fill the table from a predictor; nothing is run.")] = (
        False
    )
    predictor: Annotated[Text, Option(help="Name or file; this machine's by default.")] = None
    out: Annotated[Path | None, Option(help="Folder of a sweep; paradnn/FAMILY-DEVICE.")] = None
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
