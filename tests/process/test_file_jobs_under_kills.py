"""File jobs whose process is killed between any two of their steps: the file is whole, the job done once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Job
from holdfast.jobs import CREATE_FILE, DELETE_FILE
from holdfast.jobs.roots import VARIABLE
from holdfast.store.open import store_of
from holdfast.worker.maintenance import reap
from tests.process import oracle
from tests.process.file_job_crashes import JOB, opened
from tests.process.oracle import Database
from tests.process.programs import ROOT

PROGRAM = """
import sys
from pathlib import Path
import holdfast.store.sqlite.open, holdfast.worker.drain  # here, and not in each of its children
from tests.process.file_job_crashes import main
main(Path(sys.argv[1]), Path(sys.argv[2]))
"""

NEW = "new " * 5000
OLD = "old " * 3000

Files = dict[str, str]


class Scenario(NamedTuple):
    """A job, the files that are there before it and after it, and steps that it must have."""

    type: str
    payload: dict[str, Any]
    before: Files
    after: Files
    steps: set[str]


SCENARIOS = {
    "create": Scenario(
        CREATE_FILE,
        {"path": "a", "content": NEW},
        {"beside": "kept"},
        {"beside": "kept", "a": NEW},
        {"open", "write", "fsync", "link", "unlink", "commit"},
    ),
    "create in new folders": Scenario(
        CREATE_FILE,
        {"path": "b/c/a", "content": NEW},
        {},
        {"b/c/a": NEW},
        {"mkdir", "open", "write", "fsync", "link", "unlink", "commit"},
    ),
    "overwrite": Scenario(
        CREATE_FILE,
        {"path": "a", "content": NEW, "overwrite": True},
        {"beside": "kept", "a": OLD},
        {"beside": "kept", "a": NEW},
        {"open", "fchmod", "write", "fsync", "rename", "commit"},
    ),
    "the same content": Scenario(
        CREATE_FILE,
        {"path": "a", "content": NEW},
        {"a": NEW},
        {"a": NEW},
        {"open", "write", "fsync", "unlink", "commit"},
    ),
    "delete": Scenario(
        DELETE_FILE,
        {"path": "a"},
        {"beside": "kept", "a": OLD},
        {"beside": "kept"},
        {"unlink", "fsync", "commit"},
    ),
    "delete what must be there": Scenario(
        DELETE_FILE,
        {"path": "a", "requireExists": True},
        {"beside": "kept", "a": OLD},
        {"beside": "kept"},
        {"open", "unlink", "fsync", "commit"},
    ),
}


class Run(NamedTuple):
    """One run of the job, on its own copy of everything."""

    folder: Path
    passed: bool

    @property
    def files(self) -> Files:
        """All files, the hidden ones too."""
        root = self.folder / "files"
        return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}

    @property
    def steps(self) -> list[str]:
        return (self.folder / "steps").read_text().split()

    def __str__(self) -> str:
        return f"{self.folder.name}: {self.steps}"


def is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".holdfast-")


def prepare(folder: Path, scenario: Scenario) -> None:
    """The database with the job, and the files, as they are before every run."""
    root = folder / "files"
    root.mkdir(parents=True)
    for name, content in scenario.before.items():
        (root / name).write_text(content)
    path = str(root / scenario.payload["path"])
    with opened(folder) as queue:
        queue.enqueue(scenario.type, {**scenario.payload, "path": path}, id=JOB)


def runs_of(tmp_path: Path, scenario: Scenario) -> Iterator[Run]:
    before, folder = tmp_path / "before", tmp_path / "runs"
    prepare(before, scenario)
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(before), str(folder)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for line in done.stdout.splitlines():
        run = json.loads(line)
        yield Run(Path(run["folder"]), run["passed"])


def recover(run: Run) -> Job:
    """Free the job of the dead worker, as a supervisor does, and let another worker run it."""
    with opened(run.folder) as queue:
        held = store_of(queue).get_job(JOB)
        assert held is not None
        if held.worker_id is not None:
            with store_of(queue).transaction():
                lost = store_of(queue).list_held(held.worker_id)
                reap(store_of(queue), lost, queue.settings(), expired_only=False)
        queue.drain()
        job = queue.get(JOB)
        assert job is not None
        return job


def status_of(run: Run) -> str:
    ((status,),) = Database(run.folder / "queue.db").query("SELECT status FROM holdfast_jobs")
    return str(status)


def may_keep_its_mark(run: Run, scenario: Scenario) -> bool:
    """Whether it was killed after the commit, when nobody runs the job again, and before its last step."""
    return scenario is SCENARIOS["delete what must be there"] and run.steps[-2:] in (
        ["fsync", "commit"],
        ["commit", "unlink"],
    )


def without_mark(files: Files) -> Files:
    return {name: content for name, content in files.items() if not (is_hidden(name) and content == "")}


@pytest.mark.parametrize("name", SCENARIOS)
def test_file_job_killed_at_any_step_is_done_once_and_leaves_only_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scenario = SCENARIOS[name]
    runs = list(runs_of(tmp_path, scenario))
    for run in runs:
        monkeypatch.setenv(VARIABLE, str(run.folder / "files"))
        crashed = {name: content for name, content in run.files.items() if not is_hidden(name)}
        assert crashed in (scenario.before, scenario.after), run
        was_completed = status_of(run) == "completed"
        assert crashed == scenario.after or not was_completed, run
        job = recover(run)
        assert job.status == "completed", (run, job.error)
        assert job.attempts <= (1 if was_completed else 2), run
        left = run.files
        if was_completed and not run.passed and may_keep_its_mark(run, scenario):
            left = without_mark(left)
        assert left == scenario.after, run
        oracle.check_file(Database(run.folder / "queue.db"))
    check_every_step_was_tried(runs, scenario)


def check_every_step_was_tried(runs: list[Run], scenario: Scenario) -> None:
    """Each step was killed before and after, and then one run of each kind passed."""
    first, last = (run for run in runs if run.passed)
    assert first.steps == last.steps
    assert set(first.steps) >= scenario.steps
    killed = [run for run in runs if not run.passed]
    assert [run.steps for run in killed] == 2 * [first.steps[:n] for n in range(1, len(first.steps) + 1)]
