"""queuectl status and report: the queue at a glance, and the standing questions about it."""

from __future__ import annotations

import sys
import time
from typing import Any

from holdfast.cli.command import DONE, Call, Parser, command
from holdfast.cli.output import (
    Column,
    age,
    console,
    first_line,
    moment_text,
    on_terminal,
    print_json,
    print_line,
    seconds_text,
    table,
)
from holdfast.cli.worker import WORKER_COLUMNS, worker_rows
from holdfast.core.job import Status
from holdfast.errors import StoreError, one_line
from holdfast.observe import shapes
from holdfast.observe.overview import Answers, Overview, Rates, overview
from holdfast.observe.overview import report as answer
from holdfast.queue import Queue

_REFRESH = 1.0


def _status_arguments(parser: Parser) -> None:
    parser.add_argument("-w", "--watch", action="store_true", help="a live screen, until Ctrl-C")


@command("queuectl status", "queuectl status --watch", arguments=_status_arguments)
def status(call: Call) -> int:
    """Show counts by state and type, workers, what is stuck and what has no worker."""
    if call.arguments.watch:
        _watch(call)
    else:
        _print_status(call, overview(call.queue))
    return DONE


def _print_status(call: Call, view: Overview) -> None:
    if call.wants_json:
        print_json(shapes.overview(view), compact=bool(call.arguments.watch))
    elif on_terminal():
        out = console()
        out.print(_screen(call.queue, view, out.width))
    else:
        for line in _plain(view):
            print_line(*line)
    sys.stdout.flush()


def _watch(call: Call) -> None:
    if call.wants_json or not on_terminal():
        while True:
            _print_status(call, overview(call.queue))
            time.sleep(_REFRESH)
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = _screen(call.queue, overview(call.queue), live.console.width, live.console.height)
            except StoreError as error:  # a full disk or a locked file may pass
                shown = Text(one_line(str(error)), style="red")
            live.update(shown, refresh=True)
            time.sleep(_REFRESH)


def _plain(view: Overview) -> list[tuple[object, ...]]:
    lines: list[tuple[object, ...]] = [(state.value, view.counts[state]) for state in Status]
    lines.append(("workers", view.counts["workers"]))
    for type, counts in view.counts["by_type"].items():
        lines.append(("type", type, *(f"{state.value} {counts[state]}" for state in Status)))
    lines += [(word,) for word in _notices(view)]
    return lines


def _notices(view: Overview) -> list[str]:
    """What a person should know, one sentence each."""
    notices = []
    for type in view.paused:
        notices.append(f"type {type} is paused" if type else "the whole queue is paused")
    for type, count in view.without_worker.items():
        if view.workers:
            notices.append(f"{_waiting(count, f' of type {type}')}, and no running worker handles it")
    if view.without_worker and not view.workers:
        notices.append(f"{_waiting(sum(view.without_worker.values()))}, and no worker is running")
    for job in view.stuck[:5]:
        notices.append(f"{job.id} ({job.type}) runs for {age(job.started_at, view.now)} and may be stuck")
    if len(view.stuck) > 5:
        notices.append(f"and {len(view.stuck) - 5} more that may be stuck")
    if view.oldest is not None:
        waited = age(view.oldest.since, view.now)
        notices.append(f"the oldest waiting job is {view.oldest.id} ({view.oldest.type}), for {waited}")
    return notices


def _waiting(count: int, which: str = "") -> str:
    return f"1 job{which} waits" if count == 1 else f"{count} jobs{which} wait"


