"""The command line as a test runs it: in this process, where torch is imported already."""

import contextlib
import io
import signal
import sys
from typing import NamedTuple

import pytest

from neuralpower import cli


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: object) -> Ran:
    """Run `neuralpower ARGUMENTS`."""
    out, err, before = io.StringIO(), io.StringIO(), (sys.argv, signal.getsignal(signal.SIGTERM))
    sys.argv = ["neuralpower", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = before[0]
        signal.signal(signal.SIGTERM, before[1])
    code = ended.value.code
    return Ran(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def done(*arguments: object) -> str:
    """What a command that ends well prints."""
    ran = run(*arguments)
    assert ran.code == 0, ran.err
    return ran.out
