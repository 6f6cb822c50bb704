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
from tests.surfaces.command_line import PATIENT, CommandLine
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


class ForkedCommandLine(CommandLine):
    """Commands that end are forked from one process that has loaded them."""

    def __init__(self, home: Path, forked: Nursery) -> None:
        super().__init__(home)
        self._forked = forked

    def run(self, *words: str, cwd: Path) -> Ran:
        return self._forked(self.home, *words, cwd=cwd)


@pytest.fixture
def ctl(tmp_path: Path, forked: Nursery) -> Iterator[CommandLine]:
    ctl = ForkedCommandLine(tmp_path / "home", forked)
    yield ctl
    ctl.close()


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


def enqueue(ctl: CommandLine, command: str, lane: str = "", **options: Any) -> str:
    """Queue a command of the shell; returns the id. No program is started for it."""
    type = f"shell:{lane}" if lane else "shell"
    return ctl.queue.enqueue(type, {"command": command}, **options).id


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Starting.


def test_each_worker_is_a_process_of_its_own_in_a_session_of_its_own(ctl: CommandLine) -> None:
    workers = ctl.workers("--count 3", up=3)
    listed = ctl.json("worker list")
    assert sorted(worker["pid"] for worker in listed) == sorted(workers.pids())
    assert len({worker["id"] for worker in listed}) == 3
    assert {worker["state"] for worker in listed} == {"running"}
    for pid in workers.pids():
        assert parent_of(pid) == workers.pid
        assert os.getsid(pid) == pid
    assert workers.stop() == 0
    assert ctl.json("worker list") == []
    ctl.wait_empty()


def test_a_process_runs_one_command_at_a_time(ctl: CommandLine, tmp_path: Path) -> None:
    """--count 2 is two at a time: each writes when it begins and ends, and two overlap but never three."""
    log = shlex.quote(str(tmp_path / "log"))
    until_another = f"until [ $(grep -c + {log}) -ge 2 ]; do sleep 0.1; done"
    for _ in range(6):
        command = f"echo + >> {log}; {until_another}; sleep 0.1; echo - >> {log}"
        ctl.queue.enqueue("shell", {"command": command})
    assert ctl.start("worker start --count 2 --drain").wait() == 0
    depth, depths = 0, []
    for line in (tmp_path / "log").read_text().split():
        depth += 1 if line == "+" else -1
        depths.append(depth)
    assert len(depths) == 12
    assert max(depths) == 2


def test_concurrency_lets_a_process_run_several_commands(ctl: CommandLine, tmp_path: Path) -> None:
    """Three commands that wait for each other."""
    here = shlex.quote(str(tmp_path))
    meet = f"touch {here}/$QUEUECTL_JOB_ID.here; {{ n=0; while [ $(ls {here} | grep -c here) -lt 3 ]; do"
    meet += " sleep 0.02; n=$((n+1)); [ $n -lt 500 ] || exit 9; done; }"
    for _ in range(3):
        ctl.queue.enqueue("shell", {"command": meet}, max_attempts=1)
    workers = ctl.start("worker start --concurrency 3 --drain")
    assert workers.wait() == 0
    assert len(workers.events("worker.started", concurrency=3)) == 1
    assert len(workers.events("job.completed")) == 3


def test_the_log_goes_to_stdout_as_text_where_that_is_asked_for(ctl: CommandLine) -> None:
    """As JSON, most of the other tests read it."""
    enqueue(ctl, "true", id="job1")
    workers = ctl.start("worker start --drain --log-format text")
    assert workers.wait() == 0
    assert workers.errors() == ""
    assert "shell job1 completed in" in workers.output()
    assert "{" not in workers.output()


def test_the_level_of_the_log_is_that_of_the_supervisor_and_its_workers(ctl: CommandLine) -> None:
    enqueue(ctl, "true", id="good")
    ctl.queue.enqueue("shell", {"command": "false"}, id="bad", max_attempts=1)
    workers = ctl.start("worker start --drain --log-format text --log-level error")
    assert workers.wait() == 0
    [line] = workers.output().splitlines()
    assert "bad failed permanently" in line


