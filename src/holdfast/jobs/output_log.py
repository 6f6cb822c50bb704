"""The log file of a shell job: what its commands print, every attempt under a heading, with a cap.

Beyond the cap the head and the tail are kept. The file is compacted in place: what lies between is
overwritten by the newest part whenever the cap is reached, so memory stays flat and the head is written once.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from shutil import copyfileobj
from socket import gethostname
from typing import BinaryIO, NamedTuple

from holdfast.config import home_folder, make_private_folder
from holdfast.core.job import Job, base_type
from holdfast.errors import NoOutput
from holdfast.jobs import SHELL
from holdfast.queue import Queue
from holdfast.store.records import LogTail

TAIL_BYTES = 8 * 1024
"""How much of the end of the output is stored in a result or a failure."""

SHARED_BYTES = 64 * 1024
"""How much of the output is kept in a database that other machines share."""

_TAIL_PAUSE = 1.0
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


def is_elsewhere(job_id: str, queue: Queue) -> bool:
    """Whether the output of a job is on another machine."""
    kept = queue.shared_output(job_id)
    return kept is not None and kept.host != gethostname()


def require_output(job: Job) -> None:
    """Raise NoOutput for a job of a type whose output is not stored."""
    if base_type(job.type) != SHELL:
        raise NoOutput(f"job {job.id!r} is of type {job.type}; only the output of {SHELL} jobs is stored")


def output_of(job: Job, queue: Queue) -> BinaryIO:
    """The output of a job as it is now, or as much of its end as the database has, if that is all there is.

    Empty before its first attempt. Raises NoOutput if it is not here.
    """
    require_output(job)
    kept = queue.shared_output(job.id)
    if kept is None or kept.host == gethostname():
        with suppress(FileNotFoundError):
            return open(log_path(job.id), "rb", buffering=0)
    if kept is not None:
        return BytesIO(TailFollower(job.id, queue).read())
    if job.started_at is not None:
        raise NoOutput(
            f"the output of job {job.id!r} is not on this machine",
            hint=f"look in {log_folder()} on the machine whose worker ran it",
        )
    return BytesIO()


def from_whole_character(data: bytes) -> bytes:
    """UTF-8 that was cut at its beginning, from its first whole character on."""
    return data[:3].lstrip(_INSIDE) + data[3:]


def _mark(left_out: int) -> bytes:
    return b"\n[... %d bytes left out ...]\n" % left_out


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

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = 0  # in the whole output, with what was left out

    def read(self, limit: int) -> bytes:
        """The next chunk of what is new, in a log of this limit; empty if nothing is.

        The log is opened each time: another file may have taken its place, with what it held.
        """
        try:
            with open(self._path, "rb", buffering=0) as file:
                return self._read(file, limit)
        except FileNotFoundError:
            return b""

    def _read(self, file: BinaryIO, limit: int) -> bytes:
        while True:
            gap = find_gap(file, limit)
            whole = file.seek(0, os.SEEK_END) - (gap.end - gap.begin) + gap.left_out
            if gap.left_out and self._seen > whole:  # the limit was lowered, and more cut out than was seen
                self._seen = gap.begin + gap.left_out
            missing = gap.begin + gap.left_out - self._seen if self._seen >= gap.begin else 0
            seen = self._seen + max(0, missing)
            before = seen < gap.begin
            file.seek(seen if before else seen - gap.left_out + gap.end - gap.begin)
            data = file.read(min(_CHUNK, gap.begin - seen) if before else _CHUNK)
            if find_gap(file, limit) == gap:  # else it was cut while we read
                break
        self._seen = seen + len(data)
        return (_mark(missing) if missing > 0 else b"") + data


class TailFollower:
    """The same for an output that is on another machine, by the ends of it that the database has."""

    def __init__(self, job_id: str, queue: Queue) -> None:
        self._job_id = job_id
        self._queue = queue
        self._seen = 0

    def read(self) -> bytes:
        """The output since the last call."""
        kept = self._queue.shared_output(self._job_id)
        if kept is None:
            return b""
        begin = kept.length - len(kept.tail)
        missing = begin - self._seen
        new = kept.tail[max(0, -missing) :]
        self._seen = max(self._seen, kept.length)
        return _mark(missing) + from_whole_character(new) if missing > 0 else new


class OutputLog:
    """Takes the output of one attempt. A disk that is full costs output, never the job."""

    def __init__(self, job_id: str, limit: int, *, fresh: bool, before: LogTail | None = None) -> None:
        """`fresh` drops what an older job of the same id has left. `before` is the end of what earlier
        attempts have printed, if the last of them was on another machine."""
        self._limit = limit
        self._path = log_path(job_id)
        self._size = 0
        self.length = 0
        """How much was ever printed, as far as this machine knows."""
        self._file: BinaryIO | None = None
        self.tail = b""
        self.trouble: str | None = None
        try:
            make_private_folder(log_folder())
            self._file = _take_over(self._path, fresh=fresh or before is not None)
            self._size = self._file.seek(0, os.SEEK_END)
            self.length = self._size
            if before is not None:
                self._append(before.tail)
                self.length = before.length
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

    def last(self, most: int) -> bytes:
        """The last bytes of all that is kept; may be called by another thread than the one that writes."""
        try:
            with open(self._path, "rb") as file:
                file.seek(max(0, self._size - most))
                return file.read(most)
        except OSError:
            return self.tail

    def tail_text(self) -> str:
        """The end of this attempt's output as text."""
        tail = from_whole_character(self.tail) if len(self.tail) == TAIL_BYTES else self.tail
        return tail.decode("utf-8", "replace").replace("\x00", "\N{SYMBOL FOR NULL}")

    def _append(self, data: bytes) -> None:
        if self._file is None:
            return
        length = len(data)
        try:
            if self._size + len(data) > self._limit:
                data = self._compact(data)
            self._file.seek(self._size)
            self._size += _write_all(self._file, data)
        except OSError as error:
            self._give_up(error)
        self.length += length

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
        return _mark(left_out) + kept[-tail:]

    def _give_up(self, error: OSError) -> None:
        self.trouble = f"the output could not be stored: {error.strerror}"
        self.close()


class SharedTail:
    """Keeps the end of a log where other machines can see it, about once a second while it grows."""

    def __init__(self, log: OutputLog, store_tail: Callable[[int, bytes], None]) -> None:
        self._log = log
        self._store_tail = store_tail
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def write(self, output: bytes) -> None:
        self._log.write(output)
        with self._lock:
            if self._timer is None:
                timer = threading.Timer(_TAIL_PAUSE, self._send_late)
                timer.name = "holdfast-tail"
                timer.daemon = True
                with suppress(RuntimeError):  # no more threads: others see it later, the command goes on
                    timer.start()
                    self._timer = timer

    def flush(self) -> None:
        """Store it as it is now; waits for what is on its way."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()
        self._send()

    def _send_late(self) -> None:
        with self._lock:
            self._timer = None
        self._send()

    def _send(self) -> None:
        self._store_tail(self._log.length, self._log.last(SHARED_BYTES))


def _take_over(path: str, *, fresh: bool) -> BinaryIO:
    """Put a file of our own in the log's place, with what it held.

    So an earlier attempt that does not know yet that it is over writes to a file that nobody reads.
    """
    part = f"{path}.{os.getpid()}.new"
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        if not fresh:
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
