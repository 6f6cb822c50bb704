"""What specifications 002 and 003 promise, typed command by command at queuectl in real processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.postgres import server_url
from tests.support import both_engines, wait_until
from tests.surfaces.command_line import CommandLine
from tests.surfaces.support import QUEUECTL, Cli, Ran

pytestmark = pytest.mark.process


class InProcessCommandLine(CommandLine):
    """Runs commands in this process, but for those that stay and those typed for the first time.

    To start a program takes ten times what the command itself does.
    """

    def __init__(self, home: Path, cli: Cli) -> None:
        super().__init__(home)
        self._cli = cli
        self.unknown: set[str] = set()
        """The commands whose first line is typed at a real program."""

    def run(self, *words: str, cwd: Path) -> Ran:
        first = {" ".join(words[:2]), words[0]} & self.unknown
        if first:
            self.unknown -= first
            return super().run(*words, cwd=cwd)
        return self._cli(*words)


@pytest.fixture
def server(engine: str) -> None:
    """The server of PostgreSQL has no home: started in a test's, it would be taken for what the test left."""
    if engine == "postgres":
        server_url()


@pytest.fixture
def ctl(server: None, home: Path, cli: Cli) -> Iterator[InProcessCommandLine]:
    ctl = InProcessCommandLine(home, cli)
    yield ctl
    ctl.close()


COMMANDS = [
    "status",
    "worker list",
    "config set",
    "config get",
    "enqueue",
    "list",
    "why",
    "show",
    "logs",
    "dlq list",
    "dlq retry",
    "cancel",
    "worker stop",
]


