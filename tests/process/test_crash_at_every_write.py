"""A crash at every write: each scenario is killed at each of its system calls that change a file of SQLite's.

Every point of every scenario is tried. After each crash the database opens, is sound, has every job that was
acknowledged, and nothing is half done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from tests.process import oracle
from tests.process.conftest import DEFAULTS
from tests.process.faults import Run, Scenario, Scenarios
from tests.process.oracle import Database, Row

BULK = 40


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenarios]:
    with closing(Scenarios(tmp_path_factory.mktemp("scenarios"), DEFAULTS)) as scenarios:
        yield scenarios


@pytest.fixture
def before(queue: Queue, database: Database) -> Path:
    """A database that a test prepares with `queue` and then closes."""
    store_of(queue).now()
    database.make_rows_table()
    return database.path


def check_sound(run: Run) -> dict[str, Row]:
    """Open the queue as the next process would; then the file and the tables are whole."""
    with Queue(f"sqlite:///{run.database.path}") as queue:
        added = queue.enqueue("after_the_crash").id
    with run.database.kept_open():
        oracle.check_file(run.database)
        oracle.check_nothing_lost(run.database, [added, *run.program.accepted()])
        jobs = run.database.jobs()
    del jobs[added]
    return jobs


def test_killed_while_it_makes_the_database(
    scenarios: Scenarios, tmp_path: Path, queue: Queue, database: Database
) -> None:
    store_of(queue).now()
    whole = database.query("SELECT type, name, sql FROM sqlite_master ORDER BY name")

    def check(run: Run) -> None:
        assert check_sound(run) == {}, run.point
        assert run.database.query("SELECT type, name, sql FROM sqlite_master ORDER BY name") == whole
        assert run.database.query("PRAGMA journal_mode") == [("wal",)]

    assert Scenario(scenarios, tmp_path, None, "opening").kill_at_every_call(check) > 40


def test_killed_while_it_enqueues(scenarios: Scenarios, tmp_path: Path, before: Path, queue: Queue) -> None:
    queue.close()
    seen = Counter[tuple[int, int]]()

    def check(run: Run) -> None:
        jobs = check_sound(run)
        seen[len(run.program.accepted()), len(jobs)] += 1
        assert len(jobs) - len(run.program.accepted()) in (0, 1), run.point
        assert all(job.status == "pending" and job.attempts == 0 for job in jobs.values())

    assert Scenario(scenarios, tmp_path, before, "enqueue").kill_at_every_call(check) > 30
    assert {(0, 0), (1, 1), (2, 2)} <= seen.keys()


def test_killed_while_it_enqueues_many(
    scenarios: Scenarios, tmp_path: Path, before: Path, queue: Queue
) -> None:
    queue.close()

    def check(run: Run) -> None:
        assert len(check_sound(run)) in (0, BULK), run.point

    Scenario(scenarios, tmp_path, before, "enqueue_many", count=BULK).kill_at_every_call(check)


def test_killed_while_it_claims_and_finishes(
    scenarios: Scenarios, tmp_path: Path, before: Path, queue: Queue
) -> None:
    waiting = [queue.enqueue(type).id for type in ("insert_row", "parent")]
    queue.close()

    def check(run: Run) -> None:
        jobs = check_sound(run)
        assert jobs.keys() >= set(waiting), run.point
        completed = {id for id in waiting if jobs[id].status == "completed"}
        rows = [id for id, _ in run.database.rows()]
        children = [job.parent_id for job in jobs.values() if job.type == "leaf"]
        assert sorted(rows + [id for id in children if id]) == sorted(completed), run.point
        assert all(jobs[id].status in ("pending", "processing", "completed") for id in waiting)
        assert all(job.attempts == job.version == (job.status != "pending") for job in jobs.values())

    Scenario(scenarios, tmp_path, before, "drain").kill_at_every_call(check)


@pytest.mark.parametrize(
    ("role", "old", "new"), [("retry", "failed", "pending"), ("cancel", "pending", "cancelled")]
)
def test_killed_while_it_changes_a_job(
    scenarios: Scenarios, tmp_path: Path, before: Path, queue: Queue, role: str, old: str, new: str
) -> None:
    job = queue.enqueue("fails", max_attempts=1).id
    if old == "failed":
        queue.register("fails", _fail)
        queue.drain()
    assert store_of(queue).get_job(job).status == old  # type: ignore[union-attr]
    queue.close()

    def check(run: Run) -> None:
        after = check_sound(run)[job]
        assert after.status in (old, new), run.point
        assert after.attempts == (1 if after.status == "failed" else 0)
        assert (after.status == new) >= (job in run.program.accepted())

    Scenario(scenarios, tmp_path, before, role, id=job).kill_at_every_call(check)


def _fail(payload: object) -> None:
    raise ValueError(payload)


def test_killed_while_it_cleans_up(scenarios: Scenarios, tmp_path: Path, before: Path, queue: Queue) -> None:
    queue.enqueue_many("done", [{}] * BULK)
    queue.enqueue("kept")
    queue.register("done", lambda payload: None)
    queue.drain()
    queue.close()

    def check(run: Run) -> None:
        jobs = check_sound(run)
        assert Counter(job.type for job in jobs.values()) in (
            {"done": BULK, "kept": 1},
            {"kept": 1},
        ), run.point

    Scenario(scenarios, tmp_path, before, "cleanup").kill_at_every_call(check)
