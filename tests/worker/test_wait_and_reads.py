"""Waiting for jobs, reading them, asking why, and operating on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Queue
from holdfast.config import find_setting
from holdfast.errors import ConfigError, InvalidPayload, JobNotFound, KeyTaken, WrongState
from holdfast.events import JobDeleted, JobRetried, JobsPruned, SettingChanged
from holdfast.store.open import store_of
from holdfast.testing import MovableClock
from tests.support import Recorder, both_engines, wait_until
from tests.worker.support import PATIENCE, Gate, Spy, get

StartWorker = Callable[..., Any]


def fail(payload: object) -> None:
    raise RuntimeError("broken")


# Waiting.


@both_engines
def test_wait_gives_the_completed_job(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: {"n": 1})
    start_worker()
    job = queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    assert (job.status, job.result) == ("completed", {"n": 1})


def test_wait_gives_the_failed_job_and_raises_nothing(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", fail, max_attempts=1)
    start_worker()
    job = queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    assert (job.status, job.error) == ("failed", "RuntimeError: broken")
    assert len(job.errors) == 1


def test_wait_for_a_finished_job_returns_at_once(queue: Queue) -> None:
    job = queue.cancel(queue.enqueue("work").id)
    assert queue.wait(job.id, timeout=0) == job


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_wait_gives_up_after_its_timeout_and_says_what_the_job_is(queue: Queue, timeout: float) -> None:
    job = queue.enqueue("work")
    with pytest.raises(TimeoutError, match=f"job '{job.id}' is still pending after {timeout:g} s"):
        queue.wait(job.id, timeout=timeout)


def test_wait_for_a_job_that_does_not_exist_says_so(queue: Queue) -> None:
    with pytest.raises(JobNotFound, match="'nobody'"):
        queue.wait("nobody", timeout=1)


@both_engines
def test_wait_sees_what_another_queue_object_finishes(queue: Queue, other_queue: Queue) -> None:
    job = queue.enqueue("work")
    other_queue.register("work", lambda payload: None)
    other_queue.drain()
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"


@both_engines
def test_wait_returns_when_the_job_has_finished_not_at_the_next_look(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wake-up must not get lost between the look at the job and the sleep."""
    monkeypatch.setattr("holdfast.queue.wait._POLL_SECONDS", 600.0)
    gates: list[Gate] = []
    queue.register("work", lambda payload: gates[payload["n"]].enter())
    start_worker()
    for n in range(40):
        gates.append(Gate())
        job = queue.enqueue("work", {"n": n})
        gates[n].wait_entered()
        gates[n].open()
        queue.wait(job.id, timeout=PATIENCE)


# Lists.


@pytest.fixture
def one_of_each(queue: Queue) -> dict[str, str]:
    """A job in every state that needs no worker, by the state's name."""
    ids: dict[str, str] = {}
    queue.register("good", lambda payload: None)
    queue.register("bad", fail, max_attempts=1)
    queue.register("again", fail, max_attempts=2, backoff_factor=3600)
    ids["completed"] = queue.enqueue("good").id
    ids["failed"] = queue.enqueue("bad").id
    ids["retrying"] = queue.enqueue("again").id
    queue.drain()
    ids["cancelled"] = queue.cancel(queue.enqueue("good").id).id
    ids["scheduled"] = queue.enqueue("good", delay=3600).id
    ids["pending"] = queue.enqueue("foreign").id
    return ids


@pytest.mark.parametrize(
    ("words", "states"),
    [
        ("completed", ["completed"]),
        ("done", ["completed"]),
        ("failed", ["failed"]),
        ("dead", ["failed"]),
        ("pending", ["pending"]),
        ("queued", ["pending"]),
        ("cancelled", ["cancelled"]),
        ("processing", []),
        ("claimed", []),
        ("scheduled", ["scheduled", "retrying"]),
        ("retrying", ["retrying"]),
        (["failed", "cancelled"], ["cancelled", "failed"]),
        (["dead", "retrying"], ["retrying", "failed"]),
        ([], ["pending", "scheduled", "cancelled", "retrying", "failed", "completed"]),
        (None, ["pending", "scheduled", "cancelled", "retrying", "failed", "completed"]),
    ],
)
def test_jobs_are_listed_by_status_newest_first(
    queue: Queue, one_of_each: dict[str, str], words: Any, states: list[str]
) -> None:
    assert [job.id for job in queue.jobs(status=words)] == [one_of_each[state] for state in states]


