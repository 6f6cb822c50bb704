"""Lists by filter, order and cursor, forwards and backwards, against a plain model of the rows."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest
from msgspec import Struct

from holdfast.core.clock import from_datetime, to_datetime
from holdfast.core.error_group import error_group
from holdfast.core.filter import SORTS, parse_filter
from holdfast.core.job import RETRYING, Job, Status
from holdfast.core.lifecycle import Completed, Errored
from holdfast.errors import ConfigError
from holdfast.listing import pages as listing
from holdfast.listing.pages import Page
from holdfast.store.protocol import Store
from holdfast.store.records import Place
from holdfast.testing import MovableClock
from tests.conformance.steps import BACK_OFF, claim, finish, finished, insert, new_job, page, run, walk

TYPES = ("email", "crawl", "report")
ERRORS = ("boom 1", "boom 2", "no route")
WORDS = (*Status, RETRYING)


class Row(Struct, frozen=True):
    """A job as the model sees it."""

    seq: int
    job: Job

    @property
    def words(self) -> set[str]:
        return {self.job.status, RETRYING} if self.job.next_retry_at else {self.job.status}

    def place(self, sort: str) -> tuple[int, int]:
        job = self.job
        finished_at = from_datetime(job.finished_at) if job.finished_at else 0
        return {"created": 0, "finished": finished_at, "priority": job.priority}[sort], self.seq


class Asked(Struct, frozen=True, kw_only=True):
    """A list that somebody asks for, in the words of Queue.page."""

    status: tuple[str, ...] = ()
    type: str | None = None
    parent_id: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    sort: str = "created"

    def filters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def finds(self, row: Row) -> bool:
        job = row.job
        moment = job.finished_at if self.sort == "finished" else job.created_at
        return (
            (not self.status or bool(row.words & set(self.status)))
            and self.type in (None, job.type)
            and self.parent_id in (None, job.parent_id)
            and (self.error is None or (job.status == "failed" and self.is_alike(job.error)))
            and moment is not None
            and (self.since is None or moment >= self.since)
            and (self.until is None or moment < self.until)
        )

    def is_alike(self, error: str | None) -> bool:
        return error_group(error or "") == error_group(self.error or "")

    def listed(self, rows: list[Row], ascending: bool) -> list[str]:
        found = sorted(filter(self.finds, rows), key=lambda row: row.place(self.sort), reverse=not ascending)
        return [row.job.id for row in found]


def rows_of(store: Store, connection: Any) -> list[Row]:
    seqs = connection.execute("SELECT id, seq FROM holdfast_jobs ORDER BY seq").fetchall()
    jobs = {job.id: job for job in store.get_jobs([id for id, _ in seqs])}
    return [Row(seq, jobs[id]) for id, seq in seqs]


def random_list(chance: random.Random, start: datetime) -> Asked:
    def instant() -> datetime | None:
        return chance.choice([None, None, start + timedelta(seconds=chance.randrange(60))])

    return Asked(
        status=tuple(chance.sample(WORDS, chance.choice([0, 0, 1, 1, 2, 3]))),
        type=chance.choice([None, None, None, *TYPES, "nobody"]),
        parent_id=chance.choice([None, None, None, None, "parent"]),
        error=chance.choice([None, None, None, "boom #", "no route", "boom 1"]),
        since=instant(),
        until=instant(),
        sort=chance.choice(SORTS),
    )


def fill(store: Store, clock: MovableClock, chance: random.Random, jobs: int = 120) -> None:
    for number in range(jobs):
        act(store, clock, chance, f"job-{number}")
        clock.advance(chance.choice([0, 0, 0.5, 1]))


def act(store: Store, clock: MovableClock, chance: random.Random, id: str) -> None:
    """Add a job, and let something happen to others."""
    options: dict[str, Any] = {
        "type": chance.choice(TYPES),
        "priority": chance.choice([0, 0, 0, 5, -3, 2**31 - 1]),
        "delay": chance.choice([None, None, None, 3600]),
        "parent_id": chance.choice([None, None, "parent"]),
        "max_attempts": 2,
    }
    store.insert_jobs([new_job(id, **options)])
    for claimed in claim(store, *TYPES, limit=chance.choice([0, 1, 1, 2])):
        ends = [None, None, Errored(chance.choice(ERRORS), permanent=True), Errored("boom 1"), "runs"]
        outcome: Any = chance.choice(ends)
        if outcome != "runs":
            finish(store, claimed, outcome)
    if chance.random() < 0.1:
        clock.advance(BACK_OFF / 10)
        store.promote_jobs(3)


def pages(store: Store, asked: Asked, ascending: bool, limit: int, **options: Any) -> list[Page]:
    """All pages, one after another."""
    found = [page(store, **asked.filters(), ascending=ascending, limit=limit, **options)]
    while found[-1].next is not None:
        assert len(found) < 500, "the pages do not end"
        cursor = found[-1].next
        found.append(
            page(store, **asked.filters(), ascending=ascending, limit=limit, cursor=cursor, **options)
        )
    return found


def ids(found: Page) -> list[str]:
    return [job.id for job in found.jobs]


@pytest.mark.parametrize("seed", range(2))
def test_any_list_is_that_of_the_rows_both_ways_round_and_there_and_back(
    store: Store, connection: Any, clock: MovableClock, seed: int
) -> None:
    chance = random.Random(seed)
    start = clock.now
    fill(store, clock, chance)
    for row in rows_of(store, connection):
        if row.job.is_finished and chance.random() < 0.15:
            store.delete_job(row.job.id)
        elif row.job.status in ("pending", "scheduled") and chance.random() < 0.1:
            store.cancel_job(row.job.id)
    insert(store, "waiting", "waiting-too", "given-up", priority=5)
    store.cancel_job("given-up")
    rows = rows_of(store, connection)
    assert set().union(*(row.words for row in rows)) == set(WORDS), "the rows hold every state"
    for _ in range(30):
        asked, ascending = random_list(chance, start), chance.random() < 0.5
        limit = chance.choice([1, 3, 10, 50])
        expected = asked.listed(rows, ascending)
        there = pages(store, asked, ascending, limit, brief=True)
        assert [id for one in there for id in ids(one)] == expected, asked
        assert all(len(one.jobs) == limit for one in there[:-1])
        assert there[0].previous is None
        back = [there[-1]]
        while back[0].previous is not None:
            assert len(back) < 500, "the pages do not end"
            back.insert(
                0, page(store, **asked.filters(), ascending=ascending, limit=limit, cursor=back[0].previous)
            )
        assert [id for one in back for id in ids(one)] == expected, asked
        filter = parse_filter(**asked.filters())
        assert listing.count(store, filter, 1000) == len(expected), asked
        assert listing.count(store, filter, 5) == min(5, len(expected)), asked
        offset = chance.randrange(6)
        found = page(store, **asked.filters(), ascending=ascending, limit=limit, offset=offset)
        assert ids(found) == expected[offset : offset + limit]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sort", SORTS)
def test_job_that_stays_put_is_neither_missed_nor_shown_twice(
    store: Store, connection: Any, clock: MovableClock, seed: int, sort: str
) -> None:
    """Others are deleted, retried, added and end between the pages, which are read back and forth."""
    chance = random.Random(seed)
    fill(store, clock, chance, 80)
    asked = Asked(status=("failed", "completed", "cancelled"), sort=sort)
    ascending = seed % 2 == 1
    before = {row.job.id: row for row in rows_of(store, connection) if asked.finds(row)}
    found: list[str] = []
    moved: set[str] = set()
    cursor: str | None = None
    number = 0
    while True:
        number += 1
        assert number < 100, "the pages do not end"
        one = page(store, **asked.filters(), ascending=ascending, limit=4, cursor=cursor, brief=True)
        found += ids(one)
        if one.next is None:
            break
        moved |= disturb(store, clock, chance, connection, number)
        back = page(store, **asked.filters(), ascending=ascending, limit=4, cursor=f"<{one.next}", brief=True)
        assert back.next is not None
        cursor = one.next
    after = {row.job.id: row for row in rows_of(store, connection) if asked.finds(row)}
    stayed = [
        id
        for id in before
        if id in after and id not in moved and before[id].place(sort) == after[id].place(sort)
    ]
    assert len(stayed) > 10
    assert len(found) == len(set(found)) or any(id not in stayed for id in found if found.count(id) > 1)
    shown = [id for id in found if id in stayed]
    assert shown == sorted(stayed, key=lambda id: before[id].place(sort), reverse=not ascending)


def disturb(
    store: Store, clock: MovableClock, chance: random.Random, connection: Any, number: int
) -> set[str]:
    """Returns who was sent away: one that is retried may end again, and be back where it was."""
    clock.advance(0.5)
    act(store, clock, chance, f"new-{number}")
    ended = [row.job.id for row in rows_of(store, connection) if row.job.is_finished]
    away = chance.sample(ended, min(2, len(ended)))
    for id in away:
        if chance.random() < 0.5 or store.get_jobs([id])[0].status == "completed":
            store.delete_job(id)
        else:
            store.retry_job(id, None)
    return set(away)


def test_page_before_a_place_that_was_emptied_leads_back_to_it(store: Store) -> None:
    for id in "abcd":
        finished(store, id)
    second = page(store, limit=2, cursor=page(store, limit=2).next)
    assert ids(second) == ["b", "a"]
    for id in "cd":
        store.delete_job(id)
    empty = page(store, limit=2, cursor=second.previous)
    assert (empty.jobs, empty.previous) == ([], None)
    assert ids(page(store, limit=2, cursor=empty.next)) == ["b", "a"]


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("sort", SORTS)
def test_page_after_a_place_whose_rest_was_emptied_leads_back_to_it(
    store: Store, sort: str, ascending: bool
) -> None:
    for id in "abc":
        finished(store, id)
    first = page(store, limit=2, sort=sort, ascending=ascending)
    store.delete_job("c" if ascending else "a")
    empty = page(store, limit=2, sort=sort, ascending=ascending, cursor=first.next)
    assert (empty.jobs, empty.next) == ([], None)
    back = page(store, limit=2, sort=sort, ascending=ascending, cursor=empty.previous)
    assert ids(back) == ids(first)


def test_cursor_is_the_seq_or_the_key_and_the_seq(store: Store, clock: MovableClock) -> None:
    insert(store, "a", "b", "c", priority=-5)
    first = page(store, limit=1)
    assert first.next is not None
    seq = int(first.next)
    assert page(store, limit=1, cursor=first.next).previous == f"<{seq - 1}"
    assert page(store, limit=1, sort="priority").next == f"-5.{seq}"
    for claimed in claim(store):
        finish(store, claimed)
    assert page(store, limit=1, sort="finished").next == f"{clock()}.{seq}"


BAD = ["", "<", "-1", "+1", "1e3", " 1", "1\n", "0x1", "1_0", "²", "\u0661", "9" * 19, "x", "\0", "<<1", "1<"]
BAD_PAIRS = ["1.", ".1", "1.1.1", "--1.1", "1.-1", "1,1", f"1.{'9' * 19}", "1 .1"]


def test_cursor_that_no_page_gave_is_refused(store: Store) -> None:
    for sort, cursor in product(SORTS, [*BAD, *BAD_PAIRS]):
        with pytest.raises(ConfigError, match="cursor must be the nextCursor of an earlier page"):
            page(store, sort=sort, cursor=cursor)


@pytest.mark.parametrize("sort", SORTS)
def test_cursor_of_another_order_is_refused(store: Store, sort: str) -> None:
    finished(store, "a", priority=3)
    finished(store, "b", priority=3)
    for other in SORTS:
        cursor = page(store, sort=other, limit=1).next
        for given in (cursor, f"<{cursor}"):
            if other == sort:
                assert page(store, sort=sort, cursor=given).jobs or given != cursor
            else:
                with pytest.raises(ConfigError, match="nextCursor"):
                    page(store, sort=sort, cursor=given)


def test_cursor_and_offset_exclude_each_other(store: Store) -> None:
    with pytest.raises(ConfigError, match="offset"):
        page(store, cursor="5", offset=1)


def test_unknown_order_is_told_the_known_ones(store: Store) -> None:
    with pytest.raises(ConfigError, match="created, finished, priority"):
        page(store, sort="name")


# Times.


def test_instants_may_be_text_or_have_any_zone(store: Store, clock: MovableClock) -> None:
    for id in "abc":
        insert(store, id)
        clock.advance(60)
    start = datetime(2030, 1, 1, tzinfo=UTC)
    for since in (start + timedelta(minutes=1), "2030-01-01T00:01:00Z", "2030-01-01T02:01:00+02:00"):
        assert ids(page(store, since=since)) == ["c", "b"]
    zone = timezone(timedelta(hours=-5))
    assert ids(page(store, until=(start + timedelta(minutes=1)).astimezone(zone))) == ["a"]
    assert ids(page(store, since=start, until=start)) == []
    assert ids(page(store, since=start + timedelta(days=1), until=start)) == []


def test_naive_instants_and_nonsense_are_refused_by_name(store: Store) -> None:
    wrong = [datetime(2030, 1, 1), "2030-01-01", "soon", "", 5, "2030-01-01T00:00:00"]  # noqa: DTZ001
    for name, given in product(["since", "until"], wrong):
        with pytest.raises(ConfigError, match=name):
            page(store, **{name: given})


def test_time_of_a_list_by_end_is_that_of_the_end(store: Store, clock: MovableClock) -> None:
    start = clock.now
    for id in "ab":
        insert(store, id)
    for claimed in claim(store):
        clock.advance(60)
        finish(store, claimed)
    insert(store, "waiting")
    minute = start + timedelta(minutes=2)
    assert ids(page(store, sort="finished", since=minute)) == ["b"]
    assert ids(page(store, sort="finished", until=minute)) == ["a"]
    assert ids(page(store, until=minute)) == ["b", "a"]
    assert ids(page(store, since=minute)) == ["waiting"]


def test_clock_that_was_set_back_shows_nothing_that_does_not_belong(
    store: Store, clock: MovableClock
) -> None:
    start = clock.now
    for number in range(40):
        finished(store, f"job-{number}")
        clock.move_to(start + timedelta(seconds=number % 10))
    for since, until in ((2, 5), (0, 1), (9, 20), (5, None), (None, 3)):
        instants = [None if s is None else start + timedelta(seconds=s) for s in (since, until)]
        for status in ((), ("completed",)):
            asked = Asked(status=status, since=instants[0], until=instants[1])
            found = [job for one in pages(store, asked, False, 3) for job in one.jobs]
            assert len({job.id for job in found}) == len(found)
            for job in found:
                assert instants[0] is None or job.created_at >= instants[0]
                assert instants[1] is None or job.created_at < instants[1]


def test_time_before_and_after_all_jobs_and_of_none(store: Store, clock: MovableClock) -> None:
    early = clock.now - timedelta(days=1)
    late = clock.now + timedelta(days=1)
    assert page(store, since=early).jobs == []
    insert(store, "a")
    assert ids(page(store, since=early, until=late)) == ["a"]
    assert ids(page(store, since=late)) == ids(page(store, until=early)) == []
    far = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    assert ids(page(store, since=far[0], until=far[1])) == ["a"]


# What a list holds.


def test_list_by_end_holds_finished_jobs_only(store: Store) -> None:
    finished(store, "done")
    finish(store, run(store, "retrying"), Errored("boom"))
    insert(store, "waiting")
    assert ids(page(store, sort="finished")) == ["done"]
    assert ids(page(store, sort="finished", status=["pending", "retrying"])) == []
    assert ids(page(store, sort="finished", status=["done", "queued"])) == ["done"]


def test_brief_and_full_pages_are_of_the_same_jobs(store: Store) -> None:
    finished(store, "a", Completed('{"ok": true}'), payload='{"n": 1}')
    [brief] = page(store, sort="priority", brief=True).jobs
    [full] = page(store, sort="priority").jobs
    assert (brief.payload, brief.result) == ({}, None)
    assert (full.payload, full.result) == ({"n": 1}, {"ok": True})


def test_size_of_a_job_is_that_of_all_it_holds(store: Store) -> None:
    assert store.job_size("a") == 0
    insert(store, "a", payload='{"n": "é"}')
    assert store.job_size("a") == len('{"n": "é"}')
    finished(store, "b", Completed("[1, 2]"), payload='{"n": 1}', type="crawl")
    assert store.job_size("b") == len('{"n": 1}[1, 2]')
    finished(store, "c", Errored("boom", detail={"body": "x" * 1000}), type="report")
    assert 1000 < store.job_size("c") < 1030


def test_pages_of_a_change_that_is_not_committed_are_its_own(store: Store) -> None:
    insert(store, "a")
    with store.transaction():
        insert(store, "b")
        assert ids(page(store, sort="priority")) == ["b", "a"]
    insert(store, "c")
    assert ids(page(store, sort="priority")) == ["c", "b", "a"]


def test_error_stands_for_its_group(store: Store) -> None:
    for number in range(2):
        finished(store, f"job-{number}", Errored(f"Timeout: after {number} s", permanent=True))
    for error in ("Timeout: after # s", "Timeout: after 7 s", "Timeout: after 0 s\nmore"):
        assert ids(page(store, error=error)) == ["job-1", "job-0"]
    assert ids(page(store, error="Timeout")) == ids(page(store, error="")) == []


def test_error_that_can_not_be_stored_finds_nothing(store: Store) -> None:
    assert page(store, error="\ud800").jobs == []


def test_place_of_a_list_that_has_been_read_is_ordered(store: Store) -> None:
    assert Place(1, 9) < Place(2, 1) < Place(2, 2)


# All of them.


@pytest.mark.parametrize("sort", SORTS)
def test_walk_finds_those_there_when_it_began_and_no_others(
    store: Store, clock: MovableClock, sort: str
) -> None:
    for number in range(10):
        clock.advance(1)
        finished(store, f"job-{number}", Errored("boom", permanent=True), priority=number % 3)
    expected = ids(page(store, status="failed", sort=sort))
    found = []
    for number, id in enumerate(walk(store, status="failed", sort=sort)):
        assert number < 20, "it does not end"
        found.append(id)
        clock.advance(1)
        finished(store, f"new-{number}", Errored("boom", permanent=True), priority=-number)
        store.retry_job(id, None)
        finish(store, claim(store)[0], Errored("boom", permanent=True))
    assert found == expected


def test_walk_takes_the_filters_of_a_page(store: Store, clock: MovableClock) -> None:
    for number in range(6):
        finished(store, f"job-{number}", Errored(f"boom {number}", permanent=True))
        clock.advance(1)
    finished(store, "other", Errored("other", permanent=True))
    middle = to_datetime(store.now() - 3_000_000)
    assert list(walk(store, error="boom #", since=middle)) == ["job-5", "job-4", "job-3"]
    assert list(walk(store, error="boom #", until=middle, sort="finished")) == ["job-2", "job-1", "job-0"]
    assert list(walk(store, search="boom 4")) == ["job-4"]
    assert list(walk(store, type="nobody")) == []
    with pytest.raises(ConfigError, match="sort order"):
        list(walk(store, sort="nonsense"))
