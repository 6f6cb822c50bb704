"""Opening a PostgreSQL queue: what is refused untouched, and the schema."""

from __future__ import annotations

import psycopg
from msgspec.structs import replace
from psycopg import sql

from holdfast.core.clock import Clock
from holdfast.errors import QueueNotFound, SchemaOutOfDate, StoreUnavailable
from holdfast.store import migrate as migrations
from holdfast.store.migrate import VERSION_TABLE
from holdfast.store.moved import MOVE_TABLE
from holdfast.store.postgres.address import parse_url
from holdfast.store.postgres.bounds import LONG
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.schema import MIGRATIONS
from holdfast.store.postgres.session import Session
from holdfast.store.postgres.store import PostgresStore

# Whoever comes second finds nothing left to do.
_ALONE = "SELECT pg_advisory_xact_lock(1751346275, hashtext($1))"


def open_store(
    url: str,
    clock: Clock,
    *,
    create: bool = True,
    notify: bool = True,
    migrate: bool = False,
    for_move: bool = False,
) -> PostgresStore:
    """Open `postgresql://…`, making our tables if there are none, unless told not to.

    Older tables are refused: others may be at work with them, so only `migrate` brings them up to date.
    With `for_move`, a queue that a move has closed is opened all the same.
    """
    address = parse_url(url)
    if for_move:  # one is read from while another renews
        address = replace(address, pool=max(2, address.pool))
    database = Database(address, clock, notify=notify)
    try:
        _prepare(database, create=create, migrate=migrate, for_move=for_move)
    except BaseException:
        database.close()
        raise
    return PostgresStore(database)


def _prepare(database: Database, *, create: bool, migrate: bool, for_move: bool) -> None:
    database.read("SELECT 1")  # which makes the schema's name known
    tables = _tables(database)
    version = _version(database, tables)
    if not (version or create):
        raise QueueNotFound(database.url)
    if MOVE_TABLE in tables and not for_move:
        from holdfast.store.postgres.transfer import PostgresEnd

        PostgresEnd(PostgresStore(database)).clean_up()
    if migrations.pending(MIGRATIONS, version):
        if version and not migrate:
            raise SchemaOutOfDate(
                f"the queue has schema version {version}, but Holdfast now requires {MIGRATIONS[-1].number}",
                hint="run `queuectl migrate` once, from any machine",
            )
        _migrate(database)
    [(database.identity,)] = database.read(f"SELECT identity FROM {VERSION_TABLE}")


def _tables(database: Database) -> dict[str, str]:
    """The tables and views of our names, each with its kind."""
    rows = database.read(
        "SELECT relname, CASE WHEN relkind IN ('r', 'p') THEN 'table' ELSE 'view' END"
        " FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE quote_ident(n.nspname) = $1 AND relkind IN ('r', 'p', 'v', 'm', 'f')"
        " AND relname LIKE 'holdfast\\_%'",
        [database.schema],
    )
    return dict(rows)


def _version(database: Database, names: dict[str, str]) -> int:
    def read() -> list[tuple[object, object]]:
        try:
            return database.read(f"SELECT version, identity FROM {VERSION_TABLE}")
        except StoreUnavailable as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedColumn):
                return []
            raise

    return migrations.version_of(names, read, database.url)


def _migrate(database: Database) -> None:
    """Apply what is missing, in one transaction."""
    with database.transaction(bounds=LONG) as session:
        session.rows(_ALONE, [database.schema])
        steps = migrations.pending(MIGRATIONS, _version(database, _tables(database)))
        if steps:
            _make_schema(session)
        for step in steps:
            for statement in step.statements:
                session.rows(statement)
            session.rows(f"UPDATE {VERSION_TABLE} SET version = $1", [step.number])


def _make_schema(session: Session) -> None:
    schema = session.database.schema
    # Asked first: to make one that is there takes a right that a role may not have.
    if not session.rows("SELECT 1 FROM pg_namespace WHERE quote_ident(nspname) = $1", [schema]):
        session.connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.SQL(schema)))
