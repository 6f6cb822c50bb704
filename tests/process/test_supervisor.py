"""`queuectl worker start` in real processes: started, replaced, recycled, detached, drained and stopped."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.cli.app import load_app
from holdfast.errors import ConfigError
from holdfast.events import Event, Events, WorkerDied
from holdfast.store.open import store_of
from holdfast.supervisor.supervisor import Supervisor
from tests.process.nursery import Nursery
from tests.process.programs import is_alive
from tests.support import wait_until
from tests.surfaces.desk import PATIENT, Desk
from tests.surfaces.support import QUEUECTL, Ran, environment

SOON = 60.0
"""Seconds that are plenty for anything but the end of a lease, on a machine that has other things to do."""

LEASE = 600.0
"""Seconds of a lease where jobs are freed before it has ended."""

HOLD_ONCE = 'echo started; test "$QUEUECTL_ATTEMPT" != 1 || sleep 600'
"""A command whose first attempt does not end by itself."""

APP = """
import os
import threading
from holdfast import Queue

queue = Queue()

@queue.job(timeout=0.3, max_attempts=1)
def stuck() -> None:
    threading.Event().wait()

@queue.job(max_attempts=1)
def leave(code: int) -> None:
    os._exit(code)

@queue.job
def fork(pid_file: str) -> None:
    pid = os.fork()
    if pid == 0:
        threading.Event().wait(60)
        os._exit(0)
    with open(pid_file, "w") as file:
        file.write(f"{pid}\\n")
    os.waitpid(pid, 0)

@queue.job
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture(scope="module")
def forked() -> Iterator[Nursery]:
    with closing(Nursery()) as nursery:
        yield nursery


class SwiftDesk(Desk):
    """A desk whose commands that end are forked from one process that has loaded them."""

    def __init__(self, home: Path, forked: Nursery) -> None:
        super().__init__(home)
        self._forked = forked

    def run(self, *words: str, cwd: Path) -> Ran:
        return self._forked(self.home, *words, cwd=cwd)


