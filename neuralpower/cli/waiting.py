"""A status line on stderr while a command runs, and how a command ends that is interrupted.

On a terminal it disappears before other output; elsewhere a line follows every ten seconds, unless the
environment has NEURALPOWER_PROGRESS=off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from neuralpower.files.stages import heard_by
from neuralpower.files.terminal import Visible, shown_by, visible

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

FIRST_S = 2.0  # before a line is shown
EACH_S = 10.0  # between lines in a pipe or a file
LEFT_S = 5.0  # after which it shows the time left
FEWEST = 2  # parts from which the time of the others is estimated
BEGUN = "starting"


class Waiting:
    """The status line of one command."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.begun_s = clock, clock()
        self.text, self.done, self.since_s = BEGUN, 0, self.begun_s
        self.total: int | None = None
        self.ended = False
        self._live: Live | None = None
        self._spinner: Spinner | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()

    def hear(self, text: str, done: int = 0, total: int | None = None) -> None:
        """Enter a stage; show the line if the stage takes long."""
        if text != self.text:
            self.since_s = self.clock()
        self.text, self.done, self.total = text, done, total
        self.resume()

    def line(self) -> str:
        """The stage, its parts, and the times spent and left."""
        now_s = self.clock()
        spent_s, stage_s = now_s - self.begun_s, now_s - self.since_s
        parts = f" {self.done} of {self.total}" if self.total else ""
        known = self.total is not None and self.done >= FEWEST and spent_s >= LEFT_S
        left_s = stage_s / self.done * (self.total - self.done) if known and self.total else 0.0
        left = f", about {said(left_s)} left" if known else ""
        return f"{visible(self.text)}{parts}, {said(spent_s)}{left}"

    def resume(self) -> None:
        """Show the line when the command has taken a while."""
        with self._lock:
            if self._timer is None and not self.ended:
                self._start(max(FIRST_S - self.clock() + self.begun_s, 0.2))

    def pause(self) -> None:
        """Hide the line before other output."""
        with self._lock:
            if self._timer is not None and (self.ended or shown_by(sys.stderr).isatty()):
                self._timer.cancel()
                self._timer = None
            if self._live is not None:
                self._live.stop()
                self._live = None

    def end(self) -> None:
        """Remove the line for good."""
        self.ended = True
        self.pause()

    def _show(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        with self._lock:
            if self._timer is None or self._live is not None:
                return
            if not shown_by(sys.stderr).isatty():
                self._write()
                return
            self._spinner = Spinner("dots")
            console = Console(file=shown_by(sys.stderr), highlight=False)
            self._live = Live(
                get_renderable=self._drawn,
                console=console,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=False,  # other output goes through `Pausing`
                redirect_stderr=False,
            )
            self._live.start()

    def _write(self) -> None:
        """Write the line to a pipe or a file, and again later."""
        stream = shown_by(sys.stderr)
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.write(f"{self.line()}\n")
            stream.flush()
        self._start(EACH_S)

    def _start(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _drawn(self) -> Spinner:
        from rich.text import Text

        assert self._spinner is not None  # made before the display that draws it
        self._spinner.update(text=Text(self.line(), overflow="ellipsis", no_wrap=True))
        return self._spinner


class Pausing(Visible):
    """A stream that hides the line before each text."""

    def __init__(self, waiting: Waiting, stream: TextIO) -> None:
        super().__init__(stream)
        self.waiting = waiting

    def write(self, text: str) -> int:
        """Write a text; return the number of its letters."""
        self.waiting.pause()
        count = super().write(text)
        self.waiting.resume()
        return count


_waiting: Waiting | None = None


@contextlib.contextmanager
def shown_while_it_takes(wanted: bool) -> Iterator[None]:
    """Show the line within, if it is wanted."""
    global _waiting
    terminal = shown_by(sys.stderr).isatty()
    refused = not terminal and os.environ.get("NEURALPOWER_PROGRESS") == "off"
    if not wanted or _waiting is not None or refused:
        yield
        return
    _waiting = Waiting()
    before = sys.stdout, sys.stderr
    if terminal:
        sys.stdout, sys.stderr = (Pausing(_waiting, shown_by(one)) for one in before)
    try:
        with heard_by(_waiting.hear):
            _waiting.resume()
            yield
    finally:
        end()
        _waiting = None
        sys.stdout, sys.stderr = before


def pause() -> None:
    """Hide the line, since results follow; the next stage shows it again."""
    if _waiting is not None:
        _waiting.pause()


def resume() -> None:
    """Show the line again after a remark."""
    if _waiting is not None:
        _waiting.resume()


def end() -> None:
    """Remove the line: the command has its own display."""
    if _waiting is not None:
        _waiting.end()


def said(seconds: float) -> str:
    """A time in its usual unit: 45 s, 3 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


# End a command from outside: Ctrl-C, a batch system's TERM, or a closed terminal's HUP.

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
