"""Commands and real kills: nothing outlives its worker, nothing grows, and their output can be followed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.jobs import install
from holdfast.jobs.output_log import log_path
from holdfast.system.process_group import marked
from tests.process.programs import ROOT, is_alive
from tests.support import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

QUEUECTL = (sys.executable, "-m", "holdfast.cli")
SOON = 25.0
"""Seconds within which the processes of a dead worker are gone."""

PATIENCE = 30.0
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("QUEUECTL_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("QUEUECTL_HOME", str(folder))
    return folder


@pytest.fixture
def url(home: Path) -> str:
    return f"sqlite:///{home / 'queue.db'}"


@pytest.fixture
def queue(url: str, home: Path) -> Iterator[Queue]:
    with Queue(url) as queue:
        queue.set_config("lease_seconds", 3)
        queue.set_config("heartbeat_interval", 0.2)
        queue.set_config("max_attempts", 1)
        queue.set_config("backoff_factor", 0.01)
        queue.set_config("backoff_jitter", 0)
        install(queue, shell_slots=None)
        yield queue


def processes(home: Path) -> list[int]:
    """Everything alive that was started by this test."""
    return [pid for pid in marked(f"QUEUECTL_HOME={home}") if is_alive(pid)]


@pytest.fixture
def start(home: Path, bytecode: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts programs, which are killed and collected with all they left when the test ends."""
    started: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
        with (tmp_path / f"program-{len(started)}.log").open("wb") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, **options}
            process = subprocess.Popen(words, cwd=ROOT, env=environment, **streams)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
    for pid in processes(home):
        os.kill(pid, signal.SIGKILL)
    for process in started:
        process.wait(PATIENCE)
        if process.stdout is not None:
            process.stdout.close()
    wait_until(lambda: not processes(home), message="the processes of the test are gone")


def supervised(queue: Queue, start: Start, *options: str) -> tuple[subprocess.Popen[bytes], int]:
    """A supervisor with one worker; returns it, and the pid of the worker."""
    supervisor = start(*QUEUECTL, "worker", "start", *options)
    wait_until(lambda: queue.workers() or supervisor.poll() is not None, message="the worker is up")
    assert supervisor.poll() is None
    (worker,) = queue.workers()
    return supervisor, worker.pid


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), message=f"{path.name} is written")
    return int(path.read_text())


def family(folder: Path) -> str:
    """A command with a child, and a grandchild in a session of its own that keeps no pipe of ours open."""
    return (
        f"setsid sh -c 'echo $$ >{folder}/grandchild; exec sleep 600' </dev/null >/dev/null 2>&1 & "
        f"sleep 600 & echo $! >{folder}/child; echo $$ >{folder}/own; trap '' TERM; while :; do wait; done"
    )


def group_of(folder: Path) -> list[int]:
    return [pid_in(folder / "own"), pid_in(folder / "child")]


def wait_gone(pids: list[int], message: str) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), timeout=SOON, message=message)


# Real kills.


def test_command_and_all_its_descendants_die_with_their_worker(
    queue: Queue, start: Start, tmp_path: Path
) -> None:
    supervisor, worker = supervised(queue, start)
    job = queue.enqueue("shell", {"command": family(tmp_path)})
    pids = [*group_of(tmp_path), pid_in(tmp_path / "grandchild")]
    os.kill(worker, signal.SIGKILL)
    wait_gone(pids, "the command's processes outlive their worker")
    done = queue.wait(job.id, timeout=SOON)
    assert (done.status, (done.error or "").split(":")[0]) == ("failed", "WorkerLost")
    assert supervisor.poll() is None


def test_group_dies_when_supervisor_and_worker_are_killed_together(
    queue: Queue, start: Start, tmp_path: Path
) -> None:
    supervisor, worker = supervised(queue, start)
    queue.enqueue("shell", {"command": family(tmp_path)})
    pids = group_of(tmp_path)
    supervisor.kill()
    os.kill(worker, signal.SIGKILL)
    wait_gone(pids, "the command's group outlives worker and supervisor")