@both_engines
def test_jobs_are_listed_by_type_limit_and_offset(queue: Queue) -> None:
    ids = [queue.enqueue("a").id for _ in range(5)]
    queue.enqueue("b")
    assert [job.id for job in queue.jobs(type="a")] == ids[::-1]
    assert [job.id for job in queue.jobs(type="a", limit=2)] == [ids[4], ids[3]]
    assert [job.id for job in queue.jobs(type="a", limit=2, offset=3)] == [ids[1], ids[0]]
    assert queue.jobs(type="a:lane") == []
    assert queue.jobs(type="a", status="failed") == []


def test_word_that_is_no_status_is_refused_with_those_allowed(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="'waiting' is not a status; allowed: scheduled, pending"):
        queue.jobs(status="waiting")  # type: ignore[arg-type]


def test_job_that_does_not_exist_is_none(queue: Queue) -> None:
    assert queue.get("nobody") is None


@both_engines
def test_stats_count_jobs_by_state_and_type_and_workers(
    queue: Queue, one_of_each: dict[str, str], start_worker: StartWorker
) -> None:
    stats = queue.stats()
    assert {
        state: stats[state] for state in ("pending", "completed", "failed", "cancelled")
    } == dict.fromkeys(("pending", "completed", "failed", "cancelled"), 1)
    assert (stats["scheduled"], stats["processing"], stats["workers"]) == (2, 0, 0)
    assert stats["by_type"]["good"]["completed"] == 1
    assert stats["by_type"]["good"]["cancelled"] == 1
    start_worker()
    assert queue.stats()["workers"] == 1


# Why.


def codes(queue: Queue, job_id: str) -> list[str]:
    return [reason.code for reason in queue.why(job_id)]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("completed", "completed"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
        ("scheduled", "scheduled"),
        ("retrying", "back-off"),
        ("pending", "no_workers"),
    ],
)
def test_why_tells_the_state_first(queue: Queue, one_of_each: dict[str, str], state: str, code: str) -> None:
    reasons = queue.why(one_of_each[state])
    assert reasons[0].code == code
    assert reasons[0].text
    if state in ("scheduled", "retrying"):
        assert reasons[0].until is not None
        assert datetime.fromisoformat(reasons[0].until) > datetime.now(UTC)


def test_why_of_a_failed_job_tells_its_error(queue: Queue, one_of_each: dict[str, str]) -> None:
    (reason,) = queue.why(one_of_each["failed"])
    assert "after 1 attempt: RuntimeError: broken" in reason.text


@both_engines
def test_why_names_both_pauses(queue: Queue) -> None:
    job = queue.enqueue("work")
    queue.pause()
    queue.pause(type="work")
    assert codes(queue, job.id)[:2] == ["paused", "paused"]


@both_engines
def test_why_names_a_type_that_no_worker_handles(queue: Queue, start_worker: StartWorker) -> None:
    start_worker()
    assert codes(queue, queue.enqueue("foreign").id) == ["no_worker_for_type"]


