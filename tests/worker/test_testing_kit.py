"""holdfast.testing and the pytest fixtures, as an application's tests use them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.errors import ConfigError
from holdfast.testing import MovableClock, assert_enqueued, drain, enqueued, isolated
from tests.worker.support import run_script


def test_movable_clock_stands_still_until_it_is_moved() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    clock = MovableClock(start)
    assert clock.now == clock.now == start
    clock.advance(1.5)
    clock.advance(minutes=1, hours=2)
    assert clock.now == start + timedelta(hours=2, minutes=1, seconds=1.5)
    clock.move_to(start)
    assert clock.now == start


def test_movable_clock_begins_with_the_present() -> None:
    assert abs(MovableClock().now - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("by", [float("inf"), -float("inf"), "1 fortnight"])
def test_movable_clock_refuses_what_is_no_duration(by: float | str) -> None:
    with pytest.raises(ConfigError, match="by must be a duration"):
        MovableClock().advance(by)


def test_movable_clock_refuses_a_naive_datetime() -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001
    with pytest.raises(ConfigError, match="moment is a naive datetime"):
        MovableClock(naive)
    with pytest.raises(ConfigError, match="moment is a naive datetime"):
        MovableClock().move_to(naive)


def test_clock_decides_when_jobs_are_due(url: str) -> None:
    clock = MovableClock()
    with Queue(url, clock=clock) as queue:
        queue.register("remind", lambda payload: None)
        job = queue.enqueue("remind", delay=86_400)
        assert job.created_at == clock.now
        assert drain(queue) == 0
        clock.advance(hours=24)
        assert drain(queue) == 1
        done = queue.get(job.id)
        assert done is not None
        assert done.finished_at == clock.now


def test_enqueued_lists_the_jobs_oldest_first(queue: Queue) -> None:
    for n in range(3):
        queue.enqueue("a", {"n": n})
    queue.enqueue("b")
    assert [job.payload["n"] for job in enqueued(queue, "a")] == [0, 1, 2]
    assert len(enqueued(queue)) == 4
    assert enqueued(queue, status="failed") == []


def test_assert_enqueued_returns_what_fits(queue: Queue) -> None:
    queue.enqueue("mail", {"to": "a", "subject": "Hi"}, priority=5)
    queue.enqueue("mail", {"to": "b", "subject": "Hi"})
    assert len(assert_enqueued(queue, "mail")) == 2
    (job,) = assert_enqueued(queue, "mail", {"to": "a"}, priority=5)
    assert job.payload["to"] == "a"
    assert len(assert_enqueued(queue, "mail", {"subject": "Hi"}, count=2)) == 2
    assert assert_enqueued(queue, "mail", {"to": "nobody"}, count=0) == []


def test_assert_enqueued_shows_the_fields_it_compared(queue: Queue) -> None:
    queue.enqueue("mail", {"to": "a"}, group="customer:42")
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(queue, "mail", group="customer:7", priority=0)
    assert "\n  {'to': 'a'}, group='customer:42', priority=0" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (("other",), {}),
        (("mail", {"to": "b"}), {}),
        (("mail", {"missing": None}), {}),
        (("mail",), {"priority": 1}),
        (("mail",), {"count": 2}),
    ],
)
def test_assert_enqueued_says_what_it_looked_for_and_what_there_is(
    queue: Queue, arguments: tuple[object, ...], fields: dict[str, object]
) -> None:
    queue.enqueue("mail", {"to": "a"})
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(queue, *arguments, **fields)  # type: ignore[arg-type]
    text = str(caught.value)
    assert repr(arguments[0]) in text
    assert ("none" if arguments[0] == "other" else "{'to': 'a'}") in text


APPLICATION_TESTS = """
from holdfast import Queue
from holdfast.testing import assert_enqueued

def sign_up(queue: Queue, address: str) -> None:
    queue.enqueue("send_email", {"to": address})
    queue.enqueue("send_email", {"to": address, "reminder": True}, delay=86_400)

def test_mail_is_sent_and_a_reminder_a_day_later(holdfast_queue, holdfast_clock):
    sent = []
    holdfast_queue.register("send_email", sent.append)
    sign_up(holdfast_queue, "a@b.c")
    assert_enqueued(holdfast_queue, "send_email", {"to": "a@b.c"}, count=2)
    assert holdfast_queue.drain() == 1
    holdfast_clock.advance(hours=24)
    assert holdfast_queue.drain() == 1
    assert len(sent) == 2

def test_every_test_has_a_queue_of_its_own(holdfast_queue):
    assert holdfast_queue.jobs() == []
"""


@pytest.mark.process
def test_fixtures_work_in_an_application_without_any_setup(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(APPLICATION_TESTS, encoding="utf-8")
    # Of all plugins only ours is loaded: the others take longer than the tests.
    others = [plugin.name for plugin in entry_points(group="pytest11") if plugin.name != "holdfast"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
        + [word for name in others for word in ("-p", f"no:{name}")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.process
def test_plugin_costs_a_test_run_that_does_not_use_it_nothing(tmp_path: Path) -> None:
    script = "import sys, holdfast.pytest_plugin\nprint('holdfast.queue' in sys.modules)\n"
    done = run_script(tmp_path, script)
    assert done.stdout == "False\n", done.stderr


def test_isolated_queue_takes_jobs_through_the_connection_of_the_test(queue: Queue, tmp_path: Path) -> None:
    before = queue.enqueue("before").id
    address, clock = queue.url, queue.clock
    with closing(sqlite3.connect(tmp_path / "test.db")) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
        with isolated(queue, f"sqlite:///{tmp_path}/test.db") as movable:
            with connection:
                connection.execute("INSERT INTO users VALUES ('ada')")
                queue.enqueue("welcome", {"to": "ada"}, delay=60, connection=connection)
            assert_enqueued(queue, "welcome", {"to": "ada"}, count=1)
            queue.register("welcome", lambda payload: None)
            movable.advance(60)
            assert drain(queue) == 1
    assert (queue.url, queue.clock) == (address, clock)
    assert [job.id for job in queue.jobs()] == [before]


def test_isolated_queue_in_a_folder_is_empty(queue: Queue, tmp_path: Path) -> None:
    queue.enqueue("before")
    with isolated(queue, tmp_path):
        assert queue.jobs() == []
        assert Path(tmp_path, "holdfast.db").exists()


@pytest.mark.parametrize("place", ["100% odd?", "sqlite:///100% odd%3F/holdfast.db"])
def test_isolated_queue_stays_where_it_is_when_the_process_goes_elsewhere(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    Path(tmp_path, "100% odd?").mkdir()
    Path(tmp_path, "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with isolated(queue, place):
        queue.enqueue("work")
        queue.close()
        monkeypatch.chdir("elsewhere")
        assert queue.count() == 1
    assert Path(tmp_path, "100% odd?", "holdfast.db").exists()
