"""The phases of a network, and how many tokens each reads.

    forward    the whole input once, as in training and evaluation
    prefill    the whole prompt once, keys and values are kept, the last position alone gets logits
    decode     one new token per sample against `context` tokens in the cache
    generate   a prefill, then decode steps against prompt, prompt + 1, ... tokens
    step       one step of an engine: next tokens of some requests, and chunks of others' prompts

An encoder-decoder's prefill is its encoder and the first step of its decoder; its context counts the
decoder's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuralpower.errors import InputError, is_count, unknown
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.networks.inputs.size_limits import TOKENS, InputRequest, check_count

PREFILL, DECODE, GENERATE, STEP = "prefill", "decode", "generate", "step"
PHASES = (FORWARD, PREFILL, DECODE, GENERATE, STEP)
PREDICTED = (*PHASES, "training", BACKWARD)  # all phases that can be predicted
READ_BY = {"context": (DECODE,), "prompt": (PREFILL, GENERATE), "new_tokens": (GENERATE,)}
OF_STEP = ("contexts", "chunks")
SPELLED = 4  # lengths that are written out
MOST_REQUESTS = 4096  # of a batch whose requests have lengths of their own


@dataclass(frozen=True)
class Step:
    """One step of an engine: some requests get their next token, and chunks of prompts are read."""

    contexts: tuple[int, ...] = ()  # cached tokens of each request that gets its next token
    chunks: tuple[tuple[int, int], ...] = ()  # (new, cached) tokens of each prompt that is read
    ending: int | None = None  # chunks that end a prompt, which get their first token; None: all of them

    def __post_init__(self) -> None:
        """Raise InputError for a step without requests, or with sizes that it cannot have."""
        if not self.contexts and not self.chunks:
            raise InputError("a step without requests: give contexts, chunks or both")
        if len(self.contexts) + len(self.chunks) > MOST_REQUESTS:
            raise InputError(
                f"a step of {len(self.contexts) + len(self.chunks)} requests: give {MOST_REQUESTS} at most"
            )
        for context in self.contexts:
            if not is_count(context):
                raise InputError(
                    f"context {context!r:.40}: a request that decodes has a whole number of cached tokens, "
                    "1 or more"
                )
        for chunk in self.chunks:
            if not (isinstance(chunk, tuple) and len(chunk) == 2 and is_count(chunk[0])) or (
                chunk[1] != 0 and not is_count(chunk[1])
            ):
                raise InputError(
                    f"chunk {_written(chunk):.40}: 1 new token or more against 0 cached tokens or more; "
                    "write 512@0"
                )
        if self.ending is not None and not 0 <= self.ending <= len(self.chunks):
            raise InputError(f"ending {self.ending}: from 0 to the {len(self.chunks)} chunks of the step")

    @property
    def tokens(self) -> int:
        """New tokens of all requests."""
        return len(self.contexts) + sum(new for new, _ in self.chunks)

    @property
    def sequences(self) -> int:
        """Requests that get a token."""
        return len(self.contexts) + (len(self.chunks) if self.ending is None else self.ending)

    @property
    def positions(self) -> int:
        """Places whose rotations are looked up: prompts of one length that start at 0 share them."""
        if not self.chunks:
            return 1
        alike = len(set(self.chunks)) == 1 and not self.contexts
        return self.chunks[0][0] if alike else self.tokens

    @property
    def context(self) -> int:
        """Mean of the cached tokens of the requests that get their next token."""
        return round(sum(self.contexts) / len(self.contexts)) if self.contexts else 0

    @property
    def longest(self) -> int:
        """Positions that the longest request takes."""
        return max([*(held + 1 for held in self.contexts), *(new + held for new, held in self.chunks)])

    @property
    def held(self) -> int:
        """Tokens in the caches of all requests after the step."""
        return self.tokens + sum(self.contexts) + sum(held for _, held in self.chunks)


def _written(chunk: Any) -> str:
    """A chunk as the command line has it."""
    pair = isinstance(chunk, Iterable) and not isinstance(chunk, str)
    return "@".join(map(str, chunk)) if pair else repr(chunk)


@dataclass(frozen=True)
class Phase:
    """A phase of a language model and its sizes; None means the request's number or the default."""

    name: str = FORWARD
    batch: int | None = None
    context: int | None = None  # decode: tokens in the cache before the step
    prompt: int | None = None  # prefill, generate
    new_tokens: int | None = None  # generate; the prefill makes the first
    lengths: tuple[int, ...] | None = None  # tokens of each request: prompts, in a decode step contexts
    contexts: tuple[int, ...] | None = None  # step: as in `Step`
    chunks: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def forward(cls) -> Phase:
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

    @classmethod
    def step(cls, contexts: Iterable[int] = (), chunks: Iterable[tuple[int, int]] = ()) -> Phase:
        """One step: the cached tokens of each request that decodes, and (new, cached) of each chunk.

        Each chunk ends its prompt. Raises InputError for what is not a list.
        """
        found = cls(STEP, contexts=listed(contexts, "contexts"), chunks=listed(chunks, "chunks"))
        found.check()
        return found

    def requests_of_step(self) -> Step:
        """The requests of a step; raises InputError."""
        chunks = tuple(tuple(one) if isinstance(one, list) else one for one in self.chunks or ())
        return Step(self.contexts or (), chunks)

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
                    f"not to {self.name}; add --phase {phases[-1]}, or leave it out"
                )
        self._check_lengths()
        self._check_step()

    def _check_step(self) -> None:
        """Raise InputError for requests that a step cannot have, or of another phase."""
        if self.name == STEP:
            if self.batch is not None:
                raise InputError(
                    f"batch {self.batch}: contexts and chunks say how many requests; leave it out"
                )
            self.requests_of_step()
            return
        for name in OF_STEP:
            if getattr(self, name) is not None:
                raise InputError(f"--{name} belongs to --phase {STEP}, not to {self.name}; leave it out")

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

    def check_length(self, seq_len: int | None) -> None:
        """Raise InputError for a length of texts where the phase has another one."""
        if self.prompt is not None and seq_len not in (None, self.prompt):
            raise InputError(
                f"--prompt {self.prompt} and --seq-len {seq_len} both are the prompt's length; leave one out"
            )
        if self.lengths is not None and seq_len is not None:
            raise InputError(f"--seq-len {seq_len} and --lengths both say how long texts are; leave one out")

    def applied(self, request: InputRequest) -> InputRequest:
        """The request with this phase's batch and prompt; raises InputError where it has another length."""
        self.check_length(request.seq_len)
        batch_size = self.batch or (request.batch_size if self.lengths is None else len(self.lengths))
        return replace(request, batch_size=batch_size, seq_len=self.prompt or request.seq_len)

    @property
    def label(self) -> str:
        given: dict[str, Any] = {"context": self.context, "prompt": self.prompt, "new": self.new_tokens}
        given |= {} if self.lengths is None else {"lengths": spelled(self.lengths)}
        given |= {"contexts": spelled(self.contexts)} if self.contexts else {}
        given |= {"chunks": spelled(self.chunks)} if self.chunks else {}
        return " ".join(
            [self.name, *(f"{name} {value}" for name, value in given.items() if value is not None)]
        )


def listed(given: Any, what: str = "lengths") -> tuple[Any, ...] | None:
    """Lengths as a tuple, None for None; raises InputError for what holds none."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"{what} {given!r:.40}: must be a list, with one entry for each request")
    return tuple(given)


def spelled(lengths: Sequence[int] | Sequence[tuple[int, int]]) -> str:
    """Lengths, or chunks, in a few words."""
    first, *others = dict.fromkeys(map(_spelled, lengths if len(lengths) <= SPELLED else sorted(lengths)))
    if len(lengths) <= SPELLED:
        return ",".join(map(_spelled, lengths))
    return f"{first} to {others[-1]}" if others else first


def _spelled(one: Any) -> str:
    return f"{one[0]}@{one[1]}" if isinstance(one, tuple) else str(one)


def mean_length(lengths: Sequence[int]) -> int:
    return sum(lengths) // len(lengths)
