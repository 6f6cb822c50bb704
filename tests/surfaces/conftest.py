"""Fixtures for the surfaces: a home for every test, its queue, and queuectl inside this process."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast import Queue
from holdfast.events import LOGGER
from holdfast.web import create_app
from tests import postgres
from tests.surfaces.browser import chromium, guard, new_page, page, serve  # noqa: F401 (fixtures)
from tests.surfaces.live import client, live
from tests.surfaces.support import Cli, Ran


@pytest.fixture
def home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A QUEUECTL_HOME for this test alone, which is also in this process's environment."""
    for name in [name for name in os.environ if name.startswith("QUEUECTL_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("QUEUECTL_HOME", str(folder))
    monkeypatch.setenv("COLUMNS", "80")  # the width of help, whoever runs the tests
    if engine == "postgres":
        has_queue = {"queue", "empty_queue"} & set(request.fixturenames)
        with postgres.lent_url() if has_queue else postgres.fresh_url() as url:
            monkeypatch.setenv("QUEUECTL_DATABASE_URL", url)
            yield folder
    else:
        yield folder


@pytest.fixture
def url(home: Path) -> str:
    """The address of the home's database, which is what queuectl opens by default."""
    return os.environ.get("QUEUECTL_DATABASE_URL", f"sqlite:///{home / 'queue.db'}")


@pytest.fixture
def empty_queue(home: Path, url: str, engine: str, empty_database: Path) -> None:
    """The home has a queue: one without jobs, unless the test has put another there."""
    if engine != "sqlite":
        with Queue(url) as queue:
            queue.open()
    elif not (home / "queue.db").exists():
        shutil.copy(empty_database, home / "queue.db")


@pytest.fixture
def cli(empty_queue: None, bare_cli: Cli) -> Cli:
    """Runs a command line in this process, on the home's queue: cli("list", "--json") -> Ran."""
    return bare_cli


@pytest.fixture
def bare_cli(home: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """The same in a home that has no queue yet."""
    from holdfast.cli.main import run

    logger = logging.getLogger(LOGGER)
    before = (list(logger.handlers), logger.level, logger.propagate)

    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = run(list(words))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    yield call
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture
def jobs(queue: Queue) -> Queue:
    """The home's queue, with handlers that succeed (`ok`), fail for ever (`bad`) and echo (`echo`)."""

    def ok(payload: object) -> None:
        return None

    def bad(payload: object) -> None:
        raise RuntimeError("it broke")

    def echo(payload: object) -> object:
        return payload

    queue.register("ok", ok)
    queue.register("bad", bad)
    queue.register("echo", echo)
    return queue


@pytest.fixture
def api(queue: Queue) -> Iterator[httpx.Client]:
    """A client of a live server without a token, on the home's queue."""
    with live(create_app(queue)) as address, client(address) as made:
        yield made
