"""Which waiting jobs of a type a claim looks at: the first in line, or those of its groups in turn.

The same on every engine, which reads the line in its own way (`WaitingJobs`). What is read is bounded by what
may be claimed and by what runs, however many jobs and groups wait.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, zip_longest
from typing import Protocol

from msgspec import Struct

from holdfast.core.settings import Settings
from holdfast.core.starting import Candidate, Head, Room, choose
from holdfast.store.records import Demand

_WINDOW = 1000
"""How many jobs are read in search of some whose groups are not full, before groups take turns instead."""
MOST_IN_LINE = 20_000
"""How many jobs of a type with groups are gone through in search of some without a group."""
_SHARE = 50
"""For so many times as long as that took, it is not done again after it was in vain."""
_MOST_OF_ONE = 100
"""How many jobs of one group are looked at in one claim."""
_MOST_TURNS = 1000


class WaitingJobs(Protocol):
    """How an engine reads the jobs that wait, apart from those that have to run alone."""

    def first(self, types: Sequence[str], count: int) -> list[list[Candidate]]:
        """The first jobs of each of these types, by priority and then in line."""

    def first_ungrouped(self, type: str, count: int) -> list[Candidate]:
        """Up to `count` jobs without a group, among the first MOST_IN_LINE of a type."""

    def first_of_groups(self, type: str, below: int | None, after: str, count: int) -> list[Candidate]:
        """The first jobs of up to `count` groups, by their names, the next after `after` first.

        All are of one priority: the highest that any job in a group has, or the highest below `below`.
        """

    def more_of_groups(self, type: str, priority: int, groups: Sequence[str], count: int) -> list[Candidate]:
        """Up to `count` jobs of each of these groups, one group after another, each in line."""


class Chosen(Struct, frozen=True):
    """What a claim takes, and the types of which there is nothing to take now."""

    jobs: list[Candidate]
    blocked: AbstractSet[str]
    used_up: AbstractSet[str]
    """Those of them whose limits let no job start, of whatever group."""
    heads: Mapping[str, Head | None]
    """Where lines begin once the jobs are taken, of those read that far; None for those that are over."""


class Turns:
    """Whose turn it is: for each type, the group that was served last by this process.

    And when it is worth while again to look for jobs without a group.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._look_at: dict[str, float] = {}

    def after(self, type: str) -> str:
        return self._last.get(type, "")

    def ungrouped(
        self, type: str, count: int, waiting: WaitingJobs, *, at_once: bool = False
    ) -> list[Candidate]:
        """The first jobs of a type without a group, or none for a while if there were too few to go round.

        There is no index of them alone, which each job without a group would have to pay for.
        """
        began = time.monotonic()
        if not at_once and began < self._look_at.get(type, 0.0):
            return []
        jobs = waiting.first_ungrouped(type, count)
        if len(jobs) < count:
            if len(self._look_at) > _MOST_TURNS:
                self._look_at.clear()
            self._look_at[type] = began + (1 + _SHARE) * (time.monotonic() - began)
        return jobs

    def served(self, jobs: Iterable[Candidate], settings: Settings) -> None:
        if len(self._last) > _MOST_TURNS:
            self._last.clear()
        for job in jobs:
            limits = settings.limits(job.type)
            if limits.fair or limits.group is not None:
                self._last[job.type] = job.group or ""


