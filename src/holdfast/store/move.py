"""Moving a queue to another database: which rows there are, and the steps that leave exactly one live queue.

1. `Move.start`: the target is closed to all, so that nobody begins a queue there meanwhile. The source
   starts no more jobs and takes no new ones; running ones end.
2. `Move.freeze`: when none runs any more, nothing can be written there.
3. `Move.copy`: everything goes to the target in one transaction, and is compared.
4. `Move.switch`: one guarded statement turns the source into a queue that has moved away. Only then is the
   target opened.

Whatever the source refuses, it refuses until an instant that the mover keeps pushing ahead. So a mover that
is killed leaves a queue that works again by itself, where it was, and one that was suspended for too long
finds the guard of step 4 closed. Killed after step 4, the same move run again does what is left.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from holdfast.core.clock import system_clock
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    MoveFailed,
    QueueArriving,
    QueueMoved,
    StoreBusy,
    StoreError,
)
from holdfast.store.protocol import Store

GUARDED_SECONDS = 30.0
"""How long the source stays closed after the mover was last heard of."""

_TRIES = 5

SOURCE, TARGET = "source", "target"
DRAINING, COPYING, MOVED, ARRIVING = "draining", "copying", "moved", "arriving"


class Table(Struct, frozen=True):
    """A table as it is moved: its columns, each with its kind, and by which of them its rows are ordered.

    Kinds are those of Python: i, f, s, b(ool) and x for bytes.
    """

    name: str
    columns: str
    key: str
    optional: bool = False
    """Whether an engine may do without it."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.partition(":")[0] for column in self.columns.split())

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(column.partition(":")[2] for column in self.columns.split())


JOBS = Table(
    "holdfast_jobs",
    "seq:i id:s type:s status:s priority:i attempts:i max_attempts:i version:i key:s key_for:f key_held:b"
    " key_until:i run_at:i due_at:i timeout:f parent_id:s cancel_requested:b worker_id:s lease_expires_at:i"
    " created_at:i updated_at:i started_at:i finished_at:i progress:f progress_message:s error:s"
    " error_group:s token:s payload:s result:s",
    "seq",
)
PAUSES = Table("holdfast_pauses", "type:s paused_at:i", "type")
LIMITS = Table("holdfast_limits", "name:s tokens:f refilled_at:i", "name")
ERRORS = Table("holdfast_errors", "type:s error_group:s jobs:i last_at:i", "type, error_group")
COUNTS = Table("holdfast_counts", "type:s enqueued:i", "type")
"""How many jobs of each type there ever were; the other counts follow from the jobs."""

TYPES = Table("holdfast_types", "type:s executor:s schema:s", "type")
TABLES = (
    JOBS,
    Table(
        "holdfast_failures",
        "seq:i version:i attempt:i started_at:i finished_at:i worker_id:s error:s traceback:s detail:s",
        "seq, version",
    ),
    Table("holdfast_links", "parent_id:s child_id:s", "parent_id, child_id"),
    Table("holdfast_logs", "seq:i host:s length:i tail:x", "seq", optional=True),
    Table("holdfast_settings", "name:s type:s value:s", "name, type"),
    PAUSES,
    LIMITS,
    TYPES,
    Table(
        "holdfast_statistics",
        "minute:i type:s worker_id:s completed:i failed:i retried:i reaped:i wait_seconds:f run_seconds:f"
        " limited_seconds:f waits:s runs:s",
        "minute, type, worker_id",
    ),
    Table("holdfast_reconciliation", "number:i report:s", "number"),
    ERRORS,
    COUNTS,
)
"""All that is moved. Workers are not: they belong to the database that they have open."""

REPLACED = (LIMITS, TYPES)
"""What workers that only wait leave in an empty queue."""

Row = tuple[Any, ...]


class Mark(Struct, frozen=True):
    """What a database knows of a move. `pause` is when the move paused it; None if that was so before.

    `origin` tells, in a target, which database the queue came from, however that is addressed.
    """

    role: str
    state: str
    other: str
    origin: str
    token: str
    pause: int | None
    expired: bool

    def refuse(self) -> None:
        """Raise, if the database can't be opened as a queue."""
        if self.role == TARGET:
            raise QueueArriving(self.other)
        if self.state == MOVED:
            raise QueueMoved(self.other)


