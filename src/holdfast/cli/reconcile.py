"""queuectl reconcile: check that the effects of completed jobs still exist."""

from __future__ import annotations

import logging

from msgspec import to_builtins

from holdfast.cli.command import APP, DONE, FAILED, Call, Command, argument
from holdfast.cli.output import Column, print_json, print_line, print_table, progress_bar
from holdfast.events import LOGGER
from holdfast.jobs import install
from holdfast.observe import words
from holdfast.reconcile import Report, checkable_types, reconcile


@Command(
    "queuectl reconcile",
    "queuectl reconcile --type create_file --type delete_file",
    "queuectl reconcile --app shop.jobs:queue --json",
    arguments=(
        argument(APP, "also check the jobs of your own handlers"),
        argument("--type T", "only jobs of this type and its lanes; repeatable", action="append"),
    ),
)
def reconcile_jobs(call: Call) -> int:
    """Check that the effects of completed jobs still exist, without repairing anything.

    Each file that was written must be there with the same content, each deleted file must be gone, and each
    AWS resource must exist. If several jobs changed the same thing, the last one counts. The exit code is 1
    if anything differs or could not be checked.
    """
    queue = call.queue
    logging.getLogger(LOGGER).setLevel(logging.ERROR)  # what it would tell of is in the table
    install(queue)
    with progress_bar("checking") as progress:
        report = reconcile(queue, types=call.arguments.type, progress=progress)
    if call.wants_json:
        print_json(to_builtins(report))
    else:
        _print(report, checkable_types(queue))
    return DONE if report.is_clean else FAILED


def _print(report: Report, checkable: list[str]) -> None:
    if report.discrepancies:
        print_table(
            [
                Column("TYPE"),
                Column("JOB", whole=True),
                Column("COMPLETED", spare=True),
                Column("PROBLEM", below=True),
                Column("SUBJECT", whole=True),
            ],
            [
                (found.type, found.job_id, words.instant(found.completed_at), found.problem, found.subject)
                for found in report.discrepancies
            ],
        )
    left_out = report.differing + report.unchecked - len(report.discrepancies)
    if left_out:
        print_line(f"and {left_out} more")
    if not report.covered:
        print_line(f"nothing to check: no completed jobs of the types {', '.join(checkable)}")
        return
    for type in report.covered:
        since = f" since {words.instant(type.since)}" if type.since else ""
        removed = f"; {type.removed} no longer stored" if type.removed else ""
        print_line(f"{type.type}: {words.plain_plural(type.completed, 'completed job')}{since}{removed}")
    if report.left_out:
        print_line(f"skipped types: {', '.join(report.left_out)}")
    unsettled = f", {report.unsettled} unsettled because a job is still running" if report.unsettled else ""
    differ = "differs" if report.differing == 1 else "differ"
    print_line(
        f"{words.plain_plural(report.checked, 'effect')} checked: {report.differing} {differ}, "
        f"{report.unchecked} could not be checked{unsettled}"
    )
