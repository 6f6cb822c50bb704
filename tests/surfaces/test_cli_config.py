"""queuectl config, pause, resume and rate-limit: what holds for all workers, stored in the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Queue
from holdfast.config import SETTINGS
from tests.support import wait_until
from tests.surfaces.support import Cli

DEFAULTS = {
    "max_attempts": "3",
    "backoff_strategy": "exponential",
    "backoff_base": "2",
    "backoff_factor": "1",
    "backoff_max": "21600",
    "backoff_jitter": "0.2",
    "job_timeout": "none",
    "lease_seconds": "30",
    "heartbeat_interval": "5",
    "poll_interval": "1",
    "stuck_seconds": "300",
    "concurrency": "10",
    "max_running": "none",
    "group_concurrency": "none",
    "fair": "false",
    "prefetch": "none",
    "rate_limit": "0",
    "max_depth": "none",
    "max_payload_bytes": "1048576",
    "max_result_bytes": "1048576",
    "max_log_bytes": "10485760",
    "log_jobs": "all",
    "retention_completed": "none",
    "retention_failed": "none",
    "shutdown_timeout": "30",
    "transaction_seconds": "5",
}


# config get and list


@pytest.mark.parametrize(("key", "default"), DEFAULTS.items())
def test_default_of_every_setting(cli: Cli, key: str, default: str) -> None:
    ran = cli("config", "get", key)
    assert (ran.code, ran.out, ran.err) == (0, f"{default}\n", "")


def test_config_list_has_every_setting_with_its_value_source_and_what_is_allowed(cli: Cli) -> None:
    ran = cli("config", "list")
    assert ran.code == 0
    assert {row[0]: row[1] for row in ran.rows} == DEFAULTS
    assert {row[2] for row in ran.rows} == {"default"}
    assert all(row[3] for row in ran.rows)


def test_config_list_says_what_was_set_and_for_which_type(cli: Cli) -> None:
    cli("config", "set", "backoff_base", "3")
    cli("config", "set", "max_attempts", "7", "--type", "crawl")
    rows = cli("config", "list").rows
    assert ["backoff_base", "3", "set"] in [row[:3] for row in rows]
    assert ["max_attempts", "7", "type crawl"] in [row[:3] for row in rows]
    assert ["max_attempts", "3", "default"] in [row[:3] for row in rows]
    of_type = {row[0]: row[1:3] for row in cli("config", "list", "--type", "crawl").rows}
    assert of_type["max_attempts"] == ["7", "type crawl"]
    assert of_type["backoff_base"] == ["3", "set"]


def test_config_list_as_json_is_one_object(cli: Cli) -> None:
    cli("config", "set", "max_attempts", "7", "--type", "crawl")
    answer = cli("config", "list", "--json").json
    assert answer.keys() == {*SETTINGS, "byType"}
    assert (answer["max_attempts"], answer["job_timeout"]) == (3, None)
    assert answer["byType"] == {"crawl": {"max_attempts": 7}}


def test_config_get_as_json(cli: Cli) -> None:
    answer = cli("config", "get", "backoff_base", "--json").json
    assert answer == {"key": "backoff_base", "value": 2.0, "type": None}


# config set and unset


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("max_attempts", "5", "5"),
        ("backoff_base", "3", "3"),
        ("backoff_base", "1.5", "1.5"),
        ("backoff_strategy", "linear", "linear"),
        ("backoff_max", "6h", "21600"),
        ("backoff_jitter", "0", "0"),
        ("job_timeout", "5m", "300"),
        ("job_timeout", "none", "none"),
        ("lease_seconds", "3", "3"),
        ("retention_completed", "7d", "604800"),
        ("retention_failed", "never", "none"),
        ("max_running", "2", "2"),
        ("rate_limit", "0.5", "0.5"),
        ("poll_interval", "50ms", "0.05"),
    ],
)
def test_value_that_is_set_is_the_one_got(cli: Cli, key: str, given: str, value: str) -> None:
    ran = cli("config", "set", key, given)
    assert (ran.code, ran.out, ran.err) == (0, f"{key} is {value}\n", "")
    assert cli("config", "get", key).out == f"{value}\n"


def test_config_set_as_json(cli: Cli) -> None:
    answer = cli("config", "set", "job_timeout", "5m", "--type", "crawl", "--json").json
    assert answer == {"key": "job_timeout", "value": 300.0, "type": "crawl"}


@pytest.mark.parametrize(
    ("other", "own", "value"),
    [
        ("max_retries", "max_attempts", "4"),
        ("max-retries", "max_attempts", "4"),
        ("default_max_tries", "max_attempts", "4"),
        ("max_concurrent_jobs", "concurrency", "4"),
        ("job_retry_delay", "backoff_factor", "4"),
        ("worker_heartbeat_interval", "heartbeat_interval", "4"),
        ("backoff-base", "backoff_base", "4"),
    ],
)
def test_other_names_of_settings_are_taken(cli: Cli, other: str, own: str, value: str) -> None:
    assert cli("config", "set", other, value).out == f"{own} is {value}\n"
    assert cli("config", "get", own).out == cli("config", "get", other).out == f"{value}\n"
    assert cli("config", "unset", other).code == 0
    assert cli("config", "get", own).out == f"{DEFAULTS[own]}\n"


def test_value_for_a_type_holds_for_it_and_its_lanes_alone(cli: Cli) -> None:
    assert cli("config", "set", "max_attempts", "7", "--type", "shell").out == "max_attempts is 7 for shell\n"
    got = [cli("config", "get", "max_attempts", *words).out for words in ((), ("--type", "other"))]
    assert got == ["3\n", "3\n"]
    assert cli("config", "get", "max_attempts", "--type", "shell").out == "7\n"
    assert cli("config", "get", "max_attempts", "--type", "shell:media").out == "7\n"
    cli("config", "set", "max_attempts", "9", "--type", "shell:media")
    assert cli("config", "get", "max_attempts", "--type", "shell:media").out == "9\n"
    assert cli("config", "get", "max_attempts", "--type", "shell").out == "7\n"


def test_value_for_a_type_reaches_its_jobs(cli: Cli) -> None:
    cli("config", "set", "max_attempts", "7", "--type", "shell")
    cli("enqueue", "--command", "true", "--id", "a")
    cli("enqueue", "--type", "other", "--id", "b")
    assert cli("show", "a", "--json").json["maxAttempts"] == 7
    assert cli("show", "b", "--json").json["maxAttempts"] == 3


def test_unset_lets_the_next_level_hold(cli: Cli) -> None:
    cli("config", "set", "max_attempts", "5")
    cli("config", "set", "max_attempts", "7", "--type", "crawl")
    assert cli("config", "unset", "max_attempts", "--type", "crawl").out == "max_attempts is 5 for crawl\n"
    assert cli("config", "unset", "max_attempts").out == "max_attempts is 3\n"
    assert cli("config", "list", "--json").json["byType"] == {}


@pytest.mark.parametrize(
    "words", [("get", "nope"), ("set", "nope", "1"), ("unset", "nope"), ("get", "nope", "--type", "t")]
)
def test_unknown_key_lists_what_is_allowed(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli("config", *words)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert "nope" in ran.err
    for name in SETTINGS:
        assert name in ran.err


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("max_attempts", "0", "a whole number of at least 1"),
        ("max_attempts", "many", "a whole number of at least 1"),
        ("max_attempts", "1.5", "a whole number of at least 1"),
        ("backoff_strategy", "random", "exponential, linear or fixed"),
        ("backoff_base", "-1", "a number of at least 0"),
        ("backoff_base", "nan", "a number of at least 0"),
        ("backoff_jitter", "2", "a number from 0 to 1"),
        ("lease_seconds", "2", "at least 3"),
        ("job_timeout", "0", "greater than 0"),
        ("job_timeout", "soon", "ms, s, m, h, d or w"),
        ("rate_limit", "-1", "0 = unlimited"),
        ("max_log_bytes", "10", "1024"),
    ],
)
def test_bad_value_says_what_is_allowed_and_changes_nothing(
    cli: Cli, key: str, value: str, allowed: str
) -> None:
    ran = cli("config", "set", key, value)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1), ran
    assert key in ran.err
    assert allowed in ran.err
    assert cli("config", "get", key).out == f"{DEFAULTS[key]}\n"


@pytest.mark.parametrize("key", ["lease_seconds", "poll_interval", "retention_completed", "shutdown_timeout"])
def test_setting_of_the_whole_queue_can_not_be_set_for_a_type(cli: Cli, key: str) -> None:
    ran = cli("config", "set", key, "10", "--type", "shell")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert "whole queue" in ran.err


def test_running_worker_follows_a_setting(cli: Cli, jobs: Queue, start_worker: Callable[..., Any]) -> None:
    start_worker()
    cli("config", "set", "backoff_factor", "5000")
    cli("config", "set", "backoff_jitter", "0")
    cli("config", "set", "backoff_base", "3")

    def delay_is_new() -> bool:
        """Whether a job that fails now waits as the new settings say."""
        job = jobs.enqueue("bad", {})
        wait_until(lambda: cli("show", job.id, "--json").json["status"] == "scheduled")
        shown = jobs.get(job.id)
        assert shown is not None
        if shown.next_retry_at is None:  # by the old settings it is tried again already
            return False
        return abs((shown.next_retry_at - shown.errors[0].finished_at).total_seconds() - 15_000) < 5

    wait_until(delay_is_new, timeout=30, message="the new back-off")


# pause and resume


def test_pause_and_resume_of_everything(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {})
    ran = cli("pause")
    assert (ran.code, ran.out, ran.err) == (0, "the whole queue is paused\n", "")
    assert jobs.drain() == 0
    ran = cli("resume")
    assert (ran.code, ran.out, ran.err) == (0, "the whole queue is no longer paused\n", "")
    assert jobs.drain() == 1


def test_pause_of_a_type_leaves_the_others(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {})
    jobs.enqueue("echo", {}, id="other")
    assert cli("pause", "--type", "ok").out == "ok is paused\n"
    assert jobs.drain() == 1
    job = jobs.get("other")
    assert job is not None
    assert job.status == "completed"
    assert cli("resume", "--type", "ok").code == 0
    assert jobs.drain() == 1


def test_two_pauses_are_undone_one_by_one(cli: Cli, jobs: Queue) -> None:
    jobs.enqueue("ok", {})
    cli("pause")
    cli("pause", "--type", "ok")
    cli("resume")
    assert jobs.drain() == 0
    cli("resume", "--type", "ok")
    assert jobs.drain() == 1


def test_pause_and_resume_twice_are_no_errors(cli: Cli) -> None:
    assert [cli(word).code for word in ("pause", "pause", "resume", "resume")] == [0, 0, 0, 0]


def test_pause_and_resume_as_json_are_the_answers_of_the_api(cli: Cli) -> None:
    assert cli("pause", "--json").json == {"paused": True}
    assert cli("resume", "--json").json == {"paused": False}
    assert cli("pause", "--type", "t", "--json").json == {"paused": True, "type": "t"}
    assert cli("resume", "--type", "t", "--json").json == {"paused": False, "type": "t"}


# rate-limit


def test_rate_limit_is_stored(cli: Cli) -> None:
    assert cli("rate-limit", "10").out == "all types: 10 jobs per second\n"
    assert cli("rate-limit", "0.5", "--type", "crawl").out == "crawl: 0.5 jobs per second\n"
    assert cli("config", "get", "rate_limit").out == "10\n"
    assert cli("config", "get", "rate_limit", "--type", "crawl").out == "0.5\n"
    assert cli("rate-limit", "0").out == "all types: unlimited\n"
    assert cli("config", "get", "rate_limit").out == "0\n"


def test_rate_limit_as_json_is_the_answer_of_the_api(cli: Cli) -> None:
    assert cli("rate-limit", "10", "--json").json == {"tasksPerSecond": 10}
    assert cli("rate-limit", "2.5", "--type", "t", "--json").json == {"tasksPerSecond": 2.5, "type": "t"}


@pytest.mark.parametrize("rate", ["-1", "fast", "inf", "nan", "1e9"])
def test_rate_limit_that_makes_no_sense_is_wrong_usage(cli: Cli, rate: str) -> None:
    ran = cli("rate-limit", rate)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert cli("config", "get", "rate_limit").out == "0\n"


@pytest.mark.parametrize(
    "words", [("pause",), ("resume",), ("rate-limit", "1"), ("config", "set", "max_attempts", "2")]
)
def test_impossible_type_is_wrong_usage(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words, "--type", "no such type")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)


@pytest.mark.parametrize(
    "words", [("pause",), ("resume",), ("rate-limit", "1"), ("config", "set", "max_attempts", "2")]
)
def test_empty_type_does_not_mean_everything(cli: Cli, words: tuple[str, ...]) -> None:
    cli("pause")
    ran = cli(*words, "--type", "")
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1), ran
    status = cli("status", "--json").json
    assert status["paused"] is True
    assert cli("config", "list", "--json").json["max_attempts"] == 3
