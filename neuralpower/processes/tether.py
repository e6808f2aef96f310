"""Child processes that end with the process that started them, however that one ends.

The parent starts its child with `environment()`, which holds the parent's number. The child calls
`end_with_parent` before it imports anything heavy. This module's own program does so for a foreign module.

A child imports nothing of the working folder, where a `random.py` may lie: `python -m` looks there first.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

PARENT = "NEURALPOWER_PARENT"
PR_SET_PDEATHSIG = 1  # of prctl.h
LOOK_S = 0.5  # between two looks at the parent, on systems that do not signal its end
START = (  # as `python -P -m`, which Python 3.10 lacks: "" is the working folder
    "import sys; sys.path[:] = filter(None, sys.path); del sys.argv[0]; import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child that ends with this process, and imports this very package.

    What the child starts itself keeps the working folder out of its imports, too (from Python 3.11 on).
    """
    above = Path(__file__).parent.parent
    # a checkout comes first; an installed package is found, behind Python's own modules
    own = [] if above.name in ("site-packages", "dist-packages") else [str(above)]
    others = base.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([*own, *(place for place in others if place and place != str(above))])
    return {**base, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", PARENT: str(os.getpid())}


def python(module: str) -> list[str]:
    """The command that runs a module as `python -m`, without the working folder among its imports."""
    return [sys.executable, "-c", START, module]


def tethered(module: str) -> list[str]:
    """The command that runs a foreign module as a child which ends with its parent."""
    return [*python("neuralpower.processes.tether"), module]


def end_with_parent() -> None:
    """Have this process killed as soon as its parent is gone; if it is gone already, end at once.

    The signal is requested first, so the parent cannot end unnoticed between the two. A process without
    `PARENT` continues.
    """
    parent = os.environ.pop(PARENT, "")  # popped: children of this process have another parent
    if not parent.isdigit():
        return
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError, TypeError):  # another system than Linux
        threading.Thread(target=_look_after, args=(int(parent),), daemon=True).start()
    if os.getppid() != int(parent):
        os._exit(1)


def _look_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def main() -> None:
    """Run the module that the command line names; its own children end with it, too."""
    end_with_parent()
    del sys.argv[0]
    os.environ.update(environment())
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
