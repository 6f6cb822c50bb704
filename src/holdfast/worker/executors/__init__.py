"""Executors run handlers and report how they ended. They know no SQL.

Each takes attempts with `start`, tells one to stop with `interrupt`, and reports through a callback, which
may hand the reporting thread its next attempt.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.context import Attempt


class Executor(Protocol):
    """Runs the attempts of one kind of handler."""

    def start(self, attempt: Attempt) -> None:
        """Begin; must not block."""

    def ask(self, attempt: Attempt) -> None:
        """Let the handler see that it should stop at its next safe point."""

    def interrupt(self, attempt: Attempt) -> bool:
        """Stop the handler for its `stop_reason`; False if that can only be asked, not enforced."""

    def close(self) -> None:
        """End without waiting for what would not stop."""
