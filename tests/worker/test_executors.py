"""Where handlers run: sync ones in threads, async ones on the loop, others in processes of their own."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools
import os
import queue as queue_module
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast import Context, Job, Queue
from holdfast.context import Attempt, AttemptHost
from holdfast.core.clock import Clock
from holdfast.errors import ConfigError, UnknownType
from holdfast.events import JobReleased
from holdfast.handlers.handler import Handler
from holdfast.handlers.options import Executor
from holdfast.store.protocol import Store
from holdfast.store.records import Claim
from holdfast.worker import runner
from holdfast.worker.executors import processes, wire
from holdfast.worker.executors.loop import LoopExecutor
from holdfast.worker.run import Ending
from tests.support import Recorder, both_engines, open_files, wait_until
from tests.worker import handlers
from tests.worker.support import PATIENCE, Gate, get, run_script

StartWorker = Callable[..., Any]


@dataclasses.dataclass
class Order:
    item: str
    count: int = 1


def run_one(queue: Queue, type: str, payload: object = None) -> Job:
    return queue.wait(queue.enqueue(type, payload).id, timeout=PATIENCE)


def test_sync_handler_runs_in_a_thread_of_its_own(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job
    def work(n: int) -> dict[str, Any]:
        return {"n": n, "pid": os.getpid(), "thread": threading.current_thread().name}

    start_worker()
    job = queue.wait(work.enqueue(n=7).id, timeout=PATIENCE)
    assert job.status == "completed"
    assert job.result["n"] == 7
    assert job.result["pid"] == os.getpid()
    assert job.result["thread"].startswith("holdfast-handler")


def test_sync_handlers_run_side_by_side(queue: Queue, start_worker: StartWorker) -> None:
    barrier = threading.Barrier(4)

    @queue.job
    def meet() -> int:
        return barrier.wait(PATIENCE)

    start_worker(concurrency=4)
    jobs = [queue.wait(job.id, timeout=PATIENCE) for job in meet.enqueue_many([{}] * 4)]
    assert sorted(job.result for job in jobs) == [0, 1, 2, 3]


@both_engines
def test_async_handlers_share_one_event_loop(queue: Queue, start_worker: StartWorker) -> None:
    loops: set[asyncio.AbstractEventLoop] = set()
    met: list[None] = []
    all_met = asyncio.Event()

    @queue.job
    async def meet() -> None:
        loops.add(asyncio.get_running_loop())
        met.append(None)
        if len(met) == 5:
            all_met.set()
        await all_met.wait()

    start_worker(concurrency=5)
    jobs = [queue.wait(job.id, timeout=PATIENCE) for job in meet.enqueue_many([{}] * 5)]
    assert {job.status for job in jobs} == {"completed"}
    assert len(loops) == 1


def test_async_handler_that_blocks_the_loop_keeps_its_lease(
    queue: Queue, start_worker: StartWorker, gate: Gate, short_heartbeat: None
) -> None:
    @queue.job
    async def block() -> None:
        gate.enter()

    start_worker()
    job = block.enqueue()
    gate.wait_entered()
    first = get(queue, job.id).lease_expires_at
    renewed = threading.Event()
    assert first is not None
    while not renewed.wait(0.02):
        now = get(queue, job.id).lease_expires_at
        assert now is not None
        if now > first:
            renewed.set()
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).attempts == 1


@pytest.mark.process
def test_process_handlers_share_a_warm_process_and_group_of_its_own(
    queue: Queue, start_worker: StartWorker
) -> None:
    for handler in (handlers.where, handlers.where_async, handlers.add, handlers.Toolbox.hammer):
        queue.job(executor="process")(handler)
    queue.job(executor="process", max_attempts=1)(handlers.retry_oddly)
    start_worker(concurrency=1)
    job = run_one(queue, "where")
    assert job.status == "completed", job.error
    assert job.result["pid"] != os.getpid()
    assert job.result["group"] == job.result["pid"]
    assert run_one(queue, "where_async").result == job.result
    assert run_one(queue, "add", {"a": 40, "b": 2}).result == 42
    assert run_one(queue, "add", {"a": 40}).result == 41
    assert run_one(queue, "hammer").result == "bang"
    end_that_can_not_be_sent = run_one(queue, "retry_oddly").error
    assert (end_that_can_not_be_sent or "").startswith("TypeError: ")
    assert run_one(queue, "where").result == job.result, "it is the same process all the time"


def test_process_handler_that_no_other_process_can_import_is_refused(queue: Queue) -> None:
    def local() -> None:
        raise AssertionError("never called")

    with pytest.raises(ConfigError, match="top level of a module"):
        queue.job(executor="process")(local)


@pytest.mark.process
def test_process_that_dies_fails_the_attempt_and_names_the_signal_or_the_code(
    queue: Queue, start_worker: StartWorker
) -> None:
    queue.job(executor="process", max_attempts=2)(handlers.die)
    start_worker()
    job = run_one(queue, "die")
    assert (job.status, job.attempts) == ("failed", 2)
    assert [failure.error for failure in job.errors] == [
        "ProcessDied: the handler's process was killed by signal 9",
        "ProcessDied: the handler's process exited with code 3",
    ]


@pytest.mark.process
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_handlers_take_and_give_the_same_in_a_thread_and_in_a_process(
    queue: Queue, start_worker: StartWorker, executor: Executor
) -> None:
    """One after another in one slot, so that each also shows that the one before has left it usable."""
    start_worker(concurrency=1)

    # A registered handler takes the whole payload, and may take the context as well.
    queue.register("whole", handlers.whole, executor=executor)
    assert run_one(queue, "whole", {"a": [1, {"b": None}]}).result == {"a": [1, {"b": None}]}
    queue.register("both", handlers.whole_with_context, executor=executor)
    job = run_one(queue, "both", {"a": 1})
    assert job.result == {"payload": {"a": 1}, "attempt": 1, "id": job.id}

    # A progress message that is no text fails the job.
    queue.job(executor=executor, max_attempts=1)(handlers.report_number)
    job = run_one(queue, "report_number")
    assert job.status == "failed"
    assert (job.error or "").startswith("TypeError: ")

    # Text of any class is reported and enqueued.
    queue.job(executor=executor, max_attempts=1)(handlers.use_words)
    job = run_one(queue, "use_words")
    assert (job.status, job.result) == ("completed", "c1"), job.error
    child = queue.require("c1")
    assert (child.type, child.key) == ("child", "k")

    # The limit for results that is given with a handler holds.
    text = "x" * 2_000_000
    queue.job(name="large", executor=executor, max_result_bytes=3_000_000)(handlers.large)
    queue.job(name="small", executor=executor, max_result_bytes=1000)(handlers.large)
    assert run_one(queue, "large", {"size": 2_000_000}).result == text
    assert run_one(queue, "small", {"size": 900}).result == text[:900]
    assert run_one(queue, "small", {"size": 2000}).result != text[:2000]


def test_registered_handler_gets_the_payload_as_the_type_it_was_registered_with(
    queue: Queue, start_worker: StartWorker
) -> None:
    queue.register("order", handlers.name_of_payload_type, payload_type=Order)
    start_worker()
    assert run_one(queue, "order", {"item": "tea"}).result == "Order"


def test_payload_type_that_a_process_would_not_see_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="annotate the handler's parameter"):
        queue.register("order", handlers.name_of_payload_type, payload_type=Order, executor="process")


def test_registered_handler_may_be_an_object_with_an_async_call(
    queue: Queue, start_worker: StartWorker
) -> None:
    class Greeter:
        async def __call__(self, payload: dict[str, Any]) -> str:
            await asyncio.sleep(0)
            return f"hello {payload['name']}"

    queue.register("greet", Greeter())
    start_worker()
    assert run_one(queue, "greet", {"name": "world"}).result == "hello world"


def test_sync_handler_that_returns_a_coroutine_is_not_taken_for_done(
    queue: Queue, start_worker: StartWorker
) -> None:
    ran = threading.Event()

    async def inner() -> str:
        ran.set()
        return "done"

    queue.register("wrapped", lambda payload: inner(), max_attempts=1)
    start_worker()
    job = run_one(queue, "wrapped")
    assert (job.status == "completed" and ran.is_set()) or job.status == "failed", job.result


def test_lane_is_run_by_the_handler_of_its_base_type(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("shell", lambda payload, ctx: ctx.job.type)
    start_worker()
    assert run_one(queue, "shell:media").result == "shell:media"
    assert run_one(queue, "shell").result == "shell"


@both_engines
def test_worker_that_serves_one_lane_leaves_the_others(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    queue.register("shell", lambda payload: None)
    start_worker(types=["shell:media"])
    other = queue.enqueue("shell:text")
    base = queue.enqueue("shell")
    assert run_one(queue, "shell:media").status == "completed"
    assert get(queue, other.id).status == get(queue, base.id).status == "pending"


def test_lane_with_a_handler_of_its_own_is_run_by_that(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("shell", lambda payload: "base")
    queue.register("shell:media", lambda payload: "lane")
    start_worker()
    assert run_one(queue, "shell:media").result == "lane"


def test_handler_registered_while_the_worker_runs_is_served(queue: Queue, start_worker: StartWorker) -> None:
    start_worker()
    job = queue.enqueue("late")
    queue.register("late", lambda payload: "served")
    assert queue.wait(job.id, timeout=PATIENCE).result == "served"


@both_engines
def test_unregistered_type_stays_pending_and_burns_no_attempt(
    queue: Queue, start_worker: StartWorker
) -> None:
    queue.register("gone", lambda payload: None)
    queue.register("here", lambda payload: None)
    start_worker()
    queue.unregister("gone")
    job = queue.enqueue("gone")
    assert run_one(queue, "here").status == "completed"
    left = get(queue, job.id)
    assert (left.status, left.attempts) == ("pending", 0)
    with pytest.raises(UnknownType):
        queue.unregister("gone")


def test_second_handler_for_a_type_is_refused(queue: Queue) -> None:
    queue.register("twice", lambda payload: None)
    with pytest.raises(ConfigError, match="'twice' already has a handler"):
        queue.register("twice", lambda payload: None)


def test_job_function_can_still_be_called(queue: Queue) -> None:
    @queue.job
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    assert double(21) == 42
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice as much."


def test_context_is_found_by_its_annotation_whatever_its_name(
    queue: Queue, start_worker: StartWorker
) -> None:
    @queue.job
    def work(n: int, context: Context) -> int:
        return n + context.attempt

    start_worker()
    assert run_one(queue, "work", {"n": 1}).result == 2


MAIN_SCRIPT = """
import os, sys
from holdfast import Queue

