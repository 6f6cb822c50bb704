"""Reconciliation: what completed jobs left is compared with the world, told, and never repaired."""

from __future__ import annotations

import hashlib
import os
import socket
import sqlite3
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from holdfast import Context, HoldfastError, Job, Queue, Reconcile
from holdfast.core.job import base_type
from holdfast.core.lifecycle import Errored, LeaseEnded, Outcome
from holdfast.errors import ConfigError, StoreBusy, StoreUnavailable
from holdfast.events import DiscrepancyFound, Event, JobsPruned, Reconciled
from holdfast.jobs import files, install
from holdfast.reconcile import KEPT, Report, checkable_types, last_report, reconcile
from holdfast.store.open import store_of
from holdfast.testing import MovableClock
from holdfast.worker import maintenance
from tests.conformance.steps import claim_one, finish
from tests.support import Recorder, open_files
from tests.worker.support import Gate, Spy, get, path_of, run_script, sql

pytestmark = pytest.mark.slow

MISSING = "the file is missing"
CHANGED = "the file's content has changed"
NO_FILE = "something other than a file is in its place"
IS_THERE = "the file exists"

Damage = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the file jobs."""
    made = tmp_path / "files"
    made.mkdir()
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path))
    monkeypatch.setenv("QUEUECTL_FILE_ROOTS", str(made))
    return made


@pytest.fixture
def queue(queue: Queue, folder: Path) -> Queue:
    """A queue with the built-in types, but for claude_extraction: here the answer is in the payload.

    It is checked as the real one is.
    """
    install(queue)
    real = queue.registry.require("claude_extraction")
    queue.unregister("claude_extraction")
    queue.register("claude_extraction", answer, reconcile=real.reconcile)
    return queue


def answer(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    return files.publish(ctx, payload["targetPath"], payload["answer"].encode(), overwrite=True)


def ran(queue: Queue, type: str, payload: dict[str, Any]) -> Job:
    """A job that was enqueued and has run, with all that waits."""
    id = queue.enqueue(type, payload, max_attempts=1).id
    queue.drain()
    return get(queue, id)


def write(queue: Queue, path: Path, content: str = "kept", type: str = "create_file") -> Job:
    """A completed job that wrote the file."""
    if type == "claude_extraction":
        job = ran(queue, type, {"targetPath": str(path), "answer": content})
    else:
        job = ran(queue, type, {"path": str(path), "content": content, "overwrite": True})
    assert job.status == "completed", job
    return job


def delete(queue: Queue, path: Path, type: str = "delete_file") -> Job:
    job = ran(queue, type, {"path": str(path)})
    assert job.status == "completed", job
    return job


def begun(queue: Queue, type: str, payload: dict[str, Any], outcome: Outcome | None) -> None:
    """A job that a worker took, and that then ended so; None is one that runs on."""
    queue.enqueue(type, payload)
    claimed = claim_one(store_of(queue), type)
    if outcome is not None:
        finish(store_of(queue), claimed, outcome)


def problems(report: Report) -> list[tuple[str, str]]:
    """The jobs that are listed, with what is wrong; the report's numbers must agree."""
    assert report.differing == sum(found.is_checked for found in report.discrepancies)
    assert report.unchecked == sum(not found.is_checked for found in report.discrepancies)
    assert report.is_clean == (not report.discrepancies)
    return [(found.job_id, found.problem) for found in report.discrepancies]


def counts(report: Report) -> tuple[int, int, int]:
    return report.checked, report.superseded, report.unsettled


def fill(queue: Queue, type: str, number: int, payload: str = "{}") -> None:
    """Completed jobs of a type, without the work: each a second after the one before."""
    queue.open()
    with closing(sqlite3.connect(path_of(queue), isolation_level=None)) as connection:
        connection.execute(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :number)"
            " INSERT INTO holdfast_jobs (id, type, status, attempts, max_attempts, version, due_at,"
            " created_at, updated_at, started_at, finished_at, token, payload, result)"
            " SELECT :type || '-' || n, :type, 'completed', 1, 3, 1, :at, :at, :at, :at, :at + n * 1000000,"
            " 'token', :payload, json_object('number', n) FROM numbers",
            {"type": type, "at": 1_700_000_000_000_000, "number": number, "payload": payload},
        )


# What has become of a file.


def _lose_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


def _put_a_file_in_place_of_the_folder(path: Path) -> None:
    _lose_folder(path)
    path.parent.touch()


def _put_a_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("moved")))


def _put_a_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _put_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _put_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "changed": (lambda path: path.write_text("other"), CHANGED),
    "changed in one byte": (lambda path: path.write_text("Kept"), CHANGED),
    "truncated": (lambda path: os.truncate(path, 2), CHANGED),
    "emptied": (lambda path: os.truncate(path, 0), CHANGED),
    "appended to": (lambda path: path.write_text("kept, and more"), CHANGED),
    "deleted": (os.unlink, MISSING),
    "deleted with its folder": (_lose_folder, MISSING),
    "its folder is a file": (_put_a_file_in_place_of_the_folder, MISSING),
    "a link to the same content": (_put_a_link, NO_FILE),
    "a link to nothing": (_put_a_link_to_nothing, NO_FILE),
    "a folder": (_put_a_folder, NO_FILE),
    "a fifo": (_put_a_fifo, NO_FILE),
}


