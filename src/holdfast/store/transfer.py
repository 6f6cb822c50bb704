"""One end of a move or a backup: its mark, its guards and its rows, and how they are copied.

The guards are triggers. How they are created, and how a database is closed to others, is up to each engine.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

import msgspec

from holdfast.errors import MoveFailed, StoreBusy, StoreUnavailable
from holdfast.store.database import Database, Session
from holdfast.store.moved import (
    ARRIVING,
    COPYING,
    DRAINING,
    MOVE_TABLE,
    MOVED,
    SOURCE,
    TARGET,
    WORDS_OF_ARRIVING,
    WORDS_OF_MOVED,
    Mark,
)
from holdfast.store.protocol import Store
from holdfast.store.rows import quoted
from holdfast.store.tables import COUNTS, PAUSES, TABLES, Row, Table


class End(ABC):
    """One of the two databases of a move."""

    store: Store
    database: Database
    address: str
    """Without a password."""
    origin: str
    """Tells it from every other database, however it is addressed."""
    table = MOVE_TABLE
    """The table of the mark, as it stands in SQL."""
    present: str
    """The present instant, in SQL."""
    tables: Sequence[Table]
    """Those that are really tables there, and can be written and guarded."""
    _receiver: Session | None = None

    @property
    @abstractmethod
    def held(self) -> str:
        """Whether the guards still hold, for as long as the mover may rely on them."""

    def close(self) -> None:
        self.store.close()

    def has(self, _table: Table) -> bool:
        return True

    # The mark and the guards.

    @abstractmethod
    def read_mark(self) -> Mark | None: ...

    @abstractmethod
    def alone(self, *, readers: bool = True) -> AbstractContextManager[Session]:
        """A transaction in which nobody else writes, nor reads without `readers`, once those who do are
        through."""

    @abstractmethod
    def write_mark(self, session: Session, mark: Mark, seconds: float) -> None:
        """Make the table of the mark; the guards of a source hold for so long."""

    @abstractmethod
    def guard_producers(self, session: Session, mark: Mark) -> None:
        """Refuse new jobs but those of running attempts, and changes of pauses, until the guards expire."""

    @abstractmethod
    def guard_tables(self, session: Session, mark: Mark) -> None:
        """Refuse every change, until the guards expire."""

    @abstractmethod
    def guard_for_good(self, session: Session, words: str, *, moved: bool) -> None:
        """Refuse every change, in these words, until they are unmarked. Where the queue has `moved`, which
        was guarded before, workers that have it open still are told by their heartbeats."""

    @abstractmethod
    def remove_mark(self, session: Session) -> None:
        """Take the mark and its guards away."""

    @abstractmethod
    def renew(self, token: str, seconds: float) -> bool:
        """Stay closed for so long from now; False if it had opened again already."""

    def close_to_producers(self, to: str, token: str, seconds: float) -> None:
        """Pause the queue and refuse new jobs; those of running attempts are still taken."""
        with self.alone() as session:
            mark = self.read_mark()
            if mark is not None:
                mark.refuse()
                raise MoveFailed(f"another process is moving the queue to {mark.other}")
            [(now,)] = session.rows(f"SELECT {self.present}")
            paused = session.rows("SELECT 1 FROM holdfast_pauses WHERE type = ''")
            if not paused:
                session.rows("INSERT INTO holdfast_pauses (type, paused_at) VALUES ('', ?)", [now])
            mark = Mark(SOURCE, DRAINING, to, "", token, None if paused else now)
            self.write_mark(session, mark, seconds)
            self.guard_producers(session, mark)

    def close_to_all(self, token: str) -> bool:
        """Refuse every write; False if an attempt is running. Writes in progress are committed first."""
        with self.alone() as session:
            mark = self.read_mark()
            if mark is None or self.count_running() or not self._advance(session, token, COPYING):
                return False
            self.guard_tables(session, mark)
            return True

    def mark_moved(self, to: str, token: str) -> bool:
        """The decisive step; False if the source had opened again."""
        with self.alone() as session:
            if self.read_mark() is None or not self._advance(session, token, MOVED, f"state = '{COPYING}'"):
                return False
            self.guard_for_good(session, WORDS_OF_MOVED + to, moved=True)
            return True

    def _advance(self, session: Session, token: str, state: str, condition: str = "true") -> bool:
        sql = f"UPDATE {self.table} SET state = ? WHERE token = ? AND {condition} AND {self.held}"
        return session.count(sql, [state, token]) > 0

    def reopen(self, token: str | None) -> None:
        """Take the guards and the pause of a move away; without a token, those of one that has expired."""
        with self.alone(readers=False) as session:
            mark = self.read_mark()
            if mark is None or mark.role != SOURCE or mark.state == MOVED:
                return
            if mark.token != token and (token is not None or not mark.expired):
                return
            self.remove_mark(session)
            if mark.pause is not None:
                session.rows("DELETE FROM holdfast_pauses WHERE type = '' AND paused_at = ?", [mark.pause])
            session.wakes = True

    def clean_up(self) -> None:
        """At an opening that has found our table: refuse what is not here, clean up after a dead mover."""
        mark = self.read_mark()
        if mark is not None:
            mark.refuse()
            if mark.expired:
                # Who may not, or finds somebody writing, leaves it to the next: the guards do not hold.
                with suppress(StoreUnavailable, StoreBusy):
                    self.reopen(None)

    # The rows.

    def count_running(self) -> int:
        sql = "SELECT count(*) FROM holdfast_jobs WHERE status = 'processing'"
        return int(self.database.read_one(sql)[0])

    @abstractmethod
    def reading(self) -> AbstractContextManager[None]:
        """Around reads that see one state."""

    @abstractmethod
    def rows(self, table: Table) -> Iterator[Row]:
        """In the order of its key, as they are in every engine."""

    def count_rows(self, table: Table) -> int:
        return int(self.database.read_one(f"SELECT count(*) FROM ({self.select(table)}) AS rows")[0])

    def select(self, table: Table) -> str:
        where = ""
        if table is PAUSES:
            mark = self.read_mark()
            if mark is not None and mark.pause is not None:
                where = f"WHERE type <> '' OR paused_at <> {mark.pause}"
        elif table is COUNTS:
            where = "WHERE enqueued > 0"
        return f"SELECT {quoted(table.columns)} FROM {table.name} {where} ORDER BY {table.key}"

    @abstractmethod
    def last_seq(self) -> int:
        """The highest number that was ever given to a job."""

    # The target, inside `receiving`.

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Around all that the target is given: one transaction, which keeps others out."""
        with self.alone(readers=False) as session:
            self._receiver = session
            session.wakes = True
            try:
                yield
            finally:
                self._receiver = None

    @property
    def receiver(self) -> Session:
        assert self._receiver is not None
        return self._receiver

    def clear(self, tables: Sequence[Table]) -> None:
        for table in tables:
            if table in self.tables:
                self.receiver.rows(f"DELETE FROM {table.name}")

    @abstractmethod
    def write(self, table: Table, rows: Iterable[Row]) -> None: ...

    @abstractmethod
    def set_last_seq(self, seq: int) -> None: ...

    def mark_arriving(self, source: End, token: str) -> None:
        mark = Mark(TARGET, ARRIVING, source.address, source.origin, token, None)
        self.write_mark(self.receiver, mark, 0)
        self.guard_for_good(self.receiver, WORDS_OF_ARRIVING + source.address, moved=False)

    def end_arrival(self, token: str, *, keep: bool = True) -> None:
        """Open what has arrived, or delete it."""
        with self.receiving():
            mark = self.read_mark()
            if mark is not None and (mark.role, mark.token) == (TARGET, token):
                self.remove_mark(self.receiver)
                if not keep:
                    self.clear(TABLES)


