"""queuectl list, show, logs and why: looking at jobs, as lines and as the API's JSON."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Fail, Queue
from holdfast.cli import logs
from holdfast.jobs import install
from tests.support import both_engines, wait_until
from tests.surfaces.support import (
    QUEUECTL,
    Cli,
    Ran,
    environment,
    on_terminal,
    queuectl,
    start_queuectl,
)

ITEM = {
    "id",
    "type",
    "status",
    "priority",
    "attempts",
    "maxAttempts",
    "version",
    "idempotencyKey",
    "keyFor",
    "runAfter",
    "nextRetryAt",
    "timeout",
    "error",
    "progress",
    "group",
    "parentId",
    "cancelRequested",
    "workerId",
    "leaseExpiresAt",
    "createdAt",
    "updatedAt",
    "lastAttemptAt",
    "completedAt",
}
"""The fields of a job in a list of the API; a job in full has payload, result and errors as well."""

STATES = ["scheduled", "pending", "processing", "completed", "failed", "cancelled"]


@pytest.fixture
def every_state(jobs: Queue, start_worker: Callable[..., Any]) -> Iterator[Queue]:
    """A queue with one job in each state, its id the state's name, and one that is retrying."""
    started, go_on = threading.Event(), threading.Event()

    def slow(payload: object) -> None:
        started.set()
        go_on.wait(30)

    jobs.register("slow", slow)
    jobs.set_config("backoff_factor", 3600)
    jobs.enqueue("ok", {}, id="completed")
    jobs.enqueue("bad", {}, id="failed", max_attempts=1)
    jobs.enqueue("bad", {}, id="retrying")
    assert jobs.drain() == 3
    jobs.enqueue("slow", {}, id="processing")
    start_worker(types=["slow"])
    assert started.wait(30)
    jobs.enqueue("ok", {}, id="cancelled")
    jobs.cancel("cancelled")
    jobs.enqueue("ok", {}, id="scheduled", delay=3600)
    jobs.enqueue("ok", {}, id="pending")
    try:
        yield jobs
    finally:
        go_on.set()


def ids(ran: Ran) -> list[str]:
    assert ran.code == 0, ran
    return [row[0] for row in ran.rows]


def status_of(queue: Queue, job_id: str) -> str:
    job = queue.get(job_id)
    assert job is not None
    return job.status.value


# list


def test_list_of_an_empty_queue_is_empty(cli: Cli) -> None:
    ran = cli("list")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    empty = {"tasks": [], "total": 0, "totalIsCapped": False, "limit": 50, "offset": 0, "nextCursor": None}
    assert cli("list", "--json").json == empty


@both_engines
def test_a_cursor_goes_on_where_a_page_ended_though_jobs_came_and_went(cli: Cli, queue: Queue) -> None:
    for number in range(5):
        queue.enqueue("t", {}, id=f"job{number}")
    first = cli("list", "--limit", "2", "--json").json
    assert [task["id"] for task in first["tasks"]] == ["job4", "job3"]
    queue.enqueue("t", {}, id="job5")
    queue.cancel("job3")
    queue.delete("job3")
    second = cli("list", "--limit", "2", "--cursor", first["nextCursor"], "--json").json
    assert [task["id"] for task in second["tasks"]] == ["job2", "job1"]
    last = cli("list", "--limit", "2", "--cursor", second["nextCursor"], "--json").json
    assert ([task["id"] for task in last["tasks"]], last["nextCursor"]) == (["job0"], None)


@pytest.mark.parametrize("words", [("--cursor", "x"), ("--cursor", "-1"), ("--cursor", "3", "--offset", "1")])
def test_a_cursor_that_is_none_is_wrong_usage(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli("list", *words)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)


def test_list_is_newest_first(cli: Cli, queue: Queue) -> None:
    for name in ("c", "a", "b"):
        queue.enqueue("t", {}, id=name, priority=ord(name))
    assert ids(cli("list")) == ["b", "a", "c"]
    assert [task["id"] for task in cli("list", "--json").json["tasks"]] == ["b", "a", "c"]


def test_list_line_has_id_status_type_tries_age_and_what(cli: Cli, queue: Queue) -> None:
    queue.enqueue("shell", {"command": "echo hi"}, id="job1", max_attempts=5)
    (row,) = cli("list").rows
    assert [*row[:4], row[5]] == ["job1", "pending", "shell", "0/5", "echo hi"]
    assert row[4].split()[-1] in ("ms", "s")


