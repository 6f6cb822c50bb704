"""queuectl --json: one valid JSON document from every command that prints data, and nothing beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.cli.main import COMMANDS, load
from tests.surfaces.support import Cli

CALLS = {
    "enqueue": ["--command", "echo ü"],
    "worker list": [],
    "status": [],
    "list": ["--full", "--sort", "priority", "--reverse", "--since", "1h"],
    "show": ["failed"],
    "logs": ["command"],
    "why": ["failed"],
    "retry": ["failed"],
    "cancel": ["command"],
    "delete": ["failed"],
    "dlq list": ["--search", "broke", "--sort", "finished"],
    "dlq retry": ["--all", "--error", "RuntimeError: it broke"],
    "dlq purge": ["--older-than", "1d"],
    "cleanup": ["--older-than", "1d"],
    "pause": [],
    "resume": [],
    "rate-limit": ["5"],
    "config list": [],
    "config get": ["backoff_base"],
    "config set": ["backoff_base", "3"],
    "config unset": ["backoff_base"],
    "report": [],
    "reconcile": [],
    "migrate": [],
    "backup": ["copy.db"],
    "move": ["--to", "sqlite:///moved.db"],
    "doctor": [],
}

LISTS = ("worker list",)


@pytest.fixture
def some_jobs(jobs: Queue) -> Queue:
    jobs.enqueue("bad", {"text": 'ü "quoted"\n\u2028'}, id="failed", max_attempts=1)
    assert jobs.drain() == 1
    jobs.enqueue("shell", {"command": "true"}, id="command", delay=3600)
    return jobs


@pytest.mark.parametrize("name", CALLS)
def test_json_is_one_document_and_nothing_else(
    cli: Cli, some_jobs: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli(*name.split(), *CALLS[name], "--json")
    assert (ran.code, ran.err) == (0, ""), ran
    assert isinstance(ran.json, list if name in LISTS else dict)
    assert ran.out.endswith("\n")
    assert "NaN" not in ran.out
    assert "Infinity" not in ran.out


@pytest.mark.parametrize("name", CALLS)
def test_json_flag_may_stand_before_the_arguments(
    cli: Cli, some_jobs: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    json.loads(cli(*name.split(), "--json", *CALLS[name]).out)


@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith("config")])
def test_json_has_the_names_of_the_api(
    cli: Cli, some_jobs: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """camelCase throughout, but for settings and types, whose names are data."""
    monkeypatch.chdir(tmp_path)
    keys: set[str] = set()

    def collect(value: object) -> None:
        if isinstance(value, dict):
            keys.update(value)
            for part in value.values():
                collect(part)
        elif isinstance(value, list):
            for part in value:
                collect(part)

    collect(cli(*name.split(), *CALLS[name], "--json").json)
    assert not [key for key in keys if "_" in key or "-" in key or key[0].isupper()]


@pytest.mark.parametrize("name", ["show", "logs", "why", "retry", "cancel", "delete", "dlq retry"])
def test_failure_prints_no_json(cli: Cli, name: str) -> None:
    ran = cli(*name.split(), "nope", "--json")
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)


def test_every_command_that_takes_json_is_tested_here() -> None:
    takes = {name for name in COMMANDS if "--json" in load(name).parser(name).format_help()}
    assert takes - {"worker start", "worker stop"} <= CALLS.keys()
