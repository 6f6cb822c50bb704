"""Health checks of a PostgreSQL queue's server and tables, as far as any role can see them."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.clock import SECOND, system_clock, to_datetime
from holdfast.store.postgres import tallies
from holdfast.store.postgres.database import Database
from holdfast.store.records import Finding

OLD_TRANSACTION = 300.0
FEW_DEAD = 50_000
MUCH_LOG = 1024 * 1024 * 1024
OLD_IDS = 1_200_000_000
"""Of the two thousand million transactions after which a server refuses to write."""
_SKEW = 5.0
_LOOK_EVERY = "workers poll every 50 ms instead of being notified"

_TABLE = "holdfast_jobs"
_AGE = "extract(epoch FROM now() - {})::float8"

_OLD_TRANSACTIONS = f"""
SELECT format('that of process %s (%s, %s)', pid, usename, coalesce(nullif(application_name, ''), 'unnamed')),
    {_AGE.format("xact_start")}, format('SELECT pg_terminate_backend(%s)', pid)
FROM pg_stat_activity
WHERE xact_start < now() - make_interval(secs => $1) AND datname = current_database()
    AND backend_type = 'client backend'
UNION ALL
SELECT format('the prepared one %s', quote_literal(gid)), {_AGE.format("prepared")},
    format('ROLLBACK PREPARED %s', quote_literal(gid))
FROM pg_prepared_xacts
WHERE prepared < now() - make_interval(secs => $1) AND database = current_database()
ORDER BY 2 DESC LIMIT 1
"""

_SLOTS = """
SELECT slot_name::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint, xmin IS NOT NULL
FROM pg_replication_slots
WHERE NOT active AND restart_lsn IS NOT NULL ORDER BY 2 DESC
"""

_VACUUM = """
SELECT n_live_tup, n_dead_tup, current_setting('autovacuum')::boolean AND NOT EXISTS (
    SELECT 1 FROM pg_class, pg_options_to_table(reloptions)
    WHERE oid = relid AND option_name = 'autovacuum_enabled' AND NOT option_value::boolean)
FROM pg_stat_user_tables WHERE relid = $1::regclass
"""

_RIGHTS = """
SELECT relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE quote_ident(n.nspname) = $1 AND relkind IN ('r', 'p') AND relname LIKE 'holdfast\\_%'
    AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
ORDER BY relname
"""


_FIGURES = {
    "table_bytes": "pg_total_relation_size($1::regclass)",
    "live_rows": "coalesce(max(n_live_tup), 0)",
    "dead_rows": "coalesce(max(n_dead_tup), 0)",
    "connections": "(SELECT sum(numbackends) FROM pg_stat_database)::bigint",
    "oldest_transaction_seconds": f"""(SELECT coalesce(max({_AGE.format("xact_start")}), 0)
        FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend')""",
}


def measure(database: Database) -> dict[str, float]:
    sql = f"SELECT {', '.join(_FIGURES.values())} FROM pg_stat_user_tables WHERE relid = $1::regclass"
    return dict(zip(_FIGURES, database.read_one(sql, [f"{database.schema}.{_TABLE}"]), strict=True))


def examine(database: Database) -> list[Finding]:
    return [
        _version(database),
        *_pooler(database),
        _durability(database),
        _connections(database),
        _rights(database),
        _old_transactions(database),
        *_slots(database),
        *_vacuum(database),
        *_counts(database),
        _clock(database),
    ]


def _version(database: Database) -> Finding:
    version = database.read_one("SHOW server_version")[0]
    last_year = database.server.version // 10_000 + 2012  # five years after each autumn's new one
    now = to_datetime(database.now())
    if (now.year, now.month) > (last_year, 11):
        text = f"{version} reached end of life in November {last_year}"
        return Finding.warning("PostgreSQL", text, "upgrade to a supported version")
    text = f"{version}, supported until November {last_year}"
    return Finding.ok("PostgreSQL", text)


def _pooler(database: Database) -> Iterator[Finding]:
    if database.is_pooled:
        text = f"connected through a pooler such as PgBouncer: no prepared statements, and {_LOOK_EVERY}"
        yield Finding.ok("pooler", text)


