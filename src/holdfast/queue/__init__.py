"""The queue: the interface for applications and for every surface."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from holdfast.core import check
from holdfast.core.job import Job
from holdfast.errors import ConfigError
from holdfast.handlers.registry import parse_handler_options
from holdfast.listing import pages as listing
from holdfast.queue.operating import Operating

if TYPE_CHECKING:
    from holdfast.context import Context
    from holdfast.enqueueing.bulk import Bulk
    from holdfast.handlers.handler import Prepare, Reconcile
    from holdfast.handlers.options import EnqueueOptions, Executor, HandlerOptions, ManyOptions, WorkerOptions
    from holdfast.queue.function import JobDecorator, JobFunction
    from holdfast.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


class Queue(Operating):
    """A job queue in a database. It is opened on first use; one Queue can be shared by all threads.

    With `create=False`, no queue is created in a database without one: QueueNotFound is raised instead.
    `strict_types` refuses to enqueue types that have no handler here. `defaults` are settings that apply
    where no value is stored in the database. On PostgreSQL, NOTIFY wakes workers when jobs are enqueued;
    with `notify=False`, this queue sends no notifications, and its workers poll instead.
    """

    # Handlers.

    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> JobFunction[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        executor: Executor | None = None,
        reconcile: Reconcile | Callable[[Job], str | None] | None = None,
        **options: Unpack[HandlerOptions],
    ) -> JobDecorator: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        executor: Executor | None = None,
        reconcile: Reconcile | Callable[[Job], str | None] | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Any:
        """Turn a function into a job: its keyword arguments are the payload, its name is the type.

        `reconcile(job)` checks whether the effect of a completed job still exists: see Reconcile.
        """
        from holdfast.handlers.handler import Handler
        from holdfast.queue.function import JobFunction

        parsed = parse_handler_options(options)

        def decorate(function: Callable[..., Any]) -> JobFunction[..., Any]:
            type = name or getattr(function, "__name__", None)
            if type is None:
                raise ConfigError(f"{function!r} has no name of its own; pass name=")
            handler = Handler(
                type, function, whole=False, executor=executor, reconcile=reconcile, options=parsed
            )
            self.registry.add(handler)
            return JobFunction(self, handler)

        return decorate if function is None else decorate(function)

    def register(
        self,
        type: str,
        handler: Callable[..., Any],
        *,
        payload_type: Any = None,
        executor: Executor | None = None,
        prepare: Prepare | None = None,
        reconcile: Reconcile | Callable[[Job], str | None] | None = None,
        **options: Unpack[HandlerOptions],
    ) -> None:
        """Run jobs of a type with `handler(payload)` or `handler(payload, ctx)`.

        `prepare(payload)` is called when a job is enqueued, with the validated payload as a dict; it returns
        the payload to store, and options such as a key, which apply unless the caller gives them.
        `reconcile(job)` checks whether the effect of a completed job still exists: see Reconcile.
        """
        from holdfast.handlers.handler import Handler

        parsed = parse_handler_options(options)
        self.registry.add(
            Handler(
                type,
                handler,
                whole=True,
                payload_type=payload_type,
                executor=executor,
                prepare=prepare,
                reconcile=reconcile,
                options=parsed,
            )
        )

    def unregister(self, type: str) -> None:
        """Stop handling a type here; its jobs stay pending."""
        self.registry.remove(type)

    # Enqueue.

    def enqueue(
        self,
        type: str,
        payload: object = None,
        *,
        connection: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        """Store a job and return it. When this returns, the job is durable.

        With `connection`, the job is inserted in that connection's transaction and stored by the caller's own
        commit. Options: id, priority, group, max_attempts, timeout, delay, run_at, key, key_for.
        """
        return self.enqueuer(connection).enqueue(type, payload, options, connection)

    async def enqueue_async(
        self,
        type: str,
        payload: object = None,
        *,
        connection: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        """`enqueue` for asyncio: concurrent calls share commits, and the event loop is not blocked.

        `connection` may also be SQLAlchemy's AsyncConnection or AsyncSession.
        """
        enqueuer = self.enqueuer(connection)
        return (await enqueuer.enqueue_async(type, payload, options, connection))[0]

    async def admit(
        self, type: str, payload: object = None, **options: Unpack[EnqueueOptions]
    ) -> tuple[Job, bool]:
        """`enqueue_async`, and whether the job is new: another job may already hold its key."""
        return await self.enqueuer().enqueue_async(type, payload, options)

    def enqueue_many(
        self,
        type: str,
        payloads: Iterable[object],
        *,
        atomic: bool = False,
        connection: Any = None,
        **options: Unpack[ManyOptions],
    ) -> list[Job]:
        """Store many jobs of a type. Up to 10,000, or with `atomic`, either all are stored or none.

        Otherwise there is a commit every 10,000 jobs, and an error leaves the earlier batches stored.
        """
        return self.enqueuer(connection).enqueue_many(
            type, payloads, options, atomic=atomic, connection=connection
        )

    def enqueue_batch(self, items: Iterable[tuple[str, object, EnqueueOptions]]) -> list[tuple[Job, bool]]:
        """Store jobs given as (type, payload, options) in one commit: either all, or none and BatchRefused.

        Returns each job, and whether it is new. For more than about ten thousand jobs, use `bulk`.
        """
        return self.enqueuer().enqueue_batch(items)

    def bulk(self) -> Bulk:
        """Enqueue many jobs of any type, each with its own options: checked one by one, stored together."""
        from holdfast.enqueueing.bulk import Bulk

        return Bulk(self._store, self.admission, self.settings())

    # Working.

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for this queue's handlers, not yet started: call start() and stop(), or use `with`."""
        from holdfast.worker import Worker

        return Worker(self, **options)

    def run_worker(self, **options: Unpack[WorkerOptions]) -> bool:
        """Work until SIGINT or SIGTERM: the first shuts down gracefully, the second at once.

        Returns whether all running jobs could finish.
        """
        return self.worker(**options).run()

    def drain(self, limit: int | None = None, *, raise_errors: bool = False) -> int:
        """Run the pending jobs in this thread and return how many ran.

        With `raise_errors`, an exception from a handler is also raised here, after its outcome is stored as
        usual; Retry is not, because it is a request rather than an error. ResultIgnored is always raised.
        """
        from holdfast.worker import drain

        most = None if limit is None else check.whole_number("limit", limit, listing.AMOUNTS)
        return drain(self, most, raise_errors=raise_errors)
