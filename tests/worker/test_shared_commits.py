"""Enqueues that share commits: who commits for whom, and that everybody gets an answer, whatever happens."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from holdfast import Context, Job, Queue
from holdfast.enqueueing import shared_commits
from holdfast.enqueueing.shared_commits import SharedCommits
from holdfast.errors import CommitUncertain, DuplicateJob, NestedWrite, StoreUnavailable
from holdfast.queue import opened
from holdfast.store.open import store_of
from holdfast.store.protocol import Store
from holdfast.store.records import NewJob, Verdict
from tests.support import both_engines, wait_until
from tests.worker.support import PATIENCE, Spy, get, in_thread, join, run_script


class SlowInserts:
    """Holds the first commit until the test lets it go, so that others gather behind it."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self._insert = store_of(queue).insert_jobs
        self._queue = queue
        self.sizes: list[int] = []
        self.entered = threading.Event()
        self.go = threading.Event()
        monkeypatch.setattr(store_of(queue), "insert_jobs", self)

    def __call__(self, jobs: Any, **options: Any) -> Any:
        self.sizes.append(len(jobs))
        if len(self.sizes) == 1:
            self.entered.set()
            assert self.go.wait(PATIENCE)
        return self._insert(jobs, **options)

    def wait_for_line(self, count: int) -> None:
        """Until so many callers wait for the next commit."""
        wait_until(lambda: count_waiting(self._queue) == count)


def count_waiting(queue: Queue) -> int:
    commits: Any = find_shared_commits(queue)
    return len(commits._waiting)


def find_shared_commits(queue: Queue) -> Any:
    """Wherever the queue keeps them."""
    seen: list[Any] = [queue]
    for holder in seen:
        for value in vars(holder).values():
            if type(value).__name__ == "SharedCommits":
                return value
            if (
                type(value).__module__.startswith("holdfast")
                and hasattr(value, "__dict__")
                and value not in seen
            ):
                seen.append(value)
    raise AssertionError("no SharedCommits")