def test_detached_workers_log_at_the_level_that_was_asked_for(ctl: CommandLine) -> None:
    enqueue(ctl, "true", id="good")
    answer = ctl.json("worker start --detach --drain --log-level debug")
    wait_until(lambda: not is_alive(answer["pid"]), message="the supervisor has ended")
    assert "shell good claimed" in Path(answer["log"]).read_text()


def test_a_closed_pipe_costs_the_log_and_nothing_else(ctl: CommandLine) -> None:
    """`queuectl worker start | head -1`, and a worker that dies after it."""
    gate = ctl.home / "gate"
    with subprocess.Popen(
        [*QUEUECTL, "worker", "start", "--log-format", "text"],
        env=environment(ctl.home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stderr is not None
        assert b"started" in supervisor.stdout.readline()
        supervisor.stdout.close()
        [worker] = ctl.queue.workers()
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: [w.pid for w in ctl.queue.workers()] not in ([], [worker.pid]), message="another")
        job = enqueue(ctl, gated(gate))
        ctl.wait_started(job)
        gate.touch()
        assert ctl.wait(job, "completed").attempts == 1
        supervisor.terminate()
        errors = supervisor.stderr.read()
        assert supervisor.wait(SOON) == 0
    assert errors == b""


# Dying.


def test_jobs_of_a_killed_worker_are_freed_at_once(ctl: CommandLine) -> None:
    """Well before its lease has ended, and what its command started is gone."""
    ctl.queue.set_config("lease_seconds", LEASE)
    workers = ctl.workers("--count 2", up=2)
    job = enqueue(ctl, HOLD_ONCE)
    ctl.wait_started(job)
    holder = ctl.job(job).worker_id
    [victim] = [w for w in ctl.json("worker list") if w["id"] == holder]
    assert [running["id"] for running in victim["running"]] == [job]
    killed = datetime.now(UTC)
    os.kill(victim["pid"], signal.SIGKILL)
    done = ctl.wait(job, "completed", timeout=SOON)
    [lost] = done.errors
    assert (lost.attempt, lost.worker_id) == (1, holder)
    assert (lost.error or "").startswith("WorkerLost")
    assert (lost.finished_at - killed).total_seconds() < SOON
    assert done.attempts == 2
    workers.wait_for("job.reaped", job_id=job, worker_id=holder, status="scheduled")
    wait_until(
        lambda: not [line for line in ctl.processes().values() if "sleep" in line], message="it is gone"
    )
    assert workers.stop() == 0


def test_jobs_in_the_application_s_own_database_are_freed_too(ctl: CommandLine, app: Path) -> None:
    url = f"sqlite:///{app / 'own.db'}"
    (app / "app.py").write_text(f"from holdfast import Queue\nqueue = Queue({url!r})\n")
    workers = ctl.workers("--app app:queue", cwd=app)
    with Queue(url) as queue:
        queue.set_config("lease_seconds", LEASE)
        job = queue.enqueue("shell", {"command": HOLD_ONCE})
        ctl.wait_started(job.id)
        killed = datetime.now(UTC)
        os.kill(workers.pids()[0], signal.SIGKILL)
        done = queue.wait(job.id, timeout=SOON)
        assert (done.status, done.attempts) == ("completed", 2)
        assert (done.errors[0].finished_at - killed).total_seconds() < SOON
        assert workers.stop() == 0
        assert queue.workers() == []


def test_a_dead_worker_is_replaced_after_pauses_that_grow(ctl: CommandLine) -> None:
    workers = ctl.workers("--count 2", up=2)
    other, pid = workers.pids()
    for number, pause in ((1, 1.0), (2, 2.0)):
        os.kill(pid, signal.SIGKILL)
        died = workers.wait_for("worker.died", number)
        assert (died["pid"], died["how"], died["restart_in"]) == (pid, "was killed by signal 9", pause)
        started = workers.wait_for("worker.started", 2 + number)
        pid = started["pid"]
        between = datetime.fromisoformat(started["time"]) - datetime.fromisoformat(died["time"])
        assert between.total_seconds() >= pause
        assert sorted(worker.pid for worker in ctl.queue.workers()) == sorted([other, pid])
    assert workers.stop() == 0
    assert len(workers.events("worker.started")) == 4


def test_the_log_says_that_a_worker_died_and_when_another_starts(ctl: CommandLine) -> None:
    workers = ctl.start("worker start --log-format text", program=PATIENT)
    wait_until(lambda: "started, pid" in workers.output(), message="the worker is up")
    [worker] = ctl.queue.workers()
    os.kill(worker.pid, signal.SIGKILL)
    said = f"worker process {worker.pid} was killed by signal 9; restarting in 60 s"
    wait_until(lambda: said in workers.output(), message=said)
    wait_until(
        lambda: [w.state for w in ctl.queue.workers(restarting=True)] == ["restarting"],
        message="its row stays",
    )
    assert ctl.queue.workers() == []
    assert workers.stop() == 0
    assert len(workers.output().split("started, pid")) == 2
    assert store_of(ctl.queue).list_workers() == []


def test_a_worker_that_dies_as_soon_as_the_log_names_it_is_known_to_its_supervisor(
    ctl: CommandLine, app: Path
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
    workers = ctl.start("worker start --log-format json --app app:queue", program=PATIENT, cwd=app)
    died = workers.wait_for("worker.died")
    assert [died["worker_id"]] == [event["worker_id"] for event in workers.events("worker.started")]
    wait_until(
        lambda: [w.state for w in ctl.queue.workers(restarting=True)] == ["restarting"],
        message="its row stays",
    )
    assert workers.stop() == 0
    assert store_of(ctl.queue).list_workers() == []


def test_a_dead_worker_is_found_though_what_it_forked_lives_on(ctl: CommandLine, app: Path) -> None:
    """The child of a fork holds copies of the worker's pipes, so that they do not end with it."""
    workers = ctl.workers("--app app:queue", cwd=app)
    file = ctl.home / "forked"
    job = ctl.queue.enqueue("fork", {"pid_file": str(file)}, max_attempts=1).id
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), message="the handler has forked")
    orphan = int(file.read_text())
    try:
        os.kill(workers.pids()[0], signal.SIGKILL)
        assert "WorkerLost" in (ctl.wait(job, "failed", SOON).error or "")
        workers.wait_for("worker.started", 2)
        assert is_alive(orphan)
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert workers.stop() == 0


