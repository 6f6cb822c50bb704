"""What a worker and its handlers' processes say to each other: one JSON message a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from holdfast.config import Value
from holdfast.store.protocol import Claim, NewJob
from holdfast.worker.run import Ending


class Setup(Struct, tag=True):
    """First of all: where code and queue are. `main` is what the worker ran as its main program."""

    url: str
    defaults: Mapping[str, Value]
    path: list[str]
    main_module: str | None
    main_file: str | None


class Run(Struct, tag=True):
    """Run an attempt with the function of this module and name, a handler with these options.

    The limit of its result comes along: a handler that is done must not fail because the child can't read it.
    The attempt may start until `leased_until`, on the lease clock.
    """

    claim: Claim
    leased_until: float
    handler_type: str
    module: str
    name: str
    whole: bool
    options: Mapping[str, Value]
    max_result_bytes: int


class Ask(Struct, tag=True):
    """Stop at the next safe point."""

    reason: str


class Lease(Struct, tag=True):
    """The answer to Overdue: until when it may start."""

    until: float


class Started(Struct, tag=True):
    """The handler is found and begins now: its time counts from here."""


class Overdue(Struct, tag=True):
    """The handler is found, but after the time by which it had to start: was its lease renewed meanwhile?"""


class JobCompleted(Struct, tag=True):
    """ctx.transaction() has completed the job; the handler may go on for a while."""


class Progress(Struct, tag=True):
    fraction: float
    message: str | None


class End(Struct, tag=True):
    ending: Ending
    children: list[NewJob]


ToChild = Setup | Run | Ask | Lease
FromChild = Started | Overdue | JobCompleted | Progress | End

_encode = msgspec.json.Encoder().encode


def send(stream: BinaryIO, message: Any) -> None:
    stream.write(_encode(message) + b"\n")
    stream.flush()
