"""queuectl status, report, doctor and worker list: the queue as a whole."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from tests.conformance.steps import finish, run
from tests.support import both_engines
from tests.surfaces.support import Cli, Ran, queuectl, start_queuectl

STATES = ["scheduled", "pending", "processing", "completed", "failed", "cancelled"]

QUESTIONS = [
    "What work is outstanding right now?",
    "What failed and why?",
    "Which errors are most common?",
    "Is anything stuck?",
    "How long do jobs take?",
    "Are there duplicate jobs?",
    "What ran in the last hour?",
]


@pytest.fixture
def busy(jobs: Queue, start_worker: Callable[..., Any]) -> Iterator[Queue]:
    """A queue whose worker runs the job `running`, of type slow, until the test ends."""
    started, go_on = threading.Event(), threading.Event()

    def slow(payload: object) -> None:
        started.set()
        go_on.wait(30)

    jobs.register("slow", slow)
    jobs.enqueue("slow", {}, id="running")
    start_worker(types=["slow"], concurrency=4)
    assert started.wait(30)
    try:
        yield jobs
    finally:
        go_on.set()


def sections(ran: Ran) -> dict[str, list[list[str]]]:
    """The answers of a report, by question."""
    assert ran.code == 0, ran
    found: dict[str, list[list[str]]] = {}
    for part in ran.out.strip("\n").split("\n\n"):
        question, *rows = part.split("\n")
        found[question] = [row.split("\t") for row in rows]
    return found


# status


def test_status_of_an_empty_queue_is_all_zeros(cli: Cli) -> None:
    ran = cli("status")
    assert (ran.code, ran.err) == (0, "")
    assert ran.rows == [*([state, "0"] for state in STATES), ["workers", "0"]]


def test_status_counts_by_state_and_type(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {})
    jobs.enqueue("bad", {}, max_attempts=1)
    assert jobs.drain() == 2
    jobs.enqueue("ok", {})
    jobs.enqueue("ok", {}, delay=3600)
    jobs.cancel(jobs.enqueue("bad", {}).id)
    ran = cli("status")
    counts = {row[0]: row[1] for row in ran.rows if len(row) == 2}
    assert [counts[state] for state in STATES] == ["1", "1", "0", "1", "1", "1"]
    types = {row[1]: row[2:] for row in ran.rows if row[0] == "type"}
    assert types["ok"] == [
        "scheduled 1",
        "pending 1",
        "processing 0",
        "completed 1",
        "failed 0",
        "cancelled 0",
    ]
    assert types["bad"][-2:] == ["failed 1", "cancelled 1"]


@both_engines
def test_status_as_json_is_the_stats_of_the_api(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {})
    jobs.enqueue("bad", {}, max_attempts=1)
    assert jobs.drain() == 2
    jobs.enqueue("ok", {})
    answer = cli("status", "--json").json
    assert answer.keys() >= {*STATES, "byType", "workers"}
    assert [answer[state] for state in STATES] == [0, 1, 0, 1, 1, 0]
    assert answer["byType"].keys() == {"ok", "bad"}
    for counts in answer["byType"].values():
        assert list(counts) == STATES
    assert answer["byType"]["ok"]["completed"] == 1
    assert answer["workers"] == 0


@both_engines
def test_status_says_what_no_worker_handles(cli: Cli, busy: Queue) -> None:
    busy.enqueue("foreign", {})
    busy.enqueue("foreign", {}, delay=3600)
    ran = cli("status")
    assert ["workers", "1"] in ran.rows
    assert "no worker for foreign (2 jobs waiting)" in ran.lines
    assert cli("status", "--json").json["withoutWorker"] == {"foreign": 2}


def test_status_says_that_jobs_wait_and_no_worker_runs(cli: Cli, queue: Queue) -> None:
    queue.enqueue("ok", {})
    assert "no worker is running (1 job waiting)" in cli("status").lines


def test_status_says_what_is_paused(cli: Cli, queue: Queue) -> None:
    queue.pause()
    queue.pause(type="crawl")
    ran = cli("status")
    assert "the whole queue is paused" in ran.lines
    assert "type crawl is paused" in ran.lines
    answer = cli("status", "--json").json
    assert (answer["paused"], answer["pausedTypes"]) == (True, ["crawl"])


def test_status_says_what_may_be_stuck(cli: Cli, busy: Queue) -> None:
    assert cli("status", "--json").json["stuck"] == []
    busy.set_config("stuck_seconds", "1ms")
    answer = cli("status", "--json").json
    assert [job["id"] for job in answer["stuck"]] == ["running"]
    (line,) = [line for line in cli("status").lines if "stuck" in line]
    assert line.startswith("running (slow) has been running for")


@both_engines
def test_status_says_the_oldest_waiting_job(cli: Cli, queue: Queue) -> None:
    assert cli("status", "--json").json["oldestWaiting"] is None
    queue.enqueue("ok", {}, id="later", delay=3600)
    queue.enqueue("ok", {}, id="old")
    queue.enqueue("ok", {}, id="new", priority=5)
    assert cli("status", "--json").json["oldestWaiting"]["id"] == "old"
    assert any("oldest waiting job: old (ok), waiting for" in line for line in cli("status").lines)


def test_status_counts_retrying_jobs(cli: Cli, jobs: Queue) -> None:
    jobs.set_config("backoff_factor", 3600)
    jobs.enqueue("bad", {})
    assert jobs.drain() == 1
    answer = cli("status", "--json").json
    assert (answer["scheduled"], answer["retrying"]) == (1, 1)


@pytest.mark.process
def test_watched_status_as_json_is_an_object_a_line(home: Path, queue: Queue) -> None:
    queue.enqueue("ok", {})
    program = start_queuectl(home, "status", "--watch", "--json")
    try:
        assert program.stdout is not None
        for _ in range(2):
            assert json.loads(program.stdout.readline())["pending"] == 1
        assert program.poll() is None
    finally:
        program.kill()
        program.communicate(timeout=30)


# report


def test_report_asks_every_question(cli: Cli) -> None:
    found = sections(cli("report"))
    assert [question.partition(" (")[0] for question in found] == QUESTIONS
    assert all(rows for rows in found.values())


def test_report_answers_what_is_outstanding(cli: Cli, busy: Queue) -> None:
    busy.enqueue("ok", {})
    busy.enqueue("ok", {})
    busy.enqueue("ok", {}, delay=3600)
    rows = sections(cli("report"))[QUESTIONS[0]]
    assert sorted(rows) == [["ok", "1", "2", "0"], ["slow", "0", "0", "1"]]
    assert cli("report", "--json").json["outstanding"] == {
        "ok": {"scheduled": 1, "pending": 2, "processing": 0},
        "slow": {"scheduled": 0, "pending": 0, "processing": 1},
    }


def test_finished_jobs_are_not_outstanding(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {})
    assert jobs.drain() == 1
    assert cli("report", "--json").json["outstanding"] == {}


@both_engines
def test_report_answers_what_failed_and_why(cli: Cli, jobs: Queue) -> None:
    for name in ("first", "second"):
        jobs.enqueue("bad", {}, id=name, max_attempts=1)
    assert jobs.drain() == 2
    rows = sections(cli("report"))["What failed and why? (2 in total)"]
    assert {row[0] for row in rows} == {"first", "second"}
    assert all("it broke" in row[3] for row in rows)
    answer = cli("report", "--json").json["failed"]
    assert answer["total"] == 2
    assert {task["id"] for task in answer["newest"]} == {"first", "second"}
    assert all("it broke" in task["error"] for task in answer["newest"])


@both_engines
def test_report_answers_which_errors_come_most_often(cli: Cli, jobs: Queue) -> None:
    jobs.register("slow", lambda payload: raise_it(f"no answer after {payload['seconds']} s"))
    assert sections(cli("report"))[QUESTIONS[2]] == [["none"]]
    jobs.enqueue("bad", {}, max_attempts=1)
    for seconds in (30, 45.5):
        jobs.enqueue("slow", {"seconds": seconds}, max_attempts=1)
    assert jobs.drain() == 3
    rows = sections(cli("report"))[QUESTIONS[2]]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("2", "slow", "RuntimeError: no answer after # s"),
        ("1", "bad", "RuntimeError: it broke"),
    ]
    groups = cli("report", "--json").json["failed"]["groups"]
    assert [(group["jobs"], group["type"], group["error"]) for group in groups] == [
        (int(row[0]), row[1], row[3]) for row in rows
    ]
    assert groups[0].keys() == {"type", "error", "jobs", "lastAt"}
    moment = datetime.fromisoformat(groups[0]["lastAt"])
    assert f"{moment:%Y-%m-%d %H:%M:%S}" == rows[0][2]


def raise_it(message: str) -> None:
    raise RuntimeError(message)


def test_report_answers_whether_anything_is_stuck(cli: Cli, busy: Queue) -> None:
    assert sections(cli("report"))[QUESTIONS[3]] == [["nothing"]]
    busy.set_config("stuck_seconds", "1ms", type="slow")
    (row,) = sections(cli("report"))[QUESTIONS[3]]
    (worker,) = busy.workers()
    assert (row[0], row[1], row[3]) == ("running", "slow", worker.id)
    assert [job["id"] for job in cli("report", "--json").json["stuck"]] == ["running"]


@both_engines
def test_report_answers_how_long_jobs_take(cli: Cli, jobs: Queue) -> None:
    for _ in range(3):
        jobs.enqueue("ok", {})
    jobs.enqueue("bad", {}, max_attempts=1)
    assert jobs.drain() == 4
    rows = {row[0]: row for row in sections(cli("report"))[QUESTIONS[4]]}
    assert rows["ok"][1] == "3"
    answer = cli("report", "--json").json["durations"]
    assert answer["ok"].keys() == {"count", "mean", "p50", "p95", "meanWait"}
    assert answer["ok"]["count"] == 3
    assert 0 <= answer["ok"]["mean"] < 10
    assert answer["ok"]["p50"] <= answer["ok"]["p95"]


def test_report_answers_whether_there_are_duplicates(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {}, key="once")
    jobs.enqueue("ok", {}, key="twice")
    assert jobs.drain() == 2
    jobs.enqueue("ok", {}, key="twice")
    assert sections(cli("report"))[QUESTIONS[5]] == [["ok", "twice", "2"]]
    assert cli("report", "--json").json["duplicates"] == [{"type": "ok", "key": "twice", "jobs": 2}]


def test_report_answers_what_ran_in_the_last_hour(cli: Cli, jobs: Queue, home: Path) -> None:
    jobs.enqueue("ok", {}, id="new")
    jobs.enqueue("ok", {}, id="old")
    jobs.enqueue("bad", {}, max_attempts=1)
    assert jobs.drain() == 3
    jobs.cancel(jobs.enqueue("ok", {}).id)
    with sqlite3.connect(home / "queue.db") as connection:
        connection.execute("UPDATE holdfast_jobs SET finished_at = finished_at - 3601000000 WHERE id = 'old'")
    connection.close()
    rows = sections(cli("report"))[QUESTIONS[6]]
    assert sorted(rows) == [["bad", "0", "1", "0"], ["ok", "1", "0", "1"]]
    answer = cli("report", "--json").json["lastHour"]
    assert answer["ok"]["completed"] == 1
    assert answer["bad"]["failed"] == 1


def test_report_as_json_is_one_object(cli: Cli) -> None:
    answer = cli("report", "--json").json
    assert answer.keys() == {"outstanding", "failed", "stuck", "durations", "duplicates", "lastHour"}


# worker list


def test_worker_list_without_workers_is_empty(cli: Cli) -> None:
    ran = cli("worker", "list")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert cli("worker", "list", "--json").json == []


def test_worker_list_says_who_runs_what(cli: Cli, busy: Queue) -> None:
    (record,) = busy.workers()
    (row,) = cli("worker", "list").rows
    assert row[:4] == [record.id, str(os.getpid()), record.host, "running"]
    assert row[6:] == ["1/4", "running"]


@both_engines
def test_worker_list_as_json_is_a_list(cli: Cli, busy: Queue) -> None:
    (record,) = busy.workers()
    (worker,) = cli("worker", "list", "--json").json
    assert worker.keys() >= {
        "id",
        "pid",
        "host",
        "state",
        "concurrency",
        "types",
        "startedAt",
        "heartbeatAt",
        "heartbeatAge",
        "running",
    }
    assert (worker["id"], worker["pid"], worker["host"]) == (record.id, os.getpid(), record.host)
    assert (worker["concurrency"], worker["types"]) == (4, ["slow"])
    assert worker["startedAt"].endswith("Z")
    assert 0 <= worker["heartbeatAge"] < 30
    (job,) = worker["running"]
    assert (job["id"], job["type"], job["attempt"], job["cancelRequested"]) == ("running", "slow", 1, False)


def test_stopped_worker_is_no_longer_listed(cli: Cli, jobs: Queue, start_worker: Callable[..., Any]) -> None:
    worker = start_worker()
    assert len(cli("worker", "list").rows) == 1
    worker.stop()
    assert cli("worker", "list").out == ""


# doctor


def findings(ran: Ran) -> dict[str, dict[str, Any]]:
    """What doctor found, by check; all of them must have one name each."""
    answer = ran.json
    assert answer.keys() == {"healthy", "findings"}
    for finding in answer["findings"]:
        assert finding.keys() == {"level", "check", "text", "advice"}
        assert finding["level"] in ("ok", "warning", "problem")
        assert finding["advice"] or finding["level"] == "ok", f"no advice for {finding}"
    return {finding["check"]: finding for finding in answer["findings"]}


def test_doctor_finds_a_new_queue_in_order(cli: Cli) -> None:
    ran = cli("doctor")
    assert (ran.code, ran.err) == (0, ""), ran
    assert {row[0] for row in ran.rows} <= {"ok", "warning"}
    assert cli("doctor", "--json").json["healthy"] is True


def test_doctor_checks_the_database_its_place_the_clock_workers_and_jobs(cli: Cli) -> None:
    found = findings(cli("doctor", "--json"))
    assert found.keys() >= {
        "SQLite",
        "durability",
        "file system",
        "free space",
        "WAL",
        "integrity",
        "home folder",
        "clock",
        "workers",
        "stuck jobs",
    }
    assert sqlite3.sqlite_version in found["SQLite"]["text"]


def test_doctor_calls_waiting_jobs_without_a_worker_a_problem(cli: Cli, queue: Queue) -> None:
    queue.enqueue("ok", {})
    ran = cli("doctor")
    assert ran.code == 1
    (row,) = [row for row in ran.rows if row[0] == "problem"]
    assert (row[1], row[3]) == ("workers", "queuectl worker start")
    answer = cli("doctor", "--json")
    assert (answer.code, answer.json["healthy"]) == (1, False)


@pytest.mark.process
@pytest.mark.parametrize(("engine", "level"), [("{}", "warning"), ("configure({})", "ok")])
def test_doctor_checks_the_engines_of_an_application(
    home: Path, queue: Queue, tmp_path: Path, engine: str, level: str
) -> None:
    made = engine.format(f"create_engine({'sqlite:///' + store_of(queue).url.removeprefix('sqlite:///')!r})")
    (tmp_path / "shop.py").write_text(
        "from sqlalchemy import create_engine\n"
        "from holdfast import Queue\n"
        "from holdfast.sqlalchemy import configure\n"
        f"queue, engine = Queue(), {made}\n"
    )
    assert "SQLAlchemy" not in findings(queuectl(home, "doctor", "--json"))
    ran = queuectl(home, "doctor", "--app", "shop:queue", "--json", cwd=tmp_path)
    assert findings(ran)["SQLAlchemy"]["level"] == level


def test_doctor_warns_of_types_that_no_worker_handles(cli: Cli, busy: Queue) -> None:
    busy.enqueue("foreign", {})
    ran = cli("doctor", "--json")
    assert ran.code == 0
    found = findings(ran)
    assert (found["types"]["level"], found["workers"]["level"]) == ("warning", "ok")
    assert "foreign" in found["types"]["text"]


@both_engines
def test_doctor_warns_of_stuck_jobs_and_says_what_to_do(cli: Cli, busy: Queue) -> None:
    busy.set_config("stuck_seconds", "1ms")
    found = findings(cli("doctor", "--json"))["stuck jobs"]
    assert (found["level"], "running" in found["text"]) == ("warning", True)
    assert "queuectl" in found["advice"]


def test_doctor_warns_of_pauses(cli: Cli, queue: Queue) -> None:
    queue.pause(type="crawl")
    found = findings(cli("doctor", "--json"))["pauses"]
    assert (found["level"], found["advice"]) == ("warning", "queuectl resume --type crawl")


def test_doctor_calls_a_home_that_others_can_write_a_problem(cli: Cli, home: Path) -> None:
    home.chmod(0o777)
    ran = cli("doctor", "--json")
    assert ran.code == 1
    found = findings(ran)["home folder"]
    assert (found["level"], found["advice"]) == ("problem", f"chmod 700 {home}")


def test_doctor_warns_of_a_database_that_everybody_can_read(cli: Cli, queue: Queue, home: Path) -> None:
    queue.open()
    (home / "queue.db").chmod(0o644)
    home.chmod(0o755)
    found = findings(cli("doctor", "--json"))["permissions"]
    assert found["level"] == "warning"
    assert str(home / "queue.db") in found["advice"]


def test_doctor_warns_of_the_stop_file(cli: Cli, home: Path) -> None:
    (home / ".stop_workers").touch()
    ran = cli("doctor", "--json")
    texts = [finding["text"] for finding in ran.json["findings"] if finding["level"] == "warning"]
    assert any(".stop_workers" in text for text in texts)


def test_doctor_finds_times_from_the_future(cli: Cli, queue: Queue, home: Path) -> None:
    queue.enqueue("ok", {}, id="job1")
    queue.cancel("job1")
    with sqlite3.connect(home / "queue.db") as connection:
        connection.execute("UPDATE holdfast_jobs SET created_at = created_at + 3600000000")
    connection.close()
    ran = cli("doctor", "--json")
    assert ran.code == 1
    assert findings(ran)["clock"]["level"] == "problem"


def test_doctor_reports_a_database_it_can_not_open(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 100)
    ran = cli("doctor", "--database", f"sqlite:///{path}")
    assert (ran.code, ran.err) == (1, "")
    assert [row[:2] for row in ran.rows] == [["problem", "database"]]
    assert path.read_text() == "Dear Sir or Madam, " * 100


def test_instants_of_status_and_workers_are_utc(cli: Cli, busy: Queue) -> None:
    busy.enqueue("ok", {})
    since = datetime.fromisoformat(cli("status", "--json").json["oldestWaiting"]["since"])
    assert since.utcoffset() is not None
    assert abs((datetime.now(UTC) - since).total_seconds()) < 60


def test_report_counts_jobs_whose_worker_died_before_it_could_tell_of_them(cli: Cli, queue: Queue) -> None:
    for number in range(5):
        finish(store_of(queue), run(store_of(queue), f"j{number}"))
    lines = cli("report").lines
    assert lines[lines.index("How long do jobs take?") + 1].split() == ["email", "5", "0"]
