"""Where the running code is: in a handler, or in ctx.transaction(), which holds the write lock."""

from __future__ import annotations

from contextvars import ContextVar


class Scope:
    """One ctx.transaction() block. Tasks and threads that begin inside it inherit it, and may outlive it."""

    __slots__ = ("url",)

    def __init__(self, url: str) -> None:
        self.url: str | None = url

    @classmethod
    def enter(cls, url: str) -> Scope:
        """From here on, this code and what it starts is inside a block of the queue at `url`."""
        scope = cls(url)
        _scope.set(scope)
        return scope

    def leave(self) -> None:
        """The block is over, for all who have inherited it."""
        self.url = None


_scope: ContextVar[Scope | None] = ContextVar("holdfast_attempt_transaction", default=None)


def is_inside(url: str) -> bool:
    """Whether an open ctx.transaction() of the queue at `url` surrounds this code."""
    scope = _scope.get()
    return scope is not None and scope.url == url


handler_of: ContextVar[str | None] = ContextVar("holdfast_handler_of", default=None)
"""The id of the worker in this process whose handler this code belongs to."""