class Copied:
    """A table that was copied: how many rows, and a digest that is equal on two engines if every value is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        self._hash = hashlib.sha256()

    def add(self, row: Row) -> None:
        self.rows += 1
        self._hash.update(_encode(row))
        self._hash.update(b"\n")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]


_encode = msgspec.json.Encoder().encode

Tell = Callable[[int, int], None]
"""Is told how many rows have been copied, and of how many."""


def copy_rows(
    source: End,
    target: End,
    tell: Tell = lambda _done, _total: None,
    check: Callable[[], None] = lambda: None,
) -> list[Copied]:
    """Copy all tables into empty ones, inside what is open on both sides, and compare what is read back."""
    tables = [table for table in TABLES if source.has(table) and target.has(table)]
    total = sum(source.count_rows(table) for table in tables)
    done = 0

    def passing(table: Table, sent: Copied) -> Iterator[Row]:
        nonlocal done
        for row in source.rows(table):
            sent.add(row)
            done += 1
            if done % 100 == 0:
                check()
                tell(done, total)
            yield row

    copied = []
    for table in tables:
        sent, arrived = Copied(table.name), Copied(table.name)
        target.write(table, passing(table, sent))
        for row in target.rows(table):
            arrived.add(row)
        if (sent.rows, sent.digest) != (arrived.rows, arrived.digest):
            raise MoveFailed(
                f"{table.name} did not arrive as it was sent: {sent.rows} rows with the digest {sent.digest},"
                f" then {arrived.rows} with {arrived.digest}"
            )
        copied.append(arrived)
    seq = source.last_seq()
    target.set_last_seq(seq)
    if target.last_seq() != seq:
        raise MoveFailed(f"the last job is number {seq} in the source but {target.last_seq()} in the target")
    tell(total, total)
    return copied