def _durability(database: Database) -> Finding:
    [(fsync, full_pages)] = database.read(
        "SELECT current_setting('fsync'), current_setting('full_page_writes')"
    )
    synchronous = database.server.synchronous_commit
    text = f"fsync {fsync}, full_page_writes {full_pages}, synchronous_commit {synchronous}"
    if fsync == "off":
        advice = "a power failure can destroy the whole database: set fsync = on"
        return Finding.problem("durability", text, advice)
    if full_pages == "off":
        advice = "a power failure can destroy pages, unless the file system writes them atomically: set it on"
        return Finding.warning("durability", text, advice)
    if synchronous == "off":
        advice = "a crash can lose the last commits; to be safe, remove synchronous_commit= from the address"
        return Finding.warning("durability", text, advice)
    return Finding.ok("durability", text)


def _connections(database: Database) -> Finding:
    [(used, allowed)] = database.read(
        "SELECT sum(numbackends)::integer, current_setting('max_connections')::integer FROM pg_stat_database"
    )
    text = f"{used} of {allowed} in use on the server"
    if used > 0.9 * allowed:
        advice = "raise max_connections, lower ?pool= in the addresses, or use PgBouncer"
        return Finding.warning("connections", text, advice)
    return Finding.ok("connections", text)


def _rights(database: Database) -> Finding:
    role = database.read_one("SELECT current_user::text")[0]
    lacking = [row[0] for row in database.read(_RIGHTS, [database.schema])]
    if lacking:
        tables = f"ALL TABLES IN SCHEMA {database.schema}"
        return Finding.problem(
            "rights",
            f"the role {role} can't read and write {', '.join(lacking)}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}",
        )
    return Finding.ok("rights", f"the role {role} can read and write all tables")


def _old_transactions(database: Database) -> Finding:
    rows = database.read(_OLD_TRANSACTIONS, [OLD_TRANSACTION])
    sees_all = database.read_one("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")[0]
    if rows:
        which, age, remedy = rows[0]
        text = f"{which} has been open for {age / 60:.0f} min"
        advice = f"while it is open, vacuum can't remove dead rows, and claims slow down: end it, or {remedy}"
        return Finding.warning("old transactions", text, advice)
    if sees_all:
        return Finding.ok("old transactions", "none")
    text = "none of this role; seeing those of others requires GRANT pg_read_all_stats"
    return Finding.ok("old transactions", text)


def _slots(database: Database) -> Iterator[Finding]:
    for name, kept, holds_rows in database.read(_SLOTS):
        if kept > MUCH_LOG or holds_rows:
            text = f"the replication slot {name} retains {kept / 2**20:.0f} MiB of WAL, and nothing reads it"
            advice = (
                f"start its reader, or SELECT pg_drop_replication_slot('{name}'): otherwise the disk fills up"
            )
            yield Finding.warning("replication", text, advice)


def _vacuum(database: Database) -> Iterator[Finding]:
    table = f"{database.schema}.{_TABLE}"
    [(live, dead, is_on)] = database.read(_VACUUM, [table])
    size = database.read_one("SELECT pg_total_relation_size($1::regclass)", [table])[0]
    text = f"jobs take {size / 2**20:.0f} MiB: {live} live and {dead} dead rows"
    if not is_on:
        advice = "set autovacuum = on: without it, claims get slower and slower"
        yield Finding.problem("vacuum", f"autovacuum is off; {text}", advice)
    elif dead > FEW_DEAD and dead > live:
        advice = f"VACUUM {table}; if that frees nothing, an old transaction or replication slot is to blame"
        yield Finding.warning("vacuum", text, advice)
    else:
        yield Finding.ok("vacuum", text)
    age = database.read_one("SELECT max(age(datfrozenxid)) FROM pg_database")[0]
    if age > OLD_IDS:
        text = f"the oldest is {age // 1_000_000} million transactions old; at 2,000 million the server stops"
        advice = "run VACUUM FREEZE as a superuser in that database"
        yield Finding.problem("transaction numbers", text, advice)


def _counts(database: Database) -> Iterator[Finding]:
    wrong = tallies.miscounted(database)
    if wrong:
        yield Finding.warning(
            "counts",
            f"jobs of {', '.join(wrong[:3])} were written or deleted without the queue's triggers",
            "a running worker corrects the counts within seconds; keep the triggers enabled",
        )


def _clock(database: Database) -> Finding:
    skew = (system_clock() - database.now()) / SECOND
    text = f"this machine's clock differs by {abs(skew):.1f} s"
    if abs(skew) > _SKEW:
        advice = "jobs follow the server's clock, so nothing goes wrong; correct this machine's for its logs"
        return Finding.warning("server's clock", text, advice)
    return Finding.ok("server's clock", text)
