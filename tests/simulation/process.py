"""A simulated worker process: the real dispatcher and heartbeat, with simulated handlers around them."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast import events as e
from holdfast.context import Attempt
from holdfast.core.settings import Settings
from holdfast.errors import Fail, Interrupted, Retry, StoreError
from holdfast.handlers.handler import Handler
from holdfast.handlers.registry import Registry
from holdfast.queue.opened import OpenQueue
from holdfast.store.records import NewJob
from holdfast.system.start_marks import Started
from holdfast.worker import dispatcher as dispatcher_module
from holdfast.worker import maintenance, runner
from holdfast.worker.dispatcher import Dispatcher
from holdfast.worker.executors import Executor
from holdfast.worker.following import Options
from holdfast.worker.run import Ending, begin_call, ending_of_error, ending_of_value
from tests.simulation.clock import PRESENT
from tests.simulation.database import Violation
from tests.simulation.store import SimulatedStore

if TYPE_CHECKING:
    from tests.simulation.world import World

MOST_IDLE_TURNS = 50

BASE_TYPES = ("a", "b", "c")


class Killed(BaseException):
    """The process has ended in the middle of what it did."""


class Plan:
    """What a handler that has been called will do."""

    def __init__(self, rng: random.Random, *, has_timeout: bool, is_risky: bool) -> None:
        self.seconds = rng.choice((0.0, 0.001, 0.01, 0.05, 0.3, 1.0, 2.0))
        kinds = ["ok"] * 10 + ["fail", "fail", "retry", "fatal", "child", "progress"]
        if has_timeout:
            kinds += ["never"] * 3
        if is_risky:
            kinds.append("kill")
        self.kind = rng.choice(kinds)
        if self.kind == "never":
            self.seconds = math.inf
        self.can_be_stopped = rng.random() < 0.7
        self.listens = rng.random() < 0.5

    def error(self) -> Exception | None:
        if self.kind == "fail":
            return RuntimeError("a handler's error")
        if self.kind == "retry":
            return Retry("later", delay=0.5)
        if self.kind == "fatal":
            return Fail("for good")
        return None


def _handle(payload: dict[str, Any], ctx: Any) -> Plan:
    return _present_process().call(ctx._attempt)


_DECLARED: tuple[dict[str, dict[str, Any]], ...] = (
    {},
    {"a": {"concurrency": 1}, "b": {"max_running": 2}},
    {"a": {"rate_limit": 4.0}, "c": {"group_concurrency": 1, "fair": True}},
    {"a:x": {"max_running": 1}, "b": {"concurrency": 2, "max_attempts": 2}, "c": {"fair": True}},
)
_HANDLERS = [
    [Handler(type, _handle, whole=True, options=declared.get(type, {})) for type in BASE_TYPES]
    for declared in _DECLARED
]
KINDS_OF_CODE = len(_DECLARED)


def declared_by_code(code: int) -> dict[str, dict[str, Any]]:
    return _DECLARED[code]


class SimulatedEvents(e.Events):
    """Events go to the oracle, and to no logger."""

    def __init__(self, tell: Callable[[e.Event], None]) -> None:
        super().__init__()
        self._tell_oracle = tell

    def emit_all(self, events: Sequence[e.Event]) -> None:
        for event in events:
            self._tell_oracle(event)

    def wanted(self, kind: type[e.Event]) -> bool:
        return kind is not e.JobEnqueued


class SimulatedQueue(OpenQueue):
    """What a worker asks of its queue, over a simulated store."""

    def __init__(self, store: SimulatedStore, events: e.Events, code: int, defaults: dict[str, Any]) -> None:
        self.url = "simulation"
        self.defaults = defaults
        self.events = events
        self.registry = Registry(events)
        for handler in _HANDLERS[code]:
            self.registry.add(handler)
        for type, options in _DECLARED[code].items():
            if type not in BASE_TYPES:
                self.registry.declare(type, **options)
        self._opened = store
        self._settings = None


class SimulatedWatch:
    """Sees the commits of others; it may be told of none, and then it is time that wakes the worker."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._seen = process.world.commits

    def wait(self, timeout: float) -> None:
        self._process.sleep(timeout)

    def changed(self) -> bool:
        process = self._process
        commits = process.world.commits - process.own_commits
        changed, self._seen = commits != self._seen, commits
        return changed and not process.is_deaf

    def wake(self) -> None:
        self._process.wake(0.0)

    def close(self) -> None:
        pass


