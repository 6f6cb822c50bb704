"""The messages between a worker and its handlers' processes: one JSON message per line."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from holdfast.config import Value
from holdfast.store.records import Claim, NewJob
from holdfast.worker.run import Ending


class Setup(Struct, tag=True):
    """The first message: where the code and the queue are. `main` is the worker's own main program."""

    url: str
    defaults: Mapping[str, Value]
    path: list[str]
    main_module: str | None
    main_file: str | None


class Run(Struct, tag=True):
    """Run an attempt with the function of this module and name, a handler with these options.

    The limit of its result comes along: a handler that is done must not fail because the child can't read it.
    It doesn't start before the answer to Ready.
    """

    claim: Claim
    handler_type: str
    module: str
    name: str
    whole: bool
    options: Mapping[str, Value]
    max_result_bytes: int


class Ask(Struct, tag=True):
    """Stop at the next safe point."""

    reason: str


class Go(Struct, tag=True):
    """The answer to Ready: the handler may start until then, on the lease clock."""

    until: float


class Ready(Struct, tag=True):
    """The handler is found and could begin: is the job still ours, after what may have been a long import?"""


class JobCompleted(Struct, tag=True):
    """ctx.transaction() has completed the job; the handler may keep running for a while."""


class Progress(Struct, tag=True):
    fraction: float
    message: str | None


class End(Struct, tag=True):
    ending: Ending
    children: list[NewJob]


ToChild = Setup | Run | Ask | Go
FromChild = Ready | JobCompleted | Progress | End

_encode = msgspec.json.Encoder().encode


def send(stream: BinaryIO, message: Any) -> None:
    stream.write(_encode(message) + b"\n")
    stream.flush()


class LineReader:
    """Reads messages from a pipe, each in time that grows with its length alone."""

    def __init__(self, descriptor: int, is_over: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._is_over = is_over
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._rest = b""

    def read_line(self) -> bytes | None:
        """The next message, or None once the sender is gone."""
        parts: list[bytes] = []
        part: bytes | None = self._rest
        while part is not None:
            head, newline, self._rest = part.partition(b"\n")
            parts.append(head)
            if newline:
                return b"".join(parts)
            part = self._read_part()
        return None

    def _read_part(self) -> bytes | None:
        # What a handler forked may hold the pipe open after the sender itself has died.
        while not self._poll.poll(1000):
            if self._is_over():
                return None
        return os.read(self._descriptor, 65_536) or None
