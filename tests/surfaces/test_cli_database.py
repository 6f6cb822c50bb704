"""queuectl migrate and backup, and which database a command takes."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from tests.support import both_engines
from tests.surfaces.support import Cli, queuectl

# migrate


def test_migrate_makes_the_tables(cli: Cli, home: Path, url: str) -> None:
    ran = cli("migrate")
    assert (ran.code, ran.out, ran.err) == (0, f"{url} is up to date\n", "")
    with sqlite3.connect(home / "queue.db") as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert "holdfast_jobs" in names


@both_engines
def test_migrate_twice_changes_nothing(cli: Cli, queue: Queue) -> None:
    cli("migrate")
    queue.enqueue("ok", {}, id="job1")
    assert cli("migrate").code == 0
    assert [job.id for job in queue.jobs()] == ["job1"]


def test_migrate_as_json(cli: Cli, url: str) -> None:
    assert cli("migrate", "--json").json == {"database": url, "upToDate": True}


def test_newer_schema_is_refused_with_what_to_do(cli: Cli, home: Path) -> None:
    cli("migrate")
    with sqlite3.connect(home / "queue.db") as connection:
        (name,) = [
            row[0]
            for row in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'holdfast_%schema%'"
            )
        ]
        connection.execute(f"UPDATE {name} SET version = version + 1000")
    connection.close()
    for words in (
        ("migrate",),
        ("list",),
        ("enqueue", "--command", "true"),
        ("backup", str(home / "copy.db")),
    ):
        ran = cli(*words)
        assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1), ran
        assert "newer" in ran.err


def test_database_of_another_application_keeps_its_tables(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
        connection.execute("INSERT INTO users VALUES ('ada')")
    connection.close()
    assert cli("--database", f"sqlite:///{path}", "migrate").code == 0
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM users").fetchall() == [("ada",)]
    connection.close()


# backup


def test_backup_opens_as_a_queue(cli: Cli, jobs: Queue, tmp_path: Path) -> None:
    jobs.enqueue("ok", {}, id="done")
    assert jobs.drain() == 1
    jobs.enqueue("echo", {"n": 1}, id="waiting")
    jobs.set_config("max_attempts", 9)
    copy = tmp_path / "copy.db"
    ran = cli("backup", str(copy))
    assert (ran.code, ran.out, ran.err) == (0, f"{copy}\n", "")
    jobs.enqueue("ok", {}, id="later")
    with Queue(f"sqlite:///{copy}") as restored:
        assert {job.id: job.status.value for job in restored.jobs()} == {
            "done": "completed",
            "waiting": "pending",
        }
        assert restored.config()["max_attempts"] == 9
        restored.register("echo", lambda payload: payload)
        assert restored.drain() == 1
        assert restored.wait("waiting", timeout=60).result == {"n": 1}
    waiting = jobs.get("waiting")
    assert waiting is not None
    assert waiting.status == "pending"


def test_backup_is_one_whole_file_for_its_owner_alone(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    queue.enqueue("ok", {})
    folder = tmp_path / "backups"
    folder.mkdir()
    assert cli("backup", str(folder / "copy.db")).code == 0
    assert [path.name for path in folder.iterdir()] == ["copy.db"]
    assert stat.S_IMODE((folder / "copy.db").stat().st_mode) == 0o600
    connection = sqlite3.connect(folder / "copy.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_backup_while_a_worker_runs(
    cli: Cli, jobs: Queue, tmp_path: Path, start_worker: Callable[..., Any]
) -> None:
    start_worker()
    for number in range(200):
        jobs.enqueue("ok", {}, id=f"j{number}")
    assert cli("backup", str(tmp_path / "copy.db")).code == 0
    with Queue(f"sqlite:///{tmp_path / 'copy.db'}") as restored:
        assert sum(restored.stats()[state] for state in ("pending", "processing", "completed")) == 200


def test_backup_refuses_a_file_that_exists(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    queue.enqueue("ok", {})
    path = tmp_path / "precious.txt"
    path.write_text("precious")
    ran = cli("backup", str(path))
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert str(path) in ran.err
    assert path.read_text() == "precious"


def test_backup_refuses_the_database_itself(cli: Cli, queue: Queue, home: Path) -> None:
    queue.enqueue("ok", {}, id="job1")
    assert cli("backup", str(home / "queue.db")).code == 1
    assert [job.id for job in queue.jobs()] == ["job1"]


def test_backup_into_a_folder_that_is_not_there_is_one_line(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    queue.open()
    ran = cli("backup", str(tmp_path / "nowhere" / "copy.db"))
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)


def test_backup_as_json(cli: Cli, queue: Queue, url: str, tmp_path: Path) -> None:
    queue.open()
    copy = str(tmp_path / "copy.db")
    assert cli("backup", copy, "--json").json == {"database": url, "file": copy}


# Which database.


def ids_in(path: Path) -> list[str]:
    with Queue(f"sqlite:///{path}") as queue:
        return [job.id for job in queue.jobs()]


def enqueue(cli: Cli, *words: str) -> None:
    ran = cli("enqueue", "--command", "true", "--id", "job1", *words)
    assert ran.code == 0, ran


def test_default_is_the_queue_in_the_home(cli: Cli, home: Path) -> None:
    enqueue(cli)
    assert ids_in(home / "queue.db") == ["job1"]


def test_environment_beats_the_default(
    bare_cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUECTL_DATABASE_URL", f"sqlite:///{tmp_path / 'environment.db'}")
    enqueue(bare_cli)
    assert ids_in(tmp_path / "environment.db") == ["job1"]
    assert not (home / "queue.db").exists()


def test_flag_beats_the_environment(
    bare_cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUECTL_DATABASE_URL", f"sqlite:///{tmp_path / 'environment.db'}")
    enqueue(bare_cli, "--database", f"sqlite:///{tmp_path / 'flag.db'}")
    assert ids_in(tmp_path / "flag.db") == ["job1"]
    assert not (home / "queue.db").exists()
    assert not (tmp_path / "environment.db").exists()


def test_flag_may_stand_before_and_after_the_command(bare_cli: Cli, home: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'flag.db'}"
    enqueue(bare_cli, "--database", url)
    for words in (
        ("--database", url, "list"),
        (f"--database={url}", "list"),
        ("list", "--database", url),
        ("list", f"--database={url}"),
        ("--database", url, "dlq", "list"),
        ("dlq", "list", "--database", url),
        ("show", "--database", url, "job1"),
        ("show", "job1", "--database", url),
        ("--database", "sqlite:////nowhere/at/all.db", "list", "--database", url),
    ):
        ran = bare_cli(*words)
        assert ran.code == 0, (words, ran)
        assert ran.out == "" if "dlq" in words else "job1" in ran.out, words
    assert not (home / "queue.db").exists()


def test_flag_without_a_value_is_wrong_usage(cli: Cli) -> None:
    for words in (("--database",), ("list", "--database")):
        ran = cli(*words)
        assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)


@pytest.mark.process
def test_real_program_takes_home_environment_and_flag(home: Path, tmp_path: Path) -> None:
    words = ("enqueue", "--command", "true", "--id", "job1")
    other = {"QUEUECTL_DATABASE_URL": f"sqlite:///{tmp_path / 'environment.db'}"}
    assert queuectl(home, *words).code == 0
    assert queuectl(home, *words, env=other).code == 0
    flag = ("--database", f"sqlite:///{tmp_path / 'flag.db'}")
    assert queuectl(home, *flag, *words, env=other).code == 0
    for path in (home / "queue.db", tmp_path / "environment.db", tmp_path / "flag.db"):
        assert ids_in(path) == ["job1"]


@pytest.mark.process
def test_home_that_is_not_there_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "home"
    assert queuectl(home, "enqueue", "--command", "true", "--id", "job1").code == 0
    assert ids_in(home / "queue.db") == ["job1"]
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.process
def test_home_is_in_the_users_folder_by_default(tmp_path: Path) -> None:
    environment = {"QUEUECTL_HOME": None, "HOME": str(tmp_path)}
    assert queuectl("unused", "enqueue", "--command", "true", "--id", "job1", env=environment).code == 0
    assert ids_in(tmp_path / ".queuectl" / "queue.db") == ["job1"]
