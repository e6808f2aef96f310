"""Passes of a deep network from those of a shallow one, which has a few of its equal blocks.

Most language models repeat one block. Written down call by call, as what each makes and what dies with it, a
pass is a text, and one through five blocks is one through four in which some passages stand once more.
Written again and again, they give the pass through all blocks.

    four blocks    before | 0 | 1 |                     | 2 | 3 | after
    all blocks     before | 0 | 1 | copies of block 1 ... | 2 | 3 | after

Nothing in a text depends on the number of blocks: blocks have no numbers, and what dies is named by its place
among those that live and are alike. What a network does in later blocks alone is not seen: the caller
compares one pass with that of the whole. Times are ranks of the calls that make or free memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import nn

from neuralpower.errors import NeuralPowerError
from neuralpower.platforms import CPU, Platform
from neuralpower.prediction.fits.shortened import repeated
from neuralpower.trace.lifetimes import StepLifetimes, Storage
from neuralpower.trace.paths import pattern
from neuralpower.trace.records import Trace

SHORT = 4  # blocks of the shallow network: the first and the last may differ from the two between them
LEAST = 3  # times as many blocks as the shallow network: below, two of these take as long as the deep one

Text = tuple[Any, ...]  # passes of calls, each (what it makes, what dies: kind and place among those alive)
Repeats = list[tuple[Any, ...]]  # (place, begin and length of what comes there again) or (place, Repeats)


class IrregularError(Exception):
    """Blocks do not repeat in the same way."""


class Passed(NamedTuple):
    """A pass or a step, and its number of operator calls."""

    found: Trace | StepLifetimes
    calls: int

    @property
    def text(self) -> Text:
        """What each call makes and frees; what is there before the first is a pass of its own."""
        storages, kinds = self.found.storages, list[Storage]()
        born, dead = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for place, one in enumerate(storages):
            path, operator = one.origin
            kinds.append(
                Storage(0, None, 0, one.part, (), one.library, pattern(one.name), (pattern(path), operator))
            )
            born[one.birth].append(place)
            if one.death is not None:
                dead[one.death].append(place)
        passes = [list[Text]() for _ in range(len(self._ends) + 2)]  # the last for what ends after all of it
        living = defaultdict[Storage, list[int]](list)
        for time in sorted({0, *born, *dead}):
            for place in born[time]:
                living[kinds[place]].append(place)
            made = tuple(
                kinds[i]._replace(bytes=storages[i].bytes, blocks=storages[i].blocks) for i in born[time]
            )
            gone = tuple(_taken(living[kinds[i]], i, kinds[i]) for i in reversed(dead[time]))
            passes[bisect_left(self._ends, time) + 1 if time else 0].append((made, gone))
        return tuple(map(tuple, passes))

    @property
    def every_call(self) -> list[Text]:
        """The text without the borders of its passes."""
        return [*chain(*self.text)]

    @property
    def _ends(self) -> tuple[int, ...]:
        """The last calls of forward and backward passes in turn, then of an optimizer."""
        found = self.found
        if isinstance(found, Trace):
            return (max((max(one.birth, one.death or 0) for one in found.storages), default=0),)
        return (*found.passes, found.end) if found.end > found.passes[-1] else found.passes

    def of_text(self, text: Text, calls: int) -> Passed:
        """The same of a network with more blocks, whose names have a star for the block's number."""
        storages, ends, time = list[Storage](), list[int](), 0
        living = defaultdict[Storage, list[int]](list)
        for some in text:
            for made, gone in some:
                for one in made:
                    living[one._replace(bytes=0, blocks=())].append(len(storages))
                    storages.append(one._replace(birth=time))
                for kind, at in gone:
                    place = living[kind].pop(at)
                    storages[place] = storages[place]._replace(death=time)
                time += 1
            ends.append(time - 1)
        if isinstance(self.found, Trace):
            return Passed(replace(self.found, storages=tuple(storages)), calls)
        passes, end = tuple(ends[1 : len(self.found.passes) + 1]), ends[len(self._ends)]
        return Passed(self.found._replace(storages=tuple(storages), passes=passes, end=end), calls)


def _taken(living: list[int], place: int, kind: Storage) -> tuple[Storage, int]:
    """Remove one of those that live, and say which: counted from the newest, but for the oldest."""
    at = living.index(place)
    at = at - len(living) if at or len(living) == 1 else 0
    living.pop(at)
    return kind, at


