"""Requests as they arrive: drawn at a rate, kept at a number of users, or read from a file.

Files: CSV, JSON lines or a JSON list. Columns are known by the names of vLLM's and LLMServingSim's logs,
Mooncake, BurstGPT and Azure's traces; `timestamp` of Mooncake is in milliseconds, others in seconds or dates.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.errors import InputError

Array = np.ndarray
MOST_REQUESTS = 2_000_000
NAMED = 512  # tokens that a hash of Mooncake's traces names
LEAST_NAMED, MOST_NAMED = 16, 2**20  # that any may: from a block of engines' caches on
ARRIVAL = {
    "arrival_s": 1.0,
    "arrival": 1.0,
    "created_time": 1.0,
    "Timestamp": 1.0,
    "TIMESTAMP": 1.0,
    "timestamp": 1e-3,
}
"""Columns of arrivals, and seconds of a unit of each."""
INPUT = ("input_toks", "input_length", "input_tokens", "prompt_len", "Request tokens", "ContextTokens")
OUTPUT = ("output_toks", "output_length", "output_tokens", "output_len", "Response tokens", "GeneratedTokens")


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their arrival, each array [requests]."""

    arrival_s: Array  # from the first one's; empty where `users` decides
    prompt: Array  # tokens
    output: Array  # tokens, 1 or more
    users: int = 0  # of a closed loop: each sends its next request when the last one has ended; 0: open
    prefixes: tuple[tuple[int, ...], ...] = ()  # of each request: what names its prompt's parts, in order
    named: int = 0  # tokens of a part

    def __post_init__(self) -> None:
        """Raise InputError for requests that cannot be."""
        if not len(self.prompt) and not self.users:
            raise InputError("no requests: give a count of 1 or more, or a file with a line")
        if len(self.prompt) > MOST_REQUESTS:
            raise InputError(f"{len(self.prompt):,} requests: at most {MOST_REQUESTS:,}; give a part of them")
        for name in ("prompt", "output"):
            least = int(getattr(self, name).min())
            if least < 1:
                raise InputError(f"{name} of {least} tokens: each request has 1 or more")

    @property
    def count(self) -> int:
        """Number of requests."""
        return len(self.prompt)

    @property
    def rate(self) -> float | None:
        """Requests per second that arrive, in the mean; None where they come at no rate."""
        span = 0.0 if self.users else float(self.arrival_s[-1])
        return (self.count - 1) / span if span else None

    def shared(self, among: int) -> list[Workload]:
        """What each of several gets, in turn: none of those without a request, or without a user."""
        most = min(among, self.count, self.users or among)
        return [self] if most == 1 else [self._part(place, most) for place in range(most)]

    def _part(self, place: int, replicas: int) -> Workload:
        users = self.users // replicas + (place < self.users % replicas)
        arrival = self.arrival_s[place::replicas]
        prefixes = self.prefixes[place::replicas]
        return Workload(
            arrival, self.prompt[place::replicas], self.output[place::replicas], users, prefixes, self.named
        )

    def at_rate(self, rate: float) -> Workload:
        """The same requests, arriving in the mean at another rate (per second)."""
        span = float(self.arrival_s[-1]) or 1.0
        return replace(
            self, arrival_s=self.arrival_s * ((self.count - 1) / rate / span if self.count > 1 else 1.0)
        )


