"""Errors for users: each is one line with the value, the rule and the way out.

The class decides the exit code of the command line; a caller of the Python API catches `NeuralPowerError`.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral

MOST_SAID = 10_000  # letters that are read of a foreign error's text
MOST_QUOTED = 400  # letters of it that a message quotes
LONGEST, SHOWN = 512, 60  # letters of a word that a message shows whole, and of a longer one
QUOTES = "'\""


class NeuralPowerError(Exception):
    """Base of every error that neuralpower raises on purpose; shown as one line, without a traceback."""

    exit_code = 1


class InputError(NeuralPowerError):
    """An argument, a shape, or a file's content that cannot be used."""

    exit_code = 2


class ModelError(InputError):
    """A network that cannot be found, built or run."""


class FixedSizeError(ModelError):
    """A size that a file does not take, since it was exported for another one."""


class UsersError(ModelError):
    """`error`, raised by a model's code while it did `what`; also exceptions that would end the program."""

    def __init__(self, text: str, error: BaseException | None = None, what: str = "") -> None:
        super().__init__(text)
        self.error, self.what = error, what


class BoundError(ModelError):
    """A network, or its pass, that exceeds a limit which protects the memory."""


class StepError(ModelError):
    """A training step that cannot run on tensors without values."""


class DatasetError(InputError):
    """A dataset that cannot be read, written or used for training."""


class PredictorError(InputError):
    """A predictor file that cannot be used."""


class CoverageError(NeuralPowerError):
    """The coverage of a prediction is below the requested share."""

    exit_code = 3


class DeviceError(NeuralPowerError):
    """A device or a meter that failed while it was used."""

    exit_code = 4


class LostDeviceError(DeviceError):
    """A device that no longer responds: it cannot measure any more."""


class OutOfMemory(DeviceError):  # noqa: N818  # a verdict on a size: a smaller one may do
    """More than the device's memory."""


class PoisonedError(DeviceError):
    """A process whose device context is broken by a call: every later call fails, a new process works."""


class Unmodelled(Exception):  # noqa: N818  # a verdict on a call, not a fault
    """An operator call that a layer kind's fields cannot describe; the text says why."""


def whole_number(text: str) -> int:
    """The number that up to 18 digits from 0 to 9 write, with spaces around it.

    Raises:
        ValueError: anything else, also what `int` takes: digits of other scripts, `1_000`, 5,000 digits.
    """
    if not re.fullmatch(r"\s*[-+]?[0-9]{1,18}\s*", text):
        raise ValueError(f"{text:.40}: is not a whole number")
    return int(text)


def shortened_names(text: str) -> str:
    """A message in which no word, and nothing in quotes, has more letters than a file's name may have."""

    def short(found: re.Match[str]) -> str:
        word = found[0]
        return f"{word[:SHOWN]}... ({len(word):,} letters){word[-1] if word[-1] in QUOTES else ''}"

    return re.sub(rf"'[^'\n]{{{LONGEST},}}'|\S{{{LONGEST},}}", short, text)


def one_line(error: BaseException) -> str:
    """An error's text in one line; its class if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__


def said(error: BaseException | None) -> str:
    """A foreign error's text; "" if its class raises in `str`, or returns no text."""
    try:
        return str(error)[:MOST_SAID]
    except KeyboardInterrupt:
        raise
    except BaseException:  # a user's class can end the program even here
        return ""


def first_line(error: BaseException | None) -> str:
    """The first line of a foreign error's text, shortened; its class if it has no text."""
    line = next(iter(said(error).strip().splitlines()), "")
    return shortened(line) or type(error).__name__


def shortened(text: str) -> str:
    """The part of a foreign text that a message quotes."""
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]} ..."


def quoted(error: BaseException | None) -> str:
    """A foreign error's class and the first line of its text."""
    name, said = type(error).__name__, first_line(error)
    return name if said == name else f"{name}: {said}"


def unwritten(refused: Exception, text: str, error: type[InputError] = InputError) -> NeuralPowerError:
    """The error for a file that could not be written: DeviceError for a full or broken disk, else `error`."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return DeviceError(text) if isinstance(refused, OSError) and refused.errno in full else error(text)


@contextmanager
def writing(path: object, instead: str, error: type[InputError] = InputError) -> Iterator[None]:
    """Raise the error of `unwritten` if the system refuses a write within; `instead` is the other choice."""
    try:
        yield
    except OSError as refused:
        text = f"{path}: cannot be written ({refused.strerror}); choose another {instead}"
        raise unwritten(refused, text, error) from None


def close(value: str, known: Iterable[str], cutoff: float = 0.5) -> list[str]:
    """The names that are spelled alike, nearest first; `cutoff`: least share of equal letters."""
    spelled: dict[str, list[str]] = {}
    for name in sorted(known):
        spelled.setdefault(name.lower(), []).append(name)
    alike = difflib.get_close_matches(value.lower(), spelled, n=4, cutoff=cutoff)
    return [name for lowered in alike for name in spelled[lowered]]


def unknown(
    what: str, value: object, known: Iterable[str], error: type[InputError] = InputError
) -> InputError:
    """The error for an unknown name: the value, and the nearest valid names, or all if they are few."""
    names = sorted(known)
    comma = "; " if any("," in name for name in names) else ", "
    near = close(str(value), names)
    if near:
        hint = f"did you mean {comma.join(near)}?"
    elif not names:
        hint = "none exist"
    else:
        hint = f"known: {comma.join(names[:20])}{f'{comma}...' if len(names) > 20 else ''}"
    return error(f"unknown {what} {str(value)!r}: {hint}")


LARGEST_SIZE = 2**53  # largest batch or axis: tables store it exactly


def is_count(value: object) -> bool:
    """Whether a number is whole, positive, and at most LARGEST_SIZE."""
    return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= LARGEST_SIZE


def check_share(name: str, share: object, example: str) -> None:
    """Raise InputError for a value that is not a share; `example` is a right one, as it is written."""
    number = isinstance(share, (int, float)) and not isinstance(share, bool)
    if share is not None and not (number and 0 <= float(str(share)) <= 1):
        said = f"{share:g}" if number else f"{share!r:.40}"
        raise InputError(f"{name} {said}: a share must lie between 0 and 1; choose {example} for 95 %")
