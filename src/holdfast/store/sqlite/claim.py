"""Claiming: which pending jobs a worker takes, within every limit, in one transaction.

Everything goes in and out as one JSON value per statement. The worker's threads share the GIL with its
handlers, and sqlite3 releases it for each row: reading five hundred rows one by one could mean waiting five
hundred times for a busy handler.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.clock import microseconds
from holdfast.core.rate_limit import Bucket
from holdfast.core.settings import Settings
from holdfast.core.starting import MOST_LOSSES, Candidate, Head, Room, Usage
from holdfast.store.candidates import MOST_IN_LINE, Turns, choose_jobs
from holdfast.store.records import Claim, Claimed, Demand
from holdfast.store.sqlite.connection import OwnConnection, as_json, from_json
from holdfast.store.sqlite.counts import count_claimed
from holdfast.store.sqlite.database import Database

# These wait until a worker has nothing else to run.
_BESIDES_SUSPECTS = f"""seq NOT IN (
    SELECT seq FROM holdfast_jobs INDEXED BY holdfast_jobs_suspect
    WHERE status = 'pending' AND losses >= {MOST_LOSSES})"""

# From type to type by leaps, to the job that comes first of each: what waits behind it costs nothing.
_LEAPS = f"""
WITH RECURSIVE heads (head) AS (
    SELECT '[""]'
    UNION ALL
    SELECT (SELECT json_array(type, priority, seq) FROM holdfast_jobs
        WHERE status = 'pending' AND type > {{after}} AND {_BESIDES_SUSPECTS}
        ORDER BY type, priority DESC, seq LIMIT 1)
    FROM heads WHERE head IS NOT NULL)
SELECT '[' || coalesce(group_concat(head), '') || ']' FROM heads WHERE head <> '[""]'
"""
_TYPE = "json_extract(head, '$[0]')"
HEADS = _LEAPS.format(after=_TYPE)

# In one leap over all lanes of these types; a tilde comes after all that may stand in a name.
HEADS_APART = _LEAPS.format(
    after=f"""CASE WHEN substr({_TYPE}, 1, instr({_TYPE}, ':') - 1) IN (SELECT value FROM json_each(?))
        THEN substr({_TYPE}, 1, instr({_TYPE}, ':')) || '~' ELSE {_TYPE} END"""
)

_HEADS_OF = f"""
SELECT json_group_array(json((
    SELECT json_array(priority, seq) FROM holdfast_jobs
    WHERE status = 'pending' AND type = types.value AND {_BESIDES_SUSPECTS}
    ORDER BY priority DESC, seq LIMIT 1)))
FROM json_each(?) AS types
"""

# As _CLAIM leaves it, in the order of a Claim.
_ROW = """json_group_array(json_array(
    seq, id, type, payload, priority, attempts + 1, coalesce(max_attempts, ?2), version + 1,
    coalesce(timeout, ?3), created_at, due_at))"""

# The first of a type: only their places where several types compete, else the whole rows.
FIRST = f"""
SELECT json_group_array(json((
    SELECT json_group_array(json_array(priority, seq, type, "group")) FROM (
        SELECT priority, seq, type, "group" FROM holdfast_jobs
        WHERE status = 'pending' AND type = types.value AND {_BESIDES_SUSPECTS}
        ORDER BY priority DESC, seq LIMIT ?2))))
FROM json_each(?1) AS types
"""
FIRST_UNGROUPED = f"""
SELECT json_group_array(json_array(priority, seq, type, NULL)) FROM (
    SELECT priority, seq, type FROM (
        SELECT priority, seq, type, "group" FROM holdfast_jobs
        WHERE status = 'pending' AND type = ?1 AND {_BESIDES_SUSPECTS}
        ORDER BY priority DESC, seq LIMIT {MOST_IN_LINE})
    WHERE "group" IS NULL LIMIT ?2)
"""
FIRST_ROWS = f"""
SELECT {_ROW} FROM (
    SELECT * FROM holdfast_jobs WHERE status = 'pending' AND type = ?1 AND {_BESIDES_SUSPECTS}
    ORDER BY priority DESC, seq LIMIT ?4)