def test_every_command_of_a_killed_worker_dies(queue: Queue, start: Start, tmp_path: Path) -> None:
    _, worker = supervised(queue, start, "--concurrency", "8")
    folders = [tmp_path / str(number) for number in range(8)]
    for folder in folders:
        folder.mkdir()
        queue.enqueue("shell", {"command": family(folder)})
    pids = [pid for folder in folders for pid in [*group_of(folder), pid_in(folder / "grandchild")]]
    os.kill(worker, signal.SIGKILL)
    wait_gone(pids, "some of the commands' processes outlive their worker")


def test_retry_after_a_kill_runs_alone(queue: Queue, start: Start, tmp_path: Path) -> None:
    """The next attempt, in a new worker, meets nothing of the one before."""
    _, worker = supervised(queue, start)
    alone = f"! ps -o stat= -p $(cat {tmp_path}/own),$(cat {tmp_path}/grandchild) | grep -v Z"
    command = f"if test $QUEUECTL_ATTEMPT = 2; then {alone}; exit; fi; {family(tmp_path)}"
    job = queue.enqueue("shell", {"command": command}, max_attempts=2)
    group_of(tmp_path)
    pid_in(tmp_path / "grandchild")
    os.kill(worker, signal.SIGKILL)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("completed", 2)
    assert Path(log_path(job.id)).read_text().count("--- attempt ") == 2


def test_second_signal_ends_commands_and_gives_their_attempts_back(
    queue: Queue, start: Start, tmp_path: Path
) -> None:
    supervisor, _ = supervised(queue, start)
    job = queue.enqueue("shell", {"command": family(tmp_path)})
    pids = [*group_of(tmp_path), pid_in(tmp_path / "grandchild")]
    supervisor.send_signal(signal.SIGTERM)
    wait_until(lambda: any(worker.state == "stopping" for worker in queue.workers()), message="it stops")
    assert all(map(is_alive, pids)), "the first signal lets commands finish"
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(PATIENCE) == 1
    wait_gone(pids, "the command's processes outlive their worker")
    left = queue.get(job.id)
    assert left is not None
    assert (left.status, left.attempts, left.errors) == ("pending", 0, ())


WORKER = """
import os, signal, sys
from holdfast import Queue
from holdfast.jobs import install
from holdfast.system import process_group
if "elsewhere" in sys.argv:
    process_group.KERNEL_KILLS = False
    del os.pidfd_open, os.waitid
if "dies-at-gate" in sys.argv:
    process_group.ProcessGroup._open_gate = lambda group: os.kill(os.getpid(), signal.SIGKILL)
queue = Queue()
install(queue)
queue.run_worker()
"""


@pytest.mark.parametrize("system", ["linux", "elsewhere"])
def test_group_dies_with_a_worker_that_nobody_supervises(
    queue: Queue, start: Start, tmp_path: Path, system: str
) -> None:
    """Elsewhere, as on macOS, a guard in the group sees to it in the kernel's place."""
    worker = start(sys.executable, "-c", WORKER, system)
    queue.enqueue("shell", {"command": family(tmp_path)})
    pids = group_of(tmp_path)
    worker.kill()
    wait_gone(pids, "the command's group outlives its worker")


@pytest.mark.parametrize("system", ["linux", "elsewhere"])
def test_group_lives_for_as_long_as_its_worker(
    queue: Queue, start: Start, tmp_path: Path, system: str
) -> None:
    """Other commands that begin and end beside it, and their pipes, do it no harm."""
    worker = start(
        sys.executable, "-c", WORKER.replace("install(queue)", "install(queue, shell_slots=3)"), system
    )
    long = queue.enqueue("shell", {"command": f"echo $$ >{tmp_path}/own; exec sleep 600"})
    pid = pid_in(tmp_path / "own")
    for job in queue.enqueue_many("shell", [{"command": "sleep 0.02; exit 1"}] * 10):
        assert queue.wait(job.id, timeout=PATIENCE).status == "failed"
    timed_out = queue.enqueue("shell", {"command": "sleep 600 & sleep 600"}, timeout=0.2)
    assert queue.wait(timed_out.id, timeout=PATIENCE).status == "failed"
    assert is_alive(pid)
    queue.cancel(long.id)
    assert queue.wait(long.id, timeout=PATIENCE).status == "cancelled"
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


