"""Dashboard: every page with a thousand jobs and with a million, in two queues of the same shape."""

from __future__ import annotations

import html
import json
import re
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from urllib.parse import urlencode

from benchmarks.bench import Bench, remove, settle, url_of
from benchmarks.figures import Figure, at_most
from benchmarks.http import served
from holdfast import Queue
from holdfast.core.error_group import error_group
from holdfast.store.open import store_of
from holdfast.store.records import HOUR, TypeRecord, WorkerRecord, empty_minute

EXPECTED = 3.0

_FEW = 1_000
_TURNS = 11
"""In a round. Each page is asked for so often, once in each turn."""

_MOST_READ = 10_000
"""Jobs that a search may read."""

_DEEP = 20_000
"""How far down a page by cursor lies; in a short list, half way."""

Times = dict[str, tuple[list[float], list[float]]]
"""How long each page took, with few jobs and with many."""


def measure(bench: Bench) -> list[Figure]:
    count = bench.sizes.growth_around
    times: Times = {}
    searched: Times = {}
    paths = bench.new_file(), bench.new_file()
    for path, jobs in zip(paths, (_FEW, count), strict=True):
        _fill(path, jobs)
    with _side(paths[0]) as few, _side(paths[1]) as many:
        pages = list(zip(_pages(few), _pages(many), strict=True))
        for _ in range(bench.sizes.rounds * _TURNS):
            for (name, short), (_, long) in pages:
                _take_turn(times, name, (few, short), (many, long))
        for name, filters in _SEARCHES.items():
            name = f"{name}: reads {many.examined(filters):,}"
            for _ in range(bench.sizes.rounds):
                _take_turn(searched, name, (few, _list_page(filters)), (many, _list_page(filters)))
    for path in paths:
        remove(path)
    figures = _figures(times)
    return [*figures, *_figures(searched), _worst(figures, count)]


def _take_turn(times: Times, name: str, *asked: tuple[_Side, str]) -> None:
    for (side, path), taken in zip(asked, times.setdefault(name, ([], [])), strict=True):
        # As in a queue at work, something was written since the page before: nothing is answered from memory.
        side.beat()
        taken.append(side.get(path)[1])


def _figures(times: Times) -> list[Figure]:
    return [
        Figure(
            name=name,
            value=median(many) * 1000,
            unit="ms",
            share=median(slow / quick for quick, slow in zip(few, many, strict=True)),
            of=f"{median(few) * 1000:.2f} ms with {_FEW:,}",
        )
        for name, (few, many) in times.items()
    ]


def _worst(figures: list[Figure], count: int) -> Figure:
    share, figure = max(((figure.share or 0.0, figure) for figure in figures), key=lambda pair: pair[0])
    return Figure(
        name=f"the worst of {len(figures)} pages with {count:,} jobs",
        value=figure.value,
        unit="ms",
        share=share,
        of=f"{figure.of}: {figure.name}",
        expectation=at_most(share, EXPECTED, f"times that with {_FEW:,}", figure.name),
    )


# The pages.


def _pages(side: _Side) -> Iterator[tuple[str, str]]:
    """What every page is called here, and its address."""
    yield "overview", "/"
    yield "jobs", "/jobs"
    for name, filters in _LISTS.items():
        yield f"jobs, {name}", _list_page(filters)
    type, error = side.read("SELECT type, error_group FROM holdfast_errors ORDER BY jobs DESC LIMIT 1")
    yield "jobs, an error", _list_page({"error": error})
    yield "jobs, an error, its type, by end", _list_page({"error": error, "type": type, "sort": "finished"})
    for name, filters in _DEEP_LISTS.items():
        after = _list_page(filters, cursor=side.deep_cursor(filters))
        yield f"deep, {name}", after
        yield f"deep and back, {name}", side.previous(after)
    for name, which in _JOBS.items():
        yield f"job, {name}", f"/jobs/{side.job_id(which)}"
    yield "delete a job", f"/jobs/{side.job_id(_JOBS['completed'])}/delete"
    yield "bulk, all failed", "/jobs/bulk?action=retry&all=1&status=failed"
    yield "bulk, all of a type in a time", f"/jobs/bulk?action=delete&all=1&type={_BIG}&from=20d&to=2d"
    yield "clean-up", "/cleanup?older_than=7d"
    yield "controls", "/controls"
    yield "controls of a type", f"/controls?type={_BIG}"
    yield "enqueue", f"/enqueue?type={_BIG}"
    yield "docs", "/docs"