"""
_CHOSEN_ROWS = f"SELECT {_ROW} FROM holdfast_jobs WHERE seq IN (SELECT value FROM json_each(?1))"

# From group to group by leaps, along the index that has their names.
_OF_GROUP = f"""
SELECT {{what}} FROM holdfast_jobs AS j INDEXED BY holdfast_jobs_grouped
WHERE j.status = 'pending' AND j."group" IS NOT NULL AND j.{_BESIDES_SUSPECTS} AND j.type = ?1
    AND j.priority = top.priority
"""
FIRST_OF_GROUPS = f"""
WITH RECURSIVE top (priority) AS (
    SELECT (SELECT priority FROM holdfast_jobs INDEXED BY holdfast_jobs_grouped
        WHERE status = 'pending' AND "group" IS NOT NULL AND {_BESIDES_SUSPECTS} AND type = ?1
            AND priority < ?2
        ORDER BY priority DESC LIMIT 1)),
turns (name) AS (
    SELECT ({_OF_GROUP.format(what='j."group"')} AND j."group" > ?3 ORDER BY j."group" LIMIT 1) FROM top
    UNION ALL
    SELECT ({_OF_GROUP.format(what='j."group"')} AND j."group" > turns.name ORDER BY j."group" LIMIT 1)
    FROM turns, top WHERE turns.name IS NOT NULL LIMIT ?4)
SELECT json_group_array(json_array(top.priority, seq, ?1, name)) FROM top, (
    SELECT name, ({_OF_GROUP.format(what="j.seq")} AND j."group" = turns.name ORDER BY j.seq LIMIT 1) AS seq
    FROM turns, top WHERE name IS NOT NULL)
"""
MORE_OF_GROUPS = f"""
SELECT json_group_array(json((
    SELECT json_group_array(json_array(priority, seq, type, "group")) FROM (
        SELECT priority, seq, type, "group" FROM holdfast_jobs INDEXED BY holdfast_jobs_grouped
        WHERE status = 'pending' AND type = ?1 AND priority = ?2 AND "group" = names.value
            AND "group" IS NOT NULL AND {_BESIDES_SUSPECTS}
        ORDER BY seq LIMIT ?4))))
FROM json_each(?3) AS names
"""

# One at a time, and nothing else with it.
_SUSPECTS = f"""
SELECT json_group_array(json_array(priority, seq, type, "group")) FROM (
    SELECT priority, seq, type, "group" FROM holdfast_jobs INDEXED BY holdfast_jobs_suspect
    WHERE status = 'pending' AND losses >= {MOST_LOSSES} AND +type IN (SELECT value FROM json_each(?))
    ORDER BY priority DESC, seq LIMIT 100)
"""

_BUCKETS = "SELECT json_group_array(json_array(name, tokens, refilled_at)) FROM holdfast_limits"
_BUCKETS_OF = f"{_BUCKETS} WHERE name IN (SELECT value FROM json_each(?))"
RUNNING = """
SELECT json_group_array(json_array(type, running)) FROM (
    SELECT type, count(*) AS running FROM holdfast_jobs INDEXED BY holdfast_jobs_leased
    WHERE status = 'processing' GROUP BY type)
"""
RUNNING_GROUPS = """
SELECT json_group_array(json_array(type, "group", running)) FROM (
    SELECT type, "group", count(*) AS running FROM holdfast_jobs INDEXED BY holdfast_jobs_busy_groups
    WHERE status = 'processing' AND "group" IS NOT NULL GROUP BY "group", type)
"""

# What enqueue left open is fixed here, at the first claim.
_CLAIM = """
UPDATE holdfast_jobs SET
    status = 'processing', attempts = attempts + 1, version = version + 1,
    max_attempts = coalesce(max_attempts, ?1), timeout = coalesce(timeout, ?2),
    worker_id = ?3, lease_expires_at = ?4, started_at = ?5, updated_at = ?5, has_started = ?7,
    progress = NULL, progress_message = NULL
