"""What queuectl shows on a terminal, and what it prints elsewhere: tables and colours, or plain lines."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

import pytest
from rich.cells import cell_len

from holdfast import Queue
from tests.surfaces.support import Cli, Ran, on_terminal, queuectl, terminal

pytestmark = pytest.mark.process

COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38;5|38;2)[0-9;]*m")
LONG_ID = "a-very-long-id." + "x" * 100
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def varied_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with jobs in several states, with UUIDs, long types, long errors and long payloads."""
    home = tmp_path_factory.mktemp("varied")
    with Queue(f"sqlite:///{home / 'queue.db'}", defaults={"backoff_factor": 3600}) as jobs:
        jobs.register("ok", lambda payload: None)
        jobs.register("bad", break_down)
        jobs.register("generate_the_yearly_report_of_a_customer:eu-central", lambda payload: 1 / 0)
        jobs.enqueue("ok", {})
        jobs.enqueue("bad", {}, max_attempts=1)
        jobs.enqueue("bad", {})
        words = {"words": "x" * 300}
        jobs.enqueue("generate_the_yearly_report_of_a_customer:eu-central", words, max_attempts=1)
        assert jobs.drain() == 4
        jobs.cancel(jobs.enqueue("ok", {}).id)
        jobs.enqueue("shell", {"command": "convert " + "photo.jpg " * 30})
        jobs.enqueue("send_email", {"to": "名前@例え.jp", "text": "日本語" * 40}, delay=3600)
    return home


def break_down(payload: object) -> None:
    raise RuntimeError("it broke")


@pytest.fixture
def varied(varied_home: Path) -> Iterator[Queue]:
    """The queue of those jobs, only to look at."""
    with Queue(f"sqlite:///{varied_home / 'queue.db'}") as queue:
        yield queue


class Shown(Protocol):
    def __call__(self, words: str, width: int = 80, env: Mapping[str, str] | None = None) -> Ran: ...


@pytest.fixture(scope="module")
def shown(varied_home: Path) -> Shown:
    """What a command shows of those jobs on a terminal, which is run once however many look at it."""

    @cache
    def run(words: str, width: int, env: tuple[tuple[str, str], ...]) -> Ran:
        return on_terminal(varied_home, *words.split(), width=width, env=dict(env))

    def show(words: str, width: int = 80, env: Mapping[str, str] | None = None) -> Ran:
        return run(words, width, tuple((env or {}).items()))

    return show


def widest(ran: Ran) -> int:
    return max(cell_len(line) for line in ran.text.splitlines())


# On a terminal.


@pytest.mark.parametrize("width", [80, 120, 200])
def test_table_of_a_list_fits_the_terminal_and_cuts_no_id(shown: Shown, varied: Queue, width: int) -> None:
    ran = shown("list", width=width)
    assert ran.code == 0
    assert ran.text.splitlines()[0].split()[:5] == ["ID", "STATUS", "TYPE", "TRIES", "AGE"]
    assert set(UUID.findall(ran.text)) == {job.id for job in varied.jobs()}
    assert widest(ran) <= width
    for state in ("completed", "failed", "scheduled", "cancelled", "pending"):
        assert state in ran.text


def test_columns_of_a_list_stand_below_their_headings(shown: Shown) -> None:
    heading, *lines = shown("list", width=200).text.splitlines()
    at = heading.index("STATUS")
    states = ("completed", "failed", "scheduled", "cancelled", "pending")
    assert all(line[at:].split()[0] in states and line[at - 1] == " " for line in lines)


def test_list_says_what_a_job_is_about_in_80_columns(shown: Shown) -> None:
    text = shown("list").text
    assert "convert photo.jpg" in text
    assert "it broke" in text
    assert "ZeroDivisionError" in text


def test_id_longer_than_the_terminal_is_not_cut(home: Path, queue: Queue) -> None:
    queue.enqueue("ok", {}, id=LONG_ID)
    assert LONG_ID in on_terminal(home, "list").text.replace("\n", "")


