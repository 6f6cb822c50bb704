"""queuectl reconcile: whether the world is still as the completed jobs left it."""

from __future__ import annotations

import logging

from holdfast.cli.app import make_queue
from holdfast.cli.command import DONE, FAILED, Call, Parser, command
from holdfast.cli.output import Column, moment_text, print_json, print_line, print_table, progress_bar
from holdfast.events import LOGGER
from holdfast.jobs import install
from holdfast.reconcile import Report, as_json, checkable_types, reconcile


def _arguments(parser: Parser) -> None:
    parser.add_argument("--app", metavar="PKG.MODULE:QUEUE", help="check the jobs of your own handlers, too")
    parser.add_argument(
        "--type", metavar="T", action="append", help="only jobs of this type and its lanes; repeat it"
    )


@command(
    "queuectl reconcile",
    "queuectl reconcile --type create_file --type delete_file",
    "queuectl reconcile --app shop.jobs:queue --json",
    arguments=_arguments,
)
def reconcile_jobs(call: Call) -> int:
    """Compare what completed jobs have done with the world, and repair nothing.

    Is each file that was written there, with that content? Is each one that was deleted gone? Does each AWS
    resource exist? Of the jobs for one thing the last counts. Exit code 1 if anything differs, or could not
    be checked.
    """
    queue = make_queue(call.arguments.app, call.arguments.database)
    queue.create = False
    logging.getLogger(LOGGER).setLevel(logging.ERROR)  # what it would tell of is in the table
    try:
        install(queue)
        with progress_bar("checking") as progress:
            report = reconcile(queue, types=call.arguments.type, progress=progress)
        if call.wants_json:
            print_json(as_json(report))
        else:
            _print(report, checkable_types(queue))
    finally:
        queue.close()
    return DONE if report.is_clean else FAILED


def _print(report: Report, checkable: list[str]) -> None:
    if report.discrepancies:
        print_table(
            [
                Column("TYPE"),
                Column("JOB", whole=True),
                Column("COMPLETED", spare=True),
                Column("PROBLEM", below=True),
                Column("WHAT", whole=True),
            ],
            [
                (found.type, found.job_id, moment_text(found.completed_at), found.problem, found.subject)
                for found in report.discrepancies
            ],
            empty="",
        )
    left_out = report.differing + report.unchecked - len(report.discrepancies)
    if left_out:
        print_line(f"and {left_out} more")
    if not report.covered:
        print_line(f"nothing to check: no completed job of the types {', '.join(checkable)}")
        return
    for type in report.covered:
        since = f"since {moment_text(type.since)}" if type.since else "none"
        removed = f"; no longer kept: {type.removed}" if type.removed else ""
        print_line(f"{type.type}: {_count(type.completed, 'completed job')}, {since}{removed}")
    if report.left_out:
        print_line(f"not asked about: {', '.join(report.left_out)}")
    unsettled = f", unsettled while a job is at work {report.unsettled}" if report.unsettled else ""
    print_line(
        f"{_count(report.checked, 'effect')} checked: {_differ(report.differing)}, "
        f"{report.unchecked} could not be checked{unsettled}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _differ(number: int) -> str:
    return f"{number} differs" if number == 1 else f"{number} differ"
