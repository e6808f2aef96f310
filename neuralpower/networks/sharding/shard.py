"""A module becomes that of one rank of a layout: smaller parameters, and hooks that exchange.

The module is sharded before it is followed, so that every shape of the rank (heads, caches, activations,
states of optimizers) comes from running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from torch import nn

from neuralpower.devices.cluster import EXPERT, GROUP, TENSOR, Layout
from neuralpower.errors import InputError
from neuralpower.networks.diffusion.composed import Composed
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.sharding import exchanges, experts, styles
from neuralpower.networks.sharding.exchanges import Rank
from neuralpower.networks.sharding.experts import compute_choices
from neuralpower.networks.sharding.plan import (
    ENGINE,
    FEW,
    OWN,
    RULE,
    SHOWN,
    TRANSFORMERS,
    Plan,
    Sharding,
    own_plan,
    pattern_of,
    patterns_of,
    whole_parts,
)
from neuralpower.networks.sharding.rule import completed
from neuralpower.networks.sharding.sequence import Vocabulary, between, split_tokens


@dataclass
class _Work:
    """What is known while a module is sharded."""

    rank: Rank
    name: str
    split: set[int] = field(default_factory=set)  # ids of new parameters
    made: dict[int, nn.Parameter] = field(default_factory=dict)  # id of an old parameter -> the new one
    kept: list[nn.Parameter] = field(default_factory=list)  # old ones, lest ids be used again
    uneven: dict[str, str] = field(default_factory=dict)
    repeated: dict[str, int] = field(
        default_factory=dict
    )  # attention with repeated key heads -> heads of a rank


def sharded(
    module: nn.Module, sharding: Sharding, example: Callable[[], Inputs] | None = None
) -> tuple[nn.Module, Sharding]:
    """The module of one rank, changed in place, and how it was sharded.

    Args:
        module: of the whole network, on the meta device.
        sharding: the layout, and what the network is run for.
        example: makes inputs of it, for networks without a plan; None: these stay whole.

    Raises:
        InputError: a plan that names what the module has not; ranks that do not divide heads or experts;
            expert ranks for a network without experts; no plan, if one is required.
    """
    if not sharding.needed:
        return module, sharding
    layout = sharding.layout
    if isinstance(module, Composed) and layout.tensor > 1:
        raise InputError(
            f"tensor {layout.tensor}: diffusers runs a pipeline whole on each device; write --ulysses-degree "
            f"{layout.tensor}, --data-parallel {layout.tensor}, or ask for a part, such as MODEL/transformer"
        )
    if sharding.use == ENGINE or layout.expert > 1:
        compute_choices(module)
    rank = Rank(layout, sharding.group(TENSOR), sharding.group(EXPERT), getattr(module, "config", None))
    work = _Work(rank, type(module).__name__)
    whole = sum(p.numel() for p in module.parameters())
    plan = _without_experts(_planned(module, sharding), layout)
    if layout.tensor > 1:
        plan = completed(module, plan, sharding, example)
    plan = _with_experts(module, plan, layout)
    vocabulary = Vocabulary.of(module, layout.tensor, sharding.use)
    rows = {**plan.rows, **vocabulary.rows}
    plan = replace(plan, entries={**plan.entries, **vocabulary.how}, rows=rows)
    if layout.sequence:
        plan = replace(plan, entries=between(module, plan.entries))
    _apply(module, plan, work)
    vocabulary.split_loss(module)
    if layout.sequence:
        split_tokens(module, rank, plan.entries)
    module.register_forward_hook(lambda *_: rank.ends())
    notes = (*_said(plan, module, work, whole), *sharding.notes)
    return module, replace(sharding, source=plan.source, notes=notes)


def _planned(module: nn.Module, sharding: Sharding) -> Plan:
    """The plan for tensor ranks that was given, else the network's own; maybe an empty one."""
    if sharding.layout.tensor == 1:
        return Plan({})
    from neuralpower.networks.sharding.plan import distributed_plan, styled

    if sharding.plan is not None:
        return own_plan(module, {path: styled(one) for path, one in sharding.plan.items()}, OWN)
    if placed := distributed_plan(module):
        return own_plan(module, placed, OWN)
    patterns = patterns_of(module, "tp_plan")
    source = TRANSFORMERS if hasattr(module, "config") else OWN
    return own_plan(module, {path: styled(one) for path, one in patterns.items()}, source)


def _without_experts(plan: Plan, layout: Layout) -> Plan:
    """Without what tensor ranks do to experts, where expert ranks share them."""
    if layout.expert == 1:
        return plan
    experts = [path for path, one in plan.entries.items() if one.name == "moe_tp_experts"]
    kept = {
        path: one
        for path, one in plan.entries.items()
        if not any(path == each or path.startswith(f"{each}.") for each in experts)
    }
    return replace(plan, entries=kept)


def _with_experts(module: nn.Module, plan: Plan, layout: Layout) -> Plan:
    """With what expert ranks do; raises InputError for a network without experts, and for too few."""
    if layout.expert == 1:
        return plan
    patterns = patterns_of(module, "ep_plan")
    entries = own_plan(module, patterns, TRANSFORMERS).entries or _stacked(module)
    if not entries:
        raise InputError(
            f"expert {layout.expert}: {type(module).__name__} has no experts that ranks could share; choose 1"
        )
    return replace(plan, entries={**plan.entries, **entries})


def _stacked(module: nn.Module) -> dict[str, styles.Style]:
    """Styles for modules whose weights are stacked by expert, where no plan says it."""
    entries = {}
    for path, part in module.named_modules():
        count = getattr(part, "num_experts", None)
        weights = dict(part.named_parameters(recurse=False))
        if (
            weights
            and all(p.dim() > 1 and p.shape[0] == count for p in weights.values())
            and max(p.dim() for p in weights.values()) > 2
        ):
            entries[path] = styles.style_named("ep_dispatch_experts")
            entries |= {f"{path}.{name}": styles.style_named("grouped_gemm") for name in weights}
    return entries


def _apply(module: nn.Module, plan: Plan, work: _Work) -> None:
    """Attach the exchanges, which read full sizes, then shrink parameters."""
    modules = dict(module.named_modules(remove_duplicate=False))
    for path, entry in plan.entries.items():
        if path in modules:
            styles.attached(modules[path], entry, work.rank)
    for path, entry in plan.entries.items():
        if path in modules:
            part, own = modules[path], [*modules[path]._parameters]
            parameters = [name for name in own if part._parameters[name] is not None]
            owner = modules[path.rpartition(".")[0]] if path else module
        else:
            parent, _, name = path.rpartition(".")
            part, owner, parameters = modules[parent], modules[parent], [name]
        if path in modules and entry.experts:
            continue
        for name in parameters:
            _shrink(path, part, owner, name, entry, work, plan.rows.get(path))
    for path, count in work.repeated.items():
        experts.group_heads(modules[path], work.rank.tensor.ranks, count)
    for finish in plan.finish:
        finish()


def _shrink(
    path: str,
    part: nn.Module,
    owner: nn.Module,
    name: str,
    style: styles.Style,
    work: _Work,
    rows: int | None,
) -> None:
    """Replace a parameter by the rank's part of it; `rows` says how long that is."""
    p = part._parameters[name]
    axis = None if p is None else style.axis(name, p.dim())
    if p is None or axis is None:
        return
    if id(p) in work.made:  # tied to one that was split
        part._parameters[name] = work.made[id(p)]
        styles.describe(part, name, work.made[id(p)])
        return
    if id(p) in work.split:
        return
    if p.dim() == 0:
        return
    size = p.shape[axis]
    if rows is None and style.experts:
        rows = _experts(path, part, size, work.rank.layout.expert)
    if rows is None and style.axis not in (styles.first_axis,):
        rows = _heads(path, owner, size, work, attribute=name)
    ranks = work.rank.tensor.ranks
    if rows is None:
        if size < ranks:
            raise InputError(
                f"tensor {ranks}: {path} of {work.name} has {size} features, fewer than ranks; "
                f"choose {size} or less"
            )
        rows = exchanges.share(size // style.packed, ranks)
        if size // style.packed % ranks and p.dim() > 1:
            work.uneven.setdefault(pattern_of(path), f"{size // style.packed} over {ranks}")
    new = styles.local_parameter(p, axis, style.packed, rows)
    part._parameters[name] = new
    work.made[id(p)] = new
    work.kept.append(p)
    work.split.add(id(new))
    if style.experts:
        setattr(new, GROUP, EXPERT)
    styles.describe(part, name, new)


def _experts(path: str, part: nn.Module, count: int, ranks: int) -> int:
    """Experts of a rank; raises InputError where ranks do not divide them."""
    if count % ranks:
        more = "more ranks than experts" if ranks > count else "ranks that do not divide them"
        raise InputError(
            f"expert {ranks}: {path} has {count} experts; these are {more}; choose a divisor of {count}"
        )
    if isinstance(getattr(part, "num_experts", None), int):
        vars(part)["num_experts"] = count // ranks
    return count // ranks


def _heads(path: str, owner: nn.Module, size: int, work: _Work, attribute: str) -> int | None:
    """Features of a rank that are whole heads; None where they are none."""
    ranks = work.rank.tensor.ranks
    rows = experts.local_heads(path, owner, size, ranks)
    if rows is not None and rows * ranks > size:
        count = experts.heads_in(owner, size) or 1
        count = experts.keys_beside(owner, count) or count
        work.repeated[path.rpartition(".")[0]] = 1
        work.uneven.setdefault(f"{pattern_of(path)} ", f"{count} heads, each on {ranks // count} ranks")
    return rows


def _said(plan: Plan, module: nn.Module, work: _Work, whole: int) -> Iterator[str]:
    said = {
        TRANSFORMERS: "tensor-parallel plan: transformers",
        OWN: "tensor-parallel plan: the given one",
        RULE: "sharded by a rule",
    }
    if plan.entries:
        yield said[plan.source]
    elif work.rank.layout.tensor > 1:
        yield "nothing is split: the network has no plan, and no pair of products around a nonlinearity"
    if plan.added:
        yield f"split by a rule: {_listed([*dict.fromkeys(map(pattern_of, plan.added))])}"
    if work.rank.layout.expert > 1:
        yield "choices of experts spread evenly over the ranks that hold them"
    stays = [(pattern, size) for pattern, size in whole_parts(module, work.split) if size >= FEW * whole]
    if stays:
        parts = [f"{pattern or work.name} ({size / whole:.0%} of the parameters)" for pattern, size in stays]
        yield f"whole on every rank: {_listed(parts)}"
    for pattern, how in work.uneven.items():
        if pattern.endswith(" "):
            yield f"repeated: {pattern.strip()}, {how}"
        else:
            yield f"uneven: {pattern}, {how} ranks; the largest part is followed"


def _listed(parts: list[str]) -> str:
    more = f" and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return f"{', '.join(parts[:SHOWN])}{more}"
