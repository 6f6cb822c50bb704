"""queuectl doctor: what is wrong with the queue, and what to do about it."""

from __future__ import annotations

import sys

import msgspec

from holdfast.cli.command import APP, DONE, FAILED, Call, Command, argument
from holdfast.cli.output import console, on_terminal, print_json, print_line, style_of
from holdfast.errors import HoldfastError
from holdfast.store.records import Finding
from holdfast.text import one_line


@Command(
    "queuectl doctor",
    "queuectl doctor --app shop.jobs:queue",
    arguments=(argument(APP, "also check how your application uses SQLAlchemy"),),
)
def doctor(call: Call) -> int:
    """Check the database, its files, the clock, workers and jobs, and suggest fixes.

    With --app, also check that the SQLAlchemy engines your application creates on import can share the
    queue's SQLite file. The exit code is 1 if there is a problem; warnings alone exit with 0.
    """
    from holdfast.observe.doctor import examine

    queue = call.queue
    try:
        findings = examine(queue)
        if "sqlalchemy" in sys.modules:  # or no application has made an engine here
            from holdfast.sqlalchemy import examine_engines

            findings += examine_engines(queue.address)
    except HoldfastError as error:
        findings = [Finding(level="problem", check="database", text=str(error))]
    problems = sum(finding.level == "problem" for finding in findings)
    if call.wants_json:
        print_json({"healthy": not problems, "findings": msgspec.to_builtins(findings)})
    else:
        for finding in findings:
            _print_finding(finding)
    return FAILED if problems else DONE


_LEVEL_WIDTH, _CHECK_WIDTH = 7, 11


def _print_finding(finding: Finding) -> None:
    if not on_terminal():
        print_line(finding.level, finding.check, finding.text, *([finding.advice] if finding.advice else []))
        return
    from rich.table import Table
    from rich.text import Text

    words = Text(one_line(finding.text))
    if finding.advice:
        words.append(f"\n{one_line(finding.advice)}", "italic")
    line = Table.grid(padding=(0, 2))
    line.add_column(width=_LEVEL_WIDTH)
    line.add_column(width=_CHECK_WIDTH)
    line.add_row(Text(finding.level, style_of(finding.level)), Text(finding.check, "bold"), words)
    console().print(line)
