"""The nursery of program.py for scenarios: each has a file of its own, and begins when strace is there."""

from __future__ import annotations

from typing import Any

import holdfast.store.sqlite.store  # noqa: F401 -- loaded once, and not by each scenario
from tests.process.app import queue
from tests.process.program import ROLES, nursery, wait_for_tracer


def traced(role: str, url: str, options: dict[str, Any]) -> None:
    queue.url = url
    wait_for_tracer()
    ROLES[role](**options)


if __name__ == "__main__":
    ROLES[traced.__name__] = traced
    nursery()
