"""A world for completed jobs to be compared with: what differs, and checks that can be held."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from holdfast import Job, Queue
from holdfast.handlers.handler import Reconcile

HELD_SECONDS = 20.0


class World:
    """What jobs of the type `make` make: a thing by its name. What is wrong with one is in `problems`."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self.broken: dict[str, Exception] = {}
        self.checked: list[str] = []
        self.is_held = threading.Event()
        self._passing = 0
        self._go_on = threading.Event()
        self._go_on.set()

    def hold(self, after: int = 0) -> None:
        """Let checks wait until `let_go`, but for the next so many."""
        self.is_held.clear()
        self._passing = after
        self._go_on.clear()

    def let_go(self) -> None:
        self._go_on.set()

    def wait_held(self) -> None:
        assert self.is_held.wait(HELD_SECONDS)

    def register(self, queue: Queue, type: str = "make", *, on_start: bool = True) -> None:
        queue.register(
            type, lambda payload: None, reconcile=Reconcile(self._check, self._subject, on_start=on_start)
        )

    def make(self, queue: Queue, names: Iterable[str], type: str = "make") -> None:
        """Jobs that have made things, each with the id of its thing."""
        for name in names:
            queue.enqueue(type, {"name": name}, id=f"{type}-{name}")
        queue.drain()

    def _subject(self, job: Job) -> str:
        return f"thing {job.payload['name']}"

    def _check(self, job: Job) -> str | None:
        name = job.payload["name"]
        if self._passing:
            self._passing -= 1
        elif not self._go_on.is_set():
            self.is_held.set()
            assert self._go_on.wait(HELD_SECONDS)
        self.checked.append(job.id)
        if name in self.broken:
            raise self.broken[name]
        return self.problems.get(name)
