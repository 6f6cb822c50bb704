"""Doing the same to many named or matching jobs: what is refused is named, and the rest is done."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Queue
from holdfast.core.filter import StatusWord
from holdfast.core.lifecycle import Errored
from holdfast.errors import (
    CommitUncertain,
    ConfigError,
    JobNotFound,
    KeyHeld,
    NestedWrite,
    StoreUnavailable,
    WrongState,
)
from holdfast.events import Event, JobCancelled, JobCancelRequested, JobDeleted, JobRetried
from holdfast.listing import actions as operate_module
from holdfast.listing.actions import Acted, Action
from holdfast.store.open import store_of
from holdfast.store.scope import Scope
from holdfast.testing import MovableClock
from tests.conformance.steps import everything, finish, finished, insert, run
from tests.support import Recorder, both_engines, unsynced
from tests.worker.support import Spy, doubt_commit, get

DEAD = Errored("boom", permanent=True)

ENDS = {"retry": "pending", "cancel": "cancelled"}
"""The state that an action leads to."""


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    clock = MovableClock(datetime(2030, 1, 1, tzinfo=UTC))
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(operate_module, "_BATCH", 4)
    return 4


def prepare(queue: Queue, action: Action, count: int, prefix: str = "job", **options: Any) -> list[str]:
    """Jobs that an action can be done to."""
    ids = [f"{prefix}-{n}" for n in range(count)]
    for id in ids:
        if action == "cancel":
            insert(store_of(queue), id, **options)
        else:
            finished(store_of(queue), id, DEAD if action == "retry" else None, **options)
    return ids


def state(queue: Queue, id: str) -> str | None:
    job = queue.get(id)
    return None if job is None else job.status


def told(recorder: Recorder) -> list[tuple[str, str, str]]:
    """The events of actions, in order."""
    return [
        (event.name, event.job_id, event.type)
        for event in recorder.all(Event)
        if isinstance(event, JobRetried | JobCancelled | JobCancelRequested | JobDeleted)
    ]


def refused(result: Acted) -> dict[str, type[Exception]]:
    return {refusal.job_id: type(refusal.error) for refusal in result.refusals}


# Done


@pytest.mark.parametrize("jobs", [0, 1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("action", ["retry", "cancel", "delete"])
def test_action_is_done_to_every_job_and_told_of_each(
    queue: Queue, small_batches: int, action: Action, jobs: int
) -> None:
    ids = prepare(queue, action, jobs)
    prepare(queue, action, 1, "untouched")
    before = get(queue, "untouched-0")
    recorder = Recorder(queue.events)
    assert queue.act(action, iter(ids)) == Acted(done=jobs)
    assert [state(queue, id) for id in ids] == [ENDS.get(action)] * jobs
    name = {"retry": JobRetried.name, "cancel": JobCancelled.name, "delete": JobDeleted.name}[action]
    assert told(recorder) == [(name, id, "email") for id in ids]
    assert get(queue, "untouched-0") == before


def test_running_job_is_asked_to_stop_and_a_waiting_one_cancelled(queue: Queue) -> None:
    run(store_of(queue), "running")
    insert(store_of(queue), "waiting")
    recorder = Recorder(queue.events)
    assert queue.act("cancel", iter(["running", "waiting"])).done == 2
    assert told(recorder) == [
        (JobCancelRequested.name, "running", "email"),
        (JobCancelled.name, "waiting", "email"),
    ]
    assert (get(queue, "running").status, get(queue, "running").cancel_requested) == ("processing", True)


def test_action_on_many_does_what_it_does_on_one(queue: Queue) -> None:
    """Each pair of jobs has the same history; one is taken by hand, the other among many."""
    for id in ("one-a", "many-a"):
        finished(store_of(queue), id, DEAD, priority=3, max_attempts=2)
    for id in ("one-b", "many-b"):
        finish(store_of(queue), run(store_of(queue), id), Errored("boom"))
    queue.retry("one-a")
    queue.retry("one-b")
    assert queue.act("retry", iter(["many-a", "many-b"])).done == 2
    for letter in "ab":
        one, many = get(queue, f"one-{letter}"), get(queue, f"many-{letter}")
        same = [name for name in one.__struct_fields__ if name != "id"]
        assert [getattr(one, name) for name in same] == [getattr(many, name) for name in same]


def test_unknown_action_is_refused_before_anything_is_touched(queue: Queue) -> None:
    ids = iter(prepare(queue, "delete", 2))
    with pytest.raises(ConfigError, match="'drop' is not an action; allowed: retry, cancel, delete"):
        queue.act("drop", ids)  # type: ignore[arg-type]
    assert len(list(ids)) == 2
    assert queue.count() == 2


# Refused


@both_engines
def test_refusals_are_named_with_their_reasons_and_the_rest_is_done(queue: Queue, small_batches: int) -> None:
    good = prepare(queue, "retry", 6)
    finished(store_of(queue), "rival", DEAD, key="k")
    insert(store_of(queue), "holder", key="k")
    insert(store_of(queue), "pending")
    mixed = [good[0], "nobody", good[1], "pending", "rival", *good[2:], "nobody-either"]
    recorder = Recorder(queue.events)
    result = queue.act("retry", iter(mixed))
    assert (result.done, result.refused) == (6, 4)
    assert refused(result) == {
        "nobody": JobNotFound,
        "pending": WrongState,
        "rival": KeyHeld,
        "nobody-either": JobNotFound,
    }
    assert [state(queue, id) for id in good] == ["pending"] * 6
    assert state(queue, "rival") == "failed"
    assert [id for _, id, _ in told(recorder)] == good


@pytest.mark.parametrize(
    ("action", "able"),
    [
        ("retry", {"failed", "cancelled", "retrying"}),
        ("cancel", {"scheduled", "retrying", "pending", "processing"}),
        ("delete", {"completed", "failed", "cancelled"}),
    ],
)
def test_states_that_an_action_does_not_fit_are_left_as_they_are(
    queue: Queue, action: Action, able: set[str]
) -> None:
    finished(store_of(queue), "completed")
    finished(store_of(queue), "failed", DEAD)
    insert(store_of(queue), "cancelled")
    queue.cancel("cancelled")
    finish(store_of(queue), run(store_of(queue), "retrying"), Errored("boom"))
    run(store_of(queue), "processing")
    insert(store_of(queue), "pending")
    insert(store_of(queue), "scheduled", delay=60)
    before = {job.id: job for job in everything(store_of(queue))}
    result = queue.act(action, iter(list(before)))
    unable = before.keys() - able
    assert refused(result) == dict.fromkeys(unable, WrongState)
    assert (result.done, result.refused) == (len(able), len(unable))
    assert {id: store_of(queue).get_job(id) for id in unable} == {id: before[id] for id in unable}


def test_job_that_is_named_twice_is_taken_once(queue: Queue) -> None:
    prepare(queue, "delete", 2)
    result = queue.act("delete", iter(["job-0", "job-1", "job-0"]))
    assert (result.done, result.refused, refused(result)) == (2, 1, {"job-0": JobNotFound})


def test_only_the_first_refusals_are_kept_and_all_are_counted(queue: Queue, small_batches: int) -> None:
    result = queue.act("cancel", (f"nobody-{n}" for n in range(9)), kept=3)
    assert (result.done, result.refused) == (0, 9)
    assert [refusal.job_id for refusal in result.refusals] == ["nobody-0", "nobody-1", "nobody-2"]
    assert len(queue.act("cancel", (f"nobody-{n}" for n in range(150))).refusals) == 100


def test_results_of_two_operations_have_nothing_in_common(queue: Queue) -> None:
    first = queue.act("cancel", iter(["nobody"]))
    assert queue.act("cancel", iter([])) == Acted()
    assert len(first.refusals) == 1


# Commits


@both_engines
def test_jobs_are_committed_in_batches(queue: Queue, small_batches: int) -> None:
    """As another process sees it, whenever the next id is asked for."""
    ids = prepare(queue, "cancel", 10)
    seen: list[int] = []
    with Queue(queue.url) as other:

        def asked() -> Iterator[str]:
            for id in ids:
                seen.append(other.count(status="cancelled"))
                yield id

        assert queue.act("cancel", asked()).done == 10
    assert seen == [0] * 4 + [4] * 4 + [8] * 2


def test_others_may_write_while_ids_are_looked_up(queue: Queue, small_batches: int) -> None:
    ids = prepare(queue, "cancel", 6)
    with Queue(queue.url) as other:

        def asked() -> Iterator[str]:
            for id in ids:
                other.enqueue("beside")
                yield id

        assert queue.act("cancel", asked()).done == 6
    assert queue.count(type="beside") == 6


def test_events_come_when_what_they_tell_is_durable(queue: Queue, small_batches: int) -> None:
    ids = prepare(queue, "retry", 6)
    seen: list[tuple[str, str | None]] = []
    with Queue(queue.url) as other:
        unsubscribe = queue.events.subscribe(
            lambda event: seen.append((event.job_id, state(other, event.job_id)))  # type: ignore[attr-defined]
        )
        queue.act("retry", iter(ids))
        unsubscribe()
    assert seen == [(id, "pending") for id in ids]


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("action", ["retry", "cancel", "delete"])
def test_commit_that_fails_loses_nothing_and_a_second_run_repeats_nothing(
    queue: Queue, small_batches: int, monkeypatch: pytest.MonkeyPatch, action: Action, happened: bool
) -> None:
    """The second of three commits fails; it may have happened all the same."""
    ids = prepare(queue, action, 10)
    before = {id: queue.get(id) for id in ids}
    recorder = Recorder(queue.events)
    doubt_commit(monkeypatch, queue, 2, happened=happened)
    with pytest.raises(CommitUncertain):
        queue.act(action, iter(ids))
    assert [id for _, id, _ in told(recorder)] == ids[:4], "told of what is certain, and of that alone"
    done = 8 if happened else 4
    assert [state(queue, id) for id in ids[:done]] == [ENDS.get(action)] * done
    assert {id: queue.get(id) for id in ids[done:]} == {id: before[id] for id in ids[done:]}

    after = {id: queue.get(id) for id in ids[:done]}
    result = queue.act(action, iter(ids))
    assert (result.done, set(refused(result))) == (10 - done, set(ids[:done]))
    assert {id: queue.get(id) for id in ids[:done]} == after
    assert [state(queue, id) for id in ids] == [ENDS.get(action)] * 10


@pytest.mark.parametrize("action", ["retry", "cancel", "delete"])
def test_trouble_with_the_database_is_no_refusal(
    queue: Queue, small_batches: int, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    """The job was changed and could not be read back: the whole batch is undone, and nothing told of it."""
    ids = prepare(queue, action, 10)
    before = {id: queue.get(id) for id in ids}
    recorder = Recorder(queue.events)
    read = Spy(store_of(queue).get_job)
    monkeypatch.setattr(store_of(queue), "get_job", read)

    def asked() -> Iterator[str]:
        for number, id in enumerate(ids):
            if number == 7:  # the last of the second batch, which is then begun
                read.failures = [StoreUnavailable("disk I/O error")]
            yield id

    with pytest.raises(StoreUnavailable):
        queue.act(action, asked())
    monkeypatch.undo()
    assert [id for _, id, _ in told(recorder)] == ids[:4]
    assert [state(queue, id) for id in ids[:4]] == [ENDS.get(action)] * 4
    assert {id: queue.get(id) for id in ids[4:]} == {id: before[id] for id in ids[4:]}


def test_ids_that_can_not_be_had_leave_what_was_done(queue: Queue, small_batches: int) -> None:
    ids = prepare(queue, "cancel", 6)

    def asked() -> Iterator[str]:
        yield from ids
        raise LookupError("no more")

    with pytest.raises(LookupError):
        queue.act("cancel", asked())
    assert [state(queue, id) for id in ids] == ["cancelled"] * 4 + ["pending"] * 2


@both_engines
def test_handler_can_not_operate_inside_its_own_transaction(queue: Queue) -> None:
    prepare(queue, "delete", 1)
    inside = Scope.enter(store_of(queue).url)
    try:
        with pytest.raises(NestedWrite):
            queue.act("delete", iter(["job-0"]))
    finally:
        inside.leave()
    assert queue.count() == 1


# Matching


@both_engines
def test_filter_finds_what_a_list_finds_newest_first(queue: Queue, small_batches: int) -> None:
    prepare(queue, "retry", 9)
    prepare(queue, "retry", 5, "crawl", type="crawl")
    insert(store_of(queue), "pending", "pending-too")
    finish(store_of(queue), run(store_of(queue), "retrying", priority=1), Errored("boom"))
    asked: list[tuple[tuple[StatusWord, ...], str | None]] = [
        ((), None),
        (("failed",), None),
        (("dead",), "crawl"),
        (("retrying",), None),
        (("pending", "retrying"), "email"),
        ((), "email"),
        (("failed",), "nobody"),
    ]
    for statuses, type in asked:
        found = list(queue.ids(status=statuses, type=type))
        assert found == [job.id for job in queue.jobs(status=statuses, type=type)]


def test_filter_of_an_unknown_state_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="retrying"):
        list(queue.ids(status="nonsense"))  # type: ignore[arg-type]


@pytest.mark.parametrize("jobs", [3, 4, 5, 8, 11])
@pytest.mark.parametrize(
    ("action", "status"), [("retry", "failed"), ("cancel", "pending"), ("delete", "completed")]
)
def test_every_job_that_matches_is_taken_though_each_one_leaves_the_filter(
    queue: Queue, small_batches: int, action: Action, status: StatusWord, jobs: int
) -> None:
    prepare(queue, action, jobs)
    result = queue.act(action, queue.ids(status=status))
    assert (result.done, result.refused) == (jobs, 0)
    assert queue.count(status=status) == 0


def test_jobs_that_come_meanwhile_are_not_taken_in(queue: Queue, small_batches: int) -> None:
    """One comes for each that is taken: it would never end."""
    ids = prepare(queue, "delete", 10)
    came: list[str] = []

    def replace(event: Event) -> None:
        if isinstance(event, JobDeleted):
            assert len(came) < 50, "it does not end"
            came.append(f"new-{len(came)}")
            finished(store_of(queue), came[-1])

    unsubscribe = queue.events.subscribe(replace)
    result = queue.act("delete", queue.ids(status="completed"))
    unsubscribe()
    assert result == Acted(done=10)
    assert sorted(job.id for job in queue.jobs()) == sorted(came)
    assert len(came) == len(ids)


def test_retried_jobs_that_fail_at_once_are_not_retried_again(queue: Queue, small_batches: int) -> None:
    prepare(queue, "retry", 10)
    queue.register("email", lambda payload: 1 / 0, max_attempts=1)
    recorder = Recorder(queue.events)

    def between() -> Iterator[str]:
        for id in queue.ids(status="failed"):
            queue.drain()
            yield id

    assert queue.act("retry", between()) == Acted(done=10)
    assert len(told(recorder)) == 10


def test_job_that_is_gone_before_its_turn_is_refused_by_name(queue: Queue, small_batches: int) -> None:
    prepare(queue, "delete", 4)

    def raced() -> Iterator[str]:
        for number, id in enumerate(queue.ids(status="completed")):
            if number == 2:
                queue.delete(id)
            yield id

    result = queue.act("delete", raced())
    assert (result.done, refused(result)) == (3, {"job-1": JobNotFound})


def test_payloads_are_not_read_to_find_what_matches(queue: Queue) -> None:
    insert(store_of(queue), "a", "b")
    with store_of(queue).transaction() as connection:
        connection.execute("UPDATE holdfast_jobs SET payload = 'no JSON'")
    assert list(queue.ids(status="pending", type="email")) == ["b", "a"]


@both_engines
def test_jobs_of_one_error_are_retried_together(queue: Queue, small_batches: int) -> None:
    for number in range(9):
        finished(store_of(queue), f"late-{number}", Errored(f"Timeout: after {number} s", permanent=True))
    finished(store_of(queue), "other", Errored("KeyError", permanent=True))
    [largest, _] = queue.error_groups()
    assert (largest.type, largest.error, largest.jobs) == ("email", "Timeout: after # s", 9)
    result = queue.act("retry", queue.ids(type=largest.type, error=largest.error))
    assert (result.done, result.refused) == (9, 0)
    assert queue.count(status="pending") == 9
    assert [group.error for group in queue.error_groups()] == ["KeyError"]


@both_engines
def test_every_filter_of_a_page_chooses_what_is_done(queue: Queue, small_batches: int) -> None:
    for number in range(9):
        finished(store_of(queue), f"job-{number}", priority=number % 3)
    moment = queue.page(sort="finished", limit=1).jobs[0].finished_at
    for selection, expected in (
        ({"sort": "priority"}, [f"job-{n}" for n in (8, 5, 2, 7, 4, 1, 6, 3, 0)]),
        ({"search": "job-4"}, ["job-4"]),
        ({"search": '"job-4 "'}, ["job-4"]),
        ({"sort": "finished", "until": "2000-01-01T00:00:00Z"}, []),
        (
            {"since": moment, "sort": "finished"},
            [job.id for job in queue.page(since=moment, sort="finished").jobs],
        ),
    ):
        assert list(queue.ids(**selection)) == expected


def test_count_and_page_of_the_queue_agree(queue: Queue) -> None:
    for number in range(5):
        finished(store_of(queue), f"job-{number}", Errored(f"boom {number}", permanent=True), parent_id="p")
    lists: list[dict[str, Any]] = [
        {"error": "boom #"},
        {"parent_id": "p"},
        {"status": "dead", "since": "2000-01-01T00:00:00Z"},
    ]
    for filters in lists:
        assert queue.count(**filters) == len(queue.page(**filters).jobs) == 5
        assert queue.count(**filters, cap=3) == 3
    job = queue.page(sort="priority").jobs[0]
    assert job.max_attempts == queue.jobs()[0].max_attempts


@both_engines
def test_ids_are_those_at_the_time_of_the_call(queue: Queue) -> None:
    first = queue.enqueue("work")
    found = queue.ids()
    queue.enqueue("work")
    assert list(found) == [first.id]
