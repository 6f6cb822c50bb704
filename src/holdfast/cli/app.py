"""Loading an application's queue from `pkg.module:queue`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from holdfast.errors import ConfigError
from holdfast.queue import Queue
from holdfast.text import one_line


def make_queue(app: str | None, database: str | None, *, create: bool = True) -> Queue:
    """The application's queue, or one of our own; --database overrides the application's database."""
    if app is None:
        return Queue(database, create=create)
    url = None if database is None else Queue(database).url  # before the application can change the folder
    queue = load_app(app)
    if url is not None:
        queue.close()
        queue.url = url
    queue.create = queue.create and create
    return queue


def load_app(name: str) -> Queue:
    """The queue that an application created, with its handlers. The current folder is searched first."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"--app {name!r} must have the form pkg.module:queue")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
    except Exception as error:
        raise ConfigError(f"--app {name!r}: {_describe(error)}") from None
    except SystemExit as error:
        raise ConfigError(
            f"--app {name!r}: {module_name} called exit ({error.code}) on import",
            hint="move the code that runs the program under `if __name__ == '__main__':`",
        ) from None
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Queue):
        raise ConfigError(f"--app {name!r}: {_what_is_there(module, attribute, found)}")
    return found


def _describe(error: Exception) -> str:
    """The error and where it was raised, on one line."""
    import traceback  # slow, and `enqueue` needs none of it

    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return one_line(f"{type(error).__name__}: {error}{place}")


def _what_is_there(module: Any, attribute: str, found: Any) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Queue))
    has = f"queues found: {', '.join(names)}" if names else "no holdfast.Queue found"
    if found is None:
        return f"module {module.__name__} has no attribute {attribute!r}; {has}"
    return f"{attribute} is a {type(found).__name__}, not a holdfast.Queue; {has}"
