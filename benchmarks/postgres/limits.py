"""Limits on PostgreSQL: the same as on SQLite."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.limits import measure_at
from benchmarks.postgres.place import new_schema


def measure(bench: Bench) -> list[Figure]:
    return measure_at(bench, new_schema)
