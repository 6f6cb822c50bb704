"""Where the queues of these benchmarks are: a server, and in it a schema or a database for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg

from benchmarks.bench import Bench
from tests.postgres import Server, share_server

SETTINGS = {"shared_buffers": "'128MB'", "max_connections": "100"}
"""PostgreSQL's own defaults: fsync, synchronous_commit and full_page_writes are on."""


def server_url(bench: Bench) -> str:
    """The server's address. The first who asks starts it; it is stopped with the bench."""
    if not bench.servers:
        bench.servers.append(bench.postgres or os.environ.get("QUEUECTL_TEST_POSTGRES") or _start(bench))
    return bench.servers[0]


def server_version(bench: Bench) -> str:
    with connect(server_url(bench)) as connection:
        [(version,)] = connection.execute("SHOW server_version").fetchall()
    return str(version).split()[0]


def _start(bench: Bench) -> str:
    share_server()
    bench.folder.chmod(0o755)  # where we are root, the server is another user
    server = Server(_folder(bench) / "pg", SETTINGS)
    server.make()
    bench.closing.callback(server.stop, "fast")
    server.start()
    return server.url


def _folder(bench: Bench) -> Path:
    """The folder of the bench; or one elsewhere, if that is closed to the user that the server runs as."""
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in bench.folder.parents):
        return bench.folder
    print(
        "PostgreSQL stores its data in /var/tmp: its user can't reach the folder of the other files",
        flush=True,
    )
    folder = Path(bench.closing.enter_context(TemporaryDirectory(prefix="holdfast-bench-", dir="/var/tmp")))
    folder.chmod(0o755)
    return folder


def connect(url: str) -> psycopg.Connection:
    """A bare connection in autocommit mode; the part of an address that is ours is left out."""
    connection = psycopg.connect(_bare(url)[0], autocommit=True)
    connection.execute("SET client_min_messages = error")
    schema = _bare(url)[1]
    if schema:
        connection.execute(f"SET search_path = {schema}")
    return connection


def _bare(url: str) -> tuple[str, str]:
    address, _, schema = url.partition("schema=")
    return address.rstrip("?&"), schema


@contextmanager
def new_schema(bench: Bench) -> Iterator[str]:
    """The address of a queue that does not exist yet, and is dropped in the end."""
    server = server_url(bench)
    name = f"b_{uuid4().hex[:16]}"
    try:
        yield f"{server}{'&' if '?' in server else '?'}schema={name}"
    finally:
        with connect(server) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@contextmanager
def new_database(bench: Bench) -> Iterator[str]:
    """The address of an empty database, which is dropped in the end, whoever is still there."""
    server = server_url(bench)
    name = f"b_{uuid4().hex[:16]}"
    with connect(server) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def settle(connection: psycopg.Connection, table: str = "") -> None:
    """Every run starts alike: nothing to vacuum, fresh statistics, and no checkpoint soon."""
    connection.execute(f"VACUUM ANALYZE {table}")
    connection.execute("CHECKPOINT")
