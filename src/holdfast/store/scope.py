"""Whether the running code is inside ctx.transaction(), where the queue's write lock is its own."""

from __future__ import annotations

from contextvars import ContextVar

attempt_transaction: ContextVar[str | None] = ContextVar("holdfast_attempt_transaction", default=None)
"""The URL of the queue whose ctx.transaction() surrounds this code."""
