"""The command line: files of commands, imported on demand; only their functions import torch."""

from __future__ import annotations

import errno
import functools
import importlib
import inspect
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from neuralpower.ask.words import GENERAL
from neuralpower.cli.commands import Spelled, bare
from neuralpower.cli.known_names import check_model
from neuralpower.cli.other_words import WAYS, said_here
from neuralpower.cli.output import (
    GONE,
    QUIET,
    USUAL,
    VERBOSE,
    ReaderGone,
    at_level,
    open_descriptors,
    results_apart,
    say,
    table_width,
)
from neuralpower.cli.output_paths import check_places
from neuralpower.cli.parsing import batch_apart
from neuralpower.cli.waiting import end_like_ctrl_c, shown_while_it_takes
from neuralpower.errors import (
    DeviceError,
    InputError,
    NeuralPowerError,
    one_line,
    quoted,
    shortened_names,
    unwritten,
)
from neuralpower.files.terminal import visible_streams
from neuralpower.networks.names.hub import stay_offline
from neuralpower.processes.tether import end_with_parent
from neuralpower.report.grid import at_most
from neuralpower.version import versions

INTERRUPTED = 130  # 128 + SIGINT

# Lists of commands in the order of --help: the one here, then those of other packages.
_LISTS = sorted(Path(__file__).parents[1].glob("*/commands.txt"), key=lambda file: file.parent.name != "cli")


def _listed(file: Path) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """(name, (module, heading, help)) of each command in a package's list."""
    for line in file.read_text(encoding="utf-8").splitlines():
        name, module, panel, text = line.split(maxsplit=3)
        yield name, (f"neuralpower.{file.parent.name}.{module}", panel, text)


COMMANDS = {name: about for file in _LISTS for name, about in _listed(file)}
FIRST = """\
neuralpower predicts latency, power, energy and memory of neural networks. Three commands to try:

  neuralpower predict llama-3.1-8b --phase decode --context 4096 --device h100
  neuralpower fit llama-3.1-8b --phase decode --context 8192 --device rtx-4090
  neuralpower predict zoo:resnet50 --batch-size 8

neuralpower --help lists all commands, neuralpower models all models, neuralpower devices --specs all devices.
"""


class Program(TyperGroup):
    """A group that lists its commands without importing them, and imports the command that runs."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [bare(parameter) for parameter in super().get_params(ctx)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, command_of(name) if name in COMMANDS else listed, rest


app = typer.Typer(
    cls=Program,
    name="neuralpower",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, (_, _panel, _help) in COMMANDS.items():
    app.command(_name, help=_help, rich_help_panel=_panel)(lambda: None)


def _version(asked: bool) -> None:
    if asked:
        say(versions())
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show versions and exit."
    ),
) -> None:
    """Latency, power, energy and memory of neural networks, layer by layer, without running them."""
    if context.invoked_subcommand is None:
        say(FIRST, end="")


@functools.cache
def command_of(name: str) -> Any:
    """The command of that name, as typer makes it."""
    module, _, text = COMMANDS[name]
    program, group = typer.Typer(), importlib.import_module(module).app
    program.add_typer(group)
    guard(group)
    command = get_group(program).commands[name]
    command.help = text
    return command


@functools.cache  # a file may hold several commands
def guard(group: typer.Typer) -> None:
    """Make each command separate its results from other output, and check its output files first."""
    for command in group.registered_commands:
        if not issubclass(command.cls or TyperCommand, Spelled):
            command.cls = Spelled
        if command.callback is not None:
            command.callback = _guarded(command.callback)
    for below in group.registered_groups:
        if below.typer_instance is not None:
            guard(below.typer_instance)


TALK = {
    "verbose": Annotated[
        bool, typer.Option("--verbose", "-v", help="Print more details.", rich_help_panel=GENERAL)
    ],
    "quiet": Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results and warnings only.", rich_help_panel=GENERAL)
    ],
}
"""Options of every command; a command's own option of the same name stays."""


def _guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    own = inspect.signature(command, eval_str=True)
    added = {name: option for name, option in TALK.items() if name not in own.parameters}

    @functools.wraps(command)
    def guarded(**options: Any) -> Any:
        level = VERBOSE if options.get("verbose") else QUIET if options.get("quiet") else USUAL
        for name in added:
            options.pop(name)
        check_places(options)
        apart = batch_apart(options)
        with (
            at_level(level),
            results_apart(),
            shown_while_it_takes(level > QUIET),
            apart,
            at_most(table_width()),
        ):
            return command(**options)

    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        for name, option in added.items()
    ]
    guarded.__dict__["__signature__"] = own.replace(parameters=[*own.parameters.values(), *more])
    guarded.__annotations__ = {p.name: p.annotation for p in (*own.parameters.values(), *more)}
    return guarded


