"""Running one attempt: from a claim to an outcome, whatever the handler does."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.context import CANCELLED, LOST, STOPPING, TIMED_OUT, Attempt
from holdfast.core.clock import lease_clock
from holdfast.core.lifecycle import Completed, Errored, Outcome, Released, Stopped
from holdfast.core.payload import decode, encode_result, same_json
from holdfast.errors import (
    AttemptFailed,
    Fail,
    Interrupted,
    InvalidPayload,
    LeaseLost,
    ResultIgnored,
    Retry,
    TimedOut,
)

MAX_ERROR = 8 * 1024
MAX_TRACEBACK = 64 * 1024


class Committed(Struct, frozen=True, tag=True):
    """ctx.transaction() has completed the job. `error` is what went wrong in the handler after that."""

    error: str | None = None


class LetGo(Struct, frozen=True, tag=True):
    """The attempt no longer owns its job, so there is nothing to write."""


Ending = Outcome | Committed | LetGo

_COMPLETED = Completed(None)


def begin_call(attempt: Attempt, passing: tuple[type[BaseException], ...] = ()) -> Any | Ending:
    """Check the payload and call the handler; its value, its coroutine, or how the attempt ended.

    What is named in `passing` is not an outcome but goes through to the caller. That the job is ours is seen
    to last of all: this process may have stood still since it took the job. Then the start is noted, so that
    it is known even if this process is killed: from here on the attempt counts.
    """
    handler = attempt.handler
    try:
        bound = handler.spec.bind(decode(attempt.claim.payload))
    except InvalidPayload as error:
        attempt.exception = error
        return Errored(f"InvalidPayload: {error}", permanent=True)
    except Exception as error:
        attempt.exception = error
        return _errored(error, None, permanent=True)
    refusal = ending_unstarted(attempt)
    if refusal is not None:
        return refusal
    attempt.begin()
    try:
        return handler.call(bound, attempt.context)
    except passing:
        raise
    except BaseException as error:
        return ending_of_error(attempt, error)


def ending_unstarted(attempt: Attempt) -> Ending | None:
    """How an attempt ends whose handler must not start any more; None if it may.

    It may if nobody has told it to stop and its job is ours for sure. Else it is given back, for the database
    to say whose it is: nothing has happened, so nothing is charged.
    """
    if attempt.stop_reason is None:
        return None if lease_clock() < attempt.leased_until else Released()
    ending = ending_of_stop(attempt)
    return Released() if isinstance(ending, LetGo) else ending


def run_here(attempt: Attempt, passing: tuple[type[BaseException], ...] = ()) -> Ending:
    """Run a handler here; a coroutine, also one that a sync handler returned, on a loop of its own."""
    value = begin_call(attempt, passing)
    if isinstance(value, Ending):
        return value
    try:
        if inspect.iscoroutine(value):
            value = _run_coroutine(value)
        return ending_of_value(attempt, value)
    except passing:
        raise
    except BaseException as error:
        return ending_of_error(attempt, error)


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it on a new event loop, in a separate thread if this thread's loop is already running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()


def ending_of_value(attempt: Attempt, value: Any) -> Ending:
    """The outcome of an attempt whose handler returned."""
    if not attempt.committed:
        return _COMPLETED if value is None else Completed(encode_result(value, attempt.result_limit))
    if value is None or _is_stored(attempt, encode_result(value, attempt.result_limit)):
        return Committed()
    attempt.exception = ResultIgnored()  # a value that was meant to be the job's result comes too late
    return Committed(describe(attempt.exception))


def _is_stored(attempt: Attempt, late: str | None) -> bool:
    stored = attempt.committed_result
    return late is not None and stored is not None and same_json(late, stored)


def ending_of_error(attempt: Attempt, error: BaseException) -> Ending:
    """The outcome of an attempt whose handler raised."""
    if attempt.committed:
        attempt.exception = error
        return Committed(describe(error))
    if isinstance(error, LeaseLost) or (isinstance(error, Interrupted) and attempt.stop_reason is None):
        return LetGo()
    if isinstance(error, Interrupted | asyncio.CancelledError) and attempt.stop_reason is not None:
        return ending_of_stop(attempt)
    if attempt.stop_reason is not None and _answers_interruption(error):
        return ending_despite_error(attempt, _errored(error, attempt.detail))
    attempt.exception = error
    if isinstance(error, AttemptFailed):
        return Errored(describe(error), detail=attempt.detail, permanent=error.permanent)
    if isinstance(error, Fail):
        return _errored(error, attempt.detail, permanent=True)
    if isinstance(error, Retry):
        return _errored(error, attempt.detail, delay=error.delay)
    return _errored(error, attempt.detail)


def ending_of_stop(attempt: Attempt) -> Ending:
    """The outcome of an attempt that stopped because it was told to."""
    if attempt.stop_reason == STOPPING:
        return Released()
    if attempt.stop_reason == CANCELLED:
        return Stopped()
    if attempt.stop_reason == TIMED_OUT:
        attempt.exception = TimedOut(attempt.claim.timeout or 0.0)
        return Errored(describe(attempt.exception), detail=attempt.detail)
    assert attempt.stop_reason == LOST, attempt.stop_reason
    return LetGo()


def ending_despite_error(attempt: Attempt, ending: Ending) -> Ending:
    """How an attempt ended that was interrupted: an error is then its handler's way to stop.

    Handlers wrap their cancellation in errors of their own, and fail when what they wait for is killed.
    """
    if not isinstance(ending, Errored):
        return ending
    stopped = ending_of_stop(attempt)
    if isinstance(stopped, Errored):
        return replace(stopped, traceback=ending.traceback, detail=ending.detail)
    return stopped


def _answers_interruption(error: BaseException) -> bool:
    """Whether it was raised while the handler dealt with what ctx.check() had raised."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Interrupted):
            return True
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        waiting += [found.__cause__, found.__context__]
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
    return False


def _errored(
    error: BaseException,
    detail: dict[str, Any] | None,
    *,
    permanent: bool = False,
    delay: float | None = None,
) -> Errored:
    trace = storable("".join(traceback.format_exception(error)), MAX_TRACEBACK)
    return Errored(describe(error), trace, detail, permanent=permanent, delay=delay)


def describe(error: BaseException) -> str:
    """The error as one text: its class and message."""
    try:
        message = str(error)
    except Exception:
        message = "(its message can't be displayed)"
    name = type(error).__name__
    return storable(f"{name}: {message}" if message else name, MAX_ERROR)


def storable(text: str, limit: int) -> str:
    """Text that every database accepts: no NUL, no lone surrogates, limited in length."""
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= limit else f"{clean[: limit // 2]}\n…\n{clean[-limit // 2 :]}"


Report = Callable[[Attempt, Ending], "Attempt | None"]
"""Takes the end of an attempt; returns one that the reporting thread may run next."""
