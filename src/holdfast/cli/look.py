"""queuectl list, show and why: looking at jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from holdfast.cli.command import DONE, Call, Parser, command, say, type_argument
from holdfast.cli.output import (
    Column,
    age,
    console,
    first_line,
    moment_text,
    on_terminal,
    print_json,
    print_line,
    print_table,
    seconds_text,
    style_of,
)
from holdfast.core.clock import parse_instant, to_datetime
from holdfast.core.job import Job
from holdfast.core.redact import redact
from holdfast.durations import LONGEST_DURATION, parse_duration
from holdfast.errors import ConfigError, JobNotFound, one_line, shown
from holdfast.observe import shapes
from holdfast.store.protocol import CREATED, SORTS


def filter_arguments(parser: Parser) -> None:
    type_argument(parser)
    parser.add_argument(
        "--error", metavar="TEXT", help="only failed jobs with this error; numbers don't count"
    )
    parser.add_argument(
        "--search", metavar="TEXT", help="words in id, key or error, or payload.FIELD:VALUE; reads 10000 jobs"
    )
    parser.add_argument("--since", metavar="WHEN", help="created since: an instant, or 1h for an hour ago")
    parser.add_argument("--until", metavar="WHEN", help="created before: an instant, or 1h for an hour ago")


def page_arguments(parser: Parser) -> None:
    filter_arguments(parser)
    parser.add_argument(
        "--sort",
        choices=SORTS,
        default=CREATED,
        help="by what (created); with finished, --since and --until bound the end",
    )
    parser.add_argument("--reverse", action="store_true", help="the oldest or lowest first")
    parser.add_argument("--limit", metavar="N", type=int, default=50, help="how many (50)")
    parser.add_argument("--offset", metavar="N", type=int, default=0, help="how many to pass over (0)")
    parser.add_argument(
        "--cursor", metavar="C", help="nextCursor of the page before: deep pages at the cost of the first"
    )
    parser.add_argument("--full", action="store_true", help="with payload, result and whole errors")
    _reveal_argument(parser)


def _reveal_argument(parser: Parser) -> None:
    parser.add_argument("--reveal", action="store_true", help="show secrets instead of [redacted]")


Shown = Callable[[Any], Any]
"""Gives a payload, a result or the details of a failure as it is to be printed."""


def _shown(call: Call) -> Shown:
    return _as_it_is if call.arguments.reveal else redact


def _as_it_is(value: Any) -> Any:
    return value


def _list_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--status",
        "--state",
        metavar="S",
        action="append",
        help="scheduled, pending, processing, completed, failed, cancelled or retrying; repeat it",
    )
    page_arguments(parser)


@command(
    "queuectl list --status failed --status cancelled",
    "queuectl list --type send_email --limit 10 --json",
    "queuectl list --search 'timeout payload.user.id:42' --since 1d",
    arguments=_list_arguments,
)
def list_jobs(call: Call) -> int:
    """List jobs, newest first."""
    return print_jobs(call, call.arguments.status)


def filters_of(call: Call) -> dict[str, Any]:
    """What filter_arguments ask for, but for the search, as `Queue.page` and `Queue.count` take it."""
    arguments = call.arguments
    return {
        "type": arguments.type,
        "error": arguments.error,
        "since": _instant(call, "since"),
        "until": _instant(call, "until"),
    }


def _instant(call: Call, name: str) -> datetime | None:
    """An instant, or the one so long ago."""
    text = getattr(call.arguments, name)
    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except ValueError:
        try:
            return parse_instant(f"--{name}", text)
        except ConfigError as error:
            raise ConfigError(str(error), hint="or a duration such as 1h, for so long ago") from None
    if seconds > LONGEST_DURATION:
        raise ConfigError(f"--{name} must be at most {LONGEST_DURATION:g} seconds ago, not {shown(text)}")
    return to_datetime(call.queue.store.now()) - timedelta(seconds=seconds)


def print_jobs(call: Call, status: list[str] | None) -> int:
    """The page of jobs that page_arguments ask for."""
    arguments = call.arguments
    for name, low in (("limit", 1), ("offset", 0)):
        if not low <= getattr(arguments, name) < 2**31:
            raise ConfigError(f"--{name} must be a whole number from {low}, not {getattr(arguments, name)}")
    queue = call.queue
    if arguments.cursor is not None and arguments.offset:
        raise ConfigError("--cursor and --offset exclude each other")
    if arguments.cursor is not None and arguments.cursor.startswith("<"):  # these pages go forward only
        raise ConfigError("--cursor must be the nextCursor of a page before")
    filters = {"status": status, **filters_of(call), "sort": arguments.sort}
    page = queue.page(
        **filters,
        search=arguments.search,
        ascending=arguments.reverse,
        limit=arguments.limit,
        offset=arguments.offset,
        cursor=arguments.cursor,
    )
    jobs, shown = page.jobs, _shown(call)
    if arguments.full:
        jobs = [job for job in (queue.get(job.id) for job in jobs) if job is not None]
    if call.wants_json:
        is_search = page.examined is not None
        print_json(
            shapes.task_list(
                [shapes.task(job, shown) if arguments.full else shapes.task_item(job) for job in jobs],
                total=None if is_search else queue.count(**filters, cap=shapes.COUNTED + 1),
                limit=arguments.limit,
                offset=arguments.offset,
                following=page.next,
                examined=page.examined,
            )
        )
        return DONE
    if arguments.full:
        for job in jobs:
            print_job(job, to_datetime(queue.store.now()), shown)
    else:
        _print_rows(jobs, to_datetime(queue.store.now()), shown)
        if on_terminal() and page.next is not None and page.examined is None:
            _print_total(len(jobs), queue.count(**filters, cap=shapes.COUNTED + 1))
    if page.next is not None and page.examined is not None:
        searched = "1 job was" if page.examined == 1 else f"{page.examined} jobs were"
        say(f"{searched} searched; --cursor {page.next} searches on")
    return DONE


def _print_total(shown: int, total: int) -> None:
    of = f"more than {shapes.COUNTED}" if total > shapes.COUNTED else str(total)
    console().print(f"{shown} of {of}; --limit and --offset show more", style="bright_black")


def _print_rows(jobs: list[Job], now: datetime, shown: Shown) -> None:
    columns = [
        Column("ID", whole=True),
        Column("STATUS", whole=True),
        Column("TYPE"),
        Column("TRIES", right=True, whole=True),
        Column("AGE", right=True, whole=True),
        Column("WHAT", below=True),
    ]
    rows = [
        (
            job.id,
            job.status.value,
            job.type,
            str(job.attempts) if job.limit_is_open else f"{job.attempts}/{job.max_attempts}",
            age(job.created_at, now),
            _what(job, now, shown),
        )
        for job in jobs
    ]
    print_table(columns, rows, empty="no jobs")


def _what(job: Job, now: datetime, shown: Shown) -> str:
    """The one thing to know about a job in a list."""
    if job.next_retry_at is not None:
        return f"again in {age(now, job.next_retry_at)}: {first_line(job.error)}"
    if job.error:
        return first_line(job.error)
    if job.run_at is not None and job.run_at > now:
        return f"in {age(now, job.run_at)}"
    command = job.payload.get("command")
    if isinstance(command, str):
        return first_line(command)
    return json.dumps(shown(job.payload), ensure_ascii=False) if job.payload else ""


def _id_argument(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="the job's id")


def job_named(call: Call) -> Job:
    job = call.queue.get(call.arguments.id)
    if job is None:
        raise JobNotFound(call.arguments.id)
    return job


def _show_arguments(parser: Parser) -> None:
    _id_argument(parser)
    _reveal_argument(parser)


@command("queuectl show job1", "queuectl show job1 --json", arguments=_show_arguments)
def show(call: Call) -> int:
    """Show everything about a job, with its attempts as a timeline.

    Fields whose names say that they are secret show [redacted]; --reveal shows their values.
    """
    job = job_named(call)
    if call.wants_json:
        print_json(shapes.task(job, _shown(call)))
    else:
        now = to_datetime(call.queue.store.now())
        print_job(job, now, _shown(call), children=call.queue.children(job.id))
    return DONE


def print_job(job: Job, now: datetime, shown: Shown, children: list[str] | None = None) -> None:
    """A job as a person reads it."""
    out = _Lines()
    out.field("id", job.id)
    out.field("type", job.type)
    asked = ", asked to stop" if job.cancel_requested and not job.is_finished else ""
    out.field("status", job.status.value + asked, job.status.value)
    out.field("attempts", str(job.attempts) if job.limit_is_open else f"{job.attempts} of {job.max_attempts}")
    for name, value in _optional_fields(job, now, children or []):
        if value:
            out.field(name, value)
    out.json("payload", shown(job.payload))
    if job.result is not None:
        out.json("result", shown(job.result))
    out.heading("timeline")
    for moment, text, style in _timeline(job):
        out.event(moment, text, style)
    if job.errors and job.errors[-1].traceback:
        out.heading(f"traceback of attempt {job.errors[-1].attempt}")
        out.block(job.errors[-1].traceback)
    tail = ((job.errors[-1].detail or {}) if job.errors and job.error else {}).get("tail")
    if isinstance(tail, str) and tail:
        out.heading("last output")
        out.block(tail)


def _optional_fields(job: Job, now: datetime, children: list[str]) -> list[tuple[str, str]]:
    return [
        ("priority", str(job.priority) if job.priority else ""),
        ("key", (job.key or "") + (f", held {job.key_for:g} s longer" if job.key_for else "")),
        ("timeout", "" if job.timeout is None else f"{job.timeout:g} s"),
        ("run at", moment_text(job.run_at)),
        (
            "next try",
            f"{moment_text(job.next_retry_at)}, in {age(now, job.next_retry_at)}"
            if job.next_retry_at
            else "",
        ),
        ("worker", job.worker_id or ""),
        ("parent", job.parent_id or ""),
        ("children", ", ".join(children)),
        (
            "progress",
            ""
            if job.progress is None
            else f"{job.progress.fraction:.0%} {job.progress.message or ''}".strip(),
        ),
        ("error", first_line(job.error)),
    ]


def _timeline(job: Job) -> list[tuple[datetime, str, str]]:
    """What happened to a job, in order."""
    events: list[tuple[datetime, str, str]] = [(job.created_at, "enqueued", "")]
    for failure in job.errors:
        took = seconds_text((failure.finished_at - failure.started_at).total_seconds())
        events.append((failure.started_at, _attempt(failure.attempt, failure.worker_id), ""))
        events.append((failure.finished_at, f"failed after {took}: {first_line(failure.error)}", "red"))
    last_failure = job.errors[-1].finished_at if job.errors else None
    is_last = job.started_at is not None and (last_failure is None or job.started_at >= last_failure)
    if job.started_at is not None and is_last and job.status in ("processing", "completed", "cancelled"):
        events.append((job.started_at, _attempt(job.attempts, job.worker_id), ""))
    if job.finished_at is not None:
        took = ""
        if job.status == "completed" and job.started_at is not None:
            took = f" after {seconds_text((job.finished_at - job.started_at).total_seconds())}"
        events.append((job.finished_at, f"{job.status.value}{took}", style_of(job.status.value)))
    elif job.next_retry_at is not None:
        events.append((job.next_retry_at, "next attempt", "cyan"))
    elif job.status == "scheduled" and job.run_at is not None:
        events.append((job.run_at, "to run", "cyan"))
    return events


def _attempt(number: int, worker_id: str | None) -> str:
    return f"attempt {number}" + (f", worker {worker_id}" if worker_id else "")


class _Lines:
    """Prints names and values: with colours on a terminal, plainly elsewhere."""

    def __init__(self) -> None:
        self._console = console() if on_terminal() else None

    def _print(self, text: str, style: str = "") -> None:
        if self._console is None:
            print_line(text)
        else:
            self._console.print(one_line(text), style=style or None, soft_wrap=True)

    def field(self, name: str, value: str, style: str = "") -> None:
        self._print(f"{name:<10}{value}", style_of(style) if style else "")

    def heading(self, text: str) -> None:
        self._print("")
        self._print(text, "bold")

    def event(self, moment: datetime, text: str, style: str) -> None:
        self._print(f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"  {text}", style)

    def json(self, name: str, value: Any) -> None:
        self.heading(name)
        for line in json.dumps(value, ensure_ascii=False, indent=2).split("\n"):
            self._print(f"  {line}")

    def block(self, text: str) -> None:
        for line in text.rstrip("\n").split("\n"):
            self._print(f"  {line}")


@command("queuectl why job1", arguments=_id_argument)
def why(call: Call) -> int:
    """Say why a job is not running (yet), and when that will change."""
    job = job_named(call)
    found = call.queue.why(job.id)
    if call.wants_json:
        print_json(shapes.reasons(job, found))
        return DONE
    for reason in found:
        print_line(
            reason.text
            + (f" (until {reason.until})" if reason.until and reason.until not in reason.text else "")
        )
    return DONE
