"""Durations: wherever one is taken it may be seconds, a timedelta or text, and nonsense is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast import Queue, Retry
from holdfast.config import SETTINGS
from holdfast.errors import ConfigError
from holdfast.fluent import TaskQueue
from holdfast.sqlalchemy import configure
from holdfast.testing import MovableClock

SETTINGS_THAT_LAST = [
    name
    for name, setting in SETTINGS.items()
    if "a duration: seconds, or a number with ms" in setting.allowed
]


def init_and_stop(duration: Any) -> None:
    tq = TaskQueue()
    tq.init("sqlite:///nowhere.db", poll_interval=duration, task_timeout=duration)
    tq.stop()


def finished(queue: Queue) -> str:
    return queue.cancel(queue.enqueue("work").id).id


PLACES: dict[str, Callable[[Queue, Any], object]] = {
    "enqueue(delay=)": lambda queue, given: queue.enqueue("work", delay=given),
    "enqueue(timeout=)": lambda queue, given: queue.enqueue("work", timeout=given),
    "enqueue(key_for=)": lambda queue, given: queue.enqueue("work", key="k", key_for=given),
    "enqueue_many(delay=)": lambda queue, given: queue.enqueue_many("work", [{}], delay=given),
    "job(timeout=)": lambda queue, given: queue.job(timeout=given),
    "job(backoff_max=)": lambda queue, given: queue.job(backoff_max=given),
    "with_options(delay=)": lambda queue, given: (
        queue.job(name="f")(lambda: None).with_options(delay=given).enqueue()
    ),
    "wait": lambda queue, given: queue.wait(finished(queue), given),
    "wait_async": lambda queue, given: asyncio.run(queue.wait_async(finished(queue), given)),
    "cleanup": lambda queue, given: queue.cleanup(given),
    "purge": lambda queue, given: queue.purge(given),
    "worker.stop": lambda queue, given: queue.worker().stop(given),
    "tq.init": lambda queue, given: init_and_stop(given),
    "tq.stop": lambda queue, given: TaskQueue().stop(given),
    "tq().set_timeout": lambda queue, given: _task_queue(queue)("work").set_timeout(given),
    "Retry": lambda queue, given: Retry(delay=given),
    "MovableClock.advance": lambda queue, given: MovableClock().advance(given),
    "sqlalchemy.configure": lambda queue, given: configure(sa.create_engine("sqlite://"), busy_seconds=given),
    **{
        f"set_config({name})": lambda queue, given, name=name: queue.set_config(name, given)  # type: ignore[misc]
        for name in SETTINGS_THAT_LAST
    },
}


def _task_queue(queue: Queue) -> TaskQueue:
    tq = TaskQueue()
    tq._queue = queue
    return tq


def test_all_settings_that_last_are_known() -> None:
    assert {"lease_seconds", "job_timeout", "retention_failed", "backoff_max"} < set(SETTINGS_THAT_LAST)
    assert len(SETTINGS_THAT_LAST) == 10


@pytest.mark.parametrize("given", [5, 5.0, timedelta(seconds=5), "5", "5s", "5000 ms"], ids=repr)
def test_duration_may_be_seconds_a_timedelta_or_text(queue: Queue, given: object) -> None:
    for give in PLACES.values():
        give(queue, given)


@pytest.mark.parametrize("given", ["soon", [5], b"5s", True], ids=repr)
def test_what_is_no_duration_is_an_error(queue: Queue, given: object) -> None:
    taken = []
    for place, give in PLACES.items():
        with suppress(ConfigError, ValueError):
            give(queue, given)
            taken.append(place)
    assert taken == []


def test_text_is_as_long_as_it_says(queue: Queue) -> None:
    clock = MovableClock()
    before = clock.now
    clock.advance("1h")
    assert clock.now - before == timedelta(hours=1)
    assert queue.enqueue("work", timeout="1.5h").timeout == 5400
    assert Retry(delay="2m").delay == 120
