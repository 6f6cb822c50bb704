"""Statements that let leases and heartbeats from the future begin now; see Writes.redate_leases."""

from __future__ import annotations

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
