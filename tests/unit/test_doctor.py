"""The check-up: each thing that can be wrong is found, with what to do about it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Queue
from holdfast.config import stop_file
from holdfast.observe import doctor
from holdfast.store.open import store_of
from holdfast.store.records import Finding, WorkerRecord
from holdfast.store.sqlite import SqliteStore, health
from holdfast.testing import MovableClock
from tests.conformance.steps import claim, insert, run


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("QUEUECTL_HOME", str(path))
    return path


@pytest.fixture
def queue(home: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """A queue in a home of its own, on a machine with nothing to find."""
    monkeypatch.delenv("QUEUECTL_DATABASE_URL", raising=False)
    monkeypatch.setattr(health, "file_system", lambda path: "ext4")
    monkeypatch.setattr(os, "statvfs", lambda path: room(100_000))
    monkeypatch.setattr(health, "has_wal_reset_bug", lambda version: False)
    with Queue(clock=clock) as queue:
        yield queue


def room(mebibytes: int) -> Any:
    return SimpleNamespace(f_bavail=mebibytes * 256, f_frsize=4096)


def register(queue: Queue, *types: str, id: str = "w1") -> None:
    store_of(queue).register_worker(
        WorkerRecord(id=id, host="here", pid=1, state="running", concurrency=4, types=types), []
    )


def findings(queue: Queue, check: str) -> list[Finding]:
    return [found for found in doctor.examine(queue) if found.check == check]


def wrong(queue: Queue) -> list[tuple[str, str]]:
    """The level and the check of everything that is not all right."""
    return [(found.level, found.check) for found in doctor.examine(queue) if found.level != "ok"]


def test_healthy_queue_has_nothing_wrong(queue: Queue, clock: MovableClock) -> None:
    assert wrong(queue) == []
    register(queue, "email")
    run(store_of(queue), "running")
    insert(store_of(queue), "waiting")
    assert wrong(queue) == []
    checks = {found.check for found in doctor.examine(queue)}
    assert checks >= {"SQLite", "home folder", "clock", "workers", "stuck jobs", "integrity", "WAL"}


def test_everything_wrong_comes_with_advice(queue: Queue, home: Path, clock: MovableClock) -> None:
    run(store_of(queue), "a")
    insert(store_of(queue), "b")
    queue.pause()
    home.chmod(0o777)
    Path(stop_file()).touch()
    clock.advance(days=1)
    bad = [found for found in doctor.examine(queue) if found.level != "ok"]
    assert len(bad) >= 5
    assert all(found.advice for found in bad)


# The clock


def test_job_from_the_future_means_a_wrong_clock(queue: Queue, clock: MovableClock) -> None:
    insert(store_of(queue), "a")
    store_of(queue).cancel_job("a")
    clock.advance(-5)
    assert wrong(queue) == []
    clock.advance(-85)
    [found] = findings(queue, "clock")
    assert (found.level, "90 s ahead" in found.text) == ("problem", True)


def test_heartbeat_from_the_future_means_a_wrong_clock(queue: Queue, clock: MovableClock) -> None:
    register(queue, "email")
    clock.advance(-3600)
    assert [found.level for found in findings(queue, "clock")] == ["problem"]


# Workers


def test_waiting_jobs_without_any_worker_are_a_problem(queue: Queue) -> None:
    insert(store_of(queue), "a")
    insert(store_of(queue), "later", delay=60)
    [found] = findings(queue, "workers")
    assert (found.level, found.advice) == ("problem", "queuectl worker start")
    assert ("1 pending" in found.text, "1 scheduled" in found.text) == (True, True)
    assert findings(queue, "types") == [], "what is said of all need not be said of each"


def test_jobs_of_a_later_time_without_any_worker_are_a_warning(queue: Queue) -> None:
    insert(store_of(queue), "later", delay=60)
    assert [found.level for found in findings(queue, "workers")] == ["warning"]


def test_worker_that_has_gone_silent_does_not_count(queue: Queue, clock: MovableClock) -> None:
    register(queue, "email")
    insert(store_of(queue), "a")
    assert [found.level for found in findings(queue, "workers")] == ["ok"]
    clock.advance(31)
    assert [found.level for found in findings(queue, "workers")] == ["problem"]


def test_type_that_no_worker_handles_is_named(queue: Queue) -> None:
    register(queue, "email")
    insert(store_of(queue), "a")
    insert(store_of(queue), "b", "c", type="crawl")
    [found] = findings(queue, "types")
    assert found.level == "warning"
    assert ("crawl" in found.text, "2" in found.text) == (True, True)


def test_stop_file_is_a_warning_that_says_how_to_remove_it(queue: Queue) -> None:
    Path(stop_file()).touch()
    assert wrong(queue) == [("warning", "workers")]
    [found] = [found for found in findings(queue, "workers") if found.level == "warning"]
    assert stop_file() in found.text
    assert stop_file() in str(found.advice)


def test_broken_link_as_stop_file_counts_too(queue: Queue) -> None:
    Path(stop_file()).symlink_to("/nowhere")
    assert wrong(queue) == [("warning", "workers")]


# The home folder


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_home_that_others_can_write_is_a_problem(queue: Queue, home: Path, mode: int) -> None:
    home.chmod(mode)
    [found] = findings(queue, "home folder")
    assert (found.level, found.advice) == ("problem", f"chmod 700 {home}")


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_home_that_others_may_at_most_read_is_all_right(queue: Queue, home: Path, mode: int) -> None:
    home.chmod(mode)
    assert [found.level for found in findings(queue, "home folder")] == ["ok"]


def test_home_that_we_can_not_write_is_a_warning(
    queue: Queue, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(home))
    [found] = findings(queue, "home folder")
    assert (found.level, "QUEUECTL_HOME" in str(found.advice)) == ("warning", True)


def test_missing_home_is_no_finding(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / "nowhere"))
    assert findings(queue, "home folder") == []
    assert not (tmp_path / "nowhere").exists()


def test_commands_that_are_advised_can_be_pasted(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "my home; $(x)"
    odd.mkdir()
    odd.chmod(0o777)
    monkeypatch.setenv("QUEUECTL_HOME", str(odd))
    Path(stop_file()).touch()
    [found] = findings(queue, "home folder")
    assert shlex.split(str(found.advice)) == ["chmod", "700", str(odd)]
    [found] = [found for found in findings(queue, "workers") if found.level == "warning"]
    assert shlex.split(str(found.advice))[:2] == ["rm", stop_file()]


# Jobs


def test_stuck_jobs_are_counted_and_one_is_named(queue: Queue, clock: MovableClock) -> None:
    insert(store_of(queue), "a", "b")
    claim(store_of(queue), lease=10_000)
    register(queue, "email")
    clock.advance(20)
    assert findings(queue, "stuck jobs")[0].level == "ok"
    clock.advance(300)
    [found] = findings(queue, "stuck jobs")
    assert found.level == "warning"
    assert found.text.startswith("2, such as a (type email)")
    assert "queuectl show a" in str(found.advice)


def test_every_pause_is_a_warning_that_says_how_to_end_it(queue: Queue) -> None:
    queue.pause()
    queue.pause(type="email")
    found = findings(queue, "pauses")
    assert [(pause.level, pause.text, pause.advice) for pause in found] == [
        ("warning", "the whole queue is paused", "queuectl resume"),
        ("warning", "email is paused", "queuectl resume --type email"),
    ]


def test_endless_history_is_a_warning_unless_it_is_kept_for_a_time(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_MUCH_HISTORY", 1)
    for id in "ab":
        insert(store_of(queue), id)
        store_of(queue).cancel_job(id)
    [found] = findings(queue, "history")
    assert (found.level, "2 finished jobs" in found.text) == ("warning", True)
    queue.set_config("retention_completed", "30d")
    assert findings(queue, "history") == []


# The database's own findings are part of it


def test_little_space_is_found(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: room(500))
    assert wrong(queue) == [("warning", "free space")]
    monkeypatch.setattr(os, "statvfs", lambda path: room(50))
    assert wrong(queue) == [("problem", "free space")]


def test_large_wal_is_found(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(queue)
    assert isinstance(store, SqliteStore)
    monkeypatch.setattr(store.database.file, "wal_bytes", lambda: 100 * health.MIB)
    assert wrong(queue) == [("warning", "WAL")]


def test_file_that_everybody_can_read_is_found(queue: Queue, home: Path) -> None:
    insert(store_of(queue), "a")
    store_of(queue).cancel_job("a")
    home.chmod(0o755)
    (home / "queue.db").chmod(0o644)
    assert wrong(queue) == [("warning", "permissions")]
