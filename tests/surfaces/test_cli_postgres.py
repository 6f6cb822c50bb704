"""queuectl on PostgreSQL: secrets that stay secret, and addresses that lead nowhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests import postgres
from tests.support import wait_until
from tests.surfaces.support import Cli, queuectl

SECRET = f"s3cret{uuid4().hex}"


@pytest.fixture
def schema() -> Iterator[str]:
    schema = postgres.new_schema()
    yield schema
    postgres.drop_schema(schema)


@pytest.fixture
def address(schema: str) -> str:
    """An address with a password in it. The server does not ask for it."""
    return postgres.with_parameters(postgres.schema_url(schema), application_name=schema, password=SECRET)


def command_lines() -> str:
    """Those of all processes."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
    return "\n".join(found)


def backends(schema: str) -> int:
    with psycopg.connect(postgres.server_url()) as connection:
        rows = connection.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = %s", [schema])
        return len(rows.fetchall())


def test_password_is_shown_nowhere_and_stopped_workers_leave_no_connection(
    home: Path, cli: Cli, address: str, schema: str
) -> None:
    said = []

    def run(*words: str, expect: int = 0) -> str:
        ran = cli("--database", address, *words)
        assert ran.code == expect, ran
        said.append(ran.out + ran.err)
        return ran.out

    run("migrate", "--json")
    ran = queuectl(
        home, "--database", address, "worker", "start", "--count", "2", "--detach", "--json", timeout=60
    )
    said.append(ran.out + ran.err)
    started = ran.json
    try:
        assert len(started["workers"]) == 2
        assert SECRET not in command_lines()
        assert run("enqueue", "--id", "job1", "--command", "exit 3", "--max-attempts", "1") == "job1\n"
        wait_until(lambda: json.loads(run("show", "job1", "--json"))["status"] == "failed", 30)
        assert 2 <= backends(schema) <= 2 * 4 + 2
        run("doctor", expect=1)  # the tests' server does not sync
        run("status", "--json")
        run("worker", "list", "--json")
        run("dlq", "list")
    finally:
        run("worker", "stop")
    said.append(Path(started["log"]).read_text())
    assert SECRET not in "".join(said)
    wait_until(lambda: not backends(schema), 30)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql://u:{secret}@127.0.0.1:1/db", 1),
        ("postgresql://u:{secret}@/db?host=/nowhere", 1),
        ("postgresql://u:{secret}@nowhere.invalid/db", 1),
        ("postgresql://u:{secret}/db", 2),
        ("postgresql://u:{secret}@@h/db", 2),
        ("postgresql://u:%{secret}@h/db", 2),
        ("postgresql://u:/{secret}@h/db", 2),
        ("postgresql://u:{secret}@h:port/db", 2),
        ("postgresql://u:{secret}@h/db?colour=red", 2),
        ("postgresql://u:{secret}@h/db?pool=none", 2),
        ("postgresql://u:{secret}@h/db?schema=", 2),
        ("postgresql+psycopg://u:{secret}@h/db", 2),
        ("postgresql:/u:{secret}@h/db", 2),
        ("postgres://u:{secret}@127.0.0.1:1/db?connect_timeout=soon", 2),
    ],
)
def test_address_that_leads_nowhere_is_one_line(cli: Cli, url: str, code: int) -> None:
    ran = cli("--database", url.format(secret=SECRET), "status")
    assert (ran.code, ran.out) == (code, "")
    [line] = ran.errors
    assert line.startswith("queuectl: ")
    assert "unexpected error" not in line
    assert SECRET not in line


def test_password_in_the_environment_or_in_a_file_is_used_and_not_shown(
    cli: Cli, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = address.replace(f"&password={SECRET}", "")
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert cli("--database", plain, "migrate").code == 0
    monkeypatch.delenv("PGPASSWORD")
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:*:{SECRET}\n")
    passwords.chmod(0o600)
    ran = cli("--database", postgres.with_parameters(plain, passfile=str(passwords)), "migrate")
    assert (ran.code, SECRET in ran.out) == (0, False)


def test_service_file_may_say_where_the_server_is(
    cli: Cli, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(postgres.server_url())
    lines = [f"{name}={value}" for name, value in parts.items()]
    (tmp_path / "services").write_text("\n".join(["[jobs]", *lines, ""]))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    assert cli("--database", f"postgresql://?service=jobs&schema={schema}", "migrate").code == 0


def test_without_psycopg_it_says_what_to_install(home: Path, tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('no module')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = queuectl(home, "--database", "postgresql://h/db", "status", env={"PYTHONPATH": path})
    assert ran.code == 2
    [line] = ran.errors
    assert "pip install 'holdfast-queue[postgres]'" in line
