"""What may start: the model against a slow, obvious one, over random histories; and plain examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config import SETTINGS
from holdfast.core.rate_limit import Bucket
from holdfast.core.settings import Settings
from holdfast.core.starting import Candidate, Head, Lines, Room, Usage, choose
from holdfast.store import candidates
from holdfast.store.candidates import Turns, choose_jobs
from holdfast.store.records import Demand


@pytest.fixture(autouse=True, scope="module")
def time_stands_still() -> Iterator[None]:
    """A look for jobs without a group, which is not repeated for a while if it was long, takes no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "time", SimpleNamespace(monotonic=lambda: 0.0))
        yield


SECOND = 1_000_000
NOW = 1_000 * SECOND

TYPES = ("a", "a:x", "a:y", "b", "b:x", "c")
NAMES = (*TYPES, "")
GROUPS = (None, "f", "g", "h", None)
VALUES: dict[str, tuple[Any, ...]] = {
    "max_running": (1, 2, 4, None),
    "rate_limit": (0.5, 1.0, 3.0, 0.0),
    "group_concurrency": (1, 2, None),
    "fair": (True, False),
    "concurrency": (1, 2, 4, 8),
}


@dataclass
class World:
    """Waiting and running jobs, and everything that is known of limits, in the plainest form."""

    stored: dict[tuple[str, str], Any] = field(default_factory=dict)
    code: dict[tuple[str, str], Any] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    waiting: list[Candidate] = field(default_factory=list)
    running: list[tuple[Candidate, int]] = field(default_factory=list)
    """Jobs, each with the worker that runs it."""
    tokens: dict[str, tuple[float, int]] = field(default_factory=dict)
    now: int = NOW
    seq: int = 0

    # The rule of the interface, in its own words.

    def resolve(self, setting: str, type: str) -> tuple[str, Any]:
        """The name whose value holds for a type, and the value."""
        base = type.split(":")[0]
        for name in (type, base, ""):
            for said in (self.stored, self.code):
                if (setting, name) in said:
                    return name, said[setting, name]
        return "", SETTINGS[setting].default

    def is_paused(self, type: str) -> bool:
        return any(name in self.paused for name in (type, type.split(":")[0], ""))

    def count(self, setting: str, name: str, jobs: Iterable[Candidate]) -> int:
        """How many of the jobs are of types that have a setting from this name."""
        return sum(self.resolve(setting, job.type)[0] == name for job in jobs)

    def tokens_of(self, name: str, rate: float) -> float:
        most = max(1.0, rate)
        tokens, at = self.tokens.get(name, (most, self.now))
        return min(most, tokens + rate * max(0, self.now - at) / SECOND)

    def has_slot(self, type: str, worker: int) -> bool:
        name, size = self.resolve("concurrency", type)
        used = self.count("concurrency", name, (job for job, on in self.running if on == worker))
        return bool(used < size)

    def has_group_room(self, job: Candidate) -> bool:
        name, size = self.resolve("group_concurrency", job.type)
        together = (other for other, _ in self.running if other.group == job.group)
        return job.group is None or not size or self.count("group_concurrency", name, together) < size

    def has_rate(self, type: str) -> bool:
        name, rate = self.resolve("rate_limit", type)
        return not rate or self.tokens_of(name, rate) >= 1 - 1e-9

    def may_start(self, job: Candidate, worker: int) -> bool:
        return self.has_rate(job.type) and self.lacks_at_most_a_token(job, worker)

    def lacks_at_most_a_token(self, job: Candidate, worker: int) -> bool:
        name, size = self.resolve("max_running", job.type)
        if size and self.count("max_running", name, (other for other, _ in self.running)) >= size:
            return False
        is_free = self.has_group_room(job) and self.has_slot(job.type, worker)
        return is_free and not self.is_paused(job.type)

    def start(self, job: Candidate, worker: int) -> None:
        self.waiting.remove(job)
        self.running.append((job, worker))
        name, rate = self.resolve("rate_limit", job.type)
        if rate:
            self.tokens[name] = self.tokens_of(name, rate) - 1, self.now

    def in_line(self) -> list[Candidate]:
        return sorted(self.waiting, key=lambda job: (-job.priority, job.seq))

    def copy(self) -> World:
        return World(
            self.stored, self.code, self.paused, list(self.waiting), list(self.running), dict(self.tokens),
            self.now,
        )  # fmt: skip

    # The slow model: whoever is first in line and may start, starts.

    def expected(self, worker: int, limit: int) -> list[Candidate]:
        trial, started = self.copy(), list[Candidate]()
        for job in self.in_line():
            if len(started) < limit and trial.may_start(job, worker):
                trial.start(job, worker)
                started.append(job)
        return started

    # The same for the model under test.

    def settings(self) -> Settings:
        return Settings(
            dict(self.stored),
            declared=lambda name: {setting: v for (setting, owner), v in self.code.items() if owner == name},
            paused=frozenset(self.paused),
        )

    def room(self, settings: Settings, worker: int) -> Room:
        running: dict[str, int] = {}
        groups: dict[tuple[str, str], int] = {}
        for job, _ in self.running:
            running[job.type] = running.get(job.type, 0) + 1
            if job.group is not None:
                groups[job.type, job.group] = groups.get((job.type, job.group), 0) + 1
        slots = ((demand.type, demand.limit) for demand in self.demands(settings, worker, TYPES))
        buckets = {name: Bucket(*stored) for name, stored in self.tokens.items()}
        return Room(settings, Usage(running, groups, buckets), self.now, slots)

    def demands(self, settings: Settings, worker: int, types: Iterable[str]) -> list[Demand]:
        free = {}
        for type in types:
            limit = settings.limits(type).slots
            used = self.count("concurrency", limit.name, (job for job, on in self.running if on == worker))
            free[type] = max(0, int(limit.size) - used)
        return [Demand(type=type, limit=limit, max_attempts=3) for type, limit in free.items()]


