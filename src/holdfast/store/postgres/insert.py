"""Inserting jobs: one statement for all, each with its own verdict.

What is asked of the database is yielded, as SQL and parameters, and the rows come back. So the same steps run
on our own connections and on those of an application, whichever driver it has, asyncio or not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from holdfast.core.clock import microseconds
from holdfast.core.job import Status
from holdfast.core.payload import same_json
from holdfast.errors import DuplicateJob, KeyTaken, QueueFull
from holdfast.store.postgres.arrays import given, parts
from holdfast.store.postgres.clock import CLOCK
from holdfast.store.protocol import NewJob, Verdict

Statement = tuple[str, Sequence[Any]]
Steps = Generator[Statement, list[Any], list[Verdict]]
Execute = Callable[[str, Sequence[Any]], list[Any]]


class Apart(NamedTuple):
    """A statement whose failure leaves the transaction around it as it was."""

    sql: str
    parameters: Sequence[Any]


_CAME = """
INSERT INTO holdfast_jobs (id, type, status, priority, max_attempts, key, key_for, key_held, run_at, due_at,
    timeout, parent_id, created_at, updated_at, token, payload)
SELECT id, type, CASE WHEN waits THEN 'scheduled' ELSE 'pending' END, priority, max_attempts, key, key_for,
    key IS NOT NULL, until, CASE WHEN waits THEN until ELSE now END, timeout, parent_id, now, now, token,
    payload
FROM (
    SELECT n.*, clock.now, coalesce(clock.now + n.delay, n.run_at) AS until,
        coalesce(coalesce(clock.now + n.delay, n.run_at) > clock.now, false) AS waits
    FROM {first}, unnest($2::text[], $3::text[], $4::integer[], $5::integer[], $6::text[],
        $7::double precision[], $8::bigint[], $9::bigint[], $10::double precision[], $11::text[],
        $12::text[], $13::text[]) WITH ORDINALITY
        AS n (id, type, priority, max_attempts, key, key_for, run_at, delay, timeout, parent_id, token,
            payload, place)) AS new
ORDER BY place
ON CONFLICT DO NOTHING
RETURNING id, status, created_at, run_at
"""

_INSERT = f"WITH {CLOCK} {_CAME.format(first='clock')}"


def _free_expired(types: str, keys: str) -> str:
    """Takes keys from finished jobs whose key_for has passed."""
    return f"""
UPDATE holdfast_jobs AS j SET key_held = false
FROM clock WHERE j.key_held AND j.key_until <= clock.now AND j.seq = ANY (ARRAY(
    SELECT holder.seq FROM {given(f"{types}, {keys}")} AS k (type, key) CROSS JOIN LATERAL (
        SELECT seq FROM holdfast_jobs WHERE type = k.type AND key = k.key AND key_held LIMIT 1) AS holder))
"""


FREE_EXPIRED = f"WITH {CLOCK} {_free_expired('$2::text[]', '$3::text[]')}"

# Through a connection of somebody else's: only into this queue, and not where it was moved away from.
_HERE = """
here AS MATERIALIZED (
    SELECT FROM holdfast_schema WHERE identity = $14 AND to_regclass($16) IS NULL
        AND $15 = (SELECT oid::bigint FROM pg_database WHERE datname = current_database()))
"""
_TOLD = """
SELECT came.*, CASE WHEN came.id IS NOT NULL AND $17::text IS NOT NULL THEN pg_notify($17, '')::text END
FROM here LEFT JOIN came ON true
"""

INSERT_HERE = f"WITH {CLOCK}, {_HERE}, came AS ({_CAME.format(first='clock, here')}) {_TOLD}"
"""Inserts a job and tells workers of it. No row: this is not the place; one without an id: it is there."""

# What counts the freed makes sure that they are free before anything is inserted.
INSERT_KEYED_HERE = f"""
WITH {CLOCK}, {_HERE}, freed AS ({_free_expired("$3::text[]", "$6::text[]")} RETURNING j.seq),
    came AS ({_CAME.format(first="clock, here, (SELECT count(*) FROM freed) AS freed (number)")}) {_TOLD}