def test_list_says_the_error_of_a_failed_job(cli: Cli, every_state: Queue) -> None:
    what = {row[0]: row[5] for row in cli("list").rows}
    assert "it broke" in what["failed"]
    assert "retry in" in what["retrying"]
    assert "it broke" in what["retrying"]
    assert what["scheduled"].startswith("starts in ")
    every_state.cancel("scheduled")
    assert "starts in" not in cli("list").out


@pytest.mark.parametrize("option", ["--status", "--state"])
@pytest.mark.parametrize("state", ["pending", "processing", "completed", "failed", "cancelled"])
def test_list_takes_one_state(cli: Cli, every_state: Queue, option: str, state: str) -> None:
    assert ids(cli("list", option, state)) == [state]
    answer = cli("list", option, state, "--json").json
    assert ([task["status"] for task in answer["tasks"]], answer["total"]) == ([state], 1)


def test_list_of_scheduled_jobs_holds_retrying_ones(cli: Cli, every_state: Queue) -> None:
    assert ids(cli("list", "--status", "scheduled")) == ["scheduled", "retrying"]
    assert ids(cli("list", "--status", "retrying")) == ["retrying"]
    assert cli("list", "--status", "retrying", "--json").json["total"] == 1


@pytest.mark.parametrize(
    ("word", "state"),
    [("dead", "failed"), ("queued", "pending"), ("claimed", "processing"), ("done", "completed")],
)
def test_list_takes_the_other_words_for_states(cli: Cli, every_state: Queue, word: str, state: str) -> None:
    assert ids(cli("list", "--status", word)) == [state]
    assert cli("list", "--status", word, "--json").json["total"] == 1


def test_list_takes_several_states(cli: Cli, every_state: Queue) -> None:
    words = ["--status", "failed", "--state", "pending", "--status", "done"]
    assert ids(cli("list", *words)) == ["pending", "failed", "completed"]
    assert cli("list", *words, "--json").json["total"] == 3


def test_list_of_an_unknown_state_lists_what_is_allowed(cli: Cli) -> None:
    ran = cli("list", "--status", "nope")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    for word in (*STATES, "retrying", "dead", "queued"):
        assert word in ran.err


def test_list_takes_a_type(cli: Cli, queue: Queue) -> None:
    for number, name in enumerate(("a", "b", "a", "a:lane")):
        queue.enqueue(name, {}, id=f"{name}{number}")
    assert ids(cli("list", "--type", "a")) == ["a2", "a0"]
    assert ids(cli("list", "--type", "a:lane")) == ["a:lane3"]
    assert ids(cli("list", "--type", "nothing")) == []
    assert cli("list", "--type", "a", "--json").json["total"] == 2


def test_list_takes_type_and_state_together(cli: Cli, every_state: Queue) -> None:
    assert ids(cli("list", "--type", "bad", "--status", "failed", "--status", "pending")) == ["failed"]


def test_list_shows_50_unless_told(cli: Cli, queue: Queue) -> None:
    queue.enqueue_many("t", [{"n": n} for n in range(60)])
    assert len(ids(cli("list"))) == 50
    answer = cli("list", "--json").json
    assert (len(answer["tasks"]), answer["total"], answer["limit"]) == (50, 60, 50)
    assert len(ids(cli("list", "--limit", "200"))) == 60


def test_pages_of_a_list_fit_together(cli: Cli, queue: Queue) -> None:
    for number in range(7):
        queue.enqueue("t", {}, id=f"j{number}")
    pages = [ids(cli("list", "--limit", "3", "--offset", str(offset))) for offset in (0, 3, 6, 9)]
    assert pages == [["j6", "j5", "j4"], ["j3", "j2", "j1"], ["j0"], []]
    answer = cli("list", "--limit", "3", "--offset", "6", "--json").json
    assert (answer["limit"], answer["offset"], answer["total"]) == (3, 6, 7)


@pytest.mark.parametrize("words", [("--limit", "0"), ("--limit", "-1"), ("--offset", "-1"), ("--limit", "x")])
def test_page_that_makes_no_sense_is_wrong_usage(cli: Cli, words: tuple[str, str]) -> None:
    ran = cli("list", *words)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert words[0] in ran.err


