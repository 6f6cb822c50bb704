"""Fixtures for all tests: queues on a fresh database, and a check that nothing is left behind."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from holdfast import Queue
from holdfast.events import LOGGER
from holdfast.queue import wait
from holdfast.store import deadlines
from holdfast.system.threads import Threads
from tests import postgres
from tests.support import wait_until

# Ten thousand tests are a million objects that stay. The garbage collector looks at none of them: not while
# they are made, which takes half the time without it, and not afterwards.
gc.disable()


# A busy machine is no reason to fail.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

MEMORY = Path("/dev/shm")
ROOM = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
        # No test pulls the plug, so none needs a disk: a new database takes a third of the time in memory.
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
    # In the background of a script, and under nohup, these are ignored, and programs of the tests inherit it.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # It looks at every name of every module, for tests of a kind that there is none of here.
    config.pluginmanager.set_blocked("schemathesis")
    postgres.share_server()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what follows from a test's place, fixtures and parameters; the rest says it itself.

    The few that may take longest come first, whatever the order: one that came last would run alone.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        engines = [str(name).partition("-")[0] for name in map(_name, parameters)]
        if "process" in item.path.parent.name:
            item.add_marker("process")
        if "chromium" in fixtures:
            item.add_marker("browser")
        if "postgres" in item.path.name or "postgres" in engines:
            item.add_marker("postgres")
    yield
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def _name(parameter: object) -> object:
    return parameter if isinstance(parameter, str) else getattr(parameter, "name", None)


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
def url(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a database: one that does not exist yet, or else that of the fixture `queue`."""
    if engine == "postgres":
        with postgres.lent_url() if "queue" in request.fixturenames else postgres.fresh_url() as url:
            yield url
    else:
        yield f"sqlite:///{tmp_path / 'queue.db'}"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a queue without jobs, to be copied: making one takes longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "queue.db"
    with Queue(f"sqlite:///{path}") as queue:
        queue.open()
    return path


@pytest.fixture
def queue(url: str, empty_database: Path) -> Iterator[Queue]:
    """A queue on a fresh database, with short leases and fast retries."""
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:") and not path.exists():
        shutil.copy(empty_database, path)
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


@pytest.fixture(autouse=True, scope="session")
def threads_that_end_soon() -> Iterator[None]:
    """Threads of ours linger for a quarter of a second in case they are needed: tests would wait for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wait, "_LINGER", 0.01)
        patch.setattr(deadlines, "_LINGER", 0.01)
        started: Any = Threads.__init__
        patch.setitem(started.__kwdefaults__, "linger", 0.01)
        yield


_MARKED = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen", postgres.USED}
_used: list[str] = []


def _note_use(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _MARKED:
        _used.append(f"{event}{arguments[:2]}")


sys.addaudithook(_note_use)


@pytest.fixture(autouse=True)
def marked_for_what_it_uses(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test without a mark starts no process and asks for no server, so that `make quick` does neither."""
    _used.clear()
    yield
    marks = {mark.name for mark in request.node.iter_markers()}
    assert not _used or marks & {"process", "browser", "postgres"}, (
        f"mark it `process` or `postgres`: {_used}"
    )


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

    wait_until(lambda: not left(), message="threads left behind")


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
