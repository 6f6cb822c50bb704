"""Inserting jobs: one statement for all, each with its own verdict.

What is asked of the database is yielded, as SQL and parameters, and the rows come back. So the same steps run
on our own connections and on those of an application, whichever driver it has, asyncio or not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from holdfast.core.clock import microseconds
from holdfast.core.settings import Depth
from holdfast.errors import DuplicateJob
from holdfast.store.outcomes import found_by_key, inserted, lanes_within, queue_full
from holdfast.store.postgres.arrays import given, parts, transposed
from holdfast.store.postgres.server_clock import CLOCK
from holdfast.store.records import NewJob, Verdict
from holdfast.store.rows import NEW_JOB_NAMES, job_kinds, quoted

Statement = tuple[str, Sequence[Any]]
Steps = Generator[Statement, list[Any], list[Verdict]]
Execute = Callable[[str, Sequence[Any]], list[Any]]


class Apart(NamedTuple):
    """A statement whose failure leaves the transaction around it as it was."""

    sql: str
    parameters: Sequence[Any]


_TYPES = {"i": "bigint", "f": "double precision", "s": "text", "b": "boolean"}
_KINDS = {name: job_kinds()[name] for name in NEW_JOB_NAMES} | {"run_at": "i", "delay": "i"}
_PLACES = {name: f"${number}::{_TYPES[kind]}" for number, (name, kind) in enumerate(_KINDS.items(), 2)}
"""The parameters after the present instant: one value for each column of a new job."""
_AFTER = len(_PLACES) + 2
"""The number of the first parameter behind those."""

_ONE = f"(SELECT {', '.join(_PLACES.values())}, 1)"
_IN_ORDER = "ORDER BY place\n"
_MANY = f"unnest({', '.join(f'{place}[]' for place in _PLACES.values())}) WITH ORDINALITY"

_as_given = attrgetter(*_KINDS)
_DELAY = [*_KINDS].index("delay")

_AS_GIVEN = quoted(NEW_JOB_NAMES)
_CAME = f"""
INSERT INTO holdfast_jobs ({_AS_GIVEN}, status, key_held, run_at, due_at, created_at, updated_at)
SELECT {_AS_GIVEN}, CASE WHEN waits THEN 'scheduled' ELSE 'pending' END, key IS NOT NULL,
    until, CASE WHEN waits THEN until ELSE now END, now, now
FROM (
    SELECT n.*, clock.now, coalesce(clock.now + n.delay, n.run_at) AS until,
        coalesce(coalesce(clock.now + n.delay, n.run_at) > clock.now, false) AS waits
    FROM {{first}}, {{new}} AS n ({quoted(_PLACES)}, place)) AS new
{_IN_ORDER}ON CONFLICT DO NOTHING
RETURNING id, status, created_at, run_at
"""
_CAME_ONE = _CAME.replace(_IN_ORDER, "")

_INSERT = f"WITH {CLOCK} {_CAME.format(first='clock', new=_MANY)}"
# Without arrays, which take the server and us a fifth longer.
_INSERT_ONE = f"WITH {CLOCK} {_CAME_ONE.format(first='clock', new=_ONE)}"


def _free_expired(keys: str) -> str:
    """Takes keys, given with their types, from finished jobs whose key_for has passed."""
    return f"""
UPDATE holdfast_jobs AS j SET key_held = false
FROM clock WHERE j.key_held AND j.key_until <= clock.now AND j.seq = ANY (ARRAY(
    SELECT holder.seq FROM {keys} AS k (type, key) CROSS JOIN LATERAL (
        SELECT seq FROM holdfast_jobs WHERE type = k.type AND key = k.key AND key_held LIMIT 1) AS holder))
"""


FREE_EXPIRED = f"WITH {CLOCK} {_free_expired(given('$2::text[], $3::text[]'))}"

# Through a connection of somebody else's: only into this queue, and not where it was moved away from.
_HERE = f"""
here AS MATERIALIZED (
    SELECT FROM holdfast_schema WHERE identity = ${_AFTER} AND to_regclass(${_AFTER + 2}) IS NULL
        AND ${_AFTER + 1} = (SELECT oid::bigint FROM pg_database WHERE datname = current_database()))
"""
_TOLD = f"""
SELECT came.*, CASE WHEN came.id IS NOT NULL AND ${_AFTER + 3}::text IS NOT NULL
    THEN pg_notify(${_AFTER + 3}, '')::text END
