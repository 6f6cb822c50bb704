"""The outbox of a worker: what is put in is offered until the database has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.context import Attempt, AttemptHost
from holdfast.core.lifecycle import Completed, Released
from holdfast.handlers.handler import Handler
from holdfast.store.records import Claim
from holdfast.worker import outbox as outbox_module
from holdfast.worker.outbox import HELD_UP_PAUSE, PROGRESS_PAUSE, Outbox
from holdfast.worker.settle import Ended


def attempt_of(seq: int) -> Attempt:
    claim = Claim(seq, f"job{seq}", "work", "{}", 0, 1, 3, 1, None, 0, 0, "me")
    handler = Handler("work", lambda payload: None, whole=True)
    return Attempt(claim, handler, cast(AttemptHost, None))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(outbox_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def outbox(clock: SimpleNamespace) -> Outbox:
    return Outbox()


def test_what_a_failed_turn_has_gathered_is_offered_again_with_what_came_meanwhile(outbox: Outbox) -> None:
    first, second = (Ended(attempt_of(seq), Released()) for seq in (1, 2))
    outbox.put(first)
    assert list(outbox.gather()[0]) == [first]
    outbox.put(second)
    assert list(outbox.gather()[0]) == [first, second]
    outbox.written([], {}, ())
    assert not outbox.gather()[0]
    assert outbox.attempts() == []


def test_progress_that_could_not_be_written_gives_way_to_a_newer_report(outbox: Outbox) -> None:
    one, two = attempt_of(1), attempt_of(2)
    assert outbox.note_progress(one, 0.1, None)
    assert not outbox.note_progress(two, 0.2, None), "one that is waiting wakes the loop for both"
    outbox.gather()
    outbox.note_progress(one, 0.9, "newer")
    assert dict(outbox.gather()[1]) == {1: (1, 1, 0.9, "newer"), 2: (2, 1, 0.2, None)}


def test_report_that_is_held_up_waits_for_the_next_write_of_progress(
    outbox: Outbox, clock: SimpleNamespace
) -> None:
    outbox.note_progress(attempt_of(1), 0.5, None)
    _, progress = outbox.gather()
    outbox.written([], progress, [1])
    assert not outbox.is_due(clock.now)
    assert list(outbox.moments()) == [clock.now + PROGRESS_PAUSE]
    assert outbox.is_due(clock.now + PROGRESS_PAUSE)


def test_outcome_that_is_held_up_is_ours_until_it_is_offered_again(
    outbox: Outbox, clock: SimpleNamespace
) -> None:
    end = Ended(attempt_of(1), Released())
    outbox.put(end)
    outbox.gather()
    outbox.written([end], {}, ())
    assert set(outbox.attempts()) == {end.attempt}
    assert not outbox.is_due(clock.now)
    assert not outbox.gather()[0]
    clock.now += HELD_UP_PAUSE
    assert outbox.is_due(clock.now)
    assert list(outbox.gather()[0]) == [end]


@pytest.mark.parametrize(("ending", "waited"), [(Completed(None), 0.0), (Released(), 5.0)])
def test_shutdown_waits_a_grace_for_what_is_held_up_but_not_for_an_application_s_transaction(
    outbox: Outbox, clock: SimpleNamespace, ending: Completed | Released, waited: float
) -> None:
    end = Ended(attempt_of(1), ending)
    outbox.put(end)
    deadline = clock.now
    assert not outbox.is_done(deadline, 5.0), "it was not even offered"
    outbox.gather()
    outbox.written([end], {}, ())
    clock.now = deadline + waited
    assert outbox.is_done(deadline, 5.0)
    clock.now -= 0.1
    assert not outbox.is_done(deadline, 5.0)
