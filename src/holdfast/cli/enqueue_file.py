"""queuectl enqueue --file: many jobs, one JSON object per line."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import IO

from holdfast.cli.command import Call, UsageError
from holdfast.cli.enqueue import job_from, parse_object
from holdfast.cli.output import Progress, print_json, progress_bar
from holdfast.enqueueing.bulk import Bulk
from holdfast.errors import ConfigError, HoldfastError

MOST_AT_ONCE = 100_000
LONGEST_LINE = 600 * 1024 * 1024


def enqueue_file(call: Call) -> None:
    """Check every line, then store them all; print the ids."""
    arguments = call.arguments
    _refuse_other_flags(call)
    chunk = arguments.chunk
    if chunk is not None:
        call.require_between("chunk", 1, MOST_AT_ONCE)
    with (
        nullcontext(sys.stdin.buffer) if arguments.file == "-" else open(arguments.file, "rb") as file,
        call.queue.bulk() as bulk,
    ):
        with progress_bar("checking") as progress:
            _check(file, bulk, limited=chunk is None, progress=progress)
        try:
            with progress_bar("storing") as progress:
                bulk.store(chunk, lambda count: progress(count, bulk.count))
        finally:
            if not call.wants_json:
                sys.stdout.writelines(f"{id}\n" for id in bulk.stored)
    if call.wants_json:
        print_json({"ids": list(bulk.stored), "count": len(bulk.stored)})


def _refuse_other_flags(call: Call) -> None:
    given = vars(call.arguments)
    for name in sorted(given.keys() - {"file", "chunk", "database", "json"}):
        if given[name] is not None:
            flag = "a JSON object" if name == "job" else f"--{name.replace('_', '-')}"
            raise UsageError(f"--file and {flag} are mutually exclusive")


def _check(file: IO[bytes], bulk: Bulk, *, limited: bool, progress: Progress) -> None:
    number = 0
    while raw := file.readline(LONGEST_LINE):
        number += 1
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if line:
                type, payload, options = job_from(parse_object(line, "the job"))
                bulk.add(number, type, payload, options)
        except UnicodeDecodeError:
            raise ConfigError(f"line {number}: not valid UTF-8; nothing was stored") from None
        except HoldfastError as error:
            raise ConfigError(f"line {number}: {error}; nothing was stored") from None
        if limited and bulk.count > MOST_AT_ONCE:
            raise ConfigError(
                f"more than {MOST_AT_ONCE} jobs are too many for one commit; nothing was stored",
                hint="use --chunk N to commit every N lines",
            )
        progress(number)
