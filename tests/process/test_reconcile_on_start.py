"""Reconciliation at the start of `worker start` and `serve`: once, in one process, beside the work."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Job
from holdfast.jobs import install
from holdfast.reconcile import last_report
from tests.support import wait_until
from tests.surfaces.command_line import CommandLine, Running

SOON = 60.0
"""Seconds that are plenty for whatever happens at once, on a machine that has other things to do."""

APP = """
import os, threading
from pathlib import Path
from holdfast import Job, Queue, Reconcile
from holdfast.errors import StoreUnavailable
from holdfast.store.open import store_of

queue = Queue()
here = Path(__file__).parent

def raises(job: Job) -> str | None:
    raise OSError("no route to host")

def costs(job: Job) -> str | None:
    (here / "paid").touch()
    return "it costs"

def hangs(job: Job) -> None:
    (here / "asked").touch()
    threading.Event().wait(60)

@queue.job(reconcile=raises)
def broken() -> None: ...

@queue.job(reconcile=Reconcile(costs, on_start=False))
def costly() -> None: ...

@queue.job(reconcile=hangs)
def hanging() -> None: ...

@queue.job
def greet() -> str:
    return "hello"

def fail(*_: object) -> None:
    raise StoreUnavailable("disk I/O error")

if (here / "full").exists():
    type(store_of(queue)).write_reconciliation = fail
    queue.close()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the workers are started: their root for files, with an application, app.py."""
    made = tmp_path / "files"
    made.mkdir()
    (made / "app.py").write_text(APP)
    monkeypatch.setenv("QUEUECTL_FILE_ROOTS", str(made))
    return made


@pytest.fixture
def ctl(tmp_path: Path, folder: Path) -> Iterator[CommandLine]:
    ctl = CommandLine(tmp_path / "home")
    install(ctl.queue)
    yield ctl
    ctl.close()


@pytest.fixture
def lost(ctl: CommandLine, folder: Path) -> Job:
    """A completed job whose file is missing; there is another whose file is there."""
    ids = []
    for name in ("kept", "lost"):
        payload = {"path": str(folder / name), "content": name}
        ids.append(ctl.queue.enqueue("create_file", payload).id)
    assert ctl.queue.drain() == 2
    (folder / "lost").unlink()
    return ctl.job(ids[1])


def complete(ctl: CommandLine, type: str) -> str:
    """A completed job of the application's."""
    ctl.queue.register(type, lambda payload: None)
    id = ctl.queue.enqueue(type, {}).id
    assert ctl.queue.drain() == 1
    ctl.queue.unregister(type)
    return id


def check_told(running: Running, job: Job) -> None:
    """The log tells of the missing file, and what was done, in lines of JSON."""
    done = running.wait_for("reconcile.done")
    assert (done["level"], done["jobs"], done["checked"], done["differing"]) == ("info", 2, 2, 1)
    assert done["unchecked"] == 0
    [found] = running.events("reconcile.discrepancy")
    assert (found["level"], found["job_id"], found["type"]) == ("warning", job.id, "create_file")
    assert found["problem"] == "the file is missing"
    assert found["subject"].endswith("/lost")


def works(ctl: CommandLine, running: Running) -> None:
    """It does what it is asked, and stops in order; all that it logged is then there."""
    job = ctl.queue.enqueue("shell", {"command": "true"}).id
    ctl.wait(job, "completed")
    assert running.stop() == 0
    assert running.errors() == ""


# Workers.


def test_of_several_workers_the_first_reconciles_once_and_no_successor_does(
    ctl: CommandLine, folder: Path, lost: Job
) -> None:
    workers = ctl.workers("--count 2", up=2, cwd=folder)
    check_told(workers, lost)
    report = last_report(ctl.queue)
    assert report is not None
    assert [found.job_id for found in report.discrepancies] == [lost.id]
    # Whichever runs it, a job does not see what the first worker was told.
    job = ctl.queue.enqueue("shell", {"command": "env"}).id
    ctl.wait(job, "completed")
    output = (ctl.home / "logs" / f"{job}.log").read_text()
    assert "QUEUECTL_JOB_ID" in output
    assert "RECONCILE" not in output
    for pid in workers.pids():
        os.kill(pid, signal.SIGKILL)
    workers.wait_for("worker.started", 4)
    works(ctl, workers)
    assert len(workers.events("reconcile.done")) == 1
    check_told(workers, lost)
    assert not (folder / "lost").exists()


def test_a_worker_that_is_told_not_to_does_not(ctl: CommandLine, folder: Path, lost: Job) -> None:
    workers = ctl.workers("--no-reconcile", cwd=folder)
    works(ctl, workers)
    assert "reconcile" not in workers.output()
    assert last_report(ctl.queue) is None


