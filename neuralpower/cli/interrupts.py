"""How a command is ended from outside: Ctrl-C, a batch system's TERM and a closed terminal's HUP are one thing."""

from __future__ import annotations

import contextlib
import os
import signal
import time

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S = 5.0  # a terminal that closes, and a batch system, send several signals within a second or two


def end_like_ctrl_c() -> None:
    """From now on each of `ENDS` raises KeyboardInterrupt; what follows within `SAME_S` is the same end, and is passed over.

    So nothing disturbs what is written and said of the interruption, and a later signal still ends what hangs in it. A signal
    that is ignored by now stays ignored: nohup and a shell's background jobs ask for that.
    """
    owner, begun = os.getpid(), -SAME_S

    def interrupt(number: int, frame: object) -> None:
        nonlocal begun
        if (
            os.getpid() != owner and number == signal.SIGTERM
        ):  # in a child by fork, whose end its parent asks for
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        now = time.monotonic()
        if now - begun >= SAME_S:
            begun = now
            raise KeyboardInterrupt

    with contextlib.suppress(ValueError):  # not in the main thread: whoever runs it there handles signals
        for number in ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, interrupt)
