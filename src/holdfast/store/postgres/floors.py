"""Where lines begin: up to which `seq` this process has seen that nothing of a line waits any more.

A job that was claimed leaves its entry in the index of those that wait until VACUUM may remove it, and it
may not while an old transaction, of whatever application, could still see the job. A claim that began at the
front of the index would go over ever more of such entries, so it begins at the line's floor.

Floors are used only while reading lines from their front takes long. A floor is a memory, and nothing hangs
on it:

- What comes back to a line (promoted, released, retried, reaped) keeps its place, most likely below the
  floor. It is marked as returned, and those have an index of their own, which every claim reads first.
- What was inserted before, but is committed after others behind it were claimed: a floor rises only to where
  the line began before all transactions of that moment were over. It does not wait long for a slow one.
- For what comes below a floor all the same, lines are read from their front at least once a second, or for a
  twentieth of the time if that takes long. What is found there lowers the floor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.core.starting import MOST_LOSSES
from holdfast.store.postgres.arrays import transposed
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.schema import SEQ, STATUS
from holdfast.store.postgres.session import Session

RISE_EVERY = 0.03
"""Seconds until floors are raised again."""
LONGEST_DOUBT = 0.25
"""Seconds for which a floor waits for transactions that may have inserted something below it."""
WHOLE_EVERY = 1.0
"""Seconds until lines are read from their front again."""
WHOLE_SHARE = 20
"""And at least this many times as long as that took the last time."""
CHEAP_HEADS, CHEAP_CLAIM = 0.005, 0.02
"""Seconds that it takes to read lines from their front while there is little to go over: then floors would
cost more than they save, and are not used."""
SLOW_READS = 3
NEEDED_FOR = 10.0
"""Seconds for which floors are used after it took longer so many times in a row."""
MOST_TYPES = 50
"""The lines of more types than these are read from their front."""
MOST_LINES = 100
MOST_OF_TYPE = 8

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1

Line = tuple[str, int]
"""A type and a priority."""


class Segments(NamedTuple):
    """The parts of lines in their order, as the columns of an array each. With a floor, a part is of one
    priority; without, it is all between two of them."""

    types: list[str]
    lows: list[int]
    highs: list[int]
    floors: list[int]


def segments_given(first: int) -> str:
    """Segments as part of a WITH, given as the parameters from this number on."""
    arrays = ("text[]", "integer[]", "integer[]", "bigint[]")
    places = ", ".join(f"${number}::{array}" for number, array in enumerate(arrays, first))
    return f"segments AS MATERIALIZED (SELECT * FROM unnest({places}) AS s (type, low, high, floor))"


def along(type: str, limit: str, columns: str, lock: str = "") -> str:
    """The first jobs of a type, part by part: no more of them are locked than are taken."""
    line = f"losses < {MOST_LOSSES} AND type = {type}"
    one = f"{line} AND s.floor > 0 AND priority = s.low"
    parts = (
        _part(f"returned AND {STATUS} = 'pending' AND {one} AND {SEQ} < s.floor", SEQ, limit, columns, lock),
        _part(f"status = 'pending' AND {one} AND {SEQ} >= s.floor", SEQ, limit, columns, lock),
        _part(
            f"status = 'pending' AND {line} AND s.floor = 0 AND priority BETWEEN s.low AND s.high",
            f"priority DESC, {SEQ}",
            limit,
            columns,
            lock,
        ),
    )
    return f"""
    SELECT part.* FROM segments AS s CROSS JOIN LATERAL ({" UNION ALL ".join(parts)}) AS part
    WHERE s.type = {type} LIMIT {limit}"""


def _part(condition: str, order: str, limit: str, columns: str, lock: str) -> str:
    return f"""
        SELECT * FROM (SELECT {columns} FROM holdfast_jobs WHERE {condition}
            ORDER BY {order} LIMIT {limit} {lock}) AS one"""


# All in one statement, and so as of one moment. Who inserts later than that gets a higher `seq`.
_RISE = f"""
SELECT coalesce((SELECT j.seq FROM holdfast_jobs AS j
        WHERE j.status = 'pending' AND j.losses < {MOST_LOSSES} AND j.type = l.type
            AND j.priority = l.priority AND {SEQ.replace("seq", "j.seq")} >= l.floor
        ORDER BY {SEQ.replace("seq", "j.seq")} LIMIT 1), last.seq + 1),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint
FROM (SELECT coalesce((SELECT seq FROM holdfast_jobs ORDER BY seq DESC LIMIT 1), 0) AS seq) AS last,
    unnest($1::text[], $2::integer[], $3::bigint[]) WITH ORDINALITY AS l (type, priority, floor, place)
