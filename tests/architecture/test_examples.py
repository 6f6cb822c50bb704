"""Every example runs: the files of examples/, and each block of README.md and the docs marked ```python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.addresses import server_in_place

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(
    r"^```python\n(.*?)^```$(?:\n\nIt prints\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)

# What each example promises to print, in this order; more may stand between.
PROMISES: dict[str, list[str]] = {
    "first_jobs.py": [
        "greet         {'name': 'Ada'}  is pending",
        "is scheduled",
        "charge .* attempt 1 failed, retrying in .* the bank does not answer",
        "greet         completed  Hello, Ada!",
        "fetch         completed  {'characters': 19}",
        "count_primes  completed  {'primes': 2262}",
        r"charge        completed  order 7 paid in attempt 2   \(attempts that failed: 1\)",
        "deliver       failed     Fail: there is no place called 'Atlantis'",
        r"why charge\? completed at .* UTC \(.*\), attempt 2",
        r"why deliver\? failed permanently at .* after 1 attempt: .* is no place called 'Atlantis'",
        r"why greet\? scheduled for .* UTC \(in ",
        "worker .* stopped, 0 jobs released",
    ],
    "demo.py": [
        r"73 jobs pending and 1 scheduled in sqlite:///",
        "open the address that `queuectl serve` prints",
    ],
    "fluent.py": [
        "refused: payload: object missing required field url",
        "https://example.com/1 completed: 21 characters",
        "https://example.com/22 completed: 22 characters",
        "completed: 2",
    ],
    "outbox.py": [
        "rolled back: the payment was refused",
        r"users: \['ada@example.com'\]",
        r"jobs:  \['ada@example.com'\]",
    ],
    "exactly_once.py": [
        "attempt 1: written, not yet committed",
        "attempt 2: written, not yet committed",
        "completed in attempt 2: {'booked': 100}",
        "bookings in the database: 1",
    ],
    "async_enqueue.py": [
        "200 requests one after another: .* jobs per second",
        "200 requests at the same time: .* jobs per second",
        "distinct jobs: 200",
        "waiting in the database: 400",
    ],
    "http_client.py": [
        "sent twice, stored once: True",
        "refused: 400 invalid_payload: payload: object contains unknown field nome",
        "deliver is failed",
        r"why\? failed permanently at .* after 1 attempt: .* is no place called 'Atlantis'",
        "greet is completed: Hello, Ada!",
    ],
    "mounted_api.py": [
        r"eve gets 401: authentication required",
        "send_receipt is completed: receipt for order 7 sent to ada@example.com",
        r"types: \['send_receipt'\]",
        "the queue is ready",
    ],
    "requirements_app.py": [
        r"usage: requirements_app.py \[-h\] ACTION",
        "add a requirement",
        "extract the facts again",
        "remove a requirement",
        "list the stored requirements",
    ],
    "claude_stand_in.py": [
        "A stand-in for Claude Code, to try claude_extraction jobs offline and for free. It is not a model.",
    ],
    "testing_an_application.py": [
        "passed: test_signing_up_twice_welcomes_once",
        "passed: test_the_question_comes_a_day_later",
    ],
}


def run(path: Path, folder: Path, *words: str) -> str:
    """Run a program in a fresh process and return what it printed to stdout."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"QUEUECTL_HOME": str(folder.parent / f"{folder.name}-home")},
    )
    assert done.returncode == 0, f"{path}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_example_says_what_it_promises() -> None:
    assert {path.name for path in EXAMPLES} == PROMISES.keys()


@pytest.mark.process
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_prints_what_it_promises_and_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    printed = run(path, tmp_path)
    position = 0
    for promise in PROMISES[path.name]:
        found = re.compile(promise).search(printed, position)
        assert found is not None, f"{promise!r} is not in what follows:\n{printed[position:]}"
        position = found.end()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_an_example_does_nothing_when_it_is_imported(tmp_path: Path) -> None:
    """All in one process: what one of them prints or leaves there is found before the next one comes."""
    program = tmp_path / "program.py"
    program.write_text(IMPORT_EACH, encoding="utf-8")
    assert run(program, tmp_path, *map(str, EXAMPLES)) == ""
    assert list(tmp_path.iterdir()) == [program]


IMPORT_EACH = """\
import contextlib, io, os, runpy, sys, threading

before = sorted(os.listdir()), threading.enumerate()
for path in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(path, run_name="imported")
    assert printed.getvalue() == "", f"{path} prints {printed.getvalue()}"
    assert (sorted(os.listdir()), threading.enumerate()) == before, f"{path} leaves something behind"
"""


def pages() -> list[Path]:
    """README.md and the pages of the docs that have a program in them."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if path.exists() and BLOCK.search(path.read_text(encoding="utf-8"))]


@pytest.mark.postgres
@pytest.mark.process
@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_program_on_a_page_runs_as_it_is_pasted_in_order(page: Path, tmp_path: Path) -> None:
    programs = BLOCK.findall(page.read_text(encoding="utf-8"))
    with server_in_place() as addressed:
        for number, (code, expected) in enumerate(programs, 1):
            program = tmp_path / f"program{number}.py"
            program.write_text(addressed(code), encoding="utf-8")
            printed = run(program, tmp_path)
            if expected:
                assert printed == expected
