"""When lines are read again: after a change, and now and then without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.core.settings import Settings
from holdfast.core.starting import Head, Lines, Usage
from holdfast.store.records import Claimed
from holdfast.worker import work_search
from holdfast.worker.claiming import Asked
from holdfast.worker.work_search import WorkSearch


class Claiming:
    """Reads lines that limits keep, which takes 10 ms; they are good for 200."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.reads = 0
        patch.setattr(work_search, "time", SimpleNamespace(monotonic=lambda: self.now))

    def read_lines(self, settings: Settings) -> Lines:
        self.reads += 1
        self.now += 0.01
        return Lines([Head("pay", 0, 1)], settings, fresh_until=self.now + 0.2)

    def usage(self, lines: Lines) -> Usage:
        return Usage()

    def ask(self, lines: Lines, limit: int, usage: Usage) -> Asked:
        return Asked([], limited=frozenset({"pay"}))


@pytest.fixture
def claiming(monkeypatch: pytest.MonkeyPatch) -> Claiming:
    return Claiming(monkeypatch)


def find(search: WorkSearch, claiming: Claiming, settings: Settings) -> None:
    assert not search.finds_work(settings, claiming.now, writes=False)


def test_lines_are_not_read_again_while_nobody_tells_of_a_change(claiming: Claiming) -> None:
    search, settings = WorkSearch(claiming), Settings({})  # type: ignore[arg-type]
    for _ in range(9):
        search.look(claiming.now, is_certain=False)
        find(search, claiming, settings)
        claiming.now += 1
    assert claiming.reads == 1
    claiming.now += 2
    search.look(claiming.now, is_certain=False)
    find(search, claiming, settings)
    assert claiming.reads == 2, "a poll trusts them for a thousand times what they took"


def test_lines_are_read_again_after_a_change_once_they_are_not_fresh(claiming: Claiming) -> None:
    search, settings = WorkSearch(claiming), Settings({})  # type: ignore[arg-type]
    find(search, claiming, settings)
    search.hurry()
    find(search, claiming, settings)
    assert claiming.reads == 1
    claiming.now = search.next_at
    find(search, claiming, settings)
    assert claiming.reads == 2


def test_lines_are_read_again_when_a_rate_limit_lets_the_next_one_start(claiming: Claiming) -> None:
    """Those that it kept may have been left out."""
    search, settings = WorkSearch(claiming), Settings({})  # type: ignore[arg-type]
    find(search, claiming, settings)
    search.note(Claimed([], wait=1.0), search.lines, None)
    claiming.now += 1
    find(search, claiming, settings)
    assert claiming.reads == 2


def test_lines_by_other_settings_are_read_at_once(claiming: Claiming) -> None:
    search = WorkSearch(claiming)  # type: ignore[arg-type]
    for expected in (1, 2):
        search.look(claiming.now, is_certain=False)
        find(search, claiming, Settings({}))
        assert claiming.reads == expected
