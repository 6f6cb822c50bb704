"""queuectl retry, cancel, delete, dlq and cleanup: mending what went wrong, one job or many."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.core.job import Job
from holdfast.jobs import install
from tests.support import wait_until
from tests.surfaces.support import Cli


@pytest.fixture
def running(jobs: Queue, start_worker: Callable[..., Any]) -> Iterator[threading.Event]:
    """The job `running` is being worked on; ends when the event is set, or when it is asked to stop."""
    started, go_on = threading.Event(), threading.Event()

    def slow(payload: object, ctx: Any) -> None:
        started.set()
        while not go_on.wait(0.01):
            ctx.check()

    jobs.register("slow", slow)
    jobs.enqueue("slow", {}, id="running")
    start_worker(types=["slow"])
    assert started.wait(30)
    try:
        yield go_on
    finally:
        go_on.set()


def job_of(queue: Queue, job_id: str) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job


def fail(queue: Queue, *ids: str, **options: Any) -> None:
    """Jobs of these ids that failed for good."""
    for job_id in ids:
        queue.enqueue("bad", {"n": 1}, id=job_id, max_attempts=1, **options)
    assert queue.drain() == len(ids)


def finish(queue: Queue, *ids: str) -> None:
    for job_id in ids:
        queue.enqueue("ok", {}, id=job_id)
    assert queue.drain() == len(ids)


def make_older(home: Path, seconds: int, *ids: str) -> None:
    """Move the end of jobs into the past."""
    with sqlite3.connect(home / "queue.db") as connection:
        for job_id in ids:
            connection.execute(
                "UPDATE holdfast_jobs SET finished_at = finished_at - ? WHERE id = ?",
                (seconds * 1_000_000, job_id),
            )
    connection.close()


# retry


def test_retry_of_a_failed_job_starts_anew(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "job1")
    ran = cli("retry", "job1")
    assert (ran.code, ran.out, ran.err) == (0, "job1 is pending again\n", "")
    job = job_of(jobs, "job1")
    assert (job.status, job.attempts, job.finished_at) == ("pending", 0, None)
    assert len(job.errors) == 1


def test_retry_as_json_is_the_answer_of_the_api(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "job1")
    answer = cli("retry", "job1", "--json").json
    assert answer == {"id": "job1", "status": "pending", "attempts": 0, "nextRetryAt": None}


def test_retry_of_a_cancelled_job(cli: Cli, jobs: Queue) -> None:
    jobs.cancel(jobs.enqueue("ok", {}, id="job1").id)
    assert cli("retry", "job1").code == 0
    assert job_of(jobs, "job1").status == "pending"


def test_retry_of_a_job_in_back_off_does_not_wait(cli: Cli, jobs: Queue) -> None:
    jobs.set_config("backoff_factor", 3600)
    jobs.enqueue("bad", {}, id="job1")
    assert jobs.drain() == 1
    assert job_of(jobs, "job1").status == "scheduled"
    assert cli("retry", "job1").code == 0
    job = job_of(jobs, "job1")
    assert (job.status, job.attempts, job.next_retry_at) == ("pending", 0, None)


def test_retry_with_an_edited_payload(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "job1")
    assert cli("retry", "job1", "--payload", '{"n": 2, "to": "ü"}').code == 0
    assert job_of(jobs, "job1").payload == {"n": 2, "to": "ü"}


def test_retry_keeps_a_redacted_secret_that_goes_to_the_same_place(cli: Cli, jobs: Queue) -> None:
    payload = {"host": "mail.example", "password": "hunter2"}
    jobs.enqueue("mail", payload, id="job1")
    jobs.cancel("job1")
    ran = cli("retry", "job1", "--payload", '{"host": "evil.example", "password": "[redacted]"}')
    assert ran.code == 2
    assert "payload.host: can't be changed while a secret shows [redacted]" in ran.err
    assert job_of(jobs, "job1").payload == payload
    assert cli("retry", "job1", "--payload", '{"host": "mail.example", "password": "[redacted]"}').code == 0
    assert job_of(jobs, "job1").payload == payload


@pytest.mark.process
def test_edited_command_runs(cli: Cli, queue: Queue) -> None:
    install(queue)
    queue.enqueue("shell", {"command": "false"}, id="job1", max_attempts=1)
    assert queue.drain() == 1
    assert cli("retry", "job1", "--payload", '{"command": "echo fixed"}').code == 0
    assert queue.drain() == 1
    job = job_of(queue, "job1")
    assert (job.status, job.result["tail"]) == ("completed", "fixed\n")


@pytest.mark.parametrize("payload", ["oops", "[1]", '"text"', ""])
def test_payload_that_is_no_object_is_wrong_usage(cli: Cli, jobs: Queue, payload: str) -> None:
    fail(jobs, "job1")
    ran = cli("retry", "job1", "--payload", payload)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert job_of(jobs, "job1").status == "failed"


@pytest.mark.process
def test_command_edited_into_nonsense_is_refused(cli: Cli, queue: Queue) -> None:
    install(queue)
    queue.enqueue("shell", {"command": "false"}, id="job1", max_attempts=1)
    assert queue.drain() == 1
    ran = cli("retry", "job1", "--payload", '{"comand": "echo fixed"}')
    assert (ran.code, ran.out, len(ran.errors)) in ((1, "", 1), (2, "", 1)), ran
    assert job_of(queue, "job1").status == "failed"


def test_payload_goes_with_one_id(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "a", "b")
    ran = cli("retry", "a", "b", "--payload", "{}")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert {job.status.value for job in jobs.jobs()} == {"failed"}


def test_retry_of_a_waiting_job_says_its_state_and_what_can_be_retried(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {}, id="job1")
    ran = cli("retry", "job1")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert "pending" in ran.err
    assert "failed" in ran.err


def test_retry_of_a_completed_job_says_its_state(cli: Cli, jobs: Queue) -> None:
    finish(jobs, "job1")
    ran = cli("retry", "job1")
    assert (ran.code, len(ran.errors)) == (1, 1)
    assert "completed" in ran.err
    assert job_of(jobs, "job1").status == "completed"


def test_retry_is_refused_while_another_job_holds_the_key(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "job1", key="k")
    jobs.enqueue("bad", {"n": 1}, id="holder", key="k")
    ran = cli("retry", "job1")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert "holder" in ran.err


# cancel


def test_cancel_of_a_waiting_job_is_immediate(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {}, id="job1")
    jobs.enqueue("ok", {}, id="job2", delay=3600)
    ran = cli("cancel", "job1", "job2")
    assert (ran.code, ran.lines) == (0, ["job1 is cancelled", "job2 is cancelled"])
    assert {job.status.value for job in jobs.jobs()} == {"cancelled"}


def test_cancel_as_json_is_the_answer_of_the_api(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {}, id="job1")
    answer = cli("cancel", "job1", "--json").json
    assert (answer["id"], answer["status"]) == ("job1", "cancelled")
    assert "cancelRequested" in answer


def test_cancel_of_a_running_job_asks_it_to_stop(cli: Cli, jobs: Queue, running: threading.Event) -> None:
    ran = cli("cancel", "running")
    assert (ran.code, ran.out) == (0, "running was asked to stop\n")
    wait_until(lambda: job_of(jobs, "running").status == "cancelled")


def test_cancel_of_a_running_job_as_json(cli: Cli, jobs: Queue, running: threading.Event) -> None:
    answer = cli("cancel", "running", "--json").json
    assert answer == {"id": "running", "status": "processing", "cancelRequested": True}


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_cancel_of_a_finished_job_says_its_state(cli: Cli, jobs: Queue, state: str) -> None:
    (finish if state == "completed" else fail)(jobs, "job1")
    ran = cli("cancel", "job1")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert state in ran.err
    assert job_of(jobs, "job1").status == state


# delete


def test_delete_takes_finished_jobs(cli: Cli, jobs: Queue) -> None:
    finish(jobs, "completed")
    fail(jobs, "failed")
    jobs.cancel(jobs.enqueue("ok", {}, id="cancelled").id)
    ran = cli("delete", "completed", "failed", "cancelled")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == ["completed was deleted", "failed was deleted", "cancelled was deleted"]
    assert jobs.jobs() == []


def test_delete_as_json(cli: Cli, jobs: Queue) -> None:
    finish(jobs, "job1")
    assert cli("delete", "job1", "--json").json == {"id": "job1", "deleted": True}


@pytest.mark.process
def test_delete_removes_the_output_of_a_command(cli: Cli, queue: Queue, home: Path) -> None:
    install(queue)
    queue.enqueue("shell", {"command": "echo hi"}, id="job1")
    assert queue.drain() == 1
    log = home / "logs" / "job1.log"
    assert log.exists()
    assert cli("delete", "job1").code == 0
    assert not log.exists()


def test_delete_of_an_unfinished_job_says_its_state(cli: Cli, jobs: Queue, running: threading.Event) -> None:
    jobs.enqueue("ok", {}, id="pending")
    jobs.enqueue("ok", {}, id="scheduled", delay=3600)
    for job_id, state in (("pending", "pending"), ("scheduled", "scheduled"), ("running", "processing")):
        ran = cli("delete", job_id)
        assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
        assert state in ran.err
    assert len(jobs.jobs()) == 3


# Several ids.


@pytest.mark.parametrize("command", ["retry", "cancel", "delete", "dlq retry"])
def test_all_ids_are_tried_and_each_failure_is_a_line(cli: Cli, jobs: Queue, command: str) -> None:
    if command == "cancel":
        jobs.enqueue("ok", {}, id="a")
        jobs.enqueue("ok", {}, id="c")
    else:
        fail(jobs, "a", "c")
    ran = cli(*command.split(), "nope1", "a", "nope2", "c")
    assert ran.code == 1
    assert [line.split()[0] for line in ran.lines] == ["a", "c"]
    assert ["nope1" in ran.errors[0], "nope2" in ran.errors[1], len(ran.errors)] == [True, True, 2]
    assert all(line.startswith("queuectl: ") for line in ran.errors)


@pytest.mark.parametrize("command", ["retry", "cancel", "delete", "dlq retry"])
def test_json_of_several_ids_is_a_list_of_those_that_worked(cli: Cli, jobs: Queue, command: str) -> None:
    if command == "cancel":
        jobs.enqueue("ok", {}, id="a")
        jobs.enqueue("ok", {}, id="c")
    else:
        fail(jobs, "a", "c")
    ran = cli(*command.split(), "a", "nope", "c", "--json")
    assert (ran.code, len(ran.errors)) == (1, 1)
    assert [answer["id"] for answer in ran.json] == ["a", "c"]


@pytest.mark.parametrize("command", ["retry", "cancel", "delete", "dlq retry"])
def test_unknown_id_fails_with_one_line(cli: Cli, command: str) -> None:
    ran = cli(*command.split(), "nope")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert "nope" in ran.err


@pytest.mark.parametrize("command", ["retry", "cancel", "delete", "dlq retry", "dlq purge", "cleanup"])
def test_command_that_names_nothing_is_wrong_usage(cli: Cli, jobs: Queue, command: str) -> None:
    fail(jobs, "job1")
    ran = cli(*command.split())
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert job_of(jobs, "job1").status == "failed"


# dlq


def test_dlq_list_has_the_failed_jobs_alone_newest_first(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "a", "b")
    finish(jobs, "fine")
    jobs.enqueue("ok", {})
    ran = cli("dlq", "list")
    assert (ran.code, [row[0] for row in ran.rows]) == (0, ["b", "a"])
    assert all("it broke" in row[5] for row in ran.rows)


def test_dlq_list_takes_type_and_page(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "a", "b", "c")
    assert [row[0] for row in cli("dlq", "list", "--limit", "1", "--offset", "1").rows] == ["b"]
    assert cli("dlq", "list", "--type", "other").out == ""
    assert len(cli("dlq", "list", "--type", "bad").rows) == 3


def test_dlq_list_as_json_is_a_list_of_tasks(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "a")
    finish(jobs, "fine")
    answer = cli("dlq", "list", "--json").json
    assert ([task["id"] for task in answer["tasks"]], answer["total"]) == (["a"], 1)
    assert answer["tasks"][0]["status"] == "failed"
    assert cli("dlq", "list", "--full", "--json").json["tasks"][0]["payload"] == {"n": 1}


def test_dlq_retry_runs_the_named_jobs_again(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "a", "b", "c")
    ran = cli("dlq", "retry", "a", "c")
    assert (ran.code, ran.lines) == (0, ["a is pending again", "c is pending again"])
    assert [job_of(jobs, name).status.value for name in "abc"] == ["pending", "failed", "pending"]


def test_dlq_retry_takes_failed_jobs_only(cli: Cli, jobs: Queue) -> None:
    jobs.cancel(jobs.enqueue("ok", {}, id="job1").id)
    ran = cli("dlq", "retry", "job1")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert "cancelled" in ran.err
    assert job_of(jobs, "job1").status == "cancelled"


def test_dlq_retry_of_all(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "a", "b", "c")
    jobs.cancel(jobs.enqueue("ok", {}, id="cancelled").id)
    ran = cli("dlq", "retry", "--all")
    assert (ran.code, ran.out, ran.err) == (0, "3 jobs are pending again\n", "")
    assert [job_of(jobs, name).status.value for name in "abc"] == ["pending"] * 3
    assert job_of(jobs, "cancelled").status == "cancelled"


def test_dlq_retry_of_all_of_a_type(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "a", "b")
    jobs.register("worse", lambda payload: 1 / 0)
    jobs.enqueue("worse", {}, id="c", max_attempts=1)
    assert jobs.drain() == 1
    answer = cli("dlq", "retry", "--all", "--type", "bad", "--json").json
    assert answer["retried"] == 2
    assert job_of(jobs, "c").status == "failed"


def test_dlq_retry_of_all_when_there_is_none(cli: Cli) -> None:
    ran = cli("dlq", "retry", "--all")
    assert (ran.code, ran.out, ran.err) == (0, "0 jobs are pending again\n", "")


def test_dlq_retry_of_one_speaks_of_one(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "a")
    assert cli("dlq", "retry", "--all").out == "1 job is pending again\n"


def test_dlq_retry_of_all_leaves_jobs_whose_key_is_held(cli: Cli, jobs: Queue) -> None:
    fail(jobs, "free")
    fail(jobs, "locked", key="k")
    jobs.enqueue("bad", {"n": 1}, id="holder", key="k")
    ran = cli("dlq", "retry", "--all", "--json")
    assert (ran.code, len(ran.errors)) == (1, 1)
    assert ran.json == {"retried": 1, "left": 1}
    assert "key" in ran.err
    assert [job_of(jobs, name).status.value for name in ("free", "locked")] == ["pending", "failed"]


@pytest.mark.parametrize("words", [("a", "--all"), ("a", "--type", "bad"), ("--type", "bad")])
def test_dlq_retry_takes_ids_or_all(cli: Cli, jobs: Queue, words: tuple[str, ...]) -> None:
    fail(jobs, "a")
    ran = cli("dlq", "retry", *words)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert job_of(jobs, "a").status == "failed"


def test_dlq_purge_deletes_old_failed_jobs_alone(cli: Cli, jobs: Queue, home: Path) -> None:
    fail(jobs, "old", "new")
    finish(jobs, "completed")
    make_older(home, 31 * 86_400, "old", "completed")
    ran = cli("dlq", "purge", "--older-than", "30d")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("1 job")
    assert {job.id for job in jobs.jobs()} == {"new", "completed"}
    assert cli("dlq", "purge", "--older-than", "0s", "--json").json == {"deleted": 1}
    assert {job.id for job in jobs.jobs()} == {"completed"}


# cleanup


def test_cleanup_deletes_old_completed_and_cancelled_jobs_alone(cli: Cli, jobs: Queue, home: Path) -> None:
    finish(jobs, "old", "new")
    fail(jobs, "failed")
    jobs.cancel(jobs.enqueue("ok", {}, id="cancelled").id)
    jobs.enqueue("ok", {}, id="pending")
    make_older(home, 8 * 86_400, "old", "failed", "cancelled")
    assert cli("cleanup", "--older-than", "9d", "--json").json == {"deleted": 0}
    ran = cli("cleanup", "--older-than", "7d")
    assert (ran.code, ran.out, ran.err) == (0, "2 jobs deleted\n", "")
    assert {job.id for job in jobs.jobs()} == {"new", "failed", "pending"}


def test_cleanup_of_one_speaks_of_one(cli: Cli, jobs: Queue) -> None:
    finish(jobs, "a")
    assert cli("cleanup", "--older-than", "0").out == "1 job deleted\n"


@pytest.mark.process
def test_cleanup_removes_the_output_of_commands(cli: Cli, queue: Queue, home: Path) -> None:
    install(queue)
    queue.enqueue("shell", {"command": "echo hi"}, id="gone")
    assert queue.drain() == 1
    assert (home / "logs" / "gone.log").exists()
    assert cli("cleanup", "--older-than", "0s").code == 0
    assert not (home / "logs" / "gone.log").exists()


@pytest.mark.parametrize("command", ["cleanup", "dlq purge"])
@pytest.mark.parametrize("age", ["soon", "", "-1d", "7 fortnights"])
def test_age_that_makes_no_sense_deletes_nothing(cli: Cli, jobs: Queue, command: str, age: str) -> None:
    finish(jobs, "a")
    fail(jobs, "b")
    ran = cli(*command.split(), f"--older-than={age}")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert len(jobs.jobs()) == 2
