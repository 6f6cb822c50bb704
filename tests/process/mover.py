"""A program that moves queues in children of its own, each of which ends at a commit of its choice.

A line of its input is a JSON object: the addresses `source` and `target`, at which `commit` (from 1) and
`when` (before, after) the signal `signal` comes. A line of its output is the pid of the child, and one the
exit code that it ended with. Forks are cheap here: nothing is open yet, and no thread runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from holdfast.cli.main import run
from holdfast.store.postgres import transfer  # noqa: F401 -- loaded before the forks
from holdfast.store.postgres.database import Database as Postgres
from holdfast.store.sqlite.database import Database as Sqlite
from holdfast.worker.maintenance import Reaper  # noqa: F401


def arm(order: dict[str, Any]) -> None:
    """Let the signal come at the commit that was asked for."""
    commits = 0

    def counted(commit: Any) -> Any:
        def at_commit(database: Any, connection: Any) -> None:
            nonlocal commits
            commits += 1
            is_due = commits == order["commit"]
            if is_due and order["when"] == "before":
                os.kill(os.getpid(), order["signal"])
            commit(database, connection)
            if is_due and order["when"] == "after":
                os.kill(os.getpid(), order["signal"])

        return at_commit

    for kind in (Sqlite, Postgres):
        kind.commit = counted(kind.commit)  # type: ignore[method-assign]


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            arm(order)
            code = run(["--database", order["source"], "move", "--to", order["target"], "--json"])
            sys.stdout.flush()
            os._exit(code)
        sys.stderr.write(f"{child}\n")
        sys.stderr.flush()
        _, status = os.waitpid(child, 0)
        sys.stderr.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
