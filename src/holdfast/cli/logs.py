"""queuectl logs: the output of a shell job, also while it runs."""

from __future__ import annotations

import codecs
import io
import re
import sys
import time
from shutil import copyfileobj
from typing import Protocol

from holdfast.cli.command import DONE, Call, Parser, command
from holdfast.cli.look import job_named
from holdfast.cli.output import on_terminal, print_json
from holdfast.core.job import Job
from holdfast.errors import one_line
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
_PARTS = re.compile(r"[^\n\t]+")


def _arguments(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="the job's id")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has finished")


@command("queuectl logs job1", "queuectl logs job1 --follow", arguments=_arguments)
def logs(call: Call) -> int:
    """Print the output of a shell job, every attempt under its own heading.

    On a terminal, control characters are shown, not obeyed; elsewhere every byte is printed as it is.
    """
    job = job_named(call)
    if call.arguments.follow and not job.is_finished:
        require_output(job)
        _follow(call, job)
        return DONE
    with output_of(job, call.queue.store) as file:
        if call.wants_json:
            print_json({"id": job.id, "log": file.read().decode("utf-8", "replace")})
        else:
            out = _output()
            copyfileobj(file, out)
            out.end()
    return DONE


class _Output(Protocol):
    """Where the bytes of a log go."""

    def write(self, data: bytes, /) -> object: ...

    def end(self) -> None: ...


class _Plain:
    """As they are: for files and other programs."""

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def end(self) -> None: ...


class _Escaped:
    """As text in which nothing can act on a terminal but the ends of lines and tabs."""

    def __init__(self) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=False)

    def write(self, data: bytes, final: bool = False) -> None:
        text = self._decoder.decode(data, final).replace("\r\n", "\n")
        sys.stdout.write(_PARTS.sub(lambda part: one_line(part[0]), text))
        sys.stdout.flush()

    def end(self) -> None:
        """What was cut at the end is shown as far as it came."""
        self.write(b"", final=True)


def _output() -> _Output:
    return _Escaped() if on_terminal() else _Plain()


def _follow(call: Call, job: Job) -> None:
    """Print what is there and what comes, until the job is finished and all of it was printed."""
    store = call.queue.store
    out = _output()
    follower: Follower | None = None
    from_afar = TailFollower(job.id, store)
    while True:
        current = call.queue.get(job.id)
        finished = current is None or current.is_finished  # asked before the last look at the output
        is_far = is_elsewhere(job.id, store)
        if is_far:
            out.write(from_afar.read())
        else:
            follower = _print_new(out, follower, job.id, call.queue.settings().get("max_log_bytes", job.type))
        if finished:
            out.end()
            return
        time.sleep(_PAUSE_FROM_AFAR if is_far else _PAUSE)


def _print_new(out: _Output, follower: Follower | None, job_id: str, limit: int) -> Follower | None:
    """Print what has come; returns who goes on with it, if there is a log by now."""
    if follower is None:
        file = open_log(job_id)
        follower = None if file is None else Follower(file)
    if follower is None:
        return None
    is_last = follower.is_in(log_path(job_id))
    while data := follower.read(limit):
        out.write(data)
    if not is_last and (file := open_log(job_id)) is not None:
        follower.go_on_with(file)
        return _print_new(out, follower, job_id, limit)
    return follower
