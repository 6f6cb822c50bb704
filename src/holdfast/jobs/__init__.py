"""The built-in job types, each written like a user's own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.core.job import base_type

if TYPE_CHECKING:
    from holdfast.handlers.handler import Handler
    from holdfast.queue import Queue

SHELL = "shell"
"""The type of shell jobs."""

CREATE_FILE = "create_file"
DELETE_FILE = "delete_file"
WEBHOOK = "webhook"
SYNC_AWS = "sync_aws"
CLAUDE_EXTRACTION = "claude_extraction"

BUILT_IN = frozenset({SHELL, CREATE_FILE, DELETE_FILE, WEBHOOK, SYNC_AWS, CLAUDE_EXTRACTION})
"""The built-in types. Over HTTP, they are accepted only if the operator allows them."""

FILE_TYPES = frozenset({CREATE_FILE, DELETE_FILE, CLAUDE_EXTRACTION})
"""The types that change files, below the roots of their worker."""

_LIBRARIES = {WEBHOOK: "httpx", SYNC_AWS: "boto3"}
"""Libraries that a type needs beyond our own dependencies: the extras webhook and aws."""

CLAUDE_SECONDS = 600
"""Default timeout of an extraction, unless the job or the settings say otherwise."""

_SURELY_SHORT = 10_000


def install(queue: Queue, *, shell_slots: int | None = 1) -> None:
    """Let a queue's workers run the built-in types, except those that the application handles itself.

    `shell_slots` is how many commands a worker process runs at a time; with None, only its slots limit them.
    Types whose library is not installed are left to workers that have it.
    """
    from importlib.util import find_spec

    from holdfast.jobs.shell import remove_logs

    for type in sorted(BUILT_IN - set(queue.registry.types())):
        if type in _LIBRARIES and find_spec(_LIBRARIES[type]) is None:
            continue
        definition = _definition(type)
        if type == SHELL and shell_slots is not None:
            definition["concurrency"] = shell_slots
        queue.register(type, **definition)
    queue.events.subscribe(remove_logs)


def checker(type: str, payload: object) -> Handler | None:
    """What validates and prepares a payload of a built-in type when it is enqueued, whoever will run it.

    None for other types, and for a plain command, which needs no validation: enqueueing one doesn't load the
    code that runs commands.
    """
    base = base_type(type)
    if base not in BUILT_IN or (base == SHELL and _is_plain_command(payload)):
        return None
    return _checker(base)


@cache
def _checker(type: str) -> Handler:
    from holdfast.handlers.handler import Handler

    it = _definition(type)
    return Handler(type, it["handler"], whole=True, prepare=it.get("prepare"))


def _is_plain_command(payload: object) -> bool:
    if not isinstance(payload, dict) or payload.keys() != {"command"}:
        return False
    command = payload["command"]
    return isinstance(command, str) and 0 < len(command) < _SURELY_SHORT


def _definition(type: str) -> dict[str, Any]:
    """The arguments of `Queue.register` for a type. Loads only that type's modules."""
    from holdfast.handlers.handler import Reconcile

    if type == SHELL:
        from holdfast.jobs import shell

        return {"handler": shell.run_command}
    if type == WEBHOOK:
        from holdfast.jobs import webhook

        return {"handler": webhook.call}
    if type == SYNC_AWS:
        from holdfast.jobs import aws

        how = Reconcile(aws.differs, subject=aws.subject, on_start=False)
        return {"handler": aws.sync, "reconcile": how}
    from holdfast.jobs import files

    if type == DELETE_FILE:
        how = Reconcile(files.not_gone, files.subject)
        return {"handler": files.delete_file, "prepare": files.with_whole_path, "reconcile": how}
    how = Reconcile(files.not_as_written, files.subject)
    if type == CREATE_FILE:
        return {"handler": files.create_file, "prepare": files.with_whole_path, "reconcile": how}
    from holdfast.jobs import claude

    return {"handler": claude.extract, "prepare": claude.freeze, "reconcile": how, "timeout": CLAUDE_SECONDS}
