"""The optimizers that are known: what makes each, what it keeps, and the ways in which it steps.

`KNOWN` is the place to add one. Its memory follows from the step of what `make` returns, on tensors without
values; the time of a step without a trained regressor follows from the bytes that it moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from neuralpower.dtypes import DTYPES, full_name
from neuralpower.errors import InputError, unknown
from neuralpower.late import nn, torch
from neuralpower.optimizers import BLOCK

LOOP, FOREACH, FUSED = "loop", "foreach", "fused"  # tensor by tensor; lists of them; one kernel for all
IMPLEMENTATIONS = (LOOP, FOREACH, FUSED)
MOST_STATES = 64  # numbers per parameter that `--optimizer-states` takes


@dataclass(frozen=True)
class Known:
    """One optimizer.

    `states` are the numbers that it keeps per parameter, in the parameter's type; `state_bytes` are bytes per
    parameter in a type of its own. Both describe the step's traffic; the memory follows from the class.
    """

    make: str | Callable[..., torch.optim.Optimizer]  # a class of torch.optim or `modelled`, or its maker
    states: float
    ways: tuple[str, ...] = (LOOP, FOREACH)
    state_bytes: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    usual: str = ""  # the way that torch takes on every device; "": the platform's
    rest: str = ""  # the optimizer of embeddings, of the output's weights and of vectors; "": the same

    def way(self, platforms: str) -> str:
        """The way that torch takes by default, given the platform's."""
        wanted = self.usual or platforms
        return wanted if wanted in self.ways else LOOP

    def maker(self, name: str) -> Callable[..., torch.optim.Optimizer]:
        """What makes the optimizer; raises InputError where the installed torch lacks it."""
        if not isinstance(self.make, str):
            return partial(self.make, **self.settings)
        from neuralpower.optimizers import modelled

        found = getattr(modelled, self.make, None) or getattr(torch.optim, self.make, None)
        if found is None:
            raise InputError(
                f"optimizer {name}: torch {torch.__version__} has no torch.optim.{self.make}; "
                "install a newer torch, or choose adamw"
            )
        return partial(found, **self.settings)


def _of_transformers(params: Any, lr: float = 1e-3) -> torch.optim.Optimizer:
    """The optimizer `Adafactor` of transformers as it is by default, with its own learning rate."""
    from transformers.optimization import Adafactor

    return Adafactor(params)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


_ALL = IMPLEMENTATIONS
_EIGHT = 1 + 4 / BLOCK  # bytes of a state of 8 bits, with its share of a scale
KNOWN: Mapping[str, Known] = {
    "sgd": Known("SGD", 0, _ALL),
    "momentum": Known("SGD", 1, _ALL, settings={"momentum": 0.9}),
    "rmsprop": Known("RMSprop", 1),
    "adam": Known("Adam", 2, _ALL),
    "adamw": Known("AdamW", 2, _ALL),
    "adagrad": Known("Adagrad", 1, _ALL),
    "sparseadam": Known("SparseAdam", 2, (LOOP,)),
    "adadelta": Known("Adadelta", 2),
    "adamax": Known("Adamax", 2),
    "asgd": Known("ASGD", 1),
    "nadam": Known("NAdam", 2),
    "radam": Known("RAdam", 2),
    "rprop": Known("Rprop", 2),
    "adafactor": Known("Adafactor", 0, usual=LOOP),  # a row and a column of each matrix
    "transformers-adafactor": Known(_of_transformers, 0, (LOOP,)),
    "muon": Known("Muon", 1, (LOOP,), rest="adamw"),
    "lion": Known("Lion", 1, (LOOP,)),
    "adam8bit": Known("Adam8bit", 0, (LOOP,), 2 * _EIGHT),
    "adamw8bit": Known("Adam8bit", 0, (LOOP,), 2 * _EIGHT),
    "lion8bit": Known("Lion8bit", 0, (LOOP,), _EIGHT),
    "pagedadamw": Known("PagedAdam", 0, (LOOP,), 8.0),
    "pagedadamw8bit": Known("PagedAdam8bit", 0, (LOOP,), 2 * _EIGHT),
    "pagedlion8bit": Known("PagedLion8bit", 0, (LOOP,), _EIGHT),
}
# names that trainers use, without lines between their parts
ALIASES = {
    "adamwtorch": "adamw",
    "adamwbnb8bit": "adamw8bit",
    "pagedadamw32bit": "pagedadamw",
    "lion32bit": "lion",
}


