"""Notes of a trace: what is idle, unread, derived or cannot be counted."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.errors import InputError
from neuralpower.layers.tensors import tensors_in
from neuralpower.networks.inputs.known_values import made_up, tensors_within
from neuralpower.networks.running import ASKING
from neuralpower.trace.paths import prefixes
from neuralpower.trace.records import LOSS, LayerCall, UnmodelledCall

FEW = 0.02  # share of idle parameters, or of work that no loss reads, that needs no word
SHOWN = 5  # modules that are named
MOST_WORK = 2**63 - 1  # FLOP or bytes of a pass: what tables hold


def forward_of(model: nn.Module) -> str:
    """The name of a model's forward in messages."""
    return f"{type(model).__name__}: its forward"


def granted_by(model: nn.Module) -> Iterator[str]:
    """What modules of files take for granted, in their `taken_for_granted`."""
    for module in model.modules():
        said = getattr(module, "taken_for_granted", ())
        yield from said if isinstance(said, tuple) else ()


def derived_notes(functions: Mapping[Any, str]) -> Iterator[str]:
    """Notes on the model's own backward passes that are estimated from their forward passes."""
    for key, reason in functions.items():
        yield (
            f"the backward pass of {getattr(key, '__name__', key)} is derived from its forward pass, "
            f"since it cannot be followed: {reason[:200]}"
        )


def unpriced_hooks(model: nn.Module) -> Iterator[str]:
    """A note on hooks on gradients, which are not counted."""
    hooks = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    owners = (*model.named_modules(), *model.named_parameters())
    names = [name or "the model" for name, owner in owners if any(getattr(owner, h, None) for h in hooks)]
    if names:
        yield f"hooks on gradients are not counted: {_first(names)}"


def check_countable(name: str, calls: Sequence[LayerCall], unmodelled: Sequence[UnmodelledCall]) -> None:
    """Raise InputError for a pass of more FLOP or bytes than tables of 64-bit integers hold exactly."""
    counts = Counter(call.layer for call in calls)
    flops = sum(count * int(layer.flops()) for layer, count in counts.items())
    size = sum(count * int(sum(layer.bytes())) for layer, count in counts.items())
    size += sum(call.bytes for call in unmodelled)
    if max(flops, size) > MOST_WORK:
        raise InputError(
            f"{name}: one pass is {flops:.3g} FLOP and {size:.3g} bytes, more than the {MOST_WORK:.3g} "
            "that can be counted; choose smaller sizes (batch size, sequence length, input shape)"
        )


def idle_note(model: nn.Module, names: set[str]) -> str:
    """A note on parameters that no call uses, such as those of an image that was not given; "" for a few."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    names = names & sizes.keys()
    share = sum(sizes[name] for name in names) / max(sum(sizes.values()), 1)
    if share < FEW:
        return ""
    return f"{share:.0%} of the parameters are not used: {_parts(sizes, names)}; other inputs may use them"


def unread_notes(calls: Sequence[LayerCall], forgotten: Set[int]) -> Iterator[str]:
    """A note on modules with much work that no loss reads, such as heads other than the first output's."""
    flops = {True: 0, False: 0}
    for call in calls:
        flops[call.at in forgotten] += call.layer.flops() if call.gradient and call.path != LOSS else 0
    share = flops[True] / max(sum(flops.values()), 1)
    if share >= FEW:
        read = {call.path for call in calls if call.at not in forgotten}
        named = _parts([call.path for call in calls], {call.path for call in calls} - read - {""})
        yield (
            f"the loss does not read {share:.0%} of the forward pass, which has no backward pass"
            f"{named and ': '}{named}; to include it, return the loss of all outputs"
        )


def _parts(names: Iterable[str], chosen: Set[str]) -> str:
    """As text: the largest parts whose names are all `chosen`, in the order of `names`."""
    names = [*names]
    busy = {above for name in names if name not in chosen for above in (*prefixes(name), name)}
    whole = (next((p for p in prefixes(name) if p not in busy), name) for name in names if name in chosen)
    return _first([*dict.fromkeys(whole)])


def _first(names: Sequence[str]) -> str:
    """As text: the first few names, and the number of others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


# ---- Values that are made up, and what a forward pass decides by them ----


# operators that decide by numbers
DEPENDING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class MadeUp:
    """Follows the tensors that made-up values go into."""

    def __init__(self) -> None:
        self._sources = WeakIdKeyDictionary()  # tensors that follow from made-up values -> these, as text
        self._decided_by: dict[str, None] = {}  # made-up values that a number or a shape was asked of

    def begins(self, model: nn.Module, state: Mapping[str, Tensor], inputs: Any) -> None:
        """Note the inputs and weights whose values are nobody's."""
        args, kwargs = inputs
        try:
            names = [*inspect.signature(model.forward).parameters]
        except ValueError:  # of what is not written in Python
            names = []
        called = {names[i] if i < len(names) else f"input {i + 1}": value for i, value in enumerate(args)}
        for name, value in (called | dict(kwargs)).items():
            self._note(name, tensors_within(value))
        self._note("weights", state.values())

    def _note(self, name: str, tensors: Iterable[Tensor]) -> None:
        self._sources.update({t: (f"{name} ({why})",) for t in tensors if (why := made_up(t))})

    def asked(self, name: str, tags: Iterable[Any], args: Any) -> None:
        """Note where an operator is about to decide by made-up values."""
        if self._sources and (name in ASKING or DEPENDING.intersection(tags) or _selects(name, args)):
            self._decided_by |= self._behind(args[1] if name == "index" else args)

    def called(self, given: Any, output: Any) -> None:
        """What a call returns follows from what it was given."""
        if self._sources and (sources := self._behind(given)):
            self._sources.update(dict.fromkeys(tensors_in(output), tuple(sources)))

    def _behind(self, values: Any) -> dict[str, None]:
        """The made-up values that tensors follow from, as text."""
        known = (self._sources[t] for t in tensors_in(values) if t in self._sources)
        return {text: None for texts in known for text in texts}

    def notes(self) -> Iterator[str]:
        """A note on made-up values that the calls depend on."""
        if named := "; ".join(self._decided_by):
            said = f"its forward pass depends on values that are made up: {named}"
            yield f"{said}; other values may lead to other calls"


def _selects(name: str, args: Any) -> bool:
    """Whether a call takes what a mask says: as many numbers as there are true ones."""
    masks = args[1] if name == "index" else ()
    return any(isinstance(mask, Tensor) and mask.dtype in (torch.bool, torch.uint8) for mask in masks)
