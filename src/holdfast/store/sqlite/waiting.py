"""Which pending job has been ready for longest.

Most jobs are ready when they are enqueued. Those have no index by time: within a type and priority, they
became ready in the order of their `seq`. So the first of them in each such line is compared with the first of
the jobs that became ready later, which have an index.
"""

from __future__ import annotations

from holdfast.store.rows import WAITING

_MOST_PASSED_OVER = 20_000
"""Jobs that became ready later and are passed over, in all lines together: behind more of them in a line, the
first of the others isn't looked for."""

_TYPE, _PRIORITY = "json_extract(line, '$[0]')", "json_extract(line, '$[1]')"

OLDEST = f"""
WITH RECURSIVE lines (line) AS (
    SELECT (SELECT json_array(type, priority) FROM holdfast_jobs WHERE status = 'pending'
        ORDER BY type, priority DESC LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT json_array(j.type, j.priority) FROM holdfast_jobs AS j
        WHERE j.status = 'pending' AND j.type = {_TYPE} AND j.priority < {_PRIORITY}
        ORDER BY j.priority DESC LIMIT 1),
        (SELECT json_array(j.type, j.priority) FROM holdfast_jobs AS j
        WHERE j.status = 'pending' AND j.type > {_TYPE} ORDER BY j.type, j.priority DESC LIMIT 1))
    FROM lines WHERE line IS NOT NULL),
firsts (seq) AS (
    SELECT (SELECT seq FROM (
        SELECT j.seq, j.due_at = j.created_at AS was_ready FROM holdfast_jobs AS j
        WHERE j.status = 'pending' AND j.type = {_TYPE} AND j.priority = {_PRIORITY}
        ORDER BY j.seq LIMIT max(10, {_MOST_PASSED_OVER} / (SELECT count(*) FROM lines)))
    WHERE was_ready LIMIT 1)
    FROM lines WHERE line IS NOT NULL
    UNION ALL
    SELECT seq FROM (SELECT seq FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
        WHERE status = 'pending' AND due_at <> created_at ORDER BY due_at, seq LIMIT 1))
SELECT {WAITING.columns} FROM holdfast_jobs WHERE seq IN (SELECT seq FROM firsts WHERE seq IS NOT NULL)
ORDER BY due_at, seq LIMIT 1
"""
