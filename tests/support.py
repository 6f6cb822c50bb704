"""Shared by the tests: waiting for real things to happen, and recording events."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from holdfast.events import Event, Events

E = TypeVar("E", bound=Event)
T = TypeVar("T")

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
"""For tests of what reads or writes the store; all else above it is the same code for both engines."""


def unsynced(url: str) -> str:
    """The same database, which need not survive a power cut; the tests' PostgreSQL never does."""
    return f"{url}?synchronous=off" if url.startswith("sqlite:") else url


def wait_until(condition: Callable[[], object], timeout: float = 30.0, message: str = "") -> None:
    """Wait for other threads or processes; only for what announces itself in no other way."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {message or condition}")
        time.sleep(0.005)


def wait_still(look: Callable[[], T], seconds: float = 0.4) -> T:
    """Wait until something has stayed as it is for a while; returns it."""
    seen, since = look(), time.monotonic()

    def is_still() -> bool:
        nonlocal seen, since
        now = look()
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= seconds

    wait_until(is_still, message="it never rests")
    return seen


def open_files() -> Counter[str]:
    """What this process has open, by name: `open_files() - before` is what was opened since and not closed.

    Their number alone says nothing, as the garbage collector closes what other tests have left.
    """
    names: Counter[str] = Counter()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the folder itself
            names[os.readlink(f"/proc/self/fd/{descriptor}")] += 1
    return names


class Recorder:
    """Records a queue's events and waits for them."""

    def __init__(self, events: Events) -> None:
        self._events: list[Event] = []
        self._arrived = threading.Condition()
        self.close = events.subscribe(self._record)

    def _record(self, event: Event) -> None:
        with self._arrived:
            self._events.append(event)
            self._arrived.notify_all()

    def all(self, kind: type[E]) -> list[E]:
        with self._arrived:
            return [event for event in self._events if isinstance(event, kind)]

    def wait(self, kind: type[E], count: int = 1, timeout: float = 30.0, **fields: object) -> E:
        """The count-th event of a kind with these fields, waiting for it."""

        def fits(event: Event) -> bool:
            return all(getattr(event, name) == value for name, value in fields.items())

        def fitting() -> list[E]:
            return [event for event in self._events if isinstance(event, kind) and fits(event)]

        with self._arrived:
            if not self._arrived.wait_for(lambda: len(fitting()) >= count, timeout):
                names = [str(event) for event in self._events][-20:]
                wanted = f"{count} x {kind.__name__} {fields}"
                raise AssertionError(f"{wanted} did not come within {timeout:g} s: {names}")
            return fitting()[count - 1]
