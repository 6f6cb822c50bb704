"""The log file of a shell job: what its commands print, every attempt under a heading, with a cap.

Beyond the cap the head and the tail are kept. The file is compacted in place: what lies between is
overwritten by the newest part whenever the cap is reached, so memory stays flat and the head is written once.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from io import BytesIO
from shutil import copyfileobj
from typing import BinaryIO, NamedTuple

from holdfast.config import home_folder, make_private_folder
from holdfast.core.job import Job, base_type
from holdfast.errors import NoOutput
from holdfast.jobs import SHELL

TAIL_BYTES = 8 * 1024
"""How much of the end of the output a result or a failure carries."""

_MARK = re.compile(rb"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n")
_LONGEST_MARK = 64
_CHUNK = 64 * 1024
_INSIDE = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that no character begins with
_LONGEST_TAIL = 2 * 1024 * 1024


def log_folder() -> str:
    return os.path.join(home_folder(), "logs")


def log_path(job_id: str) -> str:
    """Where the output of a job is kept. Ids hold no slash, so it stays inside the folder."""
    return os.path.join(log_folder(), f"{job_id}.log")


def open_log(job_id: str) -> BinaryIO | None:
    """The log of a job, if there is one here."""
    try:
        return open(log_path(job_id), "rb", buffering=0)
    except FileNotFoundError:
        return None


def require_output(job: Job) -> None:
    """Raise NoOutput for a job of a type whose output is not kept."""
    if base_type(job.type) != SHELL:
        raise NoOutput(f"job {job.id!r} is of type {job.type}; only {SHELL} jobs have output that is kept")


def output_of(job: Job) -> BinaryIO:
    """The output of a job as it is now; empty before its first attempt. Raises NoOutput if it is not here."""
    require_output(job)
    file = open_log(job.id)
    if file is None and job.started_at is not None:
        raise NoOutput(
            f"the output of job {job.id!r} is not here",
            hint=f"it was kept in {log_folder()} on the machine of its worker",
        )
    return file or BytesIO()


def from_whole_character(data: bytes) -> bytes:
    """UTF-8 that was cut at its beginning, from its first whole character on."""
    return data[:3].lstrip(_INSIDE) + data[3:]


class Gap(NamedTuple):
    """What was cut out of a log: where its mark begins and ends, and how much is missing there."""

    begin: int
    end: int
    left_out: int


def find_gap(file: BinaryIO, limit: int) -> Gap:
    """The gap in a log that was written with this limit; an empty one if nothing was cut out."""
    head = limit // 2
    file.seek(head)
    mark = _MARK.match(file.read(_LONGEST_MARK))
    return Gap(head, head + mark.end(), int(mark[1])) if mark else Gap(head, head, 0)


class Follower:
    """Reads a log while it is written: everything once, with a mark for what was cut out before that."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._seen = 0  # in the whole output, with what was left out

    def go_on_with(self, file: BinaryIO) -> None:
        """Another file has taken the log's place, with what it held."""
        self._file.close()
        self._file = file

    def is_in(self, path: str) -> bool:
        """Whether the file that is read is the one at a path."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True  # deleted: there is nothing else to read

    def read(self, limit: int) -> bytes:
        """The next chunk of what is new, in a log of this limit; empty if nothing is."""
        while True:
            gap = find_gap(self._file, limit)
            whole = self._file.seek(0, os.SEEK_END) - (gap.end - gap.begin) + gap.left_out
            if gap.left_out and self._seen > whole:  # the limit was lowered, and more cut out than was seen
                self._seen = gap.begin + gap.left_out
            missing = gap.begin + gap.left_out - self._seen if self._seen >= gap.begin else 0
            seen = self._seen + max(0, missing)
            before = seen < gap.begin
            self._file.seek(seen if before else seen - gap.left_out + gap.end - gap.begin)
            data = self._file.read(min(_CHUNK, gap.begin - seen) if before else _CHUNK)
            if find_gap(self._file, limit) == gap:  # else it was cut while we read
                break
        self._seen = seen + len(data)
        mark = b"\n[... %d bytes left out ...]\n" % missing if missing > 0 else b""
        return mark + data


class OutputLog:
    """Takes the output of one attempt. A disk that is full costs output, never the job."""

    def __init__(self, job_id: str, limit: int, *, anew: bool) -> None:
        """`anew` drops what an older job of the same id has left."""
        self._limit = limit
        self._file: BinaryIO | None = None
        self.tail = b""
        self.trouble: str | None = None
        try:
            make_private_folder(log_folder())
            self._file = _take_over(log_path(job_id), anew=anew)
            self._size = self._file.seek(0, os.SEEK_END)
        except OSError as error:
            self._give_up(error)

    def heading(self, text: str) -> None:
        self._append(f"--- {text} ---\n".encode())

    def write(self, output: bytes) -> None:
        self.tail = (self.tail + output)[-TAIL_BYTES:]
        self._append(output)

    def end(self, text: str) -> None:
        """The line below an attempt's output, and the last word."""
        if self.tail and not self.tail.endswith(b"\n"):
            self._append(b"\n")
        self.heading(text)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def tail_text(self) -> str:
        """The end of this attempt's output as text."""
        tail = from_whole_character(self.tail) if len(self.tail) == TAIL_BYTES else self.tail
        return tail.decode("utf-8", "replace").replace("\x00", "\N{SYMBOL FOR NULL}")

    def _append(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            if self._size + len(data) > self._limit:
                data = self._compact(data)
            self._file.seek(self._size)
            self._size += _write_all(self._file, data)
        except OSError as error:
            self._give_up(error)

    def _compact(self, data: bytes) -> bytes:
        """Cut out the middle: the head stays. Returns what comes behind it: a mark and the newest part."""
        assert self._file is not None
        head, tail = self._limit // 2, min(self._limit // 4, _LONGEST_TAIL)
        if self._size < head:  # much at once: the head is not full yet
            fitting = data[: head - self._size]
            self._file.seek(self._size)
            self._size += _write_all(self._file, fitting)
            data = data[len(fitting) :]
        gap = find_gap(self._file, self._limit)
        begin = gap.end
        keep_from = max(begin, self._size - tail)
        self._file.seek(keep_from)
        kept = self._file.read(self._size - keep_from) + data
        left_out = gap.left_out + keep_from - begin + max(0, len(kept) - tail)
        # Shorter first, then all of it in one write: who follows the file sees the old, nothing, or the new.
        self._file.truncate(head)
        self._size = head
        return b"\n[... %d bytes left out ...]\n%b" % (left_out, kept[-tail:])

    def _give_up(self, error: OSError) -> None:
        self.trouble = f"the output could not be kept: {error.strerror}"
        self.close()


def _take_over(path: str, *, anew: bool) -> BinaryIO:
    """Put a file of our own in the log's place, with what it held.

    So an earlier attempt that does not know yet that it is over writes to a file that nobody reads.
    """
    part = f"{path}.{os.getpid()}.new"
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        if not anew:
            with suppress(FileNotFoundError), open(path, "rb", opener=_opener) as old:
                copyfileobj(old, file)
        os.replace(part, path)
    except BaseException:
        file.close()
        with suppress(OSError):
            os.unlink(part)
        raise
    return file


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _write_all(file: BinaryIO, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
    return len(data)
