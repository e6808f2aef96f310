"""Lifetimes in a deep network, from those in a shallow one that has a few of the same blocks.

Most language models repeat one block. A pass through four of them and one through five differ by one period:
what a block makes, and when it dies. Putting that period in again and again gives the pass through all
blocks. In a backward pass, blocks come in the reverse order; an optimizer walks through parameters, or makes
all temporaries in one call.

    four blocks    before | 0 | 1 |                     | 2 | 3 | after
    all blocks     before | 0 | 1 | copies of block 1 ... | 2 | 3 | after

The result is exact or there is none: one more block, put in here, has to give the very history that a
network with five blocks has. What a network does in later blocks alone is not seen: compare one pass with
that of the whole. Times are ranks of the calls that make or free memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from difflib import SequenceMatcher
from itertools import groupby
from typing import NamedTuple

from neuralpower.trace.lifetimes import Storage

SHORT = 4  # blocks of the shallow network: the first and the last may differ from the two between them
CUT = 1  # copies come after the block of this number

Token = tuple[object, ...]


class History(NamedTuple):
    """When memory was born and died in a pass or a step, in operator calls."""

    storages: Sequence[Storage]
    ends: tuple[int, ...]  # the last calls of forward and backward passes in turn, then of an optimizer
    steps: bool = False  # whether an optimizer's step comes last


class IrregularError(Exception):
    """Blocks do not repeat in the same way."""


class _Zone(NamedTuple):
    """Where periods are put in: after a time; a period's length; what it makes, where none is like it."""

    at: int
    length: int
    births: Sequence[Storage] = ()  # with times since the period's begin


class _Blocks(NamedTuple):
    """The numbers of blocks in paths below the list of modules; a block here may be several of these."""

    path: str  # of the list
    lead: int  # modules before the first block
    each: int  # modules of a block

    def number(self, text: str) -> int | None:
        """The number of the block that a path or a parameter's name lies in; None outside of the list."""
        place = self._place(text)
        return None if place is None else (place - self.lead) // self.each

    def moved(self, text: str, more: int) -> str:
        """The path in the block `more` places later; unchanged outside of the list."""
        place = self._place(text)
        if place is None or not more:
            return text
        start = len(self.path) + 1
        return f"{text[:start]}{place + more * self.each}{text[start + len(str(place)) :]}"

    def _place(self, text: str) -> int | None:
        head, found, rest = text.partition(f"{self.path}.")
        place = rest.partition(".")[0]
        return int(place) if found and not head and place.isdigit() else None


def ranked(history: History) -> History:
    """The history with times counted in calls that make or free memory, from 1."""
    times = sorted({time for one in history.storages for time in (one.birth, one.death) if time})
    rank = {time: place for place, time in enumerate(times, 1)}
    storages = [
        one._replace(birth=rank.get(one.birth, 0), death=_rank(rank, one)) for one in history.storages
    ]
    return history._replace(
        storages=storages, ends=tuple(bisect_left(times, end + 1) for end in history.ends)
    )


def _rank(rank: dict[int, int], one: Storage) -> int | None:
    return None if one.death is None else rank.get(one.death, 0)


