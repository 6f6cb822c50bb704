"""queuectl move under kills and suspensions, and while producers and workers go on: one queue, never two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.cli.main import run
from holdfast.errors import HoldfastError, QueueArriving, QueueMoved
from holdfast.events import StoreTrouble
from holdfast.handlers.options import Defaults
from holdfast.store.move import open_end
from holdfast.store.moved import MOVE_TABLE, MOVED, TARGET
from holdfast.store.open import store_of
from holdfast.web.errors import refusal
from tests.conformance.steps import claim_one
from tests.support import Recorder, wait_until
from tests.unit.test_move import Places, connected, contents, fill, fill_directly, moved, opened, works

ROOT = Path(__file__).parents[2]
MOST_COMMITS = 20


class Movers:
    """The program that moves queues and is hit while it is at it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.mover"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.child = 0

    def start(self, source: str, target: str, commit: int, when: str, number: signal.Signals) -> None:
        order = {"source": source, "target": target, "commit": commit, "when": when, "signal": number}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self.child = self._number()

    def code(self) -> int:
        """How it ended."""
        return self._number()

    def _number(self) -> int:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip().lstrip("-").isdecimal():
                return int(line)
        raise AssertionError("the program has ended")

    def wait_until_suspended(self) -> None:
        state = Path(f"/proc/{self.child}/stat")
        wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] in "TZ", 30)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stderr.close()


@pytest.fixture
def movers() -> Iterator[Movers]:
    with closing(Movers()) as movers:
        yield movers


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Places]:
    with closing(Places(tmp_path)) as places:
        yield places


def expire(url: str) -> None:
    """Let the time pass for which a mover that is gone has closed the source."""
    with closing(connected(url)) as connection:
        if url.startswith("sqlite"):
            connection.execute(f"UPDATE {MOVE_TABLE} SET until = 0")
        else:
            connection.execute(f"SELECT setval('{MOVE_TABLE}_until', 0)")


def state(url: str) -> str | None:
    with closing(open_end(url)) as end:
        mark = end.read_mark()
    return None if mark is None else mark.state


def refuses(url: str) -> bool:
    """Whether the place is no queue that anybody can use."""
    try:
        with opened(url):
            return False
    except (QueueMoved, QueueArriving):
        return True


# Kills


@pytest.mark.parametrize("way", [("sqlite", "postgres"), ("postgres", "sqlite")], ids="-".join)
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_at_any_commit_leaves_one_complete_queue(
    place: Places, movers: Movers, way: tuple[str, str], when: str
) -> None:
    first, second = way
    source, target = filled(place(first)), place(second)
    outcomes = []
    for commit in range(1, MOST_COMMITS):
        before = contents(source)
        movers.start(source, target, commit, when, signal.SIGKILL)
        code = movers.code()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        outcome = state(source)
        outcomes.append(outcome)
        if outcome == MOVED:
            finish_by_the_same_command(source, target)
            assert contents(target) == before
            works(target)
            source, target = filled(place(first)), place(second)
        else:
            if outcome is not None:
                expire(source)
            works_where_it_was(source, target, before)
    assert code == 0
    assert MOVED in outcomes
    assert {"draining", "copying"} <= set(outcomes)
    assert contents(target) == before
    assert refuses(source)
    works(target)


def filled(url: str) -> str:
    with opened(url) as store:
        fill(store)
    fill_directly(url)
    return url


def finish_by_the_same_command(source: str, target: str) -> None:
    assert refuses(source)
    is_live = not refuses(target)
    assert run(["--database", source, "move", "--to", target]) == (1 if is_live else 0)
    assert refuses(source)
    assert not refuses(target)


def works_where_it_was(source: str, target: str, before: object) -> None:
    """Whoever opens it next finds all as it was."""
    with opened(source):
        assert contents(source) == before
    works(source)
    with closing(open_end(target)) as end:
        mark = end.read_mark()
        assert mark is None or mark.role == TARGET
        is_empty = not end.last_seq()
    assert refuses(target) or is_empty


# Suspensions


@pytest.mark.parametrize("way", [("sqlite", "postgres"), ("postgres", "sqlite")], ids="-".join)
def test_mover_that_was_suspended_for_too_long_makes_no_second_queue(
    place: Places, movers: Movers, way: tuple[str, str]
) -> None:
    source, target = filled(place(way[0])), place(way[1])
    suspended = set()
    for commit in range(1, MOST_COMMITS):
        movers.start(source, target, commit, "after", signal.SIGSTOP)
        movers.wait_until_suspended()
        outcome = state(source)
        if outcome == MOVED:
            os.kill(movers.child, signal.SIGCONT)
            assert movers.code() == 0
            break
        with Queue(source) as queue:
            queue.open()
            if outcome is not None:
                suspended.add(outcome)
                expire(source)
            job = queue.enqueue("late", {})
            os.kill(movers.child, signal.SIGCONT)
            if outcome is None:  # it had not begun
                assert movers.code() == 0
                assert refuses(source)
                source, target = filled(place(way[0])), place(way[1])
                continue
            assert movers.code() == 1
            assert queue.get(job.id) is not None
        works(source)
        with closing(open_end(target)) as end:
            assert end.read_mark() is None
            assert end.last_seq() == 0 or contents(target)["holdfast_jobs"][1:] == []
    assert suspended == {"draining", "copying"}
    works(target)


