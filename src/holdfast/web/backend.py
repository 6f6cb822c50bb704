"""What the endpoints use: the queue, threads for its calls, live events, logins, enqueue limits."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from starlette.requests import Request

from holdfast.core.job import Job, base_type
from holdfast.core.rate_limit import Bucket, full
from holdfast.errors import HoldfastError
from holdfast.jobs import BUILT_IN
from holdfast.queue import Queue
from holdfast.web.errors import Refused, too_many
from holdfast.web.events import Broadcast
from holdfast.web.failed_logins import FailedLogins
from holdfast.web.reconciler import Reconciler
from holdfast.web.sessions import EndedSessions
from holdfast.web.threads import SharedCall, SlowReads, run_in

P = ParamSpec("P")
T = TypeVar("T")

_SHORT_CALLS = 8
_LARGE_JOB = 16 * 1024
"""Characters that a job may hold to be read, redacted and written by a short call."""

_CLIENTS_REMEMBERED = 10_000


class Backend:
    """One for each application, in its state."""

    def __init__(
        self, queue: Queue, *, allow_types: Collection[str], enqueue_rate: float, needs_workers: bool
    ) -> None:
        self.queue = queue
        self.needs_workers = needs_workers
        self.broadcast = Broadcast(queue)
        self.reconciler = Reconciler(queue)
        self.sessions = EndedSessions(self.call)
        self.failed_logins = FailedLogins()
        self._allow_types = frozenset(allow_types)
        self._admission = AdmissionRate(enqueue_rate)
        self.open()

    def open(self) -> None:
        """Be ready to work; a server may be started again."""
        self.broadcast.open()
        self.reconciler.open()
        # Each kind has threads of its own: whatever takes long must not hold up the short calls, and nothing
        # may hold up the check of our health.
        self._short = ThreadPoolExecutor(_SHORT_CALLS, thread_name_prefix="holdfast-web")
        self._slow = SlowReads()
        self._long = ThreadPoolExecutor(1, thread_name_prefix="holdfast-web-long")
        self.check_health = SharedCall(partial(_check_health, self.queue))

    async def call(
        self, function: Callable[Concatenate[Queue, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a blocking function of the queue in a thread."""
        return await run_in(self._short, partial(function, self.queue, *args, **kwargs))

    async def read(self, request: Request, function: Callable[[Queue], T], *, is_slow: bool = True) -> T:
        """The same for one that reads many jobs, or a large one, if the request asks for that."""
        if not is_slow:
            return await self.call(function)
        client: bytes = request.scope["holdfast.client"]
        return await self._slow.run(client, partial(function, self.queue))

    async def read_job(self, request: Request, id: str, show: Callable[[Job], T]) -> T:
        """What somebody makes of a job and all that it holds. With a large one this is a slow read."""
        is_large = await self.call(Queue.size_of, id) > _LARGE_JOB
        return await self.read(request, lambda queue: show(queue.require(id)), is_slow=is_large)

    async def call_long(
        self, function: Callable[Concatenate[Queue, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Like `call`, for a function that changes many jobs; one runs at a time."""
        return await run_in(self._long, partial(function, self.queue, *args, **kwargs))

    def may_enqueue(self, type: str) -> bool:
        return base_type(type) not in BUILT_IN or bool({type, base_type(type)} & self._allow_types)

    def require_enqueueable(self, type: str) -> None:
        """A built-in type runs commands and writes files: over HTTP it has to be let in by name."""
        if not self.may_enqueue(type):
            raise Refused(
                403,
                "type_not_allowed",
                f"the built-in type {base_type(type)!r} is not accepted over HTTP"
                f" (allow it with --allow-type {base_type(type)})",
            )

    def count_enqueues(self, request: Request, count: int = 1) -> None:
        """Let a client enqueue, or tell it when to try again."""
        self._admission.take(request.scope["holdfast.client"], count)

    def let_go(self) -> None:
        """End the responses that would delay a shutdown: streams, and pending reports."""
        self.broadcast.end_streams()
        self.reconciler.close()

    def close(self) -> None:
        self.broadcast.close()
        self.reconciler.close()
        self.reconciler.join()
        self._short.shutdown(wait=False)
        self._slow.close()
        self._long.shutdown(wait=False)
        self.check_health.close()


def _check_health(queue: Queue) -> tuple[str, int]:
    """Whether the database answers, or what is wrong with it; and how many workers are alive."""
    try:
        return "ok", len(queue.workers())
    except HoldfastError as error:
        return str(error), 0


def backend_of(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


def root_of(request: Request) -> str:
    """The path below which we are mounted, or shown by a proxy; empty for none."""
    root: str = request.scope.get("root_path", "")
    return root


class AdmissionRate:
    """How many jobs per second each client may enqueue; 0 is unlimited. Kept in this process only.

    A batch is accepted when there is room for one job, and counts as many as it contains.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._buckets: OrderedDict[bytes, Bucket] = OrderedDict()

    def take(self, client: bytes, count: int) -> None:
        if not self._rate:
            return
        now = int(time.monotonic() * 1e6)
        bucket = self._buckets.pop(client, None) or full(self._rate, now)
        bucket = bucket.refill(self._rate, now)
        if not bucket.available():
            self._buckets[client] = bucket
            wait = bucket.seconds_until_next(self._rate)
            raise too_many(f"rate limit exceeded: {self._rate:g} jobs per second", wait)
        self._buckets[client] = bucket.take(count)
        if len(self._buckets) > _CLIENTS_REMEMBERED:
            self._buckets.popitem(last=False)
