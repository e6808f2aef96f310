"""Parse the values of options: lists, durations, shapes, phases, recipes."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.devices.memory_size import reading
from neuralpower.dtypes import full_name
from neuralpower.errors import InputError, ModelError, NeuralPowerError, whole_number
from neuralpower.files.paths import check_read, check_regular, is_folder, is_there

if TYPE_CHECKING:
    from neuralpower.learn.predictor import Predictor
    from neuralpower.networks.phases import Phase

OUTER_COMMA = re.compile(r",(?![^\[]*\])")
IMAGES, CHANNELS = 4, (1, 3)  # the number of sizes of a batch of images, and of a single image's channels
WAY_OUT = "; neuralpower cannot make inputs that fit"  # how the message of a failed forward pass continues
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
MOST_SIZES = 10_000  # of one dimension of a grid
dtype = full_name


def names(text: str | None, what: str) -> tuple[str, ...] | None:
    """("a", "b") for "a,b", None for None; a comma in brackets belongs to a list in a model's override.

    Raises InputError, which names `what`, if there is no name between the commas.
    """
    if text is None:
        return None
    found = tuple(part.strip() for part in OUTER_COMMA.split(text) if part.strip())
    if not found:
        raise InputError(
            f"{what} {text!r}: contains no name; write names with commas, or leave the option out"
        )
    return found


def sizes(text: str, what: str) -> tuple[int, ...]:
    """(1, 2, 4, 8) for "1:8", (4, 6, 8) for "4:8:2" (in steps), (1, 3) for "1,3"; raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})(?::([0-9]{1,18})(?::([0-9]{1,18}))?)?\s*", part)
        if not match or int(match.group(1)) < 1:
            how = "write sizes such as 1,8,32, a doubling 1:256 or steps 64:512:64"
            raise InputError(f"{what} {text!r}: {how}")
        low, high, step = (
            int(match.group(1)),
            int(match.group(2) or match.group(1)),
            int(match.group(3) or -1),
        )
        if high < low or match.group(3) and step < 1:
            how = "the end must not be below the start, nor a step below 1; swap them"
            raise InputError(f"{what} {part!r}: {how}")
        if step < 0:
            found += [low << n for n in range((high // low).bit_length())]
        elif (high - low) // step >= MOST_SIZES:
            raise InputError(f"{what} {part!r}: more than {MOST_SIZES} sizes; take larger steps")
        else:
            found += range(low, high + 1, step)
    return tuple(dict.fromkeys(found))


def check_named(given: Sequence[str], what: str) -> None:
    """Raise InputError if one of several names is empty; `what` is the noun for them."""
    if not all(name.strip() for name in given):
        raise InputError(f"{list(given)!r:.200}: a name of a {what} is empty; write a name, or leave it out")


def numbers(text: str, what: str, example: str) -> tuple[int, ...]:
    """(1, 16, 64) for "1,16,64"; raises InputError, which names `what`."""
    try:
        return tuple(whole_number(name) for name in names(text, what) or ())
    except ValueError:
        raise InputError(f"{what} {text!r}: write whole numbers with commas, such as {example}") from None


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


def shape(text: str | None) -> tuple[int, ...] | None:
    """(3, 224, 224) for "3x224x224", "3,224,224" and "(3, 224, 224)"; raises InputError.

    A leading 1 before the three sizes of an image of 1 or 3 channels is a batch, and is removed.
    """
    if text is None:
        return None
    plain = text.strip().lower().removeprefix("(").removesuffix(")").rstrip(", ")
    written = re.fullmatch(r"[0-9]{1,18}(\s*[x,]\s*[0-9]{1,18})*", plain)
    sizes = tuple(int(size) for size in re.findall(r"[0-9]+", plain)) if written else ()
    if not sizes or 0 in sizes:
        raise InputError(f"input shape {text!r}: write positive sizes without the batch, such as 3x224x224")
    return sizes[1:] if len(sizes) == IMAGES and sizes[0] == 1 and sizes[1] in CHANNELS else sizes


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
        sizes = (shape(text) or ()) if isinstance(text, str) else ()
        what, fails, _ = str(error).partition(WAY_OUT)
        if not fails or len(sizes) < IMAGES or not isinstance(model, str):
            raise
        batch, *one = sizes
        if not _runs(model, batch, tuple(one), given.get("autocast")):
            raise
        way = f"--batch-size {batch} --input-shape {'x'.join(map(str, one))}"
        raise ModelError(f"{what}; the first size of {text} is the batch: write {way}") from error


def _runs(model: str, batch: int, sizes: tuple[int, ...], autocast: str | None) -> bool:
    """Whether a network runs with a batch of inputs of these sizes. Imports torch."""
    from neuralpower.networks.sources import InputRequest, resolve
    from neuralpower.trace.casts import cast_dtype
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


def batch_size(model: str, asked: int | None, shape: Sequence[int] | None) -> int:
    """The given batch size, else the network's own; raises InputError. Imports torch."""
    from neuralpower.networks.sources import resolve

    return resolve(model).batch_size(asked, shape) if asked is None else asked


def usual_dtype(model: str, trained: Predictor | None = None, run: str = "") -> str:
    """The dtype in which a model was published, else float32; of run engine, the one that it is served in.

    If the predictor's device does not have it, use the nearest dtype. A note on stderr says so. Raises
    ModelError.
    """
    from neuralpower.cli.output import tell
    from neuralpower.networks.sources.base import published_dtype

    found = published_dtype(model) or "float32"
    if trained is None:
        return found
    from neuralpower.learn.predictor_lookup import nearest_dtype

    nearest = nearest_dtype(trained, found)
    if nearest != found:
        lacks = f"which {trained.name} does not have"
        tell(f"Note: {model} was published in {found}, {lacks}; predicted in {nearest}")
    if not run:
        return nearest
    from neuralpower.prediction.served_type import served_type

    served, notes = served_type(model, nearest, run, trained)
    for note in notes:
        tell(f"Note: {note}")
    return served


def predictor(name: str | None, device: str | None = None, dtype: str | None = None) -> Predictor:
    """The predictor of that name or file, on the named device, else this machine's.

    A device without a predictor's name gets the best predictor for it. Raises InputError, also if both
    name a device, or the device lacks the dtype. Imports torch.
    """
    from neuralpower.learn.predictor_lookup import chosen

    return chosen(name or None, device, dtype)


def lengths(text: str | None) -> tuple[int, ...] | None:
    """(812, 95) for "812,95", or for a file with a number on each line; raises InputError."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9\s,.+-]*", text) or is_there(text):
        return _lengths_in(Path(text))
    return tuple(_length(part, "lengths") for part in text.split(",")) if text.strip() else _no_lengths(text)


def _lengths_in(file: Path) -> tuple[int, ...]:
    """The numbers in a file; raises InputError."""
    check_regular(file)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        way = "choose a text file with a number on each line, or write lengths such as 812,95,4076"
        raise InputError(f"lengths {str(file)!r:.200}: cannot be read ({error}); {way}") from None
    found = [_length(line, f"{file} line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    return tuple(found) or _no_lengths(str(file))


def _length(text: str, where: str) -> int:
    """One length; raises InputError, which names the place `where`."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text) or int(text) < 1:
        raise InputError(f"{where}: {text.strip()!r:.40} is not a length; write whole numbers of 1 or more")
    return int(text)


def _no_lengths(text: str) -> tuple[int, ...]:
    raise InputError(
        f"lengths {text!r:.200}: contains no number; write one for each request, such as 812,95,4076"
    )


def phase(
    name: str,
    context: int | None,
    prompt: int | None = None,
    new_tokens: int | None = None,
    lengths: tuple[int, ...] | None = None,
) -> Phase:
    """The phase; a forward pass for training and backward. Raises InputError. Imports torch."""
    from neuralpower.networks.phases import PHASES, PREDICTED, Phase

    asked = Phase(name, None, context, prompt, new_tokens, lengths)
    asked.check(PREDICTED)  # under the given name, also for backward and training
    return asked if name in PHASES else Phase()


def check_plot(file: Path | None) -> None:
    """Raise InputError if a picture cannot be drawn or written."""
    from neuralpower.report import charts

    if file is not None:
        charts.check_plot(file)
        check_file(file, "page.html")


def check_memory_picture(file: Path | None, alone: bool) -> None:
    """Raise InputError if memory over time cannot be drawn or written; `alone`: on one device."""
    from neuralpower.report import memory_pictures

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


def memory_notes(memory: str | None) -> tuple[str, ...]:
    """A note where --memory may mean another size than the user thinks."""
    note = "" if memory is None else reading(memory)
    return (note,) if note else ()
