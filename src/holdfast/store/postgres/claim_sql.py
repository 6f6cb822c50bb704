"""The statements of a claim: each type's line from its front, or along its segments from their floors."""

from __future__ import annotations

from holdfast.core.starting import MOST_LOSSES
from holdfast.store.postgres.floors import along, segments_given
from holdfast.store.postgres.line import WAITS
from holdfast.store.postgres.schema import SEQ
from holdfast.store.postgres.server_clock import CLOCK, PRESENT

# From type to type by leaps, and of each the job that comes first: what waits behind it costs nothing.
_FIRST_OF_TYPE = f"""
SELECT j.priority, j.seq, j.returned FROM holdfast_jobs AS j
WHERE j.status = 'pending' AND j.losses < {MOST_LOSSES} AND j.type = types.type
ORDER BY j.priority DESC, {SEQ.replace("seq", "j.seq")} LIMIT 1
"""
HEADS = f"""
WITH RECURSIVE types (type) AS (
    (SELECT type FROM holdfast_jobs WHERE status = 'pending' ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT j.type FROM holdfast_jobs AS j WHERE j.status = 'pending' AND j.type > types.type
        ORDER BY j.type LIMIT 1)
    FROM types WHERE types.type IS NOT NULL)
SELECT types.type, first.priority, first.seq, first.returned
FROM types CROSS JOIN LATERAL ({_FIRST_OF_TYPE}) AS first
"""
HEADS_OF = f"""
SELECT types.type, first.priority, first.seq FROM unnest($1::text[]) AS types (type)
CROSS JOIN LATERAL ({_FIRST_OF_TYPE}) AS first
"""

HEADS_OF_FROM = f"""
WITH {segments_given(2)}
SELECT types.type, first.priority, first.seq FROM unnest($1::text[]) AS types (type)
CROSS JOIN LATERAL ({along("types.type", "1", "priority, seq")}) AS first
"""
_NEXT_TYPE = """
SELECT j.type FROM holdfast_jobs AS j WHERE j.status = 'pending' AND j.type > {} AND j.type < {}
ORDER BY j.type LIMIT 1
"""
# The same as HEADS. The types whose lines have floors are known; others are searched for between their names.
HEADS_FROM = f"""
WITH RECURSIVE {segments_given(4)},
types (type, below) AS (
    SELECT ({_NEXT_TYPE.format("gaps.above", "gaps.below")}), gaps.below
    FROM unnest($1::text[], $2::text[]) AS gaps (above, below)
    UNION ALL
    SELECT ({_NEXT_TYPE.format("types.type", "types.below")}), types.below
    FROM types WHERE types.type IS NOT NULL)
SELECT types.type, first.priority, first.seq FROM types CROSS JOIN LATERAL ({_FIRST_OF_TYPE}) AS first
UNION ALL
SELECT known.type, first.priority, first.seq FROM unnest($3::text[]) AS known (type)
CROSS JOIN LATERAL ({along("known.type", "1", "priority, seq")}) AS first
"""
BEHIND_ALL = "~"
"""It comes after every name that a type can have."""

_SET = """
    status = 'processing', attempts = attempts + 1, version = version + 1, has_started = false,
    worker_id = $2, lease_expires_at = clock.now + $3::bigint, started_at = clock.now, updated_at = clock.now,
    progress = NULL, progress_message = NULL
"""
_RETURNING = """
RETURNING j.seq, j.id, j.type, j.payload, j.priority, j.attempts, j.max_attempts, j.version, j.timeout,
    j.created_at, j.due_at, j.worker_id, j.returned
"""
COLUMNS = 12
"""Those of a Claim."""

# Nothing is claimed by settings that have changed. As a limit, not a condition, which would be asked of each
# of the million jobs that wait.
_IF_CURRENT = """(SELECT CASE WHEN $4::bigint IS NULL OR settings_version = $4 THEN {most} ELSE 0 END
    FROM holdfast_schema)"""
# What enqueue left open is fixed here, at the first claim.
CLAIM_ONE = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET
    max_attempts = coalesce(j.max_attempts, $6::integer), timeout = coalesce(j.timeout, $7::double precision),
    {_SET}