class End(ABC):
    """One of the two databases of a move, as its engine does it."""

    store: Store
    address: str
    """Without a password."""
    origin: str
    """Tells it from every other database, however it is addressed."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def has(self, table: Table) -> bool: ...

    # The mark and the guards.

    @abstractmethod
    def read_mark(self) -> Mark | None: ...

    @abstractmethod
    def close_to_producers(self, to: str, token: str, seconds: float) -> None:
        """Pause the queue and refuse new jobs; those of running attempts are still taken."""

    @abstractmethod
    def renew(self, token: str, seconds: float) -> bool:
        """Stay closed for so long from now; False if it had opened again already."""

    @abstractmethod
    def close_to_all(self, to: str, token: str) -> bool:
        """Refuse every write; False if an attempt is running. Who was writing has committed before."""

    @abstractmethod
    def mark_moved(self, to: str, token: str) -> bool:
        """The decisive step; False if the source had opened again."""

    @abstractmethod
    def reopen(self, token: str | None) -> None:
        """Take the guards and the pause of a move away; without a token, those of one that has expired."""

    def go_live(self, token: str) -> None:
        """Open what has arrived."""
        self._if_arriving(token, self.unmark)

    def discard(self, token: str) -> None:
        """Delete what has arrived."""

        def empty() -> None:
            self.unmark()
            self.clear(TABLES)

        self._if_arriving(token, empty)

    def _if_arriving(self, token: str, action: Callable[[], None]) -> None:
        with self.receiving():
            mark = self.read_mark()
            if mark is not None and (mark.role, mark.token) == (TARGET, token):
                action()

    # The rows.

    @abstractmethod
    def count_running(self) -> int: ...

    @abstractmethod
    def reading(self) -> AbstractContextManager[None]:
        """Around reads that see one state."""

    @abstractmethod
    def rows(self, table: Table) -> Iterator[Row]:
        """In the order of its key, as they are in every engine."""

    @abstractmethod
    def count_rows(self, table: Table) -> int: ...

    @abstractmethod
    def last_seq(self) -> int:
        """The highest number that was ever given to a job."""

    @abstractmethod
    def receiving(self) -> AbstractContextManager[None]:
        """Around all that the target is given: one transaction, which keeps others out."""

    @abstractmethod
    def clear(self, tables: Sequence[Table]) -> None: ...

    @abstractmethod
    def write(self, table: Table, rows: Iterable[Row]) -> None: ...

    @abstractmethod
    def set_last_seq(self, seq: int) -> None: ...

    @abstractmethod
    def mark_arriving(self, source: End, token: str) -> None: ...

    @abstractmethod
    def unmark(self) -> None:
        """Take the mark and its guards away, inside the transaction."""


def open_end(url: str, *, create: bool = True) -> End:
    """The database at an address, also where it is closed to others by a move."""
    from holdfast.store.open import open_store

    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from holdfast.store.sqlite.transfer import open_end as open_sqlite

        return open_sqlite(url, system_clock, create=create)
    if scheme in ("postgresql", "postgres"):
        try:
            from holdfast.store.postgres.transfer import open_end as open_postgres
        except ImportError as error:
            raise ConfigError(
                "PostgreSQL needs psycopg, which is not installed", hint="pip install 'holdfast[postgres]'"
            ) from error
        return open_postgres(url, system_clock, create=create)
    open_store(url, system_clock).close()  # says what is wrong with the address, if that is it
    raise ConfigError(f"a queue can't be moved from or to an engine of others, such as {scheme}")


class Copied(Struct, frozen=True):
    """A table that was copied: its rows, and the digest that both sides agree on."""

    name: str
    rows: int
    digest: str


class Tell(Protocol):
    """Is told how many rows have been copied, and of how many."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


def _tell_nobody(_done: int, _total: int | None = None, /) -> None: ...


