"""queuectl enqueue: a job from flags, from a JSON object, or of a type with a payload."""

from __future__ import annotations

import json
import shlex
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.core.job import Job
from tests.support import both_engines
from tests.surfaces.support import Cli, queuectl


def only_job(queue: Queue) -> Job:
    """The one job there is."""
    (listed,) = queue.jobs()
    job = queue.get(listed.id)
    assert job is not None
    return job


# What is printed.


def test_enqueue_prints_the_id_and_nothing_else(cli: Cli) -> None:
    ran = cli("enqueue", "--command", "echo hi", "--id", "job1")
    assert (ran.code, ran.out, ran.err) == (0, "job1\n", "")


@pytest.mark.process
@both_engines
def test_real_program_prints_the_id_and_nothing_else(home: Path) -> None:
    ran = queuectl(home, "enqueue", "--command", "echo hi", "--id", "job1")
    assert (ran.code, ran.out, ran.err) == (0, "job1\n", "")


def test_id_is_a_uuid_of_version_7_unless_given(cli: Cli, queue: Queue) -> None:
    printed = cli("enqueue", "--command", "true").out.strip()
    assert uuid.UUID(printed).version == 7
    assert only_job(queue).id == printed


def test_json_answer_is_the_one_of_the_api(cli: Cli) -> None:
    ran = cli("enqueue", "--command", "true", "--id", "job1", "--json")
    assert ran.code == 0
    assert ran.json.keys() == {"id", "type", "status", "createdAt"}
    assert (ran.json["id"], ran.json["type"], ran.json["status"]) == ("job1", "shell", "pending")
    assert ran.json["createdAt"].endswith("Z")
    datetime.fromisoformat(ran.json["createdAt"])


def test_json_answer_of_a_future_job_is_scheduled(cli: Cli) -> None:
    assert cli("enqueue", "--command", "true", "--delay", "1h", "--json").json["status"] == "scheduled"


# Flags.


