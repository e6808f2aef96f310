"""What a user can be told: every error is one sentence with the value, the rule and the way out.

The class decides the exit code of the command line; a caller of the Python API catches `NeuralPowerError`.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral

MOST_SAID = 10_000  # letters that are read of what a foreign error says
MOST_QUOTED = 400  # of these in a message


class NeuralPowerError(Exception):
    """Base of every error that neuralpower raises on purpose; shown as one line, without a traceback."""

    exit_code = 1


class InputError(NeuralPowerError):
    """An argument, a shape, or a file's content that cannot be used."""

    exit_code = 2


class ModelError(InputError):
    """A network that cannot be found, built or run."""


class UsersError(ModelError):
    """What a model's code raised, as `error`, while it did `what`, also what would have ended the program."""

    def __init__(self, text: str, error: BaseException | None = None, what: str = "") -> None:
        super().__init__(text)
        self.error, self.what = error, what


class BoundError(ModelError):
    """A network, or a pass of it, beyond a bound that keeps it from filling the memory."""


class StepError(ModelError):
    """A training step that cannot be run on tensors without values."""


class DatasetError(InputError):
    """A dataset that cannot be read, written or used for training."""


class PredictorError(InputError):
    """A predictor file that cannot be used."""


class CoverageError(NeuralPowerError):
    """Coverage is below the requested share."""

    exit_code = 3


class DeviceError(NeuralPowerError):
    """A device or a meter that failed while it was used."""

    exit_code = 4


class LostDeviceError(DeviceError):
    """A device that no longer answers: nothing more can be measured on it."""


class OutOfMemory(DeviceError):  # noqa: N818  # a verdict on a size: a smaller one may do
    """More than the device's memory holds."""


class PoisonedError(DeviceError):
    """A process whose device context a call has spoilt: every later call fails, a new process works."""


class Unmodelled(Exception):  # noqa: N818  # a verdict on a call, not a fault
    """An operator call that a layer kind's fields cannot describe; the text says why."""


def one_line(error: BaseException) -> str:
    """An error's text in one line; its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def said(error: BaseException | None) -> str:
    """A foreign error's text; "" where its class raises when it is asked, or answers with no text."""
    try:
        return str(error)[:MOST_SAID]
    except KeyboardInterrupt:
        raise
    except BaseException:  # a user's class may end the program even here
        return ""


def first_line(error: BaseException | None) -> str:
    """The first line of a foreign error's text, shortened; its class where it has none."""
    line = next(iter(said(error).strip().splitlines()), "")
    return shortened(line) or type(error).__name__


def shortened(text: str) -> str:
    """A foreign text, cut to the length that a message quotes."""
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]} ..."


def quoted(error: BaseException | None) -> str:
    """A foreign error's class and the first line of what it says."""
    name, said = type(error).__name__, first_line(error)
    return name if said == name else f"{name}: {said}"


def unwritten(refused: Exception, text: str, error: type[InputError] = InputError) -> NeuralPowerError:
    """The error for a file that could not be written: DeviceError for a full or broken disk, else `error`."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return DeviceError(text) if isinstance(refused, OSError) and refused.errno in full else error(text)


@contextmanager
def writing(path: object, instead: str, error: type[InputError] = InputError) -> Iterator[None]:
    """Raise as `unwritten` says where the system refuses a write within: choose another `instead`."""
    try:
        yield
    except OSError as refused:
        text = f"{path}: cannot be written ({refused.strerror}); choose another {instead}"
        raise unwritten(refused, text, error) from None


def unknown(
    what: str, value: object, known: Iterable[str], error: type[InputError] = InputError
) -> InputError:
    """The error for a name that is not known: the value, the nearest valid names, or all of them when few."""
    names = sorted(known)
    comma = "; " if any("," in name for name in names) else ", "
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(name.lower(), []).append(name)
    alike = difflib.get_close_matches(str(value).lower(), spelled, n=4, cutoff=0.5)
    near = [name for lowered in alike for name in spelled[lowered]]
    if near:
        hint = f"did you mean {comma.join(near)}?"
    elif not names:
        hint = "there is none"
    else:
        hint = f"known: {comma.join(names[:20])}{f'{comma}...' if len(names) > 20 else ''}"
    return error(f"unknown {what} {str(value)!r}: {hint}")


LARGEST_SIZE = 2**53  # of a batch or an axis: tables hold it exactly


def is_count(value: object) -> bool:
    """Whether a number is whole and positive, and no larger than a size can be."""
    return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= LARGEST_SIZE
