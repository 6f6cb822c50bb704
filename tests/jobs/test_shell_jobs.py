"""Shell jobs through a real worker: what a command is given, how it is ended, and what is kept of it."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Fail, Job, Queue
from holdfast.context import Attempt
from holdfast.errors import ConfigError, InvalidPayload
from holdfast.events import HandlerStuck, JobReleased, JobsPruned
from holdfast.handlers.options import Executor
from holdfast.jobs import command, install
from holdfast.jobs.output_log import TAIL_BYTES, log_path
from holdfast.system import process_group
from holdfast.worker import maintenance
from holdfast.worker.executors.threads import ThreadExecutor
from tests.support import Recorder, both_engines, open_files, wait_until
from tests.worker.support import PATIENCE, Gate, get, is_alive, sql, supersede, time_out

pytestmark = pytest.mark.process

StartWorker = Callable[..., Any]

LONG = 600.0
"""The timeout of a job whose time is up when the test says so."""

ON_LINUX = os.path.exists("/proc/self/environ")
linux = pytest.mark.skipif(not ON_LINUX, reason="there is no /proc")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own."""
    for name in [name for name in os.environ if name.startswith("QUEUECTL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """KILL comes soon after TERM."""
    monkeypatch.setattr(process_group, "KILL_AFTER", 0.3)


@pytest.fixture
def queue(queue: Queue) -> Queue:
    install(queue, shell_slots=None)
    queue.set_config("max_attempts", 1)
    queue.set_config("heartbeat_interval", 0.1)
    return queue


@pytest.fixture(autouse=True)
def no_process_left(tmp_path: Path) -> Iterator[None]:
    """Everything that a test's commands started is gone after it."""
    yield
    mark = f"QUEUECTL_HOME={tmp_path / 'home'}"

    def left() -> list[int]:
        return [pid for pid in process_group.marked(mark) if is_alive(pid)]

    try:
        wait_until(lambda: not left(), timeout=30, message="processes left behind")
    finally:
        for pid in left():
            os.kill(pid, signal.SIGKILL)


def run(queue: Queue, start_worker: StartWorker, command: str, **payload: Any) -> Job:
    """Run one command to the end of its job."""
    [job] = run_each(queue, start_worker, {"command": command, **payload})
    return job


def run_each(queue: Queue, start_worker: StartWorker, *payloads: dict[str, Any]) -> list[Job]:
    """Run several commands to the ends of their jobs."""
    start_worker()
    jobs = queue.enqueue_many("shell", payloads)
    return [queue.wait(job.id, timeout=PATIENCE) for job in jobs]


def evidence(job: Job) -> dict[str, Any]:
    """Exit code and tail, of the result or else of the last failed attempt."""
    found = job.result if job.status == "completed" else job.errors[-1].detail
    assert isinstance(found, dict)
    return found


def log_of(job: Job) -> str:
    return Path(log_path(job.id)).read_text(encoding="utf-8", errors="replace")


def pid_in(path: Path) -> int:
    """The number that a command writes into a file, waiting for it."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), message=f"{path.name} is written")
    return int(path.read_text())


# Results.


@both_engines
def test_exit_code_and_tail_are_the_result(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "echo hello")
    assert (job.status, job.result) == ("completed", {"exitCode": 0, "tail": "hello\n"})
    heading, output, end = log_of(job).splitlines()
    assert heading.startswith("--- attempt 1, ")
    assert str(get(queue, job.id).worker_id or "") in heading
    assert (output, end) == ("hello", "--- exit code 0 ---")


def test_command_without_output_has_an_empty_tail(queue: Queue, start_worker: StartWorker) -> None:
    assert run(queue, start_worker, "true").result == {"exitCode": 0, "tail": ""}


def test_exit_code_other_than_zero_fails_with_its_evidence(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "echo one; echo the last words; exit 3")
    assert (job.status, job.error) == ("failed", "CommandFailed: exit code 3: the last words")
    failure = job.errors[-1]
    assert failure.detail == {"exitCode": 3, "tail": "one\nthe last words\n"}
    assert failure.traceback is None
    assert failure.error == job.error


@both_engines
def test_failing_command_is_tried_again(queue: Queue, start_worker: StartWorker, tmp_path: Path) -> None:
    queue.set_config("max_attempts", 3)
    job = run(queue, start_worker, f'echo try >>{tmp_path}/tries; test "$QUEUECTL_ATTEMPT" = 3')
    assert (job.status, job.attempts) == ("completed", 3)
    assert [failure.detail for failure in job.errors] == [{"exitCode": 1, "tail": ""}] * 2
    assert (tmp_path / "tries").read_text() == "try\n" * 3


def test_command_that_a_signal_ended_says_which(queue: Queue, start_worker: StartWorker) -> None:
    numbers = [signal.SIGKILL.value, signal.SIGTERM.value, signal.SIGSEGV.value]
    commands = [{"command": f"ulimit -c 0; echo before; kill -{number} $$"} for number in numbers]
    for number, job in zip(numbers, run_each(queue, start_worker, *commands), strict=True):
        assert job.error == f"CommandFailed: killed by signal {number}: before"
        assert job.errors[-1].detail == {"exitCode": -number, "tail": "before\n"}
        assert log_of(job).endswith(f"before\n--- killed by signal {number} ---\n")


def test_shells_own_exit_codes_are_told(queue: Queue, start_worker: StartWorker) -> None:
    commands = [{"command": text} for text in ("no-such-program-here", "/", "exit 255")]
    jobs = run_each(queue, start_worker, *commands)
    assert [evidence(job)["exitCode"] for job in jobs] == [127, 126, 255]


def test_wrong_syntax_fails_and_is_quoted(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "echo 'unfinished")
    assert job.status == "failed"
    assert "nterminated" in evidence(job)["tail"] or "unexpected" in evidence(job)["tail"]


def test_command_of_many_lines_runs_as_one_script(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, 'x=\'a  "b\'\n# a comment\nfor n in 1 2; do\n  echo "$x $n"\ndone\n')
    assert job.result["tail"] == 'a  "b 1\na  "b 2\n'


def test_odd_commands_are_taken_for_what_the_shell_takes_them_for(
    queue: Queue, start_worker: StartWorker
) -> None:
    odd = ["-c", "--version", "$1", "'", "\\", "exec", ":", "&", " "]
    jobs = run_each(queue, start_worker, *({"command": text} for text in odd))
    for text, job in zip(odd, jobs, strict=True):
        expected = subprocess.run(
            ["/bin/sh", "-c", "--", text, "/bin/sh"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert evidence(job)["exitCode"] == expected.returncode, text


def test_output_and_errors_come_in_their_order(queue: Queue, start_worker: StartWorker) -> None:
    command = "for n in 1 2 3; do echo out $n; echo err $n >&2; done"
    job = run(queue, start_worker, command)
    expected = "".join(f"out {n}\nerr {n}\n" for n in (1, 2, 3))
    assert job.result["tail"] == expected
    assert expected in log_of(job)


def test_binary_output_is_logged_as_it_is_and_told_as_text(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, r"printf '\377\000\200 \303\251\n'")
    assert b"\xff\x00\x80 \xc3\xa9\n" in Path(log_path(job.id)).read_bytes()
    assert job.result["tail"] == "�␀� é\n"


def test_control_characters_of_the_last_line_are_escaped_in_the_error(
    queue: Queue, start_worker: StartWorker
) -> None:
    job = run(queue, start_worker, r"printf 'red \033[31malert\000\n'; exit 1")
    assert job.error == r"CommandFailed: exit code 1: red \x1b[31malert␀"


def test_only_the_end_of_long_output_is_in_the_result(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "seq 100000")
    whole = "".join(f"{n}\n" for n in range(1, 100_001))
    assert job.result["tail"] == whole[-TAIL_BYTES:]
    assert whole in log_of(job)


def test_log_is_cut_in_the_middle_at_the_cap(queue: Queue, start_worker: StartWorker) -> None:
    queue.set_config("max_log_bytes", 4096, type="shell")
    job = run(queue, start_worker, "seq 100000")
    log = log_of(job)
    assert len(log) <= 4096
    assert log.startswith("--- attempt 1")
    assert re.search(r"\n\[\.\.\. \d+ bytes left out \.\.\.\]\n", log)
    assert log.endswith("\n100000\n--- exit code 0 ---\n")


def test_last_output_of_a_fast_command_is_never_missing(queue: Queue, start_worker: StartWorker) -> None:
    start_worker(concurrency=4)
    jobs = queue.enqueue_many(
        "shell", [{"command": f"seq 2000; echo end {n}; exit {n % 2}"} for n in range(40)]
    )
    for n, job in enumerate(jobs):
        assert evidence(queue.wait(job.id, timeout=PATIENCE))["tail"].endswith(f"2000\nend {n}\n")


def test_command_that_closes_its_output_runs_on(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    job = run(queue, start_worker, f"exec >&- 2>&-; sleep 0.2; echo done >{tmp_path}/file; exit 4")
    assert job.errors[-1].detail == {"exitCode": 4, "tail": ""}
    assert (tmp_path / "file").read_text() == "done\n"


def test_log_that_cannot_be_kept_does_not_fail_the_job(
    queue: Queue, start_worker: StartWorker, home: Path
) -> None:
    home.mkdir()
    (home / "logs").write_text("in the way")
    job = run(queue, start_worker, "echo hello")
    assert job.status == "completed"
    assert (job.result["exitCode"], job.result["tail"]) == (0, "hello\n")
    assert job.result["log"].startswith("the output could not be stored: ")


# What a command is given.


def test_job_and_attempt_are_in_the_environment(queue: Queue, start_worker: StartWorker) -> None:
    queue.set_config("max_attempts", 2)
    job = run(queue, start_worker, 'echo "$QUEUECTL_JOB_ID $QUEUECTL_ATTEMPT"; test $QUEUECTL_ATTEMPT = 2')
    assert job.errors[0].detail == {"exitCode": 1, "tail": f"{job.id} 1\n"}
    assert job.result["tail"] == f"{job.id} 2\n"


def test_env_comes_on_top_of_the_workers_own(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREETING", "hello")
    monkeypatch.setenv("NAME", "nobody")
    env = {"NAME": "wörld\nof $HOME `id` 'quotes'", "EMPTY": ""}
    job = run(queue, start_worker, 'echo "$GREETING $NAME[${EMPTY-unset}]"', env=env)
    assert job.result["tail"] == f"hello {env['NAME']}[]\n"


def test_env_cannot_hide_whose_the_command_is(queue: Queue, start_worker: StartWorker) -> None:
    env = {"QUEUECTL_JOB_ID": "another", "QUEUECTL_ATTEMPT": "99", "QUEUECTL_RUN": "another"}
    job = run(queue, start_worker, 'echo "$QUEUECTL_JOB_ID $QUEUECTL_ATTEMPT $QUEUECTL_RUN"', env=env)
    job_id, attempt, mark = job.result["tail"].split()
    assert (job_id, attempt, mark.startswith(f"{job.id}@")) == (job.id, "1", True)


def test_cwd_is_where_the_command_runs(queue: Queue, start_worker: StartWorker, tmp_path: Path) -> None:
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    job = run(queue, start_worker, "pwd; echo here >file", cwd=str(folder))
    assert job.result["tail"] == f"{folder}\n"
    assert (folder / "file").read_text() == "here\n"


def test_without_cwd_it_is_the_workers_own(queue: Queue, start_worker: StartWorker) -> None:
    assert run(queue, start_worker, "pwd -P").result["tail"] == f"{os.getcwd()}\n"


@pytest.mark.parametrize("cwd", ["missing", "file", ""])
def test_wrong_cwd_is_told_and_tried_again(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, cwd: str
) -> None:
    """The folder may be there by then."""
    (tmp_path / "file").touch()
    queue.set_config("max_attempts", 2)
    job = run(queue, start_worker, "true", cwd=str(tmp_path / cwd) if cwd else "")
    assert (job.status, job.attempts) == ("failed", 2)
    assert job.error is not None
    assert "the command could not be started" in job.error
    assert (str(tmp_path / cwd) if cwd else "") in job.error
    assert log_of(job).count("--- not started: ") == 2


def test_stdin_is_empty(queue: Queue, start_worker: StartWorker) -> None:
    assert run(queue, start_worker, "cat; echo end").result["tail"] == "end\n"


def test_command_leads_a_session_and_a_group_of_its_own(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, 'ps -o pid=,pgid=,sid= -p $$; echo "$$"')
    ids = job.result["tail"].split()
    assert len(set(ids)) == 1
    assert int(ids[0]) not in (os.getpid(), os.getpgrp(), os.getsid(0))


@linux
def test_signals_stand_as_they_do_in_a_shell(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "grep -E '^Sig(Blk|Ign)' /proc/self/status")
    masks = dict(line.split(":\t") for line in job.result["tail"].splitlines())
    assert int(masks["SigBlk"], 16) == 0
    ignored = int(masks["SigIgn"], 16)
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1, f"{number.name} is ignored"


@linux
def test_command_holds_nothing_of_the_workers_open(queue: Queue, start_worker: StartWorker) -> None:
    """But the end of a pipe, by which the kernel knows that the worker lives."""
    start_worker(concurrency=4)
    script = "for f in /proc/$$/fd/*; do readlink $f; done; sleep 0.1"
    jobs = queue.enqueue_many("shell", [{"command": script}] * 8)
    for job in jobs:
        names = queue.wait(job.id, timeout=PATIENCE).result["tail"].split()
        assert names[0] == "/dev/null"
        assert [name for name in names if not name.startswith("pipe:")] == ["/dev/null"]
        assert len(set(names)) <= 3, "one for the output, one for the worker's life"


# Limits.


def test_open_files_are_limited(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "ulimit -n; ulimit -Hn", limits={"openFiles": 33})
    assert job.result["tail"] == "33\n33\n"


def test_memory_is_limited(queue: Queue, start_worker: StartWorker) -> None:
    command = "ulimit -v; head -c 400000000 /dev/zero | tail -c 400000000 >/dev/null || exit 7"
    job = run(queue, start_worker, command, limits={"memoryBytes": 100 * 1024 * 1024})
    assert evidence(job)["exitCode"] == 7
    assert evidence(job)["tail"].startswith("102400\n")


def test_cpu_seconds_are_limited(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "ulimit -t; while :; do :; done", limits={"cpuSeconds": 1})
    assert job.errors[-1].detail == {"exitCode": -signal.SIGKILL, "tail": "1\n"}


@linux
def test_processes_are_limited(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "grep processes /proc/self/limits", limits={"processes": 4321})
    assert job.result["tail"].split()[2:4] == ["4321", "4321"]


@linux
def test_all_limits_hold_together(queue: Queue, start_worker: StartWorker) -> None:
    limits = {"memoryBytes": 2**31, "cpuSeconds": 50, "openFiles": 40, "processes": 5000}
    job = run(queue, start_worker, "cat /proc/self/limits", limits=limits)
    values = {line[:26].strip(): line[26:].split()[:2] for line in job.result["tail"].splitlines()}
    assert values["Max address space"] == [str(2**31)] * 2
    assert values["Max cpu time"] == ["50"] * 2
    assert values["Max open files"] == ["40"] * 2
    assert values["Max processes"] == ["5000"] * 2


def test_without_limits_the_workers_own_hold(queue: Queue, start_worker: StartWorker) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    job = run(queue, start_worker, "ulimit -n", limits={})
    assert job.result["tail"] == ("unlimited\n" if soft == resource.RLIM_INFINITY else f"{soft}\n")


def test_limit_that_cannot_be_set_fails_before_the_command_runs(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    job = run(queue, start_worker, f"touch {tmp_path}/ran", limits={"openFiles": 2**62})
    assert job.status == "failed"
    assert "limit" in (job.error or "")
    assert not (tmp_path / "ran").exists()


# What is refused at enqueue.


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "payload"),
    ({"command": ""}, "payload.command"),
    ({"command": 1}, "payload.command"),
    ({"command": None}, "payload.command"),
    ({"command": ["ls"]}, "payload.command"),
    ({"command": "a\x00b"}, "payload.command"),
    ({"command": "true", "shell": "bash"}, "payload"),
    ({"command": "true", "cwd": 1}, "payload.cwd"),
    ({"command": "true", "env": {"A=B": "c"}}, "payload.env"),
    ({"command": "true", "env": {"": "c"}}, "payload.env"),
    ({"command": "true", "env": {"A": 1}}, "payload.env"),
    ({"command": "true", "env": {"A": None}}, "payload.env"),
    ({"command": "true", "env": ["A=B"]}, "payload.env"),
    ({"command": "true", "limits": {"memory": 1}}, "payload.limits"),
    ({"command": "true", "limits": {"memory_bytes": 1}}, "payload.limits"),
    ({"command": "true", "limits": {"openFiles": 0}}, "payload.limits.openFiles"),
    ({"command": "true", "limits": {"processes": -1}}, "payload.limits.processes"),
    ({"command": "true", "limits": {"cpuSeconds": 1.5}}, "payload.limits.cpuSeconds"),
    ({"command": "true", "limits": {"memoryBytes": True}}, "payload.limits.memoryBytes"),
    ({"command": "true", "limits": {"memoryBytes": "1G"}}, "payload.limits.memoryBytes"),
    ({"command": "true", "limits": {"memoryBytes": 2**64}}, "payload.limits.memoryBytes"),
    ({"command": "true", "limits": 1}, "payload.limits"),
]


def test_wrong_payload_is_refused_where_it_is_enqueued(queue: Queue) -> None:
    for payload, where in WRONG:
        with pytest.raises(InvalidPayload) as caught:
            queue.enqueue("shell", payload)
        assert caught.value.where.startswith(where), payload
    assert queue.count() == 0


def test_what_is_optional_may_be_null(queue: Queue, start_worker: StartWorker) -> None:
    several: list[dict[str, Any]] = [
        {"cwd": None},
        {"env": None},
        {"limits": None},
        {"env": {}},
        {"limits": {"openFiles": None}},
    ]
    jobs = run_each(queue, start_worker, *({"command": "true", **optional} for optional in several))
    assert [job.status for job in jobs] == ["completed"] * len(several)


def test_wrong_payload_from_elsewhere_fails_for_good(
    queue: Queue, other_queue: Queue, start_worker: StartWorker
) -> None:
    """A program of another release, or of somebody else, may have written it."""
    queue.set_config("max_attempts", 5)
    job = other_queue.enqueue("shell", {"command": "true"})
    sql(queue, "UPDATE holdfast_jobs SET payload = ? WHERE id = ?", '{"comand": "true"}', job.id)
    start_worker()
    job = queue.wait(job.id, timeout=PATIENCE)
    assert (job.status, job.attempts) == ("failed", 1)
    assert "InvalidPayload" in (job.error or "")


@linux
def test_command_too_long_for_the_system_fails_for_good(queue: Queue, start_worker: StartWorker) -> None:
    queue.set_config("max_attempts", 5)
    with pytest.raises(InvalidPayload, match="command"):
        queue.enqueue("shell", {"command": "true " + "x" * 500_000})
    job = run(queue, start_worker, "true " + "ü" * 100_000)  # fewer characters than it has bytes
    assert (job.status, job.attempts) == ("failed", 1)
    assert (job.error or "").startswith("CommandNotStarted: the command could not be started: ")
    assert len(job.error or "") < 1000
    assert job.errors[-1].traceback is None
    assert "--- not started: " in log_of(job)


def test_environment_too_large_for_the_system_fails_for_good(queue: Queue, start_worker: StartWorker) -> None:
    queue.set_config("max_attempts", 5)
    job = run(
        queue, start_worker, "true", env={f"X{n}": "x" * 100_000 for n in range(9)} | {"Y": "y" * 140_000}
    )
    assert (job.status, job.attempts) == ("failed", 1)


@linux
def test_long_command_that_the_system_takes_runs(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "true " + "x" * 120_000 + "; echo $#")
    assert job.result["tail"] == "0\n"


def opened_since(before: Counter[str]) -> list[str]:
    """But for what is the database's: every thread that uses it has some."""
    return [name for name in open_files() - before if "queue.db" not in name]


@linux
def test_no_descriptor_is_left_open_whatever_happens(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker(concurrency=2)

    def round_of_jobs() -> None:
        payloads: list[dict[str, Any]] = [
            {"command": "echo hi"},
            {"command": "exit 1"},
            {"command": "true", "cwd": str(tmp_path / "missing")},
            {"command": "true " + "ü" * 100_000},
            {"command": "sleep 60 & exec >&-"},
        ]
        for job in queue.enqueue_many("shell", payloads):
            queue.wait(job.id, timeout=PATIENCE)
        job = queue.enqueue("shell", {"command": "sleep 60"}, timeout=0.05)
        queue.wait(job.id, timeout=PATIENCE)

    round_of_jobs()
    before = open_files()
    for _ in range(3):
        round_of_jobs()
    # A job that has timed out has ended before its command, whose pipes are closed then.
    wait_until(lambda: not opened_since(before), message="all that was opened is closed")


# Timeout, cancel, shutdown.


@both_engines
def test_timeout_ends_the_command_with_all_it_started(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker()
    command = f"echo waiting; sleep 600 & echo $! >{tmp_path}/child; echo $$ >{tmp_path}/own; wait"
    job = queue.enqueue("shell", {"command": command}, timeout=LONG)
    pids = [pid_in(tmp_path / "own"), pid_in(tmp_path / "child")]
    time_out(worker, job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, (done.error or "").split(":")[0]) == ("failed", "TimedOut")
    assert done.errors[-1].detail == {"exitCode": -signal.SIGTERM, "tail": "waiting\n"}
    assert log_of(job).endswith("waiting\n--- stopped, killed by signal 15 ---\n")
    assert not any(is_alive(pid) for pid in pids)


def test_timed_out_command_is_tried_again(queue: Queue, start_worker: StartWorker, tmp_path: Path) -> None:
    queue.set_config("max_attempts", 2)
    worker = start_worker()
    command = f'echo $$ >{tmp_path}/own; test "$QUEUECTL_ATTEMPT" = 2 || sleep 600; echo done'
    job = queue.enqueue("shell", {"command": command}, timeout=LONG)
    pid_in(tmp_path / "own")
    time_out(worker, job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("completed", 2)


def test_command_may_clean_up_after_term(queue: Queue, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker()
    command = f"trap 'echo cleaning; echo x >{tmp_path}/cleaned; exit 5' TERM; echo ready; "
    command += f"echo $$ >{tmp_path}/own; sleep 600 & wait"
    job = queue.enqueue("shell", {"command": command}, timeout=LONG)
    pid_in(tmp_path / "own")
    time_out(worker, job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert done.errors[-1].detail == {"exitCode": 5, "tail": "ready\ncleaning\n"}
    assert (tmp_path / "cleaned").exists()
    assert log_of(job).endswith("--- stopped, exit code 5 ---\n")


def test_command_gets_one_term(queue: Queue, start_worker: StartWorker, tmp_path: Path) -> None:
    program = tmp_path / "tells.py"
    program.write_text(
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'term\\n'))\n"
        f"pathlib.Path('{tmp_path}/own').write_text(f'{{os.getpid()}}\\n')\n"
        "while True: time.sleep(0.01)\n"
    )
    start_worker()
    job = queue.enqueue("shell", {"command": f"exec {sys.executable} {program}"})
    pid_in(tmp_path / "own")
    queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    assert log_of(job).count("term\n") == 1


def test_command_that_ignores_term_is_killed(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, tmp_path: Path
) -> None:
    worker = start_worker()
    command = f"trap '' TERM; echo $$ >{tmp_path}/own; while :; do sleep 0.1; done"
    job = queue.enqueue("shell", {"command": command}, timeout=LONG)
    pid = pid_in(tmp_path / "own")
    time_out(worker, job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert evidence(done)["exitCode"] == -signal.SIGKILL
    assert not is_alive(pid)
    assert not recorder.all(HandlerStuck)


def test_stopped_command_that_is_frozen_is_killed(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker()
    command = f"echo $$ >{tmp_path}/own; kill -STOP $$"
    job = queue.enqueue("shell", {"command": command}, timeout=LONG)
    pid = str(pid_in(tmp_path / "own"))
    wait_until(lambda: subprocess.check_output(["ps", "-o", "stat=", "-p", pid]).startswith(b"T"))
    time_out(worker, job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert done.errors[-1].detail == {"exitCode": -signal.SIGKILL, "tail": ""}


def test_command_that_ends_well_at_term_has_timed_out_all_the_same(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker()
    command = f"trap 'exit 0' TERM; echo $$ >{tmp_path}/own; sleep 600 & wait"
    job = queue.enqueue("shell", {"command": command}, timeout=LONG)
    pid_in(tmp_path / "own")
    time_out(worker, job.id)
    assert (queue.wait(job.id, timeout=PATIENCE).error or "").startswith("TimedOut: ")


def test_cancel_ends_the_command(queue: Queue, start_worker: StartWorker, tmp_path: Path) -> None:
    start_worker()
    job = queue.enqueue("shell", {"command": f"echo $$ >{tmp_path}/own; exec sleep 600"})
    pid = pid_in(tmp_path / "own")
    queue.cancel(job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.error) == ("cancelled", None)
    assert not is_alive(pid)
    assert log_of(job).endswith("--- stopped, killed by signal 15 ---\n")


def test_cancel_by_another_process_ends_a_command_that_ignores_term(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker()
    command = f"trap '' TERM; echo $$ >{tmp_path}/own; while :; do sleep 0.1; done"
    job = queue.enqueue("shell", {"command": command})
    pid = pid_in(tmp_path / "own")
    other_queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    assert not is_alive(pid)


def test_shutdown_lets_a_command_finish_in_its_time(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker()
    os.mkfifo(tmp_path / "gate")
    job = queue.enqueue(
        "shell", {"command": f"echo $$ >{tmp_path}/own; read line <{tmp_path}/gate; echo $line"}
    )
    pid_in(tmp_path / "own")
    stopping = threading.Thread(target=worker.stop, kwargs={"timeout": PATIENCE})
    stopping.start()
    (tmp_path / "gate").write_text("go\n")
    stopping.join(PATIENCE)
    done = get(queue, job.id)
    assert (done.status, done.result["tail"]) == ("completed", "go\n")


@pytest.mark.parametrize("nasty", [False, True])
def test_shutdown_ends_the_command_and_gives_the_attempt_back(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, tmp_path: Path, nasty: bool
) -> None:
    worker = start_worker()
    command = f"echo $$ >{tmp_path}/own; while :; do sleep 0.1; done"
    job = queue.enqueue("shell", {"command": f"trap '' TERM; {command}" if nasty else command})
    pid = pid_in(tmp_path / "own")
    assert worker.stop(timeout=0) is False
    assert not is_alive(pid)
    left = get(queue, job.id)
    assert (left.status, left.attempts, left.errors) == ("pending", 0, ())
    assert recorder.wait(JobReleased).job_id == job.id


@both_engines
def test_released_command_runs_again_under_a_heading_of_its_own(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker()
    command = f"echo $$ >{tmp_path}/own; test -e {tmp_path}/second || sleep 600"
    job = queue.enqueue("shell", {"command": command})
    pid_in(tmp_path / "own")
    worker.stop(timeout=0)
    (tmp_path / "second").touch()
    start_worker()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts, done.errors) == ("completed", 1, ())
    assert log_of(job).count("--- attempt 1, ") == 2


@pytest.fixture
def slow_start(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Commands start when it is opened."""
    start = process_group.ProcessGroup

    def slow(*args: Any, **kwargs: Any) -> process_group.ProcessGroup:
        gate.enter()
        return start(*args, **kwargs)

    monkeypatch.setattr(command, "ProcessGroup", slow)
    return gate


def test_command_begun_at_the_very_end_of_a_shutdown_is_ended(
    queue: Queue, start_worker: StartWorker, slow_start: Gate
) -> None:
    """The deadline passes while the command is being started: nobody was there yet to be told."""
    worker = start_worker()
    job = queue.enqueue("shell", {"command": "exec sleep 600"})
    slow_start.wait_entered()
    worker.stop(timeout=0)
    assert get(queue, job.id).status == "pending", "it is given back"
    slow_start.open()
    wait_until(
        lambda: log_of(job).rstrip().endswith("---") and log_of(job).count("---") == 4,
        timeout=30,
        message="the command of a job that was given back has ended",
    )


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_command_that_is_told_to_stop_before_it_began_is_ended(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, slow_start: Gate, how: str
) -> None:
    told = threading.Event()
    interrupt = ThreadExecutor.interrupt

    def interrupt_and_tell(executor: ThreadExecutor, attempt: Attempt) -> bool:
        answer = interrupt(executor, attempt)
        told.set()
        return answer

    monkeypatch.setattr(ThreadExecutor, "interrupt", interrupt_and_tell)
    start_worker()
    job = queue.enqueue("shell", {"command": "exec sleep 600"}, timeout=0.1 if how == "timeout" else None)
    slow_start.wait_entered()
    if how == "cancel":
        queue.cancel(job.id)
    assert told.wait(PATIENCE)
    slow_start.open()
    assert queue.wait(job.id, timeout=PATIENCE).status == ("cancelled" if how == "cancel" else "failed")
    wait_until(lambda: log_of(job).endswith("--- stopped, killed by signal 15 ---\n"), timeout=30)


def test_command_of_a_lost_lease_is_ended_and_changes_nothing(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker()
    job = queue.enqueue("shell", {"command": f"echo $$ >{tmp_path}/own; exec sleep 600"})
    pid = pid_in(tmp_path / "own")
    supersede(queue, job.id)
    wait_until(lambda: not is_alive(pid), message="the superseded command has ended")
    assert get(queue, job.id).worker_id == "another"
    assert get(queue, job.id).errors == ()


# What a command leaves behind.


def test_background_process_does_not_hold_up_the_job(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    """It has the output open, and it is gone when the command is."""
    job = run(queue, start_worker, f"sleep 600 & echo $! >{tmp_path}/child; echo over")
    assert job.result == {"exitCode": 0, "tail": "over\n"}
    assert not is_alive(pid_in(tmp_path / "child"))


def test_background_process_that_lets_go_of_the_output_is_ended_with_its_group(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    command = f"nohup sleep 600 </dev/null >/dev/null 2>&1 & echo $! >{tmp_path}/child"
    assert run(queue, start_worker, command).status == "completed"
    pid = pid_in(tmp_path / "child")
    wait_until(lambda: not is_alive(pid), timeout=30)


@linux
def test_process_of_another_session_that_holds_the_output_is_ended(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    command = f"setsid sh -c 'echo $$ >{tmp_path}/child; exec sleep 600' & "
    command += f"while ! test -s {tmp_path}/child; do sleep 0.01; done; echo over"
    job = run(queue, start_worker, command)
    assert job.result == {"exitCode": 0, "tail": "over\n"}
    assert not is_alive(pid_in(tmp_path / "child"))


@linux
def test_daemon_that_lets_go_of_the_output_outlives_a_command_that_ended_well(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Such as a service that the command restarted."""
    command = f"setsid sh -c 'echo $$ >{tmp_path}/child; exec sleep 600' >/dev/null 2>&1 & "
    command += f"while ! test -s {tmp_path}/child; do sleep 0.01; done"
    job = run(queue, start_worker, command)
    assert job.status == "completed"
    pid = pid_in(tmp_path / "child")
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


@linux
@pytest.mark.parametrize("how", ["timeout", "cancel", "shutdown"])
def test_process_of_another_session_is_ended_with_the_command(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, how: str
) -> None:
    worker = start_worker()
    inner = f"trap '' TERM; echo $$ >{tmp_path}/child; while :; do sleep 0.1; done"
    command = f'setsid sh -c "{inner.replace("$", chr(92) + "$")}" >/dev/null 2>&1 & exec sleep 600'
    job = queue.enqueue("shell", {"command": command}, timeout=LONG)
    pid = pid_in(tmp_path / "child")
    if how == "timeout":
        time_out(worker, job.id)
    if how == "cancel":
        queue.cancel(job.id)
    if how == "shutdown":
        worker.stop(timeout=0)
    else:
        queue.wait(job.id, timeout=PATIENCE)
    wait_until(lambda: not is_alive(pid), timeout=30, message="the daemon has ended")


@linux
def test_next_attempt_ends_what_the_one_before_has_left(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    queue.set_config("max_attempts", 2)
    command = f"setsid sh -c 'echo $$ >{tmp_path}/child; exec sleep 600' >/dev/null 2>&1 & "
    command += f"while ! test -s {tmp_path}/child; do sleep 0.01; done"
    first = f"if test $QUEUECTL_ATTEMPT = 1; then {command}; exit 1; fi; "
    job = run(queue, start_worker, first + f"! ps -o stat= -p $(cat {tmp_path}/child) | grep -v Z")
    assert (job.status, job.attempts) == ("completed", 2)


@linux
def test_processes_of_other_jobs_are_left_alone(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Also of a job whose id begins like this one's."""
    start_worker(concurrency=3)
    others = [f"{tmp_path}/other{n}" for n in (0, 1)]
    for n, path in enumerate(others):
        command = f"setsid sh -c 'echo $$ >{path}; exec sleep 600' & wait"
        queue.enqueue("shell", {"command": command}, id=f"job{n or ''}{n * 10}")
    pids = [pid_in(Path(path)) for path in others]
    ended = queue.enqueue("shell", {"command": "setsid sleep 600 & exec sleep 600"}, id="job1", timeout=0.2)
    queue.wait(ended.id, timeout=PATIENCE)
    assert all(is_alive(pid) for pid in pids)
    for job in queue.jobs(status="processing"):
        queue.cancel(job.id)
        queue.wait(job.id, timeout=PATIENCE)


def test_endless_output_of_a_background_process_is_ended(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "yes & sleep 0.1")
    assert job.status == "completed"
    assert set(job.result["tail"][1:-1]) == {"y", "\n"}


# Logs over the life of a job.


def test_attempts_follow_each_other_in_one_log(queue: Queue, start_worker: StartWorker) -> None:
    queue.set_config("max_attempts", 3)
    job = run(queue, start_worker, "echo try $QUEUECTL_ATTEMPT; exit 1")
    lines = log_of(job).splitlines()
    assert [line.split(",")[0] for line in lines] == [
        part for n in (1, 2, 3) for part in (f"--- attempt {n}", f"try {n}", "--- exit code 1 ---")
    ]


def test_retry_by_a_person_goes_on_in_the_same_log(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "exit 1")
    queue.retry(job.id, payload={"command": "echo mended"})
    done = queue.wait(job.id, timeout=PATIENCE)
    assert done.status == "completed"
    assert log_of(job).count("--- attempt 1, ") == 2
    assert log_of(job).endswith("mended\n--- exit code 0 ---\n")


def test_new_job_of_an_old_id_begins_a_new_log(queue: Queue, start_worker: StartWorker) -> None:
    start_worker()
    queue.wait(queue.enqueue("shell", {"command": "echo old"}, id="same").id, timeout=PATIENCE)
    log = Path(log_path("same")).read_bytes()
    queue.delete("same")
    Path(log_path("same")).write_bytes(log)  # as if it was deleted elsewhere, where nobody removes logs
    job = queue.wait(queue.enqueue("shell", {"command": "echo new"}, id="same").id, timeout=PATIENCE)
    assert "old" not in log_of(job)
    assert "new" in log_of(job)


@both_engines
@pytest.mark.parametrize("type", ["shell", "shell:media"])
def test_deleted_job_takes_its_log_with_it(queue: Queue, start_worker: StartWorker, type: str) -> None:
    start_worker()
    job = queue.wait(queue.enqueue(type, {"command": "true"}).id, timeout=PATIENCE)
    kept = queue.wait(queue.enqueue(type, {"command": "true"}).id, timeout=PATIENCE)
    queue.delete(job.id)
    assert not os.path.exists(log_path(job.id))
    assert os.path.exists(log_path(kept.id))


def test_cleanup_and_purge_remove_logs(queue: Queue, start_worker: StartWorker) -> None:
    start_worker()
    done = queue.wait(queue.enqueue("shell", {"command": "true"}).id, timeout=PATIENCE)
    failed = queue.wait(queue.enqueue("shell", {"command": "false"}).id, timeout=PATIENCE)
    assert queue.cleanup(0) == 1
    assert not os.path.exists(log_path(done.id))
    assert os.path.exists(log_path(failed.id))
    assert queue.purge(0) == 1
    assert not os.path.exists(log_path(failed.id))


def test_retention_removes_logs(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_PRUNE_EVERY", 0.1)
    job = run(queue, start_worker, "true")
    assert os.path.exists(log_path(job.id))
    queue.set_config("retention_completed", 0)
    recorder.wait(JobsPruned, job_ids=[job.id])
    wait_until(lambda: not os.path.exists(log_path(job.id)))


def test_deleting_a_job_whose_log_is_gone_is_no_error(queue: Queue, start_worker: StartWorker) -> None:
    job = run(queue, start_worker, "true")
    os.unlink(log_path(job.id))
    queue.delete(job.id)
    assert queue.get(job.id) is None


def test_deleting_a_job_of_another_type_touches_no_log(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    start_worker()
    job = queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    path = Path(log_path(job.id))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("somebody else's")
    queue.delete(job.id)
    assert path.exists()


# Lanes and slots.


def test_lane_is_handled_as_a_command_and_served_by_itself(queue: Queue, start_worker: StartWorker) -> None:
    start_worker(types=["shell:media"])
    other = queue.enqueue("shell", {"command": "true"})
    job = queue.wait(queue.enqueue("shell:media", {"command": "echo lane"}).id, timeout=PATIENCE)
    assert job.result == {"exitCode": 0, "tail": "lane\n"}
    assert get(queue, other.id).status == "pending"


def test_payload_of_a_lane_is_checked_too(queue: Queue) -> None:
    with pytest.raises(InvalidPayload):
        queue.enqueue("shell:media", {"command": ""})


def test_installed_with_one_slot_commands_run_one_at_a_time(
    url: str, home: Path, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Lanes share it."""
    with Queue(url) as queue:
        install(queue)
        worker = start_worker(queue, concurrency=10)
        folder = tmp_path / "lock"
        command = f"mkdir {folder} || exit 9; sleep 0.05; rmdir {folder}"
        jobs = [
            queue.enqueue(type, {"command": command}, max_attempts=1)
            for type in ("shell", "shell:a", "shell:b", "shell")
        ]
        assert [queue.wait(job.id, timeout=PATIENCE).status for job in jobs] == ["completed"] * 4
        worker.stop()


def test_without_slots_of_their_own_commands_run_side_by_side(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker(concurrency=3)
    command = f"touch {tmp_path}/$QUEUECTL_JOB_ID; "
    command += f"until test $(ls {tmp_path}/job* | wc -l) = 3; do sleep 0.01; done"
    jobs = [queue.enqueue("shell", {"command": command}, id=f"job{n}") for n in range(3)]
    assert [queue.wait(job.id, timeout=PATIENCE).status for job in jobs] == ["completed"] * 3


def test_application_may_take_the_type_itself(url: str, start_worker: StartWorker) -> None:
    with Queue(url) as queue:
        queue.register("shell", lambda payload: "mine")
        install(queue)
        worker = start_worker(queue)
        job = queue.wait(queue.enqueue("shell", {"anything": 1}).id, timeout=PATIENCE)
        assert job.result == "mine"
        worker.stop()


def test_drain_runs_commands_too(queue: Queue) -> None:
    job = queue.enqueue("shell", {"command": "echo drained"})
    assert queue.drain() == 1
    assert get(queue, job.id).result == {"exitCode": 0, "tail": "drained\n"}


# The same doors for handlers of the application.


def test_on_interrupt_is_called_at_a_timeout_and_frees_the_slot(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    @queue.job(timeout=0.1, max_attempts=1)
    def work(ctx: Context) -> None:
        stop = threading.Event()
        ctx.on_interrupt(stop.set)
        assert stop.wait(PATIENCE)
        ctx.check()

    start_worker(concurrency=1)
    first, second = work.enqueue(), work.enqueue()
    for job in (first, second):
        assert (queue.wait(job.id, timeout=PATIENCE).error or "").startswith("TimedOut: ")
    assert not recorder.all(HandlerStuck)


def test_on_interrupt_is_called_in_another_thread_and_once(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    threads: list[bool] = []

    @queue.job(timeout=LONG, max_attempts=1)
    def work(ctx: Context) -> None:
        own = threading.get_ident()
        ctx.on_interrupt(lambda: threads.append(threading.get_ident() == own))
        gate.enter()
        ctx.check()

    worker = start_worker()
    job = work.enqueue()
    gate.wait_entered()
    time_out(worker, job.id)
    wait_until(lambda: threads)
    queue.cancel(job.id)
    marker = queue.enqueue("shell", {"command": "true"})
    queue.wait(marker.id, timeout=PATIENCE)
    gate.open()
    queue.wait(job.id, timeout=PATIENCE)
    assert threads == [False]


def test_on_interrupt_given_late_is_called_at_once(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    called: list[bool] = []

    @queue.job
    def work(ctx: Context) -> None:
        gate.count()
        wait_until(lambda: ctx.stopping)
        ctx.on_interrupt(lambda: called.append(ctx.stopping))
        assert called == [True]
        ctx.check()

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    assert called == [True]


def test_on_interrupt_is_not_called_before_the_deadline_of_a_shutdown(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    called = threading.Event()

    @queue.job
    def work(ctx: Context) -> str:
        ctx.on_interrupt(called.set)
        gate.count()
        wait_until(lambda: ctx.stopping)
        return "finished in time"

    worker = start_worker()
    job = work.enqueue()
    gate.wait_entered()
    assert worker.stop(timeout=PATIENCE) is True
    assert get(queue, job.id).result == "finished in time"
    assert not called.is_set()


def test_detail_is_kept_with_a_failed_attempt(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job(max_attempts=1)
    def work(ctx: Context) -> None:
        ctx.detail(step="first", n=1)
        ctx.detail(step="second")
        raise RuntimeError("boom")

    start_worker()
    job = queue.wait(work.enqueue().id, timeout=PATIENCE)
    assert job.errors[-1].detail == {"step": "second", "n": 1}
    assert "RuntimeError: boom" in (job.errors[-1].traceback or "")


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_detail_is_kept_when_a_job_fails_for_good(
    queue: Queue, start_worker: StartWorker, executor: Executor
) -> None:
    queue.job(name="work", executor=executor)(fail_with_detail)
    start_worker()
    job = queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    assert job.status == "failed"
    assert job.errors[-1].detail == {"why": "because"}


def fail_with_detail(ctx: Context) -> None:
    ctx.detail(why="because")
    raise Fail("it will not do")


def test_detail_of_a_completed_attempt_is_forgotten(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job
    def work(ctx: Context) -> None:
        ctx.detail(step="first")

    start_worker()
    job = queue.wait(work.enqueue().id, timeout=PATIENCE)
    assert (job.status, job.errors) == ("completed", ())


@pytest.mark.parametrize(
    "value",
    [float("nan"), object(), "\x00", "\ud800", "x" * 2_000_000],
    ids=("NaN", "object", "NUL", "surrogate", "large"),
)
def test_detail_that_cannot_be_stored_is_refused_where_it_is_given(
    queue: Queue, start_worker: StartWorker, value: object
) -> None:
    @queue.job(max_attempts=1)
    def work(ctx: Context) -> str:
        with pytest.raises(InvalidPayload):
            ctx.detail(value=value)
        return "refused"

    start_worker()
    assert queue.wait(work.enqueue().id, timeout=PATIENCE).result == "refused"


def test_setting_gives_the_value_in_force_for_the_type(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job(max_attempts=1)
    def work(ctx: Context) -> list[Any]:
        with pytest.raises(ConfigError):
            ctx.setting("no_such_setting")
        return [ctx.setting("max_log_bytes"), ctx.setting("max_attempts"), ctx.setting("max_retries")]

    queue.set_config("max_log_bytes", 5000)
    queue.set_config("max_log_bytes", 7000, type="work")
    start_worker()
    assert queue.wait(work.enqueue().id, timeout=PATIENCE).result == [7000, 1, 1]


# Where the kernel does not watch: macOS.


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a system without the signals of a pipe, descriptors of processes, and waitid."""
    monkeypatch.setattr(process_group, "KERNEL_KILLS", False)
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.delattr(os, "waitid", raising=False)


def test_elsewhere_commands_end_as_they_do_here(
    queue: Queue, start_worker: StartWorker, elsewhere: None
) -> None:
    start_worker(concurrency=2)
    commands = ["echo hi", "cat; echo end; exit 3", "wait; echo waited", "kill -9 $$", "jobs; echo $#"]
    jobs = queue.enqueue_many("shell", [{"command": command} for command in commands])
    assert [evidence(queue.wait(job.id, timeout=PATIENCE)) for job in jobs] == [
        {"exitCode": 0, "tail": "hi\n"},
        {"exitCode": 3, "tail": "end\n"},
        {"exitCode": 0, "tail": "waited\n"},
        {"exitCode": -9, "tail": ""},
        {"exitCode": 0, "tail": "0\n"},
    ]


def test_elsewhere_limits_folder_and_environment_hold(
    queue: Queue, start_worker: StartWorker, elsewhere: None, tmp_path: Path
) -> None:
    job = run(
        queue,
        start_worker,
        'ulimit -n; pwd; echo "$X"',
        limits={"openFiles": 44},
        cwd=str(tmp_path),
        env={"X": "y"},
    )
    assert job.result["tail"] == f"44\n{tmp_path}\ny\n"


def test_elsewhere_timeout_ends_the_group(
    queue: Queue, start_worker: StartWorker, elsewhere: None, tmp_path: Path
) -> None:
    worker = start_worker()
    command = f"trap '' TERM; sleep 600 & echo $! >{tmp_path}/child; echo $$ >{tmp_path}/own; "
    command += "while :; do wait; done"
    job = queue.enqueue("shell", {"command": command}, timeout=LONG)
    pids = [pid_in(tmp_path / "own"), pid_in(tmp_path / "child")]
    time_out(worker, job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert evidence(done)["exitCode"] == -signal.SIGKILL
    wait_until(lambda: not any(is_alive(pid) for pid in pids), timeout=30)


def group_members(group: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and is_alive(int(name)):
            try:
                if os.getpgid(int(name)) == group:
                    found.append(int(name))
            except ProcessLookupError:
                continue
    return found


@linux
def test_elsewhere_the_guard_is_gone_with_the_command(
    queue: Queue, start_worker: StartWorker, elsewhere: None, tmp_path: Path
) -> None:
    job = run(queue, start_worker, f"echo $$ >{tmp_path}/own; ps -o pid= --ppid $$; sleep 0.1")
    assert job.status == "completed"
    children = job.result["tail"].split()
    assert len(children) == 1, "the guard is no child of the command's: only ps is"
    wait_until(lambda: not group_members(pid_in(tmp_path / "own")), timeout=30)


def test_elsewhere_the_guard_does_not_hold_up_the_end(
    queue: Queue, start_worker: StartWorker, elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has let go of the output, so that nothing is waited for when the command is over."""
    monkeypatch.setattr(process_group, "_LAST_OUTPUT", 600.0)
    start_worker(concurrency=1)
    for job in queue.enqueue_many("shell", [{"command": "true"}] * 5):
        assert queue.wait(job.id, timeout=PATIENCE).status == "completed"
