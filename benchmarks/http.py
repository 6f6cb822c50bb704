"""HTTP: concurrent POSTs, against the same server without a database, and while a worker drains jobs."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from benchmarks.bench import ROOT, TYPE, Bench, make_queue, remove, settle, url_of, worker
from benchmarks.figures import Figure, at_least, at_most

EXPECTED = 0.5
EXPECTED_TIMES = 5.0

CONNECTIONS = 16
_PATIENCE = 180.0

Answers = list[tuple[float, float]]
"""When each request was sent, in seconds since 1970, and how long its answer took."""


def measure(bench: Bench) -> list[Figure]:
    return [*_against_no_op(bench), *_beside_a_drain(bench)]


def _against_no_op(bench: Bench) -> list[Figure]:
    posts = bench.sizes.posts
    path, other = bench.new_file(), bench.new_file()
    floors, rates, times = [], [], []
    with served(path) as port, served(other, "no-op") as floor_port:
        for warming in (port, floor_port):
            _post(warming, posts // 8)
        for _ in range(bench.sizes.rounds):
            floors.append(_rate(_post(floor_port, posts)))
            answers = _post(port, posts)
            rates.append(_rate(answers))
            times.append(_p99(answers))
    with closing(sqlite3.connect(path)) as connection:
        (stored,) = connection.execute("SELECT count(*) FROM holdfast_jobs").fetchone()
    expected = CONNECTIONS * (posts // 8 // CONNECTIONS + bench.sizes.rounds * (posts // CONNECTIONS))
    if stored != expected:
        raise AssertionError(f"{stored} jobs were stored, and {expected} answered")
    remove(path)
    remove(other)
    share = median(rate / floor for rate, floor in zip(rates, floors, strict=True))
    return [
        Figure(name=f"POST, {CONNECTIONS} connections, no-op store", value=median(floors), unit="jobs/s"),
        Figure(
            name=f"POST, {CONNECTIONS} connections",
            value=median(rates),
            unit="jobs/s",
            share=share,
            of="the no-op store",
            expectation=at_least(share, EXPECTED),
        ),
        Figure(name=f"POST, {CONNECTIONS} connections, p99", value=median(times) * 1000, unit="ms"),
    ]


def _beside_a_drain(bench: Bench) -> list[Figure]:
    alone, beside = [], []
    for _ in range(bench.sizes.rounds):
        path = bench.new_file()
        with make_queue(path) as queue:
            queue.enqueue_many(TYPE, [{"number": number} for number in range(bench.sizes.drain)])
        settle(path)
        with served(path) as port:
            _post(port, bench.sizes.posts // 8)
            alone.append(_p99(_post(port, bench.sizes.posts)))
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                with _load(port, 0) as load, worker(path):
                    _wait_until_empty(connection)
                    answers = _answers(load)
                _, began, ended = _span_of_drain(connection, 0)
        beside.append(_p99([(sent, took) for sent, took in answers if began <= sent <= ended]))
        remove(path)
    times = median(drained / quiet for drained, quiet in zip(beside, alone, strict=True))
    jobs = f"{bench.sizes.drain:,}"
    return [
        Figure(name=f"POST p99, {jobs} jobs waiting", value=median(alone) * 1000, unit="ms"),
        Figure(
            name=f"POST p99, while a worker drains {jobs}",
            value=median(beside) * 1000,
            unit="ms",
            share=times,
            of="that without",
            expectation=at_most(times, EXPECTED_TIMES, "times that without"),
        ),
    ]


def _wait_until_empty(connection: sqlite3.Connection) -> None:
    left = "SELECT pending + processing FROM holdfast_counts WHERE type = ?"
    deadline = time.monotonic() + _PATIENCE
    while connection.execute(left, (TYPE,)).fetchone()[0]:
        if time.monotonic() > deadline:
            raise TimeoutError("the drain did not end")
        time.sleep(0.05)


def _span_of_drain(connection: sqlite3.Connection, first: int) -> tuple[int, float, float]:
    """How many jobs from that one on were completed, and from when to when, in seconds since 1970."""
    count, began, ended = connection.execute(
        "SELECT count(finished_at), min(started_at), max(finished_at) FROM holdfast_jobs"
        " WHERE type = ? AND seq >= ? AND status = 'completed'",
        (TYPE, first),
    ).fetchone()
    return count, began / 1e6, ended / 1e6


@contextmanager
def served(path: Path, *words: str) -> Iterator[int]:
    """A server's process; gives its port."""
    process = _start("benchmarks.server", url_of(path), *words)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        if process.wait(30) != 0:
            raise RuntimeError(f"the server ended with status {process.returncode}")
    finally:
        _end(process)


def _post(port: int, posts: int) -> Answers:
    with _load(port, posts) as load:
        return _answers(load)


@contextmanager
def _load(port: int, posts: int) -> Iterator[subprocess.Popen[str]]:
    """A load generator's process whose first answer has come."""
    process = _start("benchmarks.load", str(port), str(CONNECTIONS), str(posts))
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the load generator got no answer")
        yield process
    finally:
        _end(process)


def _answers(load: subprocess.Popen[str]) -> Answers:
    """Let it end, and hear what it measured."""
    printed, _ = load.communicate(timeout=_PATIENCE)
    if load.returncode != 0:
        raise RuntimeError(f"the load generator ended with status {load.returncode}")
    return [(sent, took) for sent, took in json.loads(printed)]


def _start(module: str, *words: str) -> subprocess.Popen[str]:
    # Without bytecode files each start would compile all modules anew.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _rate(answers: Answers) -> float:
    began = min(sent for sent, _ in answers)
    ended = max(sent + took for sent, took in answers)
    return len(answers) / (ended - began)


def _p99(answers: Answers) -> float:
    took = sorted(seconds for _, seconds in answers)
    return took[int(len(took) * 0.99)]