FROM here LEFT JOIN came ON true
"""

INSERT_HERE = f"WITH {CLOCK}, {_HERE}, came AS ({_CAME_ONE.format(first='clock, here', new=_ONE)}) {_TOLD}"
"""Inserts a job and tells workers of it. No row: this is not the place; one without an id: it is there."""

# What counts the freed makes sure that they are free before anything is inserted.
_ONCE_FREED = "clock, here, (SELECT count(*) FROM freed) AS freed (number)"
_KEY = f"(SELECT {_PLACES['type']}, {_PLACES['key']})"
INSERT_KEYED_HERE = f"""
WITH {CLOCK}, {_HERE}, freed AS ({_free_expired(_KEY)} RETURNING j.seq),
    came AS ({_CAME_ONE.format(first=_ONCE_FREED, new=_ONE)}) {_TOLD}
"""

# The job that holds the key, if there is one, else the one that has the id.
_KNOWN = """
SELECT 1, id, token, status, created_at, run_at, payload FROM holdfast_jobs
WHERE type = $1 AND key = $2 AND key_held
UNION ALL
SELECT 2, id, token, status, created_at, run_at, NULL FROM holdfast_jobs WHERE id = $3
ORDER BY 1 LIMIT 1
"""

# The types from one name to another, but for those that are, or have for their base, one that is apart.
_DEPTH = """
SELECT coalesce(sum(pending + scheduled), 0)::bigint FROM holdfast_counts
WHERE (type = $1 OR type >= $2 AND type < $3) AND type <> ALL ($4::text[])
    AND split_part(type, ':', 1) <> ALL ($4::text[])
"""

_ALONE = "SELECT pg_advisory_xact_lock(1751346276, hashtext($1))"

_TRIES = 5
_BY_KEY = 1


def insert_jobs(jobs: Sequence[NewJob], now: int | None, *, alone: bool = False) -> Steps:
    """Insert inside the open transaction. A conflict is a verdict, never an abort.

    With `alone`, nobody else who says so inserts jobs under the same max_depth until the commit.
    """
    limits = {job.max_depth for job in jobs if job.max_depth is not None}
    if alone:
        for name in sorted({limit.name for limit in limits}):
            yield _ALONE, [name]
    depths = yield from _depths(limits)
    verdicts: list[Verdict] = []
    while len(verdicts) < len(jobs):
        start = len(verdicts)
        sure = jobs[start : _first_without_room(jobs, start, depths)]
        if sure:
            found = yield from _insert(sure, now)
        else:
            found = [(yield from _refuse_for_room(jobs[start], now))]
        for job, verdict in zip(sure, found, strict=False):
            if verdict.inserted:
                _count(job, depths)
        verdicts += found
    return verdicts


def _count(job: NewJob, depths: dict[Depth, int]) -> None:
    for depth in depths:
        depths[depth] += depth.counts(job.type)


def _first_without_room(jobs: Sequence[NewJob], start: int, depths: dict[Depth, int]) -> int:
    """Those before it find room, whatever becomes of each."""
    waiting = dict(depths)
    for place in range(start, len(jobs)):
        limit = jobs[place].max_depth
        if limit is not None and waiting[limit] >= limit.size:
            return place
        _count(jobs[place], waiting)
    return len(jobs)


def refuse_if_full(job: NewJob, now: int | None) -> Generator[Statement, list[Any], Verdict | None]:
    """The verdict on a job for which there is no room, if that is so."""
    depths = yield from _depths([] if job.max_depth is None else [job.max_depth])
    return None if _first_without_room([job], 0, depths) else (yield from _refuse_for_room(job, now))


def _refuse_for_room(job: NewJob, now: int | None) -> Generator[Statement, list[Any], Verdict]:
    known = yield from _known(job, now)
    if known is None or type(known.error) is DuplicateJob:  # and not KeyTaken, which is one too
        return Verdict(id=job.id, error=queue_full(job))
    return known


def insert_all_or_none(jobs: Sequence[NewJob], now: int | None, *, alone: bool = False) -> Steps:
    """The same, but if one is refused, none is inserted, and the transaction around it stays usable."""
    yield "SAVEPOINT holdfast_all", ()
    verdicts = yield from insert_jobs(jobs, now, alone=alone)
    if any(verdict.error is not None for verdict in verdicts):
        yield "ROLLBACK TO SAVEPOINT holdfast_all", ()
    yield "RELEASE SAVEPOINT holdfast_all", ()
    return verdicts


def is_plain(job: NewJob) -> bool:
    """Whether no other job can be in its way: it has no key, and its id is new."""
    return job.key is None and job.has_new_id


def is_one(jobs: Sequence[NewJob]) -> bool:
    """Whether they are inserted by one statement."""
    return sum(1 for _ in parts(jobs, _length)) <= 1


def run(steps: Steps, execute: Execute, execute_apart: Execute | None = None) -> list[Verdict]:
    """Take the steps, one after another; they are told of errors, too."""
    try:
        statement = next(steps)
        while True:
            how = execute_apart if execute_apart is not None and isinstance(statement, Apart) else execute
            try:
                rows = how(*statement)
            except BaseException as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as end:
        verdicts: list[Verdict] = end.value
        return verdicts


def _depths(limits: Iterable[Depth]) -> Generator[Statement, list[Any], dict[Depth, int]]:
    depths = {}
    for limit in limits:
        [(depths[limit],)] = yield _DEPTH, [*lanes_within(limit.name), list(limit.apart)]
    return depths


def _insert(jobs: Sequence[NewJob], now: int | None) -> Steps:
    """Insert what can be; of what can't, find out why."""
    keyed = [job for job in jobs if job.key is not None]
    if keyed:
        yield FREE_EXPIRED, [now, [job.type for job in keyed], [job.key for job in keyed]]
    came: dict[str, Any] = {}
    for part in parts(jobs, _length):
        rows = yield _insertion(part, now)
        came |= {row[0]: row for row in rows}
    verdicts = []
    for job in jobs:
        row = came.pop(job.id, None)
        if row is not None:
            verdicts.append(inserted(job, *row[1:]))
        else:
            verdicts.append((yield from _refused(job, now)))
    return verdicts


