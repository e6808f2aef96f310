"""The command line as a test runs it: in this process, where torch is imported already."""

import contextlib
import io
import signal
import sys
from typing import NamedTuple

import pytest

from neuralpower import cli
from neuralpower.cli.waiting import ENDS


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: object) -> Ran:
    """Run `neuralpower ARGUMENTS`."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    before = {number: signal.getsignal(number) for number in ENDS}
    sys.argv = ["neuralpower", *map(str, arguments)]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            cli.main()
    finally:
        sys.argv = argv
        for number, handler in before.items():
            signal.signal(number, handler)
    code = ended.value.code
    return Ran(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def done(*arguments: object) -> str:
    """What a command that ends well prints."""
    ran = run(*arguments)
    assert ran.code == 0, ran.err
    return ran.out