def test_a_job_that_kills_its_workers_ends_failed_and_the_next_one_runs(ctl: CommandLine) -> None:
    poison = enqueue(ctl, "kill -9 $PPID; sleep 600", max_attempts=2)
    workers = ctl.workers()
    failed = ctl.wait(poison, "failed", timeout=SOON)
    assert failed.attempts == 2
    assert [(entry.attempt, (entry.error or "").split(":")[0]) for entry in failed.errors] == [
        (1, "WorkerLost"),
        (2, "WorkerLost"),
    ]
    assert len({entry.worker_id for entry in failed.errors}) == 2
    assert "died" in (failed.error or "")
    healthy = enqueue(ctl, "true")
    assert ctl.wait(healthy, "completed", timeout=SOON).attempts == 1
    workers.wait_for("job.failed", job_id=poison, attempt=2)
    assert workers.stop() == 0


def test_a_handler_that_ends_its_process_does_not_pass_for_an_orderly_end(
    ctl: CommandLine, app: Path
) -> None:
    """Though the exit code says so: the job is freed at once, and another process does the rest."""
    left = ctl.queue.enqueue("leave", {"code": 0}, priority=1).id
    workers = ctl.start("worker start --app app:queue --concurrency 1 --drain", cwd=app)
    greeting = ctl.queue.enqueue("greet", {"name": "you"}).id
    assert workers.wait() == 0
    assert workers.errors() == ""
    assert (ctl.job(left).status, ctl.job(left).attempts) == ("failed", 1)
    assert (ctl.job(left).error or "").startswith("WorkerLost")
    assert ctl.job(greeting).status == "completed"
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


