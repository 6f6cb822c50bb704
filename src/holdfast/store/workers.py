"""Statements about workers: what they publish, when they are forgotten, and when a clock was set back.

`{clock}` is the engine's own word for the present instant.
"""

from __future__ import annotations

from holdfast.store.rows import TYPE, WORKER

_TIMES = ("started_at", "heartbeat_at", "turned_at")
REGISTERED = [name for name in WORKER.names if name not in _TIMES]
REGISTER = f"""
WITH {{clock}}
INSERT INTO holdfast_workers ({", ".join(REGISTERED)}, started_at, heartbeat_at)
SELECT {", ".join(f"?{number}" for number, _ in enumerate(REGISTERED, 2))}, clock.now, clock.now
FROM clock WHERE true
ON CONFLICT (id) DO UPDATE SET state = excluded.state, concurrency = excluded.concurrency,
    types = excluded.types, slots = excluded.slots, backoffs = excluded.backoffs
"""
# Looked at first: workers that start together would wait for one another, to write what is there already.
KNOW_TYPE = f"""
INSERT INTO holdfast_types ({TYPE.columns}) SELECT ?1, ?2, ?3
WHERE NOT EXISTS (SELECT 1 FROM holdfast_types WHERE ({TYPE.columns}) = (?1, ?2, ?3))
ON CONFLICT (type) DO UPDATE SET executor = excluded.executor, schema = excluded.schema
"""
FORGET_SILENT = """
WITH {clock}
DELETE FROM holdfast_workers WHERE id IN (
    SELECT o.id FROM holdfast_workers AS o WHERE o.heartbeat_at < (SELECT now FROM clock) - ?2
        AND NOT EXISTS (SELECT 1 FROM holdfast_jobs AS j WHERE j.status = 'processing' AND j.worker_id = o.id)
    {skip_locked_workers})
RETURNING id
"""

# Leases and heartbeats from the future begin now; see Writes.redate_leases.
REDATE = """
WITH {clock}, ahead AS MATERIALIZED (
    SELECT j.seq, coalesce(w.heartbeat_at, j.started_at) AS heard_at
    FROM clock CROSS JOIN holdfast_jobs AS j {by_leases}
    LEFT JOIN holdfast_workers AS w ON w.id = j.worker_id
    WHERE j.status = 'processing' AND j.lease_expires_at > clock.now + ?2
        AND coalesce(w.heartbeat_at, j.started_at) > clock.now
    {skip_locked_jobs})
UPDATE holdfast_jobs AS j SET
    lease_expires_at = clock.now + CASE WHEN j.lease_expires_at - ahead.heard_at > ?2
        THEN j.lease_expires_at - ahead.heard_at ELSE ?2 END,
    started_at = CASE WHEN j.started_at > clock.now THEN clock.now ELSE j.started_at END
FROM clock, ahead WHERE j.seq = ahead.seq
"""
REDATE_WORKERS = """
WITH {clock}
UPDATE holdfast_workers AS w SET heartbeat_at = clock.now,
    turned_at = CASE WHEN w.turned_at > clock.now THEN clock.now ELSE w.turned_at END
FROM clock WHERE w.id IN (
    SELECT o.id FROM holdfast_workers AS o WHERE o.heartbeat_at > (SELECT now FROM clock)
    {skip_locked_workers})
"""
