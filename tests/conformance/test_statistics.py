"""Statistics: one row per worker, type and minute, folded into a lifetime row in the end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from holdfast.store import statistics
from holdfast.store.protocol import Store
from holdfast.store.records import BUCKETS, LIFETIME, Minute, TypeRecord, WorkerRecord
from tests.conformance.steps import finished, insert, rolled_back

SIZE = len(BUCKETS) + 1


def minute(minute: int, type: str = "email", worker_id: str = "w1", **sums: Any) -> Minute:
    return Minute(
        minute=minute, type=type, worker_id=worker_id, **{"waits": [0] * SIZE, "runs": [0] * SIZE, **sums}
    )


def portions(store: Store, *, hours_before: int, lifetime_before: int = 0) -> Iterator[None]:
    """Fold what is older, a portion a time."""
    place: statistics.Key | None = statistics.FIRST
    while place is not None:
        place = store.fold_statistics(hours_before=hours_before, lifetime_before=lifetime_before, begin=place)
        yield


def fold_hours(store: Store, before_minute: int) -> None:
    for _ in portions(store, hours_before=before_minute):
        pass


def fold_for_good(store: Store, before_minute: int) -> None:
    for _ in portions(store, hours_before=before_minute, lifetime_before=before_minute):
        pass


def forgetting(store: Store) -> Iterator[None]:
    """Forget the statistics of unused names, a portion a time."""
    after: str | None = ""
    while after is not None:
        after = store.forget_statistics(after)
        yield


def forget(store: Store) -> None:
    for _ in forgetting(store):
        pass


def totals(store: Store) -> tuple[int, float, int]:
    found = store.list_statistics(LIFETIME)
    return sum(m.completed for m in found), sum(m.run_seconds for m in found), sum(sum(m.runs) for m in found)


def lifetimes(store: Store) -> dict[str, int]:
    return {m.type: m.completed for m in store.list_statistics(LIFETIME) if m.minute == LIFETIME}


def test_new_queue_has_no_statistics(store: Store) -> None:
    assert store.list_statistics(LIFETIME) == []


def test_minute_is_kept_as_it_was_written(store: Store, other: Store) -> None:
    written = minute(
        100,
        completed=1,
        failed=2,
        retried=3,
        reaped=4,
        wait_seconds=0.125,
        run_seconds=1.5,
        limited_seconds=2.25,
        waits=list(range(SIZE)),
        runs=list(reversed(range(SIZE))),
    )
    store.write_statistics([written])
    assert other.list_statistics(100) == [written]


def test_worker_replaces_its_own_minute(store: Store) -> None:
    store.write_statistics([minute(100, completed=1)])
    store.write_statistics([minute(100, completed=5)])
    assert [found.completed for found in store.list_statistics(0)] == [5]


def test_workers_types_and_minutes_are_kept_apart(store: Store) -> None:
    written = [
        minute(100, "crawl", "w1", completed=1),
        minute(100, "email", "w1", completed=2),
        minute(100, "email", "w2", completed=3),
        minute(101, "email", "w1", completed=4),
    ]
    store.write_statistics(written)
    found = store.list_statistics(0)
    assert sorted(m.completed for m in found) == [1, 2, 3, 4]
    assert [m.minute for m in found] == [100, 100, 100, 101]


def test_only_minutes_since_then_are_listed(store: Store) -> None:
    store.write_statistics([minute(99), minute(100), minute(101)])
    assert [found.minute for found in store.list_statistics(100)] == [100, 101]


def test_nothing_to_write_is_no_error(store: Store) -> None:
    store.write_statistics([])
    assert store.list_statistics(0) == []


def test_old_minutes_are_folded_into_one_lifetime_row_per_type(store: Store) -> None:
    one = [1, *[0] * (SIZE - 1)]
    store.write_statistics(
        [
            minute(100, "email", "w1", completed=1, wait_seconds=0.5, waits=one),
            minute(100, "email", "w2", completed=2, failed=1, limited_seconds=1.5, runs=one),
            minute(101, "email", "w1", completed=4, run_seconds=0.25, limited_seconds=0.25, waits=one),
            minute(101, "crawl", "w1", retried=1, reaped=1),
            minute(102, "email", "w1", completed=8, limited_seconds=9),
        ]
    )
    fold_for_good(store, 102)
    crawl, email, recent = store.list_statistics(LIFETIME)
    assert email == minute(
        LIFETIME,
        "email",
        "",
        completed=7,
        failed=1,
        wait_seconds=0.5,
        run_seconds=0.25,
        limited_seconds=1.75,
        waits=[2, *[0] * (SIZE - 1)],
        runs=one,
    )
    assert crawl == minute(LIFETIME, "crawl", "", retried=1, reaped=1)
    assert recent == minute(102, "email", "w1", completed=8, limited_seconds=9)


def test_folding_adds_to_what_was_folded_before(store: Store) -> None:
    store.write_statistics(
        [minute(100, completed=1, limited_seconds=0.5), minute(101, completed=2, limited_seconds=0.25)]
    )
    fold_for_good(store, 101)
    fold_for_good(store, 101)
    fold_for_good(store, 102)
    [folded] = store.list_statistics(LIFETIME)
    assert (folded.minute, folded.completed, folded.limited_seconds) == (LIFETIME, 3, 0.75)


def test_minutes_are_folded_into_one_row_per_type_and_hour(store: Store) -> None:
    one = [1, *[0] * (SIZE - 1)]
    store.write_statistics(
        [
            minute(119, "email", "w1", completed=1),
            minute(120, "email", "w1", completed=2, waits=one),
            minute(150, "email", "w2", completed=4, limited_seconds=0.5, waits=one),
            minute(150, "crawl", "w2", failed=1),
            minute(170, "email", "w1", completed=8),
        ]
    )
    fold_hours(store, 160)
    assert store.list_statistics(LIFETIME) == [
        minute(60, "email", "", completed=1),
        minute(120, "crawl", "", failed=1),
        minute(120, "email", "", completed=6, limited_seconds=0.5, waits=[2, *[0] * (SIZE - 1)]),
        minute(170, "email", "w1", completed=8),
    ]


def test_folding_by_the_hour_again_changes_nothing_and_takes_in_what_came_late(store: Store) -> None:
    store.write_statistics([minute(120, "email", "w1", completed=1), minute(121, "email", "w1", completed=2)])
    fold_hours(store, 200)
    fold_hours(store, 200)
    store.write_statistics([minute(122, "email", "late", completed=4)])
    fold_hours(store, 200)
    assert store.list_statistics(LIFETIME) == [minute(120, "email", "", completed=7)]
    fold_for_good(store, 200)
    assert store.list_statistics(LIFETIME) == [minute(LIFETIME, "email", "", completed=7)]


def test_lifetime_is_not_a_recent_minute(store: Store) -> None:
    store.write_statistics([minute(100, completed=1)])
    fold_for_good(store, 200)
    assert store.list_statistics(1) == []


def test_sum_of_two_rows_has_every_figure_of_both() -> None:
    names = ("completed", "failed", "retried", "reaped", "wait_seconds", "run_seconds", "limited_seconds")
    ones: dict[str, Any] = {name: 1 + n for n, name in enumerate(names)}
    hundreds: dict[str, Any] = {name: 100 * n for n, name in enumerate(names)}
    total = minute(100, waits=list(range(SIZE)), **ones)
    part = minute(101, "crawl", "w2", runs=[1] * SIZE, **hundreds)
    total.add(part)
    sums: dict[str, Any] = {name: ones[name] + hundreds[name] for name in names}
    assert total == minute(100, waits=list(range(SIZE)), runs=[1] * SIZE, **sums)
    assert {*names, "minute", "type", "worker_id", "waits", "runs"} == set(Minute.__struct_fields__)
    assert part.waits == [0] * SIZE


def test_minutes_of_very_many_types_are_kept(store: Store) -> None:
    written = [minute(100, f"lane:{number}", completed=number) for number in range(123)]
    store.write_statistics(written)
    written = [minute(100, f"lane:{number}", completed=2 * number) for number in range(123)]
    store.write_statistics(written)
    found = {found.type: found.completed for found in store.list_statistics(0)}
    assert found == {f"lane:{number}": 2 * number for number in range(123)}


# Portions


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "PORTION", 10)
    monkeypatch.setattr(statistics, "MOST_READ", 25)
    monkeypatch.setattr(statistics, "NAMES_PORTION", 10)


def lanes_over_days(store: Store) -> None:
    """Forty lanes in three hours, which two workers served at the first minute and at others."""
    one = [1, *[0] * (SIZE - 1)]
    for number, (at, worker_id) in enumerate(
        [(600, "w1"), (600, "w2"), (659, "w1"), (660, "w2"), (725, "w1")]
    ):
        store.write_statistics(
            [
                minute(at, f"sync:{lane}", worker_id, completed=lane + number, run_seconds=0.5, runs=one)
                for lane in range(40)
            ]
        )


@pytest.mark.usefixtures("small_portions")
def test_rows_are_folded_in_portions_that_keep_the_totals(store: Store) -> None:
    lanes_over_days(store)
    before = totals(store)
    sums = [totals(store) for _ in portions(store, hours_before=720, lifetime_before=660)]
    assert sums == [before] * len(sums)
    assert len(sums) >= 16
    found = store.list_statistics(LIFETIME)
    assert [(m.minute, m.worker_id) for m in found] == [(LIFETIME, "")] * 40 + [(660, "")] * 40 + [
        (725, "w1")
    ] * 40
    assert {m.type: m.completed for m in found[:40]} == {f"sync:{n}": 3 * n + 3 for n in range(40)}
    fold_for_good(store, 660)
    assert store.list_statistics(LIFETIME) == found


@pytest.mark.usefixtures("small_portions")
def test_portion_moves_few_rows(store: Store) -> None:
    lanes_over_days(store)
    walk = portions(store, hours_before=900, lifetime_before=900)
    rows = [200, *(len(store.list_statistics(LIFETIME + 1)) for _ in walk)]
    assert all(0 <= a - b <= 10 for a, b in pairwise(rows))
    assert rows[-1] == 0


@pytest.mark.usefixtures("small_portions")
def test_portion_that_is_rolled_back_is_folded_later(store: Store) -> None:
    lanes_over_days(store)
    before = totals(store)
    with rolled_back(store):
        next(portions(store, hours_before=900, lifetime_before=900))
    assert len(store.list_statistics(LIFETIME)) == 200
    assert totals(store) == before
    fold_for_good(store, 900)
    assert totals(store) == before
    assert len(store.list_statistics(LIFETIME)) == 40


@pytest.mark.usefixtures("small_portions")
def test_two_that_fold_at_once_count_nothing_twice(store: Store, other: Store) -> None:
    known(store, "sync")
    lanes_over_days(store)
    before = totals(store)

    def fold_and_forget(store: Store) -> None:
        for _ in range(3):
            fold_for_good(store, 900)
            forget(store)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fold_and_forget, (store, other)))
    assert totals(store) == before
    fold_and_forget(store)
    assert lifetimes(store) == {"sync": before[0]}


# Names that nothing uses any more


def known(store: Store, type: str) -> None:
    worker = WorkerRecord(id="w", pid=1, host="h", state="running", concurrency=1, types=(type,))
    store.register_worker(worker, [TypeRecord(type=type, executor="threads", schema={})])


def test_lifetime_of_an_unused_lane_goes_to_its_base_type(store: Store) -> None:
    known(store, "mail")
    one = [1, *[0] * (SIZE - 1)]
    store.write_statistics(
        [
            minute(100, "mail", completed=1, limited_seconds=0.5, waits=one),
            minute(100, "mail:a", completed=2, failed=1, runs=one, run_seconds=0.25),
            minute(100, "mail:b:c", completed=4, waits=one, wait_seconds=8),
        ]
    )
    fold_for_good(store, 200)
    forget(store)
    expected = minute(
        LIFETIME,
        "mail",
        "",
        completed=7,
        failed=1,
        wait_seconds=8,
        run_seconds=0.25,
        limited_seconds=0.5,
        waits=[2, *[0] * (SIZE - 1)],
        runs=one,
    )
    assert store.list_statistics(LIFETIME) == [expected]
    forget(store)
    assert store.list_statistics(LIFETIME) == [expected]


def test_lifetime_of_a_type_that_no_worker_knows_goes_to_that_of_all_such(store: Store) -> None:
    store.write_statistics(
        [
            minute(100, "crawl", completed=1),
            minute(100, "email", completed=2),
            minute(100, "x:y", completed=4),
        ]
    )
    fold_for_good(store, 200)
    forget(store)
    assert totals(store)[0] == 7
    forget(store)  # what has gone to x
    assert lifetimes(store) == {"": 7}
    store.write_statistics([minute(100, "crawl", completed=8)])
    fold_for_good(store, 200)
    forget(store)
    assert lifetimes(store) == {"": 15}


def test_lifetime_of_a_name_with_jobs_stays(store: Store) -> None:
    known(store, "mail")
    insert(store, "a", type="mail:a")
    finished(store, "b", type="mail:b")
    store.write_statistics([minute(100, f"mail:{lane}", completed=1) for lane in "abc"])
    fold_for_good(store, 200)
    forget(store)
    assert lifetimes(store) == {"mail": 1, "mail:a": 1, "mail:b": 1}
    store.delete_job("b")
    store.forget_names()
    forget(store)
    assert lifetimes(store) == {"mail": 2, "mail:a": 1}


def test_lifetime_of_a_name_with_later_statistics_stays(store: Store) -> None:
    """Or its totals would fall, and those of its base type rise for what is still counted under its name."""
    store.write_statistics([minute(100, "mail:a", completed=1), minute(100, "mail:b", completed=2)])
    fold_for_good(store, 200)
    store.write_statistics([minute(300, "mail:a", completed=4), minute(301, "mail", completed=8)])
    forget(store)
    assert lifetimes(store) == {"mail": 2, "mail:a": 1}
    fold_hours(store, 400)
    forget(store)
    assert lifetimes(store) == {"mail": 2, "mail:a": 1}
    fold_for_good(store, 400)
    forget(store)
    assert totals(store)[0] == 15
    assert "mail:a" not in lifetimes(store)


@pytest.mark.usefixtures("small_portions")
def test_names_are_forgotten_in_portions_that_keep_the_totals(store: Store) -> None:
    known(store, "sync")
    lanes_over_days(store)
    fold_for_good(store, 900)
    before = totals(store)
    left = [len(lifetimes(store))]
    for _ in forgetting(store):
        assert totals(store) == before
        left.append(len(lifetimes(store)))
    assert all(a - b <= 10 for a, b in pairwise(left))
    assert lifetimes(store).keys() == {"sync"}


@pytest.mark.usefixtures("small_portions")
def test_forgetting_that_is_rolled_back_forgets_nothing(store: Store) -> None:
    lanes_over_days(store)
    fold_for_good(store, 900)
    before = store.list_statistics(LIFETIME)
    with rolled_back(store):
        next(forgetting(store))
    assert store.list_statistics(LIFETIME) == before
