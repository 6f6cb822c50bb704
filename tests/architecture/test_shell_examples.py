"""Every example for the shell runs: examples/*.sh, and the blocks of some pages marked ```sh."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.addresses import server_in_place

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs/quickstart.md",
    ROOT / "docs/how-to/postgresql.md",
    ROOT / "docs/how-to/shell-jobs.md",
]
EXAMPLES = sorted((ROOT / "examples").glob("*.sh"))
BLOCK = re.compile(r"^```sh\n(.*?)^```$(?:\n\nIt prints\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
SETS_UP = ("make ", "pip ")
"""How blocks begin that install Holdfast: what they do is there already."""

# What each example promises to print, in this order; more may stand between.
PROMISES = {
    "commands.sh": [
        "greet\nimport\nendless\n",
        "endless\tfailed\tshell\t1/1\t.*\tTimedOut: the attempt ran longer than its timeout of 0.5 s\n",
        "import\tfailed\tshell\t1/1\t.*\tCommandFailed: exit code 1: cat: orders.csv: ",
        "greet\tcompleted\tshell\t1/3\t",
        "failed permanently at .* after 1 attempt: CommandFailed: exit code 1: cat: orders.csv: ",
        "hello from greet\n--- exit code 0 ---\n",
        "import is pending again\n",
        "orders imported\n--- exit code 0 ---\n",
        "completed\t2\nfailed\t1\n",
        " stopped\n",
    ]
}


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A home of its own, and this environment's queuectl first on the path. No worker is left at the end."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    made = {**os.environ, "PATH": path, "QUEUECTL_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    made.pop("QUEUECTL_DATABASE_URL", None)
    yield made
    if (tmp_path / "home" / "queue.db").exists():
        subprocess.run(["queuectl", "worker", "stop", "--force"], env=made, capture_output=True, timeout=60)


def run(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Run a program of the shell and return what it printed to stdout."""
    done = subprocess.run(
        ["/bin/sh", "-eu", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{words[-1]}\nprinted:\n{done.stdout}\nand said:\n{done.stderr}"
    return done.stdout


@pytest.mark.postgres
@pytest.mark.process
@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_shell_block_of_a_page_runs_as_it_is_pasted_in_order(
    page: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    blocks = [
        (code, expected)
        for code, expected in BLOCK.findall(page.read_text(encoding="utf-8"))
        if not code.startswith(SETS_UP)
    ]
    assert blocks, "the page has nothing to run"
    with server_in_place() as addressed:
        for code, expected in blocks:
            printed = run(["-c", addressed(code)], tmp_path, environment)
            if expected:
                assert printed == expected


def test_every_shell_example_says_what_it_promises() -> None:
    assert {path.name for path in EXAMPLES} == PROMISES.keys()


@pytest.mark.process
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_shell_example_prints_what_it_promises_and_leaves_nothing_behind(
    path: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    printed = run([str(path)], tmp_path, {**environment, "TMPDIR": str(tmp_path)})
    position = 0
    for promise in PROMISES[path.name]:
        found = re.compile(promise).search(printed, position)
        assert found is not None, f"{promise!r} is not in what follows:\n{printed[position:]}"
        position = found.end()
    assert [left for left in tmp_path.rglob("*") if not left.is_dir()] == []
