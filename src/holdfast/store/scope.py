"""Where the running code stands: in a handler, or in ctx.transaction(), where the write lock is its own."""

from __future__ import annotations

from contextvars import ContextVar

attempt_transaction: ContextVar[str | None] = ContextVar("holdfast_attempt_transaction", default=None)
"""The URL of the queue whose ctx.transaction() surrounds this code."""

handler_of: ContextVar[str | None] = ContextVar("holdfast_handler_of", default=None)
"""The id of the worker in this process whose handler this code belongs to."""
