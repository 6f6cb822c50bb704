"""Ids of jobs and workers: UUIDv7, increasing within a process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from struct import unpack

_lock = threading.RLock()
_last = 0


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # the old one may be held by a thread that the child does not have


os.register_at_fork(after_in_child=_after_fork)


def new_id(random: int = 0) -> str:
    """A new UUIDv7: 48 bits of milliseconds, 12 of their fraction, 62 random, of a number if that is given.

    Within a process each id sorts after the one before it, also when the clock stands still or steps back.
    """
    global _last
    now = time.time_ns()
    # The 60 bits that order an id: milliseconds, then the fraction of the millisecond in 1/4096.
    tick = (now // 1_000_000 << 12) | (now % 1_000_000 * 4096 // 1_000_000)
    with _lock:
        _last = tick = max(tick, _last + 1)
    random = (random or int.from_bytes(os.urandom(8), "big")) & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
    return (
        f"{tick >> 28:08x}-{tick >> 12 & 0xFFFF:04x}-7{tick & 0xFFF:03x}-"
        f"{random >> 48:04x}-{random & 0xFFFF_FFFF_FFFF:012x}"
    )


def new_ids() -> Iterator[str]:
    """New ids for many jobs, with random numbers for 256 of them from one system call.

    For use within one call: what is read ahead must not be there twice after a fork, or where a snapshot of
    the machine is resumed twice.
    """
    while True:
        for random in unpack("256Q", os.urandom(8 * 256)):
            yield new_id(random)
