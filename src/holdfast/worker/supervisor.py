"""The supervisor of worker processes: starts them, replaces those that die, and frees their jobs at once.

It runs no job itself, and loads nothing of the application. Its workers are started anew (never forked), in
sessions of their own: a Ctrl-C at the terminal reaches the supervisor alone, which passes it on. They tell it
over a pipe who they are; and they hold the end of one that closes when it dies, so that none outlives it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from holdfast import events as e
from holdfast.core.ids import new_id
from holdfast.core.job import Status
from holdfast.errors import ConfigError, HoldfastError, StoreError
from holdfast.queue import Queue
from holdfast.store.protocol import Expired, StopRequest
from holdfast.worker.maintenance import count_loss, events_of_loss, reap
from holdfast.worker.statistics import Statistics

EXIT_CUT_SHORT = 1
EXIT_NOT_STARTED = 2
EXIT_EXHAUSTED = 3

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a worker that died is replaced: the first, doubled each time, up to the longest."""

LONG_ENOUGH = 60.0
"""Seconds after which a worker's death is the first again."""

_LOOK, _BEAT = 0.25, 1.0
# Different ones: two equal signals that come together are one to the kernel. A worker takes them alike.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)


class Report(Struct, frozen=True, omit_defaults=True):
    """What a worker process says: its name and database when it is up, or why it can't be, and how it ends.

    One that exits without the latter has died, whatever its exit code: a handler may have called exit.
    """

    worker_id: str | None = None
    database: str = ""
    failure: str | None = None
    wrong_usage: bool = False
    exit_code: int | None = None