# While others go on


@pytest.mark.parametrize("way", [("sqlite", "postgres"), ("postgres", "sqlite")], ids="-".join)
def test_producers_and_workers_lose_nothing_through_a_move(
    place: Places, way: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = place(way[0]), place(way[1])
    defaults: Defaults = {"lease_seconds": 3, "heartbeat_interval": 0.2, "poll_interval": 0.1}
    accepted: list[str] = []
    ran: list[str] = []
    refused = threading.Event()
    enough = threading.Event()

    def produce() -> None:
        with Queue(source) as here, Queue(target) as there:
            queues = [here, there]
            while not enough.wait(0.01):
                try:
                    accepted.append(queues[0].enqueue("note", {"n": len(accepted)}).id)
                except (QueueMoved, QueueArriving):
                    refused.set()
                    queues.reverse()

    with Queue(source, defaults=defaults) as old, Queue(target, defaults=defaults) as new:
        for queue in (old, new):
            queue.register("note", lambda payload: ran.append(payload["n"]))
        told = Recorder(old.events)
        worker = old.worker(concurrency=2)
        worker.start()
        producers = [threading.Thread(target=produce) for _ in range(2)]
        for producer in producers:
            producer.start()
        wait_until(lambda: len(ran) > 20, 30)
        code = run(["--database", source, "move", "--to", target, "--json"])
        assert (code, capsys.readouterr().err) == (0, "")
        other = new.worker(concurrency=2)
        other.start()
        count = len(accepted)
        wait_until(lambda: len(accepted) > count + 20)
        enough.set()
        for producer in producers:
            producer.join(60)
        wait_until(lambda: new.stats()["completed"] == len(accepted), 30)
        assert all((job := new.get(id)) is not None and job.status == "completed" for id in accepted)
        trouble = told.wait(StoreTrouble)
        assert "moved to" in trouble.error
        worker.stop()
        other.stop()
    assert refused.is_set()
    assert len(ran) == len(accepted)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_running_worker_goes_on_after_its_mover_was_killed(place: Places, engine: str) -> None:
    """Nobody opens the queue: the worker's own heartbeat ends the pause."""
    source = place(engine)
    defaults: Defaults = {"lease_seconds": 3, "heartbeat_interval": 0.2, "poll_interval": 0.1}
    with Queue(source, defaults=defaults) as queue, closing(open_end(source)) as end:
        queue.register("note", lambda payload: None)
        worker = queue.worker(concurrency=1)
        worker.start()
        try:
            end.close_to_producers("sqlite:////elsewhere.db", "token", 60)
            assert end.close_to_all("token")
            assert store_of(queue).list_paused()
            expire(source)
            job = queue.enqueue("note", {})
            assert queue.wait(job.id, timeout=60).status == "completed"
        finally:
            worker.stop()
        assert state(source) == "copying"
    works(source)


def test_jobs_of_a_dead_worker_do_not_hold_a_move_up(place: Places) -> None:
    source, target = place("sqlite"), place("sqlite")
    with Queue(source) as queue:
        queue.set_config("heartbeat_interval", 0.1)
        queue.enqueue("note", {}, id="a")
        claim_one(store_of(queue), "note", lease=0.2)
    assert run(["--database", source, "move", "--to", target, "--json"]) == 0
    with Queue(target) as queue:
        job = queue.get("a")
        assert job is not None
        assert (job.status, job.attempts) == ("pending", 0)  # nobody has started it


def test_running_job_is_waited_for_and_then_the_move_is_undone(
    place: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = place("sqlite"), place("sqlite")
    with Queue(source) as queue:
        queue.enqueue("note", {}, id="a")
        claim_one(store_of(queue), "note")
        before = contents(source)
        assert run(["--database", source, "move", "--to", target, "--timeout", "0.3"]) == 1
        assert "1 job is still running after 0.3 s" in capsys.readouterr().err
        assert contents(source) == before
        assert state(source) is None
        queue.enqueue("note", {})


def test_moved_queue_says_so_over_http(place: Places) -> None:
    source, target = place("sqlite"), place("sqlite")
    with Queue(source) as queue:
        queue.enqueue("note", {})
        moved(source, target)
        with pytest.raises(HoldfastError) as caught:
            queue.enqueue("note", {})
        refused = refusal(caught.value)
        assert (refused.status_code, refused.headers) == (503, {"Retry-After": "1"})
