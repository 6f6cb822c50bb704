"""queuectl migrate, backup and doctor: looking after the database."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.cli.command import DONE, FAILED, Call, Parser, command
from holdfast.cli.output import console, on_terminal, print_json, print_line, style_of
from holdfast.errors import HoldfastError, one_line
from holdfast.store.protocol import Finding

if TYPE_CHECKING:
    from holdfast.queue import Queue


@command("queuectl migrate", "queuectl --database postgresql://db/app migrate", makes_queue=True)
def migrate(call: Call) -> int:
    """Make the queue's tables, or bring them up to date."""
    call.queue.migrate()
    if call.wants_json:
        print_json({"database": call.queue.store.url, "upToDate": True})
    else:
        print_line(f"{call.queue.store.url} is up to date")
    return DONE


def _file(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the file to make; it must not exist yet")


@command("queuectl backup /var/backups/queue.db", arguments=_file)
def backup(call: Call) -> int:
    """Write a copy of the database, whole and as of one moment, while work goes on."""
    call.queue.store.back_up(call.arguments.file)
    if call.wants_json:
        print_json({"database": call.queue.store.url, "file": call.arguments.file})
    else:
        print_line(call.arguments.file)
    return DONE


def _app(parser: Parser) -> None:
    parser.add_argument(
        "--app", metavar="PKG.MODULE:QUEUE", help="check how your application uses SQLAlchemy, too"
    )


@command("queuectl doctor", "queuectl doctor --app shop.jobs:queue", arguments=_app)
def doctor(call: Call) -> int:
    """Check the database, its files, the clock, workers and jobs, and say what to do.

    With --app, also whether the SQLAlchemy engines that your application makes when it is imported can share
    the queue's SQLite file. Exit code 1 if there is a problem; warnings alone are 0.
    """
    from holdfast.cli.app import make_queue

    queue = make_queue(call.arguments.app, call.arguments.database)
    queue.create = False
    try:
        findings = _examine(queue)
    except HoldfastError as error:
        findings = [Finding(level="problem", check="database", text=str(error))]
    finally:
        queue.close()
    problems = sum(finding.level == "problem" for finding in findings)
    if call.wants_json:
        print_json(
            {
                "healthy": not problems,
                "findings": [
                    {"level": f.level, "check": f.check, "text": f.text, "advice": f.advice} for f in findings
                ],
            }
        )
    else:
        for finding in findings:
            _print_finding(finding)
    return FAILED if problems else DONE


def _examine(queue: Queue) -> list[Finding]:
    from holdfast.observe.doctor import examine

    findings = examine(queue)
    if "sqlalchemy" in sys.modules:  # or no application has made an engine here
        from holdfast.sqlalchemy import examine_engines

        findings += examine_engines(queue.store.url)
    return findings


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
