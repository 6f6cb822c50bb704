"""The supervisor of processes: starts workers, replaces those that die, and frees their jobs at once.

It runs no job itself, and loads nothing of the application. Its workers are started anew (never forked), in
sessions of their own: a Ctrl-C at the terminal reaches the supervisor alone, which passes it on. They tell it
over a pipe who they are; and they hold the end of one that closes when it dies, so that none outlives it.
A web server may sit among them: it is started, replaced and stopped as they are, but holds no jobs.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from holdfast import events as e
from holdfast.errors import ConfigError, HoldfastError
from holdfast.worker.caretaker import Caretaker
from holdfast.worker.seat import EXIT_CUT_SHORT, EXIT_EXHAUSTED, EXIT_NOT_STARTED, Notice, Seat

_LOOK = 0.25


class Supervisor:
    """Keeps `count` worker processes running until it is told to stop, or all have ended in order.

    `command` starts one; two descriptors are appended to it, for its notices and its lifeline. `told_first`
    is environment for the very first worker process alone. `on_ready` gets the names of the workers when all
    are up; `on_death` the name of one that died. While `stop_file` exists, the workers stop, and the
    supervisor with them unless there is a `server`. `on_stop` is called once when all are to stop, `tick` a
    few times a second.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        events: e.Events,
        environment: dict[str, str] | None = None,
        told_first: Mapping[str, str] | None = None,
        server: Seat | None = None,
        stop_file: str | None = None,
        on_ready: Callable[[list[str]], None] = lambda _: None,
        on_death: Callable[[str], None] = lambda _: None,
        on_stop: Callable[[], None] = lambda: None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._events = events
        self._stop_file = stop_file
        self._on_ready = on_ready
        self._on_death = on_death
        self._on_stop = on_stop
        self._tick = tick
        self._caretaker = Caretaker(events)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        workers = [
            Seat(command, environment, told_first=None if number else told_first) for number in range(count)
        ]
        # The server first: it stops accepting before anybody stops working.
        self._seats = workers if server is None else [server, *workers]
        self._requests = 0
        self._worker_requests = 0
        self._all_told = False
        self._reason = ""
        self._worker_reason = ""
        self._announced: set[str] = set()
        self._ready = False
        self._failure: Notice | None = None
        self._cut_short = False

    def stop(self, reason: str = "asked to") -> None:
        """Stop the workers in order; said again, at once; a third time, by force. Any thread, or a signal."""
        self._requests += 1
        self._reason = self._reason or reason
        for seat in self._seats:
            seat.tell(self._requests)
        with suppress(OSError):  # it is full, or closed: we have ended
            os.write(self._wake_write, b"\n")

    def _requests_to(self, seat: Seat) -> int:
        """How often a process was to be told to stop."""
        return max(self._requests, self._worker_requests if seat.is_worker else 0)

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
        finally:
            self._close()
        if self._failure is not None:
            raise (ConfigError if self._failure.wrong_usage else HoldfastError)(self._failure.failure)
        return not self._cut_short

    def _start(self, seat: Seat) -> None:
        if self._requests_to(seat):
            seat.is_over = True
            return
        try:
            seat.start()
        except OSError as error:  # no more processes or memory to be had
            seat.failure = Notice(failure=f"it could not be started: {error}")
            self._died(seat, EXIT_NOT_STARTED)
        else:
            self._selector.register(seat.notices, selectors.EVENT_READ, seat)

    def _wait(self) -> None:
        for key, _ in self._selector.select(_LOOK):
            if key.data is None:
                os.read(self._wake_read, 4096)
            elif not key.data.hear():
                self._collect(key.data)
        if not self._ready and all(seat.first for seat in self._seats):
            self._ready = True
            self._on_ready(
                [seat.first.worker_id for seat in self._seats if seat.first and seat.first.worker_id]
            )

    def _look_around(self) -> None:
        self._tick()
        for seat in self._seats:
            # Something that a dead worker had forked may keep its notices open: then they do not end.
            if seat.has_ended():
                seat.hear()
                self._collect(seat)
        if os.getpid() == 1:
            self._collect_orphans()
        if self._stop_file is not None and os.path.lexists(self._stop_file):
            self._stop_workers(f"{self._stop_file} exists")
        if self._requests or self._worker_requests:
            self._pass_on()
        for seat in self._seats:
            if seat.start_at is not None:
                self._rest(seat, seat.start_at)

    def _stop_workers(self, reason: str) -> None:
        """Stop them in order; with them go we, unless there is a server, which goes on taking jobs."""
        if all(seat.is_worker for seat in self._seats):
            if not self._requests:
                self.stop(reason)
        else:
            self._worker_requests = 1
            self._worker_reason = reason

    def _pass_on(self) -> None:
        """Tell the processes what we were told, should one have come up meanwhile."""
        if self._requests and not self._all_told:
            self._all_told = True
            self._on_stop()
        reason = self._reason if self._requests else self._worker_reason
        if reason not in self._announced and self._failure is None:
            running = sum(seat.is_running and seat.is_worker for seat in self._seats)
            self._events.emit(e.SupervisorStopping(workers=running, reason=reason))
        self._announced.add(reason)
        for seat in self._seats:
            seat.tell(self._requests_to(seat))
            if seat.start_at is not None and self._requests_to(seat):
                self._end_rest(seat)
                seat.is_over = True

    def _collect(self, seat: Seat) -> None:
        """A worker process is gone: as it should, to be replaced, or dead."""
        self._selector.unregister(seat.notices)
        code = seat.collect()
        if code != seat.announced:
            self._died(seat, code)
        elif code in (0, EXIT_CUT_SHORT) and not seat.is_worker and not self._requests:
            self._replace(seat, seat.next_pause())  # somebody else has stopped it
        elif code in (0, EXIT_CUT_SHORT):
            self._cut_short = self._cut_short or code == EXIT_CUT_SHORT
            seat.is_over = True
        elif code == EXIT_NOT_STARTED and not self._ready:
            # It would fail again and again: a wrong --app, a database that can't be opened.
            self._failure = self._failure or seat.failure
            seat.is_over = True
            if not self._requests:
                self.stop("a worker process could not start")
        elif code == EXIT_EXHAUSTED:
            worker_id = seat.worker.worker_id if seat.worker else None
            self._events.emit(e.WorkerRecycled(worker_id=worker_id, pid=seat.pid))
            self._replace(seat, 0.0)
        else:
            self._died(seat, code)

    def _died(self, seat: Seat, code: int) -> None:
        worker, pause, requests = seat.worker, seat.next_pause(), self._requests_to(seat)
        if worker is None and requests and code in (-signal.SIGTERM, -signal.SIGINT):
            seat.is_over = True  # by our own signal, before it could listen to it
            return
        how = _how(code) + (f" ({seat.failure.failure})" if seat.failure else "")
        restart_in = None if requests else pause
        if not seat.is_worker:
            self._events.emit(e.ServerDied(pid=seat.pid, how=how, restart_in=restart_in))
            self._replace(seat, pause)
            return
        worker_id = worker.worker_id if worker else None
        self._events.emit(e.WorkerDied(worker_id=worker_id, pid=seat.pid, how=how, restart_in=restart_in))
        if worker is not None:
            self._on_death(worker.worker_id or "")
            self._caretaker.bury(worker, stopping=requests > 0)
            seat.resting = worker
        self._replace(seat, pause)

    def _replace(self, seat: Seat, pause: float) -> None:
        if self._requests_to(seat):
            self._end_rest(seat)
            seat.is_over = True
        else:
            seat.start_at = time.monotonic() + pause

    def _rest(self, seat: Seat, start_at: float) -> None:
        """Wait for the time of the next start; the dead worker may be asked to stop meanwhile."""
        if seat.resting is not None:
            self._caretaker.keep(seat.resting)
            if seat.resting.worker_id in self._caretaker.asked_to_stop:
                self._end_rest(seat)
                seat.is_over = True
                return
        if time.monotonic() >= start_at:
            self._end_rest(seat)
            self._start(seat)

    def _end_rest(self, seat: Seat) -> None:
        resting, seat.resting, seat.start_at = seat.resting, None, None
        if resting is not None:
            self._caretaker.forget(resting)

    def _collect_orphans(self) -> None:
        """As a container's first process we inherit whatever lost its parent, and nobody else collects it."""
        ours = {seat.pid for seat in self._seats if seat.is_running}
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in ours:
                    return  # the next look collects it
                os.waitpid(ended.si_pid, 0)

    def _close(self) -> None:
        """Nobody is left to be stopped, but after a mistake of ours."""
        running = [seat for seat in self._seats if seat.is_running]
        for seat in running:
            seat.tell(1)
        for seat in running:
            seat.collect()
        self._caretaker.close()
        self._cut_short = self._cut_short or self._caretaker.cut_short > 0
        self._selector.close()
        wake_write, self._wake_write = self._wake_write, -1  # a late signal finds nothing to write to
        os.close(wake_write)
        os.close(self._wake_read)


def _how(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