@pytest.fixture
def desk(tmp_path: Path, forked: Nursery) -> Iterator[Desk]:
    desk = SwiftDesk(tmp_path / "home", forked)
    yield desk
    desk.close()


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The folder of an application, app.py."""
    folder = tmp_path / "application"
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    return folder


def gated(gate: Path) -> str:
    """A command that says that it has started and ends when a file is there, or after a minute."""
    file = shlex.quote(str(gate))
    return f"echo started; n=0; while [ ! -e {file} ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done"


def enqueue(desk: Desk, command: str, lane: str = "", **options: Any) -> str:
    """Queue a command of the shell; returns the id. No program is started for it."""
    type = f"shell:{lane}" if lane else "shell"
    return desk.queue.enqueue(type, {"command": command}, **options).id


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Starting.


def test_each_worker_is_a_process_of_its_own_in_a_session_of_its_own(desk: Desk) -> None:
    workers = desk.workers("--count 3", up=3)
    listed = desk.json("worker list")
    assert sorted(worker["pid"] for worker in listed) == sorted(workers.pids())
    assert len({worker["id"] for worker in listed}) == 3
    assert {worker["state"] for worker in listed} == {"running"}
    for pid in workers.pids():
        assert parent_of(pid) == workers.pid
        assert os.getsid(pid) == pid
    assert workers.stop() == 0
    assert desk.json("worker list") == []
    desk.wait_empty()


def test_a_process_runs_one_command_at_a_time(desk: Desk, tmp_path: Path) -> None:
    """--count 2 is two at a time: each writes when it begins and ends, and two overlap but never three."""
    log = shlex.quote(str(tmp_path / "log"))
    until_another = f"until [ $(grep -c + {log}) -ge 2 ]; do sleep 0.1; done"
    for _ in range(6):
        command = f"echo + >> {log}; {until_another}; sleep 0.1; echo - >> {log}"
        desk.queue.enqueue("shell", {"command": command})
    assert desk.start("worker start --count 2 --drain").wait() == 0
    depth, depths = 0, []
    for line in (tmp_path / "log").read_text().split():
        depth += 1 if line == "+" else -1
        depths.append(depth)
    assert len(depths) == 12
    assert max(depths) == 2


def test_concurrency_lets_a_process_run_several_commands(desk: Desk, tmp_path: Path) -> None:
    """Three commands that wait for each other."""
    here = shlex.quote(str(tmp_path))
    meet = f"touch {here}/$QUEUECTL_JOB_ID.here; {{ n=0; while [ $(ls {here} | grep -c here) -lt 3 ]; do"
    meet += " sleep 0.02; n=$((n+1)); [ $n -lt 500 ] || exit 9; done; }"
    for _ in range(3):
        desk.queue.enqueue("shell", {"command": meet}, max_attempts=1)
    workers = desk.start("worker start --concurrency 3 --drain")
    assert workers.wait() == 0
    assert len(workers.events("worker.started", concurrency=3)) == 1
    assert len(workers.events("job.completed")) == 3


def test_the_log_goes_to_stdout_as_text_where_that_is_asked_for(desk: Desk) -> None:
    """As JSON, most of the other tests read it."""
    enqueue(desk, "true", id="job1")
    workers = desk.start("worker start --drain --log-format text")
    assert workers.wait() == 0
    assert workers.errors() == ""
    assert "shell job1 completed in" in workers.output()
    assert "{" not in workers.output()


def test_the_level_of_the_log_is_that_of_the_supervisor_and_its_workers(desk: Desk) -> None:
    enqueue(desk, "true", id="good")
    desk.queue.enqueue("shell", {"command": "false"}, id="bad", max_attempts=1)
    workers = desk.start("worker start --drain --log-format text --log-level error")
    assert workers.wait() == 0
    [line] = workers.output().splitlines()
    assert "bad failed permanently" in line


def test_detached_workers_log_at_the_level_that_was_asked_for(desk: Desk) -> None:
    enqueue(desk, "true", id="good")
    answer = desk.json("worker start --detach --drain --log-level debug")
    wait_until(lambda: not is_alive(answer["pid"]), message="the supervisor has ended")
    assert "shell good claimed" in Path(answer["log"]).read_text()


def test_a_closed_pipe_costs_the_log_and_nothing_else(desk: Desk) -> None:
    """`queuectl worker start | head -1`, and a worker that dies after it."""
    gate = desk.home / "gate"
    with subprocess.Popen(
        [*QUEUECTL, "worker", "start", "--log-format", "text"],
        env=environment(desk.home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stderr is not None
        assert b"started" in supervisor.stdout.readline()
        supervisor.stdout.close()
        [worker] = desk.queue.workers()
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: [w.pid for w in desk.queue.workers()] not in ([], [worker.pid]), message="another")
        job = enqueue(desk, gated(gate))
        desk.wait_started(job)
        gate.touch()
        assert desk.wait(job, "completed").attempts == 1
        supervisor.terminate()
        errors = supervisor.stderr.read()
        assert supervisor.wait(SOON) == 0
    assert errors == b""


# Dying.


def test_jobs_of_a_killed_worker_are_freed_at_once(desk: Desk) -> None:
    """Well before its lease has ended, and what its command started is gone."""
    desk.queue.set_config("lease_seconds", LEASE)
    workers = desk.workers("--count 2", up=2)
    job = enqueue(desk, HOLD_ONCE)
    desk.wait_started(job)
    holder = desk.job(job).worker_id
    [victim] = [w for w in desk.json("worker list") if w["id"] == holder]
    assert [running["id"] for running in victim["running"]] == [job]
    killed = datetime.now(UTC)
    os.kill(victim["pid"], signal.SIGKILL)
    done = desk.wait(job, "completed", timeout=SOON)
    [lost] = done.errors
    assert (lost.attempt, lost.worker_id) == (1, holder)
    assert (lost.error or "").startswith("WorkerLost")
    assert (lost.finished_at - killed).total_seconds() < SOON
    assert done.attempts == 2
    workers.wait_for("job.reaped", job_id=job, worker_id=holder, status="scheduled")
    wait_until(
        lambda: not [line for line in desk.processes().values() if "sleep" in line], message="it is gone"
    )
    assert workers.stop() == 0


def test_jobs_in_the_application_s_own_database_are_freed_too(desk: Desk, app: Path) -> None:
    url = f"sqlite:///{app / 'own.db'}"
    (app / "app.py").write_text(f"from holdfast import Queue\nqueue = Queue({url!r})\n")
    workers = desk.workers("--app app:queue", cwd=app)
    with Queue(url) as queue:
        queue.set_config("lease_seconds", LEASE)
        job = queue.enqueue("shell", {"command": HOLD_ONCE})
        desk.wait_started(job.id)
        killed = datetime.now(UTC)
        os.kill(workers.pids()[0], signal.SIGKILL)
        done = queue.wait(job.id, timeout=SOON)
        assert (done.status, done.attempts) == ("completed", 2)
        assert (done.errors[0].finished_at - killed).total_seconds() < SOON
        assert workers.stop() == 0
        assert queue.workers() == []


def test_a_dead_worker_is_replaced_after_pauses_that_grow(desk: Desk) -> None:
    workers = desk.workers("--count 2", up=2)
    other, pid = workers.pids()
    for number, pause in ((1, 1.0), (2, 2.0)):
        os.kill(pid, signal.SIGKILL)
        died = workers.wait_for("worker.died", number)
        assert (died["pid"], died["how"], died["restart_in"]) == (pid, "was killed by signal 9", pause)
        started = workers.wait_for("worker.started", 2 + number)
        pid = started["pid"]
        between = datetime.fromisoformat(started["time"]) - datetime.fromisoformat(died["time"])
        assert between.total_seconds() >= pause
        assert sorted(worker.pid for worker in desk.queue.workers()) == sorted([other, pid])
    assert workers.stop() == 0
    assert len(workers.events("worker.started")) == 4


def test_the_log_says_that_a_worker_died_and_when_another_starts(desk: Desk) -> None:
    workers = desk.start("worker start --log-format text", program=PATIENT)
    wait_until(lambda: "started, pid" in workers.output(), message="the worker is up")
    [worker] = desk.queue.workers()
    os.kill(worker.pid, signal.SIGKILL)
    said = f"worker process {worker.pid} was killed by signal 9; restarting in 60 s"
    wait_until(lambda: said in workers.output(), message=said)
    wait_until(
        lambda: [w.state for w in desk.queue.workers(restarting=True)] == ["restarting"],
        message="its row stays",
    )
    assert desk.queue.workers() == []
    assert workers.stop() == 0
    assert len(workers.output().split("started, pid")) == 2
    assert store_of(desk.queue).list_workers() == []


def test_a_worker_that_dies_as_soon_as_the_log_names_it_is_known_to_its_supervisor(
    desk: Desk, app: Path
) -> None:
    with (app / "app.py").open("a") as file:
        file.write(
            "import logging, signal\n"
            "class Kill(logging.Handler):\n"
            "    def emit(self, record):\n"
            "        if getattr(record.msg, 'name', '') == 'worker.started':\n"
            "            os.kill(os.getpid(), signal.SIGKILL)\n"
            "logging.getLogger('holdfast').addHandler(Kill())\n"
        )
    workers = desk.start("worker start --log-format json --app app:queue", program=PATIENT, cwd=app)
    died = workers.wait_for("worker.died")
    assert [died["worker_id"]] == [event["worker_id"] for event in workers.events("worker.started")]
    wait_until(
        lambda: [w.state for w in desk.queue.workers(restarting=True)] == ["restarting"],
        message="its row stays",
    )
    assert workers.stop() == 0
    assert store_of(desk.queue).list_workers() == []


def test_a_dead_worker_is_found_though_what_it_forked_lives_on(desk: Desk, app: Path) -> None:
    """The child of a fork holds copies of the worker's pipes, so that they do not end with it."""
    workers = desk.workers("--app app:queue", cwd=app)
    file = desk.home / "forked"
    job = desk.queue.enqueue("fork", {"pid_file": str(file)}, max_attempts=1).id
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), message="the handler has forked")
    orphan = int(file.read_text())
    try:
        os.kill(workers.pids()[0], signal.SIGKILL)
        assert "WorkerLost" in (desk.wait(job, "failed", SOON).error or "")
        workers.wait_for("worker.started", 2)
        assert is_alive(orphan)
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert workers.stop() == 0