class InLine:
    """The waiting jobs of a world; see WaitingJobs."""

    def __init__(self, world: World) -> None:
        self._line = world.in_line()

    def first(self, types: Sequence[str], count: int) -> list[list[Candidate]]:
        return [[job for job in self._line if job.type == type][:count] for type in types]

    def first_ungrouped(self, type: str, count: int) -> list[Candidate]:
        return [job for job in self._line if job.type == type and job.group is None][:count]

    def first_of_groups(self, type: str, below: int | None, after: str, count: int) -> list[Candidate]:
        grouped = [job for job in self._line if job.type == type and job.group is not None]
        grouped = [job for job in grouped if below is None or job.priority < below]
        top = max((job.priority for job in grouped), default=0)
        heads: dict[str, Candidate] = {}
        for job in grouped:
            if job.priority == top and (job.group or "") > after:
                heads.setdefault(job.group or "", job)
        return [heads[name] for name in sorted(heads)][:count]

    def more_of_groups(self, type: str, priority: int, groups: Sequence[str], count: int) -> list[Candidate]:
        found = []
        for name in groups:
            line = [j for j in self._line if (j.type, j.priority, j.group) == (type, priority, name)]
            found += line[:count]
        return found


Owed = dict[tuple[str, int, str], set[str]]
"""By type, priority and group: the groups that could have started one since this one did, and have not."""


