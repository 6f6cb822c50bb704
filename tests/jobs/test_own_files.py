"""The queue's own files: no job, and no path that somebody gives, opens, replaces or removes them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Job, Queue
from holdfast.errors import ForeignDatabase, StoreUnavailable
from holdfast.jobs import CLAUDE_EXTRACTION, CREATE_FILE, DELETE_FILE, install
from holdfast.jobs.roots import VARIABLE, roots
from holdfast.reconcile import reconcile
from holdfast.store.open import store_of
from holdfast.store.own_files import is_own_path
from holdfast.system.start_marks import marks_folder
from tests.worker.support import get, sql

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "create": (CREATE_FILE, {"content": "x"}),
    "overwrite": (CREATE_FILE, {"content": "x", "overwrite": True}),
    "delete": (DELETE_FILE, {}),
    "require": (DELETE_FILE, {"requireExists": True}),
}
NAMES = ("queue.db", "queue.db-wal", "queue.db-shm", "queue.db-journal", "QUEUE.DB-WAL")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """SQLite alone: a database beside the files that jobs write."""
    return f"sqlite:///{tmp_path / 'files' / 'queue.db'}"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.setenv("QUEUECTL_HOME", str(folder / "home"))
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


@pytest.fixture
def queue(root: Path, queue: Queue) -> Queue:
    install(queue)
    queue.enqueue("mail", {"n": 1})  # so the log and its index are there
    return queue


@pytest.fixture
def locks(root: Path, queue: Queue) -> Iterator[None]:
    """What SQLite has locked in this process stays locked."""
    before = _locks(root)
    assert before, "SQLite holds locks while a connection is open"
    yield
    assert _locks(root) == before


def _locks(root: Path) -> list[str]:
    if sys.platform != "linux":
        return ["unknown"]
    files = {os.stat(path).st_ino: path.name for path in root.glob("queue.db*") if path.is_file()}
    with open("/proc/locks", encoding="ascii") as listed:
        rows = [line.split() for line in listed if "->" not in line]
    mine = [row for row in rows if row[4] == str(os.getpid()) and int(row[5].split(":")[2]) in files]
    # A process has no two locks of one place; but a list that others change meanwhile may show one twice.
    return sorted({f"{row[3]} {files[int(row[5].split(':')[2])]} {row[6]}" for row in mine})


def run(queue: Queue, kind: str, path: Path) -> Job:
    type, payload = JOBS[kind]
    job = queue.enqueue(type, {"path": str(path), **payload})
    assert queue.drain(limit=1) == 1
    return get(queue, job.id)


def refused(job: Job) -> bool:
    assert (job.status, job.attempts) == ("failed", 1), (job.status, job.error)
    return "belongs to the queue itself" in str(job.error)


@pytest.mark.usefixtures("locks")
@pytest.mark.parametrize("kind", JOBS)
def test_files_of_the_database_are_refused(queue: Queue, root: Path, kind: str) -> None:
    inodes = {name: (root / name).stat().st_ino for name in NAMES[:3]}
    for name in NAMES:
        assert refused(run(queue, kind, root / name)), name
    assert {name: (root / name).stat().st_ino for name in NAMES[:3]} == inodes
    assert not [path.name for path in root.iterdir() if not path.name.startswith("queue.db")]


@pytest.mark.usefixtures("locks")
@pytest.mark.parametrize("kind", JOBS)
def test_folder_under_a_name_of_the_database_is_not_made(queue: Queue, root: Path, kind: str) -> None:
    """SQLite would take it for a journal to roll back, and nobody could open the queue any more."""
    assert refused(run(queue, kind, root / "queue.db-journal" / "file"))
    assert not (root / "queue.db-journal").exists()
    with Queue(queue.url) as other:
        assert other.count(type="mail") == 1


@pytest.mark.usefixtures("locks")
@pytest.mark.parametrize("kind", JOBS)
def test_hard_link_to_a_file_of_the_database_is_refused(queue: Queue, root: Path, kind: str) -> None:
    for name in NAMES[:3]:
        link = root / "sub" / name.replace("queue", "innocent")
        link.parent.mkdir(exist_ok=True)
        os.link(root / name, link)
        assert refused(run(queue, kind, link)), name
        assert link.exists()


@pytest.mark.usefixtures("locks")
def test_nothing_of_the_database_is_opened(queue: Queue, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = os.open
    queue.enqueue("email", {"text": "x" * 300_000})  # the queue itself makes its WAL longer, once
    marks = os.path.join(tempfile.gettempdir(), "holdfast-")

    def noted(path: Any, *rest: Any, **named: Any) -> int:
        if not os.path.dirname(path).startswith(marks):
            opened.append(os.path.basename(path))
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", noted)
    for name in NAMES[:3]:
        for kind in JOBS:
            run(queue, kind, root / name)
    assert set(opened) == {"files"}, "the root alone"


@pytest.mark.usefixtures("locks")
def test_database_of_another_queue_that_is_open_here_is_refused(queue: Queue, root: Path) -> None:
    (root / "elsewhere").mkdir()
    with Queue(f"sqlite:///{root / 'elsewhere' / 'other.db'}") as other:
        other.enqueue("mail", {})
        assert refused(run(queue, "overwrite", root / "elsewhere" / "other.db"))
        assert refused(run(queue, "delete", root / "elsewhere" / "other.db-wal"))
    assert run(queue, "delete", root / "elsewhere" / "other.db").status == "completed"


@pytest.mark.usefixtures("locks")
def test_database_that_is_reached_by_a_link_is_refused_where_it_is(queue: Queue, root: Path) -> None:
    (root / "real").mkdir()
    (root / "link.db").symlink_to(root / "real" / "data.db")
    with Queue(f"sqlite:///{root / 'link.db'}") as other:
        other.enqueue("mail", {})
        for name in ("data.db", "data.db-wal", "data.db-shm", "data.db-journal"):
            assert refused(run(queue, "overwrite", root / "real" / name)), name


@pytest.mark.usefixtures("queue", "locks")
def test_database_that_was_renamed_is_known_under_its_new_name(root: Path) -> None:
    os.rename(root / "queue.db", root / "archive")
    try:
        assert is_own_path(str(root / "archive"))
    finally:
        os.rename(root / "archive", root / "queue.db")


@pytest.mark.usefixtures("locks")
@pytest.mark.parametrize("name", NAMES[:3])
def test_database_that_takes_the_place_of_a_file_at_the_last_moment_keeps_its_locks(
    queue: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (root / "file").write_text("y")
    real = os.open

    def swapped(path: Any, *rest: Any, **named: Any) -> int:
        if path == "file":
            os.unlink(root / "file")
            os.link(root / name, root / "file")
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", swapped)
    assert refused(run(queue, "create", root / "file"))


@pytest.mark.parametrize("kind", JOBS)
def test_home_of_the_queue_is_refused(queue: Queue, root: Path, kind: str) -> None:
    home = root / "home"
    home.mkdir()
    (home / "logs").mkdir()
    (home / "logs" / "old.log").write_text("kept")
    for path in (home / ".stop_workers", home / "logs" / "old.log", home / "new" / "deep" / "file"):
        assert refused(run(queue, kind, path)), path
    assert sorted(path.name for path in home.rglob("*")) == ["logs", "old.log"]


@pytest.mark.parametrize("path", ["home", "home/.stop_workers", "home/new/file", "HOME"])
def test_home_that_is_not_there_is_not_made(queue: Queue, root: Path, path: str) -> None:
    """Neither as a folder that others may read, nor as a file in its place."""
    assert refused(run(queue, "create", root / path))
    assert not (root / path.split("/")[0]).exists()


@pytest.mark.parametrize("kind", JOBS)
def test_start_marks_of_workers_are_refused(
    queue: Queue, root: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, or with others, a job that a crash ended would pass for one that had not started."""
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    marks = Path(marks_folder())
    assert refused(run(queue, kind, marks)), "nor is it made as anything else"
    marks.mkdir(0o700, exist_ok=True)
    (marks / "worker").write_text("started")
    assert refused(run(queue, kind, marks / "worker"))
    assert (marks / "worker").read_text() == "started"


