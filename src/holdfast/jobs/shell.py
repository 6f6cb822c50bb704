"""The type `shell`: a command run by the system's shell, with its output in a log file.

The command runs in its own session and process group, and is ended as a whole: with SIGTERM, a grace period
and SIGKILL on a timeout or a cancellation, and by the kernel when the worker dies and its end of a pipe
closes. Processes that left the group are found by a marker in their environment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from socket import gethostname
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.context import Context
from holdfast.core.clock import from_datetime, to_iso
from holdfast.core.job import base_type
from holdfast.events import Event, JobDeleted, JobsPruned
from holdfast.jobs import SHELL
from holdfast.jobs.command import run_in_group
from holdfast.jobs.errors import CommandFailed, CommandNotStarted, how_it_ended
from holdfast.jobs.output_log import OutputLog, SharedTail, log_path
from holdfast.text import one_line

LONGEST_COMMAND = 128 * 1024 - 1
"""The maximum length of one argument on Linux, in bytes."""

_Positive = Annotated[int, Meta(ge=1, le=2**62)]


class Limits(Struct, rename="camel", forbid_unknown_fields=True):
    """Limits that the operating system enforces on a command."""

    memory_bytes: _Positive | None = None
    cpu_seconds: _Positive | None = None
    open_files: _Positive | None = None
    processes: _Positive | None = None


class Command(Struct, rename="camel", forbid_unknown_fields=True):
    """The payload of a shell job. `cwd` defaults to the worker's folder; `env` adds to its environment."""

    command: Annotated[str, Meta(min_length=1, max_length=LONGEST_COMMAND)]
    cwd: str | None = None
    env: dict[Annotated[str, Meta(pattern=r"^[^=]+$")], str] | None = None
    limits: Limits | None = None


def run_command(payload: Command, ctx: Context) -> dict[str, Any]:
    """Run a command; the result contains its exit code and the end of its output."""
    job, others = ctx.job, ctx.shared_output
    before = others.last_tail() if others is not None and job.version > 1 else None
    if before is not None and before.host == gethostname():
        before = None  # it is in the log file
    log = OutputLog(job.id, ctx.setting("max_log_bytes"), fresh=job.version == 1, before=before)
    shared = None if others is None else SharedTail(log, others.store_tail)
    begun = to_iso(from_datetime((job.started_at or job.updated_at).replace(microsecond=0)))
    log.heading(f"attempt {ctx.attempt}, {begun}, worker {job.worker_id}")
    try:
        ran = run_in_group(
            ctx,
            payload.command,
            cwd=payload.cwd,
            environment={**os.environ, **(payload.env or {})},
            write=log.write if shared is None else shared.write,
            preparation=_ulimits(payload.limits),
        )
        log.end(f"stopped, {how_it_ended(ran.exit_code)}" if ran.was_stopped else how_it_ended(ran.exit_code))
    except CommandNotStarted as error:
        log.end(f"not started: {error.problem}")
        raise
    finally:
        if shared is not None:
            shared.flush()
    outcome: dict[str, Any] = {"exitCode": ran.exit_code, "tail": log.tail_text()}
    if log.trouble is not None:
        outcome["log"] = log.trouble
    ctx.detail(**outcome)
    if ran.was_stopped:
        ctx.check()
    if ran.exit_code != 0:
        raise CommandFailed(ran.exit_code, _last_line(outcome["tail"]))
    return outcome


def remove_logs(event: Event) -> None:
    """Remove the log files of deleted jobs."""
    gone: Sequence[str] = ()
    if isinstance(event, JobsPruned):
        gone = event.job_ids
    elif isinstance(event, JobDeleted) and base_type(event.type) == SHELL:
        gone = [event.job_id]
    for job_id in gone:
        with suppress(OSError):  # most types have none
            os.unlink(log_path(job_id))


def _last_line(text: str) -> str:
    lines = text.rstrip().splitlines()
    return one_line(lines[-1].strip())[:200] if lines else ""


def _ulimits(limits: Limits | None) -> list[str]:
    """Shell lines that set the limits, all of them or none."""
    if limits is None:
        return []
    memory = None if limits.memory_bytes is None else max(1, limits.memory_bytes // 1024)
    wanted = {
        "ulimit -v {}": memory,
        "ulimit -t {}": limits.cpu_seconds,
        "ulimit -n {}": limits.open_files,
        # bash says -u, dash says -p, which in bash would be the size of pipes.
        "ulimit -u {0} 2>/dev/null || ulimit -p {0}": limits.processes,
    }
    return [line.format(value) for line, value in wanted.items() if value is not None]
