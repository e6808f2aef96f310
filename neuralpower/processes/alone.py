"""One thread at a time: what changes things that all threads of a process share.

Building and following a network exchanges such things for a while: torch's default dtype, stdout, functions
of `socket` and of libraries, loggers' levels, random states, attributes of modules. Each exchange puts back
what it found, which is right only where no other thread exchanges it meanwhile. One lock is for all of them,
so that threads cannot wait for each other; a thread may take it again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_turn = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child must not find it taken by a thread that it does not have
    os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep other threads from exchanging what all share."""
    with _turn:
        yield
