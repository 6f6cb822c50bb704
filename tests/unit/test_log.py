"""The log: every event has a sentence, every line is one line, nothing can paint on a terminal."""

from __future__ import annotations

import io
import json
import logging
import select
import sys
from collections.abc import Iterator
from logging.handlers import BufferingHandler
from typing import Any

import pytest

from holdfast import events as e
from holdfast.events import Event, Events
from holdfast.observe.log import JsonFormatter, TextFormatter, configure, word

EVENTS = [
    kind
    for kind in vars(e).values()
    if isinstance(kind, type) and issubclass(kind, Event) and hasattr(kind, "name")
]
# Text that a payload or an exception may smuggle in: line breaks, terminal control, a lone surrogate.
HOSTILE = "a\nb\r\x1b[31m\x9b31m\x7f\u2028\ud800"


@pytest.fixture(autouse=True)
def logger_as_before() -> Iterator[None]:
    before = (
        logging.getLogger(e.LOGGER).handlers[:],
        logging.getLogger(e.LOGGER).level,
        logging.getLogger(e.LOGGER).propagate,
    )
    yield
    logging.getLogger(e.LOGGER).handlers[:], logging.getLogger(e.LOGGER).propagate = before[0], before[2]
    logging.getLogger(e.LOGGER).setLevel(before[1])


def make(kind: type[Event], text: str = "x") -> Event:
    """An event with every field filled."""
    values: dict[str, Any] = {}
    for field in kind.__struct_fields__:
        annotation = str(kind.__annotations__.get(field, "str"))
        for base in kind.__mro__:
            annotation = str(getattr(base, "__annotations__", {}).get(field, annotation))
            if field in getattr(base, "__annotations__", {}):
                break
        values[field] = 2 if annotation.startswith(("int", "float")) else text
    return kind(**values)


def record(message: object, level: int = logging.INFO, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("holdfast", level, "file.py", 1, message, None, exc_info)


def error_info() -> Any:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        return sys.exc_info()


def test_there_are_events_to_look_at() -> None:
    assert len(EVENTS) > 25


def test_every_event_has_a_name_of_its_own() -> None:
    names = [kind.name for kind in EVENTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.name)
def test_every_event_has_a_sentence(kind: type[Event]) -> None:
    event = make(kind)
    assert word(event) != str(event)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.name)
def test_every_event_is_one_printable_line_of_text(kind: type[Event]) -> None:
    line = TextFormatter().format(record(make(kind, HOSTILE)))
    assert line.isprintable()


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.name)
def test_every_event_is_one_printable_line_of_json_that_keeps_its_fields(kind: type[Event]) -> None:
    event = make(kind, HOSTILE)
    line = JsonFormatter().format(record(event))
    assert line.isprintable()
    line.encode()
    parsed = json.loads(line)
    assert parsed["event"] == kind.name
    assert {name: parsed[name] for name in event.fields()} == event.fields()


def test_a_json_line_begins_with_time_level_and_event() -> None:
    line = JsonFormatter().format(record(make(e.JobCompleted), logging.WARNING))
    parsed = json.loads(line)
    assert [*parsed][:3] == ["time", "level", "event"]
    assert parsed["level"] == "warning"
    assert parsed["time"].endswith("Z")


def test_a_field_without_a_value_is_left_out() -> None:
    line = JsonFormatter().format(record(e.JobCancelled(job_id="1", type="a")))
    assert "worker_id" not in json.loads(line)


def test_text_of_any_language_stays_readable() -> None:
    event = e.StoreTrouble(error="größer 😀", retry_in=1.0)
    assert "größer 😀" in TextFormatter().format(record(event))
    assert "größer 😀" in JsonFormatter().format(record(event))


def test_an_error_of_several_lines_is_told_by_its_first() -> None:
    event = e.JobFailed(job_id="1", type="a", attempt=1, worker_id=None, error="ValueError: no\nmore")
    assert "ValueError: no" in word(event)
    assert "more" not in word(event)


def test_other_messages_of_the_logger_are_lines_too() -> None:
    line = JsonFormatter().format(record("a subscriber\nfailed"))
    assert json.loads(line)["message"] == "a subscriber\nfailed"
    assert TextFormatter().format(record("a subscriber\nfailed")).isprintable()


def test_a_traceback_is_part_of_the_json_line() -> None:
    line = JsonFormatter().format(record("broken", exc_info=error_info()))
    assert line.isprintable()
    assert "ValueError" in json.loads(line)["traceback"]


def test_a_traceback_below_a_text_line_has_no_terminal_control() -> None:
    text = TextFormatter().format(record("broken", exc_info=error_info()))
    assert "ValueError" in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_an_event_shows_its_name_and_fields_to_any_other_logger() -> None:
    assert str(e.JobDeleted(job_id="job1", type="crawl")) == "job.deleted job_id='job1' type='crawl'"


# configure


def test_configure_sends_events_to_the_stream() -> None:
    stream = io.StringIO()
    configure("text", stream=stream)
    Events().emit(e.JobDeleted(job_id="job1", type="crawl"))
    assert stream.getvalue().endswith("info     crawl job1 deleted\n")


def test_auto_is_json_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    Events().emit(e.JobDeleted(job_id="job1", type="crawl"))
    assert json.loads(stream.getvalue())["event"] == "job.deleted"