queue = Queue("sqlite:///" + sys.argv[1] if __name__ == "__main__" else None)

@queue.job(executor="process")
def where(n: int) -> dict:
    return {"n": n, "pid": os.getpid(), "name": __name__}

if __name__ == "__main__":
    worker = queue.worker().start()
    job = queue.wait(where.enqueue(n=5).id, timeout=60)
    worker.stop()
    assert job.status == "completed", job.error
    assert job.result["n"] == 5, job.result
    assert job.result["pid"] != os.getpid()
    assert job.result["name"] != "__main__"
    print("ok")
"""


@pytest.mark.process
def test_handler_of_a_script_is_found_by_its_process(tmp_path: Path) -> None:
    done = run_script(tmp_path, MAIN_SCRIPT, str(tmp_path / "queue.db"))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


APP_MODULE = """
import os
from holdfast import Queue

queue = Queue(os.environ["APP_DATABASE"])

@queue.job(executor="process", max_attempts=1, max_result_bytes=3_000_000)
def large() -> str:
    return f"{os.getpid()} " + "x" * 2_000_000

@queue.job(executor="process", max_attempts=1, max_result_bytes=1000)
def small() -> str:
    return "x" * 2_000
"""

APP_SCRIPT = """
import os
from app import large, queue, small

worker = queue.worker(concurrency=1).start()
done = [queue.wait(job.enqueue().id, timeout=60) for job in (large, small)]
worker.stop()
assert [job.status for job in done] == ["completed"] * 2, done[0].error
pid, text = done[0].result.split()
assert int(pid) != os.getpid()
assert text == "x" * 2_000_000, text
assert "max_result_bytes is 1000" in done[1].result["problem"], done[1].result
print("ok")
"""


@pytest.mark.process
def test_handlers_of_an_application_module_are_found_with_their_options_by_its_process(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(APP_MODULE, encoding="utf-8")
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    done = run_script(tmp_path, APP_SCRIPT, APP_DATABASE=url)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.process
def test_handler_of_a_module_run_with_m_is_found_by_its_process(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "program.py").write_text(MAIN_SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "program", str(tmp_path / "queue.db")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


UNGUARDED_SCRIPT = """
import os, threading
from holdfast import Queue
from holdfast.events import JobFailed

