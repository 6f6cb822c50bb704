"""Plants bugs, one after another, in a copy of the code, and says which test sees each, and how soon.

`python -m tests.simulation.planted`; with a number, only that bug. Nothing here runs in `make test`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("HOLDFAST_SIMULATED_SEEDS", "2000"))
MODEL_TEST = "tests/unit/test_starting.py"


class Bug(Struct, frozen=True):
    """A line of the code, and what it becomes."""

    name: str
    file: str
    before: str
    after: str


_ROOM = "src/holdfast/core/starting.py"
_WORKER = "src/holdfast/worker"
_STORE = "tests/simulation"

BUGS = (
    Bug(
        "max_running counted by type, not by whose limit it is",
        _ROOM,
        "self._running.get(limit.name, 0))",
        "self._running.get(type, 0))",
    ),
    Bug(
        "a group's place is looked at, but not taken",
        _ROOM,
        "self._groups[place] = self._groups.get(place, 0) + 1",
        "self._groups.setdefault(place, 0)",
    ),
    Bug(
        "the bucket of a rate limit is not saved",
        f"{_STORE}/store.py",
        "self._database.buckets |= room.changed\n        heads",
        "heads",
    ),
    Bug(
        "a claim by outdated settings is accepted",
        f"{_STORE}/store.py",
        "if settings.version is not None and database.version != settings.version:",
        "if False:",
    ),
    Bug(
        "jobs under limits are held ready like others",
        "src/holdfast/core/settings.py",
        "return self.max_running is None and self.rate is None",
        "return True",
    ),
    Bug(
        "lanes do not share the slots of their type",
        f"{_WORKER}/following.py",
        "return (limit.name, int(limit.size)) if limit.name",
        "return (type, int(limit.size)) if limit.name",
    ),
    Bug(
        "the reaper takes what it sees expired for the first time",
        f"{_WORKER}/maintenance.py",
        "proven = [expired[lease] for lease, seen in self._suspects.items() if now - seen >= patience]",
        "proven = list(expired.values())",
    ),
    Bug(
        "an outcome is written without the guard of the version",
        f"{_STORE}/database.py",
        "return row if (row.version, row.worker_id) == (version, worker_id) else None",
        "return row",
    ),
    Bug(
        "a turn announces what was not committed",
        f"{_WORKER}/turn.py",
        "            self.maintenance.forget()\n",
        "            self.announce(taken)\n",
    ),
    Bug(
        "the turn of groups never moves on",
        "src/holdfast/store/candidates.py",
        'self._last[job.type] = job.group or ""',
        "pass",
    ),
    Bug(
        "a job that lost two workers gets company",
        f"{_WORKER}/suspects.py",
        "return True\n            self._running = None",
        "return False\n            self._running = None",
    ),
    Bug(
        "an attempt is charged that had not started",
        "src/holdfast/core/lifecycle.py",
        "if not lost.has_started:",
        "if False:",
    ),
    Bug(
        "a handler starts though the lease may be over",
        f"{_WORKER}/run.py",
        "return None if lease_clock() < attempt.leased_until else Released()",
        "return None",
    ),
    Bug(
        "the pause of a type does not hold for its lanes",
        "src/holdfast/core/settings.py",
        "tuple(name for name in names_of(owner) if name in self.paused)",
        "tuple(name for name in (owner, '') if name in self.paused)",
    ),
    Bug(
        "only the first type of those that share a limit is asked for",
        _ROOM,
        "self._together[kind][: min(count, most + 1)]",
        "self._together[kind][:1]",
    ),
    Bug(
        "the wait for a rate limit is twice too long",
        "src/holdfast/core/rate_limit.py",
        "return max(0.0, (1 - self.tokens) / rate)",
        "return max(0.0, 2 * (1 - self.tokens) / rate)",
    ),
    Bug(
        "a worker looks again after each turn, told anything or not",
        f"{_WORKER}/dispatcher.py",
        "if self._turn.announce(taken) and not self._store.is_shared",
        "if self._turn.announce(taken) in (True, False) and not self._store.is_shared",
    ),
    Bug(
        "an outcome is forgotten when its commit fails",
        f"{_WORKER}/outbox.py",
        "            return self._offered, dict(self._progress)",
        "            found, self._offered = self._offered, []\n            return found, {**self._progress}",
    ),
)


def plant(bug: Bug, root: Path) -> None:
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    path = root / bug.file
    text = path.read_text()
    if bug.before not in text:
        raise SystemExit(f"{bug.file} has changed: {bug.before}")
    path.write_text(text.replace(bug.before, bug.after))
    # A smaller example of a bug that is known takes a minute.
    tests = root / MODEL_TEST
    unshrunk = '@settings(phases=[__import__("hypothesis").Phase.generate], '
    tests.write_text(tests.read_text().replace("@settings(", unshrunk))


def simulated(root: Path) -> str:
    """What the simulation says of the code there."""
    command = ["-m", "tests.simulation", "--seeds", str(SEEDS), "--jobs", "1", "--stop"]
    said = _run(root, *command)
    found = re.search(r"seed (\d+): (.*)", said)
    return f"seed {found[1]}: {found[2][:90]}" if found else "not in the simulation"


def modelled(root: Path) -> str:
    """What the model test says of it."""
    said = _run(root, "-m", "pytest", "-q", "-n0", "-p", "no:randomly", MODEL_TEST)
    failed = re.findall(r"^FAILED .*::(\w+)", said, re.M)
    return ", ".join(failed) or "not in the model test"


def _run(root: Path, *command: str) -> str:
    path = os.pathsep.join([str(root / "src"), str(root)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def main() -> None:
    numbers = [int(number) for number in sys.argv[1:]] or range(1, len(BUGS) + 1)
    for number in numbers:
        bug = BUGS[number - 1]
        with tempfile.TemporaryDirectory() as folder:
            plant(bug, Path(folder))
            lines = [f"{number}. {bug.name}", simulated(Path(folder)), modelled(Path(folder))]
            sys.stdout.write("\n   ".join(lines) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
