"""The object that @queue.job makes of a function: still callable, and enqueueable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.core.job import Job, check_type
from holdfast.enqueueing.options import check_options
from holdfast.errors import ConfigError
from holdfast.handlers.handler import Handler
from holdfast.text import shown

if TYPE_CHECKING:
    from holdfast.context import Context
    from holdfast.handlers.options import CallOptions
    from holdfast.queue import Queue

P = ParamSpec("P")
R = TypeVar("R")


class JobFunction(Generic[P, R]):
    """A job's function. Calling it runs it directly; `enqueue` stores a job for a worker to run."""

    def __init__(self, queue: Queue, handler: Handler, options: CallOptions | None = None) -> None:
        self.queue = queue
        self.handler = handler
        self._given = options or {}
        self.options: dict[str, Any] = {**self._given}
        self.type = _type(handler.type, self.options.pop("lane", None))
        check_options(self.options.keys() - {"connection"})
        self.__name__ = handler.type
        self.__wrapped__: Callable[P, R]
        update_wrapper(self, handler.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Store a job with these arguments. When this returns, the job is durable."""
        return self.queue.enqueue(self.type, self._payload(args, kwargs), **self.options)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        return await self.queue.enqueue_async(self.type, self._payload(args, kwargs), **self.options)

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]], *, atomic: bool = False) -> list[Job]:
        """Store a job for each payload, a mapping of the function's arguments."""
        return self.queue.enqueue_many(self.type, payloads, atomic=atomic, **self.options)

    def with_options(self, **options: Unpack[CallOptions]) -> JobFunction[P, R]:
        """The same function with options for its jobs (priority, group, delay, key, lane, connection, …)."""
        return JobFunction(self.queue, self.handler, {**self._given, **options})

    def _payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args:
            return kwargs
        names = self.handler.positional_names
        if len(args) > len(names):
            taken = "1 positional argument" if len(names) == 1 else f"{len(names)} positional arguments"
            raise TypeError(f"{self.__name__}() takes {taken}, got {len(args)}")
        named = dict(zip(names, args, strict=False))
        twice = named.keys() & kwargs.keys()
        if twice:
            raise TypeError(f"{self.__name__}() got multiple values for {min(twice)!r}")
        return {**named, **kwargs}

    def __repr__(self) -> str:
        return f"<job {self.type!r}>"


def _type(type: str, lane: object) -> str:
    if lane is None:
        return type
    if not (isinstance(lane, str) and lane):
        raise ConfigError(f"lane must be non-empty text, not {shown(lane)}")
    if ":" in type:
        raise ConfigError(f"{type!r} is already a lane and can't have one")
    return check_type(f"{type}:{str.__str__(lane)}")


class JobDecorator(Protocol):
    """What @queue.job(...) returns. A Context that comes first is not part of the payload's arguments."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
