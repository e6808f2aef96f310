"""What every test run has to itself, and the measuring processes that tests of collections ask for."""

import gc
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests without the garbage collector, which finds next to nothing then, a quarter faster."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Shells start background jobs deaf to Ctrl-C, and so is what these start: a test would wait for ever."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _a_folder_for_locks() -> Iterator[None]:
    """Keep locks of devices in a TMPDIR of this run: it meets no collection here, and no other run.

    The name is short: Ray keeps sockets below it, whose paths are limited.
    """
    with tempfile.TemporaryDirectory(prefix="np") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_answers_of_earlier_runs() -> Iterator[None]:
    """Have every prediction computed; tests of kept answers name a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURALPOWER_CACHE", "off")
        yield


@pytest.fixture(scope="session", autouse=True)
def _all_is_collected_at_the_end() -> Iterator[None]:
    """Undo what the next fixture does: libraries look through referrers, which leaves out what is frozen."""
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def _nothing_old_to_collect() -> None:
    """Keep the garbage collector off what modules hold: measurements call it, and a test run holds a lot."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Make measuring processes that follow a script; none of them remains at the end."""
    from tests.fake_worker import Fake, is_gone, waited

    yield lambda **settings: Fake(tmp_path, settings)
    for word in Fake(tmp_path).log("start "):
        waited(partial(is_gone, word.split()[1], str(tmp_path)))