def test_a_worker_that_stuck_handlers_have_used_up_is_recycled(ctl: CommandLine, app: Path) -> None:
    workers = ctl.workers("--app app:queue --concurrency 1", cwd=app)
    [used_up] = workers.pids()
    stuck = ctl.queue.enqueue("stuck").id
    greeting = ctl.queue.enqueue("greet", {"name": "you"}).id
    assert ctl.wait(greeting, "completed", timeout=SOON).result == "hello you"
    failed = ctl.wait(stuck, "failed", timeout=SOON)
    assert (failed.error or "").startswith("TimedOut")
    workers.wait_for("worker.recycled", pid=used_up)
    assert not workers.events("worker.died")
    assert len(workers.pids()) == 2
    assert not is_alive(used_up)
    assert workers.stop() == 0


def test_a_stuck_handler_does_not_keep_a_worker_from_stopping(ctl: CommandLine, app: Path) -> None:
    ctl.queue.set_config("shutdown_timeout", 600)
    workers = ctl.workers("--app app:queue --concurrency 2", cwd=app)
    stuck = ctl.queue.enqueue("stuck").id
    ctl.wait(stuck, "failed", timeout=SOON)
    assert workers.stop() == 0
    assert len(workers.pids()) == 1


def test_a_supervisor_that_waits_to_replace_a_worker_stops_at_once(ctl: CommandLine) -> None:
    workers = ctl.start("worker start --log-format json", program=PATIENT)
    workers.wait_for("worker.started")
    os.kill(workers.pids()[0], signal.SIGKILL)
    workers.wait_for("worker.died")
    assert workers.stop() == 0
    assert len(workers.pids()) == 1


# Detached.


def test_detach_returns_when_the_workers_are_up_and_logs_to_the_home(ctl: CommandLine) -> None:
    said = ctl("worker start --detach --count 2").out
    listed = ctl.queue.workers()
    assert len(listed) == 2
    [log] = (ctl.home / "logs" / "workers").iterdir()
    supervisor = parent_of(listed[0].pid)
    assert said == f"2 workers started, supervisor pid {supervisor}, log {log}\n"
    assert os.getsid(supervisor) == supervisor
    wait_until(lambda: log.read_text().count("started, pid") == 2, message="both have told of their start")
    job = enqueue(ctl, "echo hi", id="job1")
    ctl.wait(job, "completed")
    wait_until(lambda: "shell job1 completed" in log.read_text(), message="the job is in the log")
    ctl("worker stop")
    ctl.wait_empty()


def test_detached_workers_that_drain_end_by_themselves(ctl: CommandLine) -> None:
    job = enqueue(ctl, "sleep 0.5")
    answer = ctl.json("worker start --detach --drain")
    assert len(answer["workers"]) == 1
    assert ctl.wait(job, "completed").attempts == 1
    wait_until(lambda: not is_alive(answer["pid"]), message="the supervisor has ended")


def test_detached_workers_that_find_nothing_to_do_have_been_up_all_the_same(ctl: CommandLine) -> None:
    """The first has drained and left before the last one is up."""
    assert len(ctl.json("worker start --detach --drain --count 3")["workers"]) == 3
    ctl.wait_empty()


def test_the_log_of_detached_workers_is_rotated_and_may_be_removed(ctl: CommandLine) -> None:
    answer = ctl.json("worker start --detach")
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
    job = enqueue(ctl, "true")
    ctl.wait(job, "completed")
    ctl("worker stop")
    ctl.wait_empty()


