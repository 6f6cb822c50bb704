"""What a supervisor does in the database for workers that have died."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from holdfast.store.records import Demand
from holdfast.supervisor.dead_workers import DeadWorkers
from holdfast.supervisor.process import Notice
from tests.support import wait_until


def test_supervisor_that_gets_no_thread_goes_on_and_frees_the_jobs_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(f"sqlite:///{tmp_path / 'queue.db'}")
    job = queue.enqueue("work")
    demand = Demand(type="work", limit=1, max_attempts=3)
    assert store_of(queue).claim_jobs("dead", [demand], limit=1, lease_seconds=600).claims
    dead_workers = DeadWorkers(queue.events)
    dead = Notice(worker_id="dead", database=queue.url)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        dead_workers.free_jobs(dead, stopping=False)
    dead_workers.keep_row(dead)
    wait_until(lambda: queue.require(job.id).status != "processing")
    dead_workers.close()
    queue.close()