def test_a_job_that_kills_its_workers_ends_failed_and_the_next_one_runs(desk: Desk) -> None:
    poison = enqueue(desk, "kill -9 $PPID; sleep 600", max_attempts=2)
    workers = desk.workers()
    failed = desk.wait(poison, "failed", timeout=SOON)
    assert failed.attempts == 2
    assert [(entry.attempt, (entry.error or "").split(":")[0]) for entry in failed.errors] == [
        (1, "WorkerLost"),
        (2, "WorkerLost"),
    ]
    assert len({entry.worker_id for entry in failed.errors}) == 2
    assert "died" in (failed.error or "")
    healthy = enqueue(desk, "true")
    assert desk.wait(healthy, "completed", timeout=SOON).attempts == 1
    workers.wait_for("job.failed", job_id=poison, attempt=2)
    assert workers.stop() == 0


def test_a_handler_that_ends_its_process_does_not_pass_for_an_orderly_end(desk: Desk, app: Path) -> None:
    """Though the exit code says so: the job is freed at once, and another process does the rest."""
    left = desk.queue.enqueue("leave", {"code": 0}, priority=1).id
    workers = desk.start("worker start --app app:queue --concurrency 1 --drain", cwd=app)
    greeting = desk.queue.enqueue("greet", {"name": "you"}).id
    assert workers.wait() == 0
    assert workers.errors() == ""
    assert (desk.job(left).status, desk.job(left).attempts) == ("failed", 1)
    assert (desk.job(left).error or "").startswith("WorkerLost")
    assert desk.job(greeting).status == "completed"
    assert workers.events("worker.died", how="exited with code 0")