def choose_jobs(
    demands: Sequence[Demand], settings: Settings, room: Room, limit: int, waiting: WaitingJobs, turns: Turns
) -> Chosen:
    """What starts now, up to `limit` jobs."""
    asked = {demand.type: min(limit, demand.limit) for demand in demands}
    most = {type: room.most(type) for type in asked}
    for type in asked:
        if most[type] <= 0:
            room.refuse(type)
    # One more than may start tells whether limits keep any.
    wanted = {type: count for type, count in asked.items() if count > 0 and most[type] > 0}
    counts = {type: min(count, most[type] + 1) for type, count in wanted.items()}
    plain = _PlainLines([type for type in counts if _is_plain(settings, type)], counts, limit, waiting)
    lines = [line for line in plain.lines if line]
    owners = Counter(group.name for type in counts if (group := settings.limits(type).group) is not None)
    for type, count in counts.items():
        limits = settings.limits(type)
        if limits.group is not None and owners[limits.group.name] > 1:
            count += limit  # each job of the others may take the place in a group from one of these
        if limits.fair:
            lines.append(_in_turn(type, room, count, waiting, turns))
        elif limits.group is not None:
            lines.append(_in_line(type, room, count, waiting, turns))
    jobs = choose(lines, room, limit, plain.extend)
    turns.served(jobs, settings)
    blocked = asked.keys() - {line[0].type for line in lines if line}
    return Chosen(jobs, blocked, {type for type in asked if most[type] <= 0}, plain.left(jobs))


def _is_plain(settings: Settings, type: str) -> bool:
    limits = settings.limits(type)
    return not limits.fair and limits.group is None


def read_of_each(types: Sequence[str], limit: int) -> int:
    """How many jobs of each of these types are read at once, for a claim of `limit` of them together."""
    return 2 * limit // max(1, len(types)) + 2


class _PlainLines:
    """The lines of types without groups: of each no more is read than may be needed beside the others."""

    def __init__(
        self, types: Sequence[str], counts: Mapping[str, int], limit: int, waiting: WaitingJobs
    ) -> None:
        self._waiting = waiting
        self._counts = counts
        size = read_of_each(types, limit)
        self._read = dict.fromkeys(types, size)
        self._known = dict(zip(types, waiting.first(types, size) if types else [], strict=True))
        self.lines = [line[: counts[type]] for type, line in self._known.items() if line]

    def extend(self, number: int) -> None:
        """Read on in a line that was read to its end, unless nothing more of it is asked for."""
        if number >= len(self.lines):
            return
        line = self.lines[number]
        type = line[0].type
        if len(line) < self._read[type] or len(line) >= self._counts[type]:
            return
        self._read[type] *= 4
        [self._known[type]] = self._waiting.first([type], self._read[type])
        line[:] = self._known[type][: self._counts[type]]

    def left(self, taken: Iterable[Candidate]) -> dict[str, Head | None]:
        """Where the lines begin without these, as far as they were read."""
        heads: dict[str, Head | None] = {}
        seqs = {job.seq for job in taken}
        for type, line in self._known.items():
            first = next((job for job in line if job.seq not in seqs), None)
            if first is not None:
                heads[type] = Head(type, first.priority, first.seq)
            elif len(line) < self._read[type]:
                heads[type] = None
        return heads


def _in_line(type: str, room: Room, count: int, waiting: WaitingJobs, turns: Turns) -> list[Candidate]:
    """The first jobs whose groups have room; behind too many of full groups, those of others in turn."""
    for window in (2 * count, _WINDOW + count):
        [jobs] = waiting.first([type], window)
        fitting = _fitting(jobs, room)
        if len(fitting) >= count or len(jobs) < window:
            if jobs and not fitting:
                room.refuse(type)
            return fitting
    return [*fitting, *_in_turn(type, room, count - len(fitting), waiting, turns, fitting)]


class _Beside:
    """The jobs of a type that a claim is going to take, and what room their groups have beside them."""

    def __init__(self, jobs: Iterable[Candidate], room: Room) -> None:
        self._room = room
        self._used: dict[str | None, int] = {}
        self.seqs: set[int] = set()
        for job in jobs:
            self.add(job)

    def add(self, job: Candidate) -> None:
        self.seqs.add(job.seq)
        self._used[job.group] = self._used.get(job.group, 0) + 1

    def fits(self, job: Candidate) -> bool:
        return job.seq not in self.seqs and self.most(job) > 0

    def most(self, job: Candidate) -> int:
        """How many more of its group may start."""
        return self._room.most_of_group(job.type, job.group) - self._used.get(job.group, 0)


