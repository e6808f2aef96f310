"""How one module is split over the ranks of a group: one entry a style, under the names of transformers.

A style says along which axis its weights are split, and what its inputs and outputs become. Placements
of tensors are "whole", "partial", the axis that is split, or "between".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import unknown
from neuralpower.networks.sharding import exchanges
from neuralpower.networks.sharding.exchanges import BETWEEN, PARTIAL, WHOLE, Placement, Rank, turned
from neuralpower.networks.sharding.experts import ROW_PER_CHOICE, Dispatch

Axis = Callable[[str, int], int | None]  # (name of a parameter, its axes) -> the axis that is split
Attach = Callable[[nn.Module, Rank], None]


def _none(name: str, dims: int) -> int | None:
    return None


def _output(name: str, dims: int) -> int | None:
    """Output features: the last axis but one of [.., out, in], the only one of a bias."""
    return max(dims - 2, 0)


def _input(name: str, dims: int) -> int | None:
    """Input features: the last axis; a bias stays whole."""
    return None if name == "bias" else dims - 1


def _packed_input(name: str, dims: int) -> int | None:
    """The last axis; what has one axis stays whole."""
    return None if dims == 1 else dims - 1


def first_axis(name: str, dims: int) -> int | None:
    """Rows of a table, or experts."""
    return 0


def _last(name: str, dims: int) -> int | None:
    return dims - 1


@dataclass(frozen=True)
class Style:
    """What a style does to the parameters, the first input and the output of a module."""

    name: str
    axis: Axis = _none
    given: Placement = WHOLE  # placement of the input that a module is called with
    reads: Placement = WHOLE  # placement that its product reads; whole: a rank makes a part of its gradient
    makes: Placement = WHOLE  # placement of what it makes
    returns: Placement = WHOLE  # placement that it is turned into
    packed: int = 1  # equal parts of the axis, each of which is split
    experts: bool = False  # whether expert ranks share it
    sums: bool = True  # whether the gradient of a whole input, of which each rank makes a part, is summed
    attach: Attach | None = None  # what is done instead of turning inputs and outputs

    @property
    def reads_tokens(self) -> bool:
        """Whether it reads tokens that are split between pairs of products."""
        return self.axis is _output and (self.given == BETWEEN or not self.sums)

    @property
    def exchanges(self) -> bool:
        """Whether calls of the module change placements."""
        return (self.given, self.reads, self.makes, self.returns) != (WHOLE,) * 4


_STYLES: dict[str, Style] = {}


def style(name: str, *others: str, **settings: Any) -> Style:
    """Enter a style under its name, and under others."""
    made = Style(name, **settings)
    for each in (name, *others):
        _STYLES[each] = made
    return made


def style_named(name: str) -> Style:
    """The style of that name; raises InputError."""
    if name not in _STYLES:
        raise unknown("tensor-parallel style", name, _STYLES)
    return _STYLES[name]


def names() -> Mapping[str, Style]:
    return _STYLES


def attach_placements(module: nn.Module, style: Style, rank: Rank) -> None:
    """Hooks that turn the first input and the output of a module as its style says."""
    group = rank.tensor
    takes_part = style.sums and (style.axis is not _none or style.given == BETWEEN)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return rank.first(
            args, kwargs, lambda x: rank.shared(x, rank.laid(style.given), style.reads, takes_part)
        )

    width = getattr(module, "out_features", getattr(module, "embedding_dim", None))

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return rank.outputs(
            output, lambda x: _cut(turned(x, style.makes, rank.laid(style.returns), group), width)
        )

    gathers_last = style.makes == -1 and style.returns == WHOLE
    width = width if gathers_last else None
    if not style.experts and style.axis is not first_axis:  # ids are not turned
        module.register_forward_pre_hook(before, with_kwargs=True)
    if style.makes != style.returns:
        module.register_forward_hook(after)


def _cut(x: Tensor, width: int | None) -> Tensor:
    """Without what an uneven split adds."""
    return x if width is None or x.shape[-1] == width else x.narrow(-1, 0, width)


def _attach_embedding(module: nn.Module, rank: Rank) -> None:
    """Ids of other ranks' rows are masked, and the results summed."""

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        most = module._parameters["weight"].shape[0] - 1  # type: ignore[union-attr]
        return rank.first(args, kwargs, lambda ids: ids.clamp(max=most), floating=False)

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return rank.outputs(output, lambda x: exchanges.reduced(x, rank.tensor))

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)


def _attach_gradient_sum(module: nn.Module, rank: Rank) -> None:
    """Weights that are whole, of which each rank makes a part of the gradient."""
    numbers = sum(p.numel() for p in module.parameters(recurse=False))

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return rank.outputs(output, lambda x: exchanges.summed_beside(x, rank.tensor, numbers))

    if numbers:
        module.register_forward_hook(after)