def test_workers_that_a_job_detaches_survive_the_job(ctl: CommandLine) -> None:
    """And the death of its worker, with which everything else that the job started would end."""
    first = ctl.workers()
    job = enqueue(ctl, shlex.join([*QUEUECTL, "worker", "start", "--detach", "--types", "shell:later"]))
    assert ctl.wait(job, "completed").attempts == 1
    os.kill(first.pids()[0], signal.SIGKILL)
    first.wait_for("worker.died")
    assert first.stop() == 0
    later = enqueue(ctl, "true", lane="later")
    assert ctl.wait(later, "completed").attempts == 1
    ctl("worker stop")
    ctl.wait_empty()


# worker stop.


def test_stop_reaches_a_worker_that_is_about_to_be_replaced(ctl: CommandLine) -> None:
    workers = ctl.start("worker start --log-format json", program=PATIENT)
    pid = workers.wait_for("worker.started")["pid"]
    os.kill(pid, signal.SIGKILL)
    workers.wait_for("worker.died")
    [worker] = ctl.queue.workers(restarting=True)
    assert ctl("worker stop").out == f"{worker.id} stopped\n"
    assert workers.wait() == 0
    assert len(workers.pids()) == 1
    assert store_of(ctl.queue).list_workers() == []


def test_stop_does_not_wait_for_a_worker_that_was_killed_with_its_supervisor(ctl: CommandLine) -> None:
    workers = ctl.workers()
    [pid] = workers.pids()
    workers.signal(signal.SIGSTOP)  # it must not free the worker's row
    os.kill(pid, signal.SIGKILL)
    workers.signal(signal.SIGKILL)
    workers.wait()
    ctl("worker stop")
    ctl.wait_empty()


def test_stop_waits_for_running_jobs(ctl: CommandLine) -> None:
    gate = ctl.home / "gate"
    workers = ctl.workers("--count 2", up=2)
    job = enqueue(ctl, gated(gate))
    ctl.wait_started(job)
    holder = ctl.job(job).worker_id
    [idle] = [worker.id for worker in ctl.queue.workers() if worker.id != holder]
    stop = ctl.start("worker stop")
    wait_until(lambda: f"{idle} stopped\n" in stop.output(), message="the idle one has stopped")
    assert f"{holder} stopped" not in stop.output()
    waiting = enqueue(ctl, "true")
    gate.touch()
    assert stop.wait() == 0
    assert sorted(stop.output().split("\n")) == sorted(["", f"{holder} stopped", f"{idle} stopped"])
    assert workers.wait() == 0
    assert ctl.job(job).status == "completed"
    assert ctl.job(waiting).status == "pending"


def test_stop_takes_ids_and_leaves_the_others(ctl: CommandLine) -> None:
    workers = ctl.workers("--count 2", up=2)
    first, second = [event["worker_id"] for event in workers.events("worker.started")]
    ran = ctl(f"worker stop nobody {first}", expect=1)
    assert ran.out == f"{first} stopped\n"
    assert ran.errors == ["queuectl: there is no running worker 'nobody'"]
    assert [worker.id for worker in ctl.queue.workers()] == [second]
    job = enqueue(ctl, "true")
    ctl.wait(job, "completed")
    ctl(f"worker stop {second}")
    assert workers.wait() == 0
    assert len(workers.pids()) == 2


def test_stop_names_who_is_left_after_its_timeout(ctl: CommandLine) -> None:
    gate = ctl.home / "gate"
    workers = ctl.workers()
    job = enqueue(ctl, gated(gate))
    ctl.wait_started(job)
    holder = ctl.job(job).worker_id
    ran = ctl("worker stop --timeout 0.3", expect=1)
    assert ran.out == ""
    [line] = ran.errors
    assert f"{holder}" in line
    assert f"pid {workers.pids()[0]}" in line
    assert "still running" in line
    gate.touch()
    assert workers.wait() == 0
    assert ctl.job(job).status == "completed"