class Move:
    """One move from a database to another. Closing it gives up what was not switched."""

    def __init__(self, source: End, target: End, *, guarded_seconds: float = GUARDED_SECONDS) -> None:
        self.source = source
        self.target = target
        self._seconds = guarded_seconds
        self.token = secrets.token_hex(16)
        self._started = self._arrived = False
        self._ended = threading.Event()
        self._lost = False
        self._keeper = threading.Thread(target=self._keep, name="holdfast-move", daemon=True)

    def finish_earlier(self) -> bool:
        """Do what is left of a move that was killed after its decisive step; False if there is none."""
        mark = self.source.read_mark()
        if mark is None or mark.state != MOVED:
            return False
        arrived = self.target.read_mark()
        if arrived is None or arrived.token != mark.token:
            mark.refuse()
        self.target.go_live(mark.token)
        return True

    def start(self) -> None:
        """Refuse what can't be moved there; then close the source to producers and pause it."""
        if self.source.origin == self.target.origin:
            raise ConfigError(f"the queue is in {self.source.address} already", hint="name another database")
        mark = self.source.read_mark()
        if mark is not None:
            mark.refuse()
            if not mark.expired:
                raise MoveFailed(f"the queue is being moved to {mark.other} by somebody else")
            self.source.reopen(None)
        self._check_target()
        with self.target.receiving():
            self._check_target()
            self._clear_target()
            self.target.mark_arriving(self.source, self.token)
        self._arrived = True
        self.source.close_to_producers(self.target.address, self.token, self._seconds)
        self._started = True
        self._keeper.start()

    def _check_target(self) -> None:
        """Refuse a target that is not empty. What an earlier try has left of this same queue is nothing."""
        mark = self.target.read_mark()
        if mark is not None:
            if mark.role == TARGET and mark.origin == self.source.origin:
                return
            if mark.state == MOVED:
                raise MoveFailed(
                    f"{self.target.address} has the jobs of a queue that was moved away",
                    hint="name a new file, or another schema",
                )
            mark.refuse()
            raise MoveFailed(f"{self.target.address} is itself being moved to {mark.other}")
        for table in TABLES:
            if table not in REPLACED and self.target.has(table) and self.target.count_rows(table):
                what = "jobs" if table in (JOBS, COUNTS) else table.name.removeprefix("holdfast_")
                raise MoveFailed(
                    f"{self.target.address} is not empty: it has, or had, {what} of its own",
                    hint="name a new file, or another schema",
                )

    def _clear_target(self) -> None:
        if self.target.read_mark() is not None:
            self.target.unmark()
            self.target.clear(TABLES)
        self.target.clear(REPLACED)

    def count_running(self) -> int:
        self._check_guard()
        return self.source.count_running()

    def freeze(self) -> bool:
        """Close the source to all writers; False if an attempt has not ended yet."""
        self._check_guard()
        return self.source.close_to_all(self.target.address, self.token)

    def copy(self, tell: Tell = _tell_nobody) -> list[Copied]:
        """Copy and compare everything; what has arrived is closed until the switch."""
        with self.source.reading(), self.target.receiving():
            mark = self.target.read_mark()
            if mark is None or mark.token != self.token:
                raise MoveFailed(f"somebody else has begun to use {self.target.address}")
            self._clear_target()
            copied = copy_rows(self.source, self.target, tell, self._check_guard)
            self.target.mark_arriving(self.source, self.token)
            self._check_guard()
        return copied

    def switch(self) -> None:
        """The decisive step, and the target's opening after it."""
        try:
            moved = self.source.mark_moved(self.target.address, self.token)
        except StoreError:
            if not self._is_moved():
                raise
            moved = True
        if not moved:
            self._lost = True
            self._check_guard()
        self._end()
        self._started = self._arrived = False  # from here on there is nothing to be undone
        self._open_target()

    def _open_target(self) -> None:
        for last in range(_TRIES):
            try:
                self.target.go_live(self.token)
                return
            except StoreError as error:
                if isinstance(error, StoreBusy) and last < _TRIES - 1:
                    continue  # those who wait there already keep looking
                raise MoveFailed(
                    f"the queue has moved, but {self.target.address} could not be opened: {error}",
                    hint="the same command, run again, finishes it",
                ) from error

    def _is_moved(self) -> bool:
        mark = self.source.read_mark()
        return mark is not None and (mark.token, mark.state) == (self.token, MOVED)

    def close(self) -> None:
        """Undo what was not switched."""
        self._end()
        if self._started:
            self._started = False
            with suppress(StoreError):  # else the source opens by itself
                self.source.reopen(self.token)
        if self._arrived:
            self._arrived = False
            # Unless the source says that it has not moved, nobody can know which of the two is the queue.
            with suppress(StoreError):
                if not self._is_moved():
                    self.target.discard(self.token)

    def _end(self) -> None:
        self._ended.set()
        if self._keeper.is_alive():
            self._keeper.join()

    def _check_guard(self) -> None:
        if self._lost:
            raise MoveFailed(
                f"{self.source.address} was not heard of in time and has opened again", hint="move it again"
            )

    def _keep(self) -> None:
        """Push the instant ahead until which the source is closed."""
        while not self._ended.wait(self._seconds / 6):
            with suppress(StoreError):  # there is time for more tries
                if not self.source.renew(self.token, self._seconds):
                    self._lost = True
                    return
        self.source.store.close_thread()