def test_detached_workers_reconcile_too_unless_told_not_to(ctl: CommandLine, folder: Path, lost: Job) -> None:
    def log_of(options: str) -> str:
        started = ctl(f"worker start --detach --json {options}", cwd=folder).json
        log = Path(started["log"])
        if not options:
            wait_until(lambda: "2 completed jobs reconciled" in log.read_text(), message="it is told")
        ctl.wait(ctl.queue.enqueue("shell", {"command": "true"}).id, "completed")
        ctl("worker stop")
        return log.read_text()

    assert "reconcile" not in log_of("--no-reconcile")
    told = log_of("")
    assert f"create_file {lost.id} completed, but the file is missing: file " in told
    assert "2 effects checked, 1 differs, 0 could not be checked" in told
    ctl.wait_empty()


# The server.


def test_a_server_alone_reconciles_once_and_its_successor_does_not(
    ctl: CommandLine, folder: Path, lost: Job
) -> None:
    running = ctl.start("serve --port 0 --log-format json --workers 0", cwd=folder)
    check_told(running, lost)
    report = last_report(ctl.queue)
    assert report is not None
    assert report.differing == 1
    os.kill(running.events("server.started")[0]["pid"], signal.SIGKILL)
    running.wait_for("server.started", 2)
    assert running.stop() == 0
    assert len(running.events("reconcile.done")) == 1


def test_beside_workers_the_server_alone_reconciles(ctl: CommandLine, folder: Path, lost: Job) -> None:
    running = ctl.start("serve --port 0 --log-format json --workers 1", cwd=folder)
    running.wait_for("worker.started")
    check_told(running, lost)
    works(ctl, running)
    assert len(running.events("reconcile.done")) == 1


def test_a_server_that_is_told_not_to_does_not(ctl: CommandLine, folder: Path, lost: Job) -> None:
    running = ctl.start("serve --port 0 --log-format json --workers 1 --no-reconcile", cwd=folder)
    running.wait_for("worker.started")
    running.wait_for("server.started")
    works(ctl, running)
    assert "reconcile" not in running.output()
    assert last_report(ctl.queue) is None


# What goes wrong.


@pytest.mark.parametrize("line", ["worker start", "serve --port 0 --workers 1"])
def test_what_can_not_be_checked_or_kept_is_told_and_the_work_goes_on(
    ctl: CommandLine, folder: Path, lost: Job, line: str
) -> None:
    """A broken check, and a database that does not take the report. A costly check is not made at all."""
    broken, costly = complete(ctl, "broken"), complete(ctl, "costly")
    (folder / "full").touch()
    running = ctl.start(f"{line} --log-format json --app app:queue", cwd=folder)
    failed = running.wait_for("reconcile.failed")
    assert (failed["level"], failed["error"]) == ("error", "the report could not be stored: disk I/O error")
    done = running.wait_for("reconcile.done")
    assert (done["jobs"], done["differing"], done["unchecked"]) == (3, 1, 1)
    works(ctl, running)
    assert {found["job_id"]: found["problem"] for found in running.events("reconcile.discrepancy")} == {
        lost.id: "the file is missing",
        broken: "could not be checked: OSError: no route to host",
    }
    assert not running.events("worker.died")
    assert not (folder / "paid").exists()
    assert costly in ctl("reconcile --app app:queue", expect=1, cwd=folder).out
    assert (folder / "paid").exists()


@pytest.mark.parametrize("line", ["worker start", "serve --port 0 --workers 1"])
def test_a_check_that_hangs_holds_up_neither_the_work_nor_the_end(
    ctl: CommandLine, folder: Path, line: str
) -> None:
    complete(ctl, "hanging")
    running = ctl.start(f"{line} --log-format json --app app:queue", cwd=folder)
    wait_until((folder / "asked").exists, message="the check has begun")
    greeting = ctl.queue.enqueue("greet", {}).id
    ctl.wait(greeting, "completed")
    assert running.stop() == 0
    assert running.errors() == ""
    assert "reconcile" not in running.output()
    ctl.wait_empty()


def test_workers_that_end_at_once_cut_it_short_without_a_word(
    ctl: CommandLine, folder: Path, lost: Job
) -> None:
    """Whether it is done by then or not, nothing is told that is not so."""
    running = ctl.start("worker start --log-format json --drain --count 2", cwd=folder)
    assert running.wait() == 0
    assert running.errors() == ""
    assert not running.events("reconcile.failed")
    assert len(running.events("reconcile.done")) <= 1
