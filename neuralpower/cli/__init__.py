"""The command line: one file per command; torch is imported inside the commands only."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys

import typer

from neuralpower import __version__
from neuralpower.errors import DeviceError, NeuralPowerError, one_line
from neuralpower.terminal import visible_streams

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
    return app


def main() -> None:
    """Run the program; an error of ours is one line on stderr, and its class the exit code."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are built from configurations; nothing is ever downloaded
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does with a letter that its encoding lacks
    with visible_streams():
        sys.exit(_code())


def _code() -> int:
    """Run the command, and say what went wrong; the exit code."""
    try:
        code = build()(standalone_mode=False)
    except NeuralPowerError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        code = error.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        print("error: standard output: the disk is full; make room, or write to another place", file=sys.stderr)
        code = DeviceError.exit_code
    except Exception as error:
        # typer's own: it brings a copy of click, whose classes cannot be named here
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        if error.format_message():
            print(f"error: {error.format_message()}; --help shows what there is", file=sys.stderr)
        else:
            getattr(error, "show", print)()  # no arguments: the help
        code = error.exit_code
    return code if isinstance(code, int) else 0