class SimulatedExecutor(Executor):
    """Handlers that take simulated time."""

    def __init__(self, report: Any, store: Any, context: Any = None, **_: Any) -> None:
        super().__init__(report, store, context)
        self._process: Process = store.client

    def start(self, attempt: Attempt) -> None:
        rng = self._process.rng
        delay = rng.random() if rng.random() < 0.05 else rng.random() * 0.002
        self._process.note_settings(attempt)
        self._process.later(delay, partial(self._begin, attempt))

    def ask(self, attempt: Attempt) -> None:
        plan = attempt.handle
        if plan is not None and plan.listens:
            self._process.later(self._process.rng.random(), partial(self._stop, attempt))

    def interrupt(self, attempt: Attempt) -> bool:
        plan = attempt.handle
        if plan is None or not plan.can_be_stopped:
            return False
        self._process.later(self._process.rng.random() * 0.5, partial(self._stop, attempt))
        return True

    def close(self) -> None:
        pass

    def _begin(self, attempt: Attempt) -> None:
        attempt.start(self._store.now)
        value = begin_call(attempt)
        if not isinstance(value, Plan):
            self._end(attempt, value)
            return
        attempt.handle = value
        if value.kind == "progress" and attempt.on_progress is not None:
            attempt.on_progress(attempt, 0.5, None)
        if value.seconds < math.inf:
            self._process.later(value.seconds, partial(self._return, attempt, value))

    def _return(self, attempt: Attempt, plan: Plan) -> None:
        if attempt.handle is not plan:
            return  # it was stopped before
        if plan.kind == "kill":
            self._process.is_dead = True
            self._process.world.faults.note("killed by its handler", self._process.id)
            return
        if plan.kind == "child":
            attempt.children.append(self._process.world.child_of(attempt.claim.id))
        error = plan.error()
        ending = ending_of_value(attempt, None) if error is None else ending_of_error(attempt, error)
        self._end(attempt, ending)

    def _stop(self, attempt: Attempt) -> None:
        """The handler sees at a safe point that it should stop."""
        if attempt.handle is not None and attempt.stop_reason is not None:
            self._end(attempt, ending_of_error(attempt, Interrupted(attempt.stop_reason)))

    def _end(self, attempt: Attempt, ending: Ending) -> None:
        attempt.handle = None
        self._process.world.oracle.returned(self._process, attempt)
        following = self._report(attempt, ending)
        if following is not None:
            self._begin(following)


class SimulatedMarks:
    """The marks of started handlers, which survive their process, for those on the same host."""

    trouble = None

    def __init__(self, _worker_id: str) -> None:
        self._marks = _present_process().marks
        self._places = itertools.count(1)

    def begin(self, seq: int, version: int) -> int | None:
        place = next(self._places)
        self._marks[place] = seq, version
        return place

    def end(self, places: Iterable[int | None]) -> None:
        for place in filter(None, places):
            del self._marks[place]

    def touch(self) -> None:
        pass

    def close(self, *, keep: bool) -> None:
        pass


def _read_started(worker_id: str) -> Started | None:
    reader = _present_process()
    worker = next(process for process in reader.world.processes if process.id == worker_id)
    return Started(frozenset(worker.marks.values()), True) if worker.host == reader.host else None


def _present_process() -> Process:
    assert isinstance(PRESENT.machine, Process)
    return PRESENT.machine


@contextmanager
def simulated_executors() -> Iterator[None]:
    """Every worker that is made meanwhile runs its handlers in simulated time, and marks starts here."""
    executors = ("ThreadExecutor", "LoopExecutor", "ProcessExecutor")
    stand_ins: dict[tuple[Any, str], Any] = {(runner, name): SimulatedExecutor for name in executors}
    stand_ins[dispatcher_module, "StartMarks"] = SimulatedMarks
    stand_ins[maintenance, "read_started"] = _read_started
    stand_ins[maintenance, "remove_marks"] = lambda _: None
    real = {place: getattr(*place) for place in stand_ins}
    for (module, name), stand_in in stand_ins.items():
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for (module, name), value in real.items():
            setattr(module, name, value)