FROM clock WHERE j.seq = ANY (ARRAY(
    SELECT seq FROM holdfast_jobs WHERE {WAITS} AND type = $5
    ORDER BY priority DESC, {SEQ} LIMIT {_IF_CURRENT.format(most="$8::bigint")} FOR UPDATE SKIP LOCKED))
{_RETURNING}
"""

CLAIM_ONE_FROM = f"""
WITH {CLOCK}, most AS MATERIALIZED (SELECT {_IF_CURRENT.format(most="$8::bigint")} AS jobs),
{segments_given(9)}
UPDATE holdfast_jobs AS j SET
    max_attempts = coalesce(j.max_attempts, $6::integer), timeout = coalesce(j.timeout, $7::double precision),
    {_SET}
FROM clock WHERE j.seq = ANY (ARRAY(
    {along("$5", "(SELECT jobs FROM most)", "seq", "FOR UPDATE SKIP LOCKED")}))
{_RETURNING}
"""

_DEMANDS = """demands AS MATERIALIZED (
    SELECT * FROM unnest($5::text[], $6::integer[], $7::double precision[], $8::bigint[])
        AS d (type, max_attempts, timeout, room))"""

CLAIM_BEST = f"""
WITH {CLOCK}, {_DEMANDS},
counts AS MATERIALIZED (SELECT type, count(*) AS wanted FROM (
    SELECT d.type, c.priority, c.seq FROM demands AS d CROSS JOIN LATERAL (
        SELECT seq, priority FROM holdfast_jobs WHERE {WAITS} AND type = d.type
        ORDER BY priority DESC, {SEQ} LIMIT d.room) AS c
    ORDER BY c.priority DESC, c.seq LIMIT {_IF_CURRENT.format(most="$9::bigint")}) AS best
    GROUP BY type)
UPDATE holdfast_jobs AS j SET
    max_attempts = coalesce(j.max_attempts, d.max_attempts), timeout = coalesce(j.timeout, d.timeout),
    {_SET}
FROM clock, demands AS d WHERE j.type = d.type AND j.seq = ANY (ARRAY(
    SELECT c.seq FROM counts CROSS JOIN LATERAL (
        SELECT seq FROM holdfast_jobs WHERE {WAITS} AND type = counts.type
        ORDER BY priority DESC, {SEQ} LIMIT counts.wanted FOR UPDATE SKIP LOCKED) AS c))
{_RETURNING}
"""
CLAIM_BEST_FROM = f"""
WITH {CLOCK}, {_DEMANDS}, {segments_given(10)},
counts AS MATERIALIZED (SELECT type, count(*) AS wanted FROM (
    SELECT d.type, c.priority, c.seq FROM demands AS d
    CROSS JOIN LATERAL ({along("d.type", "d.room", "seq, priority")}) AS c
    ORDER BY c.priority DESC, c.seq LIMIT {_IF_CURRENT.format(most="$9::bigint")}) AS best
    GROUP BY type)
UPDATE holdfast_jobs AS j SET
    max_attempts = coalesce(j.max_attempts, d.max_attempts), timeout = coalesce(j.timeout, d.timeout),
    {_SET}
FROM clock, demands AS d WHERE j.type = d.type AND j.seq = ANY (ARRAY(
    SELECT c.seq FROM counts
    CROSS JOIN LATERAL ({along("counts.type", "counts.wanted", "seq", "FOR UPDATE SKIP LOCKED")}) AS c))
{_RETURNING}
"""
CLAIM_CHOSEN = f"""
WITH {CLOCK}, {_DEMANDS}
UPDATE holdfast_jobs AS j SET
    max_attempts = coalesce(j.max_attempts, d.max_attempts), timeout = coalesce(j.timeout, d.timeout),
    {_SET}
FROM clock, demands AS d WHERE j.type = d.type AND j.seq = ANY (ARRAY(
    SELECT seq FROM holdfast_jobs WHERE seq = ANY ($9::bigint[]) AND status || '' = 'pending'
    ORDER BY seq LIMIT {_IF_CURRENT.format(most="$10::bigint")} FOR UPDATE SKIP LOCKED))
{_RETURNING}
"""

# It counts as started from now on: it may be a job that leaves nobody to say so.
CLAIM_SUSPECT = CLAIM_CHOSEN.replace("has_started = false", "has_started = true")

PRESENT_INSTANT = f"SELECT {PRESENT}"
SAVE_LIMITS = """
UPDATE holdfast_limits AS l SET tokens = n.tokens, refilled_at = n.refilled_at
FROM unnest($1::text[], $2::double precision[], $3::bigint[]) AS n (name, tokens, refilled_at)
WHERE l.name = n.name
"""
SETTINGS_VERSION = "SELECT settings_version FROM holdfast_schema"
