"""End a command from outside: Ctrl-C, a batch system's TERM, or a closed terminal's HUP."""

from __future__ import annotations

import contextlib
import os
import signal
import time

ENDS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has two of them
SAME_S = 5.0  # closing terminals and batch systems send several signals within two seconds


def end_like_ctrl_c() -> None:
    """Make each signal of `ENDS` raise KeyboardInterrupt; ignore those that follow within `SAME_S`.

    Files are written undisturbed after an interruption, and a later signal still ends a command that hangs.
    A signal that is already ignored stays ignored, as nohup and a shell's background jobs need.
    """
    owner, begun = os.getpid(), -SAME_S

    def interrupt(number: int, frame: object) -> None:
        nonlocal begun
        if os.getpid() != owner and number == signal.SIGTERM:  # a forked child, ended by its parent
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        now = time.monotonic()
        if now - begun >= SAME_S:
            begun = now
            raise KeyboardInterrupt

    with contextlib.suppress(ValueError):  # in another thread the caller handles signals
        for number in ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, interrupt)
