"""queuectl list: jobs page by page, and the options that select jobs."""

from __future__ import annotations

import json
from datetime import datetime

from holdfast.cli.command import Call, Command, argument, say
from holdfast.cli.output import Column, console, on_terminal, print_json, print_table
from holdfast.cli.show import Shown, print_job, reveal_argument, shown_by
from holdfast.core.filter import COUNTED, CREATED, MEANINGS, SORTS, Filter, parse_filter
from holdfast.core.job import Job, Status
from holdfast.observe import shapes, words

FILTERS = {
    "type": "--type T",
    "group": "--group NAME",
    "parent_id": "--parent-id --parent ID",
    "error": "--error TEXT",
    "search": "--search TEXT",
    "since": "--since WHEN",
    "until": "--until WHEN",
}
"""The options that select jobs, and how they are written."""

filter_arguments = tuple(argument(usage, MEANINGS[name]) for name, usage in FILTERS.items())

page_arguments = (
    *filter_arguments,
    argument("--sort", MEANINGS["sort"], choices=SORTS, default=CREATED),
    argument("--reverse", "oldest or lowest first"),
    argument("--limit N", "number of jobs to show (default: 50)", type=int, default=50),
    argument("--offset N", "number of jobs to skip (default: 0)", type=int, default=0),
    argument("--cursor C", "nextCursor of the previous page; deep pages are as fast as the first one"),
    argument("--full", "include payload, result and full errors"),
    reveal_argument,
)


@Command(
    "queuectl list --status failed --status cancelled",
    "queuectl list --type send_email --limit 10 --json",
    "queuectl list --group customer:42 --status pending",
    "queuectl list --search 'timeout payload.user.id:42' --since 1d",
    arguments=(
        argument(
            "--status --state S",
            "scheduled, pending, processing, completed, failed, cancelled or retrying; repeatable",
            action="append",
        ),
        *page_arguments,
    ),
)
def list_jobs(call: Call) -> None:
    """List jobs, newest first."""
    print_jobs(call, call.arguments.status)


def filter_of(call: Call, status: list[str] | None) -> Filter:
    """What filter_arguments and page_arguments ask for."""
    arguments = vars(call.arguments)
    given = {name: arguments.get(name) for name in FILTERS}
    order = {"sort": arguments["sort"], "ascending": arguments["reverse"]} if "sort" in arguments else {}
    return parse_filter(status=status, **given, **order)


def print_jobs(call: Call, status: list[str] | None) -> None:
    """The page of jobs that page_arguments ask for."""
    arguments = call.arguments
    call.require_between("limit", 1, 2**31 - 1)
    call.require_between("offset", 0, 2**31 - 1)
    queue = call.queue
    page = queue.page(
        filter_of(call, status),
        limit=arguments.limit,
        offset=arguments.offset,
        cursor=arguments.cursor,
        brief=arguments.full,
        with_total=call.wants_json or on_terminal(),
    )
    jobs, shown = page.jobs, shown_by(call)
    if arguments.full:
        jobs = queue.get_whole([job.id for job in jobs])
    if call.wants_json:
        tasks = [shapes.task(job, shown) if arguments.full else shapes.task_item(job) for job in jobs]
        print_json(shapes.task_list(tasks, page, limit=arguments.limit, offset=arguments.offset))
        return
    if arguments.full:
        for job in jobs:
            print_job(job, queue.now(), shown)
    else:
        _print_rows(jobs, queue.now(), shown)
        if on_terminal() and page.next is not None and page.total is not None:
            of = f"more than {COUNTED}" if page.total > COUNTED else str(page.total)
            console().print(
                f"showing {len(jobs)} of {of}; use --limit and --offset to see more", style="bright_black"
            )
    if page.next is not None and page.examined is not None:
        say(f"{words.plain_plural(page.examined, 'job')} searched; continue with --cursor {page.next}")


def _print_rows(jobs: list[Job], now: datetime, shown: Shown) -> None:
    has_groups = any(job.group is not None for job in jobs)
    columns = [
        Column("ID", whole=True),
        Column("STATUS", whole=True),
        Column("TYPE"),
        *([Column("GROUP")] if has_groups else []),
        Column("TRIES", right=True, whole=True),
        Column("AGE", right=True, whole=True),
        Column("DETAIL", below=True),
    ]
    rows = [
        (
            job.id,
            job.status.value,
            job.type,
            *([job.group or ""] if has_groups else []),
            str(job.attempts) if job.limit_is_open else f"{job.attempts}/{job.max_attempts}",
            words.age(job.created_at, now),
            _what(job, now, shown),
        )
        for job in jobs
    ]
    print_table(columns, rows, empty="no jobs")


def _what(job: Job, now: datetime, shown: Shown) -> str:
    """The most relevant detail of a job in a list."""
    if job.next_retry_at is not None:
        return f"retry in {words.age(now, job.next_retry_at)}: {words.first_line(job.error)}"
    if job.error:
        return words.first_line(job.error)
    if job.status is Status.SCHEDULED and job.run_at is not None and job.run_at > now:
        return f"starts in {words.age(now, job.run_at)}"
    command = job.payload.get("command")
    if isinstance(command, str):
        return words.first_line(command)
    return json.dumps(shown(job.payload), ensure_ascii=False) if job.payload else ""
