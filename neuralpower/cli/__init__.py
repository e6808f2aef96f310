"""The command line: one file per command; torch is imported inside the commands only."""

from __future__ import annotations

import errno
import functools
import importlib
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import typer

from neuralpower.cli.interrupts import end_like_ctrl_c
from neuralpower.cli.output import GONE, ReaderGone, open_descriptors, results_apart
from neuralpower.cli.output_paths import check_places
from neuralpower.errors import DeviceError, InputError, NeuralPowerError, one_line, quoted, unwritten
from neuralpower.files.terminal import visible_streams
from neuralpower.processes.tether import end_with_parent
from neuralpower.version import __version__

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
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print it."),
) -> None:
    """Runtime, power, energy and memory of neural networks, layer by layer, without running them."""


# In the order in which --help lists them.
COMMANDS = (
    "collect",
    "merge",
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

# Options that name a thing. An empty name, as of a shell's variable that is not set, is none, and no default either.
NAMING = frozenset(
    """
    --address --autocast --config --csv --data_dir --data-dir --device --device-spec --from --markdown --measure
    --monitor_file --operators --out --plot --predictor --spec --tables --trace-file
    """.split()
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


def check_filled(arguments: Sequence[str]) -> None:
    """Raise InputError for an option of NAMING whose value is empty."""
    for before, given in zip(("", *arguments), arguments, strict=False):
        if before == "--":
            return
        name, equals, value = given.partition("=")
        if not given.strip() and before.startswith("--") and "=" not in before:
            name = before
        elif not (equals and name.startswith("--") and not value.strip()):
            continue
        if name in NAMING:
            raise InputError(f"{name} is empty; give it a value, or leave it out")


def _refused(error: NeuralPowerError) -> int:
    """Say what cannot be, in one line; the exit code."""
    print(f"error: {one_line(error)}", file=sys.stderr)
    return error.exit_code


def _fault(error: Exception) -> int:
    """Say in one line that this program is wrong, and where; with NEURALPOWER_TRACEBACK set, how it got there. The exit code."""
    if os.environ.get("NEURALPOWER_TRACEBACK"):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "neuralpower" in frame.filename] or frames
    where = re.sub(r".*(?=neuralpower[/\\])", "", own[-1].filename) + f":{own[-1].lineno}"
    text = f"a fault of neuralpower itself, {quoted(error)} ({where})"
    print(f"error: {text}; please report it, with what NEURALPOWER_TRACEBACK=1 prints", file=sys.stderr)
    return NeuralPowerError.exit_code


def main() -> None:
    """Run the program; an error of ours is one line on stderr, and its class the exit code."""
    end_with_parent()
    os.environ.setdefault(
        "HF_HUB_OFFLINE", "1"
    )  # models are built from configurations; nothing is ever downloaded
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    open_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # as stderr does with a letter that its encoding lacks
    with visible_streams():
        sys.exit(_code())


def _code() -> int:
    """Run the command, and say what went wrong; the exit code."""
    try:
        end_like_ctrl_c()
        check_filled(sys.argv[1:])
        code = build()(standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except ReaderGone:
        code = GONE
    except NeuralPowerError as error:
        code = _refused(error)
    except MemoryError:
        code = _refused(DeviceError("the memory of this machine is too small for that; choose smaller sizes"))
    except OSError as error:
        if error.filename is not None:
            text = f"{error.filename}: {error.strerror}; choose another file or folder"
            code = _refused(unwritten(error, text))
        elif error.errno == errno.ENOSPC:
            text = "standard output: the disk is full; make room, or write to another place"
            code = _refused(DeviceError(text))
        else:
            code = _fault(error)
    except Exception as error:
        code = _usage(error)
    return code if isinstance(code, int) else 0


def _usage(error: Exception) -> int:
    """Say what typer has against a command line; its exit code. Any other error is a fault of ours."""
    # typer's own: it brings a copy of click, whose classes cannot be named here
    code = getattr(error, "exit_code", None)
    if not hasattr(error, "format_message") or not isinstance(code, int):
        return _fault(error)
    if error.format_message():
        print(f"error: {error.format_message()}; --help shows what there is", file=sys.stderr)
    else:
        getattr(error, "show", print)()  # no arguments: the help
    return code