def _screen(queue: Queue, view: Overview, width: int, height: int | None = None) -> Any:
    """All of it, for a terminal. On a live screen of so many lines what matters most comes first."""
    from rich.console import Group
    from rich.text import Text

    notices = [Text(one_line(notice), style="yellow") for notice in _notices(view)]
    if view.workers:
        workers = table(WORKER_COLUMNS, worker_rows(queue, view.workers, view.running, view.now), width)
    else:
        workers = Text("no worker is running", style="bright_black")
    if height is None:
        return Group(_type_table(view, width, None), Text(), workers, Text(), *notices)
    head = Text(f"{view.now:%Y-%m-%d %H:%M:%S} UTC, Ctrl-C ends", style="bright_black")
    above = [head, *notices, Text()]
    below = 1 + min(workers.plain.count("\n") + 1, height // 3)
    room = height - sum(max(1, -(-len(part) // width)) for part in above) - below
    types = _type_table(view, width, room)
    return Group(*above, types, Text(), workers)


def _type_table(view: Overview, width: int, room: int | None) -> Any:
    """Counts and rates by type; where there is no room for all, the busiest, and the rest as one line."""
    columns = [Column("TYPE"), *(Column(state.value.upper(), right=True, whole=True) for state in Status)]
    columns += [Column("DONE/S", right=True, whole=True), Column("FAILS/S", right=True, spare=True)]
    by_type = view.counts["by_type"]
    shown = list(by_type)
    if room is not None and len(shown) > room - 2:
        shown = sorted(shown, key=lambda type: _business(by_type[type]), reverse=True)[: max(1, room - 3)]
    rows = [_type_row(type, by_type[type], view.rates.get(type, Rates())) for type in shown]
    total = Rates(
        completed=sum(rate.completed for rate in view.rates.values()),
        failed=sum(rate.failed for rate in view.rates.values()),
        retried=sum(rate.retried for rate in view.rates.values()),
    )
    everything = "all" if len(shown) == len(by_type) else f"all ({len(by_type)})"
    rows.append(_type_row(everything, view.counts, total))
    return table(columns, rows, width)


def _business(counts: dict[str, int]) -> tuple[int, int]:
    return counts["pending"] + counts["processing"], sum(counts.values())


def _type_row(name: str, counts: dict[str, Any], rate: Rates) -> list[object]:
    return [
        name,
        *(counts[state] for state in Status),
        _rate(rate.completed),
        _rate(rate.failed + rate.retried),
    ]


def _rate(value: float) -> str:
    return "0" if not value else f"{value:.2f}" if value < 10 else f"{value:.0f}"


@command("queuectl report", "queuectl report --json")
def report(call: Call) -> int:
    """Answer the standing questions about the queue.

    What work is outstanding? What failed and why? Which errors come most often? Is anything stuck? How long
    do jobs take? Are there duplicates? What ran in the last hour?
    """
    found = answer(call.queue)
    if call.wants_json:
        print_json(shapes.report(found))
        return DONE
    for question, columns, rows, none in _answers(found):
        if on_terminal():
            out = console()
            out.print(question, style="bold")
            out.print(table(columns, rows, out.width) if rows else none, soft_wrap=True)
            out.print()
        else:
            print_line(question)
            for row in rows:
                print_line(*row)
            if not rows:
                print_line(none)
            print_line("")
    return DONE


def _answers(found: Answers) -> list[tuple[str, list[Column], list[tuple[object, ...]], str]]:
    """Each question with its table, and what to say when that is empty."""
    states = ("scheduled", "pending", "processing")

    return [
        (
            "What work is outstanding right now?",
            [Column("TYPE"), *(Column(state.upper(), right=True) for state in states)],
            [(type, *(counts[state] for state in states)) for type, counts in found.outstanding.items()],
            "none",
        ),
        (
            f"What failed and why? ({found.failed_total} in all)",
            [
                Column("ID", whole=True),
                Column("TYPE"),
                Column("WHEN", whole=True),
                Column("ERROR", below=True),
            ],
            [(j.id, j.type, moment_text(j.finished_at), first_line(j.error)) for j in found.failed],
            "nothing",
        ),
        (
            "Which errors come most often?",
            [
                Column("JOBS", right=True, whole=True),
                Column("TYPE"),
                Column("LAST", whole=True),
                Column("ERROR", below=True),
            ],
            [(g.jobs, g.type, moment_text(g.last_at), g.error) for g in found.error_groups],
            "none",
        ),
        (
            "Is anything stuck?",
            [
                Column("ID", whole=True),
                Column("TYPE"),
                Column("SINCE", whole=True),
                Column("WORKER", below=True),
            ],
            [(j.id, j.type, moment_text(j.started_at), j.worker_id) for j in found.stuck],
            "nothing",
        ),
        (
            "How long do jobs take?",
            [
                Column("TYPE"),
                *(Column(name, right=True) for name in ("FINISHED", "MEASURED")),
                *(Column(name, right=True) for name in ("MEAN", "HALF", "95 %", "MEAN WAIT")),
            ],
            [_duration_row(type, found) for type in sorted({*found.durations, *found.finished})],
            "nothing ran yet",
        ),
        (
            "Are there duplicate jobs?",
            [Column("TYPE"), Column("KEY", below=True), Column("JOBS", right=True)],
            [(r.type, r.key, r.jobs) for r in found.reused_keys],
            "none: no key was used twice",
        ),
        (
            "What ran in the last hour?",
            [
                Column("TYPE"),
                *(Column(state.upper(), right=True) for state in ("completed", "failed", "cancelled")),
            ],
            [
                (
                    type,
                    *(counts.get(state, 0) for state in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)),
                )
                for type, counts in found.last_hour.items()
            ],
            "nothing",
        ),
    ]


def _duration_row(type: str, found: Answers) -> tuple[object, ...]:
    """Counted from the jobs, and timed from what was measured: a worker that died may not have told."""
    measured = found.durations.get(type)
    if measured is None:
        return (type, found.finished[type], 0, "", "", "", "")
    return (
        *(type, found.finished.get(type, 0), measured.count, seconds_text(measured.mean)),
        *(_bound(measured.p50), _bound(measured.p95), seconds_text(measured.mean_wait)),
    )


def _bound(value: float | None) -> str:
    return "longer" if value is None else f"≤ {seconds_text(value)}"