@both_engines
def test_concurrent_threads_share_commits(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    inserts = SlowInserts(queue, monkeypatch)
    jobs: list[Job] = []
    threads = [threading.Thread(target=lambda: jobs.append(queue.enqueue("work"))) for _ in range(20)]
    threads[0].start()
    assert inserts.entered.wait(PATIENCE)
    for thread in threads[1:]:
        thread.start()
    inserts.wait_for_line(19)
    assert jobs == [], "nobody returns before its own job is durable"
    inserts.go.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert inserts.sizes == [1, 19]
    assert len({job.id for job in jobs}) == len(queue.jobs()) == 20


def test_concurrent_coroutines_share_commits(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    inserts = SlowInserts(queue, monkeypatch)
    inserts.go.set()

    async def main() -> list[Job]:
        return await asyncio.gather(*(queue.enqueue_async("work", {"n": n}) for n in range(50)))

    jobs = asyncio.run(main())
    assert [job.payload["n"] for job in jobs] == list(range(50))
    assert queue.stats()["pending"] == 50
    assert len(inserts.sizes) < 50


def test_event_loop_goes_on_while_a_commit_is_made(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    inserts = SlowInserts(queue, monkeypatch)

    async def main() -> str:
        task = asyncio.ensure_future(queue.enqueue_async("work"))
        assert await asyncio.to_thread(inserts.entered.wait, PATIENCE)
        inserts.go.set()  # from the loop, which is therefore not blocked
        return (await task).id

    assert get(queue, asyncio.run(main())).status == "pending"


@both_engines
def test_one_duplicate_fails_only_its_caller(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue("work", id="taken")
    inserts = SlowInserts(queue, monkeypatch)
    outcomes: dict[str, str] = {}

    def enqueue(name: str) -> None:
        try:
            outcomes[name] = queue.enqueue("work", id=name).id
        except DuplicateJob:
            outcomes[name] = "refused"

    threads = [threading.Thread(target=enqueue, args=(name,)) for name in ("first", "a", "taken", "b")]
    threads[0].start()
    assert inserts.entered.wait(PATIENCE)
    for thread in threads[1:]:
        thread.start()
    inserts.wait_for_line(3)
    inserts.go.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert inserts.sizes == [1, 3]
    assert outcomes == {"first": "first", "a": "a", "b": "b", "taken": "refused"}


@both_engines
def test_failed_commit_fails_all_who_shared_it_and_the_next_works(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserts = Spy(store_of(queue).insert_jobs)
    inserts.failures = [StoreUnavailable("no disk")]
    monkeypatch.setattr(store_of(queue), "insert_jobs", inserts)
    with pytest.raises(StoreUnavailable, match="no disk"):
        queue.enqueue("work")
    assert queue.enqueue("work").status == "pending"
    assert len(queue.jobs()) == 1


def test_enqueue_interrupted_while_it_waits_does_not_hang_the_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserts = SlowInserts(queue, monkeypatch)
    first = threading.Thread(target=queue.enqueue, args=("work",), daemon=True)
    first.start()
    assert inserts.entered.wait(PATIENCE)

    def interrupt() -> None:
        inserts.wait_for_line(1)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue("work")
    interrupting.join()
    inserts.go.set()
    first.join(PATIENCE)
    later = threading.Thread(target=queue.enqueue, args=("work",), daemon=True)
    later.start()
    later.join(60)
    assert not later.is_alive(), "enqueue hangs for ever"


@both_engines
@pytest.mark.parametrize("way", ["one", "many", "async"])
@pytest.mark.parametrize("really", [True, False])
def test_commit_in_doubt_is_looked_up_before_it_is_reported(
    queue: Queue, engine: str, monkeypatch: pytest.MonkeyPatch, way: str, really: bool
) -> None:
    database: Any = store_of(queue).database
    commit = database.commit
    doubts = [really]

    def doubtful(connection: sqlite3.Connection) -> None:
        if not doubts:
            commit(connection)
        elif doubts.pop():
            commit(connection)
            raise CommitUncertain("the commit failed")
        else:
            connection.rollback()
            raise CommitUncertain("the commit failed")

    monkeypatch.setattr(database, "commit", doubtful)
    if engine == "postgres":  # where one job is a statement that commits by itself
        write = database.write

        def doubtful_write(*statement: Any) -> Any:
            if not doubts:
                return write(*statement)
            if doubts.pop():
                write(*statement)
            raise CommitUncertain("the commit failed")

        monkeypatch.setattr(database, "write", doubtful_write)
    if way == "one":
        ids = [queue.enqueue("work").id]
    elif way == "many":
        ids = [job.id for job in queue.enqueue_many("work", [{}] * 3)]
    else:
        ids = [asyncio.run(queue.enqueue_async("work")).id]
    assert doubts == []
    assert sorted(job.id for job in queue.jobs()) == sorted(ids)


# Whatever happens, everybody gets an answer.


@contextmanager
def on_signal(handler: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """A handler in the main thread; what is yielded sends the signal."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def signal_points(
    action: Callable[[], object], number: int, handler: Callable[[], object], within: str = "/src/holdfast/"
) -> list[str]:
    """Where the interpreter might run a signal handler: when a function begins, and when a call into C has
    returned. At one of these points it is run; if it raises, the others are not reached."""
    points: list[str] = []

    def look(frame: FrameType, event: str, _argument: object) -> None:
        if event not in ("call", "c_return") or within not in frame.f_code.co_filename:
            return
        points.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        if len(points) - 1 == number:
            handler()

    try:
        sys.setprofile(look)
        action()
    except Interrupted:
        pass
    finally:
        sys.setprofile(None)
    return points


class Interrupted(BaseException):
    """As Ctrl-C raises one."""


def interrupt() -> None:
    raise Interrupted


class FakeStore:
    """Keeps tokens, as a store that inserts the same job twice once."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.before: Callable[[], object] = lambda: None

    def insert_jobs(self, jobs: Sequence[NewJob], *, wait: bool) -> list[Verdict]:
        self.before()
        self.tokens += [job.token for job in jobs if job.token not in self.tokens]
        return [Verdict(id=job.id, inserted=True) for job in jobs]


def new_job(name: str) -> NewJob:
    return NewJob(id=name, type="work", payload="{}", token=name)


def test_closing_the_queue_answers_the_coroutines_that_wait(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserts = SlowInserts(queue, monkeypatch)

    async def main() -> list[Job]:
        tasks = [asyncio.create_task(queue.enqueue_async("work"))]
        assert await asyncio.to_thread(inserts.entered.wait, PATIENCE)
        tasks += [asyncio.create_task(queue.enqueue_async("work")) for _ in range(9)]
        await asyncio.to_thread(inserts.wait_for_line, 9)
        commits = find_shared_commits(queue)
        closing = asyncio.create_task(asyncio.to_thread(queue.close))
        await asyncio.to_thread(wait_until, lambda: commits._is_closed)
        inserts.go.set()
        jobs = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        await closing
        return jobs

    jobs = asyncio.run(main())
    assert inserts.sizes == [1, 9]
    assert len({job.id for job in jobs}) == queue.stats()["pending"] == 10


def test_coroutine_that_comes_to_a_closed_line_is_told_so(queue: Queue) -> None:
    queue.open()
    commits = find_shared_commits(queue)
    commits.close()
    with pytest.raises(StoreUnavailable, match="the queue is closed"):
        asyncio.run(commits.insert_async(new_job("late")))
    assert commits.insert(new_job("by-thread")).inserted


def test_no_thread_to_be_had_is_an_error_of_that_call_alone(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            calls = [queue.enqueue_async("work") for _ in range(3)]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, StoreUnavailable)
                assert "can't start new thread" in str(outcome)
        await asyncio.wait_for(queue.enqueue_async("work"), PATIENCE)

    asyncio.run(main())
    queue.enqueue("work")
    assert queue.stats()["pending"] == 2


def test_thread_whose_successor_finds_no_thread_has_its_own_answer(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserts = SlowInserts(queue, monkeypatch)
    leader, led = in_thread(lambda: queue.enqueue("work"))
    assert inserts.entered.wait(PATIENCE)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> list[Any]:
        calls = asyncio.gather(*(queue.enqueue_async("work") for _ in range(2000)), return_exceptions=True)
        await asyncio.sleep(0)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            inserts.go.set()
            return await asyncio.wait_for(calls, PATIENCE)

    assert {type(outcome) for outcome in asyncio.run(main())} == {StoreUnavailable}
    join(leader)
    assert isinstance(led[0], Job)


@both_engines
def test_enqueue_in_a_signal_handler_that_interrupts_one_is_refused(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_jobs, errors = store_of(queue).insert_jobs, []

    def interrupted(jobs: Any, **options: Any) -> Any:
        send()
        return insert_jobs(jobs, **options)

    def handle() -> None:
        with pytest.raises(NestedWrite, match="interrupted while writing") as caught:
            queue.enqueue("from_signal")
        errors.append(caught.value)

    monkeypatch.setattr(store_of(queue), "insert_jobs", interrupted)
    with on_signal(handle) as send:
        queue.enqueue("work")
    assert len(errors) == 1
    assert [job.type for job in queue.jobs()] == ["work"]


@both_engines
@pytest.mark.parametrize("way", ["one", "many", "batch", "bulk"])
def test_enqueue_in_a_signal_handler_never_hangs_on_the_commit_it_interrupts(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It would be acknowledged, and then rolled back with what was interrupted."""
    enqueue: dict[str, Callable[[], object]] = {
        "one": lambda: queue.enqueue("from_signal"),
        "many": lambda: queue.enqueue_many("from_signal", [{}]),
        "batch": lambda: queue.enqueue_batch([("from_signal", {}, {})]),
        "bulk": lambda: bulk.store(),
    }

    def handle() -> None:
        with pytest.raises(NestedWrite, match="interrupted while writing"):
            enqueue[way]()

    queue.open()
    with queue.bulk() as bulk:
        bulk.add(1, "from_signal", {}, {})
        with on_signal(handle) as send, suppress(ZeroDivisionError), store_of(queue).transaction():
            send()
            raise ZeroDivisionError
    assert queue.jobs() == []


@pytest.mark.parametrize("reads", [True, False])
def test_no_lock_of_an_enqueue_holds_up_a_signal_handler_that_interrupts_it(
    queue: Queue, reads: bool
) -> None:
    """Wherever it does: what it asks of the queue is answered or refused at once."""

    def handle() -> None:
        try:
            queue.stats() if reads else queue.enqueue("from_signal")
        except NestedWrite:
            refused.append(True)

    def interrupt_everywhere() -> None:
        for number in count():
            if len(signal_points(lambda: queue.enqueue("work"), number, handle)) <= number:
                break
        assert number > 50

    refused: list[bool] = []
    queue.open()
    thread, outcome = in_thread(interrupt_everywhere)
    join(thread)
    assert outcome == [None]
    assert bool(refused) is not reads


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
@pytest.mark.parametrize("reads", [True, False])
def test_no_lock_of_the_driver_holds_up_a_signal_handler(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """psycopg holds one for as long as a statement is under way."""
    monkeypatch.setattr(opened, "_OLD_AFTER", -1.0)  # every enqueue reads the settings, too

    def handle() -> None:
        try:
            queue.stats() if reads else queue.enqueue("from_signal")
        except NestedWrite:
            refused.append(True)

    def interrupt_everywhere() -> None:
        for number in count():
            enqueue = partial(queue.enqueue_many, "work", [{}] * 2)
            if len(signal_points(enqueue, number, handle, within="/psycopg/connection.py")) <= number:
                break
        assert number > 5

    refused: list[bool] = []
    queue.open()
    thread, outcome = in_thread(interrupt_everywhere)
    join(thread)
    assert outcome == [None]
    assert refused


def test_enqueue_in_a_signal_handler_does_not_wait_for_the_checkpoint_it_interrupts(queue: Queue) -> None:
    """Which keeps every writer out, those of its own thread too."""

    def handle() -> None:
        try:
            queue.enqueue("from_signal")
        except NestedWrite:
            refused.append(True)

    def interrupt_everywhere() -> None:
        for number in count():
            if len(signal_points(database.checkpoint, number, handle)) <= number:
                break
        assert number > 10

    refused: list[bool] = []
    queue.enqueue("work")
    database: Any = store_of(queue).database
    thread, outcome = in_thread(interrupt_everywhere)
    join(thread)
    assert outcome == [None]
    assert refused


def test_enqueue_in_a_signal_handler_does_not_wait_for_the_block_it_interrupts(queue: Queue) -> None:
    """Where ctx.transaction() begins and ends, as well as inside of it."""

    def handle() -> None:
        try:
            queue.enqueue("from_signal")
        except NestedWrite:
            refused.append(True)

    def interrupt_everywhere() -> None:
        for number in count():
            job = work.enqueue()
            within = "/src/holdfast/store/sqlite/attempt.py"
            points = signal_points(queue.drain, number, handle, within=within)
            assert get(queue, job.id).status == "completed"
            if len(points) <= number:
                break
        assert number > 10

    @queue.job
    def work(ctx: Context) -> None:
        with ctx.transaction():
            pass

    refused: list[bool] = []
    queue.register("from_signal", lambda _: None)
    thread, outcome = in_thread(interrupt_everywhere)
    join(thread)
    assert outcome == [None]
    assert refused


def test_leader_that_is_interrupted_anywhere_leaves_the_others_an_answer() -> None:
    numbers = count()
    while interrupt_leader(next(numbers)):
        pass
    assert next(numbers) > 15


def interrupt_leader(number: int) -> bool:
    """Interrupt it at the point of a number, while another waits for it. False if it gets not so far."""
    store = FakeStore()
    commits = SharedCommits(cast("Store", store))
    followers: list[tuple[threading.Thread, list[object]]] = []

    def follow(name: str) -> None:
        followers.append(in_thread(lambda: commits.insert(new_job(name))))

    def gather() -> None:
        if not followers:
            follow("follower")
            wait_until(lambda: len(commits._waiting) == 1)

    store.before = gather
    points = signal_points(
        lambda: commits.insert(new_job("leader")), number, interrupt, within="/enqueueing/shared_commits.py"
    )
    store.before = lambda: None
    follow("later")
    for thread, outcome in followers:
        join(thread)
        assert isinstance(outcome[0], Verdict), f"interrupted at {points[-1]}: {outcome}"
    assert commits.insert(new_job("again")).inserted
    assert len(followers) + 1 == len({*store.tokens} - {"leader"})
    return len(points) > number


def test_nobody_waits_for_ever_for_a_leader_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one in a signal handler that waits for a thread that enqueues."""
    monkeypatch.setattr(shared_commits, "LONGEST_WAIT", 0.2)
    store = FakeStore()
    commits = SharedCommits(cast("Store", store))
    entered, go = threading.Event(), threading.Event()

    def stuck() -> None:
        store.before = lambda: None
        entered.set()
        assert go.wait(PATIENCE)

    store.before = stuck
    leader, led = in_thread(lambda: commits.insert(new_job("leader")))
    assert entered.wait(PATIENCE)
    with pytest.raises(StoreUnavailable, match=r"has not finished after 0\.2 s"):
        commits.insert(new_job("given-up"))
    assert commits.insert(new_job("next")).inserted
    assert asyncio.run(commits.insert_async(new_job("async"))).inserted
    assert store.tokens == ["next", "async"]
    go.set()
    join(leader)
    assert isinstance(led[0], Verdict)
    assert commits.insert(new_job("last")).inserted
    commits.close()


def test_who_is_part_of_a_commit_that_does_not_end_is_told_that_it_may_take_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_commits, "LONGEST_WAIT", 0.2)
    store = FakeStore()
    commits = SharedCommits(cast("Store", store))
    entered, go = threading.Event(), threading.Event()

    def stuck() -> None:
        entered.set()
        assert go.wait(PATIENCE)

    async def main() -> None:
        store.before = stuck
        await commits.insert_async(new_job("async"))

    with pytest.raises(CommitUncertain, match="and may yet take effect"):
        asyncio.run(main())
    assert store.tokens == []
    go.set()
    commits.close()
    assert store.tokens == ["async"]


def test_loop_that_is_closed_while_its_coroutine_waits_holds_up_nobody(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserts = SlowInserts(queue, monkeypatch)
    leader, led = in_thread(lambda: queue.enqueue("work"))
    assert inserts.entered.wait(PATIENCE)

    async def wait_in_line() -> None:
        task = asyncio.create_task(queue.enqueue_async("abandoned"))
        await asyncio.to_thread(inserts.wait_for_line, 1)
        task.cancel()

    asyncio.run(wait_in_line())
    follower, followed = in_thread(lambda: queue.enqueue("work"))
    inserts.wait_for_line(2)
    inserts.go.set()
    join(leader)
    join(follower)
    assert isinstance(led[0], Job)
    assert isinstance(followed[0], Job)


def test_queue_that_nobody_holds_takes_its_thread_along(url: str) -> None:
    async def main() -> None:
        await Queue(url).enqueue_async("work")

    def is_gone() -> bool:
        gc.collect()
        return "holdfast-enqueue" not in {thread.name for thread in threading.enumerate()}

    asyncio.run(main())
    wait_until(is_gone)


AFTER_THE_END = """
import asyncio, atexit, threading
from holdfast import Queue
from holdfast.errors import StoreUnavailable

queue = Queue("sqlite:///app.db").open()

def enqueue(name):
    try:
        asyncio.run(queue.enqueue_async(name))
    except StoreUnavailable:  # some Pythons start no thread any more
        pass
    queue.enqueue(name)
    print(name)

def wait_for_the_end():
    threading.main_thread().join()
    enqueue("in-a-thread")

atexit.register(print, "end")
atexit.register(enqueue, "at-exit")
threading.Thread(target=wait_for_the_end).start()
"""


@pytest.mark.process
def test_interpreter_that_ends_answers_all(tmp_path: Path) -> None:
    done = run_script(tmp_path, AFTER_THE_END)
    assert (done.returncode, done.stdout, done.stderr) == (0, "in-a-thread\nat-exit\nend\n", "")