def test_command_becomes_a_shell_job(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", "--command", "echo 'a  b' | wc -c").code == 0
    job = only_job(queue)
    assert (job.type, job.payload) == ("shell", {"command": "echo 'a  b' | wc -c"})
    assert (job.priority, job.max_attempts, job.timeout, job.key, job.run_at) == (0, 3, None, None, None)


@both_engines
def test_every_flag_reaches_the_job(cli: Cli, queue: Queue) -> None:
    words = shlex.split("--id job1 --priority 7 --max-attempts 9 --timeout 90 --key k1 --key-for 1d")
    assert cli("enqueue", "--command", "true", *words).code == 0
    job = only_job(queue)
    assert (job.id, job.priority, job.max_attempts, job.timeout) == ("job1", 7, 9, 90.0)
    assert (job.key, job.key_for) == ("k1", 86_400.0)


def test_priority_may_be_negative(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", "--command", "true", "--priority", "-5").code == 0
    assert only_job(queue).priority == -5


@pytest.mark.parametrize(
    ("given", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("500ms", 0.5)]
)
def test_timeout_takes_units(cli: Cli, queue: Queue, given: str, seconds: float) -> None:
    assert cli("enqueue", "--command", "true", "--timeout", given).code == 0
    assert only_job(queue).timeout == seconds


def test_lane_is_part_of_the_type(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", "--command", "true", "--lane", "media").code == 0
    assert only_job(queue).type == "shell:media"


def test_folder_and_variables_reach_the_payload(cli: Cli, queue: Queue) -> None:
    words = ["--cwd", "/tmp", "--env", "A=1", "--env", "B=x=y", "--env", "EMPTY="]
    assert cli("enqueue", "--command", "true", *words).code == 0
    assert only_job(queue).payload == {
        "command": "true",
        "cwd": "/tmp",
        "env": {"A": "1", "B": "x=y", "EMPTY": ""},
    }


@pytest.mark.process
def test_folder_and_variables_reach_the_command(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    from holdfast.jobs import install

    install(queue)
    folder = tmp_path / "where it runs"
    folder.mkdir()
    words = ["--cwd", str(folder), "--env", "GREETING=hello you"]
    assert cli("enqueue", "--command", 'pwd; echo "$GREETING"', "--id", "job1", *words).code == 0
    assert queue.drain() == 1
    job = queue.get("job1")
    assert job is not None
    assert job.status == "completed", job.error
    assert job.result["tail"].splitlines() == [str(folder), "hello you"]


@pytest.mark.parametrize("given", ["A", "=1", ""])
def test_variable_without_a_name_or_value_is_wrong_usage(cli: Cli, queue: Queue, given: str) -> None:
    ran = cli("enqueue", "--command", "true", "--env", given)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert "NAME=VALUE" in ran.err
    assert queue.jobs() == []


def test_delay_counts_from_now(cli: Cli, queue: Queue) -> None:
    before = datetime.now(UTC)
    assert cli("enqueue", "--command", "true", "--delay", "10s").code == 0
    job = only_job(queue)
    assert job.status == "scheduled"
    assert job.run_at is not None
    assert before + timedelta(seconds=9.9) < job.run_at < datetime.now(UTC) + timedelta(seconds=10.1)


@pytest.mark.parametrize(
    "given", ["2099-01-31T09:00:00Z", "2099-01-31T10:00:00+01:00", "2099-01-31 09:00:00Z"]
)
def test_run_at_is_an_instant(cli: Cli, queue: Queue, given: str) -> None:
    assert cli("enqueue", "--command", "true", "--run-at", given).code == 0
    job = only_job(queue)
    assert (job.status, job.run_at) == ("scheduled", datetime(2099, 1, 31, 9, tzinfo=UTC))


def test_run_at_in_the_past_is_due(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", "--command", "true", "--run-at", "2020-01-01T00:00:00Z").code == 0
    job = only_job(queue)
    assert (job.status, job.run_at) == ("pending", datetime(2020, 1, 1, tzinfo=UTC))


def test_run_at_without_a_time_zone_is_refused(cli: Cli, queue: Queue) -> None:
    ran = cli("enqueue", "--command", "true", "--run-at", "2099-01-31T09:00:00")
    assert (ran.code, len(ran.errors)) == (2, 1)
    assert "zone" in ran.err
    assert queue.jobs() == []


def test_delay_and_run_at_exclude_each_other(cli: Cli) -> None:
    ran = cli("enqueue", "--command", "true", "--delay", "1s", "--run-at", "2099-01-31T09:00:00Z")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)


# A type and a payload.


def test_type_with_a_payload(cli: Cli, queue: Queue) -> None:
    payload = {"to": "a@b.c", "n": 1.5, "deep": {"list": [1, None, True, "ü"]}}
    assert cli("enqueue", "--type", "send_email", "--payload", json.dumps(payload)).code == 0
    job = only_job(queue)
    assert (job.type, job.payload) == ("send_email", payload)


def test_type_without_a_payload_has_an_empty_one(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", "--type", "tick").code == 0
    assert only_job(queue).payload == {}


def test_type_with_every_option(cli: Cli, queue: Queue) -> None:
    options = "--priority 2 --max-attempts 1 --timeout 5m --key k --delay 1m"
    assert cli("enqueue", "--type", "crawl", "--payload", "{}", *shlex.split(options)).code == 0
    job = only_job(queue)
    assert (job.type, job.priority, job.max_attempts, job.timeout, job.key) == ("crawl", 2, 1, 300.0, "k")
    assert job.status == "scheduled"


@pytest.mark.parametrize("payload", ["{}", '{"command": 5}', '{"command": ""}', '{"command": null}'])
def test_shell_payload_without_a_command_is_refused(cli: Cli, queue: Queue, payload: str) -> None:
    ran = cli("enqueue", "--type", "shell", "--payload", payload)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1), ran
    assert "command" in ran.err
    assert queue.jobs() == []


def test_shell_payload_in_full_is_accepted(cli: Cli, queue: Queue) -> None:
    payload = {"command": "true", "limits": {"cpuSeconds": 5}}
    assert cli("enqueue", "--type", "shell", "--payload", json.dumps(payload)).code == 0
    assert only_job(queue).payload == payload


def test_shell_payload_with_an_unknown_field_is_refused(cli: Cli, queue: Queue) -> None:
    ran = cli("enqueue", "--type", "shell", "--payload", '{"command": "true", "comand": "x"}')
    assert (ran.code, len(ran.errors)) == (2, 1)
    assert "comand" in ran.err
    assert queue.jobs() == []


# One JSON object.


@pytest.mark.parametrize(
    "given",
    [
        {"maxAttempts": 9, "runAt": "2099-01-31T09:00:00Z", "keyFor": "1d"},
        {"max_attempts": 9, "run_at": "2099-01-31T09:00:00Z", "key_for": "1d"},
        {"max-attempts": 9, "run-at": "2099-01-31T09:00:00Z", "key-for": 86400},
        {"maxRetries": 9, "runAfter": "2099-01-31T09:00:00Z", "keyFor": 86400.0},
        {"max_retries": 9, "run_after": "2099-01-31T09:00:00Z", "key_for": "24h"},
    ],
    ids=[
        "camelCase",
        "snake_case",
        "kebab-case",
        "the API's and other specifications' names",
        "those in snake_case",
    ],
)
def test_object_takes_the_names_of_the_flags(cli: Cli, queue: Queue, given: dict[str, Any]) -> None:
    text = json.dumps(
        {"id": "job1", "command": "sleep 2", "priority": 3, "timeout": "2m", "key": "k1", **given}
    )
    ran = cli("enqueue", text)
    assert (ran.code, ran.out, ran.err) == (0, "job1\n", "")
    job = only_job(queue)
    assert (job.type, job.payload) == ("shell", {"command": "sleep 2"})
    assert (job.priority, job.timeout, job.key) == (3, 120.0, "k1")
    assert (job.max_attempts, job.key_for) == (9, 86_400.0)
    assert job.run_at == datetime(2099, 1, 31, 9, tzinfo=UTC)


def test_object_takes_the_idempotency_key_of_the_api(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", '{"command": "true", "idempotencyKey": "k1"}').code == 0
    assert only_job(queue).key == "k1"


def test_object_with_type_and_payload(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", '{"type": "send_email", "payload": {"maxAttempts": 1}, "delay": 60}').code == 0
    job = only_job(queue)
    assert (job.type, job.payload, job.status) == ("send_email", {"maxAttempts": 1}, "scheduled")


def test_object_with_lane_folder_variables_and_limits(cli: Cli, queue: Queue) -> None:
    given = {
        "command": "true",
        "lane": "media",
        "cwd": "/tmp",
        "env": {"A": "1"},
        "limits": {"openFiles": 64},
    }
    assert cli("enqueue", json.dumps(given)).code == 0
    job = only_job(queue)
    assert job.type == "shell:media"
    assert job.payload == {"command": "true", "cwd": "/tmp", "env": {"A": "1"}, "limits": {"openFiles": 64}}


def test_null_in_an_object_is_as_if_it_was_not_said(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", '{"command": "true", "timeout": null, "key": null, "maxAttempts": null}').code == 0
    job = only_job(queue)
    assert (job.timeout, job.key, job.max_attempts) == (None, None, 3)


def test_object_may_stand_before_and_after_options(cli: Cli, queue: Queue, url: str) -> None:
    assert cli("enqueue", '{"id": "a", "command": "true"}', "--json").json["id"] == "a"
    assert cli("enqueue", "--json", "--database", url, '{"id": "b", "command": "true"}').json["id"] == "b"
    assert {job.id for job in queue.jobs()} == {"a", "b"}


def test_object_and_flags_exclude_each_other(cli: Cli, queue: Queue) -> None:
    ran = cli("enqueue", '{"command": "true"}', "--priority", "3")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert "--priority" in ran.err
    assert queue.jobs() == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"command": "true", "prio": 1}, "prio"),
        ({"command": "true", "maxAttempts": 1, "max_attempts": 2}, "max_attempts"),
        ({"command": "true", "type": "send_email"}, "type"),
        ({"command": "true", "payload": {}}, "payload"),
        ({"type": "send_email", "cwd": "/tmp"}, "cwd"),
        ({"type": "send_email", "lane": "media"}, "lane"),
        ({"type": "send_email", "payload": [1]}, "payload"),
        ({"priority": 1}, "command"),
        ({"command": "true", "maxAttempts": 0}, "max_attempts"),
        ({"command": "true", "timeout": "soon"}, "timeout"),
        ({"command": "true", "delay": "-1s"}, "delay"),
        ({"command": "true", "runAt": "tomorrow"}, "run_at"),
        ({"command": "true", "id": "not an id"}, "not an id"),
        ({"command": "true", "id": "stats"}, "stats"),
        ({"command": "true", "keyFor": "1d"}, "key"),
        ({"command": "  "}, "command"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value),
)
def test_wrong_object_is_wrong_usage_and_names_what_is_wrong(
    cli: Cli, queue: Queue, given: dict[str, Any], named: str
) -> None:
    ran = cli("enqueue", json.dumps(given))
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1), ran
    assert named in ran.err
    assert queue.jobs() == []


def test_unknown_key_lists_what_is_allowed(cli: Cli) -> None:
    ran = cli("enqueue", '{"command": "true", "prio": 1}')
    for name in ("command", "priority", "max_attempts", "run_at", "key_for", "lane"):
        assert name in ran.err


def test_nothing_to_run_is_wrong_usage(cli: Cli) -> None:
    ran = cli("enqueue")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)


def test_chunk_without_a_file_is_wrong_usage(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", "--command", "true", "--chunk", "5").code == 2
    assert queue.jobs() == []


# Ids and keys.


@both_engines
def test_id_that_exists_is_refused_and_not_overwritten(cli: Cli, queue: Queue) -> None:
    assert cli("enqueue", "--command", "echo first", "--id", "job1").code == 0
    ran = cli("enqueue", "--command", "echo second", "--id", "job1")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert "job1" in ran.err
    assert only_job(queue).payload == {"command": "echo first"}


def test_same_key_and_payload_is_the_same_job(cli: Cli, queue: Queue) -> None:
    first = cli("enqueue", "--command", "true", "--key", "k1")
    second = cli("enqueue", "--command", "true", "--key", "k1")
    assert (second.code, second.out) == (0, first.out)
    assert len(queue.jobs()) == 1


@both_engines
def test_same_key_with_another_payload_names_the_holder(cli: Cli, queue: Queue) -> None:
    cli("enqueue", "--command", "true", "--key", "k1", "--id", "holder")
    ran = cli("enqueue", "--command", "false", "--key", "k1")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert "holder" in ran.err
    assert len(queue.jobs()) == 1


def test_same_key_in_another_lane_is_another_job(cli: Cli, queue: Queue) -> None:
    cli("enqueue", "--command", "true", "--key", "k1")
    assert cli("enqueue", "--command", "true", "--key", "k1", "--lane", "media").code == 0
    assert len(queue.jobs()) == 2


def test_key_is_held_after_the_end_for_as_long_as_asked(cli: Cli, jobs: Queue) -> None:
    words = ["enqueue", "--type", "ok", "--key", "k1"]
    held = cli(*words, "--key-for", "1d").out
    assert jobs.drain() == 1
    assert cli(*words).out == held
    assert len(jobs.jobs()) == 1


def test_key_without_key_for_is_free_after_the_end(cli: Cli, jobs: Queue) -> None:
    words = ["enqueue", "--type", "ok", "--key", "k1"]
    first = cli(*words).out
    assert jobs.drain() == 1
    assert cli(*words).out != first
    assert len(jobs.jobs()) == 2


@both_engines
def test_full_type_is_refused(cli: Cli, queue: Queue) -> None:
    queue.set_config("max_depth", 1, type="shell")
    assert cli("enqueue", "--command", "true").code == 0
    ran = cli("enqueue", "--command", "true")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert "max_depth" in ran.err


def test_payload_over_the_limit_is_refused(cli: Cli, queue: Queue) -> None:
    queue.set_config("max_payload_bytes", 100)
    ran = cli("enqueue", "--command", "x" * 200)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert queue.jobs() == []


def test_jobs_keep_the_order_of_their_enqueues_within_a_priority(cli: Cli, jobs: Queue) -> None:
    ran: list[str] = []
    jobs.register("note", lambda payload: ran.append(payload["n"]))
    for n, priority in (("a", "0"), ("b", "0"), ("c", "5"), ("d", "-1"), ("e", "5")):
        cli("enqueue", "--type", "note", "--payload", json.dumps({"n": n}), "--priority", priority)
    assert jobs.drain() == 5
    assert ran == ["c", "e", "a", "b", "d"]