class Deepening:
    """What puts more of the same blocks into a history; it is exact.

    Args:
        path: of the list of blocks.
        four: a pass through a network with `SHORT` blocks.
        five: the same pass through one with a block more.
        lead: modules of the list that come before the first block.
        each: modules of the list that are one block.

    Raises IrregularError where one block more, put in, gives another history than the longer one.
    """

    def __init__(self, path: str, four: History, five: History, lead: int = 0, each: int = 1) -> None:
        self._blocks, self._five = _Blocks(path, lead, each), ranked(five)
        self._begin(ranked(four))
        self._zones = [[zone] for zone in self._of_passes()]  # [passes, and an optimizer]
        # time -> (place among its births, what one block more has there)
        self._wider: dict[int, tuple[int, list[Storage]]] = {}
        if self._four.steps:
            self._zones.append(self._of_optimizer())
        ours, theirs = (
            [_token(one) for one in history.storages if not one.birth and not one.name]
            for history in (self._four, self._five)
        )
        held = len(theirs) - len(ours)
        # a cache lists its blocks from the first to the last, or the other way
        starts = _alike(ours, theirs) - SHORT * held, len(ours) - _alike(ours[::-1], theirs[::-1])
        if not any(self._exact(start, held) for start in dict.fromkeys(starts)):
            raise IrregularError("a block more makes other things")

    def _exact(self, start: int, held: int) -> bool:
        """Whether one block more gives the longer history, with this place of a cache's blocks."""
        self._kept = start, held  # the first of what a cache holds, and how much of each block
        try:
            return self._more(1) == list(self._five.storages)
        except IrregularError:
            return False

    def _begin(self, four: History) -> None:
        self._four, self._born = four, defaultdict[int, list[Storage]](list)
        for one in four.storages:
            self._born[one.birth].append(one)

    def like(self, four: History) -> Deepening | None:
        """The same for a pass at other sizes; None where other memory is made, or at other times."""
        four = ranked(four)
        if four.ends != self._four.ends or len(four.storages) != len(self._four.storages):
            return None
        if any(
            _times(one) != _times(other)
            for one, other in zip(four.storages, self._four.storages, strict=True)
        ):
            return None
        found = copy(self)
        found._begin(four)
        return found

    def ends(self, groups: int) -> tuple[int, ...]:
        """The ends of a history of that number of blocks, counted as `ranked` counts."""
        return tuple(self._moved(end, groups - SHORT) for end in self._four.ends)

    def storages(self, blocks: int) -> list[Storage]:
        """The storages of a network of `blocks` blocks, with times as ranks; raises IrregularError."""
        return self._more(blocks - SHORT)

    # ---- where periods go

    def _of_passes(self) -> Iterator[_Zone]:
        """Between blocks CUT and CUT + 1; a backward pass goes through them in the reverse order."""
        first = defaultdict[int, dict[int, int]](dict)  # pass -> block -> when it makes something first
        for time in sorted(self._born):
            for one in self._born[time] if time else ():
                if (number := self._blocks.number(one.origin[0])) is not None:
                    first[self._pass(time)].setdefault(number, time)
        for place in range(len(self._four.ends) - self._four.steps):
            before, after = (CUT, CUT + 1) if place % 2 == 0 else (CUT + 1, CUT)
            if not first[place].keys() >= {before, after}:
                raise IrregularError("a block makes nothing")
            yield _Zone(first[place][after] - 1, first[place][after] - first[place][before])

    def _of_optimizer(self) -> list[_Zone]:
        """Calls that an optimizer has for a block more; notes calls that make more at once."""
        ours, theirs = (list(_calls(history)) for history in (self._four, self._five))
        start, zones = self._four.ends[-2], list[_Zone]()
        matcher = SequenceMatcher(None, [*map(_call, ours)], [*map(_call, theirs)], autojunk=False)
        for tag, low, high, there, end in matcher.get_opcodes():
            if tag == "insert":
                zones.append(
                    _Zone(start + low, end - there, _since(self._five.ends[-2] + there, theirs[there:end]))
                )
            elif tag == "equal":
                pairs = zip(ours[low:high], theirs[there:end], strict=True)
                for time, (few, many) in enumerate(pairs, start + low + 1):
                    if len(few) < len(many):
                        place = _alike([*map(_token, few)], [*map(_token, many)])
                        self._wider[time] = place, many[place : place + len(many) - len(few)]
            else:
                raise IrregularError("an optimizer does other things")
        return zones

    # ---- the deep network

    def _more(self, more: int) -> list[Storage]:
        storages = self._held(more)
        for time in sorted(filter(None, self._born)):
            storages += self._made(time, more)
        for zone in (zone for zones in self._zones for zone in zones):
            begins = (self._moved(zone.at, more) + number * zone.length for number in range(more))
            storages += [_later(one, begin) for begin in begins for one in zone.births]
        first = sum(not one.birth for one in storages)
        return storages[:first] + sorted(storages[first:], key=lambda one: one.birth)

    def _made(self, time: int, more: int) -> list[Storage]:
        """What is made at a time, and at the same place of each period put in."""
        births, place, here = self._born[time], self._pass(time), self._moved(time, more)
        zone = next((zone for zone in self._zones[place] if zone.at - zone.length < time <= zone.at), None)
        if zone is None or self._steps(place):
            deepened = [self._plain(storage, here, more) for storage in births]
            if self._steps(place):  # what it makes for one parameter is gone with the next
                deepened = [
                    _aged(storage, here, other) for storage, other in zip(deepened, births, strict=True)
                ]
            if time in self._wider:
                at, chunk = self._wider[time]
                deepened[at:at] = [
                    storage._replace(birth=here, death=deepened[0].death) for storage in chunk
                ] * more
            return deepened
        partners = self._born[time + zone.length]
        if [*map(_token, births)] != [*map(_token, partners)]:
            raise IrregularError("neighbouring blocks make other things")
        deepened = []
        for storage, other in zip(births, partners, strict=True):
            deaths = self._deaths(place, (storage.death, other.death), more)
            reverse = place % 2 == 1 and not self._steps(place)
            for number, death in enumerate(deaths):
                origin = (
                    self._blocks.moved(storage.origin[0], more - number if reverse else number),
                    storage.origin[1],
                )
                birth = here + number * zone.length
                deepened.append(storage._replace(birth=birth, death=death, origin=origin))
        return deepened

    def _deaths(self, place: int, deaths: tuple[int | None, int | None], more: int) -> list[int | None]:
        """[copies, the own one first] when something dies, by when that of the next block dies."""
        ends, other = deaths
        if ends is None or other is None:
            if ends is not other:
                raise IrregularError("of neighbouring blocks, one keeps something")
            return [None] * (more + 1)
        where = self._pass(ends)
        if ends == other:
            return [self._moved(ends, more)] * (more + 1)
        if where != self._pass(other):
            raise IrregularError("of neighbouring blocks, one keeps something for longer")
        start = ends + self._before(where, more)
        lengths = [one.length for one in self._zones[where]]
        step = other - ends
        if [step] == lengths:
            return [start + number * step for number in range(more + 1)]
        if [-step] == lengths and where != place:
            return [start - (more - number) * step for number in range(more + 1)]
        raise IrregularError("what a block makes dies at other times in the next one")

    def _held(self, more: int) -> list[Storage]:
        """Weights, inputs and a cache that are there before the first call."""
        held, seen = list[Storage](), 0
        (start, each), loose = self._kept, [one for one in self._born[0] if not one.name]
        low, high = start + CUT * each, start + (CUT + 1) * each
        sorts = groupby(self._born[0], lambda one: (not one.name, self._blocks.number(one.name)))
        for (unnamed, block), group in sorts:
            births = list(group)
            if not unnamed:
                held += [self._plain(one, 0, more) for one in births]
                for number in range(1, more + 1) if block == CUT else ():
                    held += [one._replace(name=self._blocks.moved(one.name, number)) for one in births]
                continue
            places = range(seen, seen := seen + len(births))
            held += [self._plain(loose[i], 0, more) for i in places if i < low or not each]
            window = [i for i in places if low <= i < high]
            deaths = {i: self._deaths(-1, (loose[i].death, loose[i + each].death), more) for i in window}
            held += [loose[i]._replace(death=deaths[i][number]) for number in range(more + 1) for i in window]
            held += [self._plain(loose[i], 0, more) for i in places if i >= high and each]
        return held

    def _plain(self, storage: Storage, birth: int, more: int) -> Storage:
        """Something outside the periods put in, at its time in the deep network."""
        later = more if (self._blocks.number(storage.origin[0]) or 0) > CUT else 0
        name = self._blocks.moved(storage.name, more if (self._blocks.number(storage.name) or 0) > CUT else 0)
        return storage._replace(
            birth=birth,
            death=storage.death and self._moved(storage.death, more),
            name=name,
            origin=(self._blocks.moved(storage.origin[0], later), storage.origin[1]),
        )

    # ---- times

    def _pass(self, time: int) -> int:
        return bisect_left(self._four.ends, time)

    def _steps(self, place: int) -> bool:
        """Whether a part of the step is the optimizer's."""
        return self._four.steps and place == len(self._four.ends) - 1

    def _before(self, place: int, more: int) -> int:
        """How much later a pass begins."""
        return more * sum(zone.length for zones in self._zones[:place] for zone in zones)

    def _moved(self, time: int, more: int) -> int:
        """A time in the deep network, of what lies outside the periods put in."""
        place = self._pass(time)
        if place == len(self._zones):  # of what lives to the end
            return time + self._before(place, more)
        return (
            time + self._before(place, more) + more * sum(z.length for z in self._zones[place] if time > z.at)
        )


