"""Events without logging: what nobody hears costs nothing, and a warning is heard all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

# Slow to load, and no part of storing a job.
SLOW = {
    "argparse",
    "asyncio",
    "concurrent",
    "ctypes",
    "dataclasses",
    "hashlib",
    "inspect",
    "logging",
    "pathlib",
    "random",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "traceback",
    "urllib",
}


def run(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter that has loaded nothing of the environment's own."""
    return subprocess.run(
        [sys.executable, "-S", "-c", source],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def loaded_by(folder: Path, source: str) -> set[str]:
    # msgspec loads typing_extensions where it is installed; in an environment of our own it is not.
    alone = "import sys; sys.modules['typing_extensions'] = None"
    done = run(folder, f"{alone}\n{source}\nprint(*sys.modules)")
    assert (done.returncode, done.stderr) == (0, "")
    return {name.partition(".")[0] for name in done.stdout.split()}


ENQUEUE = """
from holdfast import Queue
with Queue("sqlite:///queue.db") as queue:
    queue.enqueue("crawl", {"url": "https://example.com"})
"""


def test_enqueue_loads_nothing_slow(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, ENQUEUE)
    assert "holdfast" in loaded
    assert loaded & SLOW == set()


def test_import_alone_loads_next_to_nothing(tmp_path: Path) -> None:
    extra = loaded_by(tmp_path, "import holdfast") - loaded_by(tmp_path, "")
    assert "holdfast" in extra
    assert extra & {*SLOW, "msgspec", "sqlite3", "json"} == set()


def test_address_without_escapes_is_read_without_urllib(tmp_path: Path) -> None:
    assert "urllib" not in loaded_by(tmp_path, ENQUEUE)
    assert "urllib" in loaded_by(tmp_path, ENQUEUE.replace("queue.db", "my%20queue.db"))


EMIT = """
import sys
from holdfast import events as e
assert "logging" not in sys.modules
events = e.Events()
heard = []
{before}
assert events.wanted(e.JobDeleted) is {wanted}, events.wanted(e.JobDeleted)
assert events.wanted(e.JobFailed)
events.emit(e.JobDeleted(job_id="1", type="crawl"))
events.emit(e.JobFailed(job_id="2", type="crawl", attempt=1, worker_id=None, error="boom"))
{after}
"""


def test_what_nobody_asked_for_does_not_load_logging(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "import sys\nfrom holdfast import events as e\nevents = e.Events()\n"
        "assert not events.wanted(e.JobDeleted)\n"
        "events.emit(e.JobDeleted(job_id='1', type='crawl'))\n"
        "print('logging' in sys.modules)",
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_error_reaches_stderr_though_nobody_set_logging_up(tmp_path: Path) -> None:
    done = run(tmp_path, EMIT.format(before="", wanted=False, after=""))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "job.failed job_id='2' type='crawl' attempt=1 error='boom'\n"


def test_subscriber_hears_everything_without_logging(tmp_path: Path) -> None:
    source = EMIT.format(before="events.subscribe(heard.append)", wanted=True, after="print(len(heard))")
    assert run(tmp_path, source).stdout == "2\n"


def test_logging_that_is_set_up_later_is_heard_from_then_on(tmp_path: Path) -> None:
    source = """
import sys
from holdfast import events as e
events = e.Events()
events.emit(e.JobDeleted(job_id="early", type="crawl"))
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
events.emit(e.JobDeleted(job_id="late", type="crawl"))
"""
    assert run(tmp_path, source).stderr == "holdfast INFO job.deleted job_id='late' type='crawl'\n"


def test_broken_subscriber_is_told_of_where_logging_was_not_loaded(tmp_path: Path) -> None:
    source = """
from holdfast import events as e
events = e.Events()
events.subscribe(lambda event: 1 / 0)
events.emit(e.JobDeleted(job_id="1", type="crawl"))
print("on")
"""
    done = run(tmp_path, source)
    assert done.stdout == "on\n"
    assert done.stderr.startswith("a subscriber of job.deleted failed\nTraceback")


@pytest.mark.parametrize("name", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
def test_our_levels_are_those_of_logging(name: str) -> None:
    import logging

    from holdfast import events

    assert getattr(events, name) == getattr(logging, name)
