"""The state of a PostgreSQL queue's server and tables, as any role may read it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.clock import SECOND, system_clock, to_datetime
from holdfast.store.postgres import tallies
from holdfast.store.postgres.database import Database
from holdfast.store.protocol import Finding

OLD_TRANSACTION = 300.0
FEW_DEAD = 50_000
MUCH_LOG = 1024 * 1024 * 1024
OLD_IDS = 1_200_000_000
"""Of the two thousand million transactions after which a server refuses to write."""
_SKEW = 5.0
_LOOK_EVERY = "workers look every 50 ms instead of being told"

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


def measure(database: Database) -> dict[str, float]:
    [(size, live, dead, connections, oldest)] = database.read(
        "SELECT pg_total_relation_size($1::regclass), coalesce(max(n_live_tup), 0),"
        " coalesce(max(n_dead_tup), 0), (SELECT sum(numbackends) FROM pg_stat_database)::bigint,"
        " (SELECT coalesce(extract(epoch FROM max(now() - xact_start)), 0)::float8 FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend')"
        " FROM pg_stat_user_tables WHERE relid = $1::regclass",
        [f"{database.schema}.{_TABLE}"],
    )
    return {
        "table_bytes": size,
        "live_rows": live,
        "dead_rows": dead,
        "connections": connections,
        "oldest_transaction_seconds": oldest,
    }


def examine(database: Database) -> list[Finding]:
    return [
        *_version(database),
        *_pooler(database),
        *_durability(database),
        *_connections(database),
        *_rights(database),
        *_old_transactions(database),
        *_slots(database),
        *_vacuum(database),
        *_counts(database),
        *_clock(database),
    ]


def _version(database: Database) -> Iterator[Finding]:
    version = database.read_one("SHOW server_version")[0]
    last_year = database.server_version // 10_000 + 2012  # five years after each autumn's new one
    now = to_datetime(database.now())
    if (now.year, now.month) > (last_year, 11):
        text = f"{version} has had no corrections since November {last_year}"
        yield Finding(level="warning", check="PostgreSQL", text=text, advice="upgrade it to a newer one")
    else:
        text = f"{version}, corrected until November {last_year}"
        yield Finding(level="ok", check="PostgreSQL", text=text)


def _pooler(database: Database) -> Iterator[Finding]:
    if database.is_pooled:
        text = f"reached through one, such as PgBouncer: nothing is prepared, and {_LOOK_EVERY}"
        yield Finding(level="ok", check="pooler", text=text)


def _durability(database: Database) -> Iterator[Finding]:
    [(fsync, full_pages)] = database.read(
        "SELECT current_setting('fsync'), current_setting('full_page_writes')"
    )
    synchronous = database.synchronous_commit
    text = f"fsync {fsync}, full_page_writes {full_pages}, synchronous_commit {synchronous}"
    if fsync == "off":
        advice = "a power cut may destroy the whole database: set fsync = on"
        yield Finding(level="problem", check="durability", text=text, advice=advice)
    elif full_pages == "off":
        advice = "a power cut may destroy pages, unless the file system writes them whole: set it on"
        yield Finding(level="warning", check="durability", text=text, advice=advice)
    elif synchronous == "off":
        advice = "a crash may lose the last commits; leave synchronous_commit= out of the address to be safe"
        yield Finding(level="warning", check="durability", text=text, advice=advice)
    else:
        yield Finding(level="ok", check="durability", text=text)


def _connections(database: Database) -> Iterator[Finding]:
    [(used, allowed)] = database.read(
        "SELECT sum(numbackends)::integer, current_setting('max_connections')::integer FROM pg_stat_database"
    )
    text = f"{used} of {allowed} in use on the server"
    if used > 0.9 * allowed:
        advice = "raise max_connections, lower ?pool= in the addresses, or put PgBouncer in between"
        yield Finding(level="warning", check="connections", text=text, advice=advice)
    else:
        yield Finding(level="ok", check="connections", text=text)


def _rights(database: Database) -> Iterator[Finding]:
    role = database.read_one("SELECT current_user::text")[0]
    lacking = [row[0] for row in database.read(_RIGHTS, [database.schema])]
    if lacking:
        tables = f"ALL TABLES IN SCHEMA {database.schema}"
        yield Finding(
            level="problem",
            check="rights",
            text=f"the role {role} may not read and write {', '.join(lacking)}",
            advice=f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}",
        )
    else:
        yield Finding(level="ok", check="rights", text=f"the role {role} may read and write all tables")


def _old_transactions(database: Database) -> Iterator[Finding]:
    rows = database.read(_OLD_TRANSACTIONS, [OLD_TRANSACTION])
    sees_all = database.read_one("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")[0]
    if rows:
        which, age, remedy = rows[0]
        text = f"{which} is open for {age / 60:.0f} min"
        advice = f"while it is open nothing can be cleaned up, and claims become slower: end it, or {remedy}"
        yield Finding(level="warning", check="old transactions", text=text, advice=advice)
    elif sees_all:
        yield Finding(level="ok", check="old transactions", text="none")
    else:
        text = "none of this role; to see those of others takes GRANT pg_read_all_stats"
        yield Finding(level="ok", check="old transactions", text=text)


def _slots(database: Database) -> Iterator[Finding]:
    for name, kept, holds_rows in database.read(_SLOTS):
        if kept > MUCH_LOG or holds_rows:
            text = f"the replication slot {name} keeps {kept / 2**20:.0f} MiB of log, and nobody reads it"
            advice = f"start its reader, or SELECT pg_drop_replication_slot('{name}'): else the disk fills up"
            yield Finding(level="warning", check="replication", text=text, advice=advice)


def _vacuum(database: Database) -> Iterator[Finding]:
    table = f"{database.schema}.{_TABLE}"
    [(live, dead, is_on)] = database.read(_VACUUM, [table])
    size = database.read_one("SELECT pg_total_relation_size($1::regclass)", [table])[0]
    text = f"jobs take {size / 2**20:.0f} MiB: {live} rows, and {dead} dead ones"
    if not is_on:
        advice = "set autovacuum = on: without it claims become slower and slower"
        yield Finding(level="problem", check="vacuum", text=f"autovacuum is off; {text}", advice=advice)
    elif dead > FEW_DEAD and dead > live:
        advice = f"VACUUM {table}; if that frees nothing, an old transaction or replication slot is to blame"
        yield Finding(level="warning", check="vacuum", text=text, advice=advice)
    else:
        yield Finding(level="ok", check="vacuum", text=text)
    age = database.read_one("SELECT max(age(datfrozenxid)) FROM pg_database")[0]
    if age > OLD_IDS:
        text = f"the oldest is {age // 1_000_000} million transactions old; at 2,000 the server stops"
        advice = "VACUUM FREEZE, as a superuser, in the database that has it"
        yield Finding(level="problem", check="transaction numbers", text=text, advice=advice)


def _counts(database: Database) -> Iterator[Finding]:
    wrong = tallies.miscounted(database)
    if wrong:
        yield Finding(
            level="warning",
            check="counts",
            text=f"jobs of {', '.join(wrong[:3])} were written or deleted without the queue's triggers",
            advice="a running worker corrects the counts within seconds; leave the triggers on",
        )


def _clock(database: Database) -> Iterator[Finding]:
    skew = (system_clock() - database.now()) / SECOND
    text = f"this machine's differs from it by {abs(skew):.1f} s"
    if abs(skew) > _SKEW:
        advice = "the server's decides, so nothing goes wrong; set this machine's right for its logs"
        yield Finding(level="warning", check="server's clock", text=text, advice=advice)
    else:
        yield Finding(level="ok", check="server's clock", text=text)
