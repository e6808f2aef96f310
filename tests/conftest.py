"""What every test run has to itself."""

import signal
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> Iterator[None]:
    """A shell starts jobs in the background deaf to Ctrl-C, and what they start is: a test of it would wait for ever."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _a_folder_for_locks() -> Iterator[None]:
    """Locks of devices are kept in TMPDIR: a run of the tests meets no collection on this machine, and no other run.

    The name is short: Ray keeps sockets below it, whose paths are limited.
    """
    with tempfile.TemporaryDirectory(prefix="np") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield
