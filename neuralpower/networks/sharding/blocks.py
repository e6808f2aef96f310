"""Blocks that no plan names, split by their sizes as engines split them: stacked experts, mixers of states.

stacked experts      each rank has a part of the inner features of every expert, and outputs are summed
mixers of states     each rank has a part of the channels (Mamba), or of heads and groups (Mamba 2); groups
                     that are fewer than ranks stand on several ranks each, as in vLLM's `MambaMixer2`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from neuralpower.errors import InputError
from neuralpower.networks.sharding import exchanges, experts, styles

GROUP = 32  # inner features that stay together: those that share a scale in MXFP4, as vLLM cuts experts
INNER = ("intermediate_size", "intermediate_dim", "expert_dim", "moe_intermediate_size")
HIDDEN = ("hidden_size", "hidden_dim", "d_model")
CONVOLUTIONS = ("conv1d", "conv")  # names of a mixer's convolution over the last few tokens


@dataclass
class Blocks:
    """Styles of modules and parameters by path, and how much of a parameter a rank has."""

    how: dict[str, styles.Style] = field(default_factory=dict)
    rows: dict[str, int] = field(
        default_factory=dict
    )  # along the axis of the style, where it says no equal part
    attributes: list[tuple[nn.Module, dict[str, int]]] = field(default_factory=list)  # of a rank's modules

    @classmethod
    def of(cls, module: nn.Module, ranks: int, known: Mapping[str, Any], *, experts: bool) -> Blocks:
        """What is found in a network; `known` are paths that a plan has styles for.

        `experts`: whether tensor ranks share the experts.

        Raises InputError for heads of a mixer that ranks do not divide.
        """
        found = cls()
        for path, part in module.named_modules():
            found._head_norms(path, part, ranks, known)
            inside = {path, *(f"{path}.{name}" for name, _ in part.named_parameters())}
            if not path or inside & known.keys():
                continue
            if experts:
                found._experts(path, part, ranks)
            found._mixer(path, part, ranks)
        return found

    def _head_norms(self, path: str, part: nn.Module, ranks: int, known: Mapping[str, Any]) -> None:
        """Norms with a row of weights for each head of attention that a plan splits."""
        if not experts.is_attention(part) or not any(name.startswith(f"{path}.") for name in known):
            return
        head_size = experts.number(part, experts.SIZES)
        counts = [
            experts.query_heads(part),
            experts.number(getattr(part, "config", None), experts.KEY_COUNTS),
        ]
        for name, p in part.named_parameters():
            owner, inner = name.rpartition(".")[0], tuple(p.shape)
            if head_size is None or f"{path}.{owner}" in known or p.dim() != 2 or "norm" not in owner:
                continue
            if inner[1] == head_size and inner[0] in counts:
                rows = experts.local_heads(path, part, inner[0] * head_size, ranks) or 0
                self._part(f"{path}.{name}", _ROWS, rows // head_size)

    def _experts(self, path: str, part: nn.Module, ranks: int) -> None:
        """Weights [experts, .., ..], in either order of their features, and biases [experts, features]."""
        sides = expert_sides(part)
        if sides is None:
            return
        self.how[path] = styles.style_named("moe_tp_experts")
        together = GROUP if sides.inner >= GROUP * ranks else 1
        share = exchanges.share(-(-sides.inner // together), ranks) * together
        for name, (axis, size) in sides.axes.items():
            self.how[f"{path}.{name}"] = replace(_ROWS, name=f"axis {axis}", axis=_axis(axis))
            self.rows[f"{path}.{name}"] = size // sides.inner * share
        own = {n: share for n in INNER if vars(part).get(n) == sides.inner}
        self.attributes.append((part, own))

    def _mixer(self, path: str, part: nn.Module, ranks: int) -> None:
        """A product into channels, a convolution of each, and a product out of them."""
        conv = next((c for n in CONVOLUTIONS if isinstance(c := getattr(part, n, None), nn.Conv1d)), None)
        enters, leaves = getattr(part, "in_proj", None), getattr(part, "out_proj", None)
        if conv is None or not isinstance(enters, nn.Linear) or not isinstance(leaves, nn.Linear):
            return
        channels, made = int(leaves.in_features), int(enters.out_features)
        sizes = _rank_sizes(path, part, channels, ranks)
        if sizes is None:
            return
        name = next(n for n in CONVOLUTIONS if getattr(part, n, None) is conv)
        extra = int(conv.out_channels) - channels  # B and C of the groups, which are convolved, too
        groups = sizes.get("n_groups", 0)
        convolved = sizes["channels"] + (extra // int(vars(part)["n_groups"]) * groups if extra else 0)
        if extra:  # gates, what is convolved, and a time step of each head
            entering = sizes["channels"] + convolved + sizes["num_heads"]
        else:
            entering = made // channels * sizes["channels"]
        self._part(f"{path}.in_proj", styles.COLUMNS, entering)
        self._part(f"{path}.{name}", _ROWS, convolved)
        self.attributes.append(
            (conv, {"in_channels": convolved, "out_channels": convolved, "groups": convolved})
        )
        self._part(f"{path}.out_proj", styles.ROWS, sizes["channels"])
        if isinstance(getattr(part, "x_proj", None), nn.Linear):
            self._part(f"{path}.x_proj", styles.ROWS, sizes["channels"])
            self._part(f"{path}.dt_proj", styles.COLUMNS, sizes["channels"])
        counts = {channels: sizes["channels"], part.__dict__.get("num_heads"): sizes.get("num_heads")}
        for inner, p in _direct(part):
            if (rows := counts.get(p.shape[0])) is not None:
                self._part(f"{path}.{inner}", _ROWS, rows)
        changed = {n: v for n, v in sizes.items() if isinstance(vars(part).get(n), int)}
        changed |= {n: sizes["channels"] for n in INNER if vars(part).get(n) == channels}
        changed |= {"conv_dim": convolved} if isinstance(vars(part).get("conv_dim"), int) else {}
        self.attributes.append((part, changed))
        norm = getattr(part, "norm", None)
        if isinstance(norm, nn.Module) and isinstance(vars(norm).get("group_size"), int):
            self.attributes.append((norm, {"group_size": sizes["channels"] // max(groups, 1)}))

    def _part(self, path: str, one: styles.Style, rows: int) -> None:
        self.how[path], self.rows[path] = one, rows

    def finish(self) -> None:
        """Set what modules hold as attributes, once parameters are shrunk by their styles."""
        for part, changed in self.attributes:
            vars(part).update(changed)


@dataclass(frozen=True)
class ExpertSides:
    """Which axis of each parameter of stacked experts has their inner features."""

    inner: int  # features between both products
    axes: Mapping[str, tuple[int, int]]  # name -> (axis, its size)


def expert_sides(part: nn.Module) -> ExpertSides | None:
    """The sides of experts whose weights are stacked; None of other modules.

    The product that makes inner features has as many columns, or twice as many with a gate. Where all sides
    are equal, its name tells it.
    """
    parameters = {name: p for name, p in part.named_parameters(recurse=False) if p.dim() > 1}
    weights = {name: p for name, p in parameters.items() if p.dim() == 3}
    count, hidden = getattr(part, "num_experts", None), experts.number(part, HIDDEN)
    if len(weights) < 2 or hidden is None or any(p.shape[0] != count for p in parameters.values()):
        return None
    down = next((name for name in weights if "down" in name or name in ("w2", "output")), None)
    if down is None or hidden not in weights[down].shape[1:]:
        return None
    ups = [name for name in weights if name != down]
    if any(hidden not in weights[name].shape[1:] for name in ups):
        return None
    _, enters, makes = weights[ups[0]].shape
    transposed = bool(getattr(part, "is_transposed", False))  # says it where all sides are equal
    turned = enters == hidden and (makes != hidden or transposed)  # [experts, in, out]
    axes = {name: (2 if turned else 1) for name in ups} | {down: 1 if turned else 2}
    inner = weights[down].shape[axes[down]]
    for name, p in parameters.items():
        if p.dim() == 2 and any(name.startswith(up) for up in ups):
            axes[name] = 1
    found = {name: (axis, int(parameters[name].shape[axis])) for name, axis in axes.items()}
    return ExpertSides(inner, found) if all(size % inner == 0 for _, size in found.values()) else None


def _rank_sizes(path: str, part: nn.Module, channels: int, ranks: int) -> dict[str, int] | None:
    """What a rank has of a mixer: channels, heads and groups; None where its sizes are not understood."""
    count, groups = vars(part).get("num_heads"), vars(part).get("n_groups")
    if isinstance(count, int) and isinstance(groups, int):
        if count % ranks or (groups % ranks and ranks % groups):
            raise InputError(
                f"tensor {ranks}: {path} has {count} heads in {groups} groups, which {ranks} ranks do not "
                f"divide; choose a divisor of {count}"
            )
        return {
            "channels": channels // ranks,
            "num_heads": count // ranks,
            "n_groups": max(groups // ranks, 1),
        }
    if count is not None or channels % ranks:
        return None
    return {"channels": channels // ranks}


def _direct(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters of a mixer itself, and the weight of its norm."""
    yield from part.named_parameters(recurse=False)
    norm = getattr(part, "norm", None)
    if isinstance(norm, nn.Module):
        yield from ((f"norm.{name}", p) for name, p in norm.named_parameters(recurse=False))


def _axis(axis: int) -> styles.Axis:
    return lambda name, dims: axis


_ROWS = styles.Style("rows", axis=styles.first_axis)
