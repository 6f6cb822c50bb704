"""Simulated clocks: what worker code reads as `time`, the lease clock and chance, while it is simulated."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from holdfast.core import clock


class Machine(Protocol):
    """Whose clocks are read: those of the process that the scheduler is running."""

    rng: random.Random

    def monotonic(self) -> float: ...
    def lease_clock(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class _Present:
    """Stands in for the modules `time` and `random`, and for the lease clock."""

    machine: Machine | None = None

    def monotonic(self) -> float:
        assert self.machine is not None, "simulated code runs outside a simulation"
        return self.machine.monotonic()

    def sleep(self, seconds: float) -> None:
        assert self.machine is not None
        self.machine.sleep(seconds)

    def lease_clock(self) -> float:
        assert self.machine is not None
        return self.machine.lease_clock()

    def random(self) -> float:
        assert self.machine is not None
        return self.machine.rng.random()


PRESENT = _Present()


@contextmanager
def simulated_clocks() -> Iterator[None]:
    """All modules of Holdfast that are loaded read PRESENT instead of the machine's clocks."""
    replaced: list[tuple[Any, str, Any]] = []
    stand_ins: dict[int, Any] = {
        id(time): PRESENT,
        id(random): PRESENT,
        id(clock.lease_clock): PRESENT.lease_clock,
    }
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "holdfast"]
    for module in modules:
        for name in ("time", "random", "lease_clock"):
            value = vars(module).get(name)
            if id(value) in stand_ins:
                replaced.append((module, name, value))
                setattr(module, name, stand_ins[id(value)])
    try:
        yield
    finally:
        PRESENT.machine = None
        for module, name, value in replaced:
            setattr(module, name, value)
