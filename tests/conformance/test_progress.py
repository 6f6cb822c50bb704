"""write_progress: what a running attempt says about itself, and nobody else."""

from __future__ import annotations

import pytest

from holdfast.core.job import Progress
from holdfast.store.protocol import Store
from holdfast.store.records import Claim
from holdfast.testing import MovableClock
from tests.conformance.steps import LEASE, claim, claim_one, everything, finish, insert, job, reap, run


def report(store: Store, claimed: Claim, fraction: float = 0.5, message: str | None = "half") -> None:
    store.write_progress(claimed.worker_id, [(claimed.seq, claimed.version, fraction, message)])


@pytest.mark.parametrize("message", [None, "", "žluť 😀 \"quoted\" 'text' \\"])
@pytest.mark.parametrize("fraction", [0.0, 1 / 3, 1.0])
def test_progress_is_kept(store: Store, fraction: float, message: str | None) -> None:
    report(store, run(store, "a"), fraction, message)
    assert job(store, "a").progress == Progress(fraction, message)


def test_job_that_reports_nothing_has_no_progress(store: Store) -> None:
    run(store, "a")
    assert job(store, "a").progress is None


def test_last_report_holds(store: Store) -> None:
    claimed = run(store, "a")
    report(store, claimed, 0.5, "half")
    report(store, claimed, 0.75, None)
    assert job(store, "a").progress == Progress(0.75, None)


def test_several_reports_go_to_their_own_jobs(store: Store) -> None:
    insert(store, *(f"job-{n}" for n in range(10)))
    claims = claim(store)
    store.write_progress("worker", [(c.seq, c.version, n / 10, c.id) for n, c in enumerate(claims)])
    assert [found.progress for found in everything(store)] == [
        Progress(n / 10, f"job-{n}") for n in range(10)
    ]


def test_progress_of_a_finished_job_is_kept(store: Store) -> None:
    claimed = run(store, "a")
    report(store, claimed)
    finish(store, claimed)
    assert job(store, "a").progress == Progress(0.5, "half")


def test_late_progress_of_a_reaped_attempt_is_discarded(store: Store, clock: MovableClock) -> None:
    late = run(store, "a")
    clock.advance(LEASE)
    reap(store)
    before = everything(store)
    report(store, late)
    assert everything(store) == before


@pytest.mark.parametrize("worker", ["worker", "another"])
def test_late_progress_is_discarded_when_the_job_runs_again(
    store: Store, clock: MovableClock, worker: str
) -> None:
    late = run(store, "a")
    clock.advance(LEASE)
    reap(store)
    claim_one(store, worker=worker)
    before = everything(store)
    report(store, late)
    assert everything(store) == before


def test_progress_of_a_finished_attempt_is_discarded(store: Store) -> None:
    claimed = run(store, "a")
    finish(store, claimed)
    before = everything(store)
    report(store, claimed)
    assert everything(store) == before


def test_progress_reported_by_another_worker_is_discarded(store: Store) -> None:
    claimed = run(store, "a")
    before = everything(store)
    store.write_progress("another", [(claimed.seq, claimed.version, 0.5, None)])
    assert everything(store) == before


def test_progress_of_a_deleted_job_does_not_reach_the_next_one(store: Store, clock: MovableClock) -> None:
    late = run(store, "deleted", max_attempts=1)
    clock.advance(LEASE)
    reap(store)
    store.delete_job("deleted")
    run(store, "next")
    report(store, late)
    assert job(store, "next").progress is None


def test_one_late_report_does_not_touch_the_others(store: Store) -> None:
    insert(store, "a", "b")
    late, running = claim(store)
    finish(store, late)
    store.write_progress("worker", [(c.seq, c.version, 0.5, None) for c in (late, running)])
    assert job(store, "a").progress is None
    assert job(store, "b").progress == Progress(0.5)


def test_nothing_to_report_is_no_error(store: Store) -> None:
    store.write_progress("worker", [])
