"""Holdfast: a durable background job queue in a SQLite file or PostgreSQL."""

from __future__ import annotations

TYPE_CHECKING = False  # importing it takes longer than the rest of this module
if TYPE_CHECKING:
    from typing import Any

    from holdfast.context import Context
    from holdfast.core.filter import Filter
    from holdfast.core.job import Job, Status
    from holdfast.errors import Fail, HoldfastError, Retry
    from holdfast.fluent import tq
    from holdfast.handlers.handler import Reconcile
    from holdfast.queue import Queue

__version__ = "0.1.0"

__all__ = [
    "Context",
    "Fail",
    "Filter",
    "HoldfastError",
    "Job",
    "Queue",
    "Reconcile",
    "Retry",
    "Status",
    "__version__",
    "tq",
]

_HOMES = {
    "Context": "holdfast.context",
    "Fail": "holdfast.errors",
    "Filter": "holdfast.core.filter",
    "HoldfastError": "holdfast.errors",
    "Job": "holdfast.core.job",
    "Queue": "holdfast.queue",
    "Reconcile": "holdfast.handlers.handler",
    "Retry": "holdfast.errors",
    "Status": "holdfast.core.job",
    "tq": "holdfast.fluent",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that a command loads only what it needs."""
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