_STATES = ("scheduled", "pending", "processing", "completed", "failed", "cancelled", "retrying")
_BIG, _RARE = "send_email", "yearly_report"

Filters = dict[str, str | list[str]]

_MIDDLE: Filters = {"from": "16d", "to": "14d"}

_LISTS: dict[str, Filters] = {
    **{state: {"status": state} for state in _STATES},
    "failed or cancelled": {"status": ["failed", "cancelled"]},
    "all but pending": {"status": [state for state in _STATES[:-1] if state != "pending"]},
    "big type": {"type": _BIG},
    "rare type": {"type": _RARE},
    "completed, big type": {"type": _BIG, "status": "completed"},
    "completed, rare type": {"type": _RARE, "status": "completed"},
    **{
        f"{name}by {word}, {order}": {**filters, "sort": sort, "order": order}
        for sort, word, state in (("finished", "end", "completed"), ("priority", "priority", "pending"))
        for name, filters in (
            ("", {}),
            (f"{state}, ", {"status": state}),
            ("big type, ", {"type": _BIG}),
            ("rare type, ", {"type": _RARE}),
            (f"{state}, big type, ", {"type": _BIG, "status": state}),
        )
        for order in ("desc", "asc")
    },
    "time": _MIDDLE,
    "time, oldest first": {**_MIDDLE, "order": "asc"},
    "time, completed": {**_MIDDLE, "status": "completed"},
    "time, big type": {**_MIDDLE, "type": _BIG},
    "time, completed, big type": {**_MIDDLE, "type": _BIG, "status": "completed"},
    "time, by end": {**_MIDDLE, "sort": "finished"},
    "time, by priority": {**_MIDDLE, "sort": "priority"},
}

_DEEP_LISTS: dict[str, Filters] = {
    "created": {},
    "created, asc": {"order": "asc"},
    "created, completed": {"status": "completed"},
    "created, big type": {"type": _BIG},
    "finished": {"sort": "finished"},
    "finished, asc": {"sort": "finished", "order": "asc"},
    "priority": {"sort": "priority"},
    "priority, asc": {"sort": "priority", "order": "asc"},
    "priority, completed": {"sort": "priority", "status": "completed"},
}

_JOBS = {
    "completed": "status = 'completed'",
    "processing": "status = 'processing'",
    "last in line": f"status = 'pending' AND type = '{_BIG}' ORDER BY priority, seq DESC",
    "retrying": "status = 'scheduled' AND attempts > 0",
    "failed": "status = 'failed'",
}

_SEARCHES: dict[str, Filters] = {
    "search, text": {"q": "nothing-is-called-so"},
    "search, payload": {"q": "payload.customer.id:nobody"},
    "search, payload, completed": {"q": "payload.customer.id:nobody", "status": "completed"},
}
"""These find nothing, and read as much as they may."""


def _list_page(filters: Filters, **more: str) -> str:
    return "/jobs?" + urlencode({**filters, **more}, doseq=True)