WHERE seq IN (SELECT value FROM json_each(?6)) AND +status = 'pending'
"""


def heads_from(text: str) -> list[Head]:
    """The answer of HEADS."""
    return [Head(*head) for head in from_json(text)]


class Line:
    """See WaitingJobs."""

    def __init__(self, connection: OwnConnection) -> None:
        self._connection = connection

    def first(self, types: Sequence[str], count: int) -> list[list[Candidate]]:
        lines = self._connection.value(FIRST, as_json(types), count)
        return [[Candidate(*row) for row in line] for line in lines]

    def first_ungrouped(self, type: str, count: int) -> list[Candidate]:
        return self._candidates(FIRST_UNGROUPED, type, count)

    def first_of_groups(self, type: str, below: int | None, after: str, count: int) -> list[Candidate]:
        return self._candidates(FIRST_OF_GROUPS, type, 2**31 if below is None else below, after, count)

    def more_of_groups(self, type: str, priority: int, groups: Sequence[str], count: int) -> list[Candidate]:
        lines = self._connection.value(MORE_OF_GROUPS, type, priority, as_json(groups), count)
        return [Candidate(*row) for line in lines for row in line]

    def _candidates(self, sql: str, *parameters: Any) -> list[Candidate]:
        return [Candidate(*row) for row in self._connection.value(sql, *parameters)]


class Claiming:
    """Claims for the workers of this process. It remembers whose turn it is."""

    def __init__(self) -> None:
        self._turns = Turns()

    def claim_jobs(
        self,
        connection: OwnConnection,
        worker_id: str,
        demands: Sequence[Demand],
        settings: Settings,
        *,
        limit: int,
        lease_seconds: float,
        alone: bool,
        now: int,
    ) -> Claimed:
        """Claim inside the open transaction."""
        if settings.version is not None and _version(connection) != settings.version:
            return Claimed([], is_stale=True)
        taking = _Taking(connection, worker_id, now + microseconds(lease_seconds), now)
        if alone:
            claim = taking.suspect(demands, settings)
            if claim is not None:
                return Claimed([claim], is_alone=True)
        return taking.within_size(demands, settings, limit, self._turns)


class _Taking:
    """One claim."""

    def __init__(self, connection: OwnConnection, worker_id: str, lease_expires_at: int, now: int) -> None:
        self._connection = connection
        self._worker_id = worker_id
        self._lease_expires_at = lease_expires_at
        self._now = now

    def within_size(self, demands: Sequence[Demand], settings: Settings, limit: int, turns: Turns) -> Claimed:
        """Claim; fewer, if as many as asked for would be more than SQLite puts into one value."""
        while True:
            try:
                return self._claim(demands, settings, limit, turns)
            except sqlite3.DataError:
                if limit == 1:
                    raise
                limit = max(1, limit // 2)

    def _claim(self, demands: Sequence[Demand], settings: Settings, limit: int, turns: Turns) -> Claimed:
        if len(demands) == 1 and _is_plain(settings, demands[0].type):
            [demand] = demands
            count = min(limit, demand.limit)
            left_open = demand.max_attempts, demand.timeout
            rows = self._connection.value(FIRST_ROWS, demand.type, *left_open, count)
            return Claimed(self._take(left_open, rows), heads=None if rows else {})
        room = self._room(demands, settings)
        chosen = choose_jobs(demands, settings, room, limit, Line(self._connection), turns)
        claims = self._claims(demands, chosen.jobs)
        self._save(room)
        places = {job.seq: place for place, job in enumerate(chosen.jobs)}
        claims.sort(key=lambda claim: places[claim.seq])
        heads = self._heads([demand.type for demand in demands], chosen.heads)
        limited = frozenset(room.limited & heads.keys())
        left = {type: head for type, head in heads.items() if type not in chosen.blocked}
        return Claimed(claims, room.wait() if limited else None, limited, left, used_up=chosen.used_up)

    def _heads(self, types: Sequence[str], known: Mapping[str, Head | None]) -> dict[str, Head]:
        heads = {type: head for type, head in known.items() if head is not None}
        types = [type for type in types if type not in known]
        if types:
            places = zip(types, self._connection.value(_HEADS_OF, as_json(types)), strict=True)
            heads |= {type: Head(type, *place) for type, place in places if place is not None}
        return heads

    def suspect(self, demands: Sequence[Demand], settings: Settings) -> Claim | None:
        """Take one job that has to run alone, if one may start."""
        types = as_json([demand.type for demand in demands])
        suspects = [Candidate(*row) for row in self._connection.value(_SUSPECTS, types)]
        room = self._room(demands, settings)
        for job in suspects:
            if room.may_start(job.type, job.group):
                room.take(job.type, job.group)
                # It counts as started from now on: it may be a job that leaves nobody to say so.
                [claim] = self._claims(demands, [job], has_started=True)
                self._save(room)
                return claim
        return None

    def _room(self, demands: Sequence[Demand], settings: Settings) -> Room:
        """What the limits of these types leave; of others nothing is read."""
        slots = ((demand.type, demand.limit) for demand in demands)
        limits = {id(each): each for each in (settings.limits(demand.type) for demand in demands)}.values()
        value = self._connection.value
        rates = {each.rate.name for each in limits if each.rate is not None}
        usage = Usage(
            running=_running(value) if any(each.max_running is not None for each in limits) else {},
            groups=_running_groups(value) if any(each.group is not None for each in limits) else {},
            buckets=_buckets(value(_BUCKETS_OF, as_json([*rates]))) if rates else {},
        )
        return Room(settings, usage, self._now, slots)

    def _claims(
        self, demands: Sequence[Demand], jobs: Sequence[Candidate], *, has_started: bool = False
    ) -> list[Claim]:
        """Take these jobs: those together for which the same holds where enqueue left it open."""
        left_open = {demand.type: (demand.max_attempts, demand.timeout) for demand in demands}
        alike: dict[tuple[int, float | None], list[int]] = {}
        for job in jobs:
            alike.setdefault(left_open[job.type], []).append(job.seq)
        claims: list[Claim] = []
        for given, seqs in alike.items():
            rows = self._connection.value(_CHOSEN_ROWS, as_json(seqs), *given)
            claims += self._take(given, rows, has_started=has_started)
        return claims

    def _take(
        self, left_open: tuple[int, float | None], rows: Sequence[list[Any]], *, has_started: bool = False
    ) -> list[Claim]:
        seqs = as_json([row[0] for row in rows])
        lease = self._worker_id, self._lease_expires_at, self._now
        taken = self._connection.count(_CLAIM, (*left_open, *lease, seqs, has_started))
        if taken != len(rows):  # can't be: the write lock was held since the rows were read
            raise AssertionError(f"claimed {taken} of {len(rows)} jobs")
        count_claimed(self._connection, [row[2] for row in rows])
        return [Claim(*[*row, self._worker_id]) for row in rows]

    def _save(self, room: Room) -> None:
        for name, bucket in room.changed.items():
            self._connection.execute(
                "REPLACE INTO holdfast_limits (name, tokens, refilled_at) VALUES (?, ?, ?)",
                (name, bucket.tokens, bucket.at),
            )


def _is_plain(settings: Settings, type: str) -> bool:
    """Whether jobs of a type start in line, as far as slots allow."""
    limits = settings.limits(type)
    return not (limits.is_shared or limits.fair or limits.paused)


def _version(connection: OwnConnection) -> int:
    version: int = connection.execute("SELECT settings_version FROM holdfast_schema").fetchone()[0]
    return version


def _running(value: Callable[..., Any]) -> dict[str, int]:
    return dict(value(RUNNING))


def _running_groups(value: Callable[..., Any]) -> dict[tuple[str, str], int]:
    return {(type, group): running for type, group, running in value(RUNNING_GROUPS)}


def _buckets(rows: Sequence[tuple[str, float, int]]) -> dict[str, Bucket]:
    return {name: Bucket(tokens, at) for name, tokens, at in rows}


def read_usage(database: Database) -> Usage:
    """What runs, as of one moment."""

    def value(sql: str) -> Any:
        return from_json(database.read_one(sql)[0])

    with database.snapshot():
        return Usage(_running(value), _running_groups(value), _buckets(value(_BUCKETS)))
