"""The built-in job types, each written as an application would write its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.queue import Queue

SHELL = "shell"
"""The type of commands."""

BUILT_IN = frozenset({SHELL})
"""The types that are ours. Over HTTP they are enqueued only where somebody has said so."""


def install(queue: Queue, *, shell_slots: int | None = 1) -> None:
    """Let a queue's workers run the built-in types, but for those that the application has taken itself.

    `shell_slots` is how many commands a worker process runs at a time; None leaves it to its slots.
    """
    from holdfast.jobs import shell

    if SHELL not in queue.registry.types():
        options: dict[str, Any] = {} if shell_slots is None else {"concurrency": shell_slots}
        queue.register(SHELL, shell.run_command, **options)
    queue.events.subscribe(shell.remove_logs)
