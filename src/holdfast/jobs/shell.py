"""The type `shell`: a command of the system's shell, with its output in a log file.

The command runs in a session and process group of its own. It is ended as a whole: by TERM, a grace and KILL
at a timeout or a cancellation, and by the kernel when the worker dies, whose end of a pipe then closes.
Processes that left the group are found by a mark in their environment.
"""

from __future__ import annotations

import errno
import os
import subprocess
from socket import gethostname
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.context import Context
from holdfast.core.clock import from_datetime, to_iso
from holdfast.core.job import base_type
from holdfast.errors import CommandFailed, CommandNotStarted, one_line
from holdfast.events import Event, JobDeleted, JobsPruned
from holdfast.jobs import SHELL
from holdfast.jobs.output_log import OutputLog, SharedTail, log_path
from holdfast.jobs.process_group import RUN_MARK, ProcessGroup, end_marked, marks_of
from holdfast.store.protocol import LogTail

LONGEST_COMMAND = 128 * 1024 - 1
"""Bytes that Linux takes as one argument of a program."""

_Positive = Annotated[int, Meta(ge=1, le=2**62)]


class Limits(Struct, rename="camel", forbid_unknown_fields=True):
    """What the operating system holds a command to."""

    memory_bytes: _Positive | None = None
    cpu_seconds: _Positive | None = None
    open_files: _Positive | None = None
    processes: _Positive | None = None


class Command(Struct, rename="camel", forbid_unknown_fields=True):
    """The payload of a shell job. `cwd` is the worker's folder by default; `env` comes on top of its own."""

    command: Annotated[str, Meta(min_length=1, max_length=LONGEST_COMMAND)]
    cwd: str | None = None
    env: dict[Annotated[str, Meta(pattern=r"^[^=]+$")], str] | None = None
    limits: Limits | None = None


def run_command(payload: Command, ctx: Context) -> dict[str, Any]:
    """Run a command to its end; its exit code and the end of its output are the result."""
    job = ctx.job
    if job.version > 1:
        end_marked(f"{RUN_MARK}={job.origin}")  # an earlier attempt may have left something on this machine
    log = OutputLog(
        job.id, ctx.setting("max_log_bytes"), anew=job.version == 1, before=_printed_elsewhere(ctx)
    )
    shared = SharedTail(log, ctx.keep_output) if ctx.shares_output else None
    log.heading(f"attempt {ctx.attempt}, {_now(job)}, worker {job.worker_id}")
    environment = {**os.environ, **(payload.env or {}), **marks_of(job)}
    try:
        group = ProcessGroup(
            payload.command,
            cwd=payload.cwd,
            environment=environment,
            mark=RUN_MARK,
            preparation=_ulimits(payload.limits),
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.end(f"not started: {error}")
        if shared is not None:
            shared.keep()
        too_long = isinstance(error, OSError) and error.errno == errno.E2BIG  # it will not become shorter
        raise CommandNotStarted(str(error), permanent=too_long) from None
    with group:
        ctx.on_interrupt(group.stop)
        exit_code = group.run(log.write if shared is None else shared.write)
    log.end(_how(exit_code, group.was_stopped))
    if shared is not None:
        shared.keep()
    outcome: dict[str, Any] = {"exitCode": exit_code, "tail": log.tail_text()}
    if log.trouble is not None:
        outcome["log"] = log.trouble
    ctx.detail(**outcome)
    if group.was_stopped:
        ctx.check()
    if exit_code != 0:
        raise CommandFailed(exit_code, _last_line(outcome["tail"]))
    return outcome


def remove_logs(event: Event) -> None:
    """Remove the log files of jobs that are gone."""
    gone: tuple[str, ...] = ()
    if isinstance(event, JobsPruned):
        gone = tuple(event.job_ids)
    elif isinstance(event, JobDeleted) and base_type(event.type) == SHELL:
        gone = (event.job_id,)
    for job_id in gone:
        try:
            os.unlink(log_path(job_id))
        except OSError:
            continue  # most types have none


def _printed_elsewhere(ctx: Context) -> LogTail | None:
    """What earlier attempts have printed, if the last of them ran on another machine."""
    before = ctx.kept_output() if ctx.shares_output and ctx.job.version > 1 else None
    return before if before is not None and before.host != gethostname() else None


def _now(job: Any) -> str:
    return to_iso(from_datetime(job.started_at or job.updated_at))


def _how(exit_code: int, was_stopped: bool) -> str:
    how = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return f"stopped, {how}" if was_stopped else how


def _last_line(text: str) -> str:
    lines = text.rstrip().splitlines()
    return one_line(lines[-1].strip())[:200] if lines else ""


def _ulimits(limits: Limits | None) -> list[str]:
    """Shell lines that set the limits, each or none."""
    if limits is None:
        return []
    lines = []
    if limits.memory_bytes is not None:
        lines.append(f"ulimit -v {max(1, limits.memory_bytes // 1024)}")
    if limits.cpu_seconds is not None:
        lines.append(f"ulimit -t {limits.cpu_seconds}")
    if limits.open_files is not None:
        lines.append(f"ulimit -n {limits.open_files}")
    if limits.processes is not None:
        # bash says -u, dash says -p, which in bash would be the size of pipes.
        lines.append(f"ulimit -u {limits.processes} 2>/dev/null || ulimit -p {limits.processes}")
    return lines
