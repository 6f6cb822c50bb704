"""The state of a PostgreSQL queue's server and tables."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.clock import SECOND, system_clock
from holdfast.store.postgres.database import Database
from holdfast.store.protocol import Finding

OLD_TRANSACTION = 300.0
_SKEW = 5.0


def measure(database: Database) -> dict[str, float]:
    [(size, dead)] = database.read(
        "SELECT pg_total_relation_size($1::regclass),"
        " coalesce((SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = $1::regclass), 0)",
        [f"{database.schema}.holdfast_jobs"],
    )
    return {"table_bytes": size, "dead_rows": dead}


def examine(database: Database) -> list[Finding]:
    return [*_version(database), *_durability(database), *_connections(database), *_vacuum(database)]


def _version(database: Database) -> Iterator[Finding]:
    version = database.read_one("SHOW server_version")[0]
    between = ", reached through a pooler: workers look instead of being told" if database.is_pooled else ""
    yield Finding(level="ok", check="PostgreSQL", text=f"{version}{between}")
    skew = (system_clock() - database.now()) / SECOND
    text = f"this machine's clock and the server's differ by {abs(skew):.1f} s"
    if abs(skew) > _SKEW:
        advice = "the server's decides, so nothing goes wrong; set this one right for its logs"
        yield Finding(level="warning", check="clock", text=text, advice=advice)
    else:
        yield Finding(level="ok", check="clock", text=text)


def _durability(database: Database) -> Iterator[Finding]:
    [(fsync, synchronous)] = database.read(
        "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
    )
    text = f"fsync {fsync}, synchronous_commit {database.synchronous_commit or synchronous}"
    if fsync == "off":
        advice = "a power cut may destroy the whole database: set fsync = on"
        yield Finding(level="problem", check="durability", text=text, advice=advice)
    elif database.synchronous_commit == "off":
        advice = "a crash may lose the last commits; leave synchronous_commit= out of the address to be safe"
        yield Finding(level="warning", check="durability", text=text, advice=advice)
    else:
        yield Finding(level="ok", check="durability", text=text)


def _connections(database: Database) -> Iterator[Finding]:
    [(used, allowed)] = database.read(
        "SELECT count(*), current_setting('max_connections')::integer FROM pg_stat_activity"
        " WHERE backend_type = 'client backend'"
    )
    text = f"{used} of {allowed}"
    if used > 0.9 * allowed:
        advice = "raise max_connections, lower ?pool= in the addresses, or put PgBouncer in between"
        yield Finding(level="warning", check="connections", text=text, advice=advice)
    else:
        yield Finding(level="ok", check="connections", text=text)
    rows = database.read(
        "SELECT pid, extract(epoch FROM now() - xact_start) FROM pg_stat_activity"
        " WHERE xact_start < now() - make_interval(secs => $1) AND datname = current_database()"
        " AND backend_type = 'client backend' ORDER BY xact_start LIMIT 1",
        [OLD_TRANSACTION],
    )
    if rows:
        pid, age = rows[0]
        advice = "while it is open nothing can be cleaned up, and claims become slower: end it"
        text = f"that of process {pid} is open for {age / 60:.0f} min"
        yield Finding(level="warning", check="old transactions", text=text, advice=advice)
    else:
        yield Finding(level="ok", check="old transactions", text="none")


def _vacuum(database: Database) -> Iterator[Finding]:
    [(autovacuum,)] = database.read("SELECT current_setting('autovacuum')")
    figures = measure(database)
    text = f"jobs take {figures['table_bytes'] / 2**20:.0f} MiB, {figures['dead_rows']:.0f} dead rows"
    if autovacuum == "off":
        advice = "set autovacuum = on: without it claims become slower and slower"
        yield Finding(level="problem", check="vacuum", text=f"autovacuum is off; {text}", advice=advice)
    else:
        yield Finding(level="ok", check="vacuum", text=text)