@dataclass(frozen=True)
class States:
    """What is said of an optimizer that is not known; raises InputError for what cannot be."""

    numbers: float  # per parameter
    dtype: str = ""  # "": the parameter's

    def __post_init__(self) -> None:
        if not math.isfinite(self.numbers) or not 0 <= self.numbers <= MOST_STATES:
            raise InputError(
                f"optimizer states {self.numbers:g}: must be numbers per parameter from 0 to {MOST_STATES}; "
                "choose 2, as Adam has"
            )
        if self.dtype and self.dtype not in DTYPES:
            raise unknown("dtype of the optimizer's states", self.dtype, DTYPES)
        if self.dtype and not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise InputError(f"optimizer states in {self.dtype}: torch has no such tensors; choose bfloat16")

    @classmethod
    def parsed(cls, text: str | float) -> States:
        """From "2" or "2:bfloat16"; raises InputError."""
        numbers, _, dtype = str(text).partition(":")
        try:
            return cls(float(numbers), full_name(dtype) if dtype else "")
        except ValueError:
            raise InputError(
                f"optimizer states {str(text)!r}: must be numbers per parameter, with a dtype or without; "
                "write 2 or 2:bfloat16"
            ) from None

    def __str__(self) -> str:
        return f"{self.numbers:g}{f':{self.dtype}' if self.dtype else ''}"


def canonical(text: str) -> str:
    """The registry's name of an optimizer, such as `paged_adamw_8bit`; others come back as they are."""
    plain = _plain(text)
    return {_plain(name): name for name in KNOWN}.get(plain) or ALIASES.get(plain, text)


def _plain(text: str) -> str:
    return text.lower().replace("_", "").replace("-", "")


def unknown_optimizer(text: str) -> InputError:
    """The error for an optimizer that is not known."""
    error = unknown("optimizer", text, KNOWN)
    way_out = "or, for another one, say how many numbers it keeps per parameter: --optimizer-states 2"
    return InputError(f"{str(error).rstrip('?')}; {way_out}")


def possible(name: str, implementation: str) -> bool:
    """Whether an optimizer steps that way; an unknown one steps in a loop."""
    ways = KNOWN[name].ways if name in KNOWN else (LOOP,)
    return implementation in ("", *ways)


def runnable() -> dict[str, Callable[..., torch.optim.Optimizer]]:
    """Name -> class of the installed torch, for each optimizer that one class of torch is."""
    return {
        name: known.maker(name)
        for name, known in KNOWN.items()
        if isinstance(known.make, str) and not known.rest and hasattr(torch.optim, known.make)
    }


def optimizers_of(
    name: str,
    parameters: Sequence[nn.Parameter],
    hidden: Sequence[bool],
    implementation: str = "",
    states: States | None = None,
) -> list[torch.optim.Optimizer]:
    """The optimizers of a step: one, or a second one for parameters that the first does not take.

    Args:
        name: as in `KNOWN`; without effect where `states` are given.
        parameters: those to train.
        hidden: [parameters] whether each is a matrix between the embeddings and the output's weights.
        implementation: loop, foreach or fused; "": torch's choice.
        states: what an unknown optimizer keeps.

    Raises:
        InputError: an unknown name, or one that the installed torch lacks.
    """
    if states is not None:
        kind = getattr(torch, states.dtype) if states.dtype else None
        from neuralpower.optimizers.modelled import AnyStates

        return [AnyStates(parameters, states.numbers, kind)]
    if name not in KNOWN:
        raise unknown_optimizer(name)
    known = KNOWN[name]
    if known.rest:
        matrices = [p for p, own in zip(parameters, hidden, strict=True) if own]
        others = [p for p, own in zip(parameters, hidden, strict=True) if not own]
        found = [known.maker(name)(matrices, lr=1e-4)] if matrices else []
        return [*found, *(optimizers_of(known.rest, others, (), LOOP) if others else [])]
    ways: dict[str, Any] = {}
    if implementation and known.ways != (LOOP,):
        ways = {"fused": True} if implementation == FUSED else {"foreach": implementation == FOREACH}
    return [known.maker(name)(parameters, lr=1e-4, **ways)]
