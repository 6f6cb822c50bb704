"""A queue's handlers by type, and the options that the code sets for each type."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.config import Value, parse_setting
from holdfast.core.check import text
from holdfast.core.job import base_type, check_type
from holdfast.errors import ConfigError, UnknownType
from holdfast.events import Events, HandlerRegistered, HandlerUnregistered

if TYPE_CHECKING:
    from holdfast.handlers.handler import Handler


def parse_handler_options(options: Mapping[str, object]) -> dict[str, Value]:
    """The options that the code sets for a type, validated as settings."""
    # Half a millisecond, wasted where there is no handler.
    from holdfast.handlers.options import HandlerOptions

    for key in options:
        if key not in HandlerOptions.__annotations__:
            allowed = ", ".join(sorted(HandlerOptions.__annotations__))
            raise ConfigError(f"there is no option {key!r}; allowed: {allowed}")
    return dict(parse_setting(key, value) for key, value in options.items())


class Registry:
    """The handlers of a queue. A lane (shell:media) is run by the handler of its base (shell)."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._handlers: dict[str, Handler] = {}
        self._options: dict[str, dict[str, Value]] = {}
        self._lock = threading.Lock()
        self.generation = 0

    def add(self, handler: Handler) -> None:
        with self._lock:
            if handler.type in self._handlers:
                raise ConfigError(
                    f"type {handler.type!r} already has a handler: {self._handlers[handler.type].function!r}",
                    hint="give one of them another name, or unregister the first",
                )
            self._handlers[handler.type] = handler
            self.generation += 1
        self._events.emit(HandlerRegistered(type=handler.type, executor=handler.executor))

    def remove(self, type: str) -> None:
        type = text("type", type)
        with self._lock:
            if self._handlers.pop(type, None) is None:
                raise UnknownType(type, list(self._handlers))
            self.generation += 1
        self._events.emit(HandlerUnregistered(type=type))

    def declare(self, type: str, **options: object) -> None:
        """Options for a type that come from the code but not from its handler's decorator."""
        parsed = parse_handler_options(options)
        with self._lock:
            name = check_type(type)
            self._options[name] = {**self._options.get(name, {}), **parsed}
            self.generation += 1

    def find(self, type: str) -> Handler | None:
        """The handler of a type, or of the type whose lane it is."""
        return self._handlers.get(type) or self._handlers.get(base_type(type))

    def require(self, type: str) -> Handler:
        handler = self.find(type)
        if handler is None:
            raise UnknownType(type, self.types())
        return handler

    def types(self) -> list[str]:
        return sorted(self._handlers)

    def handlers(self) -> list[Handler]:
        with self._lock:
            return list(self._handlers.values())

    def declared(self, name: str) -> Mapping[str, Value]:
        """The options that the code sets for a type or lane by this very name."""
        handler = self._handlers.get(name)
        said = self._options.get(name, {})
        return {**handler.options, **said} if handler else said

    def names_with(self, option: str) -> set[str]:
        """The types and lanes for which the code sets an option."""
        with self._lock:
            names = {*self._handlers, *self._options}
        return {name for name in names if option in self.declared(name)}
