"""Runs one seed, and says what came of it."""

from __future__ import annotations

from collections import Counter

from tests.simulation.world import World

Outcome = tuple[int, int, int, Counter[str], str | None]
"""A seed, its steps and commits, its faults by kind, and how it failed."""


def run_one(seed: int) -> Outcome:
    world = World(seed)
    try:
        world.run()
        failure = None
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return seed, world.events, world.commits, world.faults.counts, failure
