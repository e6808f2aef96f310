"""Parse the values of options: lists, durations, shapes, phases, recipes."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.ask import texts
from neuralpower.dtypes import full_name
from neuralpower.errors import InputError, ModelError, NeuralPowerError
from neuralpower.files.paths import check_read, is_folder, is_there

if TYPE_CHECKING:
    from neuralpower.learn.predictor import Predictor

WAY_OUT = "; the inputs that were made do not fit"  # how the message of a failed forward pass continues
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
dtype = full_name


def check_named(given: Sequence[str], what: str) -> None:
    """Raise InputError if one of several names is empty; `what` is the noun for them."""
    if not all(name.strip() for name in given):
        raise InputError(f"{list(given)!r:.200}: a name of a {what} is empty; write a name, or leave it out")


def duration_s(text: str, what: str = "time budget") -> float:
    """Seconds of "90", "90s", "20m", "1.5h"; raises InputError, which names `what`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smh]?)", text.strip().lower())
    seconds = float(match.group(1)) * SECONDS[match.group(2)] if match else 0.0
    if not 0 < seconds < math.inf:
        raise InputError(f"{what} {text!r}: write a positive number with s, m or h, such as 20m")
    return seconds


def shard(text: str | None) -> tuple[int, int]:
    """(2, 8) for "2/8", the second of eight; (1, 1) for nothing. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,18})/([0-9]{1,18})", ("1/1" if text is None else text).strip())
    if not match or not 1 <= int(match.group(1)) <= int(match.group(2)):
        raise InputError(f"shard {text!r}: write I/N with I from 1 to N, such as 2/8")
    return int(match.group(1)), int(match.group(2))


@contextlib.contextmanager
def batch_apart(given: Mapping[str, Any]) -> Iterator[None]:
    """Say how to write a batch, if a network fails within on an input shape that begins with one.

    Args:
        given: a command's options by name.

    Raises:
        ModelError: the error within, with that advice where the network runs with the batch apart.
    """
    try:
        yield
    except ModelError as error:
        text, model = given.get("input_shape"), given.get("model")
        sizes = (texts.shape(text) or ()) if isinstance(text, str) else ()
        what, fails, _ = str(error).partition(WAY_OUT)
        if not fails or len(sizes) < texts.IMAGES or not isinstance(model, str):
            raise
        batch, *one = sizes
        if not _runs(model, batch, tuple(one), given.get("autocast")):
            raise
        way = f"--batch-size {batch} --input-shape {'x'.join(map(str, one))}"
        raise ModelError(f"{what}; the first size of {text} is the batch: write {way}") from error


def _runs(model: str, batch: int, sizes: tuple[int, ...], autocast: str | None) -> bool:
    """Whether a network runs with a batch of inputs of these sizes. Imports torch."""
    from neuralpower.networks.sources import InputRequest, resolve
    from neuralpower.trace.operators.casts import cast_dtype
    from neuralpower.trace.tracer import trace

    try:
        source = resolve(model)
        module = source.build()
        inputs = source.inputs(module, InputRequest(batch, None, sizes), "meta")
        cast = None if autocast is None else cast_dtype(autocast)
        trace(module, inputs.args, inputs.kwargs, autocast=cast)
    except NeuralPowerError:
        return False
    return True


def check_batch_size(asked: int | None) -> None:
    """Raise InputError for a size below 1."""
    if asked is not None and asked < 1:
        raise InputError(f"batch size {asked}: must be 1 or more; choose --batch-size 1")


def usual_dtype(model: str, trained: Predictor | None = None, options: Any = None, run: str = "") -> str:
    """The requested dtype, else that in which a model was published, or in which run engine serves it.

    Float32 where none is known. If the predictor's device does not have it, use the nearest dtype. A note
    on stderr says so. Raises ModelError.
    """
    from neuralpower.cli.output import tell
    from neuralpower.prediction.request import dtype_for

    found, notes = dtype_for(model, options, trained, run)
    for note in notes:
        tell(f"Note: {note}")
    return found


def predictor(name: Any, device: Any = None, dtype: Any = None) -> Predictor:
    """The predictor of that name or file, on the named device, else this machine's.

    A device without a predictor's name gets the best predictor for it. Raises InputError, also if both
    name a device, or the device lacks the dtype. Imports torch.
    """
    from neuralpower.learn.files.predictor_lookup import chosen

    return chosen(name or None, device, dtype and full_name(str(dtype)))


def check_plot(file: Path | None) -> None:
    """Raise InputError if a picture cannot be drawn or written."""
    from neuralpower.report import charts

    if file is not None:
        charts.check_plot(file)
        check_file(file, "page.html")


def check_memory_picture(file: Path | None, alone: bool) -> None:
    """Raise InputError if memory over time cannot be drawn or written; `alone`: on one device."""
    from neuralpower.report.results import memory_pictures

    if file is None:
        return
    if not alone:
        raise InputError(f"--memory-picture {file}: draws one device's memory; leave it out, or the layout")
    memory_pictures.check_memory_picture(file)
    check_file(file, "memory.html")


def check_file(file: Path | None, example: str) -> None:
    """Raise InputError if a file cannot be written: call it before long work. Imports numpy."""
    from neuralpower.files.atomic import check_place

    if file is not None and (is_folder(file) or not is_there(file)):
        check_place(file, example)
    elif file is not None:  # it can be a device, such as /dev/stdout
        check_read(file)
