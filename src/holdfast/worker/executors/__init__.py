"""Executors run handlers and report their outcomes. They contain no SQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextvars import Context

from holdfast.context import Attempt
from holdfast.store.protocol import Store
from holdfast.worker.run import Report


class Executor(ABC):
    """Runs the attempts of one kind of handler, each in a copy of `context`.

    It reports the end of each through a callback, which may hand the reporting thread its next attempt.
    """

    def __init__(self, report: Report, store: Store, context: Context | None = None) -> None:
        self._report = report
        self._store = store
        self._context = context or Context()

    @abstractmethod
    def start(self, attempt: Attempt) -> None:
        """Start the handler; must not block."""

    def ask(self, attempt: Attempt) -> None:  # noqa: B027 -- where it shares the attempt, it sees that
        """Let the handler see its `stop_reason` at its next safe point."""

    @abstractmethod
    def interrupt(self, attempt: Attempt) -> bool:
        """Stop the handler for its `stop_reason`; False if it can only be asked, not forced."""

    @abstractmethod
    def close(self) -> None:
        """Shut down without waiting for handlers that won't stop."""