def test_list_items_are_the_tasks_of_the_api(cli: Cli, every_state: Queue) -> None:
    answer = cli("list", "--json").json
    assert answer.keys() == {"tasks", "total", "totalIsCapped", "limit", "offset", "nextCursor"}
    assert [task["id"] for task in answer["tasks"]][::-1] == [
        "completed",
        "failed",
        "retrying",
        "processing",
        "cancelled",
        "scheduled",
        "pending",
    ]
    for task in answer["tasks"]:
        assert task.keys() == ITEM


def test_full_list_has_payload_result_and_errors(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("echo", {"n": [1, 2]}, id="good")
    jobs.enqueue("bad", {}, id="broken", max_attempts=1)
    assert jobs.drain() == 2
    broken, good = cli("list", "--full", "--json").json["tasks"]
    assert good.keys() == broken.keys() == ITEM | {"payload", "result", "errors"}
    assert (good["payload"], good["result"], good["errors"]) == ({"n": [1, 2]}, {"n": [1, 2]}, [])
    assert broken["errors"][0]["traceback"].strip().endswith("RuntimeError: it broke")
    text = cli("list", "--full").out
    assert '"n": [' in text
    assert "Traceback" in text


def test_line_of_a_list_stays_one_line_whatever_the_payload(cli: Cli, queue: Queue) -> None:
    queue.enqueue("shell", {"command": "printf '\x1b[31m\t'\nrm"}, id="job1")
    queue.enqueue("t", {"text": "a\tb\nc\x1b[2J"}, id="job2")
    ran = cli("list")
    assert [len(row) for row in ran.rows] == [6, 6]
    assert "\x1b" not in ran.out


# show


def test_show_has_everything_about_a_job(cli: Cli, queue: Queue) -> None:
    queue.enqueue(
        "send_email",
        {"to": "a@b.c"},
        id="job1",
        priority=7,
        max_attempts=9,
        timeout=90,
        key="k1",
        key_for=60,
        run_at=datetime(2099, 1, 31, 9, tzinfo=UTC),
    )
    ran = cli("show", "job1")
    fields = dict(line.split(maxsplit=1) for line in ran.lines[:8] if len(line.split(maxsplit=1)) == 2)
    assert (ran.code, ran.err) == (0, "")
    assert (fields["id"], fields["type"], fields["status"]) == ("job1", "send_email", "scheduled")
    assert (fields["attempts"], fields["priority"]) == ("0 of 9", "7")
    assert "k1" in fields["key"]
    assert fields["timeout"] == "1 min 30 s"
    assert "2099-01-31 09:00:00" in ran.out
    assert '"to": "a@b.c"' in ran.out


def test_limit_that_only_a_handler_elsewhere_knows_is_not_shown(cli: Cli, queue: Queue) -> None:
    queue.enqueue("send_email", {}, id="open")
    queue.enqueue("shell", {"command": "true"}, id="built-in")
    queue.enqueue("stored:lane", {}, id="stored")
    queue.set_config("max_attempts", 7, type="stored")
    tries = {line.split("\t")[0]: line.split("\t")[3] for line in cli("list").lines}
    assert tries == {"open": "0", "built-in": "0/3", "stored": "0/7"}
    for id, shown in (("open", "0"), ("built-in", "0 of 3"), ("stored", "0 of 7")):
        assert f"attempts  {shown}" in cli("show", id).lines
    queue.register("send_email", lambda payload: None, max_attempts=10)
    found = queue.get("open")
    assert found is not None
    assert (found.max_attempts, found.limit_is_open) == (10, False)
    queue.drain()
    assert "attempts  1 of 10" in cli("show", "open").lines


@both_engines
def test_show_as_json_is_the_task_of_the_api(cli: Cli, queue: Queue) -> None:
    queue.enqueue("send_email", {"to": "ü"}, id="job1", key="k1", key_for=60, timeout=90, delay=3600)
    answer = cli("show", "job1", "--json").json
    assert answer.keys() == ITEM | {"payload", "result", "errors"}
    assert (answer["payload"], answer["result"], answer["errors"]) == ({"to": "ü"}, None, [])
    assert (answer["idempotencyKey"], answer["keyFor"], answer["timeout"]) == ("k1", 60.0, 90.0)
    assert (answer["status"], answer["attempts"], answer["maxAttempts"]) == ("scheduled", 0, 3)
    for name in ("createdAt", "updatedAt", "runAfter"):
        assert answer[name].endswith("Z")
    assert answer["lastAttemptAt"] is None
    assert answer["completedAt"] is None


def test_show_of_a_completed_job_has_its_result_and_no_error(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("echo", {"n": 5}, id="job1")
    assert jobs.drain() == 1
    answer = cli("show", "job1", "--json").json
    assert (answer["status"], answer["result"], answer["error"], answer["attempts"]) == (
        "completed",
        {"n": 5},
        None,
        1,
    )
    assert answer["completedAt"].endswith("Z")
    assert "result" in cli("show", "job1").lines


@both_engines
def test_show_has_the_attempts_as_a_timeline(cli: Cli, jobs: Queue) -> None:
    jobs.set_config("backoff_factor", 0)
    jobs.enqueue("bad", {}, id="job1", max_attempts=2)
    wait_until(lambda: jobs.drain() + 1 and status_of(jobs, "job1") == "failed")
    ran = cli("show", "job1")
    at = ran.lines.index("timeline") + 1
    events = ran.lines[at : ran.lines.index("", at)]
    moments = [line[:23] for line in events]
    told = [line[23:].strip() for line in events]
    assert moments == sorted(moments)
    assert [word.split(",")[0].split(" after")[0] for word in told] == [
        "enqueued",
        "attempt 1",
        "failed",
        "attempt 2",
        "failed",
        "failed",
    ]
    assert "it broke" in told[2]
    assert "traceback of attempt 2" in ran.lines
    answer = cli("show", "job1", "--json").json
    assert [entry["attempt"] for entry in answer["errors"]] == [1, 2]
    for entry in answer["errors"]:
        assert entry.keys() >= {"attempt", "startedAt", "finishedAt", "worker", "error", "traceback"}


def test_timeline_of_a_job_that_recovered_ends_with_the_attempt_that_worked(cli: Cli, jobs: Queue) -> None:
    def second_time_lucky(payload: object, ctx: Any) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    jobs.register("moody", second_time_lucky)
    jobs.set_config("backoff_factor", 0)
    jobs.enqueue("moody", {}, id="job1")
    wait_until(lambda: jobs.drain() + 1 and status_of(jobs, "job1") == "completed")
    lines = cli("show", "job1").lines
    told = [line[23:].strip() for line in lines[lines.index("timeline") + 1 :]]
    assert [text.split(",")[0].split(" after")[0] for text in told[:5]] == [
        "enqueued",
        "attempt 1",
        "failed",
        "attempt 2",
        "completed",
    ]


def test_timeline_ends_with_the_next_attempt(cli: Cli, every_state: Queue) -> None:
    lines = [line for line in cli("show", "retrying").lines if line.endswith("next attempt")]
    assert len(lines) == 1
    due = cli("show", "retrying", "--json").json["nextRetryAt"]
    assert lines[0].startswith(due[:19].replace("T", " "))


@pytest.mark.process
def test_show_of_a_failed_command_has_exit_code_and_last_output(cli: Cli, queue: Queue) -> None:
    install(queue)
    queue.enqueue("shell", {"command": "echo first; echo oops >&2; exit 3"}, id="job1", max_attempts=1)
    assert queue.drain() == 1
    (entry,) = cli("show", "job1", "--json").json["errors"]
    assert (entry["exitCode"], entry["tail"]) == (3, "first\noops\n")
    text = cli("show", "job1").out
    assert "last output" in text
    assert "  oops" in text


@both_engines
def test_show_names_parent_and_children(cli: Cli, jobs: Queue) -> None:
    def parent(payload: object, ctx: Any) -> None:
        ctx.enqueue("ok", {}, id="child1")
        ctx.enqueue("ok", {}, id="child2")

    jobs.register("parent", parent)
    jobs.enqueue("parent", {}, id="mother")
    assert jobs.drain() >= 1
    assert "child1, child2" in cli("show", "mother").out
    assert "mother" in cli("show", "child1").out
    assert cli("show", "child1", "--json").json["parentId"] == "mother"


# logs


def ran_command(queue: Queue, command: str, **options: Any) -> None:
    install(queue)
    queue.enqueue("shell", {"command": command}, id="job1", **options)
    assert queue.drain() == 1


@pytest.mark.process
@both_engines
def test_logs_print_the_output_of_a_command(cli: Cli, queue: Queue) -> None:
    ran_command(queue, "echo to stdout; echo to stderr >&2")
    ran = cli("logs", "job1")
    assert (ran.code, ran.err) == (0, "")
    assert [line for line in ran.lines if line.startswith("to ")] == ["to stdout", "to stderr"]
    assert "attempt 1" in ran.out


@pytest.mark.process
def test_logs_have_every_attempt_under_its_heading(cli: Cli, queue: Queue) -> None:
    queue.set_config("backoff_factor", 0)
    install(queue)
    queue.enqueue("shell", {"command": "echo try $QUEUECTL_ATTEMPT; false"}, id="job1", max_attempts=2)
    wait_until(lambda: queue.drain() + 1 and status_of(queue, "job1") == "failed")
    out = cli("logs", "job1").out
    places = [out.index(part) for part in ("attempt 1", "try 1", "attempt 2", "try 2")]
    assert places == sorted(places)


@pytest.mark.process
def test_logs_keep_bytes_that_are_not_text(cli: Cli, queue: Queue, home: Path) -> None:
    ran_command(queue, r"printf 'caf\351\n'")
    words = [*QUEUECTL, "logs", "job1"]
    done = subprocess.run(words, env=environment(home), capture_output=True, timeout=60, check=True)
    assert b"caf\xe9\n" in done.stdout
    assert "caf\ufffd" in cli("logs", "job1", "--json").json["log"]


@pytest.mark.process
def test_logs_on_a_terminal_show_control_sequences_and_obey_none(queue: Queue, home: Path) -> None:
    """A title, a clear screen, a C1 control, text that runs backwards; line ends and tabs stay."""
    ran_command(queue, r"printf '\033]0;title\007\033[2J\302\233\342\200\256\tcaf\303\251\r\n\233\rend\303'")
    out = on_terminal(home, "logs", "job1").out
    assert r"\x1b]0;title\x07\x1b[2J\x9b\u202e" + "\tcafé\r\n" + r"\x9b\rend\xc3" in out
    assert "\x1b" not in out


def test_logs_on_a_terminal_may_come_in_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "on_terminal", lambda: True)
    out = logs.Output()
    for part in (b"\xc3", b"\xa9\x1b[", b"2J\r", b"\n\r"):
        out.write(part)
    out.end()
    assert capsys.readouterr().out == "é\\x1b[2J\n\\r"


@pytest.mark.process
def test_logs_as_json_are_one_object(cli: Cli, queue: Queue) -> None:
    ran_command(queue, "echo 'hällo'")
    answer = cli("logs", "job1", "--json").json
    assert answer["id"] == "job1"
    assert "hällo\n" in answer["log"]


def test_logs_of_a_job_that_has_not_run_are_empty(cli: Cli, queue: Queue) -> None:
    queue.enqueue("shell", {"command": "true"}, id="job1")
    ran = cli("logs", "job1")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert cli("logs", "job1", "--json").json == {"id": "job1", "log": ""}


@pytest.mark.process
def test_logs_that_are_gone_say_where_they_were(cli: Cli, queue: Queue, home: Path) -> None:
    ran_command(queue, "echo hi")
    (home / "logs" / "job1.log").unlink()
    ran = cli("logs", "job1")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert str(home / "logs") in ran.err


def test_logs_of_another_type_are_refused(cli: Cli, queue: Queue) -> None:
    queue.enqueue("send_email", {}, id="job1")
    ran = cli("logs", "job1")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert "send_email" in ran.err


@pytest.mark.process
def test_logs_of_a_lane_are_printed(cli: Cli, queue: Queue) -> None:
    install(queue)
    queue.enqueue("shell:media", {"command": "echo hi"}, id="job1")
    assert queue.drain() == 1
    assert "hi" in cli("logs", "job1").lines


@pytest.mark.process
def test_follow_prints_a_finished_job_and_ends(cli: Cli, queue: Queue) -> None:
    ran_command(queue, "echo hi")
    ran = cli("logs", "job1", "--follow")
    assert ran.code == 0
    assert ran.out == cli("logs", "job1").out


@pytest.mark.process
def test_follow_prints_output_while_it_comes_and_ends_with_the_job(
    queue: Queue, home: Path, tmp_path: Path, start_worker: Callable[..., Any]
) -> None:
    install(queue)
    gate = tmp_path / "gate"
    command = f"echo one; while [ ! -e {gate} ]; do sleep 0.02; done; echo two"
    queue.enqueue("shell", {"command": command}, id="job1", timeout=60)
    follower = start_queuectl(home, "logs", "job1", "-f")
    try:
        assert follower.stdout is not None
        start_worker()
        line = b""
        while b"one" not in line:  # ends with the stream, at the latest
            line = follower.stdout.readline()
            assert line
        assert follower.poll() is None
        gate.touch()
        rest, errors = follower.communicate(timeout=30)
        assert b"two\n" in rest
        assert (follower.returncode, errors) == (0, b"")
    finally:
        gate.touch()
        follower.kill()
        follower.communicate(timeout=30)


# why


def reasons(cli: Cli, job_id: str) -> list[str]:
    """The codes of the reasons, for programs."""
    answer = cli("why", job_id, "--json").json
    assert answer.keys() == {"id", "status", "reasons"}
    for reason in answer["reasons"]:
        assert reason.keys() == {"code", "text", "until"}
    return [reason["code"] for reason in answer["reasons"]]


def test_why_says_that_no_worker_runs(cli: Cli, queue: Queue) -> None:
    queue.enqueue("ok", {}, id="job1")
    assert reasons(cli, "job1") == ["no_workers"]
    assert cli("why", "job1").out == "no worker is running\n"


def test_why_says_that_no_worker_handles_the_type(cli: Cli, every_state: Queue) -> None:
    every_state.enqueue("foreign", {}, id="job1")
    assert reasons(cli, "job1") == ["no_worker_for_type"]


def test_why_says_what_is_paused(cli: Cli, queue: Queue) -> None:
    queue.enqueue("ok", {}, id="job1")
    queue.pause()
    queue.pause(type="ok")
    assert reasons(cli, "job1") == ["paused", "paused", "no_workers"]
    assert cli("why", "job1").lines[:2] == ["ok is paused", "the whole queue is paused"]


def test_why_says_the_schedule_and_its_instant(cli: Cli, queue: Queue) -> None:
    queue.enqueue("ok", {}, id="job1", run_at=datetime(2099, 1, 31, 9, tzinfo=UTC))
    first = cli("why", "job1", "--json").json["reasons"][0]
    assert (first["code"], first["until"]) == ("scheduled", "2099-01-31T09:00:00Z")
    assert "scheduled for 2099-01-31 09:00:00 UTC (in " in cli("why", "job1").lines[0]


def test_why_says_the_back_off_its_error_and_its_instant(cli: Cli, every_state: Queue) -> None:
    first = cli("why", "retrying", "--json").json["reasons"][0]
    assert first["code"] == "back-off"
    assert "it broke" in first["text"]
    until = datetime.fromisoformat(first["until"])
    assert until > datetime.now(UTC) + timedelta(minutes=30)
    assert first["until"] == cli("show", "retrying", "--json").json["nextRetryAt"]


def test_why_says_that_it_runs_and_where(cli: Cli, every_state: Queue) -> None:
    assert reasons(cli, "processing") == ["running"]
    worker = cli("show", "processing", "--json").json["workerId"]
    (known,) = [w for w in every_state.workers() if w.id == worker]
    (line,) = cli("why", "processing").lines
    assert re.fullmatch(rf"running for \d+ s on {known.host} \(pid {known.pid}\), attempt 1", line)


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_why_says_how_a_finished_job_ended(cli: Cli, every_state: Queue, state: str) -> None:
    assert reasons(cli, state) == [state]
    ran = cli("why", state)
    assert (ran.code, len(ran.lines)) == (0, 1)
    if state == "failed":
        assert "it broke" in ran.out


def test_why_says_what_is_before_it_in_line(cli: Cli, queue: Queue) -> None:
    for number in range(3):
        queue.enqueue("ok", {}, id=f"j{number}")
    queue.enqueue("ok", {}, id="urgent", priority=5)
    assert "in_line" not in reasons(cli, "urgent")
    assert reasons(cli, "j2") == ["no_workers", "in_line"]
    assert "3 jobs of its type are ahead of it" in cli("why", "j2").out


def test_why_says_that_slots_are_full(cli: Cli, jobs: Queue, start_worker: Callable[..., Any]) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(payload: object) -> None:
        started.set()
        go_on.wait(30)

    jobs.register("slow", slow)
    start_worker(concurrency=1)
    jobs.enqueue("slow", {}, id="first")
    try:
        assert started.wait(30)
        jobs.enqueue("slow", {}, id="second")
        assert reasons(cli, "second") == ["slots_full"]
        jobs.set_config("max_running", 1, type="slow")
        assert reasons(cli, "second") == ["max_running"]
    finally:
        go_on.set()


def test_why_says_the_rate_limit_and_until_when(
    cli: Cli, jobs: Queue, start_worker: Callable[..., Any]
) -> None:
    jobs.set_rate_limit(0.001, type="ok")
    start_worker()
    jobs.enqueue("ok", {}, id="first")
    jobs.wait("first", timeout=30)
    jobs.enqueue("ok", {}, id="second")
    found = cli("why", "second", "--json").json["reasons"]
    assert [reason["code"] for reason in found] == ["rate_limit"]
    assert datetime.fromisoformat(found[0]["until"]) > datetime.now(UTC)
    (line,) = cli("why", "second").lines
    assert line.startswith("rate limit of 0.001 jobs/s reached; the next can start at ")
    assert datetime.fromisoformat(found[0]["until"]).strftime("%H:%M:") in line


# What is not there.


@pytest.mark.parametrize("command", ["show", "logs", "why"])
def test_unknown_id_fails_with_one_line(cli: Cli, command: str) -> None:
    for words in ((command, "nope"), (command, "nope", "--json")):
        ran = cli(*words)
        assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
        assert "nope" in ran.err


@pytest.mark.parametrize("command", ["show", "logs", "why"])
def test_id_is_wanted(cli: Cli, command: str) -> None:
    ran = cli(command)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert "ID" in ran.err


@pytest.mark.process
def test_real_program_looks_at_the_same_queue(home: Path, queue: Queue) -> None:
    queue.enqueue("shell", {"command": "echo hi"}, id="job1")
    assert queuectl(home, "list").rows[0][0] == "job1"
    assert queuectl(home, "show", "job1", "--json").json["payload"] == {"command": "echo hi"}
    assert queuectl(home, "why", "nope").code == 1


# Secrets.


@pytest.fixture
def secretive(queue: Queue) -> Queue:
    """A failed job with secrets in payload and history, a completed one with some in its result."""

    def log_in(payload: dict[str, Any], ctx: Context) -> None:
        ctx.detail(user="ada", api_key="s3cret-detail")
        raise Fail("refused")

    queue.register("log_in", log_in)
    queue.register("issue", lambda payload: {"token": "s3cret-result", "name": "t"})
    queue.enqueue("log_in", {"user": "ada", "login": {"password": "s3cret-payload"}}, id="failed")
    queue.enqueue("issue", {"password": "s3cret-payload"}, id="done")
    queue.drain()
    queue.enqueue("elsewhere", {"password": "s3cret-payload"}, id="waiting")
    return queue


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["plain", "json"])
@pytest.mark.parametrize("line", ["show failed", "show done", "list", "list --full", "dlq list --full"])
def test_secrets_are_shown_only_when_asked_for(
    cli: Cli, secretive: Queue, line: str, form: list[str]
) -> None:
    ran = cli(*line.split(), *form)
    assert (ran.code, "s3cret" in ran.out) == (0, False)
    revealed = cli(*line.split(), *form, "--reveal")
    if line != "list" or not form:
        assert "[redacted]" in ran.out
        assert "s3cret-payload" in revealed.out
    assert "[redacted]" not in revealed.out


def test_details_of_failures_are_redacted_by_their_names(cli: Cli, secretive: Queue) -> None:
    def details(*words: str) -> dict[str, Any]:
        [failure] = cli("show", "failed", "--json", *words).json["errors"]
        return {name: failure[name] for name in ("user", "api_key")}

    assert details() == {"user": "ada", "api_key": "[redacted]"}
    assert details("--reveal") == {"user": "ada", "api_key": "s3cret-detail"}


def test_payload_that_was_printed_redacted_can_be_retried(cli: Cli, secretive: Queue) -> None:
    payload = cli("show", "failed", "--json").json["payload"]
    assert cli("retry", "failed", "--payload", json.dumps({**payload, "user": "eve"})).code == 0
    job = secretive.get("failed")
    assert job is not None
    assert job.payload == {"user": "eve", "login": {"password": "s3cret-payload"}}


def test_marker_where_nothing_is_stored_is_refused(cli: Cli, secretive: Queue) -> None:
    ran = cli("retry", "failed", "--payload", '{"token": "[redacted]"}')
    assert (ran.code, len(ran.errors)) == (2, 1)
    assert "payload.token" in ran.errors[0]