@pytest.mark.parametrize("code", range(5))
def test_a_process_that_did_not_announce_its_end_has_died_whatever_its_exit_code(code: int) -> None:
    died: list[str] = []
    events = Events()
    supervisor = Supervisor([sys.executable, "-ISc", f"raise SystemExit({code})"], 1, events=events)

    def end(event: Event) -> None:
        if isinstance(event, WorkerDied):
            died.append(event.how)
            supervisor.stop()

    events.subscribe(end)
    assert supervisor.run()
    assert died == [f"exited with code {code}"]


def test_a_worker_that_stuck_handlers_have_used_up_is_recycled(desk: Desk, app: Path) -> None:
    workers = desk.workers("--app app:queue --concurrency 1", cwd=app)
    [used_up] = workers.pids()
    stuck = desk.queue.enqueue("stuck").id
    greeting = desk.queue.enqueue("greet", {"name": "you"}).id
    assert desk.wait(greeting, "completed", timeout=SOON).result == "hello you"
    failed = desk.wait(stuck, "failed", timeout=SOON)
    assert (failed.error or "").startswith("TimedOut")
    workers.wait_for("worker.recycled", pid=used_up)
    assert not workers.events("worker.died")
    assert len(workers.pids()) == 2
    assert not is_alive(used_up)
    assert workers.stop() == 0


def test_a_stuck_handler_does_not_keep_a_worker_from_stopping(desk: Desk, app: Path) -> None:
    desk.queue.set_config("shutdown_timeout", 600)
    workers = desk.workers("--app app:queue --concurrency 2", cwd=app)
    stuck = desk.queue.enqueue("stuck").id
    desk.wait(stuck, "failed", timeout=SOON)
    assert workers.stop() == 0
    assert len(workers.pids()) == 1


def test_a_supervisor_that_waits_to_replace_a_worker_stops_at_once(desk: Desk) -> None:
    workers = desk.start("worker start --log-format json", program=PATIENT)
    workers.wait_for("worker.started")
    os.kill(workers.pids()[0], signal.SIGKILL)
    workers.wait_for("worker.died")
    assert workers.stop() == 0
    assert len(workers.pids()) == 1


# Detached.


def test_detach_returns_when_the_workers_are_up_and_logs_to_the_home(desk: Desk) -> None:
    said = desk("worker start --detach --count 2").out
    listed = desk.queue.workers()
    assert len(listed) == 2
    [log] = (desk.home / "logs" / "workers").iterdir()
    supervisor = parent_of(listed[0].pid)
    assert said == f"2 workers started, supervisor pid {supervisor}, log {log}\n"
    assert os.getsid(supervisor) == supervisor
    wait_until(lambda: log.read_text().count("started, pid") == 2, message="both have told of their start")
    job = enqueue(desk, "echo hi", id="job1")
    desk.wait(job, "completed")
    wait_until(lambda: "shell job1 completed" in log.read_text(), message="the job is in the log")
    desk("worker stop")
    desk.wait_empty()


def test_detached_workers_that_drain_end_by_themselves(desk: Desk) -> None:
    job = enqueue(desk, "sleep 0.5")
    answer = desk.json("worker start --detach --drain")
    assert len(answer["workers"]) == 1
    assert desk.wait(job, "completed").attempts == 1
    wait_until(lambda: not is_alive(answer["pid"]), message="the supervisor has ended")


def test_detached_workers_that_find_nothing_to_do_have_been_up_all_the_same(desk: Desk) -> None:
    """The first has drained and left before the last one is up."""
    assert len(desk.json("worker start --detach --drain --count 3")["workers"]) == 3
    desk.wait_empty()


