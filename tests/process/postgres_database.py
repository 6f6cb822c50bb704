"""A queue on PostgreSQL as the oracle reads it, and the addresses by which its connections are known."""

from __future__ import annotations

import threading
import time
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import psycopg

from holdfast.store.postgres.address import parse_url
from tests.postgres import with_parameters
from tests.process.oracle import Database

PATIENCE = 30.0
"""Seconds for which a server that is restarted is waited for."""


def own_url(url: str, name: str) -> str:
    """The address with its schema as the search path, and with a name that tells its connections apart."""
    [schema] = parse_qs(urlsplit(url).query)["schema"]
    return with_parameters(url, options=f"-csearch_path={schema}", application_name=name)


class PostgresDatabase(Database):
    """Its queries share a connection, which is made anew when the server was gone."""

    def __init__(self, url: str) -> None:
        # Not under the name of those that are terminated.
        self._conninfo = psycopg.conninfo.make_conninfo(parse_url(url).conninfo, application_name="oracle")
        self._name = psycopg.conninfo.conninfo_to_dict(parse_url(url).conninfo)["application_name"]
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    def query(self, sql: str, *parameters: object) -> list[Any]:
        deadline = time.monotonic() + PATIENCE
        with self._lock:
            while True:
                try:
                    return self._query(sql, parameters)
                except psycopg.OperationalError:
                    self._connection = None
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

    def _query(self, sql: str, parameters: tuple[object, ...]) -> list[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(self._conninfo, autocommit=True)
        text = cast("Any", sql.replace("?", "%s"))
        cursor = self._connection.execute(text, parameters)
        return cursor.fetchall() if cursor.description is not None else []

    def write(self, sql: str) -> None:
        self.query(sql)

    def check_sound(self) -> None:
        """Nothing: the server looks after itself."""

    def check_size(self) -> None:
        """Nothing either."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def backends(self, condition: str = "true") -> list[int]:
        """The server processes that serve this queue's connections."""
        sql = f"SELECT pid FROM pg_stat_activity WHERE application_name = ? AND {condition} ORDER BY pid"
        return [pid for (pid,) in self.query(sql, self._name)]

    def terminate(self, pid: int) -> bool:
        """End such a process; whether it was there."""
        return bool(self.query("SELECT pg_terminate_backend(?)", pid)[0][0])
