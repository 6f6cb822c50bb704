"""ctx.transaction() on PostgreSQL: the handler's own transaction, which completes its job as it commits.

It holds a lock on its job's row, and nothing else of the queue's: other jobs go on. Whoever else writes about
jobs passes over a row that is locked. When its time is up it is rolled back, and its connection shut to the
handler; should this process be gone, the server itself ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg
from psycopg import RawCursor, sql
from psycopg.errors import QueryCanceled, error_from_result
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from holdfast.core.job import Status
from holdfast.core.lifecycle import Decision
from holdfast.errors import CommitUncertain, HoldfastError, LeaseLost, StoreBusy, StoreUnavailable
from holdfast.store.attempt import TimeLimit, commit_completion, completion_of
from holdfast.store.postgres.attempt_pool import COMPLETE, HOLD, PROBE, Prepared, is_reset
from holdfast.store.postgres.bounds import LOCK_PATIENCE, milliseconds
from holdfast.store.postgres.connection import (
    Connection,
    exchange,
    has_failed,
    raise_failure,
    roll_back,
    sqlstate,
)
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import ConnectionLost, means_lost, raise_translated, translated
from holdfast.store.postgres.finish import NOT_HELD, finish_jobs
from holdfast.store.postgres.handler_connection import HandlerConnection
from holdfast.store.postgres.session import Session
from holdfast.store.records import Claim, NewJob

# The server ends what its client has left alone for so long.
_BOUNDS = "SET LOCAL idle_in_transaction_session_timeout = {0}; SET LOCAL statement_timeout = {0}"
_MARGIN = 1.0
_LAST_STATEMENT = 1.0
"""Seconds that a statement of another thread has to end when the block ends."""

# The savepoint is for the probe alone. A row that is locked outside a savepoint and updated inside it costs a
# MultiXact.
_PROBE = ("SAVEPOINT holdfast", f"EXECUTE {PROBE.name}", "RELEASE SAVEPOINT holdfast")

_SERIALIZATION_FAILURE = b"40001"
_NOT_PREPARED = b"26000"
_MOST_TRIES = 5


class PostgresAttemptTransaction:
    """See AttemptTransaction in the protocol.

    The handler's statements aside, it takes two messages: one that begins and holds the job, and one that
    completes it, commits, and makes the session ready for the next handler.
    """

    connection: HandlerConnection
    _own: Connection
    """The same session, for our own statements."""

    def __init__(self, database: Database, claim: Claim, seconds: float) -> None:
        self._database = database
        self._claim = claim
        self._seconds = seconds
        self._settings: list[str] = []
        """What the handler has said of its transaction before anything else."""
        self._time = TimeLimit(seconds, self._expire)

    # Beginning.

    def begin(self, check_wait: Callable[[], None] = lambda: None) -> None:
        while True:
            self._take(check_wait)
            try:
                self._open()
                self._time.start()
                return
            except (ConnectionLost, StoreBusy):
                # Nothing has begun. The server was restarted since the connection was last used, or somebody
                # holds the job's row.
                self._give_back()
                check_wait()
            except BaseException:
                self._give_back()
                raise

    def _take(self, check_wait: Callable[[], None]) -> None:
        self._own = self._database.attempts.take_patiently(check_wait)
        self.connection = HandlerConnection(self._own, self._restart)
        self.connection.prepare_threshold = None if self._database.is_pooled else 5
        claim = self._claim
        self._guard = self._literals(seq=claim.seq, version=claim.version, worker_id=claim.worker_id)
        self._is_alone = True
        """Whether no statement of the handler's was under way when the block ended."""
        self._is_reset = False
        """Whether nothing of the handler's is left in the session."""

    def _open(self) -> None:
        with translated(self._database.url):
            try:
                with self._own.lock:
                    results = exchange(self._own, self._beginning())
                raise_failure(results)
            except QueryCanceled as error:
                raise StoreBusy(self._seconds) from error
        self._check_held(results)

    def _beginning(self) -> str:
        """All that comes before the handler's first statement."""
        bounds = _BOUNDS.format(milliseconds(self._seconds + _MARGIN))
        return ";".join([self._database.begin_sql, bounds, *self._settings, self._prepared(HOLD)])

    def _prepared(self, statement: Prepared, **more: int | str | None) -> str:
        if self._database.is_pooled:
            return self._spelled_out(statement, **more)
        return statement.execution({**self._guard, **self._literals(**more)})

    def _spelled_out(self, statement: Prepared, **more: int | str | None) -> str:
        return self._database.text(statement.sql).format(**self._guard, **self._literals(**more))

    def _literals(self, **values: int | str | None) -> dict[str, str]:
        return {name: _literal(value, self._own) for name, value in values.items()}

    def _check_held(self, results: Sequence[PGresult]) -> None:
        if not results[-1].ntuples:
            raise LeaseLost
        self.connection.begun = True

    def _restart(self, setting: str) -> None:
        """Begin again, with what the handler says of its transaction before the query that holds the job."""
        self._settings.append(setting.strip().rstrip(";"))
        for _ in range(_MOST_TRIES):
            with self._own.lock:
                if self.connection.is_used:  # by another thread: the server says that it is too late
                    return
                results = exchange(self._own, f"ROLLBACK;{self._beginning()}")
            if sqlstate(results[-1]) != _SERIALIZATION_FAILURE:  # the lease was renewed at that very moment
                break
        raise_failure(results)
        self._check_held(results)

    def hold(self) -> None:
        with self._time.lifted():
            self.connection.check()
            with translated(self._database.url):
                RawCursor(self._own).execute(_BOUNDS.format(0))

    # Ending.

    def commit(
        self, decision: Decision, children: Sequence[NewJob], done: Callable[[], None] = lambda: None
    ) -> None:
        with self._time.lifted():
            try:
                self.connection.check()
                self._check_open()
                commit_completion(self._database, lambda: self._commit(decision, children), self._claim)
                done()
            finally:
                self._give_back()
        if children:
            self._database.notifier.touch()

    def rollback(self) -> None:
        with self._time.lifted():
            self._give_back()

    def _shut(self) -> bool:
        """From here on no statement of the handler's, or of a thread of its, gets through.

        False if one is still at it, or has not been read to its end.
        """
        if not self.connection.over:
            self._is_alone = self._own.lock.acquire(timeout=_LAST_STATEMENT)
            self.connection.over = True
            if self._is_alone:
                self._own.lock.release()
        return self._is_alone

    def _check_open(self) -> None:
        is_alone, session = self._shut(), self._own.pgconn
        if session.transaction_status == TransactionStatus.INERROR:
            raise HoldfastError(
                "a statement inside ctx.transaction() failed, so none of it can be committed",
                hint="run what may fail inside connection.transaction(), which creates a savepoint",
            )
        is_between_statements = session.transaction_status == TransactionStatus.INTRANS
        if not is_alone or not is_between_statements or session.pipeline_status != PipelineStatus.OFF:
            raise HoldfastError("a pipeline, a COPY or a stream() is still open at the end of the block")

    def _commit(self, decision: Decision, children: Sequence[NewJob]) -> None:
        result = decision.result
        if children or not (result is None or result.isascii()):
            self._finish(decision, children)
            self._send_commit([])
            return
        values = {"now": self._database.instant, "result": result}
        probe = () if self._database.is_pooled else _PROBE
        try:
            self._send_commit([*probe, self._prepared(COMPLETE, **values)])
        except _NotPrepared:  # the handler, or psycopg for it, has deallocated all
            self._send_commit(["ROLLBACK TO SAVEPOINT holdfast", self._spelled_out(COMPLETE, **values)])

    def _send_commit(self, completion: Sequence[str]) -> None:
        """Send a COMMIT with what belongs before it, and after it the reset, which may fail on its own."""
        before, url = len(completion), self._database.url
        after = [] if self._database.is_pooled else [self._database.attempts.reset]
        uncertain = f"{url}: the connection was lost during the commit"
        try:
            with self._own.lock:
                results = exchange(self._own, ";".join([*completion, "COMMIT", *after]))
        except psycopg.Error as error:
            raise CommitUncertain(uncertain) from error
        if len(results) <= before:  # it did not come to the COMMIT
            refusal = sqlstate(results[-1])
            if refusal == _NOT_PREPARED:
                raise _NotPrepared
            if refusal == NOT_HELD:
                raise LeaseLost
            raise_translated(error_from_result(results[-1]), url)
        answer = results[before]
        if has_failed(answer):
            failure = error_from_result(answer)
            if means_lost(failure):
                raise CommitUncertain(uncertain) from failure
            raise_translated(failure, url)
        if answer.command_status != b"COMMIT":
            raise StoreUnavailable(f"{url}: a statement failed, so the transaction was rolled back")
        self._is_reset = is_reset(results)

    def _finish(self, decision: Decision, children: Sequence[NewJob]) -> None:
        finish = completion_of(self._claim, decision, children)
        session = Session(self._own, self._database)
        with translated(self._database.url):
            accepted = finish_jobs(session, [finish], self._database.instant, child_patience=LOCK_PATIENCE)
        if not accepted:
            raise LeaseLost
        if Status.PROCESSING in accepted.values():
            raise StoreBusy(LOCK_PATIENCE)

    def _expire(self) -> None:
        self.connection.expired_after = self._seconds
        self._cancel()
        if self._own.lock.acquire(timeout=_LAST_STATEMENT):
            self._own.lock.release()
            roll_back(self._own)
        else:
            self._own.close()  # what was not read to its end can't be rolled back: the server does it

    def _cancel(self) -> None:
        with suppress(psycopg.Error):
            self._own.cancel()

    def _give_back(self) -> None:
        if not self._is_lendable():
            self._own.close()
        self._database.attempts.give(self._own)

    def _is_lendable(self) -> bool:
        """Whether the next handler may have the session, which is brought to where it can."""
        if not self._shut():
            self._cancel()
            return False
        # One that was cancelled is not lent again: the cancellation may come late. A pooler keeps its own.
        if self.connection.expired_after is not None or self._database.is_pooled:
            return False
        return self._is_reset or self._database.attempts.make_ready(self._own)


class _NotPrepared(Exception):
    """A statement that we had prepared is gone."""


def _literal(value: int | str | None, connection: Connection) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if "\\" in value:  # what it means is a setting of the session's
        return sql.quote(value, connection)
    return "'" + value.replace("'", "''") + "'"
