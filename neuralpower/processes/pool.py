"""Calls that run in processes of their own: results in order, and no process outlives the one that asked.

A child reads a pickled call from its stdin and writes the pickled result, behind its length, to its stdout.
It needs no semaphore and no shared memory, so a killed process leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import struct
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any

from neuralpower.errors import DeviceError
from neuralpower.files.terminal import quiet
from neuralpower.processes.tether import end_with_parent, environment, python

LENGTH = struct.Struct("<Q")  # of a result, in bytes
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Pool:
    """`jobs` children, started with the first calls; without children where `jobs` is 1. A context manager.

    joblib hands out the calls, a thread for each child. Its own processes leave semaphores when they are
    killed.
    """

    def __init__(self, jobs: int) -> None:
        """`jobs` below 0 counts back from the number of cores: -1 is all of them."""
        import joblib  # not above: a child has to be tied to its parent before it imports much

        self.jobs = joblib.effective_n_jobs(jobs)
        self.threads = max(joblib.cpu_count() // self.jobs, 1)
        self._children: list[_Child] = []

    def __enter__(self) -> Pool:
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the children; unanswered calls are lost."""
        for child in self._children:
            child.kill()

    def results(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
    ) -> Generator[Any, None, None]:
        """`function(*call)` of each call, in their order. Raises what the function raises.

        Raises:
            DeviceError: a child was ended from outside, for example for want of memory.
        """
        from joblib import Parallel, delayed

        jobs = min(self.jobs, len(calls))
        if jobs < 2:
            yield from (function(*call) for call in calls)
            return
        while len(self._children) < jobs:
            self._children.append(_Child(self.threads))
        idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        for child in self._children:
            idle.put(child)

        def done(call: tuple[Any, ...]) -> Any:
            child = idle.get()
            try:
                return child.result(function, call)
            finally:
                idle.put(child)

        threads = Parallel(jobs, backend="threading", return_as="generator", batch_size=1, pre_dispatch=jobs)
        yield from threads(delayed(done)(call) for call in calls)


class _Child:
    """One process, in a session of its own: a terminal's Ctrl-C and hang-up reach only the parent."""

    def __init__(self, threads: int) -> None:
        limits = {name: str(threads) for name in THREADS if name not in os.environ}
        self._process = subprocess.Popen(
            python("neuralpower.processes.pool"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment(), **limits},
            start_new_session=True,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise DeviceError("a fitting process has no pipes; this is a fault of neuralpower")
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def result(self, function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
        data = b""
        with contextlib.suppress(BrokenPipeError):
            pickle.dump((function, call), self._stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._stdin.flush()
            head = self._stdout.read(LENGTH.size)
            data = self._stdout.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
        if not data:
            code = self._process.wait()
            how = f"by signal {-code}" if code < 0 else f"with code {code}"
            raise DeviceError(f"a fitting process was ended {how}, probably out of memory; give --jobs 1")
        done, value = pickle.loads(data)
        if not done:
            raise value
        return value

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):  # unread data
                pipe.close()


def main() -> None:
    """Answer until stdin ends; if the asker is gone by then, end silently."""
    end_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    sys.stdout, sys.stderr = quiet(1), quiet(2)
    with contextlib.suppress(BrokenPipeError), os.fdopen(answers, "wb") as out:
        while True:
            try:
                function, call = pickle.load(sys.stdin.buffer)
            except (EOFError, pickle.UnpicklingError):  # the asker has ended, maybe in the middle of a call
                return
            try:
                data = pickle.dumps((True, function(*call)), protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:  # whatever the function raises is its result
                data = pickle.dumps((False, error), protocol=pickle.HIGHEST_PROTOCOL)
            out.write(LENGTH.pack(len(data)) + data)
            out.flush()


if __name__ == "__main__":
    main()
