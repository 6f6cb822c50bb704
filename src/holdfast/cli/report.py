"""queuectl report: backlog, failures and durations."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.command import Call, Command
from holdfast.cli.output import Column, print_json, print_styled, print_table
from holdfast.core.job import UNFINISHED, Status
from holdfast.observe import shapes, words
from holdfast.observe.overview import Answers
from holdfast.observe.overview import report as answer

_ID, _TYPE, _ERROR = Column("ID", whole=True), Column("TYPE"), Column("ERROR", below=True)

Answer = tuple[str, list[Column], list[tuple[object, ...]], str]
"""A question, the columns and rows that answer it, and what to say when there are none."""


@Command("queuectl report", "queuectl report --json")
def report(call: Call) -> None:
    """Summarise backlog, failures and durations.

    Shows outstanding jobs, failed jobs and their errors, the most common errors, stuck jobs, how long jobs
    take, duplicates, and what ran in the last hour.
    """
    found = answer(call.queue)
    if call.wants_json:
        print_json(shapes.report(found))
        return
    for question, columns, rows, none in _answers(found):
        print_styled(question, "bold")
        if rows:
            print_table(columns, rows)
        else:
            print_styled(none)
        print_styled("")


def _answers(found: Answers) -> Iterator[Answer]:
    yield (
        "What work is outstanding right now?",
        [_TYPE, *_numbers(*UNFINISHED)],
        [(type, *(counts[state] for state in UNFINISHED)) for type, counts in found.outstanding.items()],
        "none",
    )
    yield (
        f"What failed and why? ({found.failed_total} in total)",
        [_ID, _TYPE, Column("WHEN", whole=True), _ERROR],
        [(j.id, j.type, words.instant(j.finished_at), words.first_line(j.error)) for j in found.failed],
        "nothing",
    )
    yield (
        "Which errors are most common?",
        [Column("JOBS", right=True, whole=True), _TYPE, Column("LAST", whole=True), _ERROR],
        [(g.jobs, g.type, words.instant(g.last_at), g.error) for g in found.error_groups],
        "none",
    )
    yield (
        "Is anything stuck?",
        [_ID, _TYPE, Column("SINCE", whole=True), Column("WORKER", below=True)],
        [(j.id, j.type, words.instant(j.started_at), j.worker_id) for j in found.stuck],
        "nothing",
    )
    yield (
        "How long do jobs take?",
        [_TYPE, *_numbers("finished", "measured", "mean", "p50", "p95", "mean wait")],
        [_duration_row(type, found) for type in sorted({*found.durations, *found.finished})],
        "nothing has run yet",
    )
    yield (
        "Are there duplicate jobs?",
        [_TYPE, Column("KEY", below=True), *_numbers("jobs")],
        [(r.type, r.key, r.jobs) for r in found.reused_keys],
        "none: no key was used more than once",
    )
    ended = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
    yield (
        "What ran in the last hour?",
        [_TYPE, *_numbers(*ended)],
        [(type, *(counts.get(state, 0) for state in ended)) for type, counts in found.last_hour.items()],
        "nothing",
    )


def _numbers(*names: str) -> list[Column]:
    return [Column(name.upper(), right=True) for name in names]


def _duration_row(type: str, found: Answers) -> tuple[object, ...]:
    """Counts come from the jobs, durations from workers: one that died may not have reported them."""
    measured = found.durations.get(type)
    if measured is None:
        return (type, found.finished[type], 0, "", "", "", "")
    return (
        *(type, found.finished.get(type, 0), measured.count, words.seconds(measured.mean)),
        *(words.bound(measured.p50), words.bound(measured.p95), words.seconds(measured.mean_wait)),
    )
