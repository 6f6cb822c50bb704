"""queuectl enqueue --file: many jobs, one JSON object a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from holdfast.bulk import Bulk
from holdfast.cli.command import DONE, Call, UsageError
from holdfast.cli.enqueue import job_from, parse_object
from holdfast.cli.output import Progress, progress_bar
from holdfast.errors import ConfigError, HoldfastError

MOST_AT_ONCE = 100_000
LONGEST_LINE = 600 * 1024 * 1024


def enqueue_file(call: Call) -> int:
    """Check every line, then store them all; print the ids."""
    arguments = call.arguments
    _refuse_other_flags(call)
    chunk = arguments.chunk
    if chunk is not None and not 1 <= chunk <= MOST_AT_ONCE:
        raise UsageError(f"queuectl enqueue: --chunk must be from 1 to {MOST_AT_ONCE}, not {chunk}")
    with _opened(arguments.file) as file, call.queue.bulk() as bulk:
        with progress_bar("checking") as progress:
            _check(file, bulk, limited=chunk is None, progress=progress)
        ids = []
        with progress_bar("storing") as progress:
            for id in bulk.store(chunk, lambda count: progress(count, bulk.count)):
                if call.wants_json:
                    ids.append(id)
                else:
                    sys.stdout.write(f"{id}\n")
    if call.wants_json:
        from holdfast.cli.output import print_json

        print_json({"ids": ids, "count": len(ids)})
    return DONE


def _refuse_other_flags(call: Call) -> None:
    given = vars(call.arguments)
    for name in sorted(given.keys() - {"file", "chunk", "database", "json"}):
        if given[name] is not None:
            flag = "a JSON object" if name == "job" else f"--{name.replace('_', '-')}"
            raise UsageError(f"queuectl enqueue: --file and {flag} exclude each other")


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with open(name, "rb") as file:
        yield file


def _check(file: IO[bytes], bulk: Bulk, *, limited: bool, progress: Progress) -> None:
    number = 0
    while raw := file.readline(LONGEST_LINE):
        number += 1
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if line:
                type, payload, options = job_from(parse_object(line, "it"))
                bulk.add(number, type, payload, options)
        except UnicodeDecodeError:
            raise ConfigError(f"line {number}: it is not UTF-8; nothing was stored") from None
        except HoldfastError as error:
            raise ConfigError(f"line {number}: {error}; nothing was stored") from None
        if limited and bulk.count > MOST_AT_ONCE:
            raise ConfigError(
                f"there are more than {MOST_AT_ONCE} jobs, too many for one commit; nothing was stored",
                hint="say --chunk N to commit every N lines",
            )
        progress(number)
