"""What handlers do: count themselves, or note when they started, where the bench process can read it.

A count is a number in a file of each thread that is mapped into memory, so that counting costs as little as a
handler that does nothing: no system call, no lock, no other process.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from itertools import count as numbers
from pathlib import Path

FOLDER = Path(os.environ.get("BENCH_TALLY", "."))
NOTES = "notes"

_mine = threading.local()
_numbers = numbers()


def count() -> None:
    try:
        _mine.counter[0] += 1
    except AttributeError:
        _mine.counter = _new_counter()
        _mine.counter[0] = 1


def _new_counter() -> memoryview:
    path = FOLDER / f"{os.getpid()}-{next(_numbers)}"
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")


def note(number: int) -> None:
    line = f"{number} {time.time_ns()}\n".encode()
    file = os.open(FOLDER / NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def count_notes() -> int:
    """How many jobs have noted their start."""
    path = FOLDER / NOTES
    return path.read_bytes().count(b"\n") if path.exists() else 0


def counted(folder: Path) -> dict[str, int]:
    """How many jobs have run so far, by process."""
    totals: dict[str, int] = {}
    for entry in os.scandir(folder):
        process, dash, _ = entry.name.partition("-")
        if dash:
            with open(entry.path, "rb") as file:
                totals[process] = totals.get(process, 0) + int.from_bytes(file.read(8), "little")
    return totals


def noted(folder: Path) -> dict[int, int]:
    """When each job that noted it has started, in ns since 1970."""
    try:
        lines = (folder / NOTES).read_text().splitlines()
    except FileNotFoundError:
        return {}
    return {int(number): int(at) for number, at in map(str.split, lines)}