class Supervisor:
    """Keeps `count` worker processes running until it is told to stop, or all have ended in order.

    `command` starts one; two descriptors are appended to it, for its reports and its lifeline. `on_ready`
    gets the names of the workers when all are up; `on_death` the name of one that died. While `stop_file`
    exists, it stops. `tick` is called a few times a second.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        events: e.Events,
        environment: dict[str, str] | None = None,
        stop_file: str | None = None,
        on_ready: Callable[[list[str]], None] = lambda _: None,
        on_death: Callable[[str], None] = lambda _: None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._events = events
        self._stop_file = stop_file
        self._on_ready = on_ready
        self._on_death = on_death
        self._tick = tick
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._seats = [Seat(command, environment) for _ in range(count)]
        self._requests = 0
        self._passed_on = 0
        self._reason = ""
        self._ready = False
        self._failure: Report | None = None
        self._unfreed: list[Report] = []
        self._queues: dict[str, Queue] = {}
        self._statistics = Statistics(new_id())
        self._cut_short = False

    def stop(self, reason: str = "asked to") -> None:
        """Stop the workers in order; said again, at once; a third time, by force. Any thread, or a signal."""
        self._requests += 1
        self._reason = self._reason or reason
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"\n")

    def run(self) -> bool:
        """Supervise until all workers have ended; returns whether none had to cut jobs short.

        Raises HoldfastError if no worker could be started.
        """
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        try:
            for seat in self._seats:
                self._start(seat)
            while any(not seat.is_over for seat in self._seats):
                self._wait()
                self._look_around()
            self._free()
        finally:
            self._close()
        if self._failure is not None:
            raise (ConfigError if self._failure.wrong_usage else HoldfastError)(self._failure.failure)
        return not self._cut_short

    def _start(self, seat: Seat) -> None:
        try:
            seat.start()
        except OSError as error:  # no more processes or memory to be had
            seat.failure = Report(failure=f"it could not be started: {error}")
            self._died(seat, EXIT_NOT_STARTED, Report())
        else:
            self._selector.register(seat.reports, selectors.EVENT_READ, seat)

    def _wait(self) -> None:
        for key, _ in self._selector.select(_LOOK):
            if key.data is None:
                os.read(self._wake_read, 4096)
            else:
                self._hear(key.data)

    def _hear(self, seat: Seat) -> None:
        reports = seat.read()
        if reports is None:
            self._collect(seat)
            return
        self._note(seat, reports)

    def _note(self, seat: Seat, reports: Sequence[Report]) -> None:
        for report in reports:
            if report.exit_code is not None:
                seat.announced = report.exit_code
            elif report.failure is not None:
                seat.failure = report
            else:
                seat.worker = report
                seat.first_id = seat.first_id or report.worker_id
        if not self._ready and all(seat.first_id for seat in self._seats):
            self._ready = True
            self._on_ready([seat.first_id or "" for seat in self._seats])

    def _collect(self, seat: Seat) -> None:
        self._selector.unregister(seat.reports)
        self._ended(seat, seat.collect())

    def _find_dead(self) -> None:
        """A worker may die while something it forked keeps its reports open: then they do not end."""
        for seat in self._seats:
            if seat.has_ended():
                self._note(seat, seat.read() or [])
                self._collect(seat)

    def _ended(self, seat: Seat, code: int) -> None:
        """A worker process is gone: as it should, to be replaced, or dead."""
        worker, seat.worker = seat.worker or Report(), None
        if code != seat.announced:
            self._died(seat, code, worker)
        elif code in (0, EXIT_CUT_SHORT):
            self._cut_short = self._cut_short or code == EXIT_CUT_SHORT
            seat.is_over = True
        elif code == EXIT_NOT_STARTED and not self._ready:
            # It would fail again and again: a wrong --app, a database that can't be opened.
            self._failure = (
                self._failure or seat.failure or Report(failure="a worker process could not start")
            )
            seat.is_over = True
            if not self._requests:
                self.stop("a worker process could not start")
        elif code == EXIT_EXHAUSTED:
            self._events.emit(e.WorkerRecycled(worker_id=worker.worker_id, pid=seat.pid))
            self._replace(seat, 0.0)
        else:
            self._died(seat, code, worker)

    def _died(self, seat: Seat, code: int, worker: Report) -> None:
        if worker.worker_id is not None:
            self._unfreed.append(worker)
            self._on_death(worker.worker_id)
            self._free()
            seat.resting, seat.look_at = worker, 0.0
        pause = seat.next_pause()
        self._events.emit(
            e.WorkerDied(
                worker_id=worker.worker_id,
                pid=seat.pid,
                how=_how(code) + (f" ({seat.failure.failure})" if seat.failure else ""),
                restart_in=None if self._requests else pause,
            )
        )
        self._replace(seat, pause)

    def _replace(self, seat: Seat, pause: float) -> None:
        if self._requests:
            self._end_rest(seat)
            seat.is_over = True
        else:
            seat.start_at = time.monotonic() + pause

    def _look_around(self) -> None:
        self._tick()
        self._find_dead()
        if os.getpid() == 1:
            self._collect_orphans()
        if self._stop_file is not None and not self._requests and os.path.lexists(self._stop_file):
            self.stop(f"{self._stop_file} exists")
        if self._requests > self._passed_on:
            self._pass_on()
        if self._unfreed:
            self._free()
        for seat in self._seats:
            if seat.start_at is not None:
                self._rest(seat)

    def _rest(self, seat: Seat) -> None:
        """Between a death and the next start the dead worker's row stays, so that it can be asked to stop."""
        resting, now = seat.resting, time.monotonic()
        if resting is not None and now >= seat.look_at:
            seat.look_at = now + _BEAT
            with suppress(StoreError):
                self._stand_in_for(seat, resting)
        if seat.start_at is not None and now >= seat.start_at:
            self._end_rest(seat)
            self._start(seat)

    def _stand_in_for(self, seat: Seat, resting: Report) -> None:
        queue, worker_id = self._queue(resting.database), resting.worker_id or ""
        queue.store.heartbeat(worker_id, (), state="restarting", lease_seconds=queue.settings().lease_seconds)
        if queue.store.get_stop_request(worker_id) is not StopRequest.NONE:
            self._end_rest(seat)
            seat.is_over = True

    def _end_rest(self, seat: Seat) -> None:
        resting, seat.resting, seat.start_at = seat.resting, None, None
        if resting is not None:
            with suppress(StoreError):  # else it is forgotten when it has been silent for long
                self._queue(resting.database).store.remove_workers([resting.worker_id or ""])

    def _collect_orphans(self) -> None:
        """As a container's first process we inherit whatever lost its parent, and nobody else collects it."""
        ours = {seat.pid for seat in self._seats if seat.is_running}
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in ours:
                    return  # its reports end, too, and tell us
                os.waitpid(ended.si_pid, 0)

    def _pass_on(self) -> None:
        """Tell the workers what we were told."""
        if not self._passed_on and self._failure is None:
            running = sum(seat.is_running for seat in self._seats)
            self._events.emit(e.SupervisorStopping(workers=running, reason=self._reason))
        requests = self._requests  # a signal may raise it meanwhile
        for seat in self._seats:
            if seat.start_at is not None:
                self._end_rest(seat)
                seat.is_over = True
            for number in range(self._passed_on, requests):
                seat.signal(_SIGNALS[min(number, 2)])
        self._passed_on = requests

    def _free(self) -> None:
        """Give the jobs of dead workers back. Their exit status was collected, so there is nobody to ask."""
        while self._unfreed:
            worker_id = self._unfreed[0].worker_id or ""
            try:
                freed = self._free_worker(worker_id, self._unfreed[0].database)
            except StoreError:
                return  # the next look tries again; at worst the leases run out
            del self._unfreed[0]
            self._cut_short = self._cut_short or bool(self._requests and freed)
            for lost, status in freed:
                for event in events_of_loss(lost, status):
                    self._events.emit(event)

    def _queue(self, database: str) -> Queue:
        if database not in self._queues:
            self._queues[database] = Queue(database)
        return self._queues[database]

    def _free_worker(self, worker_id: str, database: str) -> list[tuple[Expired, Status]]:
        queue = self._queue(database)
        store = queue.store
        with store.transaction():
            held = store.list_held(worker_id)
            freed = reap(store, held, queue.refresh_settings(), expired_only=False)
            now = store.now()
            for lost, status in freed:
                count_loss(self._statistics, lost.type, status, now)
            store.write_statistics(self._statistics.changed())
        self._statistics.written(now)
        return freed

    def _close(self) -> None:
        for seat in self._seats:
            seat.signal(signal.SIGTERM)  # nobody is left, but after a mistake of ours
        for seat in self._seats:
            seat.close()
        for queue in self._queues.values():
            queue.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


