"""queuectl logs: the output of a shell job, also while it runs."""

from __future__ import annotations

import sys
import time
from shutil import copyfileobj

from holdfast.cli.command import DONE, Call, Parser, command
from holdfast.cli.look import job_named
from holdfast.cli.output import print_json
from holdfast.core.job import Job
from holdfast.jobs.output_log import (
    Follower,
    TailFollower,
    is_elsewhere,
    log_path,
    open_log,
    output_of,
    require_output,
)

_PAUSE = 0.1
_PAUSE_FROM_AFAR = 0.5


def _arguments(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="the job's id")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has finished")


@command("queuectl logs job1", "queuectl logs job1 --follow", arguments=_arguments)
def logs(call: Call) -> int:
    """Print the output of a shell job, every attempt under its own heading."""
    job = job_named(call)
    if call.arguments.follow and not job.is_finished:
        require_output(job)
        _follow(call, job)
        return DONE
    with output_of(job, call.queue.store) as file:
        if call.wants_json:
            print_json({"id": job.id, "log": file.read().decode("utf-8", "replace")})
        else:
            copyfileobj(file, sys.stdout.buffer)
    return DONE


def _follow(call: Call, job: Job) -> None:
    """Print what is there and what comes, until the job is finished and all of it was printed."""
    store = call.queue.store
    follower: Follower | None = None
    from_afar = TailFollower(job.id, store)
    while True:
        current = call.queue.get(job.id)
        finished = current is None or current.is_finished  # asked before the last look at the output
        is_far = is_elsewhere(job.id, store)
        if is_far:
            sys.stdout.buffer.write(from_afar.read())
            sys.stdout.buffer.flush()
        else:
            follower = _print_new(follower, job.id, call.queue.settings().get("max_log_bytes", job.type))
        if finished:
            return
        time.sleep(_PAUSE_FROM_AFAR if is_far else _PAUSE)


def _print_new(follower: Follower | None, job_id: str, limit: int) -> Follower | None:
    """Print what has come; returns who goes on with it, if there is a log by now."""
    if follower is None:
        file = open_log(job_id)
        follower = None if file is None else Follower(file)
    if follower is None:
        return None
    is_last = follower.is_in(log_path(job_id))
    while data := follower.read(limit):
        sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    if not is_last and (file := open_log(job_id)) is not None:
        follower.go_on_with(file)
        return _print_new(follower, job_id, limit)
    return follower
