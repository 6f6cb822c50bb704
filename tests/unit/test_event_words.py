"""What the log says about worker processes and the server, and what stays out of it."""

from __future__ import annotations

import json
import logging

import pytest

from holdfast import events as e
from holdfast.events import Event
from holdfast.observe.log import JsonFormatter, word


@pytest.mark.parametrize(
    ("event", "sentence", "level"),
    [
        (
            e.WorkerDied(worker_id="w1", pid=7, how="was killed by signal 9", restart_in=2.0),
            "worker process 7 was killed by signal 9; restarting in 2 s",
            logging.ERROR,
        ),
        (
            e.WorkerDied(worker_id=None, pid=7, how="ended with status 1", restart_in=0.5),
            "worker process 7 ended with status 1; restarting in 0.5 s",
            logging.ERROR,
        ),
        (
            e.WorkerDied(worker_id=None, pid=7, how="ended with status 1", restart_in=None),
            "worker process 7 ended with status 1; not restarting",
            logging.ERROR,
        ),
        (
            e.WorkerRecycled(worker_id="w1", pid=7),
            "replaced worker process 7, which had no usable slots left",
            logging.WARNING,
        ),
        (
            e.SupervisorStopping(workers=3, reason="SIGTERM"),
            "stopping 3 worker processes: SIGTERM",
            logging.INFO,
        ),
        (
            e.ServerStarted(address="http://127.0.0.1:8000", pid=7),
            "serving http://127.0.0.1:8000, pid 7",
            logging.INFO,
        ),
        (e.ServerStopping(requests=3), "server stopping, 3 requests in progress", logging.INFO),
        (e.ServerStopped(cut_short=0), "server stopped", logging.INFO),
        (e.ServerStopped(cut_short=2), "server stopped, 2 requests cut short", logging.INFO),
        (
            e.ServerDied(pid=7, how="was killed by signal 9", restart_in=2.0),
            "server process 7 was killed by signal 9; restarting in 2 s",
            logging.ERROR,
        ),
        (
            e.ServerDied(pid=7, how="ended with status 1", restart_in=None),
            "server process 7 ended with status 1; not restarting",
            logging.ERROR,
        ),
        (e.JobsPruned(count=2, job_ids=("a", "b")), "2 finished jobs pruned", logging.INFO),
        (
            e.DiscrepancyFound(
                job_id="j1", type="create_file", subject="file /a", problem="the file is missing"
            ),
            "create_file j1 completed, but the file is missing: file /a",
            logging.WARNING,
        ),
        (
            e.Reconciled(jobs=9, checked=7, differing=2, unchecked=1, seconds=0.25),
            "9 completed jobs reconciled in 0.2 s, 7 effects checked, 2 differ, 1 could not be checked",
            logging.INFO,
        ),
        (
            e.ReconciliationFailed(error="StoreBusy: the database is locked\nhint"),
            "reconciliation failed: StoreBusy: the database is locked",
            logging.ERROR,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Event) else "",
)
def test_event_reads_as_a_sentence(event: Event, sentence: str, level: int) -> None:
    assert word(event) == sentence
    assert event.level == level


def test_ids_of_pruned_jobs_are_for_listeners_and_stay_out_of_the_log() -> None:
    event = e.JobsPruned(count=2, job_ids=("secret-a", "secret-b"))
    line = JsonFormatter().format(logging.LogRecord("holdfast", event.level, "", 1, event, None, None))
    assert json.loads(line)["count"] == 2
    assert "secret" not in line
    assert "secret" not in str(event)
    assert "secret" not in word(event)
