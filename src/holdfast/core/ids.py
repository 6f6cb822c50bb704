"""Ids of jobs and workers: UUIDv7, increasing within a process."""

from __future__ import annotations

import os
import threading
import time

_lock = threading.RLock()
_last = 0


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # the old one may be held by a thread that the child does not have


os.register_at_fork(after_in_child=_after_fork)


def new_id() -> str:
    """A new UUIDv7: 48 bits of milliseconds, 12 of their fraction, 62 random.

    Within a process each id sorts after the one before it, also when the clock stands still or steps back.
    """
    global _last
    now = time.time_ns()
    # The 60 bits that order an id: milliseconds, then the fraction of the millisecond in 1/4096.
    tick = (now // 1_000_000 << 12) | (now % 1_000_000 * 4096 // 1_000_000)
    with _lock:
        _last = tick = max(tick, _last + 1)
    random = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
    text = f"{tick >> 12:012x}7{tick & 0xFFF:03x}{random | 0x8000_0000_0000_0000:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
