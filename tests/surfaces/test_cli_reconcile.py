"""queuectl reconcile: what it prints, how it ends, and that nothing it shows can do harm."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Job, Queue
from holdfast.jobs import install
from holdfast.store.open import store_of
from tests.support import wait_until
from tests.surfaces.support import Cli, environment, on_terminal, queuectl, terminal

APP = """
from holdfast import Job, Queue, Reconcile

queue = Queue()

def arrived(job: Job) -> str | None:
    if job.payload["to"] == "nobody":
        raise OSError("no route to host")
    return None if job.payload["to"] == "ada" else f"{job.payload['to']} has no mail"

@queue.job(reconcile=arrived)
def send(to: str) -> None: ...

@queue.job(reconcile=Reconcile(arrived, subject=lambda job: job.payload["to"], on_start=False))
def move(to: str) -> None: ...
"""

SLOW_APP = """
import os, threading
from pathlib import Path
from holdfast import Job, Queue

queue = Queue()

def check(job: Job) -> None:
    Path(os.environ["ASKED"]).touch()
    threading.Event().wait(60)

@queue.job(reconcile=check)
def slow() -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the file jobs."""
    made = tmp_path / "files"
    made.mkdir()
    monkeypatch.setenv("QUEUECTL_FILE_ROOTS", str(made))
    return made


@pytest.fixture
def filed(queue: Queue, folder: Path) -> Queue:
    """The home's queue, which can run the built-in types."""
    install(queue)
    return queue


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The folder of an application, shop.py, whose handlers take part."""
    made = tmp_path / "application"
    made.mkdir()
    (made / "shop.py").write_text(APP)
    return made


def completed(queue: Queue, type: str, payload: dict[str, Any]) -> Job:
    id = queue.enqueue(type, payload).id
    queue.drain()
    job = queue.get(id)
    assert job is not None
    assert job.status == "completed", job
    return job


def write(queue: Queue, path: Path, content: str = "kept") -> Job:
    return completed(queue, "create_file", {"path": str(path), "content": content, "overwrite": True})


def complete_by_hand(queue: Queue, type: str, payload: dict[str, Any]) -> str:
    """A completed job of an application's type, which is not loaded here."""
    id = queue.enqueue(type, payload).id
    with closing(sqlite3.connect(queue.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute(
            "UPDATE holdfast_jobs SET status = 'completed', attempts = 1, finished_at = created_at + 1"
            " WHERE id = ?",
            (id,),
        )
    return id


def at(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


# How it ends, and what it prints.


def test_a_queue_without_such_jobs_has_nothing_to_check(cli: Cli, queue: Queue) -> None:
    ran = cli("reconcile")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "nothing to check: no completed jobs of the types"
        " claude_extraction, create_file, delete_file, sync_aws\n"
    )


def test_a_world_in_order_is_exit_code_0(cli: Cli, filed: Queue, folder: Path) -> None:
    first = write(filed, folder / "a")
    write(filed, folder / "b")
    completed(filed, "delete_file", {"path": str(folder / "b")})
    ran = cli("reconcile")
    assert (ran.code, ran.err) == (0, "")
    deleted = filed.jobs(type="delete_file")[0]
    assert ran.lines == [
        f"create_file: 2 completed jobs since {at(first.finished_at)}",
        f"delete_file: 1 completed job since {at(deleted.finished_at)}",
        "2 effects checked: 0 differ, 0 could not be checked",
    ]


def test_what_differs_is_exit_code_1_and_a_line_with_tabs(cli: Cli, filed: Queue, folder: Path) -> None:
    changed = write(filed, folder / "a")
    missing = write(filed, folder / "b")
    (folder / "a").write_text("other")
    (folder / "b").unlink()
    ran = cli("reconcile")
    assert (ran.code, ran.err) == (1, "")
    assert ran.rows[:2] == [
        [
            "create_file",
            missing.id,
            at(missing.finished_at),
            "the file is missing",
            f"file {folder / 'b'}",
        ],
        [
            "create_file",
            changed.id,
            at(changed.finished_at),
            "the file's content has changed",
            f"file {folder / 'a'}",
        ],
    ]
    assert ran.lines[-1] == "2 effects checked: 2 differ, 0 could not be checked"


def test_what_could_not_be_checked_is_exit_code_1(cli: Cli, filed: Queue, folder: Path) -> None:
    job = write(filed, folder / "a")
    (folder / "a").unlink()
    loop = folder / "loop"
    loop.symlink_to(loop)
    with closing(sqlite3.connect(filed.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("UPDATE holdfast_jobs SET result = '{}'")
    ran = cli("reconcile")
    assert (ran.code, ran.err) == (1, "")
    assert ran.rows[0][:2] == ["create_file", job.id]
    assert ran.rows[0][3].startswith("could not be checked: ")
    assert ran.lines[-1] == "0 effects checked: 0 differ, 1 could not be checked"


def test_one_is_told_as_one(cli: Cli, filed: Queue, folder: Path) -> None:
    write(filed, folder / "a")
    (folder / "a").unlink()
    assert cli("reconcile").lines[-1] == "1 effect checked: 1 differs, 0 could not be checked"


def test_what_is_unsettled_is_told(cli: Cli, filed: Queue, folder: Path) -> None:
    write(filed, folder / "a")
    (folder / "a").unlink()
    filed.enqueue("delete_file", {"path": str(folder / "a")}, id="at-work")
    with closing(sqlite3.connect(filed.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("UPDATE holdfast_jobs SET attempts = 1 WHERE id = 'at-work'")
    ran = cli("reconcile")
    assert ran.code == 0
    assert ran.lines[-1] == (
        "1 effect checked: 0 differ, 0 could not be checked, 1 unsettled because a job is still running"
    )


def test_what_is_no_longer_kept_is_told(cli: Cli, filed: Queue, folder: Path) -> None:
    write(filed, folder / "a")
    assert filed.cleanup(0) == 1
    ran = cli("reconcile")
    assert (ran.code, ran.lines[0]) == (0, "create_file: 0 completed jobs; 1 no longer stored")
    kept = write(filed, folder / "b")
    assert cli("reconcile").lines[0] == (
        f"create_file: 1 completed job since {at(kept.finished_at)}; 1 no longer stored"
    )


def test_a_thousand_are_listed_and_the_others_counted(cli: Cli, filed: Queue, folder: Path) -> None:
    write(filed, folder / "a")
    with closing(sqlite3.connect(filed.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1002)"
            " INSERT INTO holdfast_jobs (id, type, status, attempts, max_attempts, version, due_at,"
            " created_at, updated_at, finished_at, token, payload, result) SELECT 'copy-' || n, type, status,"
            " attempts, max_attempts, version, due_at, created_at, updated_at, finished_at, 'token', payload,"
            " json_object('path', ? || n, 'sha256', '') FROM holdfast_jobs, numbers",
            (f"{folder}/gone-",),
        )
    ran = cli("reconcile")
    assert ran.code == 1
    assert [len(row) for row in ran.rows[:1000]] == [5] * 1000
    assert ran.lines[1000] == "and 2 more"
    assert ran.lines[-1] == "1003 effects checked: 1002 differ, 0 could not be checked"
    answer = cli("reconcile", "--json").json
    assert (answer["differing"], len(answer["discrepancies"])) == (1002, 1000)


# Which types, and whose.


def test_only_the_types_asked_for_are_checked(cli: Cli, filed: Queue, folder: Path) -> None:
    write(filed, folder / "a")
    completed(filed, "delete_file", {"path": str(folder / "b")})
    (folder / "a").unlink()
    (folder / "b").touch()
    alone = cli("reconcile", "--type", "delete_file")
    assert [row[0] for row in alone.rows[:-3]] == ["delete_file"]
    assert alone.rows[-2] == ["skipped types: create_file"]
    both = cli("reconcile", "--type", "delete_file", "--type", "create_file")
    assert [row[0] for row in both.rows[:-3]] == ["delete_file", "create_file"]
    assert cli("reconcile", "--type", "claude_extraction").code == 0


@pytest.mark.parametrize("type", ["nonsense", "shell", "", "\x1b[31mred\n", "x" * 10_000])
def test_a_type_that_can_t_be_checked_is_exit_code_2(cli: Cli, filed: Queue, type: str) -> None:
    ran = cli("reconcile", "--type", type)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert "claude_extraction, create_file, delete_file, sync_aws" in ran.err
    assert ran.err.strip().isprintable()
    assert len(ran.err) < 500


@pytest.mark.process
def test_handlers_of_an_application_take_part(home: Path, queue: Queue, app: Path) -> None:
    complete_by_hand(queue, "send", {"to": "ada"})
    lost = complete_by_hand(queue, "send", {"to": "bob"})
    unknown = complete_by_hand(queue, "move", {"to": "nobody"})
    assert queuectl(home, "reconcile", cwd=app).code == 0
    ran = queuectl(home, "reconcile", "--app", "shop:queue", cwd=app)
    assert (ran.code, ran.err) == (1, "")
    assert sorted((row[1], row[3], row[4]) for row in ran.rows if len(row) == 5) == sorted(
        [
            (lost, "bob has no mail", lost),
            (unknown, "could not be checked: OSError: no route to host", "nobody"),
        ]
    )
    only = queuectl(home, "reconcile", "--app", "shop:queue", "--type", "move", cwd=app)
    assert [row[1] for row in only.rows if len(row) == 5] == [unknown]


def test_an_application_that_is_not_there_is_exit_code_2(cli: Cli) -> None:
    ran = cli("reconcile", "--app", "nowhere:queue")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)


def test_another_database_may_be_named(bare_cli: Cli, folder: Path, tmp_path: Path, home: Path) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    with Queue(url) as other:
        install(other)
        write(other, folder / "a")
    (folder / "a").unlink()
    assert bare_cli("reconcile", "--database", url).code == 1
    assert list(home.iterdir()) == []


# JSON.


def test_json_has_camel_case_names_and_instants_in_utc(cli: Cli, filed: Queue, folder: Path) -> None:
    job = write(filed, folder / "a")
    (folder / "a").unlink()
    ran = cli("reconcile", "--json")
    assert (ran.code, ran.err) == (1, "")
    answer = ran.json
    moment = f"{job.finished_at:%Y-%m-%dT%H:%M:%S.%f}Z"
    assert list(answer) == [
        "startedAt",
        "finishedAt",
        "covered",
        "leftOut",
        "jobs",
        "checked",
        "superseded",
        "unsettled",
        "differing",
        "unchecked",
        "discrepancies",
    ]
    for name in ("startedAt", "finishedAt"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", answer[name])
    assert answer["covered"] == [{"type": "create_file", "completed": 1, "since": moment, "removed": 0}]
    assert answer["discrepancies"] == [
        {
            "jobId": job.id,
            "type": "create_file",
            "subject": f"file {folder / 'a'}",
            "problem": "the file is missing",
            "completedAt": moment,
            "isChecked": True,
        }
    ]


def test_json_of_a_world_in_order(cli: Cli, filed: Queue, folder: Path) -> None:
    write(filed, folder / "a")
    ran = cli("reconcile", "--json")
    assert (ran.code, ran.err, ran.json["discrepancies"]) == (0, "", [])


# On a terminal, and hostile names.


@pytest.mark.process
def test_a_terminal_shows_a_bar_and_then_a_table(home: Path, filed: Queue, folder: Path) -> None:
    jobs = [write(filed, folder / f"{number}") for number in range(3)]
    (folder / "1").unlink()
    ran = on_terminal(home, "reconcile", width=200, env={"QUEUECTL_FILE_ROOTS": str(folder)})
    assert ran.code == 1
    assert "checking" in ran.text
    assert "3/3" in ran.text
    assert "\x1b[2K" in ran.out  # the bar is taken away
    heading = next(line for line in ran.text.splitlines() if "PROBLEM" in line)
    assert re.findall(r"TYPE|JOB|COMPLETED|PROBLEM|SUBJECT", heading) == [
        "TYPE",
        "JOB",
        "COMPLETED",
        "PROBLEM",
        "SUBJECT",
    ]
    assert re.search(rf"create_file +{jobs[1].id} +.* +the file is missing +file {folder}/1", ran.text)
    assert ran.text.rstrip().endswith("3 effects checked: 1 differs, 0 could not be checked")


@pytest.mark.process
def test_json_on_a_terminal_is_one_document_after_the_bar(home: Path, filed: Queue, folder: Path) -> None:
    write(filed, folder / "a")
    ran = on_terminal(home, "reconcile", "--json")
    assert ran.code == 0
    assert json.loads(ran.text[ran.text.index("{\n") :])["checked"] == 1


@pytest.mark.process
def test_no_bar_is_shown_elsewhere(home: Path, filed: Queue, folder: Path) -> None:
    write(filed, folder / "a")
    ran = queuectl(home, "reconcile")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.replace("\n", "").isprintable()


HOSTILE = [
    "new\nline",
    "tab\there",
    "\x1b[2J\x1b[31mred",
    "\x07\x08",
    "\u202eright to left",
    "[bold]",
    "é" * 120,
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_shown_harmlessly(cli: Cli, filed: Queue, folder: Path, name: str) -> None:
    job = write(filed, folder / name)
    (folder / name).unlink()
    ran = cli("reconcile")
    assert (ran.code, len(ran.lines)) == (1, 3)
    assert [len(row) for row in ran.rows] == [5, 1, 1]
    assert ran.rows[0][1] == job.id
    assert all(cell.isprintable() for row in ran.rows for cell in row)
    assert cli("reconcile", "--json").json["discrepancies"][0]["subject"] == f"file {folder / name}"


@pytest.mark.process
def test_hostile_names_do_nothing_to_a_terminal(home: Path, filed: Queue, folder: Path) -> None:
    for name in HOSTILE:
        write(filed, folder / name)
        (folder / name).unlink()
    long = folder / "/".join(["x" * 200] * 10)
    write(filed, long)
    os.unlink(long)
    ran = on_terminal(home, "reconcile", width=120)
    assert ran.code == 1
    table = ran.out[ran.out.index("TYPE") :]
    for act in ("\x1b[2J", "\x07", "\x08", "\u202e", "\x1b[31mred"):
        assert act not in table
    assert f"{len(HOSTILE) + 1} effects checked" in ran.text
    assert f"file {long}" in ran.text  # whole: it is there to be copied


@pytest.mark.process
def test_ctrl_c_ends_it_and_keeps_no_report(home: Path, queue: Queue, app: Path) -> None:
    (app / "slow.py").write_text(SLOW_APP)
    complete_by_hand(queue, "slow", {})
    asked = app / "asked"
    words = ("reconcile", "--app", "slow:queue")
    path = os.pathsep.join([str(app), environment(home)["PYTHONPATH"]])
    started = terminal(home, *words, env={"PYTHONPATH": path, "ASKED": str(asked)})
    try:
        wait_until(asked.exists, message="the check has begun")
        started.type("\x03")
        ran = started.finish()
    finally:
        started.close()
    assert ran.code == 130
    assert "Traceback" not in ran.text
    assert store_of(queue).read_reconciliation() is None


def test_help_says_that_nothing_is_repaired(cli: Cli) -> None:
    ran = cli("reconcile", "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "without repairing anything" in " ".join(ran.out.split())
    assert "--type" in ran.out
    assert "--app" in ran.out