def test_auto_is_text_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    handler = configure(stream=Terminal())
    assert isinstance(handler.formatter, TextFormatter)


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("text", stream=first)
    configure("text", stream=second)
    Events().emit(e.JobDeleted(job_id="job1", type="crawl"))
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


def test_the_level_decides_what_is_told() -> None:
    stream = io.StringIO()
    configure("text", level=logging.WARNING, stream=stream)
    events = Events()
    events.emit(e.JobDeleted(job_id="job1", type="crawl"))
    assert stream.getvalue() == ""
    assert not events.wanted(e.JobDeleted)
    assert events.wanted(e.JobFailed)


class Writes(io.StringIO):
    """Remembers each time that it is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


DELETED = [e.JobDeleted(job_id=f"job{number}", type="crawl") for number in range(3)]


@pytest.mark.parametrize("format", ["text", "json"])
def test_what_happened_at_one_time_is_written_at_once(format: str) -> None:
    stream = Writes()
    configure(format, stream=stream)
    Events().emit_all(DELETED)
    assert len(stream.writes) == 1
    lines = stream.getvalue().splitlines()
    formatter = TextFormatter() if format == "text" else JsonFormatter()
    assert len(lines) == 3
    for line, event in zip(lines, DELETED, strict=True):
        assert line.partition("crawl")[1:] == formatter.format(record(event)).partition("crawl")[1:]


def test_lines_of_several_processes_are_not_torn() -> None:
    """A pipe takes so much at once; of a longer text, it takes what it has room for, and another's next."""
    stream = Writes()
    configure("json", stream=stream)
    Events().emit_all([e.JobDeleted(job_id=f"{number}ü", type="crawl") for number in range(1000)])
    assert len(stream.writes) > 10
    assert all(text.endswith("\n") and len(text.encode()) <= select.PIPE_BUF for text in stream.writes)
    assert len(stream.getvalue().splitlines()) == 1000


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_letter_that_the_stream_lacks_is_escaped(format: str) -> None:
    """And costs neither its own line nor its neighbours."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    configure(format, stream=stream)
    Events().emit_all([DELETED[0], e.JobDeleted(job_id="ü🎉", type="crawl"), DELETED[1]])
    logging.getLogger("holdfast").info("ü")
    lines = written.getvalue().decode().splitlines()
    assert len(lines) == 4
    assert "\\u00fc\\ud83c\\udf89" in lines[1]
    if format == "json":
        assert json.loads(lines[1])["job_id"] == "ü🎉"


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("closed"), RuntimeError("odd")])
def test_a_stream_that_fails_stops_nobody(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    configure("json", stream=Failing())
    Events().emit_all(DELETED)
    assert ("odd" in capsys.readouterr().err) == isinstance(error, RuntimeError)


def test_a_handler_of_the_application_is_not_taken_for_ours() -> None:
    class Theirs(BufferingHandler):
        def handle_events(self, *_: object) -> None:
            raise AssertionError("it is the application's own method")

    logger = configure("json", stream=io.StringIO())
    theirs = Theirs(100)
    logging.getLogger("holdfast").removeHandler(logger)
    logging.getLogger("holdfast").addHandler(theirs)
    Events().emit_all(DELETED)
    assert [found.msg for found in theirs.buffer] == DELETED


def test_a_formatter_of_the_application_formats_events_too() -> None:
    stream = io.StringIO()
    configure("json", stream=stream).setFormatter(logging.Formatter("theirs: %(message)s"))
    Events().emit_all(DELETED)
    assert stream.getvalue().count("theirs: ") == 3


@pytest.mark.parametrize("of", ["logger", "handler", "level"])
def test_a_filter_of_the_application_holds_for_events_too(of: str) -> None:
    stream = io.StringIO()
    handler = configure("text", stream=stream)
    if of == "level":
        handler.setLevel(logging.WARNING)
    else:
        filtered = handler if of == "handler" else logging.getLogger("holdfast")
        filtered.addFilter(lambda record: "job1" not in str(record.msg))
    try:
        Events().emit_all(DELETED)
    finally:
        logging.getLogger("holdfast").filters.clear()
    assert stream.getvalue().count("deleted") == (0 if of == "level" else 2)


def test_another_handler_of_the_application_gets_records() -> None:
    configure("text", stream=io.StringIO())
    other = BufferingHandler(100)
    logging.getLogger("holdfast").addHandler(other)
    try:
        Events().emit_all(DELETED)
    finally:
        logging.getLogger("holdfast").removeHandler(other)
    assert [each.msg for each in other.buffer] == DELETED


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, text or json"):
        configure("xml")


# Subscribers


def test_a_subscriber_hears_every_event_until_it_unsubscribes() -> None:
    events, heard = Events(), list[Event]()
    unsubscribe = events.subscribe(heard.append)
    event = e.QueuePaused()
    events.emit(event)
    unsubscribe()
    events.emit(event)
    assert heard == [event]


def test_a_subscriber_that_fails_takes_nobody_down(caplog: pytest.LogCaptureFixture) -> None:
    events, heard = Events(), list[Event]()

    def broken(event: Event) -> None:
        raise RuntimeError("broken")

    events.subscribe(broken)
    events.subscribe(heard.append)
    logging.getLogger(e.LOGGER).propagate = True
    events.emit(e.QueuePaused())
    assert len(heard) == 1
    assert "a subscriber of queue.paused failed" in caplog.text