@both_engines
def test_why_names_full_slots_and_the_line(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    queue.register("work", lambda payload: gate.enter())
    start_worker(concurrency=1)
    running = queue.enqueue("work")
    gate.wait_entered()
    first, second = queue.enqueue("work"), queue.enqueue("work")
    assert codes(queue, running.id) == ["running"]
    assert codes(queue, first.id) == ["slots_full"]
    assert codes(queue, second.id) == ["slots_full", "in_line"]
    assert "1 job of its type is ahead of it" in queue.why(second.id)[1].text


def test_why_names_full_slots_when_other_types_fill_them(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.register("slow", lambda payload: gate.enter())
    queue.register("other", lambda payload: None)
    start_worker(concurrency=1)
    queue.enqueue("slow")
    gate.wait_entered()
    (reason,) = queue.why(queue.enqueue("other").id)
    assert (reason.code, reason.text) == ("slots_full", "the only worker slot is in use")


def test_type_that_is_named_to_a_worker_without_a_handler_is_not_served(
    queue: Queue, start_worker: StartWorker
) -> None:
    queue.register("work", lambda payload: None)
    start_worker(types=["work", "ghost"])
    (worker,) = queue.workers()
    assert list(worker.types) == ["work"]
    assert codes(queue, queue.enqueue("ghost").id) == ["no_worker_for_type"]


@both_engines
def test_why_names_max_running(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    queue.register("work", lambda payload: gate.enter(), max_running=1)
    start_worker()
    queue.enqueue("work")
    gate.wait_entered()
    assert codes(queue, queue.enqueue("work").id) == ["max_running"]


@both_engines
def test_why_names_the_rate_limit_and_when_it_lets_go(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None, rate_limit=0.001)
    start_worker()
    queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    (reason,) = queue.why(queue.enqueue("work").id)
    assert reason.code == "rate_limit"
    assert reason.until is not None
    assert datetime.fromisoformat(reason.until) > datetime.now(UTC) + timedelta(minutes=10)


def test_why_tells_of_a_cancellation_on_its_way(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    queue.register("work", lambda payload: gate.enter())
    start_worker()
    job = queue.enqueue("work")
    gate.wait_entered()
    queue.cancel(job.id)
    assert codes(queue, job.id) == ["cancelling"]


def test_why_tells_when_nothing_holds_a_job_back(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    worker = start_worker()
    worker.pause()
    assert codes(queue, queue.enqueue("work").id) == ["ready"]


def test_why_of_a_job_that_does_not_exist_says_so(queue: Queue) -> None:
    with pytest.raises(JobNotFound):
        queue.why("nobody")


# Retry, delete, clean up.


@both_engines
@pytest.mark.parametrize("state", ["failed", "cancelled", "retrying"])
def test_retry_begins_anew_with_all_attempts(
    queue: Queue, one_of_each: dict[str, str], recorder: Recorder, state: str
) -> None:
    job = queue.retry(one_of_each[state])
    assert (job.status, job.attempts, job.finished_at) == ("pending", 0, None)
    assert recorder.wait(JobRetried).job_id == job.id


def test_retried_job_keeps_its_history(queue: Queue, one_of_each: dict[str, str]) -> None:
    queue.retry(one_of_each["failed"])
    queue.drain()
    job = get(queue, one_of_each["failed"])
    assert (job.status, job.attempts, len(job.errors)) == ("failed", 1, 2)


@both_engines
def test_retry_with_a_new_payload(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    def work(n: int) -> int:
        return 10 // n

    job = work.enqueue(n=0)
    queue.drain()
    with pytest.raises(InvalidPayload, match=r"payload\.n"):
        queue.retry(job.id, payload={"n": "two"})
    assert get(queue, job.id).status == "failed"
    assert queue.retry(job.id, payload={"n": 2}).payload == {"n": 2}
    queue.drain()
    done = get(queue, job.id)
    assert (done.status, done.result, done.error) == ("completed", 5, None)


@pytest.mark.parametrize("state", ["completed", "pending", "scheduled"])
def test_retry_is_refused_where_it_makes_no_sense(
    queue: Queue, one_of_each: dict[str, str], state: str
) -> None:
    with pytest.raises(WrongState, match=f"is {state} and can't be retried"):
        queue.retry(one_of_each[state])


@both_engines
def test_retry_is_refused_while_another_job_holds_the_key(queue: Queue) -> None:
    first = queue.cancel(queue.enqueue("work", key="k").id)
    second = queue.enqueue("work", key="k")
    with pytest.raises(KeyTaken, match=second.id):
        queue.retry(first.id)


def test_retry_of_a_job_that_does_not_exist_says_so(queue: Queue) -> None:
    with pytest.raises(JobNotFound):
        queue.retry("nobody")
    with pytest.raises(JobNotFound):
        queue.retry("nobody", payload={})


@both_engines
@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_delete_removes_finished_jobs(
    queue: Queue, one_of_each: dict[str, str], recorder: Recorder, state: str
) -> None:
    queue.delete(one_of_each[state])
    assert queue.get(one_of_each[state]) is None
    assert recorder.wait(JobDeleted).job_id == one_of_each[state]
    with pytest.raises(JobNotFound):
        queue.delete(one_of_each[state])


@pytest.mark.parametrize("state", ["pending", "scheduled", "retrying"])
def test_delete_is_refused_for_jobs_that_wait(queue: Queue, one_of_each: dict[str, str], state: str) -> None:
    with pytest.raises(WrongState, match="can't be deleted"):
        queue.delete(one_of_each[state])


def test_delete_is_refused_for_a_running_job(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    queue.register("work", lambda payload: gate.enter())
    start_worker()
    job = queue.enqueue("work")
    gate.wait_entered()
    with pytest.raises(WrongState, match="is processing and can't be deleted"):
        queue.delete(job.id)


@both_engines
def test_cleanup_removes_old_completed_and_cancelled_jobs_only(url: str) -> None:
    clock = MovableClock()
    with Queue(url, clock=clock) as queue:
        recorder = Recorder(queue.events)
        queue.register("good", lambda payload: None)
        queue.register("bad", fail, max_attempts=1)
        old = [queue.enqueue("good"), queue.cancel(queue.enqueue("good").id)]
        failed = queue.enqueue("bad")
        queue.drain()
        clock.advance(days=8)
        young = queue.enqueue("good")
        queue.drain()
        assert queue.cleanup(older_than=timedelta(days=7)) == 2
        assert recorder.wait(JobsPruned).count == 2
        assert [queue.get(job.id) for job in old] == [None, None]
        assert get(queue, failed.id).status == "failed"
        assert get(queue, young.id).status == "completed"
        assert queue.cleanup(older_than=clock.now + timedelta(seconds=1)) == 1


def test_cleanup_comes_in_batches(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.queue.operating._BATCH", 50)
    prunes = Spy(store_of(queue).prune_jobs)
    monkeypatch.setattr(store_of(queue), "prune_jobs", prunes)
    queue.enqueue_many("work", [{}] * 110)
    with store_of(queue).transaction():
        for job in queue.jobs(limit=110):
            store_of(queue).cancel_job(job.id)
    assert queue.cleanup(older_than=0) == 110
    assert len(prunes.calls) >= 3
    assert queue.stats()["cancelled"] == 0


@pytest.mark.parametrize("older_than", ["soon", None, 1e300, -1, datetime(2030, 1, 1)])  # noqa: DTZ001
def test_cleanup_refuses_what_is_no_age(queue: Queue, older_than: Any) -> None:
    with pytest.raises(ConfigError, match="older_than"):
        queue.cleanup(older_than=older_than)


# Settings.


@both_engines
def test_setting_is_followed_by_a_running_worker_of_another_queue_object(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.job
    async def hang(ctx: Context) -> None:
        await asyncio.Event().wait()

    start_worker()
    other_queue.set_config("max_attempts", 1, type="hang")
    other_queue.set_config("job_timeout", 0.1)
    settings = Spy(store_of(queue).read_settings)
    monkeypatch.setattr(store_of(queue), "read_settings", settings)
    queue.pause(type="nothing")  # a change, so that the worker reads them once more
    settings.wait_called(1, after=0)
    done = queue.wait(hang.enqueue().id, timeout=PATIENCE)
    assert done.error == "TimedOut: the attempt ran longer than its timeout of 0.1 s"


@both_engines
def test_second_of_two_quick_changes_is_followed_without_waiting_for_a_poll(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.set_config("poll_interval", 3600)
    queue.set_config("lease_seconds", 3600)
    queue.set_config("heartbeat_interval", 1200)
    queue.set_config("concurrency", 1)
    queue.register("work", lambda payload: gate.enter())
    start_worker()
    queue.enqueue_many("work", [{}] * 3)
    gate.wait_entered(1)
    other_queue.set_config("concurrency", 2)
    gate.wait_entered(2)
    other_queue.set_config("concurrency", 3)  # within a quarter of a second of the one before
    gate.wait_entered(3)


def test_precedence_of_settings_through_a_running_worker(queue: Queue, start_worker: StartWorker) -> None:
    """Built-in default, stored for all, the decorator's, stored for the type, the job's own."""
    queue.register("plain", fail)
    queue.register("declared", fail, max_attempts=2)
    start_worker()

    def attempts(type: str, **options: Any) -> int:
        return queue.wait(queue.enqueue(type, **options).id, timeout=PATIENCE).attempts

    assert (attempts("plain"), attempts("declared")) == (3, 2)
    queue.set_config("max_attempts", 1)
    wait_until(lambda: attempts("plain") == 1)
    assert attempts("declared") == 2
    queue.set_config("max_attempts", 4, type="declared")
    wait_until(lambda: attempts("declared") == 4)
    assert attempts("declared", max_attempts=1) == 1
    queue.unset_config("max_attempts", type="declared")
    wait_until(lambda: attempts("declared") == 2)
    queue.unset_config("max_attempts")
    wait_until(lambda: attempts("plain") == 3)


def test_what_enqueue_leaves_open_stays_open_until_the_first_claim(queue: Queue) -> None:
    queue.register("work", fail, backoff_factor=3600)
    job = queue.enqueue("work")
    queue.set_config("max_attempts", 7)
    assert get(queue, job.id).max_attempts == 7
    queue.drain()
    queue.set_config("max_attempts", 9)
    assert get(queue, job.id).max_attempts == 7


def test_settings_are_shown_as_they_are_in_force(queue: Queue, recorder: Recorder) -> None:
    queue.register("work", fail, max_attempts=2)
    queue.set_config(find_setting("max-retries").name, "5")
    assert queue.config()["max_attempts"] == 5
    assert queue.config("work")["max_attempts"] == 2
    assert queue.config("other")["max_attempts"] == 5
    changed = recorder.wait(SettingChanged)
    assert (changed.key, changed.value, changed.type) == ("max_attempts", 5, None)


@pytest.mark.parametrize(
    ("key", "value", "type", "message"),
    [
        ("max_tries", 1, None, "there is no setting 'max_tries'; allowed: backoff_base"),
        (
            "max_attempts",
            0,
            None,
            "0 is not a valid value for max_attempts; allowed: a whole number of at least 1",
        ),
        ("max_attempts", "many", None, "'many' is not a valid value for max_attempts"),
        ("max_attempts", True, None, "max_attempts"),
        ("lease_seconds", 2, None, "at least 3"),
        ("lease_seconds", 10, "work", "can't be set for a type"),
        ("backoff_strategy", "random", None, "exponential, linear or fixed"),
        ("backoff_jitter", 2, None, "from 0 to 1"),
        ("job_timeout", 0, None, "job_timeout"),
        ("job_timeout", float("nan"), None, "job_timeout"),
        ("max_running", -1, "work", "max_running"),
        ("concurrency", 1.5, None, "concurrency"),
        ("concurrency", 1, "no spaces", "'no spaces'"),
    ],
)
def test_setting_that_makes_no_sense_is_refused_with_what_is_allowed(
    queue: Queue, key: Any, value: Any, type: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        queue.set_config(key, value, type=type)
    assert store_of(queue).get_settings() == {}


def test_default_that_makes_no_sense_is_refused_when_the_queue_is_made(url: str) -> None:
    with pytest.raises(ConfigError, match="lease_seconds"):
        Queue(url, defaults={"lease_seconds": 1})


def test_option_of_a_handler_that_makes_no_sense_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="there is no option 'retries'"):
        queue.register("work", fail, retries=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="max_attempts"):
        queue.job(max_attempts=0)
    with pytest.raises(ConfigError, match="there is no executor 'greenlet'"):
        queue.register("work", fail, executor="greenlet")  # type: ignore[arg-type]
