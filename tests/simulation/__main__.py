"""Runs simulations: `make simulate`, with ARGS="--seed 123" one and its history, or ARGS="--seeds 5000"."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context

from tests.simulation.seeds import Outcome, run_one
from tests.simulation.world import World


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def replay(seed: int) -> bool:
    """Print the whole history of a seed."""
    world = World(seed, tell=say)
    world.run()
    return True


def report(outcomes: Iterator[Outcome], *, stop: bool = False) -> bool:
    began = time.monotonic()
    seeds = events = commits = 0
    faults: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    for seed, its_events, its_commits, its_faults, failure in outcomes:
        seeds, events, commits = seeds + 1, events + its_events, commits + its_commits
        faults += its_faults
        if failure is not None:
            failures.append((seed, failure))
            if len(failures) <= 20:
                say(f"seed {seed}: {failure[:300]}")
            if stop:
                break
    say(f"{seeds:,} seeds, {events:,} steps, {commits:,} commits, {time.monotonic() - began:.0f} s")
    for kind, count in faults.most_common():
        say(f"  {kind:28} {count:>12,}")
    say(f"{len(failures):,} failures")
    return not failures


def main() -> bool:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print its history")
    parser.add_argument("--seeds", type=int, default=200_000, help="how many to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    given = parser.parse_args()
    if given.seed is not None:
        return replay(given.seed)
    seeds = range(given.first, given.first + given.seeds)
    if given.jobs == 1:
        return report(map(run_one, seeds), stop=given.stop)
    with get_context("spawn").Pool(given.jobs) as pool:
        return report(pool.imap_unordered(run_one, seeds, chunksize=100), stop=given.stop)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
