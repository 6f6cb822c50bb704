"""Plays scripts through connections of every kind: `python -m tests.process.player`.

It reads lines of JSON, [kind, file or address, script, seconds or null]. It plays each script in a process of
its own, which dies of the step `kill`, or is killed so many seconds after its first commit, and prints how
that ended: 0, or -9.
"""

from __future__ import annotations

import json
import os
import sys

# What the libraries load only when they are used, loaded once and not by each of the processes.
import aiosqlite  # noqa: F401
import django.db.backends.postgresql.base  # type: ignore[import-untyped]
import django.db.backends.sqlite3.base  # type: ignore[import-untyped]  # noqa: F401
import psycopg2.extras  # type: ignore[import-untyped]  # noqa: F401
import sqlalchemy.dialects.postgresql
import sqlalchemy.dialects.sqlite  # noqa: F401

import holdfast.jobs
import holdfast.store.postgres
import holdfast.store.sqlite.store  # noqa: F401
from tests.conformance.connections import KINDS, POSTGRES_KINDS, address_of, play_in_child


def main() -> None:
    kinds = {**KINDS, **POSTGRES_KINDS}
    for line in sys.stdin:
        kind, place, script, seconds = json.loads(line)
        status = play_in_child(kinds[kind], address_of(place), script, seconds)
        os.write(1, f"{status}\n".encode())


if __name__ == "__main__":
    main()