def _fitting(jobs: Sequence[Candidate], room: Room) -> list[Candidate]:
    """Those that may start beside one another."""
    beside = _Beside((), room)
    fitting = []
    for job in jobs:
        if beside.most(job) > 0:
            beside.add(job)
            fitting.append(job)
    return fitting


def _in_turn(
    type: str,
    room: Room,
    count: int,
    waiting: WaitingJobs,
    turns: Turns,
    besides: Sequence[Candidate] = (),
) -> list[Candidate]:
    """Jobs of one group after another, the highest priority first; jobs without a group count as one.

    Those are served after the last group and before the first.
    """
    found: list[Candidate] = []
    beside = _Beside(besides, room)
    below: int | None = None
    after = turns.after(type)
    ungrouped = turns.ungrouped(type, count + len(besides), waiting)
    seen_any = False
    while len(found) < count:
        wanted = count - len(found)
        heads = _heads(type, below, after, wanted, waiting)
        if len(heads) == wanted and not all(map(beside.fits, heads)):
            full = room.full_groups(type) + len(beside.seqs)
            heads = _heads(type, below, after, wanted + full, waiting)
        priorities = [jobs[0].priority for jobs in (heads, ungrouped) if jobs]
        if not priorities:
            break
        seen_any = True
        priority = max(priorities)
        alone = [job for job in ungrouped if job.priority == priority and beside.fits(job)]
        ungrouped = [job for job in ungrouped if job.priority < priority]
        lines: list[Sequence[Candidate]] = []
        if heads and heads[0].priority == priority:
            below = priority
            lines = _rounds(heads, beside, wanted, waiting)
        if alone:
            before = sum(not after or (line[0].group or "") > after for line in lines)
            lines.insert(before, alone)
        more = [job for job in chain.from_iterable(zip_longest(*lines)) if job is not None]
        for job in more[:wanted]:
            beside.add(job)
        found += more
    if not found and not besides:
        found = turns.ungrouped(type, count, waiting, at_once=True)
    if seen_any and not found:
        room.refuse(type)
    return found[:count]


def _heads(type: str, below: int | None, after: str, count: int, waiting: WaitingJobs) -> list[Candidate]:
    """The first jobs of the groups whose turn it is, round to the one that was served last."""
    heads = waiting.first_of_groups(type, below, after, count) if after else []
    if len(heads) < count:
        first = waiting.first_of_groups(type, below, "", count - len(heads))
        if heads and first and first[0].priority != heads[0].priority:
            return max(first, heads, key=lambda jobs: jobs[0].priority)
        known = {job.group for job in heads}
        heads += [job for job in first if job.group not in known]
    return heads


def _rounds(
    heads: Sequence[Candidate], beside: _Beside, count: int, waiting: WaitingJobs
) -> list[Sequence[Candidate]]:
    """For each group that has room, the jobs of it that may start, as many as the turns come to."""
    roomy = [head for head in heads if beside.most(head) > 0]
    fresh = [head for head in roomy if beside.fits(head)]
    if not roomy or len(fresh) >= count:
        return [[head] for head in fresh]
    most = {head.group: beside.most(head) for head in roomy}
    each = min(max(most.values()), count // len(roomy) + 1) + len(beside.seqs)
    if each <= 1:
        return [[head] for head in fresh]
    lines: dict[str | None, list[Candidate]] = {head.group: [] for head in roomy}
    names = [head.group or "" for head in roomy]
    first = heads[0]
    for job in waiting.more_of_groups(first.type, first.priority, names, min(each, _MOST_OF_ONE)):
        line = lines[job.group]
        if beside.fits(job) and len(line) < most[job.group]:
            line.append(job)
    return [line for line in lines.values() if line]