def test_the_log_of_detached_workers_is_rotated_and_may_be_removed(desk: Desk) -> None:
    answer = desk.json("worker start --detach")
    log = Path(answer["log"])
    with log.open("a") as file:
        file.write("x" * 11 * 1024 * 1024)
    wait_until(lambda: log.stat().st_size < 1024 * 1024, message="it was cut")
    assert Path(f"{log}.1").stat().st_size > 10 * 1024 * 1024
    with log.open("a") as file:
        log.unlink()
        file.write("x" * 11 * 1024 * 1024)
        file.flush()
        wait_until(lambda: os.fstat(file.fileno()).st_size == 0, message="it was cut, though it has no name")
    job = enqueue(desk, "true")
    desk.wait(job, "completed")
    desk("worker stop")
    desk.wait_empty()


def test_workers_that_a_job_detaches_survive_the_job(desk: Desk) -> None:
    """And the death of its worker, with which everything else that the job started would end."""
    first = desk.workers()
    job = enqueue(desk, shlex.join([*QUEUECTL, "worker", "start", "--detach", "--types", "shell:later"]))
    assert desk.wait(job, "completed").attempts == 1
    os.kill(first.pids()[0], signal.SIGKILL)
    first.wait_for("worker.died")
    assert first.stop() == 0
    later = enqueue(desk, "true", lane="later")
    assert desk.wait(later, "completed").attempts == 1
    desk("worker stop")
    desk.wait_empty()


# worker stop.


def test_stop_reaches_a_worker_that_is_about_to_be_replaced(desk: Desk) -> None:
    workers = desk.start("worker start --log-format json", program=PATIENT)
    pid = workers.wait_for("worker.started")["pid"]
    os.kill(pid, signal.SIGKILL)
    workers.wait_for("worker.died")
    [worker] = desk.queue.workers(restarting=True)
    assert desk("worker stop").out == f"{worker.id} stopped\n"
    assert workers.wait() == 0
    assert len(workers.pids()) == 1
    assert store_of(desk.queue).list_workers() == []


def test_stop_does_not_wait_for_a_worker_that_was_killed_with_its_supervisor(desk: Desk) -> None:
    workers = desk.workers()
    [pid] = workers.pids()
    workers.signal(signal.SIGSTOP)  # it must not free the worker's row
    os.kill(pid, signal.SIGKILL)
    workers.signal(signal.SIGKILL)
    workers.wait()
    desk("worker stop")
    desk.wait_empty()


def test_stop_waits_for_running_jobs(desk: Desk) -> None:
    gate = desk.home / "gate"
    workers = desk.workers("--count 2", up=2)
    job = enqueue(desk, gated(gate))
    desk.wait_started(job)
    holder = desk.job(job).worker_id
    [idle] = [worker.id for worker in desk.queue.workers() if worker.id != holder]
    stop = desk.start("worker stop")
    wait_until(lambda: f"{idle} stopped\n" in stop.output(), message="the idle one has stopped")
    assert f"{holder} stopped" not in stop.output()
    waiting = enqueue(desk, "true")
    gate.touch()
    assert stop.wait() == 0
    assert sorted(stop.output().split("\n")) == sorted(["", f"{holder} stopped", f"{idle} stopped"])
    assert workers.wait() == 0
    assert desk.job(job).status == "completed"
    assert desk.job(waiting).status == "pending"


def test_stop_takes_ids_and_leaves_the_others(desk: Desk) -> None:
    workers = desk.workers("--count 2", up=2)
    first, second = [event["worker_id"] for event in workers.events("worker.started")]
    ran = desk(f"worker stop nobody {first}", expect=1)
    assert ran.out == f"{first} stopped\n"
    assert ran.errors == ["queuectl: there is no running worker 'nobody'"]
    assert [worker.id for worker in desk.queue.workers()] == [second]
    job = enqueue(desk, "true")
    desk.wait(job, "completed")
    desk(f"worker stop {second}")
    assert workers.wait() == 0
    assert len(workers.pids()) == 2


def test_stop_names_who_is_left_after_its_timeout(desk: Desk) -> None:
    gate = desk.home / "gate"
    workers = desk.workers()
    job = enqueue(desk, gated(gate))
    desk.wait_started(job)
    holder = desk.job(job).worker_id
    ran = desk("worker stop --timeout 0.3", expect=1)
    assert ran.out == ""
    [line] = ran.errors
    assert f"{holder}" in line
    assert f"pid {workers.pids()[0]}" in line
    assert "still running" in line
    gate.touch()
    assert workers.wait() == 0
    assert desk.job(job).status == "completed"