queue = Queue(os.environ["APP_DATABASE"])

@queue.job(executor="process", max_attempts=1)
def where() -> int:
    return os.getpid()

where.with_options(key="once", key_for=3600).enqueue()
worker = queue.worker()

def stop_when_failed(event):
    if isinstance(event, JobFailed):
        threading.Thread(target=worker.stop).start()

queue.events.subscribe(stop_when_failed)
worker.run()
(job,) = queue.jobs()
print(job.error)
"""


@pytest.mark.process
def test_worker_started_at_import_in_a_handlers_process_is_a_clear_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    done = run_script(tmp_path, UNGUARDED_SCRIPT, APP_DATABASE=url)
    assert done.returncode == 0, done.stderr
    assert "could not be imported" in done.stdout
    assert "a worker can't be started while a handler's process imports your module" in done.stdout
    assert "if __name__ == '__main__':" in done.stdout


def test_threads_that_start_async_attempts_at_once_make_one_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[asyncio.AbstractEventLoop] = []
    new_event_loop = asyncio.new_event_loop

    def make_slowly() -> asyncio.AbstractEventLoop:
        made.append(new_event_loop())
        threading.Event().wait(0.05)  # long enough for others to make one too if they may
        return made[-1]

    async def work(payload: object) -> None: ...

    ended: queue_module.Queue[Attempt] = queue_module.Queue()

    def report(attempt: Attempt, ending: Ending) -> None:
        ended.put(attempt)

    monkeypatch.setattr(asyncio, "new_event_loop", make_slowly)
    executor = LoopExecutor(report, cast(Store, SimpleNamespace(now=lambda: 0, close_thread=lambda: None)))
    handler = Handler("work", work, whole=True)
    barrier = threading.Barrier(8)

    def start(seq: int) -> None:
        claim = Claim(seq, f"job{seq}", "work", "{}", 0, 1, 3, 1, None, 0, 0, "worker")
        attempt = Attempt(claim, handler, cast(AttemptHost, None))
        barrier.wait(PATIENCE)
        executor.start(attempt)

    threads = [threading.Thread(target=start, args=(seq,)) for seq in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    try:
        assert {ended.get(timeout=PATIENCE).claim.seq for _ in threads} == set(range(8))
        assert len(made) == 1
    finally:
        executor.close()


@pytest.mark.process
def test_interruption_that_comes_too_late_spares_the_next_attempt_in_the_same_process(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has looked up the process of an attempt, which ends before it is killed."""
    runs, run = [], processes.Child.run

    def noted(child: processes.Child, attempt: Attempt, clock: Clock) -> Ending:
        runs.append((child, attempt))
        return run(child, attempt, clock)

    monkeypatch.setattr(processes.Child, "run", noted)
    for handler in (handlers.add, handlers.wait_for_file):
        queue.job(executor="process", max_attempts=1)(handler)
    worker = start_worker(concurrency=1)
    assert run_one(queue, "add", {"a": 1}).result == 2
    started, go_on = tmp_path / "started", tmp_path / "go on"
    job = queue.enqueue("wait_for_file", {"started": str(started), "path": str(go_on)})
    wait_until(started.exists)
    [(child, late), (same, _)] = runs
    assert child is same
    late.handle = child
    worker._dispatcher._runner._executors["process"].interrupt(late)
    go_on.touch()
    assert queue.wait(job.id, timeout=PATIENCE).result == "done"