ORDER BY l.place
"""


class _Expected(NamedTuple):
    """What floors are raised to once the transactions before `behind` are over."""

    floors: dict[Line, int]
    behind: int
    since: float


class Floors:
    """The floors that this process knows. Any thread may ask and tell."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._floors: dict[Line, int] = {}
        self._expected: _Expected | None = None
        self._rise_at = 0.0
        self._whole_at = [0.0, 0.0]
        self._slow_reads = [0, 0]
        self._needed_until = 0.0

    # Reading lines.

    def reads_whole(self, *, heads: bool = False) -> bool:
        """Whether to read lines from their front, and then to tell how long that `took`.

        Reading the heads of all lines is no substitute for a claim: a head that can't start hides what is
        behind it.
        """
        now = time.monotonic()
        return now >= self._whole_at[heads] or now >= self._needed_until

    def took(self, seconds: float, *, heads: bool = False) -> None:
        now = time.monotonic()
        self._whole_at[heads] = now + max(WHOLE_EVERY, WHOLE_SHARE * seconds)
        is_slow = seconds > (CHEAP_HEADS if heads else CHEAP_CLAIM)
        self._slow_reads[heads] = self._slow_reads[heads] + 1 if is_slow else 0
        if self._slow_reads[heads] >= SLOW_READS:
            self._needed_until = self._whole_at[heads] + NEEDED_FOR

    def segments(self, types: Iterable[str]) -> Segments | None:
        """Where to read the lines of these types; None if they begin at their front."""
        known: dict[str, list[tuple[int, int]]] = {}
        with self._lock:
            for (type, priority), floor in self._floors.items():
                if floor > 0:
                    known.setdefault(type, []).append((priority, floor))
        if not known:
            return None
        rows: list[tuple[str, int, int, int]] = []
        is_any = False
        for type in types:
            top = _HIGHEST
            for priority, floor in sorted(known.get(type, ()), reverse=True):
                is_any = True
                if priority < top:
                    rows.append((type, priority + 1, top, 0))
                rows.append((type, priority, priority, floor))
                top = priority - 1
            if top >= _LOWEST:
                rows.append((type, _LOWEST, top, 0))
        return Segments(*transposed(rows)) if is_any else None

    def known_types(self) -> list[str]:
        with self._lock:
            return sorted({type for (type, _), floor in self._floors.items() if floor > 0})

    # Learning.

    def learn(self, lines: Iterable[Line]) -> None:
        """There are such lines."""
        with self._lock:
            for line in lines:
                if line not in self._floors:
                    if len(self._floors) >= MOST_LINES:
                        self._forget()
                    if sum(type == line[0] for type, _ in self._floors) < MOST_OF_TYPE:
                        self._floors[line] = 0

    def lower(self, line: Line, seq: int) -> None:
        """There is, or was just now, a job in a line that has not come back to it."""
        with self._lock:
            if self._floors.get(line, 0) > seq:
                self._floors[line] = seq
                self._expected = None

    def forget(self) -> None:
        """Read all lines from their front, until it is seen again where they begin."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._floors.clear()
        self._expected = None

    # Rising.

    def rise(self, session: Session) -> None:
        """If it is time, ask together with the next statement where lines begin; once that is committed."""
        now = time.monotonic()
        if now < self._rise_at or now >= self._needed_until:
            return
        self._rise_at = now + RISE_EVERY
        with self._lock:
            asked = dict(self._floors)
        if asked:
            answer = session.ahead(_RISE, _columns(asked))
            session.afterwards.append(lambda: self._rise(asked, answer.rows) if answer.has_arrived else None)

    def rise_alone(self, database: Database) -> None:
        """The same, at once and by itself; inside a transaction of which it is not known whether it commits,
        not at all."""
        now = time.monotonic()
        if now < self._rise_at or now >= self._needed_until or database.in_transaction:
            return
        self._rise_at = now + RISE_EVERY
        with self._lock:
            asked = dict(self._floors)
        if asked:
            self._rise(asked, database.read(_RISE, _columns(asked)))

    def _rise(self, asked: dict[Line, int], rows: Sequence[Any]) -> None:
        found = {line: row[0] for line, row in zip(asked, rows, strict=True)}
        _, oldest, behind = rows[0]
        now = time.monotonic()
        with self._lock:
            if any(self._floors.get(line) != floor for line, floor in asked.items()):
                return  # somebody has found a job below one of them meanwhile
            expected = self._expected
            if expected is not None:
                if oldest < expected.behind and now < expected.since + LONGEST_DOUBT:
                    return
                # What has been committed since, below where a floor was to be, is seen now.
                for line, floor in expected.floors.items():
                    if line in found:
                        self._floors[line] = max(self._floors[line], min(floor, found[line]))
            self._expected = _Expected(found, behind, now)


def _columns(floors: dict[Line, int]) -> list[list[Any]]:
    return transposed([(*line, floor) for line, floor in floors.items()])


def lines_of(rows: Sequence[tuple[str, int]]) -> list[Line]:
    return [*dict.fromkeys(rows)]
