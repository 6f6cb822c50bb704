"""What may start: which waiting jobs may start now, and if none, when to look again. Pure.

The claims of both engines, `why` and the pages ask this one model; what it knows is passed in. A limit is
counted under the name it was set for, and all types that have it from there share it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Literal

from msgspec import Struct

from holdfast.core.rate_limit import Bucket, full
from holdfast.core.settings import Limits, Settings

MOST_LOSSES = 2
"""How many workers in a row a job may lose; after that, it runs alone in its process.

The condition of the index holdfast_jobs_suspect has this number, too: another takes a migration.
"""

HoldKind = Literal["paused", "max_running", "group_concurrency", "rate_limit", "slots"]


class Usage(Struct, frozen=True):
    """What runs now, by type and by (type, group), and the stored buckets of rate limits by name."""

    running: Mapping[str, int] = {}
    groups: Mapping[tuple[str, str], int] = {}
    buckets: Mapping[str, Bucket] = {}


class Hold(Struct, frozen=True):
    """What keeps a job from starting: a pause, or a limit with whose it is and how much of it is in use."""

    kind: HoldKind
    name: str = ""
    size: float = 0.0
    used: int = 0
    wait: float | None = None
    """Seconds until it lets the next job start; None where that depends on other jobs."""


class Room:
    """What may still start, while jobs are chosen one after another.

    `slots` says for types how many jobs one worker process has room for. Those that share the name of their
    slots share the room; of types that may be held ready there may be more of it.
    """

    def __init__(
        self, settings: Settings, usage: Usage, now: int, slots: Iterable[tuple[str, int]] | None = None
    ) -> None:
        self._settings = settings
        self._now = now
        self._buckets = usage.buckets
        self._slots: dict[tuple[str, bool], int] | None = None
        if slots is not None:
            self._slots = {}
            for type, free in slots:
                limits = settings.limits(type)
                name = limits.slots.name, limits.may_be_held
                self._slots[name] = max(free, self._slots.get(name, 0))
        self._running: dict[str, int] = {}
        self._groups: dict[tuple[str, str], int] = {}
        for type, count in usage.running.items():
            limit = settings.limits(type).max_running
            if limit is not None:
                self._running[limit.name] = self._running.get(limit.name, 0) + count
        for (type, group), count in usage.groups.items():
            limit = settings.limits(type).group
            if limit is not None:
                place = limit.name, group
                self._groups[place] = self._groups.get(place, 0) + count
        self.changed: dict[str, Bucket] = {}
        """The buckets of rate limits that differ from what is stored."""
        self.limited: set[str] = set()
        """The types of which a limit over all processes kept a job from starting."""
        self._refused: dict[str, float] = {}

    def holds(self, type: str, group: str | None) -> list[Hold]:
        """All that keeps a job of this type and group from starting."""
        limits = self._settings.limits(type)
        found = [Hold("paused", name) for name in limits.paused]
        limit = limits.max_running
        if limit is not None and self._running.get(limit.name, 0) >= limit.size:
            found.append(Hold("max_running", limit.name, limit.size, self._running[limit.name]))
        limit = limits.group
        if limit is not None and group is not None:
            used = self._groups.get((limit.name, group), 0)
            if used >= limit.size:
                found.append(Hold("group_concurrency", limit.name, limit.size, used))
        limit = limits.rate
        if limit is not None:
            bucket = self._bucket(limit.name, limit.size)
            if not bucket.available():
                wait = bucket.seconds_until_next(limit.size)
                found.append(Hold("rate_limit", limit.name, limit.size, wait=wait))
        if self._free_slots(limits) <= 0:
            found.append(Hold("slots", limits.slots.name, limits.slots.size))
        return found

    def most(self, type: str) -> int:
        """How many jobs of a type may start now, if their groups let them."""
        limits = self._settings.limits(type)
        if limits.paused:
            return 0
        most = max(0, self._free_slots(limits))
        if most and limits.max_running is not None:
            limit = limits.max_running
            most = min(most, max(0, int(limit.size) - self._running.get(limit.name, 0)))
        if most and limits.rate is not None:
            limit = limits.rate
            most = min(most, self._bucket(limit.name, limit.size).available())
        return most

    def most_of_group(self, type: str, group: str | None) -> int:
        """How many jobs of a group may start now, if the limits of their type let them."""
        limit = self._settings.limits(type).group
        if limit is None or group is None:
            return 2**31
        return max(0, int(limit.size) - self._groups.get((limit.name, group), 0))

    def full_groups(self, type: str) -> int:
        """How many groups have all the jobs of this type running that they may: at most as many as run."""
        limit = self._settings.limits(type).group
        if limit is None:
            return 0
        return sum(used >= limit.size for (name, _), used in self._groups.items() if name == limit.name)

    def may_start(self, type: str, group: str | None) -> bool:
        """Whether a job may start; `take` starts it. What keeps it is noted for `wait` and `limited`."""
        if self.most(type) > 0 and self.most_of_group(type, group) > 0:
            return True
        self.refuse(type)
        return False

    def refuse(self, type: str) -> None:
        """A job of this type would start if there were room for it."""
        limits = self._settings.limits(type)
        if limits.paused or self._free_slots(limits) <= 0:
            return
        self.limited.add(type)
        if limits.rate is not None and not self._bucket(limits.rate.name, limits.rate.size).available():
            self._refused[limits.rate.name] = limits.rate.size

    def take(self, type: str, group: str | None) -> None:
        """A job starts."""
        limits = self._settings.limits(type)
        self._use_slot(limits, 1)
        if limits.max_running is not None:
            name = limits.max_running.name
            self._running[name] = self._running.get(name, 0) + 1
        if limits.group is not None and group is not None:
            place = limits.group.name, group
            self._groups[place] = self._groups.get(place, 0) + 1
        if limits.rate is not None:
            name = limits.rate.name
            self.changed[name] = self._bucket(name, limits.rate.size).take(1)

    def give_back(self, type: str, group: str | None) -> None:
        """A job that was taken does not start after all."""
        limits = self._settings.limits(type)
        self._use_slot(limits, -1)
        if limits.max_running is not None:
            self._running[limits.max_running.name] -= 1
        if limits.group is not None and group is not None:
            self._groups[limits.group.name, group] -= 1
        if limits.rate is not None:
            name = limits.rate.name
            self.changed[name] = self.changed[name].take(-1)

    def wait(self) -> float | None:
        """Seconds until the first rate limit that refused a job lets one through."""
        waits = [self._bucket(name, rate).seconds_until_next(rate) for name, rate in self._refused.items()]
        return min(waits, default=None)

    def _free_slots(self, limits: Limits) -> int:
        if self._slots is None:
            return 2**31
        return self._slots.get((limits.slots.name, limits.may_be_held), 0)

    def _use_slot(self, limits: Limits, count: int) -> None:
        if self._slots is not None:
            for place in ((limits.slots.name, True), (limits.slots.name, False)):
                if place in self._slots:
                    self._slots[place] -= count

    def _bucket(self, name: str, rate: float) -> Bucket:
        found = self.changed.get(name)
        if found is None:
            stored = self._buckets.get(name)
            found = full(rate, self._now) if stored is None else stored.refill(rate, self._now)
            if stored is not None and stored.at > self._now:
                self.changed[name] = found  # the clock stepped back: from now on count from here
        return found


class Candidate(Struct, frozen=True):
    """A waiting job that could start, as it stands in line."""

    priority: int
    seq: int
    type: str
    group: str | None = None


def choose(
    lines: Sequence[list[Candidate]],
    room: Room,
    limit: int,
    extend: Callable[[int], object] = lambda number: None,
) -> list[Candidate]:
    """Up to `limit` jobs that start now, out of a line of candidates for each type.

    Of the first of all lines the most urgent goes first, and then the one that came first. What may not start
    is passed over, and with it the rest of its line if none of its type may. At the end of a line, by its
    number, `extend` may make it longer.
    """
    order = [(-line[0].priority, line[0].seq, number, 0) for number, line in enumerate(lines) if line]
    heapify(order)
    chosen: list[Candidate] = []
    while order and len(chosen) < limit:
        _, _, number, place = heappop(order)
        line = lines[number]
        candidate = line[place]
        if room.may_start(candidate.type, candidate.group):
            room.take(candidate.type, candidate.group)
            chosen.append(candidate)
        elif room.most(candidate.type) <= 0:
            continue
        if place + 1 == len(line):
            extend(number)
        if place + 1 < len(line):
            following = line[place + 1]
            heappush(order, (-following.priority, following.seq, number, place + 1))
    return chosen


class Head(Struct, frozen=True):
    """Where the first waiting job of a type stands, or a place before which none of them does."""

    type: str
    priority: int
    seq: int


class Lines:
    """The types that had waiting jobs at the last look: which of them a claim asks for.

    The first so many jobs of all are among the first so many types, by where their first jobs stand. Types
    that share every limit are kept together: while nothing of one may start, none of them is gone through.
    Paused types are left out.
    """

    def __init__(self, heads: Sequence[Head], settings: Settings, *, fresh_until: float = math.inf) -> None:
        self.settings = settings
        self.fresh_until = fresh_until
        """On the monotonic clock: what has changed since the look may wait for so long."""
        self._together: dict[_Sharing, list[_Place]] = {}
        self.is_shared = False
        """Whether workers have to agree on who starts a job of any of them."""
        known: dict[int, list[_Place]] = {}
        for head in heads:
            limits = settings.limits(head.type)
            line = known.get(id(limits))
            if line is None:
                line = [] if limits.paused else self._together.setdefault(_sharing(limits), [])
                known[id(limits)] = line
                self.is_shared = self.is_shared or (limits.is_shared and not limits.paused)
            line.append(_place(head))
        for line in self._together.values():
            line.sort()
        self._fronts = sorted((line[0], kind) for kind, line in self._together.items())

    def __bool__(self) -> bool:
        return bool(self._together)

    def first(self, count: int, room: Room, slots: Callable[[str], int] = lambda _: 2**31) -> list[str]:
        """The types to ask for the first `count` jobs that may start; what may not is refused.

        `slots` says how many jobs of a type there is room for. Lines behind the first ones are not looked at.
        """
        found: list[str] = []
        startable = number = 0
        opened: list[tuple[_Place, int, list[_Place], int]] = []  # with the next place of each
        while startable < count and (number < len(self._fronts) or opened):
            if number < len(self._fronts) and not (opened and opened[0][0] < self._fronts[number][0]):
                place, kind = self._fronts[number]
                number += 1
                free = slots(place[2])
                most = min(free, room.most(place[2]))
                if most > 0:  # one more tells whether limits keep any
                    heappush(opened, (place, 0, self._together[kind][: min(count, most + 1)], most))
                elif free > 0:
                    room.refuse(place[2])
                continue
            _, start, line, most = heappop(opened)
            others = [each[0] for each in (*opened[:1], *self._fronts[number : number + 1])]
            stop = bisect_left(line, min(others), start) if others else len(line)
            stop = min(stop, start + count - startable + 1)
            found += [type for _, _, type in line[start:stop]]
            startable += min(stop, most) - min(start, most)
            if stop < len(line):
                heappush(opened, (line[stop], stop, line, most))
        return found

    def advance(
        self, asked: AbstractSet[str], heads: Mapping[str, Head], used_up: AbstractSet[str] = frozenset()
    ) -> None:
        """Note where the lines of the types begin that were asked for; those without a head are over.

        Of a type whose limits are `used_up`, so are all lines that share them.
        """
        for kind in self._kinds(used_up):
            self._take(kind)
        for kind in self._kinds(asked - used_up):
            line = self._take(kind)
            front = line[: len(asked)]
            left = [place for place in front if place[2] not in asked]
            back = [_place(heads[type]) for _, _, type in front if type in asked and type in heads]
            line[: len(front)] = left
            if back:
                line += back
                line.sort()
            if line:
                self._together[kind] = line
                insort(self._fronts, (line[0], kind))

    def _take(self, kind: _Sharing) -> list[_Place]:
        """Take a line out."""
        line = self._together.pop(kind, [])
        if line:
            del self._fronts[bisect_left(self._fronts, (line[0], kind))]
        return line

    def _kinds(self, types: AbstractSet[str]) -> set[_Sharing]:
        limits = {id(each): each for each in map(self.settings.limits, types)}
        return {_sharing(each) for each in limits.values()}


_Place = tuple[int, int, str]
_Sharing = tuple[str | None, ...]


def _place(head: Head) -> _Place:
    return -head.priority, head.seq, head.type


def _sharing(limits: Limits) -> _Sharing:
    shared = (limits.slots, limits.max_running, limits.rate)
    return tuple(None if limit is None else limit.name for limit in shared)