SLOW_START = """
import os, sys, time
if any("holdfast.worker.executors.child" in word for word in sys.orig_argv):
    open(os.environ["SLOW_START"], "w").close()
    time.sleep(60)
"""


@pytest.mark.process
def test_cancel_of_a_process_that_has_not_read_its_payload_does_not_block_the_worker(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payload is larger than a pipe, so who sends it waits for the child, which does not read yet."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SLOW_START, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    monkeypatch.setenv("SLOW_START", str(tmp_path / "starting"))
    queue.job(executor="process", max_attempts=1)(handlers.name_of_payload_type)
    queue.register("quick", lambda payload: "done")
    start_worker()
    job = queue.enqueue("name_of_payload_type", {"payload": "x" * 300_000})
    wait_until((tmp_path / "starting").exists)
    queue.cancel(job.id)
    assert queue.wait(job.id, timeout=60).status == "cancelled"
    assert run_one(queue, "quick").result == "done"


def test_job_that_no_thread_can_be_started_for_is_given_back_and_loses_no_attempt(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "NO_THREADS_PAUSE", 0.2)
    start = threading.Thread.start
    refused: list[float] = []

    def start_unless_told(thread: threading.Thread) -> None:
        if thread.name.startswith("holdfast-handler") and len(refused) < 3:
            refused.append(time.monotonic())
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_told)
    queue.register("work", lambda payload: None)
    job = queue.enqueue("work", max_attempts=1)
    start_worker(concurrency=1)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts, done.errors) == ("completed", 1, ())
    assert len(recorder.all(JobReleased)) == 3
    pauses = [later - earlier for earlier, later in itertools.pairwise(refused)]
    assert min(pauses) >= 0.2, "it claims nothing for a moment"


