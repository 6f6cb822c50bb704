"""What a worker tells the others about itself and the types it runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection

from holdfast.core.job import base_type
from holdfast.registry import Registry
from holdfast.store.protocol import TypeRecord, WorkerRecord
from holdfast.worker.claiming import Claiming


def describe_worker(
    worker_id: str,
    registry: Registry,
    claiming: Claiming,
    types: Collection[str] | None,
    *,
    state: str,
    concurrency: int,
) -> tuple[WorkerRecord, list[TypeRecord]]:
    """The worker's row, and those of the types it serves: `types`, or all that have a handler."""
    named = {type for type in types or () if claiming.served(type)}
    bases = {base_type(type) for type in named}
    handlers = [h for h in registry.handlers() if h.type in bases or claiming.served(h.type)]
    record = WorkerRecord(
        id=worker_id,
        host=socket.gethostname(),
        pid=os.getpid(),
        state=state,
        concurrency=concurrency,
        types=tuple(sorted(named or {handler.type for handler in handlers})),
        slots={
            handler.type: slots
            for handler in handlers
            if isinstance(slots := registry.declared(handler.type).get("concurrency"), int)
        },
    )
    return record, [TypeRecord(type=h.type, executor=h.executor, schema=h.schema) for h in handlers]