def copy_rows(
    source: End,
    target: End,
    tell: Tell = _tell_nobody,
    check: Callable[[], None] = lambda: None,
) -> list[Copied]:
    """Copy all tables into empty ones, inside what is open on both sides, and compare what is read back."""
    tables = [table for table in TABLES if source.has(table) and target.has(table)]
    total = sum(source.count_rows(table) for table in tables)
    done = 0
    copied = []
    for table in tables:
        sent = Digest()

        def passing(table: Table = table, sent: Digest = sent) -> Iterator[Row]:
            nonlocal done
            for row in source.rows(table):
                sent.add(row)
                done += 1
                if done % 100 == 0:
                    check()
                    tell(done, total)
                yield row

        target.write(table, passing())
        arrived = Digest()
        for row in target.rows(table):
            arrived.add(row)
        if (sent.rows, sent.text) != (arrived.rows, arrived.text):
            raise MoveFailed(
                f"{table.name} did not arrive as it was sent: {sent.rows} rows with the digest {sent.text},"
                f" then {arrived.rows} with {arrived.text}"
            )
        copied.append(Copied(table.name, arrived.rows, arrived.text))
    seq = source.last_seq()
    target.set_last_seq(seq)
    if target.last_seq() != seq:
        raise MoveFailed(f"the last job was number {seq}, and is number {target.last_seq()} there")
    tell(total, total)
    return copied


class Digest:
    """Of rows in their order: equal on two engines if every value is."""

    def __init__(self) -> None:
        self.rows = 0
        self._hash = hashlib.sha256()
        self._encode = msgspec.json.Encoder().encode

    def add(self, row: Row) -> None:
        self.rows += 1
        self._hash.update(self._encode(row))
        self._hash.update(b"\n")

    @property
    def text(self) -> str:
        return self._hash.hexdigest()[:16]


def converter(table: Table) -> Callable[[Sequence[Any]], Row]:
    """From what an engine gives for a row of a table to what it is on every engine."""
    kinds = [_KINDS[kind] for kind in table.kinds]

    def convert(row: Sequence[Any]) -> Row:
        return tuple(None if value is None else kind(value) for kind, value in zip(kinds, row, strict=True))

    return convert


def _text(value: Any) -> str:
    """As every engine can hold it: without NUL, and without halves of characters."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text.replace("\0", "\ufffd") if "\0" in text else text


_KINDS: dict[str, Callable[[Any], Any]] = {"i": int, "f": float, "s": _text, "b": bool, "x": bytes}


def unmovable(table: Table, error: Exception) -> HoldfastError:
    """The error for a row that the other engine can't hold."""
    return MoveFailed(f"{table.name}: a row can't be stored there: {str(error).partition(chr(10))[0]}")
