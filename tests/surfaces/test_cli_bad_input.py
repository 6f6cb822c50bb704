"""Bad input of every kind through queuectl: one line on stderr, the right exit code, nothing half done."""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.cli.main import COMMANDS, GROUPS, load
from tests.surfaces.support import Cli, Ran, on_terminal

pytestmark = pytest.mark.slow

FAILED, WRONG_USAGE = 1, 2

ESCAPES = "\x1b[31m\x07\x9b2J\x7f\r\n\u202eTraceback (most recent call last)"
"""What a terminal would act upon: colours, a bell, an 8-bit control, new lines, a change of direction."""

NOT_UTF8 = "caf\udce9"
"""What Python makes of an argument that is not UTF-8."""

DEEP = '{"type": "echo", "payload": ' + '{"a":' * 100_000 + "1" + "}" * 100_001
DIGITS = "9" * 5000
LONG = "x" * 100_000

Each = Callable[[Iterable[Any], Callable[[Any], None]], None]


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a job in each of the states that need no running worker."""
    path = tmp_path_factory.mktemp("furnished") / "queue.db"
    with Queue(f"sqlite:///{path}", defaults={"max_attempts": 1}) as queue:
        queue.register("echo", lambda payload: payload)
        queue.register("bad", _fail)
        queue.enqueue("echo", {"a": 1}, id="done1")
        queue.enqueue("bad", {"a": 1}, id="dead1", key="k1")
        queue.enqueue("echo", {"a": 1}, id="gone1", delay=100)
        queue.cancel("gone1")
        queue.drain()
        queue.enqueue("echo", {"a": 1}, id="wait1", key="taken")
        queue.enqueue("shell", {"command": "true"}, id="command1")
        queue.enqueue("echo", {"a": 1}, id="later1", delay=3600)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


def _fail(payload: object) -> None:
    raise RuntimeError("it broke")


@pytest.fixture
def stocked(home: Path, furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home with that database, and a working folder of its own."""
    shutil.copyfile(furnished, home / "queue.db")
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    _set_stdin(monkeypatch, b"")
    return home


def _set_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.fixture
def unchanged(stocked: Path) -> Iterator[None]:
    """Nothing in the database is different afterwards."""
    before = _content(stocked / "queue.db")
    yield
    assert _content(stocked / "queue.db") == before
    files = [path.relative_to(stocked) for path in stocked.rglob("*") if path.is_file()]
    assert not [path for path in files if path.parts[0] != "logs" and not path.name.startswith("queue.db")]


