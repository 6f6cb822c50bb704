"""Two thousand simulated worlds in which everything goes wrong: no promise may be broken in any of them.

`make simulate` runs many more. `make simulate ARGS="--seed 123"` prints the history of one.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.planted import BUGS, ROOT
from tests.simulation.world import simulate

CHUNK = 100
SEEDS = int(os.environ.get("HOLDFAST_SIMULATED_SEEDS", "2000"))


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_promise_is_broken_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            simulate(seed)
        except Exception as error:
            error.add_note(f'make simulate ARGS="--seed {seed}" prints the history')
            raise


def test_every_planted_bug_can_still_be_planted() -> None:
    gone = {bug.name: bug.before for bug in BUGS if (ROOT / bug.file).read_text().count(bug.before) != 1}
    assert gone == {}


def test_a_seed_has_one_history() -> None:
    histories = []
    for _ in range(2):
        lines: list[str] = []
        simulate(7, lines.append)
        histories.append(lines)
    assert len(histories[0]) > 50
    assert histories[0] == histories[1]


@pytest.mark.process
def test_a_seed_has_the_same_history_in_every_process() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seed", "7"]
    histories = [
        subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": number}
        ).stdout
        for number in ("1", "2")
    ]
    assert histories[0] == histories[1]
