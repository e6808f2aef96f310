"""What every test run has to itself, and the measuring processes that tests of collections ask for.

`NEURALPOWER_TEST_CPU="AMD EPYC 9V74" make test` runs the tests as on a machine whose CPU has that name.
"""

import gc
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.tracked import ROOT, tracked

if os.environ.get("NEURALPOWER_TEST_CPU"):
    made_up = str(Path(__file__).with_name("made_up"))
    sys.path.insert(0, made_up)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (made_up, os.environ.get("PYTHONPATH"))))
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests without the garbage collector, which finds next to nothing then, a quarter faster."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_signal_is_ignored() -> Iterator[None]:
    """Have children hear what nohup and a shell's background jobs make this run deaf to.

    A child starts with the default of a signal that its parent handles, and is deaf to one that it ignores.
    """
    own = {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores them, but not for its children
    deaf = [n for n in signal.valid_signals() - own if signal.getsignal(n) is signal.SIG_IGN]
    for number in deaf:
        signal.signal(number, lambda *_: None)  # this run itself goes on, as it was told to
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test waits for none for ever
    yield
    signal.signal(signal.SIGINT, before)
    for number in deaf:
        signal.signal(number, signal.SIG_IGN)


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
def _shipped_predictors_alone() -> Iterator[None]:
    """Hide what else somebody trained into the checkout's folder of predictors, and the like of a demo."""
    held = tracked("models/*.json")
    folder = ROOT / "models"
    if set(folder.glob("*.json")) <= set(held):
        yield
        return
    from neuralpower.files import paths as folders
    from neuralpower.learn.files import predictor_files

    def shipped() -> list[Path]:
        return [Path(clean) if one.resolve() == folder else one for one in found()]

    found = folders.predictor_folders
    with tempfile.TemporaryDirectory() as clean, pytest.MonkeyPatch.context() as patch:
        for file in held:
            (Path(clean) / file.name).symlink_to(file)
        for module in (folders, predictor_files):
            patch.setattr(module, "predictor_folders", shipped)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_answers_of_earlier_runs() -> Iterator[None]:
    """Have every prediction computed, in silence; tests of kept answers name a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURALPOWER_CACHE", "off")
        patch.setenv("NEURALPOWER_PROGRESS", "off")
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