@pytest.mark.parametrize("system", ["linux", "elsewhere"])
def test_command_of_a_worker_that_dies_while_starting_it_never_runs(
    queue: Queue, home: Path, start: Start, tmp_path: Path, system: str
) -> None:
    worker = start(sys.executable, "-c", WORKER, system, "dies-at-gate")
    queue.enqueue("shell", {"command": f"touch {tmp_path}/ran"})
    assert worker.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: not processes(home), timeout=SOON, message="the shell that waited is gone")
    assert not (tmp_path / "ran").exists()


IGNORE_CHILDREN = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_workers_that_were_started_with_children_ignored_still_see_how_theirs_end(
    queue: Queue, start: Start
) -> None:
    """An ignored SIGCHLD is inherited, as from a program that collects no children."""
    start(sys.executable, "-c", IGNORE_CHILDREN, *QUEUECTL, "worker", "start")
    jobs = queue.enqueue_many("shell", [{"command": "echo said; exit 3"}, {"command": "echo said"}])
    failed, completed = (queue.wait(job.id, timeout=PATIENCE) for job in jobs)
    assert failed.status == "failed"
    assert failed.errors[-1].detail == {"exitCode": 3, "tail": "said\n"}
    assert completed.result == {"exitCode": 0, "tail": "said\n"}
    (first,) = queue.workers()
    os.kill(first.pid, signal.SIGKILL)
    wait_until(
        lambda: [worker.id for worker in queue.workers()] not in ([], [first.id]), message="it is replaced"
    )


# Nasty commands.

NASTY = (
    "trap '' TERM; while :; do sleep 1; done",
    "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & wait",
    "setsid setsid yes & exec yes",
    "(trap '' TERM; exec yes) & trap '' TERM; while :; do wait; done",
    "exec >/dev/null 2>&1; setsid sleep 600 & sleep 600 & wait",
    "yes 'a longer line, and a longer line, and a longer line' | cat",
    "f() { sleep 600 & setsid sleep 600 & wait; }; f & f & wait",
    "kill -STOP $$",
    "exec sleep 600",
    "while :; do sleep 0.01 & done",
)