class Process:
    """One worker process, and its place in the scheduler. Its memory is gone when it is killed."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.rng = world.rng
        self.id = f"w{number}"
        self.skew = 0
        self.host = world.rng.randrange(2) if world.is_shared else 0
        self.marks: dict[int, tuple[int, int]] = {}
        self.own_commits = 0
        self.is_deaf = False
        """Whether notifications of commits do not reach it."""
        self.is_dead = False
        self.is_stepping = self.is_beating = False
        self.suspended_until = 0.0
        self._stood_still = 0.0
        """How long its monotonic clock stood still: while the machine was asleep."""
        self.next_step = world.now
        self.next_beat = math.inf
        self._idle_turns: deque[float] = deque(maxlen=MOST_IDLE_TURNS)
        self.slots_under: dict[Attempt, Settings] = {}
        self.running: dict[Attempt, Settings] = {}
        """The attempts whose handlers have not returned, and the settings under which each was started."""
        self._dispatcher: Dispatcher | None = None
        self.store = SimulatedStore(world.database, self, is_shared=world.is_shared)
        self.store.client = self  # type: ignore[attr-defined]

    # Its clocks.

    def monotonic(self) -> float:
        return self.world.now - self._stood_still

    def lease_clock(self) -> float:
        return self.world.now + 77.0

    def sleep(self, seconds: float) -> None:
        self.next_step = self.world.now + max(seconds, 0.0005)

    def wake(self, delay: float) -> None:
        self.next_step = min(self.next_step, self.world.now + delay)

    def suspend(self, seconds: float, *, whole_machine: bool) -> None:
        self.suspended_until = max(self.suspended_until, self.world.now + seconds)
        if whole_machine:
            self._stood_still += seconds

    # As a client of the store.

    def watch(self) -> SimulatedWatch:
        return SimulatedWatch(self)

    def before_call(self, what: str, *, writes: bool) -> str:
        if self.is_dead:
            raise Killed
        fate, delay = self.world.faults.draw(self, what, writes=writes)
        if delay:
            self._stand_by(delay)
        return fate

    def committed(self, *, wakes: bool, is_empty: bool) -> None:
        if is_empty:
            self._check_idle()
        else:
            self.own_commits += not self.is_beating
            self.world.committed(self, wakes=wakes)
        delay = self.world.faults.answer_delay(self)
        if delay:
            self._stand_by(delay)
        if self.is_dead:
            raise Killed

    def _check_idle(self) -> None:
        """A worker opens no transaction after another for nothing."""
        self._idle_turns.append(self.world.now)
        if len(self._idle_turns) == MOST_IDLE_TURNS and self.world.now - self._idle_turns[0] < 1.0:
            raise Violation(f"{self.id} spins: {MOST_IDLE_TURNS} transactions for nothing within a second")

    def _stand_by(self, seconds: float) -> None:
        """Everything else goes on, meanwhile even the other threads of this process."""
        before = PRESENT.machine
        self.world.run_until(self.world.now + seconds)
        while not self.is_dead and self.suspended_until > self.world.now:
            self.world.run_until(self.suspended_until)
        PRESENT.machine = before
        if self.is_dead:
            raise Killed

    # What it does.

    @property
    def dispatcher(self) -> Dispatcher:
        assert self._dispatcher is not None
        return self._dispatcher

    @property
    def is_up(self) -> bool:
        return self._dispatcher is not None and not self.is_dead

    def later(self, delay: float, call: Callable[[], None]) -> None:
        """What happens in a handler's thread."""
        self.world.later(self, delay, call)

    def note_settings(self, attempt: Attempt) -> None:
        """It has got its slot under the settings as they are: its handler may begin under others."""
        self.slots_under.setdefault(attempt, self.dispatcher.lease_settings())

    def call(self, attempt: Attempt) -> Plan:
        """The handler of an attempt is called."""
        self.note_settings(attempt)
        self.world.oracle.called(self, attempt)
        has_timeout = attempt.claim.timeout is not None
        return Plan(self.rng, has_timeout=has_timeout, is_risky=not self.world.faults.are_over)

    def step(self) -> None:
        """One round of the dispatcher's loop; the first one starts the process."""
        self.is_stepping = True
        try:
            if self._dispatcher is None:
                self._start()
            else:
                self._go_round(self._dispatcher)
        except StoreError:
            self.sleep(0.5)  # it could not even start
        except Killed:
            pass
        finally:
            self.is_stepping = False

    def _start(self) -> None:
        world = self.world
        events = SimulatedEvents(partial(world.oracle.told, self))
        queue = SimulatedQueue(self.store, events, world.code, world.defaults)
        dispatcher = Dispatcher(queue, self.id, Options(recycle=True))  # type: ignore[arg-type]
        self._dispatcher = dispatcher
        try:
            dispatcher._register()
        except StoreError as error:
            dispatcher._cope_with(error)
        self.next_beat = world.now + self.rng.random()
        self._go_round(dispatcher)

    def _go_round(self, dispatcher: Dispatcher) -> None:
        dispatcher._step()
        if dispatcher._is_done():
            dispatcher._leave()
            dispatcher.close()
            self.is_dead = True
            self.world.oracle.left(self)
        else:
            dispatcher._sleep()

    def beat(self) -> None:
        self.is_beating = True
        try:
            pause = self.dispatcher.heartbeat.beat()
            self.next_beat = self.world.now + max(pause, 0.01)
        except Killed:
            pass
        finally:
            self.is_beating = False

    def stop(self, timeout: float | None) -> None:
        self.dispatcher.stop(timeout)

    def is_ours(self, attempt: Attempt) -> bool:
        return self.lease_clock() < attempt.leased_until


def new_job(number: int, type: str, **options: Any) -> NewJob:
    return NewJob(id=f"j{number}", type=type, payload="{}", token=f"t{number}", **options)
