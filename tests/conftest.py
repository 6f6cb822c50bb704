"""Fixtures for all tests: queues on a fresh database, and a check that nothing is left behind."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.events import LOGGER
from tests import postgres
from tests.support import wait_until

# Ten thousand tests are a million objects that stay. The garbage collector looks at none of them: not while
# they are made, which takes half the time without it, and not afterwards.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    # It looks at every name of every module, for tests of a kind that there is none of here.
    config.pluginmanager.set_blocked("schemathesis")
    postgres.share_server()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """What keeps the queue: `both_engines` of tests.support tries a test on each.

    Without that it is SQLite, or what HOLDFAST_TEST_ENGINE says: to run any tests on PostgreSQL.
    """
    name: str = getattr(request, "param", os.environ.get("HOLDFAST_TEST_ENGINE", "sqlite"))
    return name


@pytest.fixture
def url(engine: str, tmp_path: Path) -> Iterator[str]:
    """The address of a database that does not exist yet."""
    if engine == "postgres":
        with postgres.fresh_url() as url:
            yield url
    else:
        yield f"sqlite:///{tmp_path / 'queue.db'}"


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    """A queue on a fresh database, with short leases and fast retries."""
    with Queue(url, defaults={"lease_seconds": 3, "backoff_factor": 0.01, "backoff_jitter": 0}) as queue:
        yield queue


@pytest.fixture
def start_worker(queue: Queue) -> Iterator[Callable[..., Any]]:
    """Starts workers of `queue` that are stopped when the test ends."""
    workers = []

    def start(of: Queue | None = None, **options: Any) -> Any:
        worker = (of or queue).worker(**options)
        workers.append(worker)
        return worker.start()

    yield start
    for worker in workers:
        if worker.is_running:
            worker.stop(timeout=2)


@pytest.fixture(autouse=True, scope="session")
def home_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reaches the queue of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUEUECTL_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("QUEUECTL_DATABASE_URL", raising=False)
        yield


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No thread of ours survives its test, but for handlers that a test leaves stuck on purpose.

    Nor does what a process has only once: how it takes signals, and where it logs.
    """
    before = set(threading.enumerate())
    process_wide = _process_wide()
    yield
    assert _process_wide() == process_wide

    def left() -> list[str]:
        return [
            thread.name
            for thread in set(threading.enumerate()) - before
            if thread.name.startswith("holdfast-") and not thread.name.startswith("holdfast-handler")
        ]

    wait_until(lambda: not left(), timeout=10, message="threads left behind")


def _process_wide() -> tuple[object, ...]:
    logger = logging.getLogger(LOGGER)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    return (
        *(signal.getsignal(number) for number in numbers),
        tuple(logger.handlers),
        logger.level,
        logger.propagate,
        logging.raiseExceptions,
    )
