"""queuectl show and why: everything about one job, and why it isn't running."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from holdfast.cli.command import Call, Command, argument, id_argument
from holdfast.cli.output import print_json, print_styled, style_of
from holdfast.core.job import Job
from holdfast.core.redact import redact
from holdfast.observe import shapes, words
from holdfast.observe.timeline import timeline

reveal_argument = argument("--reveal", "show secrets instead of [redacted]")

Shown = Callable[[Any], Any]
"""Formats a payload, a result or the details of a failure for printing."""


def shown_by(call: Call) -> Shown:
    return (lambda value: value) if call.arguments.reveal else redact


@Command("queuectl show job1", "queuectl show job1 --json", arguments=(id_argument, reveal_argument))
def show(call: Call) -> None:
    """Show everything about a job, including a timeline of its attempts.

    Fields with secret-sounding names show [redacted]; --reveal shows their values.
    """
    job = call.queue.require(call.arguments.id)
    if call.wants_json:
        print_json(shapes.task(job, shown_by(call)))
    else:
        now = call.queue.now()
        print_job(job, now, shown_by(call), children=call.queue.children(job.id))


def print_job(job: Job, now: datetime, shown: Shown, children: list[str] | None = None) -> None:
    """A job, formatted for people."""
    _print_field("id", job.id)
    _print_field("type", job.type)
    asked = ", asked to stop" if job.is_asked_to_stop else ""
    _print_field("status", job.status.value + asked, style_of(job.status.value))
    of = "" if job.limit_is_open else f" of {job.max_attempts}"
    _print_field("attempts", f"{job.attempts}{of}")
    for name, value in _optional_fields(job, now, children or []):
        if value:
            _print_field(name, value)
    _print_block("payload", _json(shown(job.payload)))
    if job.result is not None:
        _print_block("result", _json(shown(job.result)))
    _print_heading("timeline")
    for moment, text, style in _timeline(job):
        print_styled(f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"  {text}", style)
    if job.errors and job.errors[-1].traceback:
        _print_block(f"traceback of attempt {job.errors[-1].attempt}", job.errors[-1].traceback)
    tail = ((job.errors[-1].detail or {}) if job.errors and job.error else {}).get("tail")
    if isinstance(tail, str) and tail:
        _print_block("last output", tail)


def _print_field(name: str, value: str, style: str = "") -> None:
    print_styled(f"{name:<10}{value}", style)


def _print_heading(text: str) -> None:
    print_styled("")
    print_styled(text, "bold")


def _print_block(heading: str, text: str) -> None:
    _print_heading(heading)
    for line in text.rstrip("\n").split("\n"):
        print_styled(f"  {line}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _optional_fields(job: Job, now: datetime, children: list[str]) -> list[tuple[str, str]]:
    progress = ""
    if job.progress is not None:
        progress = f"{job.progress.fraction:.0%} {job.progress.message or ''}".strip()
    return [
        ("priority", str(job.priority) if job.priority else ""),
        ("group", job.group or ""),
        (
            "key",
            (job.key or "")
            + (f", kept for {words.seconds(job.key_for)} after the job finishes" if job.key_for else ""),
        ),
        ("timeout", "" if job.timeout is None else words.seconds(job.timeout)),
        ("run at", _when(job.run_at, now)),
        ("retry at", _when(job.next_retry_at, now)),
        ("worker", job.worker_id or ""),
        ("parent", job.parent_id or ""),
        ("children", ", ".join(children)),
        ("progress", progress),
        ("error", words.first_line(job.error)),
    ]


def _when(moment: datetime | None, now: datetime) -> str:
    """A time, and how far away it is if it is in the future."""
    if moment is None:
        return ""
    return words.moment(moment) + (f" ({words.ago(moment, now)})" if moment > now else "")


def _timeline(job: Job) -> Iterator[tuple[datetime, str, str]]:
    """What happened to a job, in order."""
    for step in timeline(job):
        if step.at is None:
            continue
        if step.attempt is None:
            text = {
                "created": "enqueued",
                "scheduled": "next attempt" if job.next_retry_at else "scheduled to start",
            }
            yield step.at, text.get(step.state, step.state), style_of(step.state)
            continue
        worker = f", worker {step.worker}" if step.worker else ""
        yield step.at, f"attempt {step.attempt}{worker}", ""
        if step.until is not None:
            error = f": {words.first_line(step.error)}" if step.error else ""
            yield step.until, f"{step.state} after {words.seconds(step.seconds)}{error}", style_of(step.state)


@Command("queuectl why job1", arguments=(id_argument,))
def why(call: Call) -> None:
    """Explain why a job isn't running, and when that will change."""
    job = call.queue.require(call.arguments.id)
    found = call.queue.why(job)
    call.answer(shapes.reasons(job, found), *(reason.text for reason in found))