def _refused(job: NewJob, now: int | None) -> Generator[Statement, list[Any], Verdict]:
    for _ in range(_TRIES):
        known = yield from _known(job, now)
        if known is not None:
            return known
        # What was in the way may be gone since: a job that held the key has finished, or is deleted.
        rows = yield _insertion([job], now)
        if rows:
            return inserted(job, *rows[0][1:])
    return Verdict(id=job.id, error=DuplicateJob(job.id))


def _known(job: NewJob, now: int | None) -> Generator[Statement, list[Any], Verdict | None]:
    """The verdict on a job that is there already."""
    if job.key is not None:
        yield Apart(FREE_EXPIRED, [now, [job.type], [job.key]])
    return (yield from find_known(job))


def find_known(job: NewJob) -> Generator[Statement, list[Any], Verdict | None]:
    """The same: by its key, by an enqueue whose commit was in doubt, or because its id is another's."""
    rows = yield _KNOWN, [job.type, job.key, job.id]
    if not rows:
        return None
    [(how, id, token, status, created_at, run_at, payload)] = rows
    if how == _BY_KEY:
        return found_by_key(job, id, token, status, created_at, payload)
    if token == job.token:
        return inserted(job, status, created_at, run_at)
    return Verdict(id=job.id, error=DuplicateJob(job.id))


def _length(job: NewJob) -> int:
    return len(job.payload)


def _insertion(jobs: Sequence[NewJob], now: int | None) -> Statement:
    if len(jobs) == 1:
        return _INSERT_ONE, [now, *values(jobs[0])]
    return _INSERT, [now, *_columns(jobs)]


def values(job: NewJob) -> list[Any]:
    """A job as the parameters of a statement that inserts one."""
    found = [*_as_given(job)]
    if job.delay is not None:
        found[_DELAY] = microseconds(job.delay)
    return found


def _columns(jobs: Sequence[NewJob]) -> list[list[Any] | None]:
    """The columns as arrays; where none has a value, no array: the server fills up what is missing."""
    found: list[list[Any] | None] = []
    for kind, column in zip(_KINDS.values(), transposed([values(job) for job in jobs]), strict=True):
        if column.count(None) == len(column):
            found.append(None)
        elif kind == "f":  # an array of numbers must be all of one kind
            found.append([None if value is None else float(value) for value in column])
        else:
            found.append(column)
    return found
