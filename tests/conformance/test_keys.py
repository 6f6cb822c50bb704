"""Keys: at most one job of a type holds a key, while it is unfinished and key_for longer."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored, Released, Stopped
from holdfast.errors import KeyHeld, KeyTaken
from holdfast.store.protocol import Store
from holdfast.store.records import Verdict
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    BACK_OFF,
    LEASE,
    claim_one,
    everything,
    finish,
    finished,
    insert,
    job,
    new_job,
    reap,
    run,
    status,
)

ENDS = {
    "completed": None,
    "failed": Errored("boom", permanent=True),
    "cancelled": Stopped(),
}
each_end = pytest.mark.parametrize("end", ENDS)


def offer(store: Store, id: str = "again", **options: Any) -> Verdict:
    """Enqueue with the key `k`."""
    [verdict] = store.insert_jobs([new_job(id, **{"key": "k", **options})])
    return verdict


def is_held_by(store: Store, id: str) -> bool:
    verdict = offer(store, "probe")
    return (verdict.id, verdict.inserted, verdict.error) == (id, False, None)


def end_with(store: Store, id: str, end: str, **options: Any) -> None:
    finished(store, id, ENDS[end], key="k", **options)
    assert status(store, id) == end


def test_job_remembers_its_key(store: Store) -> None:
    insert(store, "a", key="k", key_for=60.5)
    assert (job(store, "a").key, job(store, "a").key_for) == ("k", 60.5)


def test_same_key_and_payload_returns_the_job_that_holds_it(store: Store) -> None:
    insert(store, "a", key="k", payload='{"n": 1, "m": 2}')
    before = everything(store)
    verdict = offer(store, payload='{"m": 2, "n": 1}')
    assert (verdict.id, verdict.inserted, verdict.error) == ("a", False, None)
    assert everything(store) == before


def test_found_job_is_told_with_its_state(store: Store, clock: MovableClock) -> None:
    created_at = store.now()
    insert(store, "a", key="k")
    claim_one(store)
    clock.advance(5)
    verdict = offer(store)
    assert (verdict.status, verdict.created_at) == (Status.PROCESSING, created_at)


def test_same_key_with_another_payload_is_an_error_that_names_the_job(store: Store) -> None:
    insert(store, "a", key="k", payload='{"n": 1}')
    before = everything(store)
    verdict = offer(store, payload='{"n": 2}')
    assert not verdict.inserted
    assert isinstance(verdict.error, KeyTaken)
    assert (verdict.error.job_id, verdict.error.key) == ("a", "k")
    assert everything(store) == before


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ('{"n": 1}', '{"n": 1.0}'),
        ('{"n": true}', '{"n": 1}'),
        ('{"n": "1"}', '{"n": 1}'),
        ("{}", '{"n": null}'),
    ],
)
def test_payloads_that_only_look_alike_are_different(store: Store, one: str, two: str) -> None:
    insert(store, "a", key="k", payload=one)
    assert isinstance(offer(store, payload=two).error, KeyTaken)


def test_other_types_have_keys_of_their_own(store: Store) -> None:
    insert(store, "a", type="email", key="k")
    assert offer(store, type="crawl").inserted


def test_jobs_without_a_key_are_not_alike(store: Store) -> None:
    insert(store, "a", "b")


@pytest.mark.parametrize("state", ["scheduled", "pending", "processing", "retrying", "released", "reaped"])
def test_unfinished_job_holds_its_key(store: Store, clock: MovableClock, state: str) -> None:
    insert(store, "a", key="k", delay=60 if state == "scheduled" else None)
    if state not in ("scheduled", "pending"):
        running = claim_one(store)
        if state == "retrying":
            finish(store, running, Errored("boom"))
        elif state == "released":
            finish(store, running, Released())
        elif state == "reaped":
            clock.advance(LEASE)
            reap(store)
    assert is_held_by(store, "a")


def test_job_to_be_cancelled_holds_its_key_until_it_has_stopped(store: Store) -> None:
    running = run(store, "a", key="k")
    store.cancel_job("a")
    assert is_held_by(store, "a")
    finish(store, running, Errored("stopped"))
    assert offer(store).inserted


@each_end
def test_finished_job_lets_its_key_go(store: Store, end: str) -> None:
    end_with(store, "a", end)
    assert offer(store, payload='{"n": 2}').inserted


@pytest.mark.parametrize("delay", [None, 60.0])
def test_job_cancelled_while_it_waits_lets_its_key_go(store: Store, delay: float | None) -> None:
    insert(store, "a", key="k", delay=delay)
    store.cancel_job("a")
    assert offer(store).inserted


@each_end
def test_key_is_held_for_longer_with_key_for(store: Store, clock: MovableClock, end: str) -> None:
    end_with(store, "a", end, key_for=60)
    clock.advance(60 - 0.000001)
    assert is_held_by(store, "a")
    clock.advance(0.000001)
    assert offer(store).inserted


def test_key_for_counts_from_the_cancellation_of_a_waiting_job(store: Store, clock: MovableClock) -> None:
    insert(store, "a", key="k", key_for=60)
    clock.advance(100)
    store.cancel_job("a")
    clock.advance(59)
    assert is_held_by(store, "a")
    clock.advance(1)
    assert offer(store).inserted


def test_key_for_counts_from_the_end_and_not_from_the_start(store: Store, clock: MovableClock) -> None:
    running = run(store, "a", key="k", key_for=60)
    clock.advance(100)
    finish(store, running)
    clock.advance(59)
    assert is_held_by(store, "a")


def test_key_for_of_zero_is_no_longer(store: Store) -> None:
    finished(store, "a", key="k", key_for=0.0)
    assert offer(store).inserted


def test_other_payload_is_an_error_while_key_for_lasts(store: Store) -> None:
    finished(store, "a", key="k", key_for=60)
    assert isinstance(offer(store, payload='{"n": 2}').error, KeyTaken)


def test_same_key_twice_in_a_batch_is_one_job(store: Store) -> None:
    first, second = store.insert_jobs([new_job("a", key="k"), new_job("b", key="k")])
    assert (first.id, first.inserted) == ("a", True)
    assert (second.id, second.inserted, second.error) == ("a", False, None)
    assert len(everything(store)) == 1


def test_taken_key_does_not_touch_the_others_of_a_batch(store: Store) -> None:
    insert(store, "a", key="k", payload='{"n": 1}')
    verdicts = store.insert_jobs([new_job("b"), new_job("c", key="k"), new_job("d", key="l")])
    assert [verdict.inserted for verdict in verdicts] == [True, False, True]


def test_key_has_the_word_before_the_id(store: Store) -> None:
    """The same enqueue made again, id and all, finds its job rather than an error."""
    insert(store, "a", key="k")
    verdict = offer(store, "a")
    assert (verdict.id, verdict.inserted, verdict.error) == ("a", False, None)


# Retry


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_retried_job_takes_its_key_again(store: Store, end: str) -> None:
    end_with(store, "a", end)
    store.retry_job("a", None)
    assert is_held_by(store, "a")


def test_retry_is_refused_when_another_job_holds_the_key(store: Store) -> None:
    end_with(store, "a", "failed")
    insert(store, "b", key="k", payload='{"n": 2}')
    before = everything(store)
    with pytest.raises(KeyHeld) as refused:
        store.retry_job("a", None)
    assert (refused.value.job_id, refused.value.key) == ("b", "k")
    assert refused.value.hint == "cancel that job, or wait until it has finished"
    assert everything(store) == before
    store.cancel_job("b")
    assert store.retry_job("a", None).status is Status.PENDING


def test_retry_is_refused_while_key_for_of_another_lasts(store: Store, clock: MovableClock) -> None:
    end_with(store, "a", "failed")
    finished(store, "b", key="k", key_for=60)
    clock.advance(59)
    with pytest.raises(KeyHeld) as refused:
        store.retry_job("a", None)
    assert refused.value.hint == "delete that job, or wait until its key_for has expired"
    clock.advance(1)
    assert store.retry_job("a", None).status is Status.PENDING
    assert is_held_by(store, "a")


def test_retry_is_allowed_when_the_finished_holder_of_the_key_is_deleted(store: Store) -> None:
    end_with(store, "a", "failed")
    finished(store, "b", key="k", key_for=60)
    store.delete_job("b")
    assert store.retry_job("a", None).status is Status.PENDING


def test_retry_of_a_job_that_still_holds_its_key_is_allowed(store: Store, clock: MovableClock) -> None:
    end_with(store, "a", "failed", key_for=60)
    store.retry_job("a", None)
    clock.advance(3600)
    assert is_held_by(store, "a")


def test_key_for_begins_anew_after_a_retry(store: Store, clock: MovableClock) -> None:
    end_with(store, "a", "failed", key_for=60)
    clock.advance(50)
    store.retry_job("a", None)
    clock.advance(50)
    finish(store, claim_one(store))
    clock.advance(59)
    assert is_held_by(store, "a")
    clock.advance(1)
    assert offer(store).inserted


def test_job_waiting_for_a_retry_can_be_retried_with_its_key(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "a", key="k"), Errored("boom"))
    store.retry_job("a", None)
    clock.advance(BACK_OFF)
    assert is_held_by(store, "a")


def test_key_that_has_run_out_is_free_for_the_retry_of_another(store: Store, clock: MovableClock) -> None:
    end_with(store, "a", "failed")
    finished(store, "b", key="k", key_for=10)
    clock.advance(10)
    store.retry_job("a", None)
    assert is_held_by(store, "a")


def test_refused_finish_does_not_let_the_key_go(store: Store, clock: MovableClock) -> None:
    late = run(store, "a", key="k")
    clock.advance(LEASE)
    reap(store)
    assert finish(store, late) is None
    assert is_held_by(store, "a")