def test_forced_stop_releases_jobs_and_gives_attempts_back(ctl: CommandLine) -> None:
    ctl.queue.set_config("shutdown_timeout", 600)
    workers = ctl.workers()
    job = enqueue(ctl, "echo started; sleep 600")
    ctl.wait_started(job)
    ctl("worker stop --force")
    assert workers.wait() == 1
    released = ctl.job(job)
    assert (released.status, released.attempts, released.errors) == ("pending", 0, ())
    ctl.wait_empty()


def test_stop_without_workers_says_so(ctl: CommandLine) -> None:
    ran = ctl("worker stop")
    assert ran.errors == ["queuectl: no worker is running on this machine"]


def test_the_stop_file_stops_workers_in_order_and_keeps_new_ones_from_starting(ctl: CommandLine) -> None:
    gate, stop_file = ctl.home / "gate", ctl.home / ".stop_workers"
    workers = ctl.workers("--count 2", up=2)
    job = enqueue(ctl, gated(gate))
    ctl.wait_started(job)
    stop_file.touch()
    assert str(stop_file) in workers.wait_for("supervisor.stopping")["reason"]
    workers.wait_for("worker.stopped")
    gate.touch()
    assert workers.wait() == 0
    assert ctl.job(job).status == "completed"
    for line in ("worker start", "worker start --detach"):
        [said] = ctl(line, expect=1).errors
        assert f"{stop_file} exists" in said
        assert "remove it" in said
    stop_file.unlink()
    assert ctl.workers().stop() == 0


# Draining.


def test_drain_waits_for_retries_and_for_nothing_that_would_not_come(ctl: CommandLine) -> None:
    """A future run_at, a paused type and a type without handler stay; a failed job is no failure."""
    ctl.queue.set_config("backoff_factor", 0.3)
    ctl.queue.set_config("backoff_jitter", 0)
    retried = enqueue(ctl, 'test "$QUEUECTL_ATTEMPT" = 2')
    dead = enqueue(ctl, "exit 3", max_attempts=2)
    later = enqueue(ctl, "true", delay=3600)
    paused = enqueue(ctl, "true", lane="paused")
    ctl.queue.pause("shell:paused")
    foreign = ctl.queue.enqueue("foreign").id
    workers = ctl.start("worker start --drain --count 2")
    assert workers.wait() == 0
    states = {id: str(ctl.job(id).status) for id in (retried, dead, later, paused, foreign)}
    assert states == {
        retried: "completed",
        dead: "failed",
        later: "scheduled",
        paused: "pending",
        foreign: "pending",
    }
    assert ctl.job(retried).attempts == 2


def test_drain_waits_for_what_other_workers_run(ctl: CommandLine) -> None:
    gate = ctl.home / "gate"
    other = ctl.workers()
    job = enqueue(ctl, gated(gate))
    ctl.wait_started(job)
    draining = ctl.workers("--drain")
    extra = enqueue(ctl, "true")
    ctl.wait(extra, "completed")
    assert draining.is_running
    gate.touch()
    assert draining.wait() == 0
    assert ctl.job(job).status == "completed"
    assert other.stop() == 0


def test_drain_lets_a_running_job_of_a_paused_type_finish(ctl: CommandLine) -> None:
    gate = ctl.home / "gate"
    ctl.queue.set_config("shutdown_timeout", 0)
    job = enqueue(ctl, gated(gate))
    workers = ctl.workers("--drain")
    ctl.wait_started(job)
    ctl.queue.pause()
    ctl("why " + job)  # the worker has seen the pause long before this has ended
    gate.touch()
    assert workers.wait() == 0
    assert (ctl.job(job).status, ctl.job(job).attempts) == ("completed", 1)


# What is served.


def test_types_limit_what_is_served(ctl: CommandLine, app: Path) -> None:
    command = enqueue(ctl, "true")
    lane = enqueue(ctl, "true", lane="media")
    greeting = ctl.queue.enqueue("greet", {"name": "you"}).id
    options = "--types greet,shell:media --app app:queue --drain"
    workers = ctl.start(f"worker start {options}", cwd=app)
    assert workers.wait() == 0
    assert [ctl.job(id).status for id in (command, lane, greeting)] == ["pending", "completed", "completed"]


