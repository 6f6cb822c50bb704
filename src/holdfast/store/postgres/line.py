"""The jobs that wait, as a claim reads them: a type's in line, or those of its groups in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.starting import Candidate
from holdfast.store.candidates import DEEPEST
from holdfast.store.postgres.schema import SEQ
from holdfast.store.postgres.session import Session

WAITS = "status = 'pending' AND losses < 2"

FIRST = f"""
SELECT first.priority, first.seq, types.name, first."group" FROM unnest($1::text[]) AS types (name)
CROSS JOIN LATERAL (
    SELECT priority, seq, "group" FROM holdfast_jobs WHERE {WAITS} AND type = types.name
    ORDER BY priority DESC, {SEQ} LIMIT $2) AS first
ORDER BY first.priority DESC, first.seq
"""
FIRST_UNGROUPED = f"""
SELECT priority, seq, type, NULL FROM (
    SELECT priority, seq, type, "group" FROM holdfast_jobs WHERE {WAITS} AND type = $1
    ORDER BY priority DESC, {SEQ} LIMIT {DEEPEST}) AS line
WHERE "group" IS NULL LIMIT $2
"""
_IN_GROUP = """
FROM holdfast_jobs AS j WHERE j.status = 'pending' AND j."group" IS NOT NULL AND j.losses < 2 AND j.type = $1
"""
FIRST_OF_GROUPS = f"""
WITH RECURSIVE top AS MATERIALIZED (
    SELECT j.priority {_IN_GROUP} AND j.priority < $2 ORDER BY j.priority DESC LIMIT 1),
turns (name, place) AS (
    SELECT (SELECT j."group" {_IN_GROUP} AND j.priority = top.priority AND j."group" > $3
        ORDER BY j."group" LIMIT 1), 1 FROM top
    UNION ALL
    SELECT (SELECT j."group" {_IN_GROUP} AND j.priority = top.priority AND j."group" > turns.name
        ORDER BY j."group" LIMIT 1), turns.place + 1
    FROM turns, top WHERE turns.name IS NOT NULL AND turns.place < $4)
SELECT top.priority, first.seq, $1, turns.name FROM top, turns CROSS JOIN LATERAL (
    SELECT j.seq {_IN_GROUP} AND j.priority = (SELECT priority FROM top) AND j."group" = turns.name
    ORDER BY {SEQ.replace("seq", "j.seq")} LIMIT 1) AS first
ORDER BY turns.place
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
SELECT priority, seq, type, "group" FROM holdfast_jobs WHERE status = 'pending' AND losses >= 2
    AND type || '' = ANY ($1::text[]) ORDER BY priority DESC, {SEQ} LIMIT 100
"""


class Line:
    """See WaitingJobs."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def first(self, types: Sequence[str], count: int) -> list[list[Candidate]]:
        lines: dict[str, list[Candidate]] = {type: [] for type in types}
        for job in self._candidates(FIRST, list(types), count):
            lines[job.type].append(job)
        return [*lines.values()]

    def first_ungrouped(self, type: str, count: int) -> list[Candidate]:
        return self._candidates(FIRST_UNGROUPED, type, count)

    def first_of_groups(self, type: str, below: int | None, after: str, count: int) -> list[Candidate]:
        return self._candidates(FIRST_OF_GROUPS, type, 2**31 if below is None else below, after, count)

    def more_of_groups(self, type: str, priority: int, groups: Sequence[str], count: int) -> list[Candidate]:
        return self._candidates(MORE_OF_GROUPS, type, priority, list(groups), count)

    def _candidates(self, sql: str, *parameters: Any) -> list[Candidate]:
        return [Candidate(*row) for row in self._session.rows(sql, parameters)]
