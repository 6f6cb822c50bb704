"""Statistics: one row per worker, type and minute, folded into a lifetime row in the end."""

from __future__ import annotations

from typing import Any

from holdfast.store.protocol import Store
from holdfast.store.records import BUCKETS, LIFETIME, Minute

SIZE = len(BUCKETS) + 1


def minute(minute: int, type: str = "email", worker_id: str = "w1", **sums: Any) -> Minute:
    return Minute(
        minute=minute, type=type, worker_id=worker_id, **{"waits": [0] * SIZE, "runs": [0] * SIZE, **sums}
    )


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
    store.fold_statistics(102)
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
    store.fold_statistics(101)
    store.fold_statistics(101)
    store.fold_statistics(102)
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
    store.fold_hours(160)
    assert store.list_statistics(LIFETIME) == [
        minute(60, "email", "", completed=1),
        minute(120, "crawl", "", failed=1),
        minute(120, "email", "", completed=6, limited_seconds=0.5, waits=[2, *[0] * (SIZE - 1)]),
        minute(170, "email", "w1", completed=8),
    ]


def test_folding_by_the_hour_again_changes_nothing_and_takes_in_what_came_late(store: Store) -> None:
    store.write_statistics([minute(120, "email", "w1", completed=1), minute(121, "email", "w1", completed=2)])
    store.fold_hours(200)
    store.fold_hours(200)
    store.write_statistics([minute(122, "email", "late", completed=4)])
    store.fold_hours(200)
    assert store.list_statistics(LIFETIME) == [minute(120, "email", "", completed=7)]
    store.fold_statistics(200)
    assert store.list_statistics(LIFETIME) == [minute(LIFETIME, "email", "", completed=7)]


def test_lifetime_is_not_a_recent_minute(store: Store) -> None:
    store.write_statistics([minute(100, completed=1)])
    store.fold_statistics(200)
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
