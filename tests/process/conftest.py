"""Fixtures of the crash tests: a database, the queue on it as the test sees it, and real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import Queue
from holdfast.handlers.options import Defaults
from tests.postgres import fresh_url
from tests.process.oracle import Database
from tests.process.postgres_database import PostgresDatabase, own_url
from tests.process.programs import Programs

DEFAULTS: Defaults = {"lease_seconds": 3, "backoff_factor": 0.01, "backoff_jitter": 0}


@pytest.fixture
def defaults() -> Defaults:
    """The settings of every process of a test. Redefined where a test needs others."""
    return DEFAULTS


@pytest.fixture
def queue(url: str, defaults: Defaults) -> Iterator[Queue]:
    """The queue as the test itself uses it, without handlers."""
    with Queue(url, defaults=defaults) as queue:
        yield queue


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """The tables as they are, whoever made them."""
    if url.startswith("postgresql:"):
        found: Database = PostgresDatabase(url)
    else:
        found = Database(Path(url.removeprefix("sqlite:///")))
    yield found
    found.close()


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A schema of its own on the tests' server, which handlers find without naming it."""
    with fresh_url() as url:
        yield own_url(url, uuid4().hex)


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all processes keep their compiled modules, also those of tests that run beside these."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "bytecode"


@pytest.fixture
def programs(tmp_path: Path, url: str, defaults: Defaults, bytecode: Path) -> Iterator[Programs]:
    folder = tmp_path / "programs"
    folder.mkdir()
    programs = Programs(folder, url, defaults, bytecode)
    yield programs
    programs.close()