class _Side:
    """One of the two queues, its server, and a connection to each."""

    def __init__(self, connection: sqlite3.Connection, port: int, stack: ExitStack) -> None:
        self._connection = connection
        self._port = port
        self._socket = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(self, sql: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._connection.execute(sql).fetchone()
        return row

    def job_id(self, which: str) -> str:
        return str(self.read(f"SELECT id FROM holdfast_jobs WHERE {which} LIMIT 1")[0])

    def beat(self) -> None:
        """Show that the workers live."""
        self._connection.execute("UPDATE holdfast_workers SET heartbeat_at = ?1, turned_at = ?1", (_now(),))

    def get(self, path: str) -> tuple[str, float]:
        """An answer, and how long it took."""
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode()
        began = time.perf_counter()
        self._socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more(path)
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: *([0-9]+)", head, re.IGNORECASE)
        if not head.startswith(b"HTTP/1.1 200 ") or length is None:
            raise RuntimeError(f"{path}: {data.decode()}")
        while len(body) < int(length[1]):
            body += self._more(path)
        return body.decode(), time.perf_counter() - began

    def _more(self, path: str) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise RuntimeError(f"{path}: the server has hung up")
        return data

    def ask(self, filters: Filters, **more: str) -> dict[str, Any]:
        """A page of the API's list."""
        text, _ = self.get("/api/tasks?" + urlencode({**filters, **more}, doseq=True))
        answer: dict[str, Any] = json.loads(text)
        return answer

    def deep_cursor(self, filters: Filters) -> str:
        total = min(_DEEP, self.ask(filters)["total"] // 2)
        cursor: dict[str, str] = {}
        for _ in range(max(1, total // 100)):
            cursor = {"cursor": self.ask(filters, limit="100", **cursor)["nextCursor"]}
        return cursor["cursor"]

    def previous(self, path: str) -> str:
        """The page before another, by its link."""
        found = re.search(r'rel="prev" href="([^"]+)"', self.get(path)[0])
        if found is None:
            raise RuntimeError(f"{path} has no page before it")
        return html.unescape(found[1])

    def examined(self, filters: Filters) -> int:
        """How many jobs a search reads."""
        others = {name: value for name, value in filters.items() if name != "q"}
        examined = int(self.ask({**others, "search": filters["q"]})["examined"])
        if examined > _MOST_READ:
            raise AssertionError(f"the search {filters} has read {examined} jobs")
        return examined


@contextmanager
def _side(path: Path) -> Iterator[_Side]:
    with ExitStack() as stack:
        connection = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
        connection.execute("PRAGMA synchronous = OFF")
        side = _Side(connection, stack.enter_context(served(path)), stack)
        side.beat()
        yield side


# The jobs.

_DAY = 86_400_000_000
_CHUNK = 50_000
_RUNNING = 8

# Of a hundred jobs that are not of the newest five, in this order again and again.
_ENDS = 86 * ["completed"] + 5 * ["failed"] + ["cancelled"] + ["scheduled"] + 2 * ["retrying"]
_STRIDE = 37  # has no divisor in common with their number, so the kinds lie among each other

# How many of a hundred jobs, but for the ten of the rare one.
_TYPES = {
    _BIG: 30, "resize_image": 20, "sync_order": 12, "charge_card": 10, "index_page": 8, "push_message": 6,
    "render_invoice": 5, "fetch_feed": 4, "warm_cache": 2, "move_file": 2, "close_account": 1,
}  # fmt: skip
_DRAWN = [name for name, part in _TYPES.items() for _ in range(part)]
_NAMES = [*_TYPES, _RARE]
_PRIORITIES = (-10, 0, 1, 5, 10)

# Every second failure is of one error, as after an outage. With it there are 40 groups.
_OUTAGE = "ConnectionError: the shop does not answer, order"
_ERRORS = [
    f"{kind}: {place} has not taken order"
    for kind in (
        "TimeoutError", "ValueError", "KeyError", "PermissionError", "OSError", "RuntimeError", "LookupError"
    )
    for place in ("the mail server", "the bank", "the archive", "the printer")
]  # fmt: skip
_TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/srv/shop/{name}.py", line {line}, in {name}\n    return {name}_of(order, customer, lines)\n'
    for line, name in enumerate(("handle", "prepare", "send", "connect", "request"), 40)
)

_INSERT = """
INSERT INTO holdfast_jobs (seq, id, type, status, priority, attempts, max_attempts, version, run_at, due_at,
    worker_id, lease_expires_at, created_at, updated_at, started_at, finished_at, error, error_group, token,
    payload, result)
VALUES (:seq, :id, :type, :status, :priority, :attempts, 3, :attempts, :run_at, :due_at,
    :worker_id, :lease_expires_at, :created_at, :updated_at, :started_at, :finished_at, :error, :error_group,
    :token, :payload, :result)
"""
_INSERT_FAILURE = """
INSERT INTO holdfast_failures (seq, version, attempt, started_at, finished_at, worker_id, error, traceback)
VALUES (?1, ?2, ?2, ?3, ?3 + 250000, ?4, ?5, ?6)
"""
# What triggers count otherwise.
_COUNT = f"""
INSERT INTO holdfast_counts (type, enqueued, {", ".join(_STATES[:-1])})
SELECT type, count(*), {", ".join(f"sum(status = '{state}')" for state in _STATES[:-1])}
FROM holdfast_jobs GROUP BY type
"""
_COUNT_ERRORS = """
INSERT INTO holdfast_errors (type, error_group, jobs, last_at)
SELECT type, error_group, count(*), max(finished_at) FROM holdfast_jobs
WHERE status = 'failed' GROUP BY type, error_group
"""


def _fill(path: Path, count: int) -> None:
    """A queue of a month: the newest jobs wait, the older ones are over, but for some that run later."""
    now = _now()
    with Queue(url_of(path)) as queue:
        _register(queue, now)
    random = Random(count)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -262144")
        with _bare(connection):
            for first in range(0, count, _CHUNK):
                numbers = range(first, min(first + _CHUNK, count))
                jobs = [_job(number, count, now, random) for number in numbers]
                connection.execute("BEGIN")
                connection.executemany(_INSERT, jobs)
                connection.executemany(_INSERT_FAILURE, [row for job in jobs for row in _failures(job)])
                connection.execute("COMMIT")
        connection.execute(_COUNT)
        connection.execute(_COUNT_ERRORS)
    settle(path)


@contextmanager
def _bare(connection: sqlite3.Connection) -> Iterator[None]:
    """Without the indexes and triggers of the jobs, which are made again: so it takes a third of the time."""
    found = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = 'holdfast_jobs'"
        " AND type IN ('index', 'trigger') AND sql IS NOT NULL"
    ).fetchall()
    for kind, name, _ in found:
        connection.execute(f"DROP {kind} {name}")
    yield
    for _, _, sql in found:
        connection.execute(sql)


def _register(queue: Queue, now: int) -> None:
    """Three workers, and what they did in the last hour."""
    schema = {
        "type": "object",
        "properties": {
            "order": {"type": "integer"},
            "note": {"type": "string"},
            "urgent": {"type": "boolean"},
        },
        "required": ["order"],
    }
    types = [TypeRecord(type=name, executor="thread", schema=schema) for name in _NAMES]
    minutes = []
    for number in range(3):
        worker = WorkerRecord(
            id=_worker(number), host="shop", pid=1000 + number, state="running", concurrency=10,
            types=tuple(_NAMES),
        )  # fmt: skip
        store_of(queue).register_worker(worker, types)
        for minute in range(now // 60_000_000 - HOUR + 1, now // 60_000_000 + 1):
            for place, name in enumerate(_TYPES):
                row = empty_minute(minute, name, worker.id)
                row.completed, row.failed = 40 - place, place % 3
                row.waits[place], row.runs[place + 1] = 40, 40
                minutes.append(row)
    store_of(queue).write_statistics(minutes)


def _job(number: int, count: int, now: int, random: Random) -> dict[str, Any]:
    """A row of the table of jobs."""
    status = "pending"
    waiting = count * 19 // 20
    if waiting - _RUNNING <= number < waiting:
        status = "processing"
    elif number < waiting:
        status = _ENDS[number * _STRIDE % len(_ENDS)]
    rare = number % (count // 10) == 0
    type = _RARE if rare else random.choice(_DRAWN)
    created_at = now - 30 * _DAY + 30 * _DAY * number // count
    started_at = created_at + random.randrange(50_000_000)
    ended = status in ("completed", "failed", "cancelled")
    tried = {"failed": 3, "completed": 1, "processing": 1, "retrying": 1}.get(status, 0)
    later = status in ("scheduled", "retrying")
    error = None
    if status in ("failed", "retrying"):
        others = _ERRORS[_NAMES.index(type) :: len(_NAMES)]
        error = f"{random.choice((_OUTAGE, random.choice(others)))} {number}"
    return {
        "seq": number + 1,
        "id": f"{created_at // 65_536_000:08x}-{number & 65535:04x}-7000-8000-{random.getrandbits(48):012x}",
        "type": type,
        "status": "scheduled" if later else status,
        "priority": random.choice(_PRIORITIES),
        "attempts": tried,
        "run_at": now + _DAY + number if status == "scheduled" else None,
        "due_at": now + _DAY + number if later else created_at,
        "worker_id": _worker(number % 3) if status == "processing" else None,
        "lease_expires_at": now + _DAY if status == "processing" else None,
        "created_at": created_at,
        "updated_at": created_at,
        "started_at": (now if status == "processing" else started_at) if tried else None,
        "finished_at": started_at + random.randrange(2_000_000) if ended else None,
        "error": error,
        "error_group": error_group(error) if error and ended else None,
        "token": f"{number:024x}",
        "payload": f'{{"order":{number},"customer":{{"id":{number % 5000},"name":"Somebody"}},'
        '"lines":[{"item":"lamp","count":2},{"item":"bulb","count":12}]}',
        "result": '{"sent":true}' if status == "completed" else None,
    }


def _failures(job: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    if job["error"] is None:
        return
    for attempt in range(1, job["attempts"] + 1):
        traceback = _TRACEBACK + job["error"]
        yield job["seq"], attempt, job["started_at"], _worker(attempt % 3), job["error"], traceback


def _worker(number: int) -> str:
    return f"0190a000-0000-7000-8000-00000000000{number}"


def _now() -> int:
    return time.time_ns() // 1000
