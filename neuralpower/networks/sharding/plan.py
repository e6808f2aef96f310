"""Which modules and parameters of a network are split in which way, and who says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from neuralpower.devices.layout import TENSOR, Layout
from neuralpower.errors import InputError, unknown
from neuralpower.networks.sharding import exchanges
from neuralpower.networks.sharding.styles import Style, style_named

OWN, TRANSFORMERS, RULE = "the plan given", "the plan of transformers", "a rule"
INFERENCE, ENGINE, TRAINING = "inference", "engine", "training"  # what a network is run for
FEW = 0.01  # of the parameters: smaller parts that stay whole are not named
SHOWN = 4  # modules that a message names


@dataclass(frozen=True)
class Sharding:
    """How a network is to be sharded, and afterwards how it was."""

    layout: Layout
    per_node: int = 1  # devices of a node
    use: str = INFERENCE  # INFERENCE as transformers runs it, ENGINE, or TRAINING
    plan: Mapping[str, Any] | None = None  # names of modules -> styles, in place of the network's own
    library: str = exchanges.NCCL  # that moves data between ranks
    require_plan: bool = False  # whether a rule is refused
    source: str = ""  # who says how: OWN, TRANSFORMERS or RULE
    notes: tuple[str, ...] = ()  # what stays whole, what is uneven, and what a rule has added

    @property
    def needed(self) -> bool:
        """Whether ranks have different parts of the module."""
        return self.layout.tensor > 1 or self.layout.expert > 1

    def group(self, name: str) -> exchanges.Group:
        """The ranks of a group, where they lie, and what sums their tensors."""
        sums = exchanges.ENGINE if self.use == ENGINE and name == TENSOR else self.library
        layout = self.layout
        return exchanges.Group(layout.size(name), layout.nodes(name, self.per_node), self.library, sums)


@dataclass(frozen=True)
class Plan:
    """Styles by the path of a module or parameter; paths are those of the network."""

    entries: Mapping[str, Style]
    source: str = TRANSFORMERS  # OWN, TRANSFORMERS or RULE
    added: tuple[str, ...] = ()  # modules that a rule has added to it
    rows: Mapping[str, int] = field(default_factory=dict)  # of a rank, by path, where they are no equal part
    finish: tuple[Callable[[], None], ...] = ()  # what is done once all parameters are a rank's

    def with_rule(
        self,
        entries: Mapping[str, Style],
        rows: Mapping[str, int] | None = None,
        finish: Iterable[Callable[[], None]] = (),
    ) -> Plan:
        """The plan, completed by what a rule found: fields as above."""
        if not entries:
            return self
        source = self.source if self.entries else RULE
        rows = {**self.rows, **(rows or {})}
        added = (*self.added, *entries)
        entries = {**entries, **self.entries}
        finish = (*self.finish, *finish)
        return replace(self, entries=entries, source=source, added=added, rows=rows, finish=finish)


def own_plan(module: nn.Module, patterns: Mapping[str, Any], source: str) -> Plan:
    """A plan of patterns, in which `*` stands for one part of a path.

    Raises:
        InputError: an unknown style; in a plan that was given, a pattern that names nothing of the module.
    """
    paths = [*dict.fromkeys([*dict(module.named_modules()), *_parameters(module)])]
    entries: dict[str, Style] = {}
    for pattern, named in patterns.items():
        found = [path for path in paths if matches(pattern, path)]
        if not found and source == OWN:
            raise unknown(f"module of {type(module).__name__}", pattern, [path for path in paths if path])
        one = named if isinstance(named, Style) else style_named(str(named))
        entries.update(dict.fromkeys(found, one))
    return Plan(entries, source)


def matches(pattern: str, path: str) -> bool:
    parts, own = pattern.split("."), path.split(".")
    return len(parts) == len(own) and all(
        re.fullmatch(re.escape(part).replace(r"\*", ".*"), one) for part, one in zip(parts, own, strict=True)
    )


def patterns_of(module: nn.Module, name: str) -> Mapping[str, Any]:
    """The plan that a module says as its attribute `tp_plan` or `ep_plan`, as those of transformers do."""
    patterns = getattr(module, name, None)
    if patterns is None:
        return {}
    if not isinstance(patterns, Mapping):
        raise InputError(
            f"{name} of {type(module).__name__} is a {type(patterns).__name__}; "
            "give a mapping of modules to styles, such as {'up': 'colwise', 'down': 'rowwise'}"
        )
    return patterns


def _parameters(module: nn.Module) -> dict[str, Any]:
    return dict(module.named_parameters(remove_duplicate=False))


def pattern_of(path: str) -> str:
    """A path with `*` for the numbers of blocks."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def whole_parts(module: nn.Module, split: set[int]) -> Iterator[tuple[str, int]]:
    """(Pattern, numbers) of modules whose matrices stay whole on every rank; `split`: ids of the others."""
    counts: dict[str, int] = {}
    seen = set(split)
    for path, part in module.named_modules():
        own = [p for p in part.parameters(recurse=False) if p.dim() > 1 and id(p) not in seen]
        seen.update(map(id, own))
        if own:
            pattern = pattern_of(path)
            counts[pattern] = counts.get(pattern, 0) + sum(p.numel() for p in own)
    yield from sorted(counts.items(), key=lambda item: -item[1])
