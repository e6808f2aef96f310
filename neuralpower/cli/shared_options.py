"""Options that several commands share: single ones, and groups of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from neuralpower.cli import parsing
from neuralpower.cli.commands import OptionGroup
from neuralpower.errors import InputError

if TYPE_CHECKING:
    from neuralpower.learn import predictor
    from neuralpower.networks.phases import Phase
    from neuralpower.trace.recipe import Recipe

Model = Annotated[
    str,
    Argument(
        help="transformers:bert, a folder with config.json, zoo:alexnet, file.py:function, a .pt2 file, ..."
    ),
]
Predictor = Annotated[str | None, Option(help="Name or file; this machine's by default.")]
Device = Annotated[
    str | None,
    Option(
        help="h100, RTX 4090, ... (`devices --specs`), or a spec sheet; with commas where several will do."
    ),
]
BatchSize = Annotated[
    int | None,
    Option(help="Samples in a batch; by default 1, or as many as the network's own inputs hold."),
]
InputShape = Annotated[str | None, Option(help="Of one sample, such as 3x224x224.")]
Dtype = Annotated[str, Option(help="Of weights and inputs.")]
OwnDtype = Annotated[
    str | None,
    Option(help="Of weights and inputs; by default that of a published model (`models`), else float32."),
]
Run = Annotated[
    str | None,
    Option(
        help="eager, graph (CUDA graphs), compile (fused as by torch.compile) or engine (as vLLM serves); by "
        "default engine for a language model's phases on a GPU, else eager."
    ),
]
Weights = Annotated[
    str | None,
    Option(
        help="How they are quantised: int4, int8, w8a8, fp8, nvfp4, mxfp4, nf4, awq or gptq, with a group as "
        "in int4:64, or llama.cpp's q4_k_m, q8_0, ...; by default as the checkpoint has them."
    ),
]
Plot = Annotated[
    Path | None,
    Option("--plot", "--html", help="Draw it: a page FILE.html, or a picture FILE.png or FILE.svg."),
]
Context = Annotated[int | None, Option(help="decode: tokens in the cache before the step.")]
TrustCode = Annotated[
    bool, Option("--trust-code", help="Run models of the file that are code: functions, .pt2.")
]
Depth = Annotated[int, Option(help="Names of a module's path that --by module tells apart.")]


class Sizes(OptionGroup):
    """The inputs of a network."""

    batch_size: BatchSize = None
    seq_len: Annotated[int | None, Option(help="Tokens per sample.")] = None
    input_shape: InputShape = None
    dtype: OwnDtype = None
    weights: Weights = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one sample; raises InputError."""
        return parsing.shape(self.input_shape)

    @property
    def full_dtype(self) -> str:
        """Torch's name of the dtype; float32 where none is given."""
        return parsing.dtype(self.dtype or "float32")

    def settle(self, model: str, learnt: predictor.Predictor | None = None) -> None:
        """Take the dtype in which the model was published, where none was given; raises ModelError."""
        if self.dtype is None:
            vars(self)["dtype"] = parsing.usual_dtype(model, learnt)


class Tokens(OptionGroup):
    """The tokens that a phase of a language model begins with, and makes."""

    context: Context = None
    prompt: Annotated[int | None, Option(help="prefill, generate: tokens of the prompt.")] = None
    new_tokens: Annotated[int | None, Option(help="generate: tokens to make after the prompt.")] = None
    lengths: Annotated[
        str | None,
        Option(
            help="Tokens of each request, such as 812,95,4076, or a file with a number a line: prompts of a "
            "prefill or a generation, contexts of a decode step."
        ),
    ] = None

    def phase(self, name: str) -> Phase:
        """The phase of that name; raises InputError. Imports torch."""
        lengths = parsing.lengths(self.lengths)
        return parsing.phase(name, self.context, self.prompt, self.new_tokens, lengths)

    def check_batch(self, batch_size: int | None) -> None:
        """Raise InputError for a batch size beside lengths that are not as many."""
        lengths = parsing.lengths(self.lengths)
        if lengths is not None and batch_size not in (None, len(lengths)):
            raise InputError(
                f"--batch-size {batch_size} and {len(lengths)} lengths: a batch has one for each request; "
                "leave --batch-size out"
            )


class Training(OptionGroup):
    """How a network is trained."""

    optimizer: Annotated[
        str,
        Option(
            help="Of training: sgd (with momentum), rmsprop, adam, adamw, adagrad or sparseadam; also "
            "adamw:foreach, adamw:fused."
        ),
    ] = "adamw"
    accumulation: Annotated[int, Option(help="Micro-batches of --batch-size in a training step.")] = 1

    def recipe(self, checkpointing: bool, phase: str) -> Recipe:
        """The recipe of these options; raises InputError, also in another phase. Imports torch."""
        from neuralpower.trace.recipe import RECIPE, TRAINING, Recipe

        name, _, way = self.optimizer.partition(":")
        name = "sgd" if name == "momentum" else name  # the name that `fit` has for it
        found = Recipe(name, way, self.accumulation, checkpointing)
        if phase != TRAINING and found != RECIPE:
            text = f"belong to phase training, not to {phase}; leave them out"
            raise InputError(f"{found}: optimizer, accumulation and checkpointing {text}")
        return found