def test_list_on_a_terminal_says_when_there_is_more(home: Path, queue: Queue) -> None:
    queue.enqueue_many("ok", [{}] * 5)
    assert "2 of 5" in on_terminal(home, "list", "--limit", "2").text
    assert "of 5" not in on_terminal(home, "list", "--limit", "5").text


def test_empty_list_on_a_terminal_says_so(home: Path, empty_queue: None) -> None:
    assert on_terminal(home, "list").text == "no jobs\n"
    assert on_terminal(home, "worker", "list").text == "no worker is running\n"


def test_states_have_colours_on_a_terminal(shown: Shown) -> None:
    out = shown("list").out
    assert "\x1b[32mcompleted" in out
    assert "\x1b[31mfailed" in out
    assert "\x1b[33mpending" in out


@pytest.mark.parametrize(
    "words", ["list", "status", "report", "doctor", "config list", "worker list", "dlq list"]
)
def test_screen_of_80_columns_is_never_exceeded(shown: Shown, words: str) -> None:
    ran = shown(words)
    assert ran.code == (1 if words == "doctor" else 0)
    if words != "doctor":  # advice is to be copied, and the terminal wraps it
        assert widest(ran) <= 80, ran.text
    assert "\t" not in ran.out


@pytest.mark.parametrize("words", ["list", "status", "report", "doctor", "show ID", "config list"])
def test_no_color_is_respected(shown: Shown, varied: Queue, words: str) -> None:
    command = words.replace("ID", varied.jobs(status="failed", type="bad")[0].id)
    assert COLOUR.search(shown(command).out) or words == "config list"
    assert COLOUR.search(shown(command, env={"NO_COLOR": "1"}).out) is None


def test_dumb_terminal_gets_no_escapes(shown: Shown) -> None:
    assert "\x1b" not in shown("list", env={"TERM": "dumb"}).out


def test_status_on_a_terminal_has_a_table_of_types(shown: Shown) -> None:
    text = shown("status").text
    heading, *lines = text.splitlines()
    assert heading.split()[:7] == [
        "TYPE",
        "SCHEDULED",
        "PENDING",
        "PROCESSING",
        "COMPLETED",
        "FAILED",
        "CANCELLED",
    ]
    totals = next(line.split() for line in lines if line.startswith("all "))
    assert totals[1:7] == ["2", "1", "0", "1", "2", "1"]
    assert "no worker is running" in text
    assert "ok " in text


def test_report_on_a_terminal_has_a_table_for_each_answer(shown: Shown, varied: Queue) -> None:
    text = shown("report").text
    for part in (
        "What work is outstanding right now?",
        "SCHEDULED",
        "it broke",
        "MEAN",
        "What ran in the last hour?",
    ):
        assert part in text
    assert set(UUID.findall(text)) == {job.id for job in varied.jobs(status="failed")}


def test_show_on_a_terminal_has_colours_and_the_whole_error(shown: Shown, varied: Queue) -> None:
    job = varied.jobs(status="failed", type="bad")[0]
    ran = shown(f"show {job.id}")
    assert job.id in ran.text
    assert "\x1b[31m" in ran.out
    assert "RuntimeError: it broke" in ran.text