def _attach_latent(module: nn.Module, rank: Rank) -> None:
    """A latent with rotated keys, whose gradient no later product sums."""
    rotated = int(rank.configured("qk_rope_head_dim") or 0)

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        def beside(x: Tensor) -> Tensor:
            return exchanges.summed_beside(x, rank.tensor, x.numel() // x.shape[-1] * rotated)

        return rank.outputs(output, beside)

    if rotated:
        module.register_forward_hook(after)


def _attach_experts(module: nn.Module, rank: Rank) -> None:
    """Each rank has a part of every expert: tokens and choices are whole, outputs are summed."""

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden, *more = args
        hidden = rank.shared(hidden, rank.between, WHOLE, True)
        turn = [
            turned(one, rank.between, WHOLE, rank.tensor, partial=one.is_floating_point())
            if isinstance(one, Tensor) and one.dim() > 1
            else one
            for one in more
        ]
        return (hidden, *turn), kwargs

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return rank.outputs(output, lambda x: turned(x, PARTIAL, rank.between, rank.tensor))

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)


def _attach_identity(module: nn.Module, rank: Rank) -> None:
    """What passes tokens on unchanged would be summed with the parts: each rank has its share."""

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return rank.first(args, kwargs, lambda x: x / rank.tensor.ranks)

    module.register_forward_pre_hook(before, with_kwargs=True)


def _attach_dispatch(module: nn.Module, rank: Rank) -> None:
    """Each rank has whole experts: rows come from, and go to, where the choice says."""
    dispatch = Dispatch(rank)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return dispatch.before(module, args), kwargs

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return rank.outputs(output, dispatch.after)

    setattr(module, ROW_PER_CHOICE, True)
    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)


def _attach_partial(module: nn.Module, rank: Rank) -> None:
    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return rank.outputs(output, lambda x: turned(x, PARTIAL, rank.between, rank.tensor))

    module.register_forward_hook(after)


COLUMNS = style("colwise", axis=_output, makes=-1, returns=-1)
GATHERED = style("colwise_gather_output", "colwise_rep", axis=_output, makes=-1)
ROWS = style("rowwise", axis=_input, given=-1, reads=-1, makes=PARTIAL)
style("rowwise_split_input", "rowwise_rep", axis=_input, reads=-1, makes=PARTIAL)
style("packed_colwise", axis=_output, makes=-1, returns=-1, packed=2)
style("packed_rowwise", axis=_packed_input, packed=2)
VOCABULARY = style("embedding_rowwise", axis=first_axis, makes=PARTIAL, attach=_attach_embedding)
style("embedding_colwise", axis=_last, makes=-1)
style("replicated_with_grad_allreduce", attach=_attach_gradient_sum)
style("mla_kv_a_proj", attach=_attach_latent)
style("moe_tp_experts", attach=_attach_experts)
style("moe_identity_expert", attach=_attach_identity)
style("all_reduce", makes=PARTIAL, attach=_attach_partial)
style("local_params")
style("replicate")
style("sequence_parallel", given=1, reads=1, makes=1, returns=1)
style("grouped_gemm", axis=first_axis, experts=True)
style("ep_dispatch_experts", attach=_attach_dispatch, experts=True)


def attached(module: nn.Module, one: Style, rank: Rank) -> None:
    """Have a module exchange what its style says."""
    if one.attach is not None:
        one.attach(module, rank)
    elif one.exchanges:
        attach_placements(module, one, rank)


def is_columns(one: Style) -> bool:
    """Whether a product is split by outputs."""
    return one.axis is _output and one.given == WHOLE


def is_rows(one: Style) -> bool:
    """Whether a product is split by inputs, so that its output has to be summed."""
    return one.axis is _input and one.makes == PARTIAL and one.returns == WHOLE


GATHERING = Style("gathering", given=BETWEEN)  # of a module whose products all read its gathered tokens


def local_parameter(p: Tensor, axis: int, pieces: int, size: int) -> nn.Parameter:
    """A parameter of which an axis shrinks to `pieces` parts of `size`."""
    shape = list(p.shape)
    shape[axis] = pieces * size
    with torch.no_grad():
        if p.is_meta or shape[axis] > p.shape[axis]:
            local = p.new_empty(shape)
        else:
            local = p.detach().narrow(axis, 0, shape[axis]).clone()
    return nn.Parameter(local, requires_grad=p.requires_grad)


def shrink(part: nn.Module, one: Style, ranks: int, rows: int | None = None) -> None:
    """Replace all parameters of a plain module by a rank's parts, of equal size or of `rows`."""
    for name, p in [*part._parameters.items()]:
        axis = None if p is None else one.axis(name, p.dim())
        if p is not None and axis is not None:
            new = local_parameter(p, axis, 1, rows or exchanges.share(p.shape[axis], ranks))
            part._parameters[name] = new
            describe(part, name, new)


def describe(part: nn.Module, name: str, new: Tensor) -> None:
    """Set the sizes that a plain product or a table holds as attributes."""
    if name != "weight" or new.dim() != 2:
        return
    if isinstance(part, nn.Linear):
        part.out_features, part.in_features = new.shape
    elif isinstance(part, nn.Embedding):
        part.num_embeddings, part.embedding_dim = new.shape
        if part.padding_idx is not None and part.padding_idx >= new.shape[0]:
            part.padding_idx = None
    elif hasattr(part, "nf"):  # of transformers' Conv1D, whose weights are [in, out]
        vars(part).update(nx=new.shape[0], nf=new.shape[1])