class History:
    """A world in which things happen, and every claim of the model is checked."""

    def __init__(self, *, is_exact: bool = True) -> None:
        self.world = World()
        self._is_exact = is_exact
        self.turns = [Turns() for _ in range(3)]
        self._owed: list[Owed] = [{} for _ in range(3)]

    def happen(self, kind: int, first: int, second: int) -> None:
        world = self.world
        if kind <= 3:
            self._enqueue(first, second)
        elif kind <= 6:
            self.claim(first % 3, 1 + second % 6)
        elif kind == 7 and world.running:
            del world.running[first % len(world.running)]
        elif kind == 8:
            self._set(first, second)
        elif kind == 9:
            world.paused ^= {NAMES[first % len(NAMES)]}
        elif kind == 10:
            world.now += (second - 20) * SECOND // 10

    def _enqueue(self, first: int, second: int) -> None:
        for number in range(1 + first // 6 % 4):
            self.world.seq += 1
            group = GROUPS[(second // 3 + number) % len(GROUPS)]
            job = Candidate(second % 3, self.world.seq, TYPES[first % len(TYPES)], group)
            self.world.waiting.append(job)

    def _set(self, first: int, second: int) -> None:
        setting = list(VALUES)[first % len(VALUES)]
        values = VALUES[setting]
        names = NAMES[first // len(VALUES) % len(NAMES)]
        place = self.world.code if second % 2 and names else self.world.stored
        place[setting, names] = values[second // 2 % len(values)]

    def claim(self, worker: int, limit: int) -> list[Candidate]:
        world, settings = self.world, self.world.settings()
        room = world.room(settings, worker)
        demands = world.demands(settings, worker, sorted({job.type for job in world.waiting}))
        expected = world.expected(worker, limit)
        started = choose_jobs(demands, settings, room, limit, InLine(world), self.turns[worker]).jobs
        if self._is_exact and not any(settings.limits(type).fair for type in TYPES):
            assert started == expected
        assert len(started) <= limit
        self._note_turns(worker)
        for job in started:
            assert world.may_start(job, worker), f"{job} exceeds a limit"
            self._check_fairness(worker, job)
            world.start(job, worker)
        if len(started) < limit:
            left = [job for job in world.waiting if world.may_start(job, worker)]
            assert not left, f"left behind: {left}"
            self._check_wait(worker, room.wait())
        self._check_priorities(worker, started)
        for name, bucket in room.changed.items():
            world.tokens[name] = bucket.tokens, bucket.at
        return started

    def _check_wait(self, worker: int, wait: float | None) -> None:
        """It ends no later than the next job may start, and not before a rate limit lets one through."""
        waits: dict[str, float] = {}
        needed: list[float] = []
        for job in self.world.waiting:
            name, rate = self.world.resolve("rate_limit", job.type)
            if rate and not self.world.has_rate(job.type) and not self.world.is_paused(job.type):
                waits[name] = (1 - self.world.tokens_of(name, rate)) / rate
                if self.world.lacks_at_most_a_token(job, worker):
                    needed.append(waits[name])
        assert wait is None or any(wait == pytest.approx(each, abs=1e-6) for each in waits.values())
        assert not needed or (wait is not None and wait <= min(needed) + 1e-6)

    def _check_priorities(self, worker: int, started: Sequence[Candidate]) -> None:
        """Of one type, no job was started in the place of a more urgent one."""
        for job in started:
            without = self.world.copy()
            without.running.remove((job, worker))
            name, rate = without.resolve("rate_limit", job.type)
            if rate:
                without.tokens[name] = without.tokens_of(name, rate) + 1, without.now
            urgent = [o for o in without.waiting if o.type == job.type and o.priority > job.priority]
            assert not any(without.may_start(other, worker) for other in urgent)

    # Whose turn it is.

    def _eligible(self, type: str, priority: int) -> set[str]:
        jobs = [job for job in self.world.waiting if (job.type, job.priority) == (type, priority)]
        return {job.group or "" for job in jobs if self.world.has_group_room(job)}

    def _note_turns(self, worker: int) -> None:
        """Who can't start one now has no turn to come."""
        for (type, priority, _), groups in self._owed[worker].items():
            groups &= self._eligible(type, priority)

    def _check_fairness(self, worker: int, job: Candidate) -> None:
        owed = self._owed[worker]
        if not self.world.resolve("fair", job.type)[1]:
            for key in [key for key in owed if key[0] == job.type]:
                del owed[key]
            return
        group, place = job.group or "", (job.type, job.priority, job.group or "")
        passed = owed.get(place, set()) & self._eligible(job.type, job.priority)
        assert not passed, f"{job} starts before {passed} had a turn"
        for (type, priority, _), groups in owed.items():
            if (type, priority) == (job.type, job.priority):
                groups.discard(group)
        owed[place] = self._eligible(job.type, job.priority) - {group}


def test_a_job_of_a_full_group_needs_no_look_when_a_token_is_due() -> None:
    history = History()
    history.world.stored = {("rate_limit", "a"): 1.0, ("group_concurrency", ""): 1}
    history.world.running = [(Candidate(0, 1, "b", "f"), 0)]
    history.world.waiting = [Candidate(0, 2, "a", None), Candidate(0, 3, "a", "f")]
    assert [job.seq for job in history.claim(0, 50)] == [2]


STEPS = st.lists(
    st.tuples(st.integers(0, 10), st.integers(0, 127), st.integers(0, 127)), min_size=5, max_size=40
)


@settings(max_examples=1000)
@given(STEPS)
def test_claims_start_what_the_slow_model_starts(steps: list[tuple[int, int, int]]) -> None:
    history = History()
    for step in steps:
        history.happen(*step)
    for worker in range(3):
        history.claim(worker, 50)


@settings(max_examples=500)
@given(STEPS)
def test_nothing_is_left_behind_many_jobs_of_full_groups(steps: list[tuple[int, int, int]]) -> None:
    """With a window so short that groups take turns behind it: who starts differs, what is kept does not."""
    history = History(is_exact=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_WINDOW", 1)
        for step in steps:
            history.happen(*step)
        history.claim(0, 50)


@settings(max_examples=1000)
@given(STEPS, st.integers(1, 6))
def test_lines_lead_to_all_that_may_start(steps: list[tuple[int, int, int]], limit: int) -> None:
    """As a worker does: ask for the first types in line, and for those behind while these are blocked."""
    history = History(is_exact=False)
    for step in steps:
        history.happen(*step)
    world, worker = history.world, 0
    config = world.settings()
    lines = Lines(_heads(world), config)
    for _ in range(200):
        room = world.room(config, worker)
        hidden = set(_first_to_start(world, worker, limit)) - set(lines.first(limit, room))
        assert not hidden, f"{hidden} are not asked for"
        types = lines.first(limit, world.room(config, worker))
        demands = world.demands(config, worker, types)
        chosen = choose_jobs(
            demands, config, world.room(config, worker), limit, InLine(world), history.turns[worker]
        )
        for job in chosen.jobs:
            world.start(job, worker)
        begin = {head.type: head for head in _heads(world)}
        assert chosen.heads == {type: begin.get(type) for type in chosen.heads}
        heads = {type: head for type, head in begin.items() if type not in chosen.blocked}
        lines.advance(set(types), {type: head for type, head in heads.items() if type in types})
        if not chosen.jobs and not types:
            break
    left = [job for job in world.waiting if world.may_start(job, worker)]
    assert not left, f"left behind: {left}"


def _heads(world: World) -> list[Head]:
    heads: dict[str, Head] = {}
    for job in world.in_line():
        heads.setdefault(job.type, Head(job.type, job.priority, job.seq))
    return list(heads.values())


def _first_to_start(world: World, worker: int, count: int) -> list[str]:
    """The types of the first jobs that start, unless a group is full, for which lines are not responsible."""
    if any(world.resolve("group_concurrency", job.type)[1] for job in world.waiting):
        return []
    return [job.type for job in world.expected(worker, count)]


# Examples, which say the same in words.


def test_lines_leave_out_what_is_paused() -> None:
    config = Settings({}, paused=frozenset({"pay", "mail:eu"}))
    types = ("pay", "pay:eu", "mail", "mail:eu", "mail:us")
    lines = Lines([Head(type, 0, seq) for seq, type in enumerate(types)], config)
    assert lines.first(10, Room(config, Usage(), NOW)) == ["mail", "mail:us"]
    assert not Lines([Head("pay:eu", 0, 1)], config)


def test_no_more_types_are_asked_for_than_a_shared_limit_lets_start() -> None:
    config = Settings({("max_running", "pay"): 2})
    types = [f"pay:{number}" for number in range(5)] + ["mail", "mail:us"]
    lines = Lines([Head(type, 0, seq) for seq, type in enumerate(types)], config)
    room = Room(config, Usage(running={"pay:0": 1}), NOW)
    assert lines.first(10, room) == ["pay:0", "pay:1", "mail", "mail:us"], (
        "one more tells whether it keeps any"
    )


class CountingRoom(Room):
    """Counts for how many types it was asked."""

    asked = 0

    def most(self, type: str) -> int:
        self.asked += 1
        return super().most(type)


def test_of_thousands_of_limits_only_those_that_come_first_are_looked_at() -> None:
    types = [f"type{number:04}" for number in range(5000)]
    config = Settings({("max_running", type): 3 for type in types})
    lines = Lines([Head(type, 0, seq) for seq, type in enumerate(types)], config)
    room = CountingRoom(config, Usage(), NOW)
    assert lines.first(8, room) == types[:8]
    assert room.asked <= 9
    lines.advance(set(types[:8]), {types[3]: Head(types[3], 0, 9000), types[5]: Head(types[5], 0, 8)})
    assert lines.first(3, room) == [types[5], *types[8:10]]
    assert lines.first(5000, room) == [types[5], *types[8:], types[3]]


def test_nothing_is_limited_for_which_there_are_no_slots() -> None:
    config = Settings({("max_running", "pay"): 1, ("max_running", "mail"): 1})
    lines = Lines([Head("pay", 0, 1), Head("mail", 0, 2), Head("free", 0, 3)], config)
    room = Room(config, Usage(running={"pay": 1, "mail": 1}), NOW)
    assert lines.first(10, room, {"pay": 0, "mail": 2, "free": 1}.__getitem__) == ["free"]
    assert room.limited == {"mail"}


def test_types_for_which_nothing_is_set_are_looked_up_as_one() -> None:
    config = Settings({("max_running", "pay"): 1, ("max_running", ""): 9, ("fair", "mail:eu"): True})
    alike = [config.limits(type) for type in ("a", "b", "b:lane", "mail", "mail:us")]
    assert all(limits is alike[0] for limits in alike)
    assert config.limits("pay:eu") is config.limits("pay")
    assert (config.limits("mail:eu").fair, alike[0].fair) == (True, False)


def room_for(
    stored: dict[tuple[str, str], Any], *, paused: Iterable[str] = (), now: int = NOW, **usage: Any
) -> Room:
    return Room(Settings(stored, paused=frozenset(paused)), Usage(**usage), now)


def line(type: str, *seqs: int, group: str | None = None) -> list[Candidate]:
    return [Candidate(0, seq, type, group) for seq in seqs]


def seqs(jobs: Iterable[Candidate]) -> list[int]:
    return [job.seq for job in jobs]


def test_the_most_urgent_goes_first_and_then_the_oldest() -> None:
    urgent = [Candidate(5, 9, "b"), Candidate(0, 2, "b")]
    assert seqs(choose([line("a", 1, 3), urgent], room_for({}), 10)) == [9, 1, 2, 3]


def test_lanes_share_the_limit_of_their_type() -> None:
    room = room_for({("max_running", "pay"): 2}, running={"pay:eu": 1})
    assert seqs(choose([line("pay:eu", 1, 3), line("pay:us", 2)], room, 10)) == [1]
    assert [(hold.kind, hold.name, hold.used) for hold in room.holds("pay:us", None)] == [
        ("max_running", "pay", 2)
    ]


def test_a_lane_with_a_limit_of_its_own_takes_nothing_from_the_others() -> None:
    limits = {("max_running", "pay"): 1, ("max_running", "pay:eu"): 1}
    assert seqs(choose([line("pay:eu", 1, 3), line("pay:us", 2, 4)], room_for(limits), 10)) == [1, 2]


def test_no_line_is_read_on_once_its_limit_is_used_up() -> None:
    settings = Settings({("max_running", ""): 2})
    lines = [[Candidate(0, 10 * lane + n, f"a:{lane}") for n in range(3)] for lane in range(100)]
    read_on: list[int] = []
    room = Room(settings, Usage(), NOW)
    assert [job.seq for job in choose(lines, room, 50, read_on.append)] == [0, 1]
    assert read_on == []
    assert len(room.limited) == 100


def test_the_limit_of_the_queue_is_shared_by_all_that_have_none_of_their_own() -> None:
    limits = {("max_running", ""): 2, ("max_running", "mail"): 5}
    room = room_for(limits, running={"mail": 5, "pay": 1})
    assert seqs(choose([line("pay", 1), line("crawl", 2), line("mail", 3)], room, 10)) == [1]


def test_a_full_group_lets_the_others_pass() -> None:
    room = room_for({("group_concurrency", "mail"): 1}, groups={("mail", "big"): 1})
    waiting = [
        *line("mail", 1, 2, group="big"),
        Candidate(0, 3, "mail", "small"),
        Candidate(0, 4, "mail"),
        Candidate(0, 5, "mail", "small"),
    ]
    assert seqs(choose([waiting], room, 10)) == [3, 4]


def test_a_rate_limit_says_when_the_next_one_may_start() -> None:
    room = room_for({("rate_limit", "mail"): 0.5}, buckets={"mail": Bucket(0.25, NOW)})
    assert not choose([line("mail", 1)], room, 10)
    assert room.wait() == pytest.approx(1.5)


def test_a_bucket_is_saved_with_what_was_taken() -> None:
    room = room_for({("rate_limit", "mail"): 2.0})
    assert seqs(choose([line("mail", 1, 2, 3)], room, 10)) == [1, 2]
    assert room.changed == {"mail": Bucket(0.0, NOW)}


@pytest.mark.parametrize("paused", ["mail:eu", "mail", ""])
def test_what_is_paused_by_any_of_its_names_does_not_start(paused: str) -> None:
    room = room_for({}, paused=[paused])
    assert not choose([line("mail:eu", 1)], room, 10)
    assert [(hold.kind, hold.name) for hold in room.holds("mail:eu", None)] == [("paused", paused)]


def test_a_job_that_is_given_back_makes_room_again() -> None:
    room = room_for({("max_running", "mail"): 1, ("rate_limit", "mail"): 1.0})
    room.take("mail", None)
    assert not room.may_start("mail", None)
    room.give_back("mail", None)
    assert room.may_start("mail", None)


@pytest.mark.parametrize("fair", [True, False])
def test_a_group_that_lanes_share_keeps_no_other_from_starting(fair: bool) -> None:
    history = History(is_exact=not fair)
    history.world.stored = {
        ("fair", "a"): fair,
        ("group_concurrency", "a"): 1,
        ("concurrency", "a:x"): 1,
        ("concurrency", "a:y"): 1,
    }
    first = Candidate(1, 1, "a:y", "f")
    behind = [Candidate(0, seq, "a:x", group) for seq, group in ((2, "f"), (3, "f"), (4, "g"))]
    history.world.waiting = [first, *behind]
    assert seqs(history.claim(0, 5)) == [1, 4]


def test_a_job_under_a_limit_that_others_share_is_not_held_ready() -> None:
    """Though there is room to hold more, beside it, of a type that takes nothing from other workers."""
    config = Settings({("max_running", "pay"): 10})
    room = Room(config, Usage(), NOW, [("mail", 5), ("pay", 2)])
    assert seqs(choose([line("pay", 1, 2, 3), line("mail", 4, 5, 6, 7)], room, 10)) == [1, 2, 4, 5, 6]


def test_a_type_that_nothing_is_asked_of_keeps_no_other_from_starting() -> None:
    history = History()
    history.world.waiting = [*line("a", 1, 2, 3), *line("b", 4, 5, 6), *line("c", 7, 8, 9, 10, 11)]
    demands = [
        Demand(type=type, limit=count, max_attempts=3) for type, count in (("a", 0), ("b", 1), ("c", 4))
    ]
    room = room_for({("fair", "c"): True})
    config = Settings({("fair", "c"): True})
    assert seqs(choose_jobs(demands, config, room, 9, InLine(history.world), Turns()).jobs) == [
        4,
        7,
        8,
        9,
        10,
    ]


def test_groups_of_a_fair_type_take_turns() -> None:
    history = History()
    history.world.stored["fair", "a"] = True
    many = [Candidate(0, seq, "a", "f") for seq in range(1, 6)]
    history.world.waiting = [
        *many,
        Candidate(0, 6, "a", "g"),
        Candidate(0, 7, "a"),
        Candidate(0, 8, "a", "h"),
    ]
    assert [history.claim(0, 1)[0].seq for _ in range(8)] == [1, 6, 8, 7, 2, 3, 4, 5]
