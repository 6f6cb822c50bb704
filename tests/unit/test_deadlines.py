"""The thread that keeps the time of all deadlines."""

from __future__ import annotations

import threading

from holdfast.store.deadlines import Deadlines

PATIENCE = 60.0


def test_they_are_met_in_the_order_of_their_time() -> None:
    deadlines, early, late = Deadlines(), threading.Event(), threading.Event()
    later = deadlines.add(60, late.set)
    deadlines.add(0.01, early.set)
    assert early.wait(PATIENCE)
    assert not late.is_set()
    deadlines.call_off(later)


def test_one_that_takes_its_time_does_not_delay_the_next() -> None:
    deadlines, stuck, second = Deadlines(), threading.Event(), threading.Event()
    deadlines.add(0.0, lambda: stuck.wait(PATIENCE))
    deadlines.add(0.01, second.set)
    assert second.wait(PATIENCE)
    stuck.set()


def test_one_that_was_called_off_does_not_happen() -> None:
    deadlines, happened, last = Deadlines(), list[str](), threading.Event()
    with deadlines._changed:  # until then none is looked at
        off = deadlines.add(0.0, lambda: happened.append("called off"))
        deadlines.add(0.0, last.set)
        deadlines.call_off(off)
        deadlines.call_off(off)
    assert last.wait(PATIENCE)
    assert happened == []


def test_thread_is_shared_and_ends_when_it_is_not_needed() -> None:
    deadlines = Deadlines()
    before = set(threading.enumerate())
    several = [deadlines.add(60, lambda: None) for _ in range(50)]
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["holdfast-deadlines"]
    for deadline in several:
        deadlines.call_off(deadline)
    assert deadlines._next() is None, "it would wait for nothing"
    again = threading.Event()
    deadlines.add(0.0, again.set)
    assert again.wait(PATIENCE)