def _since(begin: int, calls: Sequence[Sequence[Storage]]) -> list[Storage]:
    """What a period makes, with times since its begin; raises IrregularError for what outlives the next."""
    found = [_later(one, -begin) for births in calls for one in births]
    if any(one.death is not None and one.death > 2 * len(calls) for one in found):
        raise IrregularError("an optimizer keeps something of a block for longer")
    return found


def _aged(one: Storage, birth: int, other: Storage) -> Storage:
    """The storage, which gets as old as another one."""
    return one if other.death is None else one._replace(death=birth + other.death - other.birth)


def _later(one: Storage, time: int) -> Storage:
    return one._replace(birth=one.birth + time, death=None if one.death is None else one.death + time)


def _times(one: Storage) -> tuple[object, ...]:
    return one.birth, one.death, one.part, one.name, one.origin


def _token(one: Storage) -> Token:
    return one.bytes, one.part, one.blocks, one.library, one.origin[1]


def _call(births: Sequence[Storage]) -> Token:
    """What a call is known by: all that it makes, or that it makes several things."""
    return (births[0].part,) if len(births) > 1 else tuple(map(_token, births))


def _calls(history: History) -> Iterator[list[Storage]]:
    """What each call of an optimizer makes."""
    born = defaultdict[int, list[Storage]](list)
    for one in history.storages:
        born[one.birth].append(one)
    first, last = history.ends[-2:]
    yield from (born[time] for time in range(first + 1, last + 1))


def _alike(ours: Sequence[Token], theirs: Sequence[Token]) -> int:
    """How many of the first are the same."""
    pairs = zip(ours, theirs, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(ours))