def drawn(
    count: int,
    prompt: int,
    output: int,
    rate: float,
    burstiness: float = 1.0,
    spread: float = 0.0,
    seed: int = 0,
) -> Workload:
    """Draw requests that arrive at a rate.

    Args:
        count: requests.
        prompt: tokens of each prompt, in the mean.
        output: tokens of each answer, in the mean.
        rate: requests per second.
        burstiness: shape of the gamma distribution of gaps: 1 is a Poisson process, below 1 burstier,
            infinite a constant rate.
        spread: lengths are drawn evenly from 1 - spread to 1 + spread of the mean.
        seed: of the draw.

    Raises:
        InputError: numbers out of their ranges.
    """
    if not (np.isfinite(rate) and rate > 0):
        raise InputError(f"rate {rate:g}: requests per second, above 0 and finite")
    _check_burstiness(burstiness)
    random = np.random.default_rng(seed)
    prompts, outputs = _lengths(random, count, (prompt, output), spread)
    gaps = (
        np.full(count, 1 / rate)
        if np.isinf(burstiness)
        else random.gamma(burstiness, 1 / rate / burstiness, count)
    )
    arrival = np.cumsum(gaps) - gaps[0] if count else gaps
    return Workload(arrival, prompts, outputs)


def _check_burstiness(burstiness: float) -> None:
    """Raise InputError for a shape that no gaps have."""
    if not burstiness > 0:
        raise InputError(f"burstiness {burstiness:g}: above 0; 1 is a Poisson process, inf a constant rate")


def looped(count: int, prompt: int, output: int, users: int, spread: float = 0.0, seed: int = 0) -> Workload:
    """Draw requests of users who send the next one when the last one has ended; as `drawn`."""
    if users < 1:
        raise InputError(f"users {users}: 1 or more")
    lengths = _lengths(np.random.default_rng(seed), count, (prompt, output), spread)
    return Workload(np.zeros(0), *lengths, users)


def _lengths(
    random: np.random.Generator, count: int, means: tuple[int, int], spread: float
) -> tuple[Array, Array]:
    """(tokens of prompts, tokens of answers), each [requests]; raises InputError."""
    if not 0 <= spread < 1:
        raise InputError(f"spread {spread:g}: from 0 to below 1")
    prompts, outputs = (
        np.maximum(1, np.rint(mean * random.uniform(1 - spread, 1 + spread, count))).astype(np.int64)
        if spread
        else np.full(count, mean, dtype=np.int64)
        for mean in means
    )
    return prompts, outputs


@dataclass(frozen=True)
class Requested:
    """The requests that a command or a call asks for; without rate, users and trace, one a second."""

    rate: float | None = None
    users: int | None = None
    trace: str | Path | None = None
    input: int = 1024
    output: int = 256
    requests: int | None = None
    scale: float = 1.0
    burstiness: float = 1.0
    spread: float = 0.0
    seed: int = 0

    def workload(self) -> Workload:
        """Draw or read them.

        Raises:
            InputError: two of rate, users and trace; as `drawn`, `looped` and `read`.
        """
        given = [name for name in ("rate", "users", "trace") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)}: each says which requests come; leave one out")
        for name in ("input", "output", "requests", "users"):
            if (tokens := getattr(self, name)) is not None and tokens < 1:
                raise InputError(f"{name} {tokens}: 1 or more")
        _check_burstiness(self.burstiness)  # also where the requests have no gaps to draw
        if self.trace is not None:
            return read(Path(self.trace), scale=self.scale, first=self.requests)
        means = self.input, self.output
        if self.users:
            count = self.requests or max(256, 8 * self.users)
            return looped(count, *means, self.users, self.spread, self.seed)
        rate = 1.0 if self.rate is None else self.rate
        count = self.requests or max(256, round(60 * rate) if np.isfinite(rate) else 0)
        return drawn(count, *means, rate, self.burstiness, self.spread, self.seed)


