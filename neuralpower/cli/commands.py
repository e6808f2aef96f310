"""The options of a command: keywords of the table (`neuralpower.ask`), or groups of a command's own.

A group is a class whose annotated fields are options and arguments, or groups of them; its `panel` is the
heading under which --help lists its options.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, get_args, get_origin

from typer import Argument
from typer import Option as Flag
from typer.core import TyperCommand
from typer.models import OptionInfo
from typing_extensions import Unpack, dataclass_transform, get_type_hints, is_typeddict

from neuralpower.ask import texts
from neuralpower.ask.options import Option, kind_of, options_of
from neuralpower.ask.output import Trust
from neuralpower.ask.words import GENERAL, ORDER, TARGET
from neuralpower.cli.choices import choice
from neuralpower.cli.help_pages import write_page
from neuralpower.cli.known_names import (
    NAMED,
    checked_model,
    checked_place,
    completed_models,
    completed_places,
)

Command = Callable[..., None]
Model = Annotated[
    str,
    Argument(
        help="A name of `models`, zoo:resnet50, transformers:bert, a folder with config.json, "
        "file.py:function, a .pt2 or an .onnx file, ...",
        callback=checked_model,
        autocompletion=completed_models,
    ),
]


@dataclass_transform(eq_default=False, kw_only_default=True, frozen_default=True)
class OptionGroup:
    """Mark a class that is read like a frozen dataclass, but takes no time to compile methods."""

    panel: ClassVar[str] = ""
    panels: ClassVar[Mapping[str, str]] = {}  # other headings, and the names of the options under each

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


def with_options(command: Command, first: Sequence[inspect.Parameter] = ()) -> Command:
    """The command's signature for typer: `first`, then the fields of each group in place of the group."""
    hints = _hints(command)

    @functools.wraps(command)
    def asked(**given: Any) -> None:
        taken = {name: _taken(hint, given) for name, hint in hints.items() if _is_group(hint)}
        command(**taken, **given)

    parameters = [*first]
    for parameter in inspect.signature(command).parameters.values():
        hint = hints.get(parameter.name)
        if get_origin(hint) is Unpack:
            parameters += _flags(get_args(hint)[0], command.__name__)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            parameters += _parameters(parameter.name, hint, parameter.default)
    asked.__dict__["__signature__"] = inspect.Signature(parameters)  # where typer looks
    return asked


def _flags(table: Any, command: str = "") -> Iterator[inspect.Parameter]:
    """The parameters of a table's options."""
    options = options_of(table, command)
    for name in sorted(options, key=lambda name: ORDER.index(options[name].panel)):
        option = options[name]
        if option.flags != "-":
            kind: Any = kind_of(table, name, command)
            hint: Any = Annotated[kind if option.default is not None else kind | None, _flag(name, option)]
            yield inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=hint
            )


def _flag(name: str, option: Option) -> Any:
    how: dict[str, Any] = {"rich_help_panel": option.panel, "hidden": option.hidden}
    how |= {} if option.metavar is None else {"metavar": option.metavar}
    names = option.flags.split() or [f"--{name.replace('_', '-')}"]
    if option.what:
        words = option.words if option.listed else lambda: option.words
        about: dict[str, Any] = {"help": option.help, "otherwise": option.otherwise, "meant": option.meant}
        return choice(option.what, words, *names, several=option.several, **about, **how)
    if option.names:
        how["callback"], how["autocompletion"] = NAMED[option.names]
    return Flag(*names, help=option.help, min=option.least, **how)


def flag(table: Any, name: str, command: str = "") -> Any:
    """One option of a table as typer makes it, without a heading, for a command that has few of them."""
    return _flag(name, replace(options_of(table, command)[name], panel=None))


TrustCode = Annotated[bool, flag(Trust, "trust_code")]
MeasuredDevice = Annotated[
    str,
    Flag(
        help="Device to measure: cpu, cuda or cuda:0.",
        callback=checked_place,
        autocompletion=completed_places,
        rich_help_panel=TARGET,
    ),
]


