"""The log file of a shell job: what its commands print, every attempt under a heading, with a cap.

Beyond the cap the head and the tail are kept. The file is compacted in place: what lies between is
overwritten by the newest part whenever the cap is reached, so memory stays flat and the head is written once.
"""

from __future__ import annotations

import os
import re
from typing import BinaryIO

from holdfast.config import home_folder

TAIL_BYTES = 8 * 1024
"""How much of the end of the output a result or a failure carries."""

_GAP = re.compile(rb"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n")
_GAP_LENGTH = 64
_LONGEST_TAIL = 2 * 1024 * 1024


def log_folder() -> str:
    return os.path.join(home_folder(), "logs")


def log_path(job_id: str) -> str:
    """Where the output of a job is kept. Ids hold no slash, so it stays inside the folder."""
    return os.path.join(log_folder(), f"{job_id}.log")


class OutputLog:
    """Takes the output of one attempt. A disk that is full costs output, never the job."""

    def __init__(self, job_id: str, limit: int, *, anew: bool) -> None:
        """`anew` drops what an older job of the same id has left."""
        self._limit = limit
        self._file: BinaryIO | None = None
        self.tail = b""
        self.trouble: str | None = None
        try:
            os.makedirs(log_folder(), mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if anew else 0)
            descriptor = os.open(log_path(job_id), flags, 0o600)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)
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
        tail = self.tail
        if len(tail) == TAIL_BYTES:  # it may begin inside a character
            tail = tail.lstrip(bytes(range(0x80, 0xC0)))
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
        """Cut out the middle: the head stays, and the newest part moves up to it behind a mark of the gap.

        Returns what is still to be written.
        """
        assert self._file is not None
        head, tail = self._limit // 2, min(self._limit // 4, _LONGEST_TAIL)
        if self._size < head:  # much at once: the head is not full yet
            fitting = data[: head - self._size]
            self._file.seek(self._size)
            self._size += _write_all(self._file, fitting)
            data = data[len(fitting) :]
        self._file.seek(head)
        gap = _GAP.match(self._file.read(_GAP_LENGTH))
        begin = head + (gap.end() if gap else 0)
        keep_from = max(begin, self._size - tail)
        self._file.seek(keep_from)
        kept = self._file.read(self._size - keep_from) + data
        left_out = (int(gap[1]) if gap else 0) + keep_from - begin + max(0, len(kept) - tail)
        self._file.seek(head)
        self._size = head + _write_all(self._file, b"\n[... %d bytes left out ...]\n" % left_out)
        self._file.truncate(self._size)
        return kept[-tail:]

    def _give_up(self, error: OSError) -> None:
        self.trouble = f"the output could not be kept: {error.strerror}"
        self.close()


def _write_all(file: BinaryIO, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
    return len(data)