def memory_of(pid: int, field: str) -> int:
    """Bytes of memory, now (VmRSS) or at most (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"there is no {field}")


def test_fifty_timeouts_of_nasty_commands_leave_no_process_and_flat_memory(
    queue: Queue, home: Path, start: Start
) -> None:
    cap = 100_000
    queue.set_config("max_log_bytes", cap)
    supervisor, worker = supervised(queue, start, "--concurrency", "10")
    first = queue.enqueue("shell", {"command": "echo warm"})
    assert queue.wait(first.id, timeout=PATIENCE).status == "completed"
    before = memory_of(worker, "VmRSS")
    jobs = [queue.enqueue("shell", {"command": NASTY[n % 10]}, timeout=0.3) for n in range(50)]
    for job in jobs:
        done = queue.wait(job.id, timeout=60)
        assert (done.error or "").startswith("TimedOut: "), done.payload
        assert Path(log_path(job.id)).stat().st_size <= cap
    wait_until(
        lambda: set(processes(home)) <= {supervisor.pid, worker}, timeout=SOON, message="processes are left"
    )
    assert [record.pid for record in queue.workers()] == [worker], "the worker has lived through it"
    assert memory_of(worker, "VmHWM") - before < 48 * 1024 * 1024


def test_endless_output_never_exceeds_the_cap(queue: Queue, home: Path, start: Start) -> None:
    cap = 20_000
    queue.set_config("max_log_bytes", cap)
    supervised(queue, start)
    job = queue.enqueue("shell", {"command": "echo first words; exec yes"}, timeout=1)
    path = Path(log_path(job.id))
    sizes: list[int] = []

    def is_over() -> bool:
        if path.exists():
            sizes.append(path.stat().st_size)
        found = queue.get(job.id)
        return found is not None and found.is_finished

    wait_until(is_over)
    assert 0 < max(sizes) <= cap
    log = path.read_text()
    assert log.splitlines()[1] == "first words"
    assert re.search(r"\n\[\.\.\. \d+ bytes left out \.\.\.\]\n", log)
    assert log.endswith("y\n--- stopped, killed by signal 15 ---\n")


# queuectl logs --follow.


@pytest.fixture
def worker(queue: Queue) -> Iterator[None]:
    """A worker in this process."""
    worker = queue.worker(concurrency=4).start()
    yield
    worker.stop(timeout=0)


class Follower:
    """`queuectl logs --follow` as a process, with what it has printed so far."""

    def __init__(self, start: Start, folder: Path, job_id: str) -> None:
        self._path = folder / "followed"
        with self._path.open("wb") as file, (folder / "errors").open("wb") as errors:
            self.process = start(*QUEUECTL, "logs", job_id, "--follow", stdout=file, stderr=errors)
        self._errors = folder / "errors"

    def text(self) -> str:
        return self._path.read_text()

    def wait_for(self, part: str) -> None:
        wait_until(lambda: part in self.text(), message=f"{part!r} is printed")

    def end(self) -> int:
        code = self.process.wait(PATIENCE)
        assert self._errors.read_text() == ""
        return code


def gated(folder: Path, before: str, after: str) -> str:
    """A command with two parts; the second begins when `folder/go` exists."""
    return f"{before}; until test -e {folder}/go; do sleep 0.02; done; {after}"


def test_follow_goes_with_a_running_job_to_its_end(
    queue: Queue, worker: None, start: Start, tmp_path: Path
) -> None:
    job = queue.enqueue("shell", {"command": gated(tmp_path, "echo one", "echo two; exit 3")})
    follower = Follower(start, tmp_path, job.id)
    follower.wait_for("one\n")
    assert "two" not in follower.text()
    (tmp_path / "go").touch()
    assert follower.end() == 0
    assert follower.text() == Path(log_path(job.id)).read_text()
    assert follower.text().endswith("one\ntwo\n--- exit code 3 ---\n")


def test_follow_begins_before_the_job_does(queue: Queue, start: Start, tmp_path: Path) -> None:
    job = queue.enqueue("shell", {"command": "echo at last"})
    follower = Follower(start, tmp_path, job.id)
    worker = queue.worker().start()
    assert follower.end() == 0
    assert "at last\n--- exit code 0 ---\n" in follower.text()
    worker.stop()


def test_follow_goes_on_over_retries(queue: Queue, worker: None, start: Start, tmp_path: Path) -> None:
    queue.set_config("backoff_strategy", "fixed")
    queue.set_config("backoff_factor", 0.3)
    command = gated(tmp_path, "echo try $QUEUECTL_ATTEMPT", "test $QUEUECTL_ATTEMPT = 3")
    job = queue.enqueue("shell", {"command": command}, max_attempts=3)
    follower = Follower(start, tmp_path, job.id)
    follower.wait_for("try 1\n")
    (tmp_path / "go").touch()
    assert follower.end() == 0
    assert re.findall(r"try \d|exit code \d", follower.text()) == [
        "try 1", "exit code 1", "try 2", "exit code 1", "try 3", "exit code 0",
    ]  # fmt: skip
    assert follower.text() == Path(log_path(job.id)).read_text()


def test_follow_goes_on_over_compactions_and_never_skips_in_silence(
    queue: Queue, worker: None, start: Start, tmp_path: Path
) -> None:
    """Also when the file has grown again since, so that its size tells nothing."""
    queue.set_config("max_log_bytes", 2048)
    count = 1500
    burst = (
        "n=0; while test $n -lt %d; do n=$((n+1)); echo line $n; test $((n %% 30)) = 0 && sleep 0.03; done"
    )
    job = queue.enqueue("shell", {"command": gated(tmp_path, "echo begin", f"{burst % count}; true")})
    follower = Follower(start, tmp_path, job.id)
    follower.wait_for("begin\n")
    (tmp_path / "go").touch()
    assert follower.end() == 0
    text = follower.text()
    assert text.endswith(f"line {count}\n--- exit code 0 ---\n")
    assert "left out" in text
    last = 0
    for piece in re.split(r"\n\[\.\.\. [^\n]*left out \.\.\.\]\n", text):
        # A piece may begin and end within a line; those inside it are whole and follow each other.
        numbers = [int(line[5:]) for line in piece.split("\n")[1:-1] if line.startswith("line ")]
        if numbers:
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "skipped in silence"
            assert numbers[0] > last, "printed twice"
            last = numbers[-1]


def test_follow_ends_on_ctrl_c_with_130(queue: Queue, worker: None, start: Start, tmp_path: Path) -> None:
    job = queue.enqueue("shell", {"command": "echo begun; exec sleep 600"})
    follower = Follower(start, tmp_path, job.id)
    follower.wait_for("begun\n")
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == 130
    found = queue.get(job.id)
    assert found is not None
    assert found.status == "processing", "looking on does not end the job"


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_follow_ends_when_the_job_is_cancelled_or_deleted(
    queue: Queue, worker: None, start: Start, tmp_path: Path, how: str
) -> None:
    job = queue.enqueue("shell", {"command": "echo begun; exec sleep 600"})
    follower = Follower(start, tmp_path, job.id)
    follower.wait_for("begun\n")
    queue.cancel(job.id)
    if how == "delete":
        queue.wait(job.id, timeout=PATIENCE)
        queue.delete(job.id)
    assert follower.end() == 0


def test_follow_of_a_job_whose_output_is_not_here_says_so(
    queue: Queue, worker: None, start: Start, tmp_path: Path
) -> None:
    job = queue.enqueue("shell", {"command": "true"})
    queue.wait(job.id, timeout=PATIENCE)
    os.unlink(log_path(job.id))
    for words in ((), ("--follow",)):
        process = start(*QUEUECTL, "logs", job.id, *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate(timeout=PATIENCE)
        assert b"is not on this machine" in output, words
        assert process.returncode == 1


def test_follow_of_a_finished_job_prints_its_log(
    queue: Queue, worker: None, start: Start, tmp_path: Path
) -> None:
    job = queue.enqueue("shell", {"command": r"printf '\377\000binary'"})
    queue.wait(job.id, timeout=PATIENCE)
    process = start(*QUEUECTL, "logs", job.id, "--follow", stdout=subprocess.PIPE)
    output, _ = process.communicate(timeout=PATIENCE)
    assert output == Path(log_path(job.id)).read_bytes()
    assert b"\xff\x00binary\n" in output


def test_logs_of_deleted_jobs_are_removed_at_the_shell_too(
    queue: Queue, worker: None, start: Start, tmp_path: Path
) -> None:
    jobs = [queue.enqueue("shell", {"command": command}) for command in ("true", "true", "false")]
    for job in jobs:
        queue.wait(job.id, timeout=PATIENCE)
    words = (
        ["delete", jobs[0].id],
        ["cleanup", "--older-than", "0s"],
        ["dlq", "purge", "--older-than", "0s"],
    )
    for job, command in zip(jobs, words, strict=True):
        assert os.path.exists(log_path(job.id))
        assert start(*QUEUECTL, *command).wait(PATIENCE) == 0
        assert not os.path.exists(log_path(job.id))