def test_a_type_without_handler_is_refused_at_the_start(ctl: CommandLine) -> None:
    workers = ctl.start("worker start --types shell,sheell --log-format text")
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
def test_a_wrong_app_is_one_clear_line(ctl: CommandLine, wrong_apps: Path, name: str, options: str) -> None:
    workers = ctl.start(f"worker start --app {name} --log-format text {options}", cwd=wrong_apps)
    assert workers.wait() == 2
    [line] = workers.errors().splitlines()
    assert line.startswith("queuectl: ")
    assert WRONG_APPS[name] in line
    assert "Traceback" not in workers.output()
    for log in ctl.home.glob("logs/workers/*"):
        assert "Traceback" not in log.read_text()
    assert ctl.queue.workers() == []
    ctl.wait_empty()


# Signals.


def test_the_first_signal_lets_running_jobs_finish(ctl: CommandLine) -> None:
    gate = ctl.home / "gate"
    workers = ctl.workers("--count 2", up=2)
    job = enqueue(ctl, gated(gate))
    ctl.wait_started(job)
    workers.signal(signal.SIGTERM)
    workers.wait_for("worker.stopped")
    waiting = enqueue(ctl, "true")
    assert workers.is_running
    gate.touch()
    assert workers.wait() == 0
    assert (ctl.job(job).status, ctl.job(job).attempts) == ("completed", 1)
    assert ctl.job(waiting).status == "pending"
    assert workers.errors() == ""


def test_the_second_signal_releases_at_once(ctl: CommandLine) -> None:
    ctl.queue.set_config("shutdown_timeout", 600)
    workers = ctl.workers()
    job = enqueue(ctl, "echo started; sleep 600")
    ctl.wait_started(job)
    workers.signal(signal.SIGTERM)
    workers.wait_for("worker.stopping")
    workers.signal(signal.SIGTERM)
    assert workers.wait(SOON) == 1
    released = ctl.job(job)
    assert (released.status, released.attempts, released.errors) == ("pending", 0, ())
    ctl.wait_empty()


def test_two_signals_that_come_together_are_two(ctl: CommandLine) -> None:
    """Both reach a supervisor that is busy; what it passes on must not become one on the way."""
    ctl.queue.set_config("shutdown_timeout", 600)
    workers = ctl.workers()
    job = enqueue(ctl, "echo started; sleep 600")
    ctl.wait_started(job)
    workers.signal(signal.SIGSTOP)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        workers.signal(number)
    assert workers.wait(SOON) == 1
    assert (ctl.job(job).status, ctl.job(job).attempts) == ("pending", 0)


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


def test_a_thread_of_the_application_does_not_keep_a_stopped_worker(ctl: CommandLine, app: Path) -> None:
    with (app / "app.py").open("a") as file:
        file.write("threading.Thread(target=threading.Event().wait).start()\n")
    workers = ctl.workers("--app app:queue", cwd=app)
    assert workers.stop() == 0


def test_a_signal_to_a_worker_that_is_leaving_prints_no_traceback(ctl: CommandLine, app: Path) -> None:
    """The application takes its time at exit; nothing of a job is left to be released."""
    leaving = ctl.home / "leaving"
    with (app / "app.py").open("a") as file:
        file.write(
            "import atexit, pathlib, time\n"
            "@atexit.register\n"
            "def linger() -> None:\n"
            f"    pathlib.Path({str(leaving)!r}).touch()\n"
            "    time.sleep(2)\n"
        )
    workers = ctl.workers("--app app:queue", cwd=app)
    workers.signal(signal.SIGTERM)
    wait_until(leaving.exists, message="the worker is leaving")
    workers.signal(signal.SIGTERM)
    assert workers.wait() == 0
    assert workers.errors() == ""