def test_forced_stop_releases_jobs_and_gives_attempts_back(desk: Desk) -> None:
    desk.queue.set_config("shutdown_timeout", 600)
    workers = desk.workers()
    job = enqueue(desk, "echo started; sleep 600")
    desk.wait_started(job)
    desk("worker stop --force")
    assert workers.wait() == 1
    released = desk.job(job)
    assert (released.status, released.attempts, released.errors) == ("pending", 0, ())
    desk.wait_empty()


def test_stop_without_workers_says_so(desk: Desk) -> None:
    ran = desk("worker stop")
    assert ran.errors == ["queuectl: no worker is running on this machine"]


def test_the_stop_file_stops_workers_in_order_and_keeps_new_ones_from_starting(desk: Desk) -> None:
    gate, stop_file = desk.home / "gate", desk.home / ".stop_workers"
    workers = desk.workers("--count 2", up=2)
    job = enqueue(desk, gated(gate))
    desk.wait_started(job)
    stop_file.touch()
    assert str(stop_file) in workers.wait_for("supervisor.stopping")["reason"]
    workers.wait_for("worker.stopped")
    gate.touch()
    assert workers.wait() == 0
    assert desk.job(job).status == "completed"
    for line in ("worker start", "worker start --detach"):
        [said] = desk(line, expect=1).errors
        assert f"{stop_file} exists" in said
        assert "remove it" in said
    stop_file.unlink()
    assert desk.workers().stop() == 0


# Draining.


def test_drain_waits_for_retries_and_for_nothing_that_would_not_come(desk: Desk) -> None:
    """A future run_at, a paused type and a type without handler stay; a failed job is no failure."""
    desk.queue.set_config("backoff_factor", 0.3)
    desk.queue.set_config("backoff_jitter", 0)
    retried = enqueue(desk, 'test "$QUEUECTL_ATTEMPT" = 2')
    dead = enqueue(desk, "exit 3", max_attempts=2)
    later = enqueue(desk, "true", delay=3600)
    paused = enqueue(desk, "true", lane="paused")
    desk.queue.pause("shell:paused")
    foreign = desk.queue.enqueue("foreign").id
    workers = desk.start("worker start --drain --count 2")
    assert workers.wait() == 0
    states = {id: str(desk.job(id).status) for id in (retried, dead, later, paused, foreign)}
    assert states == {
        retried: "completed",
        dead: "failed",
        later: "scheduled",
        paused: "pending",
        foreign: "pending",
    }
    assert desk.job(retried).attempts == 2


def test_drain_waits_for_what_other_workers_run(desk: Desk) -> None:
    gate = desk.home / "gate"
    other = desk.workers()
    job = enqueue(desk, gated(gate))
    desk.wait_started(job)
    draining = desk.workers("--drain")
    extra = enqueue(desk, "true")
    desk.wait(extra, "completed")
    assert draining.is_running
    gate.touch()
    assert draining.wait() == 0
    assert desk.job(job).status == "completed"
    assert other.stop() == 0


def test_drain_lets_a_running_job_of_a_paused_type_finish(desk: Desk) -> None:
    gate = desk.home / "gate"
    desk.queue.set_config("shutdown_timeout", 0)
    job = enqueue(desk, gated(gate))
    workers = desk.workers("--drain")
    desk.wait_started(job)
    desk.queue.pause()
    desk("why " + job)  # the worker has seen the pause long before this has ended
    gate.touch()
    assert workers.wait() == 0
    assert (desk.job(job).status, desk.job(job).attempts) == ("completed", 1)


# What is served.


def test_types_limit_what_is_served(desk: Desk, app: Path) -> None:
    command = enqueue(desk, "true")
    lane = enqueue(desk, "true", lane="media")
    greeting = desk.queue.enqueue("greet", {"name": "you"}).id
    options = "--types greet,shell:media --app app:queue --drain"
    workers = desk.start(f"worker start {options}", cwd=app)
    assert workers.wait() == 0
    assert [desk.job(id).status for id in (command, lane, greeting)] == ["pending", "completed", "completed"]


def test_a_type_without_handler_is_refused_at_the_start(desk: Desk) -> None:
    workers = desk.start("worker start --types shell,sheell --log-format text")
    assert workers.wait() != 0
    [line] = workers.errors().splitlines()
    assert "sheell" in line
    assert "started, pid" not in workers.output()


WRONG_APPS = {
    "no_such_module:queue": "no_such_module",
    "app:no_such_queue": "no_such_queue",
    "app:greet": "not a holdfast.Queue",
    "raises:queue": "RuntimeError: it can't be",
    "exits:queue": "called exit",
    "app": "pkg.module:queue",
}