def _content(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        # A number that was taken and given back is not a change.
        return [line for line in connection.iterdump() if "sqlite_sequence" not in line]
    finally:
        connection.close()


def _version(connection: sqlite3.Connection) -> object:
    """What is another when another connection has changed the database."""
    return connection.execute("PRAGMA data_version").fetchone()


def check_one_line(ran: Ran, code: int) -> None:
    """An error as it must be: its code, one line for people, nothing for programs."""
    assert ran.code == code, ran
    assert ran.out == "", ran
    assert ran.err.startswith("queuectl: "), ran
    assert ran.err.endswith("\n"), ran
    assert ran.err.count("\n") == 1, ran
    check_harmless(ran)


def check_harmless(ran: Ran) -> None:
    """Nothing in the output can act on a terminal, and nothing is a traceback."""
    for text in (ran.out, ran.err):
        assert all(line.replace("\t", "").isprintable() for line in text.split("\n")), ran
        assert not any(line.startswith("Traceback") for line in text.split("\n")), ran


WRONG_COMMANDS: list[tuple[str, ...]] = [
    ("nonsense",),
    ("enqeue",),
    ("",),
    (" ",),
    ("--",),
    ("-",),
    ("--json",),
    ("--database",),
    ("--nonsense",),
    ("LIST",),
    (ESCAPES,),
    (NOT_UTF8,),
    (LONG,),
    ("worker", "nonsense"),
    ("worker", ""),
    ("worker", "--json"),
    ("worker", ESCAPES),
    ("dlq", "nonsense"),
    ("dlq", "purge"),
    ("dlq", NOT_UTF8),
    ("config", "nonsense"),
    ("config", ESCAPES),
    ("config", LONG),
    ("__nonsense",),
    ("serve.py",),
    ("completion",),
    ("completion", "powershell"),
    ("completion", ESCAPES),
    ("completion", "bash", "zsh"),
    ("completion", ""),
    ("completion", "bash", "--json"),
]

WRONG_OPTIONS: list[tuple[str, ...]] = [
    ("list", "--nonsense"),
    ("list", "--" + ESCAPES),
    ("list", "--" + NOT_UTF8),
    ("list", "--limit"),
    ("list", "--limit", ""),
    ("list", "--limit", "0"),
    ("list", "--limit", "-1"),
    ("list", "--limit", "1.5"),
    ("list", "--limit", "many"),
    ("list", "--limit", DIGITS),
    ("list", "--limit", str(2**31)),
    ("list", "--limit", ESCAPES),
    ("list", "--limit", NOT_UTF8),
    ("list", "--lim", "3"),
    ("list", "--offset", "-1"),
    ("list", "--offset", str(2**63)),
    ("list", "--status"),
    ("list", "--status", "nonsense"),
    ("list", "--status", ""),
    ("list", "--status", "FAILED"),
    ("list", "--status", ESCAPES),
    ("list", "--status", NOT_UTF8),
    ("list", "--status", "failed", "--status", "nonsense"),
    ("list", "--state", "nonsense"),
    ("list", "--type"),
    ("list", "--sort"),
    ("list", "--sort", ""),
    ("list", "--sort", "age"),
    ("list", "--sort", "Created"),
    ("list", "--sort", ESCAPES),
    ("list", "--sort", NOT_UTF8),
    ("list", "--reverse=yes"),
    ("list", "--error"),
    ("list", "--search"),
    ("list", "--search", LONG),
    ("list", "--search", " ".join(f"w{n}" for n in range(21))),
    ("list", "--search", "payload.password:sesame"),
    ("list", "--search", "it", "--offset", "1"),
    ("list", "--search", "it", "--cursor", "nonsense"),
    *(
        ("list", option, when)
        for option in ("--since", "--until")
        for when in ("", "yesterday", "2030-01-01", "2030-01-01T00:00:00", "1y", "nan", "inf", "1e3h")
    ),
    ("list", "--since"),
    ("list", "--since=-1h"),
    ("list", "--since", DIGITS),
    ("list", "--since", DIGITS + "d"),
    ("list", "--since", ESCAPES),
    ("list", "--until", NOT_UTF8),
    ("list", "--until", LONG),
    ("list", "--cursor", "<"),
    ("list", "--cursor", ESCAPES),
    ("list", "--cursor", NOT_UTF8),
    ("list", "--sort", "priority", "--cursor", "3"),
    ("list", "--sort", "finished", "--cursor", "7.3"),
    ("list", "--sort", "created", "--cursor", "-5.3"),
    ("list", "--json=yes"),
    ("list", "extra"),
    ("list", ESCAPES),
    ("list", NOT_UTF8),
    ("list", LONG),
    ("list", "--database", "nonsense"),
    ("list", "--database", "queue.db"),
    ("list", "--database", "nonsense://queue"),
    ("list", "--database", "sqlite://"),
    ("list", "--database", "sqlite:///"),
    ("list", "--database", "sqlite:///:memory:"),
    ("list", "--database", "sqlite:///queue.db?mode=ro"),
    ("list", "--database", "sqlite:///queue.db?synchronous=sometimes"),
    ("list", "--database", "sqlite:///queue.db?" + ESCAPES),
    ("list", "--database", ESCAPES),
    ("list", "--database", ESCAPES + "://x"),
    ("list", "--database", NOT_UTF8),
    ("list", "--database", "sqlite:///%00"),
    ("list", "--database", "sqlite:///queue%00.db"),
    ("show",),
    ("show", "wait1", "done1"),
    ("show", "--nonsense", "wait1"),
    ("why",),
    ("logs",),
    ("logs", "command1", "--nonsense"),
    ("status", "now"),
    ("status", "--watch=1"),
    ("status", "--" + ESCAPES),
    ("report", "nonsense"),
    ("reconcile", "nonsense"),
    ("reconcile", "--type"),
    ("reconcile", "--type", "nonsense"),
    ("reconcile", "--type", ESCAPES),
    ("reconcile", "--type", LONG),
    ("reconcile", "--app"),
    ("reconcile", "--app", "nowhere:queue"),
    ("doctor", "nonsense"),
    ("migrate", "nonsense"),
    ("backup",),
    ("backup", "a", "b"),
    ("move",),
    ("move", "elsewhere"),
    ("move", "--to"),
    ("move", "--to", ""),
    ("move", "--to", "elsewhere.db"),
    ("move", "--to", ESCAPES),
    ("move", "--to", LONG),
    ("move", "--to", "mysql://db/jobs"),
    ("move", "--to", "sqlite:///:memory:"),
    ("move", "--to", "sqlite:///moved.db?nonsense=1"),
    ("move", "--to", "postgresql://db/jobs?nonsense=1"),
    ("move", "--to", "postgresql://db/jobs?schema="),
    ("move", "--to", "sqlite:///moved.db", "--timeout"),
    ("move", "--to", "sqlite:///moved.db", "--timeout", "soon"),
    ("move", "--to", "sqlite:///moved.db", "--timeout", "-1"),
    ("retry",),
    ("retry", "dead1", "--payload"),
    ("retry", "dead1", "--payload", ""),
    ("retry", "dead1", "--payload", "[]"),
    ("retry", "dead1", "--payload", "null"),
    ("retry", "dead1", "--payload", "{"),
    ("retry", "dead1", "--payload", '{"a": NaN}'),
    ("retry", "dead1", "--payload", '{"a": "\\ud800"}'),
    ("retry", "dead1", "--payload", '{"a": 1, "a": 2}'),
    ("retry", "dead1", "gone1", "--payload", "{}"),
    ("cancel",),
    ("cancel", "--nonsense"),
    ("delete",),
    ("dlq", "list", "--limit", "0"),
    ("dlq", "list", "--offset", "-3"),
    ("dlq", "list", "extra"),
    ("dlq", "retry"),
    ("dlq", "retry", "dead1", "--all"),
    ("dlq", "retry", "dead1", "--type", "bad"),
    ("dlq", "retry", "--type", "bad"),
    ("dlq", "retry", "--error", "RuntimeError: it broke"),
    *(("dlq", "retry", "dead1", f"--{name}", "1h") for name in ("error", "search", "since", "until")),
    ("dlq", "retry", "--all", "--since", "yesterday"),
    ("dlq", "retry", "--all", "--until", ""),
    ("dlq", "retry", "--all", "--search", LONG),
    ("dlq", "retry", "--all", "--search", "payload.api_key:x"),
    ("dlq", "retry", "--all", "--sort", "created"),
    ("dlq", "list", "--sort", "age"),
    ("dlq", "list", "--since", "soon"),
    ("dlq", "list", "--status", "failed"),
    ("dlq", "purge", "--older-than"),
    ("dlq", "purge", "--older-than", ""),
    ("dlq", "purge", "--older-than", "-1d"),
    ("dlq", "purge", "--older-than", "yesterday"),
    ("dlq", "purge", "--older-than", "1y"),
    ("cleanup",),
    ("cleanup", "--older-than", "nonsense"),
    ("cleanup", "--older-than", "-5"),
    ("cleanup", "--older-than", "nan"),
    ("cleanup", "--older-than", "inf"),
    ("cleanup", "--older-than", DIGITS),
    ("cleanup", "--older-than", DIGITS + "d"),
    ("cleanup", "--older-than", ESCAPES),
    ("cleanup", "--older-than", NOT_UTF8),
    ("cleanup", "--older-than", "7d", "extra"),
    ("pause", "extra"),
    ("pause", "--type", ""),
    ("pause", "--type", "two words"),
    ("pause", "--type", ESCAPES),
    ("pause", "--type", NOT_UTF8),
    ("pause", "--type", "t" * 256),
    ("resume", "--type", "a/b"),
    ("rate-limit",),
    ("rate-limit", ""),
    ("rate-limit", "fast"),
    ("rate-limit", "-1"),
    ("rate-limit", "nan"),
    ("rate-limit", "inf"),
    ("rate-limit", "1e300"),
    ("rate-limit", DIGITS),
    ("rate-limit", ESCAPES),
    ("rate-limit", NOT_UTF8),
    ("rate-limit", "1", "--type", ""),
    ("rate-limit", "1", "--type", ESCAPES),
    ("config", "get"),
    ("config", "get", "nonsense"),
    ("config", "get", ""),
    ("config", "get", ESCAPES),
    ("config", "get", NOT_UTF8),
    ("config", "get", LONG),
    ("config", "set"),
    ("config", "set", "max_attempts"),
    ("config", "set", "nonsense", "1"),
    ("config", "set", "max_attempts", "0"),
    ("config", "set", "max_attempts", "-1"),
    ("config", "set", "max_attempts", "1.5"),
    ("config", "set", "max_attempts", ""),
    ("config", "set", "max_attempts", "none"),
    ("config", "set", "max_attempts", DIGITS),
    ("config", "set", "max_attempts", str(2**31)),
    ("config", "set", "max_attempts", ESCAPES),
    ("config", "set", "max_attempts", NOT_UTF8),
    ("config", "set", "max_attempts", "3", "4"),
    ("config", "set", "max_attempts", "3", "--type", ""),
    ("config", "set", "max_attempts", "3", "--type", "a b"),
    ("config", "set", "backoff_base", "nan"),
    ("config", "set", "backoff_base", "-inf"),
    ("config", "set", "backoff_base", "two"),
    ("config", "set", "backoff_jitter", "1.01"),
    ("config", "set", "backoff_strategy", "random"),
    ("config", "set", "backoff_strategy", ESCAPES),
    ("config", "set", "backoff_max", "12x"),
    ("config", "set", "lease_seconds", "2.9"),
    ("config", "set", "lease_seconds", "10", "--type", "echo"),
    ("config", "set", "job_timeout", "0"),
    ("config", "set", "job_timeout", "-1"),
    ("config", "set", "concurrency", "10001"),
    ("config", "set", "max_payload_bytes", "1"),
    ("config", "unset"),
    ("config", "unset", "nonsense"),
    ("config", "unset", "max_attempts", "--type", "a b"),
    ("config", "list", "--nonsense"),
    ("worker", "start", "--count"),
    ("worker", "start", "--count", "0"),
    ("worker", "start", "--count", "-3"),
    ("worker", "start", "--count", "1001"),
    ("worker", "start", "--count", "many"),
    ("worker", "start", "--concurrency", "0"),
    ("worker", "start", "--concurrency", "100000"),
    ("worker", "start", "--types", ""),
    ("worker", "start", "--types", "a,,b"),
    ("worker", "start", "--types", "a b"),
    ("worker", "start", "--types", ESCAPES),
    ("worker", "start", "--types", NOT_UTF8),
    ("worker", "start", "--log-format", "xml"),
    ("worker", "start", "--log-format", ESCAPES),
    ("worker", "start", "--log-level", "loud"),
    ("worker", "start", "--database", "nonsense"),
    ("worker", "start", "--detach", "--database", "nonsense"),
    ("worker", "start", "extra"),
    ("worker", "stop", "--timeout", "-1"),
    ("worker", "stop", "--timeout", "soon"),
    ("worker", "stop", "--timeout", ""),
    ("worker", "stop", "--timeout", ESCAPES),
    ("worker", "stop", "--nonsense"),
    ("worker", "list", "extra"),
    *((command, NOT_UTF8) for command in ("show", "why", "logs", "retry", "cancel", "delete", "backup")),
    ("dlq", "retry", NOT_UTF8),
    ("retry", NOT_UTF8, "--payload", "{}"),
    ("worker", "stop", NOT_UTF8),
    ("enqueue", "--file", NOT_UTF8),
    ("backup", NOT_UTF8 + "/queue.db"),
    ("list", "--database", "sqlite:///" + NOT_UTF8 + "/queue.db"),
]

WRONG_JOBS: list[tuple[str, ...]] = [
    (),
    ("--command",),
    ("--command", ""),
    ("--command", "  \n\t "),
    ("--command", NOT_UTF8),
    ("--command", "true", "--type", "echo"),
    ("--command", "true", "--payload", "{}"),
    ("--command", "true", "--lane", "two words"),
    ("--command", "true", "--lane", ""),
    ("--command", "true", "--lane", ESCAPES),
    ("--command", "true", "--lane", NOT_UTF8),
    ("--command", "true", "--lane", "m" * 256),
    ("--command", "true", "--id", ""),
    ("--command", "true", "--id", "two words"),
    ("--command", "true", "--id", "-x"),
    ("--command", "true", "--id=-x"),
    ("--command", "true", "--id", "../x"),
    ("--command", "true", "--id", "x" * 129),
    ("--command", "true", "--id", "stats"),
    ("--command", "true", "--id", "rate-limit"),
    ("--command", "true", "--id", "naïve"),
    ("--command", "true", "--id", ESCAPES),
    ("--command", "true", "--id", NOT_UTF8),
    ("--command", "true", "--id", "job1\n"),
    ("--command", "true", "--priority", "high"),
    ("--command", "true", "--priority", "1.5"),
    ("--command", "true", "--priority", str(2**31)),
    ("--command", "true", "--priority", str(-(2**31) - 1)),
    ("--command", "true", "--priority", DIGITS),
    ("--command", "true", "--priority", ESCAPES),
    ("--command", "true", "--max-attempts", "0"),
    ("--command", "true", "--max-attempts", "-1"),
    ("--command", "true", "--max-attempts", str(2**31)),
    ("--command", "true", "--timeout", "0"),
    ("--command", "true", "--timeout", "-1"),
    ("--command", "true", "--timeout", "soon"),
    ("--command", "true", "--timeout", ""),
    ("--command", "true", "--timeout", "1e3"),
    ("--command", "true", "--timeout", "nan"),
    ("--command", "true", "--timeout", DIGITS),
    ("--command", "true", "--timeout", ESCAPES),
    ("--command", "true", "--delay", "-1s"),
    ("--command", "true", "--delay", "1 fortnight"),
    ("--command", "true", "--delay", ""),
    ("--command", "true", "--delay", "99999999999d"),
    ("--command", "true", "--delay", "1s", "--run-at", "2030-01-31T09:00:00Z"),
    ("--command", "true", "--run-at", ""),
    ("--command", "true", "--run-at", "tomorrow"),
    ("--command", "true", "--run-at", "2030-01-31T09:00:00"),
    ("--command", "true", "--run-at", "2030-02-31T09:00:00Z"),
    ("--command", "true", "--run-at", "0001-01-01T00:00:00+14:00"),
    ("--command", "true", "--run-at", "9999-12-31T23:59:59-14:00"),
    ("--command", "true", "--run-at", ESCAPES),
    ("--command", "true", "--run-at", NOT_UTF8),
    ("--command", "true", "--key", ""),
    ("--command", "true", "--key", "k" * 513),
    ("--command", "true", "--key", ESCAPES),
    ("--command", "true", "--key", NOT_UTF8),
    ("--command", "true", "--key-for", "1d"),
    ("--command", "true", "--key", "k", "--key-for", "-1"),
    ("--command", "true", "--key", "k", "--key-for", "always"),
    ("--command", "true", "--env", "NAME"),
    ("--command", "true", "--env", "=value"),
    ("--command", "true", "--env", ""),
    ("--command", "true", "--env", ESCAPES),
    ("--command", "true", "--env", "A=" + NOT_UTF8),
    ("--command", "true", "--cwd", NOT_UTF8),
    ("--command", "true", "--chunk", "10"),
    ("--command", "true", "--file", "jobs.jsonl"),
    ("--command", "true", '{"command": "true"}'),
    ("--command", "true", "--nonsense"),
    ("--lane", "media"),
    ("--cwd", "/tmp"),
    ("--payload", "{}"),
    ("--type", ""),
    ("--type", "two words"),
    ("--type", "t" * 256),
    ("--type", ESCAPES),
    ("--type", NOT_UTF8),
    ("--type", "echo", "--lane", "media"),
    ("--type", "echo", "--env", "A=1"),
    ("--type", "echo", "--payload"),
    ("--type", "echo", "--payload", ""),
    ("--type", "echo", "--payload", "nonsense"),
    ("--type", "echo", "--payload", "[1, 2]"),
    ("--type", "echo", "--payload", '"text"'),
    ("--type", "echo", "--payload", "null"),
    ("--type", "echo", "--payload", ESCAPES),
    ("--type", "echo", "--payload", NOT_UTF8),
    ("--type", "echo", "--payload", '{"a": "' + NOT_UTF8 + '"}'),
    ("--type", "shell", "--payload", "{}"),
    ("--type", "shell", "--payload", '{"command": 5}'),
    ("--type", "shell", "--payload", '{"command": "true", "nonsense": 1}'),
    ("--type", "shell:media", "--payload", '{"cmd": "true"}'),
    ("--file", "jobs.jsonl", "--chunk", "0"),
    ("--file", "jobs.jsonl", "--chunk", "100001"),
    ("--file", "jobs.jsonl", "--id", "x"),
    ("--file", "jobs.jsonl", "--priority", "1"),
    ("--file", "-", "{}"),
    ('{"type": "echo"}', '{"type": "echo"}'),
]

WRONG_JSON: list[str] = [
    "",
    " ",
    "nonsense",
    "{",
    "}",
    "{}",
    "[]",
    "[{}]",
    "null",
    "true",
    "5",
    '"text"',
    "{'command': 'true'}",
    '{"command": "true",}',
    '{"command": "true"} {}',
    '{"command": "true"} // why not',
    '\ufeff{"command": "true"}',
    '{"command": "true", "command": "false"}',
    '{"type": "echo", "payload": {"a": {"b": 1, "b": 1}}}',
    '{"maxAttempts": 1, "max_attempts": 1, "command": "true"}',
    '{"command": "true", "nonsense": 1}',
    '{"command": "true", "\\u001b[31m": 1}',
    '{"command": "true", "\\ud800": 1}',
    '{"command": "true", "": 1}',
    '{"command": null}',
    '{"command": ""}',
    '{"command": 5}',
    '{"command": ["true"]}',
    '{"command": {"a": 1}}',
    '{"command": true}',
    '{"command": "a\\u0000b"}',
    '{"command": "\\ud800"}',
    '{"command": "true", "env": 5}',
    '{"command": "true", "env": {"A": 5}}',
    '{"command": "true", "env": {"A": "\\u0000"}}',
    '{"command": "true", "env": {"": "x"}}',
    '{"command": "true", "env": {"A=B": "x"}}',
    '{"command": "true", "cwd": 5}',
    '{"command": "true", "cwd": ["/tmp"]}',
    '{"command": "true", "limits": 5}',
    '{"command": "true", "limits": {"nonsense": 5}}',
    '{"command": "true", "limits": {"memoryBytes": "much"}}',
    '{"command": "true", "limits": {"memoryBytes": -1}}',
    '{"command": "true", "lane": 5}',
    '{"command": "true", "lane": {}}',
    '{"command": "true", "lane": ["media"]}',
    '{"command": "true", "lane": ""}',
    '{"command": "true", "lane": false}',
    '{"command": "true", "type": "echo"}',
    '{"command": "true", "type": 5}',
    '{"command": "true", "payload": {}}',
    '{"type": null}',
    '{"type": 5}',
    '{"type": 5, "payload": {"a": 1}}',
    '{"type": ["echo"], "payload": {"a": 1}}',
    '{"type": {}, "payload": {"a": 1}}',
    '{"type": true, "payload": {"a": 1}}',
    '{"type": "\\u001b[31m", "payload": {"a": 1}}',
    '{"type": "\\ud800", "payload": {"a": 1}}',
    '{"type": "", "payload": {"a": 1}}',
    '{"type": "echo", "payload": []}',
    '{"type": "echo", "payload": "text"}',
    '{"type": "echo", "payload": 5}',
    '{"type": "echo", "payload": {"a": NaN}}',
    '{"type": "echo", "payload": {"a": Infinity}}',
    '{"type": "echo", "payload": {"a": -Infinity}}',
    '{"type": "echo", "payload": {"a": 1e999}}',
    '{"type": "echo", "payload": {"a": "\\udfff"}}',
    '{"type": "echo", "payload": {"\\ud800": 1}}',
    '{"type": "echo", "payload": {"a": "\\u0000"}}',
    '{"type": "echo", "payload": {"a\\u0000": 1}}',
    '{"type": "echo", "payload": {"a": ' + DIGITS + "}}",
    '{"type": "echo", "payload": {"a": ' + "9" * 400 + "}}",
    '{"type": "echo", "payload": {"a": "' + "x" * (2 * 1024 * 1024) + '"}}',
    '{"type": "echo", "payload": ' + '{"a":' * 65 + "1" + "}" * 66,
    DEEP,
    "[" * 100_000,
    '{"a":' * 100_000,
    '{"command": "true", "id": 5}',
    '{"command": "true", "id": ""}',
    '{"command": "true", "id": ["x"]}',
    '{"command": "true", "id": "\\u001b"}',
    '{"command": "true", "id": "\\ud800"}',
    '{"command": "true", "id": "a\\u0000"}',
    '{"command": "true", "priority": "5"}',
    '{"command": "true", "priority": 1.0}',
    '{"command": "true", "priority": true}',
    '{"command": "true", "priority": NaN}',
    '{"command": "true", "priority": ' + "9" * 4000 + "}",
    '{"command": "true", "priority": []}',
    '{"command": "true", "max_retries": 0}',
    '{"command": "true", "maxAttempts": "3"}',
    '{"command": "true", "timeout": NaN}',
    '{"command": "true", "timeout": -Infinity}',
    '{"command": "true", "timeout": true}',
    '{"command": "true", "timeout": []}',
    '{"command": "true", "timeout": ' + "9" * 4000 + "}",
    '{"command": "true", "delay": "soon"}',
    '{"command": "true", "delay": {}}',
    '{"command": "true", "delay": 1e300}',
    '{"command": "true", "delay": "\\u001b"}',
    '{"command": "true", "delay": 1, "runAt": "2030-01-31T09:00:00Z"}',
    '{"command": "true", "runAfter": 1893456000}',
    '{"command": "true", "run_at": "2030-01-31"}',
    '{"command": "true", "run_at": {}}',
    '{"command": "true", "run_at": "\\ud800"}',
    '{"command": "true", "key": 5}',
    '{"command": "true", "key": ""}',
    '{"command": "true", "key": "\\u0000"}',
    '{"command": "true", "key": "\\ud800"}',
    '{"command": "true", "key": "k", "keyFor": "long"}',
    '{"command": "true", "keyFor": 5}',
    '{"command": "true", "file": "x"}',
    '{"command": "true", "json": true}',
    ESCAPES,
    NOT_UTF8,
    '{"command": "' + ESCAPES + '"}',
    '{"command": "true", "id": "' + NOT_UTF8 + '"}',
    LONG,
]

NOT_FOUND: list[tuple[str, ...]] = [
    *(
        (command, id)
        for command in ("show", "why", "logs", "retry", "cancel", "delete")
        for id in ("nonsense", "", ESCAPES, LONG, "a' OR '1'='1", "../../etc/passwd")
    ),
    ("dlq", "retry", "nonsense"),
    ("dlq", "retry", ""),
    ("dlq", "retry", ESCAPES),
    ("dlq", "retry", "wait1"),
    ("retry", "wait1"),
    ("retry", "done1"),
    ("retry", "nonsense", "--payload", "{}"),
    ("cancel", "done1"),
    ("delete", "wait1"),
    ("logs", "done1"),
    ("worker", "stop", "nonsense"),
    ("worker", "stop", ESCAPES),
    ("enqueue", "--command", "true", "--id", "done1"),
    ("enqueue", "--type", "echo", "--payload", '{"b": 2}', "--key", "taken"),
    ("enqueue", "--file", "nonsense.jsonl"),
    ("enqueue", "--file", ""),
    ("enqueue", "--file", "."),
    ("enqueue", "--file", ESCAPES),
    ("enqueue", "--file", LONG),
    ("backup", ""),
    ("backup", "."),
    ("backup", "/nonsense/queue.db"),
    ("backup", ESCAPES + "/queue.db"),
    ("backup", LONG),
    ("move", "--to", "sqlite:////nonsense/queue.db"),
    ("move", "--to", "sqlite:///."),
    ("move", "--to", "postgresql://127.0.0.1:9/jobs"),
    ("list", "--database", "sqlite:////nonsense/queue.db"),
    ("list", "--database", "sqlite:///" + ESCAPES.replace("\x9b", "") + "/queue.db"),
    ("list", "--database", "sqlite:///" + "x" * 300),
    ("list", "--database", "sqlite:///."),
    ("worker", "start", "--database", "sqlite:////nonsense/queue.db"),
    ("worker", "start", "--detach", "--database", "sqlite:////nonsense/queue.db"),
]


def _name(words: object) -> str:
    text = ascii(" ".join(words) if isinstance(words, tuple) else words)[1:-1]
    return text if len(text) <= 60 else f"{text[:57]}..."


def test_the_corpus_is_large() -> None:
    corpus = [*WRONG_COMMANDS, *WRONG_OPTIONS, *WRONG_JOBS, *WRONG_JSON, *NOT_FOUND]
    assert len(set(corpus)) == len(corpus) >= 150


@pytest.fixture
def each(stocked: Path) -> Each:
    """Tries many cases, and tells of every one that failed or has changed something in the database."""

    def try_all(cases: Iterable[Any], check: Callable[[Any], None]) -> None:
        wrong = {}
        path = stocked / "queue.db"
        before = _content(path)
        with closing(sqlite3.connect(path)) as looking:
            for case in cases:
                # Only where another has committed can there be a difference.
                version = _version(looking)
                try:
                    check(case)
                    assert _version(looking) == version or _content(path) == before, "it is another database"
                except AssertionError as error:
                    wrong[_name(case)] = str(error)
                    before = _content(path)
        assert not wrong, "\n".join(f"{name}: {reason}" for name, reason in wrong.items())

    return try_all


@pytest.mark.process
@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("lines", [WRONG_COMMANDS, WRONG_OPTIONS], ids=["commands", "options"])
def test_wrong_usage_is_one_line_and_exit_code_2(cli: Cli, each: Each, lines: list[tuple[str, ...]]) -> None:
    each(lines, lambda words: check_one_line(cli(*words), WRONG_USAGE))


@pytest.mark.usefixtures("unchanged")
def test_a_job_that_is_wrong_is_refused_and_not_stored(cli: Cli, each: Each) -> None:
    each(WRONG_JOBS, lambda words: check_one_line(cli("enqueue", *words), WRONG_USAGE))


@pytest.mark.usefixtures("unchanged")
def test_json_that_is_wrong_is_refused_and_not_stored(cli: Cli, each: Each) -> None:
    each(WRONG_JSON, lambda text: check_one_line(cli("enqueue", text), WRONG_USAGE))


@pytest.mark.process
@pytest.mark.usefixtures("unchanged")
def test_what_fails_or_is_not_found_is_one_line_and_exit_code_1(cli: Cli, each: Each) -> None:
    each(NOT_FOUND, lambda words: check_one_line(cli(*words), FAILED))


@pytest.mark.usefixtures("unchanged")
def test_a_bad_line_of_a_file_is_named_and_none_of_the_file_is_stored(
    cli: Cli, each: Each, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.jsonl"

    def check(text: str) -> None:
        lines = [b'{"command": "true"}', b"", _as_line(text), b'{"command": "true"}']
        file.write_bytes(b"\n".join(lines) + b"\n")
        ran = cli("enqueue", "--file", str(file))
        check_one_line(ran, WRONG_USAGE)
        assert "line 3: " in ran.err
        assert "nothing was stored" in ran.err

    each([text for text in WRONG_JSON if text.strip()], check)


def _as_line(text: str) -> bytes:
    return text.replace("\n", " ").replace("\r", " ").encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("chunk", [(), ("--chunk", "1")], ids=["one commit", "chunks"])
@pytest.mark.parametrize(
    "line", [b"\xff\xfe", b'{"command": "caf\xe9"}', b'{"command": "true", "id": 5}', b"\x00"]
)
@pytest.mark.usefixtures("unchanged")
def test_a_bad_line_on_standard_input_stores_nothing_even_with_chunks(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, line: bytes, chunk: tuple[str, ...]
) -> None:
    _set_stdin(monkeypatch, b'{"command": "true"}\n' * 3 + line + b'\n{"command": "true"}\n')
    ran = cli("enqueue", "--file", "-", *chunk)
    check_one_line(ran, WRONG_USAGE)
    assert "line 4: " in ran.err


@pytest.mark.usefixtures("unchanged")
def test_an_id_that_is_taken_in_the_middle_of_a_file_stores_none_of_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_stdin(monkeypatch, b'{"command": "true"}\n{"command": "true", "id": "done1"}\n')
    ran = cli("enqueue", "--file", "-")
    check_one_line(ran, FAILED)
    assert "line 2: " in ran.err


@pytest.mark.usefixtures("unchanged")
@pytest.mark.timeout(60)
def test_a_repeated_key_among_very_many_is_found_at_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f'"k{number}": 1' for number in range(100_000)]
    payload = "{" + ", ".join([*keys, keys[-1]]) + "}"
    _set_stdin(monkeypatch, f'{{"type": "echo", "payload": {payload}}}\n'.encode())
    check_one_line(cli("enqueue", "--file", "-"), WRONG_USAGE)


@pytest.mark.usefixtures("stocked")
@pytest.mark.parametrize("command", ["retry", "cancel", "delete"])
def test_with_several_ids_each_failure_is_a_line_and_the_rest_is_done(cli: Cli, command: str) -> None:
    good = {"retry": "gone1", "cancel": "later1", "delete": "dead1"}[command]
    ran = cli(command, "nonsense", good, ESCAPES)
    assert ran.code == FAILED
    assert len(ran.errors) == 2, ran
    assert len(ran.lines) == 1, ran
    assert ran.out.startswith(good)
    check_harmless(ran)


# Whatever is stored, it is shown so that a terminal does not act upon it.

HOSTILE_JOB = json.dumps({"type": "echo", "payload": {"a": ESCAPES, ESCAPES: "\x9b31m"}})
LOOKS: list[tuple[str, ...]] = [
    ("list",),
    ("list", "--json"),
    ("list", "--full"),
    ("list", "--full", "--json"),
    ("show", "hostile1"),
    ("show", "hostile1", "--json"),
    ("show", "hostile2"),
    ("show", "hostile2", "--json"),
    ("why", "hostile1"),
    ("why", "hostile2"),
    ("status",),
    ("status", "--json"),
    ("report",),
    ("report", "--json"),
    ("reconcile",),
    ("reconcile", "--json"),
    ("dlq", "list"),
    ("dlq", "list", "--full"),
    ("worker", "list"),
    ("config", "list"),
    ("doctor",),
]


@pytest.fixture
def hostile(stocked: Path, queue: Queue) -> Path:
    """A home whose jobs hold escape sequences wherever text is taken."""

    def bad(payload: object) -> None:
        raise RuntimeError(ESCAPES)

    queue.register("hostile", bad)
    queue.enqueue("hostile", {"a": ESCAPES, ESCAPES: 1}, id="hostile1", max_attempts=1)
    queue.drain(1000)
    queue.enqueue("shell", {"command": ESCAPES, "cwd": ESCAPES}, id="hostile2", priority=5)
    failed = queue.get("hostile1")
    assert failed is not None
    assert failed.status == "failed"
    return stocked


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("words", LOOKS, ids=_name)
def test_what_jobs_hold_never_acts_on_who_looks(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words)
    assert ran.code == 0 or words == ("doctor",), ran
    check_harmless(ran)


@pytest.mark.process
@pytest.mark.parametrize(
    "words", [("list",), ("show", "hostile1"), ("show", "hostile1", "--json"), ("report",)]
)
def test_what_jobs_hold_never_acts_on_a_terminal(hostile: Path, words: tuple[str, ...]) -> None:
    ran = on_terminal(hostile, *words, env={"NO_COLOR": "1"})
    assert ran.code == 0, ran
    shown = ran.text.replace("\r\n", "\n")
    assert all(line.isprintable() for line in shown.split("\n")), ran
    assert "\x1b[31m" not in ran.out
    assert "\x07" not in ran.out


# Every command with every option.


def _parsers() -> dict[str, argparse.ArgumentParser]:
    return {name: load(name).parser(name) for name in COMMANDS}


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0


@pytest.mark.usefixtures("stocked")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_hostile_value_for_any_option_or_argument_is_harmless(cli: Cli, stocked: Path, name: str) -> None:
    (stocked / ".stop_workers").touch()  # no worker starts
    parser = load(name).parser(name)
    positionals = [action for action in parser._actions if not action.option_strings]
    filled = [_valid(action) for action in positionals]
    lines = []
    for value in (ESCAPES, NOT_UTF8, "", LONG):
        lines += [[*filled[:place], value, *filled[place + 1 :]] for place in range(len(filled))]
        for action in parser._actions:
            for option in action.option_strings:
                if _takes_value(action):
                    lines += [[*filled, option, value], [*filled, f"{option}={value}"]]
                elif option.startswith("--"):
                    lines.append([*filled, f"{option}={value}"])
    for line in lines:
        ran = cli(*name.split(), *line)
        assert ran.code in (0, 1, 2), ran
        assert ran.code == 0 or ran.err.startswith("queuectl: ") or name == "doctor", ran
        check_harmless(ran)


def _valid(action: argparse.Action) -> str:
    if action.choices:
        return str(next(iter(action.choices)))
    return {"rate": "5", "key": "max_attempts", "value": "4", "job": '{"command": "true"}'}.get(
        action.dest, "wait1"
    )


VALUES = (
    *("0", "1", "-1", "5", "10s", "7d", "1.5", "none", "nan", DIGITS, "", " ", "-", "--", "-x", "a,b"),
    *("wait1", "dead1", "done1", "command1", "nonsense", "echo", "shell", "shell:media", "failed", "dead"),
    *("{}", '{"command": "true"}', '{"type": "echo"}', "[]", "max_attempts", "backoff_base", "bash", "json"),
    *("2030-01-31T09:00:00Z", "A=1", "sqlite:///other.db", "sqlite:///.", "x.db", "nonsense://", "--json"),
    *(ESCAPES, NOT_UTF8, "名前", "🎉"),
)
COMMAND_LINES = 400
# These wait for something by design; tests of their own look at them.
ENDLESS = {"--watch", "-w", "--follow", "-f"}


def _random_line(chance: random.Random, parsers: dict[str, argparse.ArgumentParser]) -> list[str]:
    name = chance.choice(list(COMMANDS))
    words: list[str] = []
    for action in parsers[name]._actions:
        if action.option_strings:
            if chance.random() < 0.3 and not ENDLESS & set(action.option_strings):
                words.append(chance.choice(action.option_strings))
                if _takes_value(action):
                    words.append(_random_value(chance, action))
        elif chance.random() < 0.9:
            for _ in range(chance.choice((1, 1, 1, 2, 3)) if action.nargs in ("+", "*") else 1):
                words.insert(chance.randrange(len(words) + 1), _random_value(chance, action))
    if chance.random() < 0.1:
        words.append(chance.choice(VALUES))
    if chance.random() < 0.1 and words:
        words.pop(chance.randrange(len(words)))
    return [*name.split(), *words]


def _random_value(chance: random.Random, action: argparse.Action) -> str:
    if action.choices and chance.random() < 0.7:
        return str(chance.choice(list(action.choices)))
    return _valid(action) if chance.random() < 0.4 else chance.choice(VALUES)


@pytest.mark.parametrize("seed", range(4))
def test_no_command_line_of_any_options_ends_in_a_traceback(
    cli: Cli, stocked: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    (stocked / ".stop_workers").touch()  # no worker starts
    chance, parsers = random.Random(seed), _parsers()
    codes = set()
    for _ in range(COMMAND_LINES // 4):
        _set_stdin(monkeypatch, chance.choice((b"", b'{"command": "true"}\n', b"nonsense\n")))
        words = _random_line(chance, parsers)
        try:
            ran = cli(*words)
        except BaseException as error:
            pytest.fail(f"queuectl {words!r} raised {type(error).__name__}: {error}")
        codes.add(ran.code)
        assert ran.code in (0, 1, 2), (words, ran)
        assert (ran.code == 0) or ran.err or words[0] == "doctor", (words, ran)
        check_harmless(ran)
    assert codes == {0, 1, 2}


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_without_its_command_is_wrong_usage_and_lists_them(cli: Cli, group: str) -> None:
    ran = cli(group)
    assert ran.code == WRONG_USAGE
    assert "usage: queuectl" in ran.out + ran.err


@pytest.mark.usefixtures("stocked")
@pytest.mark.parametrize(
    "words",
    [[], [""], ["nonsense", ""], ["list", "--type", ""], ["show", NOT_UTF8], ["worker", ESCAPES, ""]],
    ids=_name,
)
def test_completion_of_nonsense_is_silent(cli: Cli, words: list[str]) -> None:
    ran = cli("__complete", *words)
    assert ran.code == 0
    assert ran.err == ""
    check_harmless(ran)


# Errors that nobody thought of.


def test_an_error_of_our_own_is_one_line_too(
    cli: Cli, stocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError(ESCAPES)

    monkeypatch.setattr(Queue, "page", broken)
    check_one_line(cli("list"), FAILED)


def test_a_payload_that_somebody_broke_by_hand_is_one_line(cli: Cli, stocked: Path) -> None:
    connection = sqlite3.connect(stocked / "queue.db")
    with connection:
        connection.execute("UPDATE holdfast_jobs SET payload = '{' WHERE id = 'wait1'")
    connection.close()
    check_one_line(cli("show", "wait1"), FAILED)
    check_one_line(cli("list"), FAILED)


# Databases that are none, are not ours, or are broken.

EVERY_COMMAND: list[tuple[str, ...]] = [
    ("enqueue", "--command", "true"),
    ("enqueue", "--file", "-"),
    ("worker", "stop"),
    ("worker", "list"),
    ("status",),
    ("list",),
    ("list", "--json"),
    ("show", "wait1"),
    ("logs", "command1"),
    ("logs", "command1", "--follow"),
    ("why", "wait1"),
    ("retry", "dead1", "gone1"),
    ("cancel", "wait1", "later1"),
    ("delete", "done1", "dead1"),
    ("dlq", "list"),
    ("dlq", "retry", "dead1"),
    ("dlq", "retry", "--all"),
    ("dlq", "purge", "--older-than", "0"),
    ("cleanup", "--older-than", "0"),
    ("pause",),
    ("resume", "--type", "echo"),
    ("rate-limit", "5"),
    ("config", "list"),
    ("config", "get", "max_attempts"),
    ("config", "set", "max_attempts", "5"),
    ("config", "unset", "max_attempts"),
    ("report",),
    ("reconcile",),
    ("migrate",),
    ("backup", "copy.db"),
    ("move", "--to", "sqlite:///moved.db"),
]


def test_every_command_that_opens_the_database_is_tried() -> None:
    tried = {" ".join(words[:length]) for words in EVERY_COMMAND for length in (1, 2)}
    assert set(COMMANDS) - tried == {"worker start", "serve", "doctor", "completion"}


def _not_sqlite(path: Path) -> None:
    path.write_bytes(b"To whom it may concern:\n" * 100)


def _short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:70])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _run_sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def _foreign_table(path: Path) -> None:
    path.unlink()
    _run_sql(path, "CREATE TABLE holdfast_jobs (name TEXT)", "INSERT INTO holdfast_jobs VALUES ('mine')")


def _newer_schema(path: Path) -> None:
    _run_sql(path, "UPDATE holdfast_schema SET version = 999")


def _no_version(path: Path) -> None:
    _run_sql(path, "DELETE FROM holdfast_schema")


def _odd_version(path: Path) -> None:
    _run_sql(path, "DROP TABLE holdfast_schema", "CREATE TABLE holdfast_schema (name TEXT)")


def _renamed_column(path: Path) -> None:
    _run_sql(path, "ALTER TABLE holdfast_jobs RENAME COLUMN payload TO load")


def _table_gone(path: Path) -> None:
    _run_sql(path, "DROP TABLE holdfast_settings", "DROP TABLE holdfast_counts")


def _half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _first_page_only(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xaa" * (len(data) - 4096))


def _garbage_header(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\xaa" * 8176)


REFUSED: list[Callable[[Path], None]] = [
    *(_not_sqlite, _short, _folder, _foreign_table, _newer_schema, _no_version, _odd_version),
    *(_first_page_only, _garbage_header),
]
BROKEN: list[Callable[[Path], None]] = [_renamed_column, _table_gone, _half]


@pytest.mark.parametrize("damage", REFUSED, ids=lambda damage: damage.__name__.strip("_"))
def test_a_database_that_can_not_be_used_is_refused_untouched_by_every_command(
    cli: Cli, stocked: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    path = stocked / "queue.db"
    damage(path)
    before = path.read_bytes() if path.is_file() else b""
    for words in EVERY_COMMAND:
        _set_stdin(monkeypatch, b'{"command": "true"}\n')
        check_one_line(cli(*words), FAILED)
    ran = cli("doctor")
    assert ran.code == FAILED, ran
    assert ran.out.startswith("problem\tdatabase"), ran
    check_harmless(ran)
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert not Path("copy.db").exists()


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__.strip("_"))
def test_a_broken_database_gives_no_command_a_traceback(
    cli: Cli, stocked: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    damage(stocked / "queue.db")
    codes = []
    for words in (*EVERY_COMMAND, ("doctor",)):
        _set_stdin(monkeypatch, b'{"command": "true"}\n')
        ran = cli(*words)
        codes.append(ran.code)
        assert ran.code in (0, FAILED), (words, ran)
        assert ran.err.count("\n") == 1 or ran.code == 0 or words == ("doctor",), (words, ran)
        check_harmless(ran)
    assert FAILED in codes


@pytest.mark.parametrize(
    "address",
    ["sqlite:///{home}/no/such/queue.db", "sqlite:///{home}/file/queue.db", "sqlite:///{home}/link/queue.db"],
)
def test_a_folder_that_is_missing_is_made_by_no_command(
    cli: Cli, stocked: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    (stocked / "file").touch()
    (stocked / "link").symlink_to("nowhere")
    before = sorted(stocked.rglob("*"))
    for words in EVERY_COMMAND:
        _set_stdin(monkeypatch, b'{"command": "true"}\n')
        check_one_line(cli(*words, "--database", address.format(home=stocked)), FAILED)
    assert sorted(stocked.rglob("*")) == before


@pytest.mark.parametrize("kind", ["file", "link to nowhere", "below a file"])
def test_a_home_that_is_no_folder_is_one_line_for_every_command(
    cli: Cli, stocked: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    home = stocked / "file"
    home.touch()
    if kind == "link to nowhere":
        home = stocked / "link"
        home.symlink_to("/proc/nonsense/home")
    elif kind == "below a file":
        home = home / "home"
    monkeypatch.setenv("QUEUECTL_HOME", str(home))
    for words in EVERY_COMMAND:
        _set_stdin(monkeypatch, b'{"command": "true"}\n')
        check_one_line(cli(*words), FAILED)


def test_the_address_in_the_environment_may_be_wrong_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("nonsense", "mysql://x", "sqlite://", ESCAPES.replace("\0", "")):
        monkeypatch.setenv("QUEUECTL_DATABASE_URL", wrong)
        check_one_line(cli("list"), WRONG_USAGE)