@pytest.mark.process
@pytest.mark.parametrize("shortage", [errno.EAGAIN, errno.EMFILE])
def test_job_that_no_process_can_be_started_for_is_given_back_and_loses_no_attempt(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    shortage: int,
) -> None:
    monkeypatch.setattr(runner, "NO_THREADS_PAUSE", 0.2)
    start = subprocess.Popen
    refused: list[float] = []

    def start_unless_told(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        if len(refused) < 3:
            refused.append(time.monotonic())
            raise OSError(shortage, os.strerror(shortage))
        return start(*given, **options)

    monkeypatch.setattr(subprocess, "Popen", start_unless_told)
    queue.job(name="work", executor="process")(handlers.where)
    job = queue.enqueue("work", max_attempts=1)
    start_worker(concurrency=1)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts, done.errors) == ("completed", 1, ())
    assert len(recorder.all(JobReleased)) == 3
    pauses = [later - earlier for earlier, later in itertools.pairwise(refused)]
    assert min(pauses) >= 0.2, "it claims nothing for a moment"


@pytest.mark.process
def test_job_whose_process_can_never_be_started_fails_and_says_why(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PYTHON", ("/no/such/python",))
    queue.job(name="work", executor="process", max_attempts=1)(handlers.where)
    start_worker()
    done = run_one(queue, "work")
    assert done.status == "failed"
    assert "could not be started" in str(done.error)
    assert "/no/such/python" in str(done.error)


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_process_that_can_not_be_started_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    left = fails_at

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    def make_pipe() -> tuple[int, int]:
        nonlocal left
        left -= 1
        if not left:
            refuse()
        return pipe()

    pipe = os.pipe
    monkeypatch.setattr(os, "pipe", make_pipe)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = open_files()
    with pytest.raises(OSError, match="Too many open files"):
        processes.Child(wire.Setup("sqlite:///none.db", {}, [], None, None))
    assert not open_files() - before


@pytest.mark.process
def test_process_is_killed_at_once_where_no_thread_can_wait_for_the_end_of_its_grace(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    queue.job(executor="process")(handlers.ignore_termination)
    queue.register("quick", lambda payload: "done")
    worker = start_worker()
    job = queue.enqueue("ignore_termination", {"pids": str(tmp_path / "pids")})
    wait_until((tmp_path / "pids").exists)
    queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    assert run_one(queue, "quick").result == "done"
    assert worker.is_running
