"""The phases of a network, and how many tokens each reads.

    forward    the whole input once, as in training and evaluation
    prefill    the whole prompt once, keys and values are kept, the last position alone gets logits
    decode     one new token per sample against `context` tokens in the cache
    generate   a prefill, then decode steps against prompt, prompt + 1, ... tokens

An encoder-decoder's prefill is its encoder and the first step of its decoder; its context counts the
decoder's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuralpower.errors import InputError, is_count, unknown
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.networks.inputs import TOKENS, InputRequest, check_count

PREFILL, DECODE, GENERATE = "prefill", "decode", "generate"
PHASES = (FORWARD, PREFILL, DECODE, GENERATE)
PREDICTED = (*PHASES, "training", BACKWARD)  # all phases that can be predicted
READ_BY = {"context": (DECODE,), "prompt": (PREFILL, GENERATE), "new_tokens": (GENERATE,)}
SPELLED = 4  # lengths that are written out
MOST_REQUESTS = 4096  # of a batch whose requests have lengths of their own


@dataclass(frozen=True)
class Phase:
    """A phase of a language model and its sizes; None means the request's number or the default."""

    name: str = FORWARD
    batch: int | None = None
    context: int | None = None  # decode: tokens in the cache before the step
    prompt: int | None = None  # prefill, generate
    new_tokens: int | None = None  # generate; the prefill makes the first
    lengths: tuple[int, ...] | None = None  # tokens of each request: prompts, in a decode step contexts

    @classmethod
    def forward(cls) -> Phase:
        """The whole input once."""
        return cls()

    @classmethod
    def prefill(
        cls, prompt: int | None = None, batch: int | None = None, *, lengths: Iterable[int] | None = None
    ) -> Phase:
        """A prompt of `prompt` tokens per sample (by default the request's length), or of `lengths`."""
        return cls(PREFILL, batch, prompt=prompt, lengths=listed(lengths))

    @classmethod
    def decode(
        cls, batch: int | None = None, context: int | None = None, *, lengths: Iterable[int] | None = None
    ) -> Phase:
        """One token per sample against `context` earlier ones, or against its own number each."""
        return cls(DECODE, batch, context, lengths=listed(lengths))

    @classmethod
    def generate(
        cls,
        prompt: int | None = None,
        new_tokens: int = TOKENS,
        batch: int | None = None,
        *,
        lengths: Iterable[int] | None = None,
    ) -> Phase:
        """`new_tokens` after a prompt, or after prompts of these lengths."""
        return cls(GENERATE, batch, prompt=prompt, new_tokens=new_tokens, lengths=listed(lengths))

    def check(self, known: Sequence[str] = PHASES) -> None:
        """Raise InputError for an unknown name, or a number that is not positive and whole, or not used."""
        if self.name not in known:
            raise unknown("phase", self.name, known)
        check_count("batch", self.batch)
        for name, phases in READ_BY.items():
            value = getattr(self, name)
            check_count(name, value)
            if value is not None and self.name not in phases:
                raise InputError(
                    f"--{name.replace('_', '-')} {value} belongs to --phase {' or '.join(phases)}, "
                    f"not to {self.name}; leave it out"
                )
        self._check_lengths()

    def _check_lengths(self) -> None:
        """Raise InputError for lengths that the phase does not have, or that contradict its other numbers."""
        if self.lengths is None:
            return
        if self.name not in (PREFILL, DECODE, GENERATE):
            ways = f"{PREFILL}, {DECODE} or {GENERATE}"
            raise InputError(f"--lengths belongs to --phase {ways}, not to {self.name}; leave it out")
        if not 0 < len(self.lengths) <= MOST_REQUESTS:
            raise InputError(
                f"lengths: got {len(self.lengths)}; give 1 to {MOST_REQUESTS}, one for each request"
            )
        for length in self.lengths:
            if not is_count(length):
                raise InputError(f"length {length!r} of a request: must be a whole number, 1 or more")
        if self.batch is not None and self.batch != len(self.lengths):
            raise InputError(
                f"batch {self.batch} and {len(self.lengths)} lengths: a batch has one for each request; "
                "leave the batch size out"
            )
        for name in ("context", "prompt"):
            value = getattr(self, name)
            if value is not None:
                raise InputError(f"--{name} {value} and --lengths both say how long texts are; leave one out")

    def applied(self, request: InputRequest) -> InputRequest:
        """The request with this phase's batch and prompt; raises InputError where it has another length."""
        if self.prompt is not None and request.seq_len not in (None, self.prompt):
            raise InputError(
                f"--prompt {self.prompt} and --seq-len {request.seq_len} both are the prompt's length; "
                "leave one out"
            )
        if self.lengths is not None and request.seq_len is not None:
            raise InputError(
                f"--seq-len {request.seq_len} and --lengths both say how long texts are; leave one out"
            )
        batch_size = self.batch or (request.batch_size if self.lengths is None else len(self.lengths))
        return replace(request, batch_size=batch_size, seq_len=self.prompt or request.seq_len)

    @property
    def label(self) -> str:
        """The phase's name and numbers."""
        given: dict[str, Any] = {"context": self.context, "prompt": self.prompt, "new": self.new_tokens}
        given |= {} if self.lengths is None else {"lengths": spelled(self.lengths)}
        return " ".join(
            [self.name, *(f"{name} {value}" for name, value in given.items() if value is not None)]
        )


def listed(given: Any) -> tuple[int, ...] | None:
    """Lengths as a tuple, None for None; raises InputError for what holds none."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"lengths {given!r:.40}: must be a list of whole numbers, one for each request")
    return tuple(given)


def spelled(lengths: Sequence[int]) -> str:
    """Lengths in a few words."""
    if len(lengths) <= SPELLED:
        return ",".join(map(str, lengths))
    return f"{min(lengths)} to {max(lengths)}"


def mean_length(lengths: Sequence[int]) -> int:
    """The mean, rounded down."""
    return sum(lengths) // len(lengths)
