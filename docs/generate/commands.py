"""The page of all commands and their options, made from the program."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from typing import Any

from docs.generate.markdown import code, page, table
from neuralpower import cli


def commands_page() -> str:
    """A section for each command."""
    title = "# Commands\n\nEvery command with its options. `neuralpower COMMAND --help` prints the same."
    overview = table(
        ("command", "does"), ((f"[`{name}`](#{name})", cli.command_of(name).help) for name in cli.COMMANDS)
    )
    sections = (section(cli.command_of(name), name) for name in cli.COMMANDS)
    return page(title, overview, *(block for blocks in sections for block in blocks))


def section(command: Any, name: str, level: int = 2) -> Iterator[str]:
    """Blocks of one command and of its subcommands."""
    yield f"{'#' * level} {name}"
    yield inspect.cleandoc(command.help or "")
    below = getattr(command, "commands", None)
    arguments = [p for p in command.params if not is_option(p)]
    words = " ".join(["COMMAND"] if below else [argument_name(p) for p in arguments])
    yield f"```text\nneuralpower {name} [OPTIONS] {words}".rstrip() + "\n```"
    yield table(("argument", "meaning"), ((code(argument_name(p)), p.help or "") for p in arguments))
    options = [p for p in command.params if is_option(p) and not p.hidden]
    for panel in dict.fromkeys(p.rich_help_panel or "" for p in options):
        yield f"**{panel}**" if panel else ""
        rows = (option_row(p) for p in options if (p.rich_help_panel or "") == panel)
        yield table(("option", "value", "default", "meaning"), rows)
    yield examples(command.epilog)
    for inner in (below or {}).values():
        if not inner.hidden:
            yield from section(inner, f"{name} {inner.name}", level + 1)


def is_option(parameter: Any) -> bool:
    """Whether a parameter has a name such as `--device`."""
    return any(name.startswith("-") for name in parameter.opts)


def argument_name(parameter: Any) -> str:
    """The name in usage lines, with dots if an argument can have several values."""
    name = parameter.metavar or parameter.name.upper()
    return f"{name}..." if parameter.nargs == -1 and "..." not in name else name


def option_row(parameter: Any) -> tuple[str, str, str, str]:
    """(Names, value, default, meaning) of an option."""
    names = ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    hidden = default is None or callable(default) or default is False or default in ((), [])
    shown = "" if hidden else code(default.value if isinstance(default, enum.Enum) else default)
    return names, value(parameter), shown, parameter.help or ""


def value(parameter: Any) -> str:
    """The choices of an option, or the type of its value; nothing for a flag."""
    if parameter.is_flag or parameter.count:
        return ""
    if parameter.metavar:
        return code(parameter.metavar.strip("<>"))
    annotation = parameter.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ", ".join(code(one.value) for one in annotation)
    return code(getattr(annotation, "__name__", "text").replace("str", "text").lower())


def examples(epilog: str | None) -> str:
    """The examples at the end of a command's help."""
    lines = [line.strip() for line in inspect.cleandoc(epilog or "").splitlines()]
    shown = [line.removeprefix("$ ") for line in lines if "neuralpower " in line]
    return "```console\n" + "\n".join(f"$ {line}" for line in shown) + "\n```" if shown else ""
