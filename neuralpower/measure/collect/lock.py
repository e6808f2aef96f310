"""One collection per device of a host, whatever folders they write to: a lock file per device in TMPDIR.

A GPU is known by its UUID. A processor is one device per host: measurements on its other cores share its
memory and its power. The lock belongs to the process (flock) and vanishes with it, however it ends; the empty
file stays. Collections see each other if they share TMPDIR.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from neuralpower.devices.card import card_uuid, index_of
from neuralpower.errors import InputError


def lock_name(device: str, uuid_of: Callable[[str], str | None] = card_uuid) -> str:
    """The host's name of "cpu" or "cuda:0": its UUID, else its place in CUDA_VISIBLE_DEVICES."""
    if device == "cpu":
        return device
    index = index_of(device)
    visible = [place for place in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if place]
    return uuid_of(device) or f"cuda-{visible[index] if index < len(visible) else index}"


class DeviceLock:
    """A device to oneself, from `acquire` to `release`."""

    def __init__(
        self,
        device: str,
        wait: bool = False,
        folder: Path | None = None,
        say: Callable[[str], None] = lambda line: None,
        uuid_of: Callable[[str], str | None] = card_uuid,
    ) -> None:
        self.device, self.wait, self.say, self.uuid_of = device, wait, say, uuid_of
        self.folder = folder or Path(tempfile.gettempdir())
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the device; with `wait` as soon as another collection has given it back.

        Raises:
            InputError: another collection has it, or no lock can be kept in the folder.
        """
        name = re.sub(r"[^A-Za-z0-9]+", "-", lock_name(self.device, self.uuid_of))
        path = self.folder / f"neuralpower-{name}.lock"
        try:
            descriptor = _opened(path)
        except OSError as error:
            raise InputError(
                f"{path}: no lock can be kept there ({error.strerror}); "
                "set TMPDIR to a folder that can be written"
            ) from None
        try:
            self._locked(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give it back, where it was taken."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _locked(self, descriptor: int) -> None:
        where = f"host {socket.gethostname()}, device {self.device}"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not self.wait:
                raise InputError(
                    f"{where}: another collection is measuring on it; wait for it, or add --wait-for-device"
                ) from None
            self.say(f"{where}: waiting for another collection to end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _opened(path: Path) -> int:
    """The file, also another user's: to read it is enough to lock it. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    with contextlib.suppress(OSError):  # another made it in between
        os.fchmod(descriptor, 0o644)  # whatever the umask
    return descriptor