"""

# The job that holds the key, if there is one, else the one that has the id.
_KNOWN = """
SELECT 1, id, token, status, created_at, run_at, payload FROM holdfast_jobs
WHERE type = $1 AND key = $2 AND key_held
UNION ALL
SELECT 2, id, token, status, created_at, run_at, NULL FROM holdfast_jobs WHERE id = $3
ORDER BY 1 LIMIT 1
"""

_DEPTHS = "SELECT type, pending + scheduled FROM holdfast_counts WHERE type = ANY ($1::text[])"

_ALONE = "SELECT pg_advisory_xact_lock(1751346276, hashtext($1))"

_TRIES = 5
_BY_KEY = 1


def insert_jobs(jobs: Sequence[NewJob], now: int | None, *, alone: bool = False) -> Steps:
    """Insert inside the open transaction. A conflict is a verdict, never an abort.

    With `alone`, nobody else who says so inserts jobs of a type with a max_depth until the commit.
    """
    if alone:
        for type in sorted({job.type for job in jobs if job.max_depth is not None}):
            yield _ALONE, [type]
    depths = yield from _depths(jobs)
    sure = _sure(jobs, depths)
    verdicts = yield from _insert(jobs[:sure], now)
    for job, verdict in zip(jobs[:sure], verdicts, strict=True):
        depths[job.type] = depths.get(job.type, 0) + verdict.inserted
    for job in jobs[sure:]:
        verdicts.append((yield from _insert_if_room(job, depths, now)))
    return verdicts


def _sure(jobs: Sequence[NewJob], depths: dict[str, int]) -> int:
    """How many of the first find room, whatever becomes of each."""
    waiting = dict(depths)
    for place, job in enumerate(jobs):
        depth = waiting.get(job.type, 0)
        if job.max_depth is not None and depth >= job.max_depth:
            return place
        waiting[job.type] = depth + 1
    return len(jobs)


def _insert_if_room(
    job: NewJob, depths: dict[str, int], now: int | None
) -> Generator[Statement, list[Any], Verdict]:
    full = yield from _full(job, depths, now)
    if full is not None:
        return full
    [verdict] = yield from _insert([job], now)
    depths[job.type] = depths.get(job.type, 0) + verdict.inserted
    return verdict


def refuse_if_full(job: NewJob, now: int | None) -> Generator[Statement, list[Any], Verdict | None]:
    """The verdict on a job for which there is no room, if that is so."""
    depths = yield from _depths([job])
    return (yield from _full(job, depths, now))


def _full(
    job: NewJob, depths: dict[str, int], now: int | None
) -> Generator[Statement, list[Any], Verdict | None]:
    if job.max_depth is None or depths.get(job.type, 0) < job.max_depth:
        return None
    known = yield from _known(job, now)
    if known is None or known.error.__class__ is DuplicateJob:
        return Verdict(id=job.id, error=QueueFull(job.type, job.max_depth))
    return known


def insert_all_or_none(jobs: Sequence[NewJob], now: int | None, *, alone: bool = False) -> Steps:
    """The same, but with one refusal nothing is inserted, and the transaction around it goes on."""
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


def _depths(jobs: Sequence[NewJob]) -> Generator[Statement, list[Any], dict[str, int]]:
    types = sorted({job.type for job in jobs if job.max_depth is not None})
    if not types:
        return {}
    rows = yield _DEPTHS, [types]
    return dict(rows)


def _insert(jobs: Sequence[NewJob], now: int | None) -> Steps:
    """Insert what can be; of what can't, find out why."""
    if not jobs:
        return []
    keyed = [job for job in jobs if job.key is not None]
    if keyed:
        yield FREE_EXPIRED, [now, [job.type for job in keyed], [job.key for job in keyed]]
    came: dict[str, Any] = {}
    for part in parts(jobs, _length):
        rows = yield _INSERT, [now, *columns(part)]
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
        rows = yield _INSERT, [now, *columns([job])]
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
        error = None if same_json(payload, job.payload) else KeyTaken(id, job.key or "")
        return Verdict(
            id=id, error=error, inserted=token == job.token, status=Status(status), created_at=created_at
        )
    if token == job.token:
        return inserted(job, status, created_at, run_at)
    return Verdict(id=job.id, error=DuplicateJob(job.id))


def inserted(job: NewJob, status: str, created_at: int, run_at: int | None) -> Verdict:
    return Verdict(id=job.id, inserted=True, status=Status(status), created_at=created_at, run_at=run_at)


def _length(job: NewJob) -> int:
    return len(job.payload)


def columns(jobs: Sequence[NewJob]) -> list[list[Any]]:
    return [
        [job.id for job in jobs],
        [job.type for job in jobs],
        [job.priority for job in jobs],
        [job.max_attempts for job in jobs],
        [job.key for job in jobs],
        [_float(job.key_for) for job in jobs],
        [job.run_at for job in jobs],
        [None if job.delay is None else microseconds(job.delay) for job in jobs],
        [_float(job.timeout) for job in jobs],
        [job.parent_id for job in jobs],
        [job.token for job in jobs],
        [job.payload for job in jobs],
    ]


def _float(value: float | None) -> float | None:
    # An array of numbers must be all of one kind.
    return None if value is None else float(value)