def test_nothing_in_a_job_acts_on_the_terminal(home: Path, queue: Queue) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x1b[31m\r\x9b31m"
    queue.enqueue("shell", {"command": f"echo {evil}", "cwd": evil}, id="job1")
    for words in (("list",), ("show", "job1"), ("list", "--full")):
        shown = on_terminal(home, *words).out
        for part in ("\x1b]0", "\x1b[2J", "\x07", "\x9b"):
            assert part not in shown, words


def test_markup_in_a_job_is_text(home: Path, queue: Queue) -> None:
    queue.enqueue("shell", {"command": "[bold]x[/bold] :smile: [/oops]"}, id="job1")
    for words in (("list",), ("show", "job1")):
        assert "[bold]x[/bold] :smile: [/oops]" in on_terminal(home, *words).text


def test_json_on_a_terminal_is_json(home: Path, queue: Queue) -> None:
    queue.enqueue("ok", {"long": "x" * 500}, id="job1")
    ran = on_terminal(home, "show", "job1", "--json")
    assert "\x1b" not in ran.out
    assert ran.json["payload"] == {"long": "x" * 500}


def test_enqueue_on_a_terminal_prints_the_id_and_nothing_else(home: Path) -> None:
    assert on_terminal(home, "enqueue", "--command", "true", "--id", "job1").out == "job1\r\n"


def test_error_on_a_terminal_is_one_line(home: Path, empty_queue: None) -> None:
    ran = on_terminal(home, "show", "nope")
    assert (ran.code, ran.text) == (1, "queuectl: there is no job 'nope'\n")


# The live screen.


def test_watched_status_is_a_screen_until_ctrl_c(home: Path, queue: Queue) -> None:
    queue.enqueue("crawl", {})
    screen = terminal(home, "status", "--watch", height=24)
    try:
        screen.read_until("crawl")
        queue.enqueue("mirror", {})
        screen.read_until("mirror")
        screen.type("\x03")
        ran = screen.finish()
    finally:
        screen.close()
    assert ran.code == 130
    assert "Traceback" not in ran.out
    # The screen was switched, and it and the cursor are given back.
    assert "\x1b[?1049h" in ran.out
    assert ran.out.rindex("\x1b[?1049l") > ran.out.rindex("\x1b[?1049h")
    assert ran.out.rindex("\x1b[?25h") > ran.out.rindex("\x1b[?25l")


@pytest.mark.parametrize("height", [5, 24])
def test_watched_status_keeps_to_the_size_of_the_terminal(home: Path, queue: Queue, height: int) -> None:
    for number in range(40):
        queue.enqueue(f"type{number:02}", {})
    screen = terminal(home, "status", "--watch", height=height)
    try:
        screen.read_until("Ctrl-C")
        screen.read_until("type00")
        screen.type("\x03")
        ran = screen.finish()
    finally:
        screen.close()
    frame = ran.out.split("\x1b[H")[-1]
    assert frame.count("\n") <= height, f"{frame.count(chr(10))} lines on a terminal of {height}"


def test_watched_status_shows_what_matters_though_there_are_many_types(home: Path, queue: Queue) -> None:
    for number in range(40):
        queue.enqueue(f"type{number:02}", {})
    queue.enqueue("type31", {})
    queue.pause()
    screen = terminal(home, "status", "--watch", height=24)
    try:
        screen.read_until("the whole queue is paused")
        screen.read_until("type31")
        screen.read_until("all (40)")
        screen.read_until("no worker is running")
        screen.type("\x03")
        screen.finish()
    finally:
        screen.close()


# Elsewhere.


@pytest.mark.parametrize(
    "words", ["list", "status", "report", "doctor", "config list", "show ID", "why ID", "dlq list"]
)
def test_output_elsewhere_has_no_escapes(
    cli: Cli, varied: Queue, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    command = words.replace("ID", varied.jobs(status="failed")[0].id).split()
    ran = cli(*command, "--database", varied.url)
    assert ran.out
    assert "\x1b" not in ran.out + ran.err


def test_output_of_the_program_elsewhere_has_no_escapes(varied_home: Path) -> None:
    ran = queuectl(varied_home, "list", env={"TERM": "xterm-256color", "FORCE_COLOR": "1"})
    assert "completed" in ran.out
    assert "\x1b" not in ran.out + ran.err


def test_list_elsewhere_is_tab_separated_without_headings_and_uncut(varied_home: Path, varied: Queue) -> None:
    ran = queuectl(varied_home, "list", env={"COLUMNS": "40"})
    assert len(ran.rows) == len(varied.jobs())
    assert {len(row) for row in ran.rows} == {6}
    assert {row[0] for row in ran.rows} == {job.id for job in varied.jobs()}
    assert any(("photo.jpg " * 30).strip() in row[5] for row in ran.rows)


@pytest.mark.skipif(sys.platform != "linux", reason="the C locale of Linux")
def test_output_that_the_locale_can_not_say_is_escaped(home: Path, queue: Queue) -> None:
    queue.enqueue("t", {"text": "日本"}, id="job1")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    ran = queuectl(home, "list", env=locale)
    assert (ran.code, ran.err) == (0, "")
    assert "job1" in ran.out
