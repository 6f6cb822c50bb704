"""The jobs that wait, as a claim reads them: a type's in line, or those of its groups in turn."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from holdfast.core.settings import Settings
from holdfast.core.starting import MOST_LOSSES, Candidate
from holdfast.store.candidates import MOST_IN_LINE, Turns, read_of_each
from holdfast.store.postgres.floors import MOST_TYPES, Floors, along, segments_given
from holdfast.store.postgres.schema import SEQ
from holdfast.store.postgres.session import Reply, Session
from holdfast.store.records import Demand

WAITS = f"status = 'pending' AND losses < {MOST_LOSSES}"

FIRST = f"""
SELECT first.priority, first.seq, types.name, first."group" FROM unnest($1::text[]) AS types (name)
CROSS JOIN LATERAL (
    SELECT priority, seq, "group" FROM holdfast_jobs WHERE {WAITS} AND type = types.name
    ORDER BY priority DESC, {SEQ} LIMIT $2) AS first
ORDER BY first.priority DESC, first.seq
"""
FIRST_FROM = f"""
WITH {segments_given(3)}
SELECT first.priority, first.seq, types.name, first."group" FROM unnest($1::text[]) AS types (name)
CROSS JOIN LATERAL ({along("types.name", "$2", 'priority, seq, "group"')}) AS first
ORDER BY first.priority DESC, first.seq
"""
FIRST_UNGROUPED = f"""
SELECT priority, seq, type, NULL FROM (
    SELECT priority, seq, type, "group" FROM holdfast_jobs WHERE {WAITS} AND type = $1
    ORDER BY priority DESC, {SEQ} LIMIT {MOST_IN_LINE}) AS line
WHERE "group" IS NULL LIMIT $2
"""
_IN_GROUP = f"""
FROM holdfast_jobs AS j
WHERE j.status = 'pending' AND j."group" IS NOT NULL AND j.losses < {MOST_LOSSES} AND j.type = $1
"""
# From group to group by leaps, each of which finds the group's first job, too.
_NEXT = f"""
SELECT j."group" AS name, j.seq {_IN_GROUP} AND j.priority = top.priority AND j."group" > {{after}}
ORDER BY j."group", {SEQ.replace("seq", "j.seq")} LIMIT 1
"""
FIRST_OF_GROUPS = f"""
WITH RECURSIVE top AS MATERIALIZED (
    SELECT j.priority {_IN_GROUP} AND j.priority < $2 ORDER BY j.priority DESC LIMIT 1),
turns (name, seq, place) AS (
    SELECT first.name, first.seq, 1 FROM top CROSS JOIN LATERAL ({_NEXT.format(after="$3")}) AS first
    UNION ALL
    SELECT next.name, next.seq, turns.place + 1
    FROM turns CROSS JOIN top CROSS JOIN LATERAL ({_NEXT.format(after="turns.name")}) AS next
    WHERE turns.place < $4)
SELECT top.priority, turns.seq, $1, turns.name FROM top, turns ORDER BY turns.place
"""
MORE_OF_GROUPS = f"""
SELECT $2::integer, more.seq, $1, names.name FROM unnest($3::text[]) WITH ORDINALITY AS names (name, place)
CROSS JOIN LATERAL (
    SELECT j.seq {_IN_GROUP} AND j.priority = $2 AND j."group" = names.name
    ORDER BY {SEQ.replace("seq", "j.seq")} LIMIT $4) AS more
ORDER BY names.place, more.seq
"""
# Not by their types, which would let the planner take the index of all that wait.
SUSPECTS = f"""
SELECT priority, seq, type, "group" FROM holdfast_jobs WHERE status = 'pending' AND losses >= {MOST_LOSSES}
    AND type || '' = ANY ($1::text[]) ORDER BY priority DESC, {SEQ} LIMIT 100
"""


_ANY = 2**31


class Line:
    """See WaitingJobs. What will most likely be asked for can go out with other statements, before it is."""

    def __init__(self, session: Session, floors: Floors | None = None) -> None:
        self._session = session
        self._floors = floors
        self._first: list[tuple[AbstractSet[str], int, Reply]] = []
        self._groups: dict[tuple[str, str], tuple[int, Reply]] = {}

    def expect(self, demands: Sequence[Demand], settings: Settings, limit: int, turns: Turns) -> None:
        """Ask ahead for what a claim reads; not in vain, if limits let it start anything.

        What was asked for before is forgotten: if that round trip has failed, nobody answers it.
        """
        self._first, self._groups = [], {}
        plain = []
        for demand in demands:
            limits = settings.limits(demand.type)
            if limits.fair:
                self._expect_groups(demand.type, turns.after(demand.type), min(limit, demand.limit))
            elif limits.group is not None:
                self._expect_first([demand.type], 2 * min(limit, demand.limit))
            else:
                plain.append(demand.type)
        if plain:
            self._expect_first(plain, read_of_each(plain, limit))

    def _expect_first(self, types: Sequence[str], count: int) -> None:
        answer = self._session.ahead(*self._reading(types, count))
        self._first.append((frozenset(types), count, answer))

    def _expect_groups(self, type: str, after: str, count: int) -> None:
        answer = self._session.ahead(FIRST_OF_GROUPS, [type, _ANY, after, count])
        self._groups[type, after] = count, answer

    def first(self, types: Sequence[str], count: int) -> list[list[Candidate]]:
        found = self._expected_first(types, count)
        if found is None:
            sql, given = self._reading(types, count)
            found = self._candidates(sql, *given)
        lines: dict[str, list[Candidate]] = {type: [] for type in types}
        for job in found:
            if job.type in lines and len(lines[job.type]) < count:
                lines[job.type].append(job)
        return [*lines.values()]

    def _reading(self, types: Sequence[str], count: int) -> tuple[str, list[Any]]:
        """How to read the first jobs of these types."""
        few = self._floors is not None and len(types) <= MOST_TYPES
        segments = self._floors.segments(types) if self._floors is not None and few else None
        if segments is None:
            return FIRST, [list(types), count]
        return FIRST_FROM, [list(types), count, *segments]

    def _expected_first(self, types: Sequence[str], count: int) -> list[Candidate] | None:
        for known, read, answer in self._first:
            if count <= read and known >= set(types):
                return [Candidate(*row) for row in answer.rows]
        return None

    def first_ungrouped(self, type: str, count: int) -> list[Candidate]:
        return self._candidates(FIRST_UNGROUPED, type, count)

    def first_of_groups(self, type: str, below: int | None, after: str, count: int) -> list[Candidate]:
        if below is None and (type, after) in self._groups:
            read, answer = self._groups[type, after]
            if count <= read:
                return [Candidate(*row) for row in answer.rows[:count]]
        return self._candidates(FIRST_OF_GROUPS, type, _ANY if below is None else below, after, count)

    def more_of_groups(self, type: str, priority: int, groups: Sequence[str], count: int) -> list[Candidate]:
        return self._candidates(MORE_OF_GROUPS, type, priority, list(groups), count)

    def _candidates(self, sql: str, *parameters: Any) -> list[Candidate]:
        return [Candidate(*row) for row in self._session.rows(sql, parameters)]
