"""What an adapter works with: clients of one attempt, its waits and its tokens."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Self

from holdfast.context import Context
from holdfast.errors import Fail, Retry

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 5.0
"""Seconds between two looks at something under way; they double from the first."""

SETTLING = 300.0
"""Seconds that a resource in transition is waited for, before the attempt is given up for a later one."""

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
TRIES = 2
"""How often boto3 sends a request itself: a blip is not worth an attempt, and the rest is the queue's."""


class Access:
    """Clients, waits and tokens of one attempt, or with no context those of one look.

    Sessions are not for several threads, and the environment may have changed since the last attempt: so each
    makes its own, of botocore, which boto3 is made of, and closes its clients at the end.
    """

    def __init__(self, ctx: Context | None = None) -> None:
        self._ctx = ctx
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._interrupted = threading.Event()
        if ctx is not None:
            ctx.on_interrupt(self._interrupted.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._made(service)
        return self._clients[service]

    @property
    def region(self) -> str:
        return str(self.client("sts").meta.region_name)

    def arn(self, service: str, name: str) -> str:
        """The name that a resource of this account and region has everywhere."""
        account = self.client("sts").get_caller_identity()["Account"]
        return f"arn:{self.client('sts').meta.partition}:{service}:{self.region}:{account}:{name}"

    def check(self) -> None:
        """A safe point: ends the attempt if it should stop."""
        if self._ctx is not None:
            self._ctx.check()

    def wait(self, is_settled: Callable[[], bool], what: str) -> None:
        """Look until something has settled, with growing pauses; asks for another attempt after long."""
        deadline = time.monotonic() + SETTLING
        pause = FIRST_PAUSE
        while not is_settled():
            if time.monotonic() + pause > deadline:
                raise Retry(f"{what} is still in transition after {SETTLING:g} s")
            self.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def pause(self, seconds: float) -> None:
        """Wait, but not for an attempt that should stop."""
        self.check()
        self._interrupted.wait(seconds)
        self.check()

    def token(self, *operation: str) -> str:
        """A name for an operation of this job, the same in every attempt: a service that has seen it does
        not do it twice."""
        assert self._ctx is not None, "who only looks has no operations"
        parts = "\0".join((self._ctx.job.origin, *operation))
        return hashlib.sha256(parts.encode()).hexdigest()

    def failed_requests(self) -> list[Any]:
        """The tokens whose requests have failed in earlier attempts, which would only fail again."""
        assert self._ctx is not None
        return [(failure.detail or {}).get("failedRequest") for failure in self._ctx.job.errors]

    def note(self, **evidence: Any) -> None:
        """Keep something with the attempt, should it fail."""
        assert self._ctx is not None
        self._ctx.detail(**evidence)

    def _made(self, service: str) -> Any:
        try:
            from botocore.config import Config  # type: ignore[import-untyped]
            from botocore.session import Session  # type: ignore[import-untyped]
        except ImportError:
            raise Fail("boto3 is not installed here: pip install 'holdfast[aws]'") from None
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
        client.meta.events.register("before-call", lambda **_: self.check())
        return client


@cache
def _descriptions() -> Any:
    """The descriptions of the services. Reading them is nine tenths of what a client costs, some 100 ms, so
    they are read once for all."""
    from botocore.loaders import create_loader  # type: ignore[import-untyped]

    return create_loader(os.environ.get("AWS_DATA_PATH"))


_reading = threading.Lock()
