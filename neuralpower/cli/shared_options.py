"""Options that several commands share: single ones, and groups of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from neuralpower.cli import parsing
from neuralpower.cli.choices import (
    FORMATS,
    HISTORIC,
    RUNS,
    cast_choice,
    choice,
    dtype_choice,
    optimizer_choice,
    weights_choice,
)
from neuralpower.cli.commands import OptionGroup
from neuralpower.cli.known_names import (
    checked_device,
    checked_fitted,
    checked_model,
    checked_place,
    checked_predictor,
    completed_devices,
    completed_models,
    completed_places,
    completed_predictors,
)
from neuralpower.cli.panels import INPUT, LANGUAGE, OUTPUT, TARGET, TRAINING
from neuralpower.errors import InputError

if TYPE_CHECKING:
    from neuralpower.learn import predictor
    from neuralpower.networks.phases import Phase
    from neuralpower.trace.recipe import Recipe

Model = Annotated[
    str,
    Argument(
        help="A name of `models`, zoo:resnet50, transformers:bert, a folder with config.json, "
        "file.py:function, a .pt2 file, ...",
        callback=checked_model,
        autocompletion=completed_models,
    ),
]


def _target(help: str, check: Callable[..., Any], complete: Callable[[str], list[str]]) -> Any:
    """An option that names a predictor, or a device to predict."""
    return Option(help=help, callback=check, autocompletion=complete, rich_help_panel=TARGET)


Predictor = Annotated[
    str | None,
    _target(
        "Name or file; default: for --device, or for this machine.",
        checked_predictor,
        completed_predictors,
    ),
]
Device = Annotated[
    str | None,
    _target(
        "h100, rtx-4090, ... (`devices --specs`), a spec sheet, or cpu: this machine.",
        checked_device,
        completed_devices,
    ),
]
NoCache = Annotated[
    bool,
    Option("--no-cache", help="Compute again; ignore the cached answer.", rich_help_panel=OUTPUT),
]
FittedDevice = Annotated[
    str | None,
    _target(
        "h100, rtx-4090, ..., a spec sheet, or cpu: this machine; a size (24GB); or 8xh100-sxm.",
        checked_fitted,
        completed_devices,
    ),
]
Predictors = Annotated[
    str | None,
    _target(
        "Names or files, with commas; default: for --device, or for this machine.",
        checked_predictor,
        completed_predictors,
    ),
]
Devices = Annotated[
    str | None,
    _target(
        "One or more, with commas: h100, rtx-4090, ... (`devices --specs`), spec sheets, or cpu.",
        checked_device,
        completed_devices,
    ),
]
MeasuredDevice = Annotated[
    str,
    Option(
        help="Device to measure: cpu, cuda or cuda:0.",
        callback=checked_place,
        autocompletion=completed_places,
        rich_help_panel=TARGET,
    ),
]
BatchSize = Annotated[
    int | None,
    Option("--batch-size", "-b", help="Samples in a batch; default: 1, or the network's own."),
]
InputShape = Annotated[str | None, Option(help="Shape of one sample, such as 3x224x224.")]
Dtype = Annotated[str, dtype_choice("Dtype of weights and inputs")]
OwnDtype = Annotated[
    str | None, dtype_choice("Dtype of weights and inputs", default="Default: as published, else float32.")
]
Run = Annotated[
    str | None,
    choice(
        "way to run",
        RUNS,
        help="Way to run",
        default="Default: engine for a language model's phases on a GPU, else eager.",
        metavar="<run>",
        rich_help_panel=TARGET,
    ),
]
Weights = Annotated[
    str | None,
    weights_choice(
        "Quantisation of weights; int4:64 has groups of 64", default="Default: same as the checkpoint."
    ),
]
Plot = Annotated[
    Path | None,
    Option(
        "--plot",
        "--html",
        help="Draw the result: a page FILE.html, or a picture FILE.png or FILE.svg.",
        rich_help_panel=OUTPUT,
    ),
]
MemoryPicture = Annotated[
    Path | None,
    Option(
        help="Draw memory over time: FILE.html, .png, .svg, or .pickle for pytorch.org/memory_viz.",
        rich_help_panel=OUTPUT,
    ),
]
Context = Annotated[int | None, Option(help="decode: tokens in the cache before the step.")]
Prompt = Annotated[int | None, Option(help="prefill, generate: tokens of the prompt.")]
NewTokens = Annotated[int | None, Option(help="generate: tokens to make after the prompt.")]
Optimizer = Annotated[
    str, optimizer_choice("Optimizer: adamw, adamw:fused, sgd, momentum (sgd with it), adafactor, muon, ...")
]
OptimizerStates = Annotated[
    str | None,
    Option(help="Numbers that an optimizer of any other name keeps per parameter: 2, or 2:bfloat16."),
]
Lora = Annotated[
    str | None,
    Option(
        help="Train adapters of this rank alone: 16, or 16:q_proj,v_proj.",
        rich_help_panel=TRAINING,
    ),
]
Autocast = Annotated[
    str | None,
    cast_choice("Cast products to this dtype, as torch.autocast does", rich_help_panel=TRAINING),
]
Accumulation = Annotated[int, Option(help="Micro-batches of --batch-size in a step.")]
Checkpointing = Annotated[
    bool, Option("--checkpointing", help="Recompute blocks instead of keeping activations.")
]
MasterWeights = Annotated[
    bool,
    Option(
        "--master-weights",
        help="Keep float32 masters, gradients and states of 16-bit weights.",
        rich_help_panel=TRAINING,
    ),
]
TrustCode = Annotated[
    bool, Option("--trust-code", help="Run models of the file that are code: functions, .pt2.")
]
Depth = Annotated[int, Option(help="Module nesting depth for --by module.")]
Top = Annotated[int, Option(min=0, help="Rows to print; 0 for all.")]
AsJson = Annotated[bool, Option("--json", help="The same as --format json.")]
Format = Annotated[
    str | None,
    choice(
        "format", FORMATS, "--format", help="Output format; default: by the ending of --out, else a table."
    ),
]
Out = Annotated[Path | None, Option("--out", "-o", help="Write the result to this file instead.")]


def phase_choice(words: tuple[str, ...], help: str, **how: Any) -> Any:
    """An option for a phase of a network."""
    return choice("phase", words, help=help, meant=HISTORIC.get, **how)


class Sizes(OptionGroup):
    """Options: the inputs of a network."""

    panel = INPUT

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

    def settle(self, model: str, trained: predictor.Predictor | None = None) -> None:
        """Use the model's published dtype if none is given; raises ModelError."""
        if self.dtype is None:
            vars(self)["dtype"] = parsing.usual_dtype(model, trained)