@pytest.fixture
def wrong_apps(app: Path) -> Path:
    (app / "raises.py").write_text('raise RuntimeError("it can\'t be")\n')
    (app / "exits.py").write_text("raise SystemExit(0)\n")
    return app


@pytest.mark.parametrize("name", WRONG_APPS)
def test_what_is_wrong_with_an_app_is_said_in_one_line(
    wrong_apps: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(wrong_apps)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("app", "raises", "exits"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ConfigError) as raised:
        load_app(name)
    monkeypatch.delitem(sys.modules, "app", raising=False)
    [line] = str(raised.value).splitlines()
    assert line.startswith("--app ")
    assert WRONG_APPS[name] in line


@pytest.mark.parametrize(
    ("name", "options"),
    [("exits:queue", "--count 2"), ("app:greet", ""), ("raises:queue", "--count 2 --detach")],
)
def test_a_wrong_app_is_one_clear_line(desk: Desk, wrong_apps: Path, name: str, options: str) -> None:
    workers = desk.start(f"worker start --app {name} --log-format text {options}", cwd=wrong_apps)
    assert workers.wait() == 2
    [line] = workers.errors().splitlines()
    assert line.startswith("queuectl: ")
    assert WRONG_APPS[name] in line
    assert "Traceback" not in workers.output()
    for log in desk.home.glob("logs/workers/*"):
        assert "Traceback" not in log.read_text()
    assert desk.queue.workers() == []
    desk.wait_empty()


# Signals.


def test_the_first_signal_lets_running_jobs_finish(desk: Desk) -> None:
    gate = desk.home / "gate"
    workers = desk.workers("--count 2", up=2)
    job = enqueue(desk, gated(gate))
    desk.wait_started(job)
    workers.signal(signal.SIGTERM)
    workers.wait_for("worker.stopped")
    waiting = enqueue(desk, "true")
    assert workers.is_running
    gate.touch()
    assert workers.wait() == 0
    assert (desk.job(job).status, desk.job(job).attempts) == ("completed", 1)
    assert desk.job(waiting).status == "pending"
    assert workers.errors() == ""


def test_the_second_signal_releases_at_once(desk: Desk) -> None:
    desk.queue.set_config("shutdown_timeout", 600)
    workers = desk.workers()
    job = enqueue(desk, "echo started; sleep 600")
    desk.wait_started(job)
    workers.signal(signal.SIGTERM)
    workers.wait_for("worker.stopping")
    workers.signal(signal.SIGTERM)
    assert workers.wait(SOON) == 1
    released = desk.job(job)
    assert (released.status, released.attempts, released.errors) == ("pending", 0, ())
    desk.wait_empty()


def test_two_signals_that_come_together_are_two(desk: Desk) -> None:
    """Both reach a supervisor that is busy; what it passes on must not become one on the way."""
    desk.queue.set_config("shutdown_timeout", 600)
    workers = desk.workers()
    job = enqueue(desk, "echo started; sleep 600")
    desk.wait_started(job)
    workers.signal(signal.SIGSTOP)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        workers.signal(number)
    assert workers.wait(SOON) == 1
    assert (desk.job(job).status, desk.job(job).attempts) == ("pending", 0)


def test_a_signal_during_the_passing_on_of_another_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged: the second request comes when the first has just been passed on to the last worker."""
    worker = """if True:
        import os, signal, sys
        signals = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        os.write(int(sys.argv[1]), b'{"worker_id": "one"}\\n')
        for _ in range(2):
            assert signal.sigtimedwait(signals, 5) is not None
    """
    supervisor = Supervisor(
        [sys.executable, "-c", worker],
        1,
        events=Events(),
        on_ready=lambda _: supervisor.stop("the first"),
    )
    send = subprocess.Popen.send_signal
    sent = []

    def send_and_be_asked_again(process: subprocess.Popen[bytes], number: int) -> None:
        sent.append(number)
        send(process, number)
        if len(sent) == 1:
            supervisor.stop("the second")

    monkeypatch.setattr(subprocess.Popen, "send_signal", send_and_be_asked_again)
    assert supervisor.run()
    assert sent == [signal.SIGTERM, signal.SIGINT]


def test_a_thread_of_the_application_does_not_keep_a_stopped_worker(desk: Desk, app: Path) -> None:
    with (app / "app.py").open("a") as file:
        file.write("threading.Thread(target=threading.Event().wait).start()\n")
    workers = desk.workers("--app app:queue", cwd=app)
    assert workers.stop() == 0


def test_a_signal_to_a_worker_that_is_leaving_prints_no_traceback(desk: Desk, app: Path) -> None:
    """The application takes its time at exit; nothing of a job is left to be released."""
    leaving = desk.home / "leaving"
    with (app / "app.py").open("a") as file:
        file.write(
            "import atexit, pathlib, time\n"
            "@atexit.register\n"
            "def linger() -> None:\n"
            f"    pathlib.Path({str(leaving)!r}).touch()\n"
            "    time.sleep(2)\n"
        )
    workers = desk.workers("--app app:queue", cwd=app)
    workers.signal(signal.SIGTERM)
    wait_until(leaving.exists, message="the worker is leaving")
    workers.signal(signal.SIGTERM)
    assert workers.wait() == 0
    assert workers.errors() == ""


def test_jobs_that_shutdown_timeout_cuts_short_are_given_back_with_exit_code_1(desk: Desk) -> None:
    desk.queue.set_config("shutdown_timeout", 0.3)
    workers = desk.workers("--count 2", up=2)
    job = enqueue(desk, "echo started; sleep 600")
    desk.wait_started(job)
    assert workers.stop() == 1
    released = desk.job(job)
    assert (released.status, released.attempts, released.errors) == ("pending", 0, ())
    desk.wait_empty()


def test_the_third_signal_kills_a_worker_that_does_not_answer(desk: Desk) -> None:
    """Its jobs are freed, and the exit code says that they did not finish."""
    desk.queue.set_config("shutdown_timeout", 600)
    workers = desk.workers()
    job = enqueue(desk, "echo started; sleep 600")
    desk.wait_started(job)
    os.kill(workers.pids()[0], signal.SIGSTOP)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # equal ones that come together are one
        workers.signal(number)
    code = workers.wait(SOON)
    assert workers.events("job.reaped", job_id=job, status="scheduled")
    assert (desk.job(job).status, desk.job(job).attempts) == ("scheduled", 1)
    assert code == 1
    desk.wait_empty()


def test_a_signal_before_the_workers_are_up_leaves_nothing(desk: Desk) -> None:
    workers = desk.start("worker start --count 2")
    wait_until(lambda: len(desk.processes()) == 3, message="the processes are there")
    workers.signal(signal.SIGTERM)
    assert workers.wait() == 0
    assert workers.errors() == ""
    desk.wait_empty()


def test_workers_stop_in_order_when_their_supervisor_is_killed(desk: Desk) -> None:
    gate = desk.home / "gate"
    workers = desk.workers("--count 2", up=2)
    job = enqueue(desk, gated(gate))
    desk.wait_started(job)
    holder = desk.job(job).worker_id
    workers.signal(signal.SIGKILL)
    assert workers.wait() == -9
    wait_until(lambda: [w.id for w in desk.queue.workers()] == [holder], message="the idle one leaves")
    gate.touch()
    desk.wait_empty()
    assert (desk.job(job).status, desk.job(job).attempts) == ("completed", 1)
    assert desk.queue.workers() == []
    assert workers.errors() == ""


def test_ctrl_c_at_a_terminal_stops_in_order(desk: Desk) -> None:
    """The key reaches the supervisor alone: neither its workers nor their commands."""
    gate = desk.home / "gate"
    terminal = desk.shell()
    try:
        terminal.type(shlex.join(QUEUECTL) + " worker start --count 2; echo code=$?\n")
        terminal.read_until("slots")
        job = enqueue(desk, gated(gate))
        desk.wait_started(job)
        terminal.type("\x03")
        terminal.read_until("stopping 2 worker processes: SIGINT")
        gate.touch()
        terminal.read_until("\ncode=0\n")
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()
    assert (desk.job(job).status, desk.job(job).attempts) == ("completed", 1)
    desk.wait_empty()


def test_a_closed_terminal_stops_workers_in_the_foreground(desk: Desk) -> None:
    gate = desk.home / "gate"
    desk.queue.set_config("heartbeat_interval", 0.2)  # with it a worker tells that it is stopping
    terminal = desk.shell()
    try:
        terminal.type(shlex.join(QUEUECTL) + " worker start\n")
        terminal.read_until("slots")
        job = enqueue(desk, gated(gate))
        desk.wait_started(job)
        terminal.hang_up()
        wait_until(lambda: desk.queue.workers()[0].state == "stopping", message="it was told")
        gate.touch()
        desk.wait_empty()
    finally:
        terminal.close()
    assert (desk.job(job).status, desk.job(job).attempts) == ("completed", 1)
