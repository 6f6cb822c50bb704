"""Arrays as PostgreSQL reads them, and statements of a size that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Queue
from holdfast.store.postgres import arrays
from tests import postgres


@pytest.fixture(scope="module")
def server() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.server_url()) as connection:
        yield connection


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [1, -(2**63), 2**63 - 1]),
        ("bigint", [1, None]),
        ("bigint", []),
        ("double precision", [1.5, -0.0, 1e300, float("inf"), None]),
        ("boolean", [True, False, None]),
        ("text", ["", "NULL", "null", None, "a,b", "{}", '"', "\\", "\\\\", "'", "\n\t", "žlutý 🐌", " x "]),
        ("text", ['{"a": "\\u0000\\n\\""}']),
    ],
)
def test_array_is_read_as_it_was_written(
    server: psycopg.Connection[Any], kind: str, values: list[Any]
) -> None:
    found = server.execute(f"SELECT %s::{kind}[]", [arrays.literal(values)]).fetchone()
    assert found == (values,)


def test_parts_hold_all_in_order_and_none_is_too_large_but_for_a_single_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "MOST_TEXT", 10)
    sizes = [4, 4, 4, 30, 1, 9, 1, 10, 0, 0, 11]
    parts = list(arrays.parts(sizes, lambda size: size))
    assert [size for part in parts for size in part] == sizes
    assert all(len(part) == 1 or sum(part) <= 10 for part in parts)
    assert parts == [[4, 4], [4], [30], [1, 9], [1], [10, 0, 0], [11]]


def test_many_large_payloads_results_and_errors_go_in_several_statements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "MOST_TEXT", 1000)
    with postgres.fresh_url() as url, Queue(url) as queue:

        @queue.job(max_attempts=1)
        def echo(text: str, fails: bool) -> str:
            if fails:
                raise ValueError(text)
            return text

        payloads: list[dict[str, Any]] = [{"text": f"{n} " * 300, "fails": n % 3 == 0} for n in range(12)]
        jobs = queue.enqueue_many("echo", payloads)
        worker = queue.worker(concurrency=12).start()
        try:
            done = [queue.wait(job.id, timeout=60) for job in jobs]
        finally:
            worker.stop()
        for payload, job in zip(payloads, done, strict=True):
            assert job.payload == payload
            assert payload["text"] in (job.error or "") if payload["fails"] else job.result == payload["text"]