def read(path: Path, *, scale: float = 1.0, first: int | None = None) -> Workload:
    """Read requests from a file.

    Args:
        path: CSV with a header, JSON lines, or a JSON list.
        scale: arrivals come this many times as fast.
        first: take the first requests only.

    Raises:
        InputError: there is no such file; a line that is broken or has no length, by its number; arrivals
            that go back in time.
    """
    if not scale > 0 or not np.isfinite(scale):
        raise InputError(f"scale {scale:g}: above 0 and finite")
    times: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    prefixes: list[tuple[int, ...]] = []
    for number, row in _rows(path):
        if first is not None and len(prompts) >= first:
            break
        where = f"{path}, line {number}"
        times.append(_arrival(row, where))
        prompts.append(_length(row, INPUT, where))
        outputs.append(_length(row, OUTPUT, where))
        named = row.get("hash_ids") or ()
        prefixes.append(_names(named, where))
        if times[-1] < times[0] or (len(times) > 1 and times[-1] < times[-2]):
            raise InputError(f"{where}: arrives before the line above it; sort the file by arrival")
    if not prompts:
        raise InputError(f"{path} has no requests")
    arrival = (np.array(times) - times[0]) / scale
    known = tuple(prefixes) if any(prefixes) else ()
    named = _part(path, prompts, prefixes) if known else 0
    return Workload(arrival, np.array(prompts), np.array(outputs), prefixes=known, named=named)


def _part(path: Path, prompts: Sequence[int], names: Sequence[Sequence[int]]) -> int:
    """Tokens that a hash names: as all lines allow; raises InputError for a line that contradicts others."""
    low, high = LEAST_NAMED, MOST_NAMED
    for number, (tokens, some) in enumerate(zip(prompts, names, strict=True), 1):
        if not some:
            continue
        least, most = -(-tokens // len(some)), (tokens - 1) // (len(some) - 1) if len(some) > 1 else high
        if max(low, least) > min(high, most):
            raise InputError(
                f"{path}, request {number}: {len(some)} hash_ids contradict its length of {tokens}: each "
                f"names {low} to {high} tokens, by the requests above; correct the length or the hash_ids"
            )
        low, high = max(low, least), min(high, most)
    return NAMED if low <= NAMED <= high else low


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number of the line, its fields)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}; give a CSV or JSON lines") from error
    if not text.lstrip().startswith(("{", "[")):
        lines = csv.DictReader(text.splitlines())
        yield from ((lines.line_num, row) for row in lines)
        return
    for number, line in enumerate(_lines(text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: is not an object; write one request a line")
        yield number, row


def _lines(text: str) -> list[str]:
    """Lines of JSON; of a list, one for each of its values."""
    try:
        return list(map(json.dumps, json.loads(text))) if text.lstrip().startswith("[") else text.splitlines()
    except ValueError:
        return text.splitlines()


def _names(given: Any, where: str) -> tuple[int, ...]:
    """The names of a prompt's parts; raises InputError."""
    try:
        names = json.loads(given) if isinstance(given, str) else given
        return tuple(int(one) for one in names)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: hash_ids {given!r:.40}: a list of whole numbers") from error


def _column(row: Mapping[str, Any], names: Iterable[str], what: str, where: str) -> str:
    """The column that has a value; raises InputError."""
    known = [name for name in names if name in row]
    name = next((name for name in known if row[name] not in (None, "")), None)
    if name is None:
        way_out = f"fill {known[0]}" if known else f"name its column one of {', '.join(names)}"
        raise InputError(f"{where}: no {what}; {way_out}")
    return name


def _arrival(row: Mapping[str, Any], where: str) -> float:
    name = _column(row, ARRIVAL, "arrival", where)
    value = row[name]
    try:
        seconds = float(value) * ARRIVAL[name]
    except (TypeError, ValueError):
        try:
            seconds = datetime.fromisoformat(str(value)[:26]).timestamp()
        except ValueError as error:
            raise InputError(f"{where}: {name} {value!r} is not a time: a number or a date") from error
    if not np.isfinite(seconds) or seconds < 0:
        raise InputError(f"{where}: {name} {value}: a time is 0 or more")
    return seconds


def _length(row: Mapping[str, Any], names: Sequence[str], where: str) -> int:
    name = _column(row, names, "length", where)
    try:
        value = float(row[name])
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {name} {row[name]!r} is not a number of tokens") from error
    if not value >= 1 or value % 1:
        raise InputError(f"{where}: {name} {row[name]}: a whole number of tokens, 1 or more")
    return int(value)