def check_filled(arguments: Sequence[str]) -> None:
    """Raise InputError for an option whose value is empty, as from an unset variable of a shell."""
    for before, given in zip(("", *arguments), arguments, strict=False):
        if before == "--":
            return
        name, equals, value = given.partition("=")
        if not given.strip() and before.startswith("-") and "=" not in before:
            name = before
        elif not (equals and name.startswith("--") and not value.strip()):
            continue
        raise InputError(f"{name} is empty; give it a value, or leave it out")


def _refused(error: NeuralPowerError) -> int:
    """Print one of our own errors in one line; return the exit code."""
    print(f"error: {shortened_names(one_line(error))}", file=sys.stderr)
    return error.exit_code


def _fault(error: Exception) -> int:
    """Print our bug and its place; with NEURALPOWER_TRACEBACK its traceback, too. Return the exit code."""
    if os.environ.get("NEURALPOWER_TRACEBACK"):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "neuralpower" in frame.filename] or frames
    where = re.sub(r".*(?=neuralpower[/\\])", "", own[-1].filename) + f":{own[-1].lineno}"
    text = f"a fault of neuralpower itself, {quoted(error)} ({where})"
    print(f"error: {text}; please report it with the output of NEURALPOWER_TRACEBACK=1", file=sys.stderr)
    return NeuralPowerError.exit_code


def main() -> None:
    """Run the program; our own errors print one line on stderr, and their class decides the exit code."""
    end_with_parent()
    stay_offline()  # models are built from configurations: weights are not downloaded
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would print its log
    open_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # for letters that its encoding does not have, as on stderr
    with visible_streams():
        sys.exit(_code())


def _code() -> int:
    """Run the command and print its error; return the exit code."""
    try:
        end_like_ctrl_c()
        check_filled(sys.argv[1:])
        guard(app)  # commands of other packages
        code = app(_arguments(sys.argv[1:]), prog_name="neuralpower", standalone_mode=False)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReaderGone:
        return GONE
    except NeuralPowerError as error:
        return _refused(error)
    except MemoryError:
        return _refused(DeviceError("this machine has too little memory for that; choose smaller sizes"))
    except OSError as error:
        if error.filename is not None:
            text = f"{error.filename}: {error.strerror}; choose another file or folder"
            return _refused(unwritten(error, text))
        if error.errno == errno.ENOSPC:
            text = "standard output: the disk is full; free space on it, or write elsewhere"
            return _refused(DeviceError(text))
        return _fault(error)
    except Exception as error:
        return _usage(error)
    return code if isinstance(code, int) else 0


def _arguments(given: list[str]) -> list[str]:
    """Treat `help COMMAND` as `COMMAND --help`."""
    return [*given[1:], "--help"] if given[:1] == ["help"] else given


def _usage(error: Exception) -> int:
    """Print typer's error about a command line; return its exit code. Any other error is our bug."""
    # typer brings a copy of click, whose classes cannot be named here
    code = getattr(error, "exit_code", None)
    if not hasattr(error, "format_message") or not isinstance(code, int):
        return _fault(error)
    if error.format_message():
        text = " ".join(error.format_message().split()).rstrip(".")
        way = "see --help"
        if text.endswith("requires an argument"):
            way = f"it takes: {_said_of(getattr(error, 'option_name', ''))}"
        elif text.startswith(("No such option", "No such command", "Got unexpected extra")):
            option = getattr(error, "option_name", "")
            line = said_here(sys.argv[1:], option, COMMANDS, _options, _is_model)
            here = any(option.lstrip("-") in one for one in getattr(error, "possibilities", None) or ())
            having = "" if line or here else _elsewhere(option)
            if having or line:
                text = re.sub(r"\.? (\(Possible|Did you mean).*", "", text)
                way = having or f"write {line}"
        print(f"error: {shortened_names(f'{text}; {way}')}", file=sys.stderr)
        return code
    getattr(error, "show", print)()  # no arguments: the help
    return 0


def _options(name: str) -> set[str]:
    """The options of a command."""
    command = command_of(name)
    return {flag for p in getattr(command, "params", ()) for flag in (*p.opts, *p.secondary_opts)}


def _is_model(text: str) -> bool:
    """Whether a word names a model, so that a command is missing before it."""
    try:
        check_model(text)
    except NeuralPowerError:
        return False
    return True


def _said_of(option: str) -> str:
    """The help of an option of the command that is run."""
    parameters: Sequence[Any] = command_of(sys.argv[1]).params if sys.argv[1] in COMMANDS else ()
    return next((str(p.help) for p in parameters if option in p.opts and hasattr(p, "help")), "a value")


def _elsewhere(option: str) -> str:
    """Which commands have an option that another one lacks; "" if none has."""
    option, *_ = [*WAYS.get(option, "").split(), option]
    having = [name for name in COMMANDS if option in _options(name)] if option.startswith("--") else []
    some = ", ".join(f"`{name}`" for name in having[:3]) + (" ..." if len(having) > 3 else "")
    if not having:
        return ""
    line = said_here([having[0], *sys.argv[2:]], "", COMMANDS, _options, own=False)
    return f"{some} {'has' if len(having) == 1 else 'have'} {option}, as in {line}"
