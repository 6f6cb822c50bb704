"""The database file: found through links, and noticed when it is removed or replaced under an open queue."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.errors import DatabaseReplaced
from holdfast.events import WorkerCrashed
from holdfast.store.open import store_of
from holdfast.store.records import Finding
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite import database as database_module
from holdfast.store.sqlite import file as file_module
from tests.support import Recorder, wait_until

Swap = Callable[[Path], None]


def remove(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)


def replace(path: Path) -> None:
    """As a restored backup or a new deployment does it."""
    remove(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE restored (x)")


def replace_alone(path: Path) -> None:
    other = path.with_suffix(".new")
    other.touch()
    other.rename(path)


def lead_elsewhere(path: Path) -> None:
    """The link of the address now names the file of another release."""
    other = path.parent / "other.db"
    other.touch()
    path.unlink()
    path.symlink_to(other)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def queue(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.setattr(file_module, "CHECK_PAUSE", 0.0)
    with Queue(f"sqlite:///{path}") as queue:
        yield queue.open()


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A link to a database that is not there yet."""
    (tmp_path / "data").mkdir()
    link = tmp_path / "queue.db"
    link.symlink_to(tmp_path / "data" / "real.db")
    return link


def finding(queue: Queue, check: str) -> Finding:
    [found] = [found for found in store_of(queue).examine() if found.check == check]
    return found


# Links.


def test_wal_of_a_linked_database_is_seen_and_checkpointed(
    link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "WAL_LIMIT", 256 * 1024)
    monkeypatch.setattr(database_module, "_WAL_KEPT", 192 * 1024)
    wal = link.parent / "data" / "real.db-wal"
    with Queue(f"sqlite:///{link}") as queue:
        for _ in range(40):
            queue.enqueue_many("crawl", [{"text": "x" * 1000}] * 100)
            assert store_of(queue).measure()["wal_bytes"] == wal.stat().st_size
        assert wal.stat().st_size < 4 * 1024 * 1024
        assert finding(queue, "WAL").text == f"{wal.stat().st_size / 2**20:.1f} MiB"


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_idle_worker_behind_a_link_waits_instead_of_polling(
    link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(f"sqlite:///{link}") as queue:
        queue.enqueue("crawl")
        with closing(store_of(queue).watch()) as watch:
            watch.wait(0.5)  # the looks after an opening, which become rarer
            looks: list[str] = []
            assert isinstance(store_of(queue), SqliteStore)
            database = store_of(queue).database
            read = database.read_one

            def look(sql: str) -> Any:
                looks.append(sql)
                return read(sql)

            monkeypatch.setattr(database, "read_one", look)
            watch.wait(0.3)
    assert len(looks) <= 3


def test_linked_database_that_is_new_is_for_its_owner_alone(link: Path) -> None:
    with Queue(f"sqlite:///{link}") as queue:
        queue.open()
    assert stat.S_IMODE((link.parent / "data" / "real.db").stat().st_mode) == 0o600


def test_file_is_one_queue_by_whatever_link(link: Path) -> None:
    real = link.parent / "data" / "real.db"
    with Queue(f"sqlite:///{link}") as one, Queue(f"sqlite:///{real}") as other:
        assert store_of(one).url == store_of(other).url == f"sqlite:///{real}"


# Removed and replaced.


@pytest.mark.parametrize("swap", [remove, replace, replace_alone])
def test_job_is_not_accepted_into_a_file_that_is_gone(queue: Queue, path: Path, swap: Swap) -> None:
    queue.enqueue("crawl")
    swap(path)
    for _ in range(2):
        with pytest.raises(DatabaseReplaced, match=rf"{path} was re(moved|placed) .*\(restart this process"):
            queue.enqueue("crawl")


def test_link_that_leads_elsewhere_is_another_database(link: Path) -> None:
    with Queue(f"sqlite:///{link}") as queue:
        queue.enqueue("crawl")
        lead_elsewhere(link)
        with pytest.raises(DatabaseReplaced):
            queue.enqueue("crawl")


def test_file_that_is_gone_is_not_made_anew_by_those_who_had_it_open(queue: Queue, path: Path) -> None:
    remove(path)
    store_of(queue).close_thread()  # the next use needs a new connection
    with pytest.raises(DatabaseReplaced):
        queue.jobs()
    assert not path.exists()


def test_readers_notice_at_the_next_check(queue: Queue, path: Path) -> None:
    queue.jobs()
    replace(path)
    with pytest.raises(DatabaseReplaced):
        queue.jobs()
    with pytest.raises(DatabaseReplaced):
        store_of(queue).check_place()


def test_transaction_of_the_caller_takes_no_job_for_a_file_that_is_gone(queue: Queue, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        replace_alone(path)
        with pytest.raises(DatabaseReplaced):
            queue.enqueue("crawl", connection=connection)


def test_file_that_comes_back_is_used_again(queue: Queue, path: Path) -> None:
    path.rename(path.with_suffix(".away"))
    with pytest.raises(DatabaseReplaced, match="removed or renamed"):
        queue.enqueue("crawl")
    path.with_suffix(".away").rename(path)
    assert queue.get(queue.enqueue("crawl").id) is not None


def test_closed_queue_opens_what_is_there_now(queue: Queue, path: Path) -> None:
    remove(path)
    with pytest.raises(DatabaseReplaced):
        queue.enqueue("crawl")
    queue.close()
    job = queue.enqueue("crawl")
    assert [found.id for found in queue.jobs()] == [job.id]


def test_worker_ends_when_its_database_is_replaced(queue: Queue, path: Path) -> None:
    recorder = Recorder(queue.events)
    queue.register("crawl", lambda payload: None)
    queue.set_config("poll_interval", 0.05)
    worker = queue.worker()
    worker.start()
    replace_alone(path)  # in one step: between two, a worker may find no file at all
    wait_until(lambda: not worker.is_running)
    [crash] = recorder.all(WorkerCrashed)
    assert crash.error.startswith(f"DatabaseReplaced: {path} was replaced by another file")
    with pytest.raises(DatabaseReplaced):
        worker.stop()


# What doctor says.


def test_doctor_names_the_file(queue: Queue, path: Path) -> None:
    assert finding(queue, "file") == Finding(level="ok", check="file", text=str(path))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_doctor_names_processes_that_still_use_a_file_that_was_replaced(queue: Queue, path: Path) -> None:
    remove(path)
    with Queue(queue.url) as other:
        found = finding(other, "file")
    assert found.level == "problem"
    assert found.text == f"{path} was replaced; still using the old file: pid {os.getpid()}"
    assert found.advice is not None
    assert "restart" in found.advice


def test_doctor_warns_of_hard_links(queue: Queue, path: Path) -> None:
    path.with_suffix(".second").hardlink_to(path)
    found = finding(queue, "file")
    assert (found.level, found.text) == ("problem", f"{path} has 2 hard links")
