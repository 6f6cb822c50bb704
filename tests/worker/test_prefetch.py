"""How much is claimed ahead: nothing for slow handlers, some for fast ones; and the slots behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast import Queue
from holdfast.context import Attempt, AttemptHost
from holdfast.events import Event, JobClaimed, JobReleased
from holdfast.handlers.handler import Handler
from holdfast.store.open import store_of
from holdfast.store.records import Claim
from holdfast.worker import slots as slots_module
from holdfast.worker.pace import HORIZON, MAX_HELD, MOST_KNOWN, Pace, Paces
from holdfast.worker.slots import Slots
from tests.support import Recorder, both_engines, wait_until
from tests.worker.support import PATIENCE, Gate, Spy

StartWorker = Callable[..., Any]


class Ahead:
    """The most jobs that a worker with one slot had claimed and not yet run, that which runs included."""

    def __init__(self, queue: Queue) -> None:
        self._claimed = self._ended = self.most = 0
        queue.events.subscribe(self._count)

    def work(self, payload: object) -> None:
        self._ended += 1

    def _count(self, event: Event) -> None:
        if isinstance(event, JobClaimed):
            self._claimed += 1
            self.most = max(self.most, self._claimed - self._ended)


def test_slow_handlers_hold_nothing_ahead(
    queue: Queue, start_worker: StartWorker, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(payload: dict[str, Any]) -> None:
        if payload.get("block"):
            gate.enter()
        threading.Event().wait(2 * HORIZON)

    queue.register("work", work)
    queue.enqueue_many("work", [*([{}] * 4), *([{"block": True}] * 10)])
    looks = Spy(store_of(queue).list_heads)
    monkeypatch.setattr(store_of(queue), "list_heads", looks)
    start_worker(concurrency=2)
    gate.wait_entered(2)
    wait_until(lambda: queue.stats()["completed"] == 4)
    for _ in range(2):
        before = len(looks.calls)
        queue.enqueue("other")
        looks.wait_called(1, after=before)
    assert queue.stats()["processing"] == 2


@both_engines
def test_fast_handlers_hold_some_ahead(queue: Queue, start_worker: StartWorker) -> None:
    ahead = Ahead(queue)
    queue.register("work", ahead.work)
    jobs = queue.enqueue_many("work", [{}] * 300)
    start_worker(concurrency=1)
    for job in jobs:
        assert queue.wait(job.id, timeout=PATIENCE).attempts == 1
    assert ahead.most > 1


def test_limited_types_hold_nothing_ahead(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    def work(payload: dict[str, Any]) -> None:
        if payload.get("block"):
            gate.enter()

    queue.register("work", work, max_running=1)
    queue.enqueue_many("work", [*([{}] * 100), {"block": True}, *([{}] * 50)])
    start_worker(concurrency=4)
    gate.wait_entered()
    wait_until(lambda: queue.stats()["completed"] == 100)
    assert queue.stats()["processing"] == 1


def test_pace_of_one_type_does_not_let_others_be_claimed_ahead(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, gate: Gate, recorder: Recorder
) -> None:
    """All slots are held by a slow type: nothing that is claimed now could start soon, whatever its type."""
    queue.register("fast", lambda payload: None)
    queue.register("slow", lambda payload: gate.enter())
    other_queue.register("fast", lambda payload: None)
    start_worker(concurrency=1)
    first = queue.enqueue_many("fast", [{}] * 500)
    queue.enqueue("slow")
    gate.wait_entered()
    queue.wait(first[-1].id, timeout=PATIENCE)
    threading.Event().wait(2 * HORIZON)  # by now it is plain that the slot will not be free at once
    later = queue.enqueue_many("fast", [{}] * 30)
    start_worker(other_queue)
    for job in later:
        assert queue.wait(job.id, timeout=PATIENCE).status == "completed", "held behind the slow one"
    assert recorder.all(JobReleased) == [], "claimed ahead of a slot that was not to be free"


# Unit tests of the slots.


def make_attempt(type: str, seq: int = 1, priority: int = 0, version: int = 1) -> Attempt:
    claim = Claim(seq, f"job{seq}", type, "{}", priority, 1, 3, version, None, 0, 0, "worker")
    handler = Handler(type, lambda payload: None, whole=True)
    return Attempt(claim, handler, cast(AttemptHost, None))


def make_slots(concurrency: int, **caps: int) -> Slots:
    """Slots where each type in `caps` has a cap of its own, and the others share all slots."""
    return Slots(concurrency, lambda type: (type, caps[type]) if type in caps else ("", concurrency))


def test_attempts_start_while_there_are_slots_and_wait_otherwise() -> None:
    slots = make_slots(2)
    attempts = [make_attempt("a", seq) for seq in range(1, 5)]
    slots.hold(attempts)
    assert slots.held() == attempts
    assert slots.refill() == attempts[:2]
    assert slots.running() == attempts[:2]
    assert slots.held() == attempts[2:]
    assert slots.free(attempts[0], 0.001) is attempts[2]
    assert slots.free(attempts[1], 0.001) is attempts[3]
    assert slots.free(attempts[2], 0.001) is None
    assert slots.running() == [attempts[3]]


def test_cap_of_a_type_holds_its_attempts_but_not_others() -> None:
    slots = make_slots(3, a=1)
    first, second, other = make_attempt("a", 1), make_attempt("a", 2), make_attempt("b", 3)
    slots.hold([first, second, other])
    assert slots.refill() == [first, other]
    assert slots.free(other, 0.001) is None
    assert slots.free(first, 0.001) is second


def test_next_attempt_is_the_one_with_the_highest_priority_then_the_oldest() -> None:
    slots = make_slots(1)
    running = make_attempt("a", 9)
    slots.hold([running])
    assert slots.refill() == [running]
    low, high, older = make_attempt("a", 2), make_attempt("b", 4, priority=5), make_attempt("c", 1)
    slots.hold([low, high, older])
    assert slots.free(running, 0.1) is high
    assert slots.free(high, 0.1) is older
    assert slots.free(older, 0.1) is low


def test_held_attempts_can_be_taken_back_but_running_ones_not() -> None:
    slots = make_slots(1)
    running, held = make_attempt("a", 1), make_attempt("a", 2)
    slots.hold([running, held])
    assert slots.refill() == [running]
    assert slots.take_back(lambda attempt: attempt is running) == []
    assert slots.take_back(lambda attempt: attempt is held) == [held]
    assert slots.held() == []
    assert slots.free(running, 0.1) is None


def test_raised_concurrency_lets_held_attempts_start() -> None:
    slots = make_slots(1)
    attempts = [make_attempt("a", seq) for seq in range(1, 4)]
    slots.hold(attempts)
    assert slots.refill() == attempts[:1]
    slots.concurrency = 3
    slots._cap = lambda type: ("", 3)
    assert slots.refill() == attempts[1:]


def test_room_is_what_can_start_now_as_long_as_nothing_is_known() -> None:
    slots = make_slots(4, a=2)
    assert slots.room("a", prefetch=True) == 2
    assert slots.room("b", prefetch=True) == 4
    slots.hold([make_attempt("a", 1)])
    assert slots.room("a", prefetch=True) == 1
    assert slots.total_room() == (3, 4)


def test_full_slots_have_no_room() -> None:
    slots = make_slots(1)
    slots.hold([make_attempt("a")])
    assert slots.room("a", prefetch=True) == 0
    assert slots.total_room() == (0, 1)


def test_half_of_what_is_held_ready_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(slots_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    slots = make_slots(2)
    for seq in range(1, 401):
        attempt = make_attempt("a", seq)
        slots.hold([attempt])
        assert slots.refill() == [attempt]
        slots.free(attempt, 0.0001)
    clock.now += 1.0
    slots.measure()
    ahead = slots.total_room()[0] - 2
    assert ahead == pytest.approx(400 * HORIZON, abs=1)
    assert slots.total_room() == (2 + ahead, 2 + ahead // 2)


def test_attempt_freed_twice_counts_once() -> None:
    slots = make_slots(2)
    attempt = make_attempt("a")
    slots.hold([attempt])
    assert slots.refill() == [attempt]
    slots.free(attempt, 0.1)
    slots.free(attempt, 0.1)
    assert slots.room("a", prefetch=False) == 2


def test_pace_of_a_slow_type_is_nothing_ahead() -> None:
    pace = Pace()
    pace.note(HORIZON * 1.01)
    pace.measure(1.0)
    assert pace.ahead(100) == 0


def test_pace_of_a_fast_type_is_what_starts_within_the_horizon() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.note(0.001)
    pace.measure(1.0)
    assert pace.ahead(10) == pytest.approx(1000 * HORIZON, abs=1)
    assert pace.ahead(1) == pytest.approx(1000 * HORIZON, abs=1)


def test_pace_never_holds_more_than_the_most() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.note(0.0)
    pace.measure(0.0001)
    assert pace.ahead(10_000) == MAX_HELD


def test_one_slow_job_counts_at_once_and_a_fast_one_by_and_by() -> None:
    pace = Pace()
    for _ in range(100):
        pace.note(0.001)
    pace.measure(0.1)
    assert pace.ahead(1) > 0
    pace.note(1.0)
    pace.measure(0.1)
    assert pace.ahead(1) == 0
    pace.note(0.001)
    pace.measure(0.1)
    assert pace.ahead(1) == 0


def test_pace_is_forgotten_when_nothing_finishes() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.note(0.001)
    pace.measure(1.0)
    for _ in range(20):
        pace.measure(1.0)
    assert pace.ahead(10) == 0


def test_unknown_pace_is_nothing_ahead() -> None:
    assert Pace().ahead(10) == 0


def seen(paces: Paces, types: Iterable[str], seconds: float = 0.0001, *, cap: str = "") -> None:
    """A tenth of a second in which each of these types finished a job."""
    for type in types:
        paces.note(cap, type, seconds)
    paces.measure(0.1)


def test_types_that_are_seen_once_are_held_ready_as_long_as_such_types_are_quick() -> None:
    paces = Paces()
    seen(paces, (f"type{number}" for number in range(400)))
    assert paces.ahead("", "new", 8) == 4000 * HORIZON
    assert paces.ahead("", "type7", 8) == 4000 * HORIZON
    paces.note("", "slow", 1.0)
    assert paces.ahead("", "new", 8) == 0
    assert paces.ahead("", "slow", 8) == 0
    assert paces.ahead("", "type7", 8) == 4000 * HORIZON


def test_a_type_that_was_never_seen_is_not_held_at_the_pace_of_another() -> None:
    paces = Paces()
    for _ in range(5):
        seen(paces, ["mail"] * 400)
    assert paces.ahead("", "mail", 8) == 4000 * HORIZON
    assert paces.ahead("", "new", 8) == 0


def test_a_type_is_not_held_at_the_pace_of_another_cap() -> None:
    paces = Paces()
    seen(paces, ["mail"] * 400)
    seen(paces, ["pay"] * 2, cap="pay")
    assert paces.ahead("pay", "pay", 1) <= 1
    assert paces.ahead_in_all(8) >= 2000 * HORIZON


def test_a_slow_type_is_remembered_beside_many_others() -> None:
    paces = Paces()
    seen(paces, ["slow"], 1.0)
    seen(paces, (f"type{number}" for number in range(MOST_KNOWN - 1)))
    assert paces.kind("slow:lane") == "slow"


def test_nothing_is_kept_for_each_type_and_cap_that_ever_was() -> None:
    paces = Paces()
    for number in range(5 * MOST_KNOWN):
        paces.note(f"cap{number}", f"type{number}", 0.001)
        if number % 10 == 0:
            paces.measure(0.01)
    for _ in range(20):
        paces.measure(0.01)
    assert len(paces._means) + len(paces._older) <= 2 * MOST_KNOWN
    assert paces._by_cap == {}


def test_many_types_together_are_held_ready_like_one() -> None:
    """Each of them leaves room for the others: what all of them finish tells how much starts soon."""
    slots = make_slots(2)
    for seq in range(1, 2001):
        attempt = make_attempt(f"type{seq}", seq)
        slots.hold([attempt])
        slots.refill()
        slots.free(attempt, 0.0001)
    slots._measured -= 1.0 - (time.monotonic() - slots._measured)
    slots.measure()
    room = slots.room("new", prefetch=True)
    assert room == pytest.approx(2 + 2000 * HORIZON, abs=2)
    assert slots.total_room()[0] == room
    slots.hold([make_attempt(f"new{seq}", seq) for seq in range(room)])
    slots.refill()
    assert slots.room("new", prefetch=True) == slots.total_room()[0] == 0


# The setting prefetch.


def quick_slots(concurrency: int, prefetch: dict[str, int | None], **caps: int) -> Slots:
    """Slots that have seen hundreds of quick jobs a second, under limits by the name they are set for."""

    def bound(type: str) -> tuple[str, int | None]:
        names = (type, type.partition(":")[0])
        name = next((name for name in names if name in prefetch), "")
        return name, prefetch.get(name)

    def cap(type: str) -> tuple[str, int]:
        return (type, caps[type]) if type in caps else ("", concurrency)

    slots = Slots(concurrency, cap, bound)
    for type in ("a", "b"):
        for seq in range(2000):
            attempt = make_attempt(type, seq)
            slots.hold([attempt])
            assert slots.refill() == [attempt]
            slots.free(attempt, 0.0001)
    slots._measured -= 1.0 - (time.monotonic() - slots._measured)
    slots.measure()
    return slots


def test_job_that_was_lost_and_claimed_again_is_held_beside_its_first_attempt() -> None:
    slots = make_slots(3)
    attempts = [make_attempt("a", version=version) for version in (1, 3, 2)]
    slots.hold(attempts)
    assert [attempt.claim.version for attempt in slots.refill()] == [1, 2, 3]


def test_prefetch_bounds_what_a_type_holds_ready_beyond_its_free_slots() -> None:
    slots = quick_slots(2, {"a": 3})
    assert slots.room("a", prefetch=True) == 5
    assert slots.room("b", prefetch=True) > 50
    slots.hold([make_attempt("a", seq) for seq in range(5)])
    assert slots.room("a", prefetch=True) == 0
    slots.refill()
    assert slots.room("a", prefetch=True) == 0
    slots.take_back(lambda attempt: attempt.claim.seq == 4)
    assert slots.room("a", prefetch=True) == 1


def test_prefetch_of_nothing_holds_nothing() -> None:
    slots = quick_slots(2, {"": 0})
    assert slots.room("a", prefetch=True) == 2
    assert slots.total_room() == (2, 2)
    slots.hold([make_attempt("a", 1), make_attempt("b", 2)])
    slots.refill()
    assert slots.room("a", prefetch=True) == slots.room("b", prefetch=True) == 0
    assert slots.total_room() == (0, 2)


def test_lanes_share_the_prefetch_of_their_base_type_and_have_their_own_to_themselves() -> None:
    slots = quick_slots(1, {"a": 4, "a:own": 2})
    slots.hold([make_attempt("a:x", seq) for seq in range(3)])
    slots.refill()
    assert slots.room("a:y", prefetch=True) == slots.room("a", prefetch=True) == 2
    assert slots.room("a:own", prefetch=True) == 2


def test_prefetch_of_the_whole_queue_bounds_all_types_together() -> None:
    slots = quick_slots(2, {"": 10, "a": 500})
    assert slots.total_room() == (12, 7)
    slots.hold([make_attempt("b", seq) for seq in range(12)])
    slots.refill()
    assert slots.total_room()[0] == 0


@both_engines
@pytest.mark.parametrize("scope", [None, "work"])
def test_worker_holds_no_more_ready_than_prefetch_says(
    queue: Queue, start_worker: StartWorker, gate: Gate, scope: str | None
) -> None:
    ahead = Ahead(queue)

    def work(payload: dict[str, Any]) -> None:
        if payload.get("block"):
            gate.enter()
        ahead.work(payload)

    queue.register("work", work)
    queue.set_config("prefetch", 3, type=scope)
    jobs = queue.enqueue_many("work", [*([{}] * 100), {"block": True}, *([{}] * 50)])
    start_worker(concurrency=1)
    gate.wait_entered()
    wait_until(lambda: queue.stats()["completed"] == 100)  # until it is written, what has ended is processing
    assert queue.stats()["processing"] <= 4
    assert ahead.most <= 4
    gate.open()
    assert queue.wait(jobs[-1].id, timeout=PATIENCE).status == "completed"


def test_prefetch_can_be_an_option_of_a_type(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    def work(payload: dict[str, Any]) -> None:
        if payload.get("block"):
            gate.enter()

    queue.register("work", work, prefetch=0)
    queue.enqueue_many("work", [*([{}] * 100), {"block": True}, *([{}] * 50)])
    start_worker(concurrency=1)
    gate.wait_entered()
    wait_until(lambda: queue.stats()["completed"] == 100)
    assert queue.stats()["processing"] == 1
