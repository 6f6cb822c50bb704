"""Where events are announced: to the logger `holdfast` and to a queue's subscribers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.events.event import LOGGER, WARNING, Event, JobEvent

if TYPE_CHECKING:
    from logging import Logger

_logger: Logger | None = None


def _heard_by(level: int) -> Logger | None:
    """The logger, if it takes a level.

    Where nothing has imported logging, nobody has asked for less than a warning; then it is not loaded, which
    is a tenth of what `queuectl enqueue` takes to start.
    """
    global _logger
    if _logger is None:
        if level < WARNING and "logging" not in sys.modules:
            return None
        import logging

        _logger = logging.getLogger(LOGGER)
    return _logger if _logger.isEnabledFor(level) else None


Subscriber = Callable[[Event], None]


class Events:
    """Where a queue's events are announced. `wanted` lets a hot loop skip events that nobody receives."""

    def __init__(self, log_jobs: Callable[[str], str] = lambda _type: "all") -> None:
        """`log_jobs` gives the setting of a type: which events of its jobs are logged."""
        self._log_jobs = log_jobs
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event, in the thread where it happens.

        Returns a function that unsubscribes it.
        """
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(s for s in self._subscribers if s is not subscriber)

        return unsubscribe

    def wanted(self, kind: type[Event]) -> bool:
        return bool(self._subscribers) or _heard_by(kind.level) is not None

    def emit(self, event: Event) -> None:
        self.emit_all((event,))

    def emit_all(self, events: Sequence[Event]) -> None:
        """Announce what happened at one time."""
        _log([event for event in events if self._is_logged(event)])
        for subscriber in self._subscribers:
            for event in events:
                try:
                    subscriber(event)
                except Exception:
                    # A broken listener must not take the work down with it.
                    import logging

                    logging.getLogger(LOGGER).exception("a subscriber of %s failed", event.name)

    def _is_logged(self, event: Event) -> bool:
        if _heard_by(event.level) is None:
            return False
        logged = self._log_jobs(event.type) if isinstance(event, JobEvent) else "all"
        return logged == "all" or (logged == "failures" and event.level >= WARNING)


def _log(events: Sequence[Event]) -> None:
    """All at once where they go to our own handler and nowhere else: a record costs more than its line."""
    if not events or _logger is None:
        return
    handlers: list[Any] = [*_logger.handlers]
    is_elsewhere = len(handlers) != 1 or _logger.propagate or _logger.filters
    if not is_elsewhere and getattr(handlers[0], "takes_holdfast_events", False):
        handlers[0].handle_events(events)
    else:
        for event in events:
            _logger.log(event.level, event)
