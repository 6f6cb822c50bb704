"""What an import loads and does: optional parts only where they are used, no threads, no files."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

pytestmark = pytest.mark.process

# Parts that are optional, or slow to load, and that enqueueing a job needs none of.
HEAVY = {
    "aiosqlite",
    "asyncio",
    "boto3",
    "botocore",
    "concurrent",
    "dataclasses",
    "django",
    "fastapi",
    "httpx",
    "jinja2",
    "multiprocessing",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "psycopg_pool",
    "pydantic",
    "pytest",
    "rich",
    "sqlalchemy",
    "ssl",
    "starlette",
    "subprocess",
    "unittest",
    "uvicorn",
}

ENQUEUE = """
from holdfast import Queue
with Queue("sqlite:///queue.db") as queue:
    queue.enqueue("crawl", {"url": "https://example.com"})
"""

DECORATE = """
from holdfast import Queue
queue = Queue("sqlite:///queue.db")
@queue.job(max_attempts=5)
def send_email(to: str, subject: str = "") -> None: ...
"""

VERSION = """
from holdfast.cli.main import run
assert run(["--version"]) == 0
"""

QUEUECTL_ENQUEUE = """
from holdfast.cli.main import run
assert run(["--database", "sqlite:///queue.db", "enqueue", "--command", "true"]) == 0
"""


def run(code: str, folder: Path) -> str:
    """Run code in a fresh process and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_loaded: dict[str, set[str]] = {}


def loaded_by(code: str, folder: Path) -> set[str]:
    """The modules that code loads, beyond those of a bare interpreter. It runs once for all who ask."""
    program = f"import sys\nbefore = set(sys.modules)\n{code}\nprint('loaded', *(set(sys.modules) - before))"
    if code not in _loaded:
        _loaded[code] = set(run(program, folder).splitlines()[-1].split()[1:])
    return _loaded[code]


@pytest.mark.parametrize(
    "code",
    [
        "import holdfast",
        "from holdfast import Queue",
        "import holdfast.cli",
        DECORATE,
        ENQUEUE,
        VERSION,
        QUEUECTL_ENQUEUE,
    ],
    ids=[
        "import holdfast",
        "from holdfast import Queue",
        "import holdfast.cli",
        "decorate",
        "enqueue",
        "version",
        "queuectl enqueue",
    ],
)
def test_it_loads_nothing_heavy(code: str, tmp_path: Path) -> None:
    tops = {name.partition(".")[0] for name in loaded_by(code, tmp_path)}
    assert tops & HEAVY == set()


def test_importing_the_package_loads_no_part_of_it(tmp_path: Path) -> None:
    assert {name for name in loaded_by("import holdfast", tmp_path) if name.startswith("holdfast")} == {
        "holdfast"
    }


def test_queuectl_can_show_its_version_without_the_engine(tmp_path: Path) -> None:
    loaded = loaded_by(VERSION, tmp_path)
    assert not {"holdfast.queue", "holdfast.store.open", "sqlite3", "msgspec"} & loaded


def test_queuectl_enqueue_loads_only_what_it_needs(tmp_path: Path) -> None:
    """Each of these would cost it up to a tenth of its start."""
    # Not among them: inspect, which msgspec loads by way of typing_extensions, where that is installed.
    unneeded = {
        "ctypes",
        "logging",
        "random",
        "shutil",
        "tempfile",
        "urllib.parse",
        "holdfast.handlers.handler",
    }
    assert not unneeded & loaded_by(QUEUECTL_ENQUEUE, tmp_path)


def test_enqueueing_loads_no_worker(tmp_path: Path) -> None:
    assert not [name for name in loaded_by(ENQUEUE, tmp_path) if name.startswith("holdfast.worker")]


def modules() -> list[str]:
    return sorted(
        module.name
        for module in pkgutil.walk_packages(holdfast.__path__, "holdfast.")
        if not module.name.endswith(".__main__")
    )


def test_no_module_does_anything_when_it_is_imported(tmp_path: Path) -> None:
    code = f"""
import importlib, logging, os, signal, sys, threading
signals = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
for name in {modules()!r}:
    importlib.import_module(name)
assert threading.active_count() == 1, threading.enumerate()
assert os.listdir() == [], os.listdir()
assert logging.getLogger().handlers == [] and logging.getLogger("holdfast").handlers == []
assert signals == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
"""
    assert run(code, tmp_path) == ""


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(holdfast, name) is not None
    assert name in dir(holdfast)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Que'"):
        holdfast.Que  # noqa: B018


def test_every_module_opens_with_a_sentence_of_what_lives_in_it() -> None:
    for path in sorted(Path(holdfast.__path__[0]).rglob("*.py")):
        assert path.read_text(encoding="utf-8").startswith('"""'), path
