"""The output of commands on PostgreSQL: its end is in the database, so that any machine can show it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.core.job import Job
from holdfast.jobs import install
from holdfast.jobs.output_log import SHARED_BYTES, log_path, output_of
from holdfast.store.open import store_of
from holdfast.store.records import Claim, LogTail
from tests import postgres
from tests.support import wait_until

ELSEWHERE = "another-machine"


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / "here"))
    with (
        postgres.fresh_url() as url,
        Queue(url, defaults={"backoff_factor": 0, "backoff_jitter": 0}) as queue,
    ):
        install(queue)
        yield queue


@pytest.fixture
def go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on, this is another machine."""
    return lambda: move_to_another_machine(monkeypatch, tmp_path)


def move_to_another_machine(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("QUEUECTL_HOME", str(folder / "elsewhere"))
    for module in ("holdfast.context", "holdfast.jobs.shell", "holdfast.jobs.output_log"):
        patch.setattr(f"{module}.gethostname", lambda: ELSEWHERE)


def run(queue: Queue, command: str, **options: Any) -> Job:
    job = queue.enqueue("shell", {"command": command}, **options)
    queue.drain()
    found = queue.get(job.id)
    assert found is not None
    return found


def text(queue: Queue, job: Job) -> str:
    with output_of(job, queue) as file:
        return file.read().decode()


def test_output_is_the_same_from_another_machine(queue: Queue, go_elsewhere: Callable[[], None]) -> None:
    job = run(queue, "echo žlutý; printf '\\000x'")
    here = text(queue, job)
    assert "žlutý\n\0x" in here
    go_elsewhere()
    assert not Path(log_path(job.id)).exists()
    assert text(queue, job) == here


def test_last_part_of_a_long_output_is_kept_with_a_mark(
    queue: Queue, go_elsewhere: Callable[[], None]
) -> None:
    job = run(queue, "seq 1 40000")
    whole = text(queue, job)
    assert len(whole) > 3 * SHARED_BYTES
    go_elsewhere()
    end = text(queue, job)
    mark, _, rest = end.lstrip("\n").partition("\n")
    assert mark == f"[... {len(whole) - len(rest)} bytes left out ...]"
    assert len(rest) == SHARED_BYTES
    assert whole.endswith(rest)


def test_attempts_on_two_machines_are_one_output(queue: Queue, go_elsewhere: Callable[[], None]) -> None:
    job = run(queue, "echo first; exit 1", max_attempts=1)
    assert "first" in text(queue, job)
    queue.retry(job.id, payload={"command": "echo second"})
    go_elsewhere()
    queue.drain()
    there = text(queue, job)
    assert (
        there.index("first") < there.index("exit code 1") < there.index("second") < there.index("exit code 0")
    )
    assert store_of(queue).read_log_tail(job.id).host == ELSEWHERE  # type: ignore[union-attr]


def test_what_was_printed_here_is_not_shown_when_a_later_attempt_ran_elsewhere(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = run(queue, "echo first; exit 1", max_attempts=1)
    queue.retry(job.id, payload={"command": "echo second"})
    with monkeypatch.context() as meanwhile:
        move_to_another_machine(meanwhile, tmp_path)
        queue.drain()
    assert Path(log_path(job.id)).exists()
    assert "second" in text(queue, job)


def test_output_of_a_running_command_is_seen_and_followed_from_another_machine(
    queue: Queue, start_worker: Callable[..., object], tmp_path: Path, go_elsewhere: Callable[[], None]
) -> None:
    go_elsewhere()  # the worker is there, who follows is here
    go = tmp_path / "go"
    job = queue.enqueue(
        "shell", {"command": f"echo begun; while ! [ -e {go} ]; do sleep 0.05; done; echo done"}
    )
    start_worker(queue)
    follower = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "--database", queue.url, "logs", "-f", job.id],
        stdout=subprocess.PIPE,
        env={**os.environ, "QUEUECTL_HOME": str(tmp_path / "here")},
    )
    printed = bytearray()

    def read() -> None:
        assert follower.stdout is not None
        while data := os.read(follower.stdout.fileno(), 65_536):
            printed.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until(lambda: b"begun" in printed, timeout=30)
        go.touch()
        assert follower.wait(60) == 0
    finally:
        follower.kill()
        follower.wait()
        reader.join()
        assert follower.stdout is not None
        follower.stdout.close()
    assert printed.count(b"begun") == 1
    assert printed.index(b"begun") < printed.index(b"done\n") < printed.index(b"exit code 0")


def test_output_goes_with_its_job(queue: Queue) -> None:
    job = run(queue, "echo x")
    assert store_of(queue).read_log_tail(job.id) is not None
    queue.delete(job.id)
    [(left,)] = store_of(queue).database.read("SELECT count(*) FROM holdfast_logs")
    assert left == 0


def test_late_output_of_an_attempt_that_lost_its_job_is_not_kept(queue: Queue) -> None:
    job = run(queue, "echo x")
    before = store_of(queue).read_log_tail(job.id)
    assert before is not None
    assert before.host == socket.gethostname()
    store = store_of(queue)
    seq = store.database.read_one("SELECT seq FROM holdfast_jobs")[0]
    late = Claim(seq, job.id, "shell", "{}", 0, 1, 3, job.version, None, 0, 0, "w")
    store.write_log_tail(late, LogTail("late", 4, b"late"))
    assert store.read_log_tail(job.id) == before
