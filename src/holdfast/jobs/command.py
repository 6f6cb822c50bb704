"""Running a command for an attempt, in a marked process group that ends with it."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.context import Context
from holdfast.jobs.errors import CommandNotStarted
from holdfast.system.process_group import MARKS, RUN_MARK, ProcessGroup, end_marked


class Ran(NamedTuple):
    """How a command ended: by itself, or because its attempt was stopped."""

    exit_code: int
    was_stopped: bool


def run_in_group(
    ctx: Context,
    command: str,
    *,
    cwd: str | None,
    environment: Mapping[str, str],
    write: Callable[[bytes], None],
    preparation: Sequence[str] = (),
) -> Ran:
    """Run a command to its end, and hand its output to `write`. Raises CommandNotStarted.

    `preparation` are lines of shell that come before it.
    """
    job = ctx.job
    marks = (job.worker_id or "", job.origin, job.id, str(job.attempts))
    if job.version > 1:
        end_marked(f"{RUN_MARK}={job.origin}")  # an earlier attempt may have left something on this machine
    try:
        group = ProcessGroup(
            command,
            cwd=cwd,
            environment={**environment, **dict(zip(MARKS, marks, strict=True))},
            mark=RUN_MARK,
            preparation=preparation,
        )
    except (OSError, subprocess.SubprocessError) as error:
        too_long = isinstance(error, OSError) and error.errno == errno.E2BIG  # it will not become shorter
        raise CommandNotStarted(str(error), permanent=too_long) from None
    with group:
        ctx.on_interrupt(group.stop)
        return Ran(group.run(write), group.was_stopped)
