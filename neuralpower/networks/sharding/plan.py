"""Which modules and parameters of a network are split in which way, and who says so: a plan, or torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.devices.cluster import TENSOR, Layout
from neuralpower.errors import InputError, unknown
from neuralpower.networks.sharding import exchanges, styles
from neuralpower.networks.sharding.exchanges import PARTIAL, WHOLE, Placement, Rank, turned
from neuralpower.networks.sharding.styles import COLUMNS, ROWS, Style, style_named

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


# Plans of torch: styles of `parallelize_module`, and parameters that are DTensors.

PARALLEL = "torch.distributed.tensor"  # where torch defines styles and placements


def styled(one: Any) -> Any:
    """A style of torch's as one of ours; names and our own as they are. Raises InputError for other ones."""
    if isinstance(one, (str, Style)):
        return one
    name = type(one).__name__
    if name not in _READ or not type(one).__module__.startswith(PARALLEL):
        raise InputError(f"style {name!r} of a plan: choose one of {', '.join([*_READ, *styles.names()])}")
    found: Style = _READ[name](one)
    return found


def laid(placement: Any) -> Placement:
    """A placement of torch's as one of ours; raises InputError for one that is none."""
    if isinstance(placement, (tuple, list)):
        if len(placement) != 1:
            raise InputError(f"placements {placement!r:.60}: tensor ranks are one axis of a mesh; give one")
        placement = placement[0]
    name = type(placement).__name__
    if name == "Shard":
        return int(placement.dim)
    if name in ("Replicate", "Partial"):
        return {"Replicate": WHOLE, "Partial": PARTIAL}[name]
    raise InputError(f"placement {name!r:.60}: choose Replicate, Partial or Shard")


def _columns(one: Any) -> Style:
    return Style(
        "colwise", COLUMNS.axis, given=laid(one.input_layouts), makes=-1, returns=laid(one.output_layouts)
    )


def _rows(one: Any) -> Style:
    given, returns = laid(one.input_layouts), laid(one.output_layouts)
    return Style("rowwise", ROWS.axis, given=given, reads=-1, makes=PARTIAL, returns=returns)


def _norm(one: Any) -> Style:
    """Tokens that are split stay so; each rank makes a part of the gradient of the weights."""
    axis = int(getattr(one, "sequence_sharding", [None])[0].dim if hasattr(one, "sequence_sharding") else 1)
    return Style("sequence_parallel", given=axis, reads=axis, makes=axis, returns=axis)


def _inputs(one: Any) -> Style:
    return Style("inputs", attach=lambda module, rank: _turn_inputs(module, rank, one))


def _outputs(one: Any) -> Style:
    return Style("outputs", attach=lambda module, rank: _turn_outputs(module, rank, one))


def _both(one: Any) -> Style:
    def attach(module: nn.Module, rank: Rank) -> None:
        _turn_inputs(module, rank, one.prepare_module_input)
        _turn_outputs(module, rank, one.prepare_module_output)

    return Style("inputs and outputs", attach=attach)


def _turn_inputs(module: nn.Module, rank: Rank, one: Any) -> None:
    before = tuple(one.input_layouts or ())
    after = tuple(one.desired_input_layouts or ())
    by_name = dict(one.input_kwarg_layouts or {})
    wanted = dict(one.desired_input_kwarg_layouts or {})

    def turn(x: Any, given: Any, desired: Any) -> Any:
        if not isinstance(x, Tensor) or given is None or desired is None:
            return x
        return rank.shared(x, laid(given), laid(desired), False)

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pairs = [*zip(before, after, strict=False)]
        pairs += [(None, None)] * (len(args) - len(pairs))
        turned = tuple(turn(x, *pair) for x, pair in zip(args, pairs, strict=False))
        named = {name: turn(x, by_name.get(name), wanted.get(name)) for name, x in kwargs.items()}
        return turned, named

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _turn_outputs(module: nn.Module, rank: Rank, one: Any) -> None:
    before, after = tuple(one.output_layouts), tuple(one.desired_output_layouts)

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return rank.outputs(output, lambda x: turned(x, laid(before[0]), laid(after[0]), rank.tensor))

    module.register_forward_hook(hook)


_READ = {
    "ColwiseParallel": _columns,
    "RowwiseParallel": _rows,
    "SequenceParallel": _norm,
    "PrepareModuleInput": _inputs,
    "PrepareModuleOutput": _outputs,
    "PrepareModuleInputOutput": _both,
}


def distributed_plan(module: nn.Module) -> dict[str, Style]:
    """Styles by path for parameters that are DTensors, which become plain ones of full size on meta.

    Products that are split exchange as `parallelize_module` has them; its hooks are taken off.

    Raises:
        InputError: a mesh of several axes, or parameters split along an axis that no style has.
    """
    entries: dict[str, Style] = {}
    for path, part in module.named_modules():
        placed = {
            name: laid(p.placements)
            for name, p in part._parameters.items()
            if p is not None and hasattr(p, "placements")
        }
        if not placed:
            continue
        one = _style_of(path, part, placed)
        if one is not None:
            entries[path] = one
        for name in placed:
            p: Any = part._parameters[name]
            whole = torch.empty(p.shape, dtype=p.dtype, device="meta")
            part._parameters[name] = nn.Parameter(whole, requires_grad=p.requires_grad)
        for hooks in (part._forward_pre_hooks, part._forward_hooks):
            for key, hook in [*hooks.items()]:
                if str(getattr(hook, "__module__", "")).startswith("torch.distributed"):
                    del hooks[key]
    return entries


def _style_of(path: str, part: nn.Module, placed: dict[str, Placement]) -> Style | None:
    axis = placed.get("weight", WHOLE)
    if axis == WHOLE:
        return None
    table = isinstance(part, nn.Embedding)
    known = {0: "embedding_rowwise", 1: "embedding_colwise"} if table else {0: "colwise", 1: "rowwise"}
    if axis not in known or not isinstance(part, (nn.Linear, nn.Embedding)):
        raise InputError(
            f"{path}: a {type(part).__name__} whose weights are split along axis {axis}; "
            "only plain products and tables can be read; give a plan of names and styles"
        )
    return styles.style_named(known[int(axis)])
