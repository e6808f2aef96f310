"""`neuralpower paradnn`: run or predict parameterised networks, one at a time or as a sweep.

The three families share the options of `Common`, under their names here and in older programs.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from neuralpower.cli.commands import Command, examples, with_options
from neuralpower.errors import InputError, whole_number
from neuralpower.suites.paradnn import options
from neuralpower.suites.paradnn.options import Common, Dense, Images, Texts

HELP = "ParaDnn's networks with sizes for parameters (Wang, Wei, Brooks, MLSys 2020)"
app = typer.Typer(name="paradnn", no_args_is_help=True, help=f"{HELP}: run, swept, predicted, compared.")
app.add_typer(options.app)
EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}  # refused with a reason
TPU_FLAGS = (
    "use_tpu tpu tpu_name tpu_zone gcp_project master num_shards num_cores iterations iterations_per_loop "
    "model_dir data_dir skip_host_call transpose_input infeed_threads tpu_job_name"
).split()
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


def _run(family: str, sizes_asked: Mapping[str, Any], common: Common) -> None:
    """Run one point, or the sweep around it; without a kind, the usual one, or all in a sweep."""
    from neuralpower.suites.paradnn.points import FAMILIES, Point
    from neuralpower.suites.paradnn.terminal import run

    known, kind = FAMILIES[family], sizes_asked["kind"]
    told = {name: size for name, size in sizes_asked.items() if size is not None}
    sizes = {name: told.get(name, usual) for name, usual in known.defaults.items()}
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
