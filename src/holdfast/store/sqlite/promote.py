"""Promoting: scheduled jobs that are due become pending, the most urgent first."""

from __future__ import annotations

from holdfast.store.sqlite.connection import OwnConnection, as_json

# From priority to priority along their index, and so the most urgent of those that are due. Of very many
# priorities the last share the order in which they are due.
MOST_URGENT = """
WITH RECURSIVE priorities (priority) AS (
    VALUES (9223372036854775807)
    UNION ALL
    SELECT (SELECT j.priority FROM holdfast_jobs AS j WHERE j.status = 'scheduled' AND j.priority < p.priority
        ORDER BY j.priority DESC LIMIT 1)
    FROM priorities AS p WHERE p.priority IS NOT NULL LIMIT 100)
SELECT json_group_array(json_array(seq, id, type)) FROM (
    SELECT j.seq, j.id, j.type FROM priorities AS p CROSS JOIN holdfast_jobs AS j
    WHERE j.status = 'scheduled' AND j.priority = p.priority AND j.due_at <= ?
    LIMIT ?)
"""
FIRST_DUE = """
SELECT json_group_array(json_array(seq, id, type)) FROM (
    SELECT seq, id, type FROM holdfast_jobs WHERE status = 'scheduled' AND due_at <= ?
    ORDER BY due_at LIMIT ?)
"""
_PROMOTE = """
UPDATE holdfast_jobs SET status = 'pending', due_at = due_at, updated_at = ?
WHERE seq IN (SELECT value FROM json_each(?)) AND +status = 'scheduled'
"""


def promote_jobs(connection: OwnConnection, limit: int, now: int) -> list[tuple[str, str]]:
    promoted: list[tuple[str, str]] = []
    for sql in (MOST_URGENT, FIRST_DUE):
        room = limit - len(promoted)
        if room:
            rows = connection.value(sql, now, room)
            if rows:
                connection.execute(_PROMOTE, (now, as_json([row[0] for row in rows])))
            promoted += [(id, type) for _, id, type in rows]
    return promoted
