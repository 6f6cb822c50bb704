"""Folding: a portion in each turn, soon after the last while there is more, and then once a minute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.core.clock import MINUTE
from holdfast.errors import StoreBusy
from holdfast.store.protocol import Store
from holdfast.store.statistics import FIRST, Key
from holdfast.worker import folding
from holdfast.worker.folding import Folder

NOW = 10_000
"""The present minute."""
OLD, OLDER = NOW - 60, NOW - 48 * 60


class Scripted:
    """A store that takes 20 ms for each portion, and has as many as it is told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.time = 1000.0
        patch.setattr(folding, "time", SimpleNamespace(monotonic=lambda: self.time))
        self.calls: list[Any] = []
        self.minute = NOW
        self.rows = self.types = self.lifetimes = 1
        self.fails = False

    def now(self) -> int:
        return self.minute * MINUTE

    def _take(self, *call: Any) -> None:
        self.time += 0.02
        if self.fails:
            raise StoreBusy(5.0)
        self.calls.append(call)

    def fold_statistics(self, *, hours_before: int, lifetime_before: int, begin: Key) -> Key | None:
        self._take("fold", begin, hours_before, lifetime_before)
        self.rows -= 1
        return (self.rows, "", "") if self.rows > 0 else None

    def forget_names(self) -> bool:
        self._take("types")
        self.types -= 1
        return self.types > 0

    def forget_statistics(self, after: str = "") -> str | None:
        self._take("names", after)
        self.lifetimes -= 1
        return str(self.lifetimes) if self.lifetimes > 0 else None


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(monkeypatch)


@pytest.fixture
def folder(store: Scripted) -> Folder:
    return Folder(cast("Store", store))


def fold(store: Scripted, folder: Folder) -> list[Any]:
    """What it does next, at the time when it is due."""
    store.time = max(store.time, folder.next_at)
    assert folder.is_due()
    before = len(store.calls)
    folder.fold()
    return store.calls[before:]


def test_little_is_done_at_once_and_again_after_a_minute(store: Scripted, folder: Folder) -> None:
    assert fold(store, folder) == [("types",), ("fold", FIRST, OLD, OLDER), ("names", "")]
    assert not folder.is_due()
    assert folder.next_at == pytest.approx(1060)


def test_much_is_done_in_portions_soon_after_each_other(store: Scripted, folder: Folder) -> None:
    store.rows, store.types, store.lifetimes = 3, 2, 2
    portions = []
    while folder.next_at < 1050:
        portions.append(fold(store, folder))
    assert portions == [
        [("types",)],
        [("types",), ("fold", FIRST, OLD, OLDER)],
        [("fold", (2, "", ""), OLD, OLDER)],
        [("fold", (1, "", ""), OLD, OLDER), ("names", "")],
        [("names", "1")],
    ]


def test_portions_take_a_tenth_of_the_time(store: Scripted, folder: Folder) -> None:
    store.types = 100
    fold(store, folder)
    assert folder.next_at - store.time == pytest.approx(0.2)


def test_next_pass_goes_on_where_the_last_one_ended_but_for_one_an_hour(
    store: Scripted, folder: Folder
) -> None:
    fold(store, folder)
    passes = []
    for minute in range(1, 62):
        store.minute = NOW + minute
        passes.append(fold(store, folder))
    for minute, calls in enumerate(passes[:59], 1):
        begin = (OLD + minute - 1, "", "")
        assert calls == [("types",), ("fold", begin, OLD + minute, OLDER + minute)]
    [whole] = [calls for calls in passes[59:] if ("names", "") in calls]
    assert whole[1][:2] == ("fold", FIRST)


def test_portion_that_failed_is_left_to_a_pass_over_everything_in_a_minute(
    store: Scripted, folder: Folder
) -> None:
    fold(store, folder)
    store.fails = True
    with pytest.raises(StoreBusy):
        fold(store, folder)
    folder.forget()
    assert not folder.is_due(), "or every turn would fail"
    assert folder.next_at == pytest.approx(1120)
    store.fails = False
    assert fold(store, folder) == [("types",), ("fold", FIRST, OLD, OLDER), ("names", "")]


def test_pass_whose_last_portion_was_not_committed_begins_again(store: Scripted, folder: Folder) -> None:
    store.rows = 3
    fold(store, folder)
    fold(store, folder)
    folder.forget()
    store.rows = 1
    assert fold(store, folder) == [("types",), ("fold", FIRST, OLD, OLDER), ("names", "")]


def test_folding_goes_on_until_the_end_of_a_pass(store: Scripted, folder: Folder) -> None:
    """A worker that drains waits for its first pass, and for no other."""
    store.types = 2
    goes_on = [folder.goes_on]
    for _ in range(2):
        fold(store, folder)
        goes_on.append(folder.goes_on)
    store.time = folder.next_at
    assert [*goes_on, folder.goes_on] == [True, True, False, False]


def test_folding_that_fails_is_not_waited_for(store: Scripted, folder: Folder) -> None:
    store.fails = True
    with pytest.raises(StoreBusy):
        fold(store, folder)
    folder.forget()
    assert not folder.goes_on
