"""The values that options accept: listed by --help, completed by the shell, checked without torch.

The lists are copies, since the modules that use them import torch; a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer import Option

from neuralpower.dtypes import AUTOCAST_DTYPES, DTYPES, MEASURABLE, full_name
from neuralpower.errors import unknown

PHASES = ("forward", "training", "prefill", "decode", "generate", "backward")
FITTED_PHASES = ("forward", "training", "prefill", "decode", "generate")
EVALUATED_PHASES = ("forward", "training", "prefill", "decode")
RAN_PHASES = ("forward", "training")  # of networks that run here under a profiler
COLLECTED_PHASES = ("forward", "backward", "optimizer")
SCHEDULES = ("1f1b", "gpipe", "interleaved")
ZERO = ("1", "2", "3")
RANKED = ("throughput", "latency", "cost")  # what layouts are ranked by
RUNS = ("eager", "graph", "compile", "engine")
VIEWS = ("layer", "kind", "module", "tree")
ROWS = ("layer", "module", "kind", "operator")
SORTS = ("runtime_s", "flops", "bytes", "parameters", "memory", "calls", "order")
UNITS = ("flop", "mac")
CONVENTIONS = ("matmul", "all-ops", "thop", "fvcore", "pytorch-api")
OPTIMIZERS = tuple(
    """
    sgd momentum rmsprop adam adamw adagrad sparseadam adadelta adamax asgd nadam radam rprop adafactor
    transformers-adafactor muon lion adam8bit adamw8bit lion8bit pagedadamw pagedadamw8bit pagedlion8bit
    """.split()
)
TABLES = tuple(  # of a dataset: layer kinds, and whole networks
    """
    activation attention collective conv1d conv2d conv3d conv_transpose2d elementwise embedding experts fused
    grouped latent_attention linear linear_attention matmul movement norm optimizer pool2d pool3d recurrent
    reduction scan softmax network
    """.split()
)
SCORES = ("latency", "energy", "memory")
LEARNERS = ("hybrid", "lasso")
BASELINES = ("neuralpower", "roofline")  # that measured networks are compared with, besides predictors
PRESETS = ("quick", "standard", "full", "gaps")
EXECUTORS = ("local", "ray")
BACKENDS = ("gloo", "nccl")  # that exchange between devices
SUMMARIES = ("exploration", "weak", "strong", "statistics", "time", "all")
LAB_STEPS = ("all", "train", "profile", "report", "compare")
TASKS = ("language", "encoder", "text-to-text", "vision", "vision-language", "speech", "zoo")
FORMATS = ("table", "json", "csv", "md", "html")
USUAL_DTYPES = ("float32", "bfloat16", "float16", "float64")  # that --help names
WEIGHTS = tuple("int4 int8 w8a8 fp8 nvfp4 mxfp4 nf4 awq gptq q4_k_m q8_0".split())
PARADNN_OPTIMIZERS = ("rms", "sgd", "momentum", "adam")
RMSPROPS = ("paradnn", "tensorflow", "ifarm", "pytorch", "keras")
PARADNN_MODES = {"train": "training", "infer": "forward", "inference": "forward"}
HISTORIC = {"step": "training"}  # names in older programs
LONGEST = 24  # longest list, in letters, that --help shows as the option's value

Words = Sequence[str] | Callable[[], Sequence[str]]


def choice(
    what: str,
    words: Words,
    *names: str,
    help: str = "",
    default: str = "",
    several: bool = False,
    meant: Callable[[str], str | None] = lambda text: None,
    **how: Any,
) -> Any:
    """An option whose value is one of `words`, or `several` of them with commas.

    Args:
        what: the noun for a word, in error messages.
        words: all values, or a function that lists them on demand.
        names: the option's names, such as "--phase".
        help: the help text; a list of words that is too long for the value column is added to it.
        default: a sentence that says which value holds by default.
        several: whether the option accepts several words with commas.
        meant: maps another spelling, such as an alias, to a word; returns None for an unknown one.
        how: further arguments of typer's `Option`; `kind=Argument` makes an argument.
    """
    listed = () if callable(words) else tuple(words)
    shown = "|".join(listed)
    short = bool(listed) and len(shown) <= LONGEST and not several and "metavar" not in how
    how.setdefault("metavar", f"<{shown}>" if short else f"<{what.split()[0]}>")
    if listed and not short:
        help = f"{help.rstrip('.')}: {', '.join(listed)}."
    help = f"{help} {default}".strip()

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{word}" for word in _listed(words) if word.startswith(last)]

    def check(context: typer.Context, value: Any) -> Any:
        if value is None or context.resilient_parsing:
            return value
        return [*map(parted, value)] if isinstance(value, (list, tuple)) else parted(str(value))

    def parted(text: str) -> str:
        if not several:
            return one(text)
        return ",".join(one(part.strip()) for part in text.split(",")) if text.strip() else text

    def one(text: str) -> str:
        if not text or text in _listed(words):
            return text
        found = meant(text)
        if found is None:
            raise unknown(what, text, _listed(words))
        return found

    kind = how.pop("kind", Option)
    return kind(*names, help=help, callback=check, autocompletion=complete, **how)


def _listed(words: Words) -> Sequence[str]:
    return words() if callable(words) else words


def power_meters() -> tuple[str, ...]:
    """Names of power meters, and the values for any meter and for none."""
    from neuralpower.measure.meters import CHOICES, METERS

    return (*CHOICES, *METERS)


def dtype_choice(help: str, *names: str, default: str = "", several: bool = False, **how: Any) -> Any:
    """An option for dtypes, in any of their spellings; `default` as in `choice`."""
    usual = ", ".join(USUAL_DTYPES)
    return choice(
        "dtype",
        lambda: MEASURABLE,
        *names,
        help=f"{help.rstrip('.')}: {usual}, tf32, ...",
        default=default,
        several=several,
        meant=lambda text: text if full_name(text) in DTYPES else None,
        metavar="<dtype,...>" if several else "<dtype>",
        **how,
    )


def cast_choice(help: str, **how: Any) -> Any:
    """An option for the dtypes in which autocast computes products."""
    return choice(
        "dtype of an autocast",
        AUTOCAST_DTYPES,
        help=help,
        meant=lambda text: text if full_name(text) in AUTOCAST_DTYPES else None,
        **how,
    )


def measured_choice(help: str) -> Any:
    """An option for the dtypes that a collection measures, with commas."""
    return choice(
        "dtype",
        MEASURABLE,
        help=help,
        several=True,
        meant=lambda text: text if full_name(text) in MEASURABLE else None,
    )


def optimizer_choice(help: str, **how: Any) -> Any:
    """An option for an optimizer, with its implementation behind a colon: adamw:fused."""
    # with its states given, an optimizer may have any name
    return choice("optimizer", OPTIMIZERS, help=help, meant=lambda text: text, metavar="<name>", **how)


def weights_choice(help: str, **how: Any) -> Any:
    """An option for the quantisation of weights; groups and rarer names are checked later."""
    return choice("weights", WEIGHTS, help=help, meant=lambda text: text, **how)