def test_home_is_refused_as_a_root_and_a_folder_in_it_only_by_default(
    queue: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = root / "home" / "files"
    inside.mkdir(parents=True)
    monkeypatch.setenv(VARIABLE, str(root / "home"))
    assert refused(run(queue, "create", root / "home" / "file"))
    monkeypatch.setenv(VARIABLE, str(inside))
    assert run(queue, "create", inside / "file").status == "completed"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.chdir(inside)
    assert roots() == []


@pytest.mark.usefixtures("locks")
@pytest.mark.parametrize(
    "path", ["queue.db", "queue.db-shm", "queue.db-journal/answer", "home/answer", "home"]
)
def test_extraction_is_refused_before_it_costs_anything(
    queue: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("QUEUECTL_CLAUDE", f"sh -c 'touch {root}/ran'")
    payload = {"prompt": "Say nothing.", "targetPath": str(root / path), "requirementId": "R1"}
    job = queue.enqueue(CLAUDE_EXTRACTION, payload)
    queue.drain()
    assert refused(get(queue, job.id))
    assert not (root / "ran").exists()


@pytest.mark.usefixtures("locks")
def test_reconciliation_does_not_open_the_database(queue: Queue, root: Path) -> None:
    job = run(queue, "create", root / "file")
    sql(queue, "UPDATE holdfast_jobs SET result = json_set(result, '$.path', ?)", str(root / "queue.db"))
    [found] = reconcile(queue).discrepancies
    assert (found.job_id, found.is_checked) == (job.id, False)
    assert "belongs to the queue itself" in found.problem


@pytest.mark.usefixtures("locks")
def test_part_of_an_open_database_is_no_address_of_a_queue(queue: Queue, root: Path) -> None:
    os.link(root / "queue.db-shm", root / "index.db")
    for name in (*NAMES[1:4], "index.db"):
        with pytest.raises(ForeignDatabase, match="part of one that is open here"):
            Queue(f"sqlite:///{root / name}").open()
    with Queue(f"sqlite:///{root / 'queue.db'}") as again:
        assert again.count(type="mail") == 1


def test_copy_does_not_take_a_name_of_the_database(queue: Queue, root: Path) -> None:
    with pytest.raises(StoreUnavailable, match="SQLite uses for the queue itself"):
        store_of(queue).back_up(str(root / "queue.db-journal"))