def _is_group(hint: Any) -> bool:
    return is_typeddict(hint) or isinstance(hint, type) and issubclass(hint, OptionGroup)


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    # typing's own of Python 3.10 hides Annotated where a default is None
    hints: dict[str, Any] = get_type_hints(owner, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def _panel_of(group: type[OptionGroup], field: str) -> str:
    return next((panel for panel, names in group.panels.items() if field in names.split()), group.panel)


def _in_panel(hint: Any, panel: str) -> Any:
    """A copy of the option under that heading, unless it has its own; the original is shared."""
    if not panel or get_origin(hint) is not Annotated:
        return hint
    kind, *about = get_args(hint)
    for place, one in enumerate(about):
        if isinstance(one, OptionInfo) and one.rich_help_panel is None:
            about[place] = copy.copy(one)
            about[place].rich_help_panel = panel
    return Annotated[(kind, *about)]


def _parameters(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    """The parameter of that type, or the parameters of a group's fields, in order."""
    if is_typeddict(hint):
        yield from _flags(hint)
    elif _is_group(hint):
        for field, kind in _hints(hint).items():
            own = kind if _is_group(kind) else _in_panel(kind, _panel_of(hint, field))
            yield from _parameters(field, own, getattr(hint, field, inspect.Parameter.empty))
    else:
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _taken(group: Any, given: dict[str, Any]) -> Any:
    """The group with its values, which are removed from `given`."""
    if is_typeddict(group):
        return {name: given.pop(name) for name in options_of(group) if name in given}
    hints = _hints(group).items()
    return group(**{n: _taken(hint, given) if _is_group(hint) else given.pop(n) for n, hint in hints})


HISTORIC = {
    "--output": "--out",
    "--input-type": "--dtype",
    "--data-type": "--dtype",
    "--mode": "--phase",
    "--train-steps": "--steps",
    "--num-intra-threads": "--intra",
    "--num-inter-threads": "--inter",
    "--layer": "--layers",
    "--node": "--nodes",
    "--filter": "--filters",
    "--block": "--block-fn",
}
"""Other spellings of options, which --help does not list; underscores stand for hyphens anyway."""


SHORT = "neuralpower.short"  # key of a context whose help is -h


class Spelled(TyperCommand):
    """A command that also accepts historic spellings of its options."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [bare(parameter) for parameter in super().get_params(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write all of the help, or what `-h` shows of it."""
        write_page(self, ctx, formatter, short=SHORT in ctx.meta)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments with the names that --help lists."""
        if "-h" in args and "--help" not in args:
            ctx.meta[SHORT] = True
        known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        known |= {name for parameter in self.get_params(ctx) for name in parameter.secondary_opts}
        about = inspect.signature(self.callback).parameters if self.callback else {}
        numbers = {
            flag: kind
            for parameter in self.get_params(ctx)
            if (kind := _number(about.get(parameter.name or "")))
            for flag in parameter.opts
        }
        return super().parse_args(ctx, with_numbers(respelled(args, known), numbers))


def bare(parameter: Any) -> Any:
    """The parameter, adapted for --help: a flag shows no value."""
    if getattr(parameter, "is_flag", False) and parameter.metavar is None:
        parameter.metavar = ""
    if parameter.name == "help":
        parameter.rich_help_panel = GENERAL
    return parameter


def respelled(arguments: Sequence[str], known: set[str]) -> list[str]:
    """The arguments with historic spellings replaced; those after `--` stay."""
    words: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*words, *arguments[place:]]
        name, equals, value = argument.partition("=")
        tokens = name == "--output" and (value or "".join(arguments[place + 1 : place + 2])).isdecimal()
        if name.startswith("--") and name not in known and not tokens:  # tokens, not a file
            plain = name.replace("_", "-")
            name = next((one for one in (plain, HISTORIC.get(plain, "")) if one in known), name)
        words.append(f"{name}{equals}{value}")
    return words


def _number(parameter: inspect.Parameter | None) -> type[int] | type[float] | None:
    """The kind of number that an option takes, if it takes one."""
    kind, *_ = (*get_args(parameter.annotation if parameter else None), None)
    return next((number for number in (int, float) if number in (kind, *get_args(kind))), None)


def with_numbers(arguments: Sequence[str], kinds: Mapping[str, type[int] | type[float]]) -> list[str]:
    """The arguments with 32k written out where an option takes a number; `kinds`: by option."""
    words: list[str] = []
    for argument in arguments:
        before = words[-1] if words else ""
        name, equals, value = argument.partition("=")
        if before in kinds:
            words.append(texts.written_out(argument, kinds[before]))
        elif name in kinds:
            words.append(f"{name}{equals}{texts.written_out(value, kinds[name])}")
        else:
            words.append(argument)
    return words


def examples(*lines: str) -> str:
    """The end of a command's help: examples, one a line."""
    return "[bold]Examples[/]\n\n" + "\n".join(f"  {line}" for line in lines)