def test_jobs_that_shutdown_timeout_cuts_short_are_given_back_with_exit_code_1(ctl: CommandLine) -> None:
    ctl.queue.set_config("shutdown_timeout", 0.3)
    workers = ctl.workers("--count 2", up=2)
    job = enqueue(ctl, "echo started; sleep 600")
    ctl.wait_started(job)
    assert workers.stop() == 1
    released = ctl.job(job)
    assert (released.status, released.attempts, released.errors) == ("pending", 0, ())
    ctl.wait_empty()


def test_the_third_signal_kills_a_worker_that_does_not_answer(ctl: CommandLine) -> None:
    """Its jobs are freed, and the exit code says that they did not finish."""
    ctl.queue.set_config("shutdown_timeout", 600)
    workers = ctl.workers()
    job = enqueue(ctl, "echo started; sleep 600")
    ctl.wait_started(job)
    os.kill(workers.pids()[0], signal.SIGSTOP)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # equal ones that come together are one
        workers.signal(number)
    code = workers.wait(SOON)
    assert workers.events("job.reaped", job_id=job, status="scheduled")
    assert (ctl.job(job).status, ctl.job(job).attempts) == ("scheduled", 1)
    assert code == 1
    ctl.wait_empty()


def test_a_signal_before_the_workers_are_up_leaves_nothing(ctl: CommandLine) -> None:
    workers = ctl.start("worker start --count 2")
    wait_until(lambda: len(ctl.processes()) == 3, message="the processes are there")
    workers.signal(signal.SIGTERM)
    assert workers.wait() == 0
    assert workers.errors() == ""
    ctl.wait_empty()


def test_workers_stop_in_order_when_their_supervisor_is_killed(ctl: CommandLine) -> None:
    gate = ctl.home / "gate"
    workers = ctl.workers("--count 2", up=2)
    job = enqueue(ctl, gated(gate))
    ctl.wait_started(job)
    holder = ctl.job(job).worker_id
    workers.signal(signal.SIGKILL)
    assert workers.wait() == -9
    wait_until(lambda: [w.id for w in ctl.queue.workers()] == [holder], message="the idle one leaves")
    gate.touch()
    ctl.wait_empty()
    assert (ctl.job(job).status, ctl.job(job).attempts) == ("completed", 1)
    assert ctl.queue.workers() == []
    assert workers.errors() == ""


def test_ctrl_c_at_a_terminal_stops_in_order(ctl: CommandLine) -> None:
    """The key reaches the supervisor alone: neither its workers nor their commands."""
    gate = ctl.home / "gate"
    terminal = ctl.shell()
    try:
        terminal.type(shlex.join(QUEUECTL) + " worker start --count 2; echo code=$?\n")
        terminal.read_until("slots")
        job = enqueue(ctl, gated(gate))
        ctl.wait_started(job)
        terminal.type("\x03")
        terminal.read_until("stopping 2 worker processes: SIGINT")
        gate.touch()
        terminal.read_until("\ncode=0\n")
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()
    assert (ctl.job(job).status, ctl.job(job).attempts) == ("completed", 1)
    ctl.wait_empty()


def test_a_closed_terminal_stops_workers_in_the_foreground(ctl: CommandLine) -> None:
    gate = ctl.home / "gate"
    ctl.queue.set_config("heartbeat_interval", 0.2)  # with it a worker tells that it is stopping
    terminal = ctl.shell()
    try:
        terminal.type(shlex.join(QUEUECTL) + " worker start\n")
        terminal.read_until("slots")
        job = enqueue(ctl, gated(gate))
        ctl.wait_started(job)
        terminal.hang_up()
        wait_until(lambda: ctl.queue.workers()[0].state == "stopping", message="it was told")
        gate.touch()
        ctl.wait_empty()
    finally:
        terminal.close()
    assert (ctl.job(job).status, ctl.job(job).attempts) == ("completed", 1)