def repeats(few: Text, more: Text) -> Repeats:
    """Where the longer text has what stands around that place again; raises IrregularError."""
    first = _alike(few, more)
    last = min(_alike(few[::-1], more[::-1]), len(few) - first)
    middles = few[first : len(few) - last], more[first : len(more) - last]
    found: Repeats = []
    for tag, *places in SequenceMatcher(None, *middles, autojunk=False).get_opcodes():
        low, high, start, end = (first + place for place in places)
        if tag == "insert":
            size, again = end - start, more[start:end]
            # what stands before there again, what stands after, or both, where two passages meet
            before = (
                count
                for count in (size, *range(size))
                if count <= low and (*few[low - count : low], *few[low : low + size - count]) == again
            )
            if (count := next(before, None)) is None:
                raise IrregularError("a block more makes other things")
            passages = (low, low - count, count), (low, low, size - count)
            found += [passage for passage in passages if passage[-1]]
        elif tag != "equal":
            if high - low != end - start or type(few[low]) is not tuple:
                raise IrregularError("a block more makes other things")
            found += [(low + i, repeats(few[low + i], more[start + i])) for i in range(high - low)]
    return found


def _alike(few: Text, more: Text) -> int:
    """How many of the first are the same."""
    pairs = enumerate(zip(few, more, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(few), len(more)))


def with_more(few: Text, places: Repeats, times: int) -> Text:
    """The text with `times` blocks more."""
    found = list(few)
    for at, *what in reversed(places):
        if len(what) == 1:
            found[at] = with_more(few[at], what[0], times)
        else:
            begin, size = what
            found[at:at] = few[begin : begin + size] * times
    return tuple(found)


def _shape(text: Text) -> Text:
    """The text without sizes."""
    return tuple(
        tuple((tuple(one._replace(bytes=0, blocks=()) for one in made), gone) for made, gone in some)
        for some in text
    )


Run = Callable[[nn.Module], Passed]
"""Follows the pass of a network, the whole one or a shallow one."""


class Shallow:
    """A network with a few of its blocks, in place of the whole.

    It is used for a pass only after the whole network's has been followed once, and was the very same: a
    network may do other things in its later blocks.

    Args:
        module: the whole network.
        build: gives one with the first blocks alone, by their number.
        platform: of the device.
        agrees: name of a pass -> whether a few blocks stand for all, where the same network has shown it.
        apart: names of passes that are always followed whole.
    """

    def __init__(
        self,
        module: nn.Module,
        build: Callable[[int], nn.Module],
        platform: Platform,
        agrees: Mapping[str, bool] = MappingProxyType({}),
        apart: Collection[str] = (),
    ) -> None:
        self.module, self.blocks, self.agrees, self.apart = module, repeated(module), dict(agrees), apart
        enough = self.blocks.blocks >= LEAST * self.blocks.with_groups(SHORT)
        # glibc's heap depends on calls that make nothing, too, which a text does not count
        self.useful = bool(self.blocks.path) and enough and platform.family != CPU.family
        self._first: dict[str, tuple[Run, Passed]] = {}  # by name: of all blocks, not compared yet
        # name of a pass -> its text without sizes, where a block more repeats it, the calls of one
        self._known: dict[str, tuple[Text, Repeats, int]] = {}
        self.network = cache(lambda groups: build(self.blocks.with_groups(groups)))

    def __call__(self, name: str, run: Run) -> Passed:
        """The pass of the whole network; the first of each name is followed whole."""
        passed = self.by_few(name, run)
        if passed is None:
            passed = run(self.module)
            if self.useful and name not in self.agrees and name not in self.apart:
                self._first[name] = run, passed
        return passed

    def by_few(self, name: str, run: Run) -> Passed | None:
        """The pass by a few blocks; None where these have not been seen to stand for all."""
        usable = self.useful and name not in self.apart and self._stands_for_all(name)
        return self._deepened(name, run) if usable else None

    def agreements(self) -> Mapping[str, bool]:
        """Name of a pass -> whether a few blocks stand for all; those followed whole are compared."""
        for name in [*self._first]:
            self._stands_for_all(name)
        return self.agrees

    def _stands_for_all(self, name: str) -> bool:
        """Whether a few blocks make the pass to the byte and call."""
        if name in self._first:
            run, whole = self._first.pop(name)
            few = self._deepened(name, run)
            self.agrees[name] = (
                few is not None and few.calls == whole.calls and few.every_call == whole.every_call
            )
        return self.agrees.get(name, False)

    def _deepened(self, name: str, run: Run) -> Passed | None:
        """The pass by a few blocks; None where these do not repeat, or do not run alone.

        A pass that is known needs no second network at other sizes.
        """
        try:
            four = run(self.network(SHORT))
            text = four.text
            shape, more = _shape(text), self.blocks.groups - SHORT
            if name not in self._known or self._known[name][0] != shape:
                five = run(self.network(SHORT + 1))
                self._known[name] = shape, repeats(text, five.text), five.calls - four.calls
            _, places, calls = self._known[name]
            return four.of_text(with_more(text, places, more), four.calls + more * calls)
        except (IrregularError, NeuralPowerError):  # such as a network that reads one of its later blocks
            return None
