"""queuectl logs: the output of a shell job, even while it runs."""

from __future__ import annotations

import codecs
import io
import re
import sys
import time
from shutil import copyfileobj

from holdfast.cli.command import Call, Command, argument, id_argument
from holdfast.cli.output import on_terminal, print_json
from holdfast.core.job import Job
from holdfast.jobs.output_log import (
    Follower,
    TailFollower,
    is_elsewhere,
    log_path,
    output_of,
    require_output,
)
from holdfast.queue import Queue
from holdfast.text import one_line

_PAUSE = 0.1
_PAUSE_FROM_AFAR = 0.5
_PARTS = re.compile(r"[^\n\t]+")


@Command(
    "queuectl logs job1",
    "queuectl logs job1 --follow",
    arguments=(id_argument, argument("-f --follow", "follow the output until the job has finished")),
)
def logs(call: Call) -> None:
    """Print the output of a shell job, with a heading for each attempt.

    On a terminal, control characters are shown as text; in a pipe or a file, every byte is printed unchanged.
    """
    job = call.queue.require(call.arguments.id)
    out = Output()
    if call.arguments.follow and not job.is_finished:
        require_output(job)
        _follow(call.queue, job, out)
    else:
        with output_of(job, call.queue) as file:
            if call.wants_json:
                print_json({"id": job.id, "log": file.read().decode("utf-8", "replace")})
                return
            copyfileobj(file, out)
    out.end()


class Output:
    """Where the bytes of a log go. Files and other programs get them as they are, a terminal as text in which
    nothing can act on it but the ends of lines and tabs."""

    def __init__(self) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=False) if on_terminal() else None

    def write(self, data: bytes, final: bool = False) -> None:
        if self._decoder is None:
            sys.stdout.buffer.write(data)
        else:
            text = self._decoder.decode(data, final).replace("\r\n", "\n")
            sys.stdout.write(_PARTS.sub(lambda part: one_line(part[0]), text))
        sys.stdout.flush()

    def end(self) -> None:
        """Print a multi-byte character that was cut off at the end as far as it arrived."""
        self.write(b"", final=True)


def _follow(queue: Queue, job: Job, out: Output) -> None:
    """Print the output so far and whatever follows, until the job has finished and all of it is printed."""
    follower = Follower(log_path(job.id))
    from_afar = TailFollower(job.id, queue)
    while True:
        current = queue.get(job.id)
        finished = current is None or current.is_finished  # asked before the last look at the output
        is_far = is_elsewhere(job.id, queue)
        if is_far:
            out.write(from_afar.read())
        else:
            limit = queue.settings().get("max_log_bytes", job.type)
            while data := follower.read(limit):
                out.write(data)
        if finished:
            return
        time.sleep(_PAUSE_FROM_AFAR if is_far else _PAUSE)
