"""The command line: one file per command; torch is imported inside the commands only."""

from __future__ import annotations

import errno
import functools
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from neuralpower import __version__
from neuralpower.cli.interrupts import end_like_ctrl_c
from neuralpower.cli.output import GONE, ReaderGone, open_descriptors, results_apart
from neuralpower.cli.places import check_places
from neuralpower.errors import DeviceError, NeuralPowerError, one_line
from neuralpower.terminal import visible_streams
from neuralpower.tether import end_with_parent

INTERRUPTED = 130  # 128 + SIGINT

app = typer.Typer(
    name="neuralpower",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Runtime, power, energy and memory of neural networks, layer by layer, without running them.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"neuralpower {__version__}")
        raise typer.Exit


@app.callback()
def root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print it.")) -> None:
    """Runtime, power, energy and memory of neural networks, layer by layer, without running them."""


# In the order in which --help lists them.
COMMANDS = (
    "collect",
    "train",
    "predict",
    "evaluate",
    "explore",
    "profile",
    "bench",
    "bench_log",
    "paradnn",
    "report",
    "lab",
    "calibrate",
    "models",
    "devices",
)


def build() -> typer.Typer:
    """The program with all of its commands."""
    if not app.registered_groups:
        for name in COMMANDS:
            app.add_typer(importlib.import_module(f"neuralpower.cli.{name}").app)
        _guard(app)
    return app


def _guard(group: typer.Typer) -> None:
    """Have every command keep its results apart from all else that is printed, and look first at where it writes."""
    for command in group.registered_commands:
        if command.callback is not None:
            command.callback = _guarded(command.callback)
    for below in group.registered_groups:
        if below.typer_instance is not None:
            _guard(below.typer_instance)


def _guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def guarded(**given: Any) -> Any:
        check_places(given)
        with results_apart():
            return command(**given)

    return guarded


def main() -> None:
    """Run the program; an error of ours is one line on stderr, and its class the exit code."""
    end_with_parent()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are built from configurations; nothing is ever downloaded
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    open_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does with a letter that its encoding lacks
    with visible_streams():
        sys.exit(_code())


def _code() -> int:
    """Run the command, and say what went wrong; the exit code."""
    try:
        end_like_ctrl_c()
        code = build()(standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except ReaderGone:
        code = GONE
    except NeuralPowerError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        code = error.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        print("error: standard output: the disk is full; make room, or write to another place", file=sys.stderr)
        code = DeviceError.exit_code
    except Exception as error:
        code = _usage(error)
    return code if isinstance(code, int) else 0


def _usage(error: Exception) -> int:
    """Say what typer has against a command line; its exit code. Raises any other error again."""
    # typer's own: it brings a copy of click, whose classes cannot be named here
    code = getattr(error, "exit_code", None)
    if not hasattr(error, "format_message") or not isinstance(code, int):
        raise error
    if error.format_message():
        print(f"error: {error.format_message()}; --help shows what there is", file=sys.stderr)
    else:
        getattr(error, "show", print)()  # no arguments: the help
    return code