@pytest.mark.parametrize("type", ["create_file", "create_file:media", "claude_extraction"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_as_it_was_written_is_listed(
    queue: Queue, folder: Path, type: str, damage: str
) -> None:
    write(queue, folder / "here" / "untouched", type=type)
    path = folder / "there" / "file"
    job = write(queue, path, type=type)
    spoil, problem = DAMAGES[damage]
    spoil(path)
    report = reconcile(queue)
    assert problems(report) == [(job.id, problem)]
    [found] = report.discrepancies
    assert (found.type, found.completed_at, found.is_checked) == (type, job.finished_at, True)
    assert str(path) in found.subject
    assert counts(report) == (2, 0, 0)


def test_a_socket_in_a_file_s_place_is_no_file(queue: Queue, folder: Path) -> None:
    path = folder / "s"
    job = write(queue, path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))  # the whole path may be too long for an address
        assert problems(reconcile(queue)) == [(job.id, NO_FILE)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_look_at_a_file_leaves_nothing_open(queue: Queue, folder: Path, damage: str) -> None:
    path = folder / "there" / "file"
    write(queue, path)
    DAMAGES[damage][0](path)
    reconcile(queue)
    before = open_files()
    for _ in range(5):
        reconcile(queue)
    assert not open_files() - before


@pytest.mark.parametrize("type", ["create_file", "claude_extraction"])
@pytest.mark.parametrize("content", ["kept", "", "ü\n" * 100_000])
def test_an_untouched_file_is_not_listed(queue: Queue, folder: Path, type: str, content: str) -> None:
    write(queue, folder / "file", content, type=type)
    report = reconcile(queue)
    assert problems(report) == []
    assert counts(report) == (1, 0, 0)


def test_a_file_written_anew_with_the_same_content_is_as_it_was_written(queue: Queue, folder: Path) -> None:
    write(queue, folder / "file", "same")
    (folder / "file").unlink()
    (folder / "file").write_text("same")
    assert problems(reconcile(queue)) == []


def test_content_given_as_json_is_compared_as_it_was_written(queue: Queue, folder: Path) -> None:
    job = ran(queue, "create_file", {"path": str(folder / "file"), "content": {"name": "Ä"}})
    assert problems(reconcile(queue)) == []
    (folder / "file").write_text('{"name": "Ä"}')
    assert problems(reconcile(queue)) == [(job.id, CHANGED)]


@pytest.mark.parametrize(
    "come_back",
    [Path.touch, Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")],
    ids=["file", "folder", "fifo", "link to nothing"],
)
def test_a_deleted_file_that_came_back_is_listed(queue: Queue, folder: Path, come_back: Damage) -> None:
    path = folder / "file"
    path.touch()
    job = delete(queue, path)
    assert problems(reconcile(queue)) == []
    come_back(path)
    report = reconcile(queue)
    assert problems(report) == [(job.id, IS_THERE)]


def test_a_deleted_file_whose_folder_is_gone_or_a_file_is_gone(queue: Queue, folder: Path) -> None:
    path = folder / "inner" / "file"
    path.parent.mkdir()
    path.touch()
    delete(queue, path)
    path.parent.rmdir()
    assert problems(reconcile(queue)) == []
    path.parent.touch()
    assert problems(reconcile(queue)) == []


def test_a_file_that_may_not_be_read_is_listed_as_not_checked(
    queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by its permissions: the tests may run as root."""
    job = write(queue, folder / "file")
    real = os.open

    def refuse(path: Any, *rest: Any, **named: Any) -> int:
        if path == str(folder / "file"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    report = reconcile(queue)
    [(id, problem)] = problems(report)
    assert id == job.id
    assert problem.startswith("could not be checked: PermissionError: ")
    assert (report.checked, report.differing, report.unchecked) == (0, 0, 1)


# Later jobs.

Step = Callable[[Queue, Path], Job]

STEPS: dict[str, Step] = {
    "create": lambda queue, path: write(queue, path, "first"),
    "overwrite": lambda queue, path: write(queue, path, "second"),
    "extract": lambda queue, path: write(queue, path, "third", "claude_extraction"),
    "create in a lane": lambda queue, path: write(queue, path, "fourth", "create_file:media"),
    "delete": delete,
    "delete in a lane": lambda queue, path: delete(queue, path, "delete_file:media"),
}


@pytest.mark.parametrize(
    "steps",
    [
        ("create", "overwrite"),
        ("create", "delete"),
        ("delete", "create"),
        ("create", "extract"),
        ("extract", "create"),
        ("extract", "delete"),
        ("create", "create in a lane"),
        ("create in a lane", "create"),
        ("create", "delete in a lane"),
        ("delete in a lane", "create"),
        ("create", "delete", "create"),
        ("create", "overwrite", "delete in a lane", "extract", "create in a lane", "delete"),
    ],
    ids=", ".join,
)
def test_of_the_jobs_for_one_path_the_last_counts(queue: Queue, folder: Path, steps: tuple[str, ...]) -> None:
    path = folder / "file"
    for step in steps:
        last = STEPS[step](queue, path)
    report = reconcile(queue)
    assert problems(report) == []
    assert counts(report) == (1, len(steps) - 1, 0)
    deleted = steps[-1].startswith("delete")
    path.touch() if deleted else path.unlink()
    assert problems(reconcile(queue)) == [(last.id, IS_THERE if deleted else MISSING)]


@pytest.mark.parametrize("asked", ["create_file", "delete_file", "claude_extraction", "create_file:media"])
def test_a_later_job_counts_though_its_type_is_not_asked_about(
    queue: Queue, folder: Path, asked: str
) -> None:
    makers: dict[str, Callable[[Path], Job]] = {
        "create_file": lambda path: write(queue, path),
        "create_file:media": lambda path: write(queue, path, "media", "create_file:media"),
        "claude_extraction": lambda path: write(queue, path, "answer", "claude_extraction"),
        "delete_file": lambda path: delete(queue, path),
    }
    others = [type for type in makers if base_type(type) != asked and type != asked]
    for other in others:
        makers[asked](folder / base_type(other))
        makers[other](folder / base_type(other))
    mine = makers[asked](folder / "mine")
    report = reconcile(queue, types=[asked])
    assert problems(report) == []
    assert {base_type(covered.type) for covered in report.covered} == {base_type(asked)}
    assert (report.jobs, counts(report)) == (len(others) + 1, (1, len(others), 0))
    (folder / "mine").unlink() if asked != "delete_file" else (folder / "mine").touch()
    assert [id for id, _ in problems(reconcile(queue, types=[asked]))] == [mine.id]


def test_two_names_of_one_root_are_one_file(
    queue: Queue, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root that is a link may be written either way."""
    link = tmp_path / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("QUEUECTL_FILE_ROOTS", str(link))
    write(queue, link / "file")
    delete(queue, folder / "file")
    report = reconcile(queue)
    assert problems(report) == []
    assert counts(report) == (1, 1, 0)


def test_a_folder_that_became_a_link_makes_no_two_files_one(queue: Queue, folder: Path) -> None:
    first = write(queue, folder / "a" / "file", "first")
    write(queue, folder / "b" / "file", "second")
    (folder / "a" / "file").unlink()
    (folder / "a").rmdir()
    (folder / "a").symlink_to(folder / "b")
    assert [id for id, _ in problems(reconcile(queue))] == [first.id]


def test_a_path_written_in_another_way_is_the_same_path(queue: Queue, folder: Path) -> None:
    write(queue, folder / "file")
    ran(queue, "delete_file", {"path": f"{folder}/inner/..//./file"})
    assert problems(reconcile(queue)) == []


def test_jobs_for_different_paths_do_not_count_for_each_other(queue: Queue, folder: Path) -> None:
    first = write(queue, folder / "a")
    write(queue, folder / "b")
    delete(queue, folder / "b")
    (folder / "a").unlink()
    report = reconcile(queue)
    assert problems(report) == [(first.id, MISSING)]
    assert counts(report) == (2, 1, 0)


def test_two_jobs_for_one_path_are_one_discrepancy_of_the_later(queue: Queue, folder: Path) -> None:
    write(queue, folder / "file", "first")
    later = write(queue, folder / "file", "second")
    (folder / "file").write_text("first")
    report = reconcile(queue)
    assert problems(report) == [(later.id, CHANGED)]
    assert (report.jobs, counts(report)) == (2, (1, 1, 0))


def test_the_last_is_who_finished_last_not_who_was_enqueued_last(queue: Queue, folder: Path) -> None:
    """The first waits for its time, and comes after the second."""
    first = queue.enqueue(
        "create_file", {"path": str(folder / "file"), "content": "1", "overwrite": True}, delay=3600
    )
    write(queue, folder / "file", "2")
    queue.cancel(first.id)
    queue.retry(first.id)
    assert queue.drain() == 1
    assert (folder / "file").read_text() == "1"
    report = reconcile(queue)
    assert problems(report) == []
    assert counts(report) == (1, 1, 0)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_latest_discrepancy_comes_first(queue: Queue, folder: Path, number: int) -> None:
    types = ["create_file", "claude_extraction", "create_file:media"]
    types = types[number:] + types[:number]
    jobs = [write(queue, folder / type, type=type) for type in types]
    for type in types:
        (folder / type).unlink()
    assert [id for id, _ in problems(reconcile(queue))] == [job.id for job in reversed(jobs)]


# Jobs that are not over.


@pytest.mark.parametrize(
    "outcome",
    [None, LeaseEnded("WorkerLost: gone"), Errored("OSError: no space")],
    ids=["processing", "pending after a crash", "waiting for a retry"],
)
@pytest.mark.parametrize("type", ["delete_file", "create_file", "create_file:media", "claude_extraction"])
def test_a_job_at_work_keeps_its_path_out_of_the_list(
    queue: Queue, folder: Path, type: str, outcome: Outcome | None
) -> None:
    """As after a crash between the change of the file and the commit."""
    path = folder / "file"
    write(queue, path)
    other = write(queue, folder / "other")
    fields: dict[str, dict[str, Any]] = {
        "delete_file": {"path": str(path)},
        "claude_extraction": {"targetPath": str(path), "answer": "new"},
    }
    create = {"path": str(path), "content": "new", "overwrite": True}
    begun(queue, type, fields.get(type, create), outcome)
    for name in ("file", "other"):
        (folder / name).unlink()
    report = reconcile(queue)
    assert problems(report) == [(other.id, MISSING)]
    assert counts(report) == (2, 0, 1)


@pytest.mark.parametrize(
    "state", ["pending", "scheduled", "failed", "cancelled", "another path", "an unknown type"]
)
def test_a_job_that_changes_nothing_any_more_or_yet_does_not(queue: Queue, folder: Path, state: str) -> None:
    path = folder / "file"
    job = write(queue, path)
    payload = {"path": str(path)}
    if state == "pending":
        queue.enqueue("delete_file", payload)
    elif state == "scheduled":
        queue.enqueue("delete_file", payload, delay=60)
    elif state == "failed":
        begun(queue, "delete_file", payload, Errored("PermissionError", permanent=True))
    elif state == "cancelled":
        queue.cancel(queue.enqueue("delete_file", payload).id)
    elif state == "another path":
        begun(queue, "delete_file", {"path": str(folder / "other")}, None)
    else:
        begun(queue, "unknown", payload, None)
    path.unlink()
    report = reconcile(queue)
    assert problems(report) == [(job.id, MISSING)]
    assert report.unsettled == 0


def test_a_failed_job_that_deleted_the_path_leaves_a_real_discrepancy(queue: Queue, folder: Path) -> None:
    """A handler that removes the file by hand and then fails."""
    path = folder / "file"

    def remove(payload: dict[str, Any]) -> None:
        os.unlink(payload["path"])
        raise RuntimeError("and then it broke")

    queue.register("remove", remove, reconcile=Reconcile(files.not_gone, subject=files.subject))
    job = write(queue, path)
    assert ran(queue, "remove", {"path": str(path)}).status == "failed"
    assert problems(reconcile(queue)) == [(job.id, MISSING)]


def test_a_file_in_the_making_by_a_worker_is_unsettled_until_it_is_done(
    queue: Queue, folder: Path, gate: Gate, start_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "file"
    write(queue, path, "old")
    real = files._content

    def hold(value: Any) -> bytes:
        gate.enter()
        return real(value)

    monkeypatch.setattr(files, "_content", hold)
    start_worker()
    job = queue.enqueue("create_file", {"path": str(path), "content": "new", "overwrite": True})
    gate.wait_entered()
    path.unlink()
    report = reconcile(queue)
    assert problems(report) == []
    assert counts(report) == (1, 0, 1)
    gate.open()
    queue.wait(job.id, timeout=30)
    report = reconcile(queue)
    assert problems(report) == []
    assert counts(report) == (1, 1, 0)


@pytest.mark.parametrize("type", ["create_file", "create_file:media", "claude_extraction", "delete_file"])
def test_a_job_that_completes_while_the_walk_goes_on_settles_its_path(
    queue: Queue, folder: Path, type: str
) -> None:
    """Also the very first of its type."""
    path, other = folder / "file", folder / "other"
    write(queue, path)
    gone = write(queue, other)
    other.unlink()

    def change(done: int, total: int) -> None:
        assert total == 2
        if done == 1:  # the file has not been looked at yet
            delete(queue, path, type) if type == "delete_file" else write(queue, path, "new", type)

    report = reconcile(queue, progress=change)
    assert problems(report) == [(gone.id, MISSING)]
    assert counts(report) == (2, 0, 1)
    assert problems(reconcile(queue)) == [(gone.id, MISSING)]


def test_a_job_that_begins_while_the_walk_goes_on_settles_its_path(queue: Queue, folder: Path) -> None:
    path = folder / "file"
    write(queue, path)
    write(queue, folder / "other")

    def change(done: int, total: int) -> None:
        if done == 1:
            begun(queue, "delete_file", {"path": str(path)}, None)
            path.unlink()

    report = reconcile(queue, progress=change)
    assert problems(report) == []
    assert counts(report) == (2, 0, 1)


def test_a_job_that_was_committing_when_it_began_settles_its_path(
    queue: Queue, folder: Path, gate: Gate, start_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has removed the file and taken its time, but nobody sees it completed before the walk is over."""
    path = folder / "file"
    write(queue, path)
    database: Any = store_of(queue).database
    commit = database.commit

    def hold(connection: sqlite3.Connection) -> None:
        if not path.exists() and not gate.is_open:
            gate.enter()
        commit(connection)

    monkeypatch.setattr(database, "commit", hold)
    start_worker()
    job = queue.enqueue("delete_file", {"path": str(path)})
    gate.wait_entered()

    def let_go(done: int, total: int) -> None:
        assert (done, total) == (1, 1)
        gate.open()
        queue.wait(job.id, timeout=30)

    report = reconcile(queue, progress=let_go)
    assert problems(report) == []
    assert counts(report) == (1, 0, 1)
    assert get(queue, job.id).attempts == 1


def test_a_job_that_is_deleted_while_the_walk_goes_on_is_passed_over(queue: Queue, folder: Path) -> None:
    gone = write(queue, folder / "file")
    write(queue, folder / "other")
    (folder / "file").unlink()
    report = reconcile(queue, progress=lambda done, _: queue.delete(gone.id) if done == 1 else None)
    assert problems(report) == []
    assert counts(report) == (1, 0, 0)


def test_a_clock_that_stands_still_hides_nothing(url: str, folder: Path) -> None:
    """A job does not settle its own discrepancy, nor one of a later job."""
    with Queue(url, clock=MovableClock()) as queue:
        install(queue)
        write(queue, folder / "file")
        job = write(queue, folder / "file", "again")
        (folder / "file").unlink()
        report = reconcile(queue)
        assert problems(report) == [(job.id, MISSING)]
        assert counts(report) == (1, 1, 0)


def test_no_discrepancy_is_seen_while_workers_write_and_delete(
    queue: Queue, folder: Path, start_worker: Callable[..., Any]
) -> None:
    """Two workers, few paths, all types: whenever it looks, nothing is wrong."""
    paths = [folder / str(number) for number in range(6)]
    ids = []
    for number in range(120):
        path = str(paths[number % 6])
        ids.append(
            queue.enqueue(
                *[
                    ("create_file", {"path": path, "content": f"{number}", "overwrite": True}),
                    ("delete_file", {"path": path}),
                    ("claude_extraction", {"targetPath": path, "answer": f"{number}"}),
                    ("create_file:media", {"path": path, "content": f"{number}", "overwrite": True}),
                ][number % 7 % 4],
                max_attempts=50,
            ).id
        )
    for _ in range(2):
        start_worker(concurrency=4)
    looks = 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        jobs = queue.stats()  # of one moment: a job may go back and forth
        is_over = not any(jobs[state] for state in ("pending", "processing", "scheduled"))
        report = reconcile(queue)
        assert problems(report) == []
        looks += 1
        if is_over:
            break
    assert looks > 2
    assert {get(queue, id).status for id in ids} == {"completed"}
    assert counts(report) == (6, 114, 0)


# Checks of one's own.


def test_a_handler_of_one_s_own_takes_part(queue: Queue) -> None:
    sent: dict[str, int] = {}

    def arrived(job: Job) -> str | None:
        return None if job.payload["to"] in sent else f"{job.payload['to']} has no mail"

    @queue.job(reconcile=arrived)
    def send(to: str) -> None:
        sent[to] = 1

    jobs = [send.enqueue(to=name) for name in ("ada", "bob", "bob")]
    queue.drain()
    assert problems(reconcile(queue)) == []
    del sent["bob"]
    report = reconcile(queue)
    assert problems(report) == [(job.id, "bob has no mail") for job in reversed(jobs[1:])]
    assert [found.subject for found in report.discrepancies] == [job.id for job in reversed(jobs[1:])]
    assert counts(report) == (3, 0, 0)


def test_a_subject_makes_the_last_job_for_it_count(queue: Queue) -> None:
    asked: list[int] = []

    def differs(job: Job) -> str:
        asked.append(job.payload["n"])
        return "it is not so"

    queue.register(
        "own", lambda payload: None, reconcile=Reconcile(differs, subject=lambda job: job.payload["of"])
    )
    for number in range(6):
        queue.enqueue("own", {"n": number, "of": "odd" if number % 2 else "even"})
    queue.drain()
    report = reconcile(queue)
    assert asked == [5, 4]
    assert [found.subject for found in report.discrepancies] == ["odd", "even"]
    assert counts(report) == (2, 4, 0)


def test_a_check_sees_the_job_whole(queue: Queue) -> None:
    seen: list[Job] = []
    queue.register("own", lambda payload: {"sum": 3}, reconcile=lambda job: seen.append(job))
    job = ran(queue, "own", {"a": 1})
    reconcile(queue)
    assert seen == [job]
    assert (seen[0].payload, seen[0].result) == ({"a": 1}, {"sum": 3})


def test_only_completed_jobs_are_asked_about(queue: Queue) -> None:
    asked: list[str] = []

    def work(payload: dict[str, Any]) -> None:
        if payload["fail"]:
            raise RuntimeError

    queue.register("own", work, reconcile=lambda job: asked.append(job.id))
    ran(queue, "own", {"fail": True})
    done = ran(queue, "own", {"fail": False})
    queue.cancel(queue.enqueue("own", {"fail": False}).id)
    queue.enqueue("own", {"fail": False})
    reconcile(queue)
    assert asked == [done.id]


def test_a_check_that_raises_is_listed_as_not_checked(queue: Queue, folder: Path) -> None:
    def broken(job: Job) -> str | None:
        raise OSError("no route to host")

    queue.register("own", lambda payload: None, reconcile=broken)
    job = ran(queue, "own", {})
    gone = write(queue, folder / "file")
    (folder / "file").unlink()
    report = reconcile(queue)
    assert problems(report) == [
        (gone.id, MISSING),
        (job.id, "could not be checked: OSError: no route to host"),
    ]
    assert (report.checked, report.differing, report.unchecked) == (1, 1, 1)


def test_an_error_of_ours_is_told_in_its_own_words(queue: Queue) -> None:
    def broken(job: Job) -> str | None:
        raise HoldfastError("the vault is shut", hint="open it")

    queue.register("own", lambda payload: None, reconcile=broken)
    ran(queue, "own", {})
    [(_, problem)] = problems(reconcile(queue))
    assert problem.startswith("could not be checked: the vault is shut")
    assert "HoldfastError" not in problem


@pytest.mark.parametrize(
    "subject",
    [lambda job: 1 / 0, lambda job: 5, lambda job: None, lambda job: Path("/")],
    ids=["raises", "int", "None", "Path"],
)
def test_a_broken_subject_is_listed_as_not_checked_and_stops_nothing(
    queue: Queue, folder: Path, subject: Callable[[Job], Any]
) -> None:
    """Also when a job of its type completes meanwhile, or is at work."""
    queue.register("own", lambda payload: None, reconcile=Reconcile(lambda job: None, subject=subject))
    job = ran(queue, "own", {})
    gone = write(queue, folder / "file")
    (folder / "file").unlink()

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            ran(queue, "own", {})
            begun(queue, "own", {}, None)

    report = reconcile(queue, progress=meanwhile)
    assert [id for id, _ in problems(report)] == [gone.id, job.id]
    assert [found.is_checked for found in report.discrepancies] == [True, False]


@pytest.mark.parametrize(
    "text", ["\ud800", "a\x00b", "\x1b[31mred", "x" * 100_000, "", "line\nline", "é" * 9]
)
def test_any_text_may_be_a_subject_and_a_problem(queue: Queue, text: str) -> None:
    """A file name that is no UTF-8 has lone surrogates in Python."""
    queue.register("own", lambda payload: None, reconcile=Reconcile(lambda job: text, lambda job: text))
    job = ran(queue, "own", {})
    report = reconcile(queue)
    assert [id for id, _ in problems(report)] == [job.id]
    assert (report.differing, report.unchecked) == (1, 0)
    assert last_report(queue) == report
    assert max(len(report.discrepancies[0].problem), len(report.discrepancies[0].subject)) <= 4096


@pytest.mark.parametrize("wrong", ["async", "text"])
def test_a_check_that_can_t_be_called_is_refused_at_once(queue: Queue, wrong: str) -> None:
    async def check(job: Job) -> str | None:
        return None

    with pytest.raises(ConfigError, match="reconcile"):
        queue.register(
            "own",
            lambda payload: None,
            reconcile=check if wrong == "async" else wrong,  # type: ignore[arg-type]
        )


def test_a_costly_check_is_left_out_at_start_and_made_on_demand(queue: Queue, folder: Path) -> None:
    queue.register(
        "costly", lambda payload: None, reconcile=Reconcile(lambda job: "it costs", on_start=False)
    )
    costly = ran(queue, "costly", {})
    gone = write(queue, folder / "file")
    (folder / "file").unlink()
    report = reconcile(queue, on_start=True)
    assert problems(report) == [(gone.id, MISSING)]
    assert [covered.type for covered in report.covered] == ["create_file"]
    assert problems(reconcile(queue)) == [(gone.id, MISSING), (costly.id, "it costs")]
    assert problems(reconcile(queue, types=["costly"])) == [(costly.id, "it costs")]


def test_a_costly_check_is_left_out_at_start_but_its_jobs_count(queue: Queue, folder: Path) -> None:
    """It is not asked, but it has replaced what an earlier job wrote."""

    def check(job: Job) -> str | None:
        raise AssertionError("asked")

    queue.register("move", answer, reconcile=Reconcile(check, subject=files.subject, on_start=False))
    write(queue, folder / "file")
    ran(queue, "move", {"targetPath": str(folder / "file"), "answer": "moved"})
    report = reconcile(queue, on_start=True)
    assert problems(report) == []


def test_aws_is_asked_on_demand_only(queue: Queue) -> None:
    assert "sync_aws" in checkable_types(queue)
    how = queue.registry.require("sync_aws").reconcile
    assert how is not None
    assert not how.on_start
    for type in ("create_file", "delete_file", "claude_extraction"):
        how = queue.registry.require(type).reconcile
        assert how is not None
        assert how.on_start


# Which types.


def test_only_the_types_that_are_named_are_checked(queue: Queue, folder: Path) -> None:
    gone = {type: write(queue, folder / type, type=type) for type in ("create_file", "claude_extraction")}
    media = write(queue, folder / "media", type="create_file:media")
    for path in folder.iterdir():
        path.unlink()
    assert problems(reconcile(queue, types=["claude_extraction"])) == [
        (gone["claude_extraction"].id, MISSING)
    ]
    assert problems(reconcile(queue, types=["create_file:media"])) == [(media.id, MISSING)]
    both = reconcile(queue, types=["create_file"])
    assert problems(both) == [(media.id, MISSING), (gone["create_file"].id, MISSING)]
    assert [covered.type for covered in both.covered] == ["create_file", "create_file:media"]


@pytest.mark.parametrize("type", ["nonsense", "shell", "webhook", "", "create_files"])
def test_a_type_that_can_t_be_checked_is_refused_with_those_that_can(queue: Queue, type: str) -> None:
    queue.register("shop.own", lambda payload: None, reconcile=lambda job: None)
    with pytest.raises(ConfigError) as refused:
        reconcile(queue, types=["create_file", type])
    assert repr(type) in str(refused.value)
    assert "claude_extraction, create_file, delete_file, shop.own, sync_aws" in str(refused.value)
    assert last_report(queue) is None


def test_no_type_at_all_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="types="):
        reconcile(queue, types=[])


def test_an_empty_queue_is_clean(queue: Queue) -> None:
    report = reconcile(queue)
    assert problems(report) == []
    assert (report.jobs, report.covered) == (0, [])
    assert last_report(queue) == report


# From which date on.


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def dated(url: str, folder: Path, clock: MovableClock) -> Iterator[Queue]:
    """Three files, a day between them: the first from 2030-01-01."""
    with Queue(url, clock=clock) as queue:
        install(queue)
        for number in range(3):
            write(queue, folder / str(number))
            clock.advance(days=1)
        yield queue


def test_a_report_says_since_when_it_could_check(dated: Queue) -> None:
    [covered] = reconcile(dated).covered
    assert covered.since == datetime(2030, 1, 1, tzinfo=UTC)
    assert (covered.type, covered.completed, covered.removed) == ("create_file", 3, 0)


def test_what_cleanup_removed_is_told_and_no_longer_checked(
    dated: Queue, folder: Path, clock: MovableClock
) -> None:
    for number in range(3):
        (folder / str(number)).unlink()
    assert dated.cleanup(timedelta(days=1, hours=12)) == 2
    report = reconcile(dated)
    [covered] = report.covered
    assert covered.since == datetime(2030, 1, 3, tzinfo=UTC)
    assert (covered.completed, covered.removed) == (1, 2)
    assert len(problems(report)) == 1


def test_what_retention_removed_is_told(
    dated: Queue, start_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_PRUNE_EVERY", 0.0)
    dated.set_config("retention_completed", 36 * 3600)
    recorder = Recorder(dated.events)
    start_worker(dated)
    recorder.wait(JobsPruned)
    [covered] = reconcile(dated).covered
    assert covered.since == datetime(2030, 1, 3, tzinfo=UTC)
    assert (covered.completed, covered.removed) == (1, 2)


def test_a_type_of_which_nothing_is_kept_is_told(dated: Queue, clock: MovableClock) -> None:
    clock.advance(1)
    assert dated.cleanup(0) == 3
    [covered] = reconcile(dated).covered
    assert (covered.type, covered.completed, covered.since, covered.removed) == ("create_file", 0, None, 3)


# Nothing is repaired; the report is kept.


def _world(queue: Queue, folder: Path) -> dict[str, Any]:
    """All that jobs and files are, but for the report."""
    with closing(sqlite3.connect(path_of(queue))) as connection:
        rows = [line for line in connection.iterdump() if "holdfast_reconciliation" not in line]
    world: dict[str, Any] = {"": rows}
    for path in sorted(folder.rglob("*")):
        found = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        world[str(path)] = (found.st_ino, found.st_mode, found.st_mtime_ns, found.st_ctime_ns, content)
    return world


def test_nothing_is_repaired(queue: Queue, folder: Path) -> None:
    for name in DAMAGES:
        path = folder / name / "file"
        write(queue, path)
        DAMAGES[name][0](path)
    delete(queue, folder / "back")
    (folder / "back").touch()
    ran(queue, "create_file", {"path": "/outside", "content": ""})
    begun(queue, "delete_file", {"path": str(folder / "back")}, LeaseEnded("WorkerLost: gone"))
    begun(queue, "create_file", {"path": str(folder / "new"), "content": ""}, None)
    before = _world(queue, folder)
    report = reconcile(queue)
    assert len(problems(report)) == len(DAMAGES)
    assert _world(queue, folder) == before


@pytest.mark.process
def test_the_report_is_kept_and_read_by_another_process(queue: Queue, folder: Path, tmp_path: Path) -> None:
    assert last_report(queue) is None
    job = write(queue, folder / "file")
    (folder / "file").unlink()
    report = reconcile(queue)
    assert last_report(queue) == report
    script = (
        "import sys\nfrom holdfast import Queue\nfrom holdfast.reconcile import last_report\n"
        "with Queue(sys.argv[1]) as queue:\n    found = last_report(queue)\n"
        "print(found.differing, found.discrepancies[0].job_id, found.started_at.isoformat())\n"
    )
    ran = run_script(tmp_path, script, queue.url)
    assert ran.stdout.split() == ["1", job.id, report.started_at.isoformat()], ran.stderr


def test_the_last_report_replaces_the_one_before(queue: Queue, folder: Path) -> None:
    write(queue, folder / "file")
    (folder / "file").unlink()
    reconcile(queue)
    (folder / "file").write_text("kept")
    clean = reconcile(queue)
    assert problems(clean) == []
    assert last_report(queue) == clean
    assert sql(queue, "SELECT count(*) FROM holdfast_reconciliation") == [(1,)]


@pytest.mark.parametrize("text", ["", "{}", "[1]", "nonsense", '{"jobs": "many"}'])
def test_a_report_that_can_t_be_read_is_none(queue: Queue, text: str) -> None:
    """Another release may have written it."""
    store_of(queue).write_reconciliation(text)
    assert last_report(queue) is None


def test_a_report_says_when_it_was_made(queue: Queue) -> None:
    before = datetime.now(UTC)
    report = reconcile(queue)
    assert before <= report.started_at <= report.finished_at <= datetime.now(UTC)


def test_a_report_as_json_has_the_names_of_the_api(queue: Queue, folder: Path) -> None:
    job = write(queue, folder / "file")
    assert job.finished_at is not None
    (folder / "file").unlink()
    shape = to_builtins(reconcile(queue))
    moment = f"{job.finished_at:%Y-%m-%dT%H:%M:%S.%f}Z"
    assert {name: shape[name] for name in shape if not name.endswith("At")} == {
        "covered": [{"type": "create_file", "completed": 1, "since": moment, "removed": 0}],
        "leftOut": [],
        "jobs": 1,
        "checked": 1,
        "superseded": 0,
        "unsettled": 0,
        "differing": 1,
        "unchecked": 0,
        "discrepancies": [
            {
                "jobId": job.id,
                "type": "create_file",
                "subject": f"file {folder / 'file'}",
                "problem": MISSING,
                "completedAt": moment,
                "isChecked": True,
            }
        ],
    }
    assert shape["startedAt"].endswith("Z")
    assert shape["finishedAt"].endswith("Z")


def test_what_is_found_is_announced(queue: Queue, folder: Path, recorder: Recorder) -> None:
    job = write(queue, folder / "file")
    write(queue, folder / "other")
    (folder / "file").unlink()
    reconcile(queue)
    [found] = recorder.all(DiscrepancyFound)
    assert (found.job_id, found.type, found.problem) == (job.id, "create_file", MISSING)
    assert found.subject == f"file {folder / 'file'}"
    [done] = recorder.all(Reconciled)
    assert (done.jobs, done.checked, done.differing, done.unchecked) == (2, 2, 1, 0)
    assert 0 <= done.seconds < 30


def test_a_walk_that_is_broken_off_leaves_the_last_report(
    queue: Queue, folder: Path, recorder: Recorder
) -> None:
    write(queue, folder / "file")
    first = reconcile(queue)

    def leave(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reconcile(queue, progress=leave)
    assert last_report(queue) == first
    assert len(recorder.all(Reconciled)) == 1


def test_a_database_that_fails_is_an_error_and_leaves_the_last_report(
    queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(queue, folder / "file")
    first = reconcile(queue)
    broken = Spy(store_of(queue).get_job)
    broken.always = StoreUnavailable("disk I/O error")
    monkeypatch.setattr(store_of(queue), "get_job", broken)
    with pytest.raises(StoreUnavailable):
        reconcile(queue)
    assert last_report(queue) == first


# Very many.


def test_a_thousand_are_kept_and_all_are_counted(queue: Queue, recorder: Recorder) -> None:
    queue.register("own", lambda payload: None, reconcile=lambda job: "gone")
    fill(queue, "own", 1500)
    report = reconcile(queue)
    assert (report.jobs, report.checked, report.differing) == (1500, 1500, 1500)
    assert KEPT == 1000
    assert [found.job_id for found in report.discrepancies] == [f"own-{n}" for n in range(1500, 500, -1)]
    assert last_report(queue) == report
    assert len(recorder.all(DiscrepancyFound)) == 1000
    assert [done.differing for done in recorder.all(Reconciled)] == [1500]


def test_what_is_settled_makes_room_in_the_list(queue: Queue) -> None:
    """The thousand that are kept are real ones."""
    queue.register(
        "own",
        lambda payload: None,
        reconcile=Reconcile(lambda job: "gone", lambda job: f"{(job.result or job.payload)['number']}"),
    )
    fill(queue, "own", 1010)
    for number in (1010, 1009):
        begun(queue, "own", {"number": number}, None)
    report = reconcile(queue)
    assert (report.differing, report.unsettled) == (1008, 2)
    assert [found.job_id for found in report.discrepancies] == [f"own-{n}" for n in range(1008, 8, -1)]


def test_progress_is_told_of_every_job(queue: Queue) -> None:
    queue.register("own", lambda payload: None, reconcile=lambda job: None)
    fill(queue, "own", 1200)
    told: list[tuple[int, int]] = []
    reconcile(queue, progress=lambda done, total: told.append((done, total)))
    assert told == [(number, 1200) for number in range(1, 1201)]


@contextmanager
def traced() -> Iterator[Callable[[], float]]:
    """Yields what tells the most mebibytes that Python objects took since its start."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield lambda: (tracemalloc.get_traced_memory()[1] - before) / 2**20
    finally:
        tracemalloc.stop()


def test_many_jobs_need_no_more_memory_than_few(queue: Queue) -> None:
    """Every object counts over the whole walk, every byte over its last part: to trace them all is slow."""
    queue.register(
        "own",
        lambda payload: None,
        reconcile=Reconcile(
            lambda job: "gone" if job.result["number"] % 7 == 0 else None,
            subject=lambda job: hashlib.sha256(job.id.encode()).hexdigest(),
        ),
    )
    fill(queue, "own", 20_000)
    objects: list[int] = []

    with ExitStack() as stack:
        taken: list[Callable[[], float]] = []

        def look(done: int, total: int) -> None:
            if done % 1000 == 0:
                objects.append(sys.getallocatedblocks())
            if done == 18_000:
                taken.append(stack.enter_context(traced()))

        report = reconcile(queue, progress=look)
        mebibytes = taken[0]()
    assert (report.jobs, report.checked, report.differing) == (20_000, 20_000, 2857)
    assert mebibytes < 3
    assert max(objects) - objects[0] < 10_000


def test_large_payloads_are_not_held_together(queue: Queue) -> None:
    queue.register("own", lambda payload: None, reconcile=Reconcile(lambda job: None, lambda job: job.id))
    fill(queue, "own", 40, '{"text": "' + "x" * 500 * 1024 + '"}')
    with traced() as mebibytes:
        report = reconcile(queue)
        assert mebibytes() < 5
    assert report.checked == 40


def test_jobs_of_very_many_lanes_are_read_in_their_order(queue: Queue) -> None:
    queue.register("own", lambda payload: None, reconcile=lambda job: "gone")
    for lane in range(30):
        fill(queue, f"own:{lane}", 5)
    report = reconcile(queue)
    moments = [found.completed_at for found in report.discrepancies]
    assert len(moments) == 150
    assert moments == sorted(moments, reverse=True)


def test_check_that_exits_is_listed_as_not_checked(queue: Queue) -> None:
    def leave(job: Job) -> str | None:
        sys.exit("bye")

    queue.register("mine", lambda payload: None, reconcile=leave)
    job = queue.enqueue("mine", {})
    queue.drain()
    report = reconcile(queue)
    assert [(found.job_id, found.problem) for found in report.discrepancies] == [
        (job.id, "could not be checked: SystemExit: bye")
    ]


def test_report_that_can_not_be_kept_is_still_told(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.register("mine", lambda payload: None, reconcile=lambda job: "it is gone")
    queue.enqueue("mine", {})
    queue.drain()

    def busy(report: str) -> None:
        raise StoreBusy(5)

    monkeypatch.setattr(store_of(queue), "write_reconciliation", busy)
    told: list[Event] = []
    queue.events.subscribe(told.append)
    assert reconcile(queue).differing == 1
    assert [event.name for event in told] == ["reconcile.discrepancy", "reconcile.failed", "reconcile.done"]


def test_types_that_were_not_asked_about_are_told(queue: Queue, folder: Path) -> None:
    queue.register("costly", lambda payload: None, reconcile=Reconcile(lambda job: "gone", on_start=False))
    ran(queue, "costly", {})
    write(queue, folder / "file")
    assert reconcile(queue, on_start=True).left_out == ["costly"]
    assert reconcile(queue, types=["costly"]).left_out == ["create_file"]
    assert reconcile(queue).left_out == []


def test_older_job_of_a_type_that_is_not_asked_about_settles_nothing(queue: Queue) -> None:
    """Its subjects are named by another function, so nobody has read which of its jobs are older."""
    queue.register("old", lambda payload: None, reconcile=Reconcile(lambda job: None, lambda job: "thing"))
    queue.register("new", lambda payload: None, reconcile=Reconcile(lambda job: "gone", lambda job: "thing"))
    ran(queue, "old", {})
    ran(queue, "new", {})
    for types in (None, ["new"]):
        report = reconcile(queue, types=types)
        assert (report.differing, report.unsettled) == (1, 0)


def test_settling_can_be_ended(queue: Queue, folder: Path) -> None:
    for name in ("a", "b"):
        write(queue, folder / name)
        (folder / name).unlink()
    waiting = queue.enqueue("create_file", {"path": str(folder / "c"), "content": ""})
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reconcile(queue, progress=progress)
    assert told == [(1, 2), (2, 2), (2, 2)]
    assert get(queue, waiting.id).status == "pending"
    assert last_report(queue) is None
