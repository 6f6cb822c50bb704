"""Events as log lines: a sentence on a terminal, otherwise one JSON object per line."""

from __future__ import annotations

import json
import logging
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from holdfast import events as e
from holdfast.events import LOGGER, Event
from holdfast.observe.words import first_line, iso, plain_plural
from holdfast.text import one_line

_PIPE_BUF = getattr(select, "PIPE_BUF", 512)


def configure(
    format: str = "auto", *, level: int = logging.INFO, stream: TextIO | None = None
) -> logging.Handler:
    """Send Holdfast's log to a stream (stdout by default) and return the handler.

    `format` is text, json, or auto: text on a terminal, JSON elsewhere. A second call replaces the first.
    """
    if format not in ("auto", "text", "json"):
        raise ValueError(f"format must be auto, text or json, not {format!r}")
    stream = stream or sys.stdout
    if format == "auto":
        format = "text" if stream.isatty() else "json"
    handler = LogHandler(stream, TextFormatter() if format == "text" else JsonFormatter())
    logger = logging.getLogger(LOGGER)
    for old in [h for h in logger.handlers if isinstance(h.formatter, TextFormatter | JsonFormatter)]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler


class LogOptions(Struct, frozen=True):
    """How a process of ours logs."""

    format: str
    level: str

    def configure(self) -> logging.Handler:
        return configure(self.format, level=logging.getLevelName(self.level.upper()))


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream as long as it is open: if the reader has gone, work continues."""

    def __init__(self, stream: TextIO, formatter: TextFormatter | JsonFormatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._formatter = formatter

    @property
    def takes_holdfast_events(self) -> bool:
        """Whether events need not be records: the application has not changed what becomes of those."""
        return not self.filters and not self.level and self.formatter is self._formatter

    def handle_events(self, events: Sequence[Event]) -> None:
        """Write a line for each, together."""
        now = _time(time.time())
        self.acquire()
        try:
            for text in _portions([f"{self._formatter.line(event, now)}\n" for event in events]):
                self._write(text)
        except Exception:
            self.handleError(logging.makeLogRecord({"msg": events[0]}))
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
        except UnicodeEncodeError:  # a terminal or a file that lacks a letter of it
            self.stream.write("".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text))
        self.flush()

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError | ValueError):
            super().handleError(record)


def _portions(lines: Sequence[str]) -> Iterator[str]:
    """Whole lines, as many as a pipe takes at once: those of other processes can't come between."""
    portion: list[str] = []
    size = 0
    for line in lines:
        length = len(line.encode(errors="replace"))
        if portion and size + length > _PIPE_BUF:
            yield "".join(portion)
            portion, size = [], 0
        portion.append(line)
        size += length
    yield "".join(portion)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, event, then the event's fields."""

    def line(self, event: Event, time: str) -> str:
        level = logging.getLevelName(event.level).lower()
        return _as_json({"time": time, "level": level, "event": event.name, **event.fields()})

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": _time(record.created), "level": record.levelname.lower()}
        if isinstance(record.msg, Event):
            line |= {"event": record.msg.name, **record.msg.fields()}
        else:
            line |= {"event": "log", "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _as_json(line)


class TextFormatter(logging.Formatter):
    """Time, level and a sentence, with control characters escaped."""

    def line(self, event: Event, time: str) -> str:
        return _as_text(time, logging.getLevelName(event.level), word(event))

    def format(self, record: logging.LogRecord) -> str:
        message = word(record.msg) if isinstance(record.msg, Event) else record.getMessage()
        line = _as_text(_time(record.created), record.levelname, message)
        if record.exc_info:
            lines = self.formatException(record.exc_info).splitlines()
            line = "\n".join([line, *map(one_line, lines)])
        return line


_encode = msgspec.json.Encoder(enc_hook=str).encode


def _as_json(line: dict[str, Any]) -> str:
    try:
        text = _encode(line).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, as in a file's name
        text = json.dumps(line, ensure_ascii=False, default=str, separators=(",", ":"))
    # Characters that a terminal or a line reader would act on, escaped as JSON does it.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _as_text(time: str, level: str, message: str) -> str:
    return f"{time[11:23]} {level.lower():<8} {one_line(message)}"


def word(event: Event) -> str:
    """The sentence for an event."""
    return _WORDINGS.get(type(event), str)(event)


def _time(seconds: float) -> str:
    return iso(datetime.fromtimestamp(seconds, UTC))


def _job(event: Any) -> str:
    return f"{event.type} {event.job_id}"


def _processes(count: int) -> str:
    return "1 worker process" if count == 1 else f"{count} worker processes"


def _death(event: Any) -> str:
    again = event.restart_in
    following = "not restarting" if again is None else f"restarting in {again:g} s"
    return f"process {event.pid} {event.how}; {following}"


_WORDINGS: dict[type[Event], Callable[[Any], str]] = {
    e.JobEnqueued: lambda v: f"{_job(v)} enqueued, {v.status}",
    e.JobPromoted: lambda v: f"{_job(v)} is due",
    e.JobClaimed: lambda v: f"{_job(v)} claimed, attempt {v.attempt}",
    e.JobCompleted: lambda v: f"{_job(v)} completed in {v.seconds:.3f} s, attempt {v.attempt}",
    e.JobRetrying: lambda v: (
        f"{_job(v)} attempt {v.attempt} failed, retrying in {v.delay:.1f} s: {first_line(v.error)}"
    ),
    e.JobFailed: lambda v: f"{_job(v)} failed permanently in attempt {v.attempt}: {first_line(v.error)}",
    e.JobReaped: lambda v: f"{_job(v)} recovered from lost worker {v.worker_id}, now {v.status}",
    e.JobReleased: lambda v: f"{_job(v)} released",
    e.JobCancelled: lambda v: f"{_job(v)} cancelled",
    e.JobCancelRequested: lambda v: f"{_job(v)} cancellation requested while running",
    e.JobRetried: lambda v: f"{_job(v)} retried manually",
    e.JobDeleted: lambda v: f"{_job(v)} deleted",
    e.JobsPruned: lambda v: f"{plain_plural(v.count, 'finished job')} pruned",
    e.OutcomeRefused: lambda v: (
        f"{_job(v)} late outcome of attempt {v.attempt} refused: another attempt owns the job"
    ),
    e.WorkerStarted: lambda v: (
        f"worker {v.worker_id} started, pid {v.pid}, {plain_plural(v.concurrency, 'slot')}"
    ),
    e.WorkerStopping: lambda v: f"worker {v.worker_id} stopping, {plain_plural(v.running, 'job')} running",
    e.WorkerStopped: lambda v: f"worker {v.worker_id} stopped, {plain_plural(v.released, 'job')} released",
    e.WorkerCrashed: lambda v: f"worker {v.worker_id} crashed: {first_line(v.error)}",
    e.WorkerDied: lambda v: f"worker {_death(v)}",
    e.ServerStarted: lambda v: f"serving {v.address}, pid {v.pid}",
    e.ServerStopping: lambda v: f"server stopping, {plain_plural(v.requests, 'request')} in progress",
    e.ServerStopped: lambda v: (
        "server stopped" + (f", {plain_plural(v.cut_short, 'request')} cut short" if v.cut_short else "")
    ),
    e.ServerDied: lambda v: f"server {_death(v)}",
    e.WorkerRecycled: lambda v: f"replaced worker process {v.pid}, which had no usable slots left",
    e.SupervisorStopping: lambda v: f"stopping {_processes(v.workers)}: {v.reason}",
    e.WorkerPaused: lambda v: f"worker {v.worker_id} paused",
    e.WorkerResumed: lambda v: f"worker {v.worker_id} resumed",
    e.StartsUnmarked: lambda v: f"can't note which jobs this worker starts: {v.error}",
    e.WorkerExhausted: lambda v: (
        f"worker {v.worker_id} has no usable slots left: {plain_plural(v.stuck, 'handler')} would not stop"
    ),
    e.LeaseLostByWorker: lambda v: (
        f"worker {v.worker_id} could not renew its leases in time, {plain_plural(v.jobs, 'job')} abandoned"
    ),
    e.StoreTrouble: lambda v: f"database error, retrying in {v.retry_in:.1f} s: {first_line(v.error)}",
    e.StoreRecovered: lambda v: "the database is available again",
    e.HandlerRegistered: lambda v: f"handler for {v.type} registered, executor {v.executor}",
    e.HandlerUnregistered: lambda v: f"handler for {v.type} unregistered",
    e.HandlerStuck: lambda v: f"{_job(v)} did not stop ({v.reason}), its slot stays blocked until it does",
    e.HandlerErrorIgnored: lambda v: f"{_job(v)} error after completion ignored: {first_line(v.error)}",
    e.DiscrepancyFound: lambda v: f"{_job(v)} completed, but {v.problem}: {v.subject}",
    e.Reconciled: lambda v: (
        f"{v.jobs} completed jobs reconciled in {v.seconds:.1f} s, {v.checked} effects checked, "
        f"{v.differing} {'differs' if v.differing == 1 else 'differ'}, {v.unchecked} could not be checked"
    ),
    e.ReconciliationFailed: lambda v: f"reconciliation failed: {first_line(v.error)}",
    e.QueuePaused: lambda v: f"{v.type or 'all types'} paused",
    e.QueueResumed: lambda v: f"{v.type or 'all types'} resumed",
    e.SettingChanged: lambda v: f"{v.key} set to {v.value!r}" + (f" for {v.type}" if v.type else ""),
}