class Tokens(OptionGroup):
    """Options: the tokens with which a phase of a language model begins, and those it makes."""

    panel = LANGUAGE

    context: Context = None
    prompt: Prompt = None
    new_tokens: NewTokens = None
    lengths: Annotated[
        str | None,
        Option(
            help="Tokens of each request (prompt, or context of a decode): 812,95,4076, or a file of numbers."
        ),
    ] = None

    def phase(self, name: str) -> Phase:
        """The phase of that name; raises InputError. Imports torch."""
        lengths = parsing.lengths(self.lengths)
        return parsing.phase(name, self.context, self.prompt, self.new_tokens, lengths)

    def check_batch(self, batch_size: int | None) -> None:
        """Raise InputError if the batch size differs from the number of lengths."""
        lengths = parsing.lengths(self.lengths)
        if lengths is not None and batch_size not in (None, len(lengths)):
            raise InputError(
                f"--batch-size {batch_size} and {len(lengths)} lengths: each request has one length; "
                "leave --batch-size out"
            )


class Training(OptionGroup):
    """Options: how a network is trained."""

    panel = TRAINING

    optimizer: Optimizer = "adamw"
    optimizer_states: OptimizerStates = None
    accumulation: Accumulation = 1
    checkpointing: Checkpointing = False
    master_weights: MasterWeights = False

    def recipe(self, phase: str) -> Recipe:
        """The recipe of these options; raises InputError, also without training. Imports torch."""
        from neuralpower.optimizers.registry import States
        from neuralpower.trace.recipe import RECIPE, TRAINING, Recipe

        name, _, way = self.optimizer.partition(":")
        states = None if self.optimizer_states is None else States.parsed(self.optimizer_states)
        how: dict[str, Any] = {"masters": self.master_weights, "states": states}
        found = Recipe(name, way, self.accumulation, self.checkpointing, **how)
        if phase != TRAINING and found != RECIPE:
            text = f"belong to phase training, not to {phase}; leave them out"
            raise InputError(f"{found}: optimizer, accumulation, checkpointing and masters {text}")
        return found


class Output(OptionGroup):
    """Options: the form of the result, and its file."""

    panel = OUTPUT

    form: Format = None
    out: Out = None
    as_json: AsJson = False