def seconds(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def test_a_day_at_the_queue(ctl: InProcessCommandLine, tmp_path: Path) -> None:
    """Two workers, and one command after another: what a person sees of success, failure and repair."""
    ctl.unknown = set(COMMANDS)
    assert ctl("status").code == 0
    assert ctl.json("worker list") == []
    ctl("config set backoff_base 2")
    ctl("config set backoff_jitter 0")
    assert ctl("config get backoff_base").out == "2\n"

    # Everything is accepted without a worker, and waits.
    assert ctl("enqueue --id broken --max-attempts 4 --command 'echo broke >&2; exit 7'").out == "broken\n"
    assert ctl('enqueue \'{"id": "job1", "command": "echo hello"}\'').out == "job1\n"
    again = ctl("enqueue --id job1 --command true", expect=1)
    assert again.out == ""
    assert "job1" in again.err
    assert ctl("list --status pending --json").json["total"] == 2
    assert ctl.json("why job1")["reasons"][0]["code"] == "no_workers"

    # Success.
    workers = ctl.workers("--count 2", up=2)
    ctl.wait("job1", "completed")
    shown = ctl.json("show job1")
    assert (shown["status"], shown["attempts"], shown["error"]) == ("completed", 1, None)
    assert shown["result"] == {"exitCode": 0, "tail": "hello\n"}
    assert "hello\n" in ctl("logs job1").out
    assert "completed after" in ctl("show job1").out

    # Failure: the first retry is planned in 2 s, the next in 4 s; a slow machine may see the latter.
    ctl.wait("broken", "scheduled")
    wait_until(lambda: [row[0] for row in ctl("list --status retrying").rows] == ["broken"])
    for _ in range(4):
        why, shown = ctl.json("why broken"), ctl.json("show broken")
        if why["reasons"][0].get("until") == shown["nextRetryAt"]:
            break
    attempts = shown["attempts"]
    assert (why["reasons"][0]["until"], shown["maxAttempts"]) == (shown["nextRetryAt"], 4)
    assert [failure["attempt"] for failure in shown["errors"]] == list(range(1, attempts + 1))
    failure = shown["errors"][-1]
    assert (failure["exitCode"], failure["tail"]) == (7, "broke\n")
    assert seconds(failure["finishedAt"], shown["nextRetryAt"]) == pytest.approx(2**attempts, abs=0.05)

    # The dead-letter queue, and back from it when the cause is gone.
    cause = tmp_path / "cause"
    ctl(f"enqueue --id dead --max-attempts 1 --command {shlex.quote(f'test -e {cause}')}")
    ctl.wait("dead", "failed")
    assert ctl("dlq list").rows[0][0] == "dead"
    assert [task["id"] for task in ctl.json("list --state dead")["tasks"]] == ["dead"]
    refused = ctl("dlq retry job1", expect=1)
    assert "completed" in refused.err
    cause.touch()
    assert ctl("dlq retry dead").out == "dead is pending again\n"
    ctl.wait("dead", "completed")
    shown = ctl.json("show dead")
    assert (shown["attempts"], shown["error"], len(shown["errors"])) == (1, None, 1)
    assert ctl.json("dlq list")["tasks"] == []

    # A timeout ends the whole command, and says so.
    ctl("enqueue --id slow --timeout 0.3 --max-attempts 1 --command 'sleep 611 & sleep 611'")
    ctl.wait("slow", "failed")
    assert ctl.json("show slow")["error"].startswith("TimedOut")
    assert not [line for line in ctl.processes().values() if "sleep 611" in line]

    # A delay: not before.
    ctl("enqueue --id later --delay 1s --command true")
    assert ctl.json("show later")["status"] == "scheduled"
    ctl.wait("later", "completed")
    shown = ctl.json("show later")
    assert seconds(shown["runAfter"], shown["lastAttemptAt"]) >= 0
    assert seconds(shown["createdAt"], shown["runAfter"]) == pytest.approx(1, abs=0.1)

    # The retries really came, after 2 and 4 s; the next one is planned in 8.
    wait_until(lambda: len(ctl.job("broken").errors) == 3, message="the third attempt")
    shown = ctl.json("show broken")
    first, second, third = shown["errors"]
    assert seconds(first["finishedAt"], second["startedAt"]) >= 2
    assert seconds(second["finishedAt"], third["startedAt"]) >= 4
    assert seconds(third["finishedAt"], shown["nextRetryAt"]) == pytest.approx(8, abs=0.05)
    assert ctl("logs broken").out.count("broke\n") == 3
    timeline = ctl("show broken").out
    for failure in (first, second, third):
        assert f"attempt {failure['attempt']}, worker {failure['worker']}" in timeline

    # The end of the day.
    ctl("cancel broken")
    counts = ctl.json("status")
    assert (counts["completed"], counts["failed"], counts["cancelled"]) == (3, 1, 1)
    ctl("worker stop")
    assert workers.wait() == 0
    assert workers.errors() == ""
    ctl.wait_empty()
    assert ctl.unknown == set()


@both_engines
def test_attempts_end_in_the_dead_letter_queue(ctl: CommandLine) -> None:
    """With every retry waited for, at a tenth of the pace."""
    ctl("config set backoff_factor 0.1")
    ctl("config set backoff_jitter 0")
    ctl("config set max_retries 3")
    ctl("enqueue --id broken --command 'exit 1'")
    assert ctl.start("worker start --drain").wait() == 0
    shown = ctl.json("show broken")
    assert (shown["status"], shown["attempts"], shown["nextRetryAt"]) == ("failed", 3, None)
    first, second, third = shown["errors"]
    assert seconds(first["finishedAt"], second["startedAt"]) >= 0.2
    assert seconds(second["finishedAt"], third["startedAt"]) >= 0.4
    assert ctl.json("dlq retry --all") == {"retried": 1, "left": 0}
    assert ctl.json("show broken")["status"] == "pending"


def test_higher_priority_first_then_in_order(ctl: CommandLine, tmp_path: Path) -> None:
    order = tmp_path / "order"
    for id, priority in (("a", 0), ("b", -5), ("c", 10), ("d", 0), ("e", 10)):
        ctl(f"enqueue --id {id} --priority {priority} --command 'echo {id} >> {order}'")
    assert ctl.start("worker start --drain").wait() == 0
    assert order.read_text().split() == ["c", "e", "a", "d", "b"]


def test_a_job_outlives_everything_that_is_killed_under_it(ctl: CommandLine) -> None:
    """The whole machine, as it were: supervisor and workers. The next start takes up what was left."""
    ctl("config set lease_seconds 3")
    workers = ctl.workers()
    once = 'echo started; test "$QUEUECTL_ATTEMPT" = 2 || sleep 633'
    ctl(f"enqueue --id job1 --command {shlex.quote(once)}")
    ctl.wait_started("job1")
    workers.signal(signal.SIGSTOP)  # it must not see its worker die first
    os.kill(workers.pids()[0], signal.SIGKILL)
    workers.signal(signal.SIGKILL)
    assert workers.wait() == -9
    ctl.wait_empty()
    assert ctl.json("show job1")["status"] == "processing"
    assert ctl.start("worker start --drain").wait() == 0
    shown = ctl.json("show job1")
    assert (shown["status"], shown["attempts"]) == ("completed", 2)
    assert shown["errors"][0]["error"].startswith("WorkerLost")


@both_engines
def test_worker_stop_lets_running_jobs_finish_and_starts_no_more(ctl: CommandLine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    hold = f"echo started; n=0; while [ ! -e {gate} ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done"
    workers = ctl.workers("--count 2", up=2)
    for id in ("one", "two", "three"):
        ctl(f"enqueue --id {id} --command {shlex.quote(hold)}")
    ctl.wait_started("one")
    ctl.wait_started("two")
    stop = ctl.start("worker stop")
    workers.wait_for("worker.stopping", 2)
    assert stop.is_running
    assert ctl.json("status")["processing"] == 2
    gate.touch()
    assert stop.wait() == 0
    assert workers.wait() == 0
    states = {task["id"]: task["status"] for task in ctl.json("list")["tasks"]}
    assert states == {"one": "completed", "two": "completed", "three": "pending"}
    assert ctl.json("show three")["attempts"] == 0
    assert ctl.start("worker start --drain").wait() == 0
    assert ctl.json("show three")["status"] == "completed"


def test_running_workers_follow_changed_settings(ctl: CommandLine) -> None:
    """Within a second: the attempts below end later than that after the change."""
    workers = ctl.workers()
    pids = workers.pids()
    ctl("config set backoff_jitter 0")
    ctl("config set backoff_base 3")
    ctl("enqueue --id three --command 'sleep 1; exit 1'")
    ctl.wait("three", "scheduled")
    shown = ctl.json("show three")
    assert seconds(shown["errors"][0]["finishedAt"], shown["nextRetryAt"]) == pytest.approx(3, abs=0.05)

    ctl("config set backoff_strategy fixed")
    ctl("config set backoff_factor 5 --type shell:slow")
    ctl("enqueue --id five --lane slow --command 'sleep 1; exit 1'")
    ctl.wait("five", "scheduled")
    shown = ctl.json("show five")
    assert seconds(shown["errors"][0]["finishedAt"], shown["nextRetryAt"]) == pytest.approx(5, abs=0.05)

    assert [worker["pid"] for worker in ctl.json("worker list")] == pids
    assert workers.stop() == 0


def test_two_workers_run_each_of_many_jobs_once(ctl: CommandLine, tmp_path: Path) -> None:
    """Counted by what the commands themselves write."""
    count = 300
    jobs, ran = tmp_path / "jobs.jsonl", tmp_path / "ran"
    lines = [{"id": f"job{n}", "command": f"echo {n} $PPID >> {ran}"} for n in range(count)]
    jobs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    workers = ctl.start("worker start --count 2 --concurrency 10")
    workers.wait_for("worker.started", 2)
    ctl(f"enqueue --file {jobs}")
    wait_until(lambda: ctl.queue.stats()["completed"] == count, 60, "all are done")
    assert workers.stop() == 0
    words = [line.split() for line in ran.read_text().splitlines()]
    assert Counter(int(number) for number, _ in words) == Counter(range(count))
    counts = ctl.json("status")
    assert (counts["completed"], counts["pending"], counts["failed"]) == (count, 0, 0)
    assert {job.attempts for job in ctl.queue.jobs(limit=count)} == {1}
    by_worker = Counter(pid for _, pid in words)
    assert set(by_worker) == {str(pid) for pid in workers.pids()}
    assert len(by_worker) == 2


def test_detached_workers_go_on_when_the_terminal_is_closed(ctl: CommandLine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    hold = f"echo started; n=0; while [ ! -e {gate} ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done"
    terminal = ctl.shell()
    try:
        terminal.type(shlex.join([*QUEUECTL, "enqueue", "--id", "job1", "--command", hold]) + "\n")
        terminal.type(shlex.join(QUEUECTL) + " worker start --detach --count 2\n")
        terminal.read_until("2 workers started")
        ctl.wait_started("job1")
        before = ctl.json("worker list")
        terminal.hang_up()
        wait_until(lambda: terminal.pid not in ctl.processes(), message="the shell is gone")
    finally:
        terminal.close()
    gate.touch()
    ctl.wait("job1", "completed")
    ctl("enqueue --id job2 --command 'echo still here'")
    ctl.wait("job2", "completed")
    assert ctl.job("job1").attempts == ctl.job("job2").attempts == 1
    assert [w["pid"] for w in ctl.json("worker list")] == [w["pid"] for w in before]
    assert {w["state"] for w in ctl.json("worker list")} == {"running"}
    ctl("worker stop")
    ctl.wait_empty()
