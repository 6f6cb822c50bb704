"""What an adapter works with: the clients of one attempt, its waits and its tokens."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

from holdfast.context import Context
from holdfast.errors import Fail

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 5.0
"""Seconds between two checks of a pending operation; each pause is twice as long as the last."""

SETTLING = 300.0
"""Seconds to wait for a resource in transition before the attempt fails and is retried later."""

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
TRIES = 2
"""How many times boto3 sends a request: a blip isn't worth an attempt, and the queue does the rest."""


class Access(ExitStack):
    """Clients, waits and tokens of one attempt, or with no context those of one look.

    Sessions are not for several threads, and the environment may have changed since the last attempt: so each
    makes its own, of botocore, which boto3 is made of, and closes its clients at the end.
    """

    def __init__(self, ctx: Context | None = None) -> None:
        super().__init__()
        self._ctx = ctx
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._interrupted = threading.Event()
        if ctx is not None:
            ctx.on_interrupt(self._interrupted.set)

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._made(service)
        return self._clients[service]

    def pauses(self) -> Iterator[None]:
        """Growing pauses between two checks of a pending operation.

        They end early for an attempt that should stop; its next call then raises.
        """
        seconds = FIRST_PAUSE
        while True:
            self._interrupted.wait(seconds)
            yield
            seconds = min(2 * seconds, LONGEST_PAUSE)

    @property
    def ctx(self) -> Context:
        assert self._ctx is not None, "a read-only check has no operations"
        return self._ctx

    def token(self, *operation: str) -> str:
        """A name for an operation of this job, the same in every attempt: a service that has seen it does
        not do it twice."""
        parts = "\0".join((self.ctx.job.origin, *operation))
        return hashlib.sha256(parts.encode()).hexdigest()

    def _made(self, service: str) -> Any:
        try:
            from botocore.config import Config  # type: ignore[import-untyped]
            from botocore.session import Session  # type: ignore[import-untyped]
        except ImportError:
            raise Fail("boto3 is not installed: pip install 'holdfast-queue[aws]'") from None
        config = Config(
            retries={"mode": "standard", "total_max_attempts": TRIES},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
        )
        if self._session is None:
            self._session = Session()
            self._session.get_credentials()  # may take a while, and so not under the lock
        region = os.environ.get("AWS_REGION") or None  # of itself it reads AWS_DEFAULT_REGION only
        with _reading:
            self._session.register_component("data_loader", _descriptions())
            try:
                client = self._session.create_client(service, region_name=region, config=config)
            except ValueError as error:  # such as an endpoint that is none
                raise Fail(str(error)) from None
        self.callback(client.close)
        if self._ctx is not None:
            check = self._ctx.check
            client.meta.events.register("before-call", lambda **_: check())
        return client


@cache
def _descriptions() -> Any:
    """The descriptions of the services. Reading them is nine tenths of what a client costs, some 100 ms, so
    they are read once for all."""
    from botocore.loaders import create_loader  # type: ignore[import-untyped]

    return create_loader(os.environ.get("AWS_DATA_PATH"))


_reading = threading.Lock()
