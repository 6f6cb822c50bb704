"""The object that @queue.job makes of a function: still callable, and enqueueable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from holdfast.core.job import Job
from holdfast.handler import Handler

if TYPE_CHECKING:
    from holdfast.context import Context
    from holdfast.queue import Queue

P = ParamSpec("P")
R = TypeVar("R")


class JobFunction(Generic[P, R]):
    """A job's function. Calling it runs it here and now; `enqueue` stores a job that a worker runs."""

    def __init__(self, queue: Queue, handler: Handler, options: Mapping[str, Any] | None = None) -> None:
        self.queue = queue
        self.handler = handler
        self._options = options or {}
        self.__name__ = getattr(handler.function, "__name__", handler.type)
        self.__doc__ = handler.function.__doc__
        self.__wrapped__: Callable[P, R] = handler.function

    @property
    def type(self) -> str:
        return self.handler.type

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Store a job with these arguments; when this returns, it is durable."""
        return self.queue.enqueue(self.type, self._payload(args, kwargs), **self._options)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        return await self.queue.enqueue_async(self.type, self._payload(args, kwargs), **self._options)

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]], *, atomic: bool = False) -> list[Job]:
        """Store a job for each payload: a mapping of the function's arguments."""
        return self.queue.enqueue_many(self.type, payloads, atomic=atomic, **self._options)

    def with_options(self, **options: Any) -> JobFunction[P, R]:
        """The same function, whose jobs get these options (priority, delay, key, connection, …)."""
        return JobFunction(self.queue, self.handler, {**self._options, **options})

    def _payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args:
            return kwargs
        names = self.handler.positional_names
        if len(args) > len(names):
            raise TypeError(f"{self.__name__}() takes {len(names)} arguments by position, got {len(args)}")
        named = dict(zip(names, args, strict=False))
        twice = named.keys() & kwargs.keys()
        if twice:
            raise TypeError(f"{self.__name__}() got several values for {min(twice)!r}")
        return {**named, **kwargs}

    def __repr__(self) -> str:
        return f"<job {self.type!r}>"


class JobDecorator(Protocol):
    """What @queue.job(...) returns. A Context that comes first is not part of the payload's arguments."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
