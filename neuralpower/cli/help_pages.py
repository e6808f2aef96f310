"""Help of a command: `-h` fits a screen, `--help` lists all options under their headings.

click's own formatter writes both, in the terminal's width; no name of an option is cut.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from neuralpower.ask.words import GENERAL

MOST = 10  # options of a short page
COMMON = {
    "predict": "device batch_size phase context prompt new_tokens dtype weights run by",
    "fit": "device batch_size phase context seq_len dtype weights optimizer lora engine",
    "sweep": "device batch_size phase context prompt seq_len dtype weights memory csv",
    "compare": "device batch_size phase context prompt seq_len dtype weights run plot",
    "parallel": "devices nodes phase context prompt global_batch weights by price top",
    "traffic": "device rate users trace input output sla engine weights prefix_hit",
    "plan": "devices rate sla input output tensor_parallel engine weights by price",
    "gate": "baseline update device batch_size phase max_latency max_memory max_flops junit github",
    "evaluate": "device batch_size phase prompt dtype measured predictor rounds plot trace_file",
    "collect-data": "preset device kinds out time_budget dtype power shard models executor",
    "train-predictor": "out learner jobs trust_code",
}
"""The options that most people need, of each command; of any other its first ones."""
LINES = 30  # of a short page
LONGEST = (84, 46)  # letters of a meaning on it; the second where the page is too long with the first
MORE = "All options and exit codes: neuralpower {} --help"
CODES = (
    "Exit codes: 0 done, or yes; 1 the answer is no; 2 wrong input; 3 coverage below --strict; "
    "4 a device failed; 130 interrupted."
)
FIELDS = {
    "predict": "runtime_s power_w energy_j memory_bytes flops parameters expected_error coverage layers",
    "compare": "a b ratio a_faster warnings",
    "gate": "passes versions written models",
    "fit": "fits verdict probability room_bytes memory largest_batch_size longest_seq_len remedies notes",
    "sweep": "points front warnings notes",
    "rank": "devices by unit first_probability skipped warnings notes",
    "parallel": "layouts ranked_by reasons notes",
    "traffic": "value low high highest_rate curve knee_rate footprint notes",
    "plan": "choices targets skipped notes",
    "profile": "runtime_s energy_j flops parameters peak_memory_bytes layers modules notes",
    "devices": "devices meters predictors",
    "models": "models catalogue",
    "doctor": "findings",
}
"""The most important fields of what --json prints, of each command."""


def write_page(command: Any, context: Any, formatter: Any, *, short: bool) -> None:
    """Write the page of a command."""
    longest, tight = LONGEST
    if short:
        tried = context.make_formatter()
        _write(command, context, tried, longest)
        longest = longest if tried.getvalue().count("\n") < LINES else tight
    _write(command, context, formatter, longest if short else 0)


def _write(command: Any, context: Any, formatter: Any, longest: int) -> None:
    """The page with meanings of at most `longest` letters; 0: all of it."""
    short = longest > 0
    command.format_usage(context, formatter)
    formatter.write_paragraph()
    formatter.write_text(inspect.cleandoc(command.help or ""))
    parameters = [p for p in command.get_params(context) if not getattr(p, "hidden", False)]
    arguments = [_record(p, context, longest) for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl(arguments)
    for heading, listed in _short(command.name, options) if short else _by_panel(options):
        with formatter.section(heading):
            formatter.write_dl([_record(p, context, longest) for p in listed])
    _write_examples(command, formatter)
    formatter.write_paragraph()
    formatter.write_text(MORE.format(" ".join(context.command_path.split()[1:])) if short else CODES)
    if command.name in FIELDS and not short:
        formatter.write_text(f"Fields of --json: {FIELDS[command.name].replace(' ', ', ')}.")


def _short(name: str, options: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    by_name = {p.name: p for p in options if p.rich_help_panel != GENERAL}
    wanted = COMMON.get(name, "").split() or [*by_name]
    yield "Options", [by_name[name] for name in wanted if name in by_name][:MOST]


def _by_panel(options: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    for panel in dict.fromkeys(p.rich_help_panel or "Options" for p in options):
        yield panel, [p for p in options if (p.rich_help_panel or "Options") == panel]


def _record(parameter: Any, context: Any, longest: int) -> tuple[str, str]:
    """(names and value, meaning) of a parameter; on a short page its first sentence, cut where it is long."""
    names, text = parameter.get_help_record(context) or ("", "")
    if not longest:
        return names, text
    first, *_ = re.split(r"(?<!\.)\.(?= |$)|; default|  \[", text)
    return names, textwrap.shorten(first.removesuffix(", .."), longest, placeholder=" ...")


def _write_examples(command: Any, formatter: Any) -> None:
    lines = [line.strip() for line in inspect.cleandoc(command.epilog or "").splitlines()]
    shown = [line for line in lines if line.startswith("neuralpower ")]
    if shown:
        with formatter.section("Examples"):
            for line in shown:
                formatter.write(f"  {line}\n")