class Seat:
    """The place of one worker process, which several may take one after another."""

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None) -> None:
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._lifeline = -1
        self._started = 0.0
        self._pause = 0.0
        self.reports = -1
        self.pid = 0
        self.worker: Report | None = None
        self.failure: Report | None = None
        self.announced: int | None = None
        self.first_id: str | None = None
        self.resting: Report | None = None
        self.look_at = 0.0
        self.start_at: float | None = None
        self.is_over = False

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        self.start_at = None
        self.failure = None
        self.announced = None
        self._buffer = b""
        self.reports, theirs = os.pipe()
        os.set_blocking(self.reports, False)
        lifeline, self._lifeline = os.pipe()
        try:
            process = subprocess.Popen(
                [*self._command, str(theirs), str(lifeline)],
                pass_fds=(theirs, lifeline),
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )
        except OSError:
            os.close(self.reports)
            os.close(self._lifeline)
            raise
        finally:
            os.close(theirs)
            os.close(lifeline)
        self._process = process
        self.pid = process.pid
        self._started = time.monotonic()

    def read(self) -> list[Report] | None:
        """What the process has reported since, or None when it has ended."""
        try:
            data = os.read(self.reports, 65_536)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [msgspec.json.decode(line, type=Report) for line in lines]

    def collect(self) -> int:
        """The exit status of a process whose reports have ended."""
        assert self._process is not None
        code = self._process.wait()
        self.close()
        return code

    def close(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
            os.close(self.reports)
            os.close(self._lifeline)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def next_pause(self) -> float:
        """How long to wait before the next start: longer each time, unless this one has lived for long."""
        lived = time.monotonic() - self._started
        first = lived >= LONG_ENOUGH or not self._pause
        self._pause = FIRST_PAUSE if first else min(2 * self._pause, LONGEST_PAUSE)
        return self._pause


def _how(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
