"""The supervisor of processes: starts workers, replaces those that die, and frees their jobs at once.

It runs no jobs itself and loads none of the application's code. Its workers are new processes, never forks,
in their own sessions: a Ctrl-C in the terminal reaches only the supervisor, which passes it on. They report
their ids over a pipe, and hold the end of another pipe that closes when the supervisor dies, so that none
outlives it. A web server may be among them: it is started, replaced and stopped like a worker, but holds no
jobs.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from holdfast import events as e
from holdfast.errors import ConfigError, HoldfastError
from holdfast.supervisor.dead_workers import DeadWorkers
from holdfast.supervisor.process import EXIT_CUT_SHORT, EXIT_EXHAUSTED, EXIT_NOT_STARTED, Notice, Process
from holdfast.system.process_group import end_processes_of

_POLL_SECONDS = 0.25


class Supervisor:
    """Keeps `count` worker processes running until it is told to stop, or all have ended in order.

    `command` starts one; two descriptors are appended to it, for its notices and its lifeline. The very first
    worker process `reconciles`. `on_ready` gets the names of the workers when all are up. While `stop_file`
    exists, the workers stop, and the supervisor with them unless there is a `server`. `on_stop` is called
    once when all are to stop, `tick` a few times a second.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        events: e.Events,
        environment: dict[str, str] | None = None,
        reconciles: bool = False,
        server: Process | None = None,
        stop_file: str | None = None,
        on_ready: Callable[[list[str]], None] = lambda _: None,
        on_stop: Callable[[], None] = lambda: None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._events = events
        self._stop_file = stop_file
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._tick = tick
        self._dead_workers = DeadWorkers(events)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        workers = [
            Process(command, environment, reconciles=reconciles and not number) for number in range(count)
        ]
        # The server first: it stops accepting before anybody stops working.
        self._processes = workers if server is None else [server, *workers]
        self._requests = 0
        self._worker_requests = 0
        self._all_told = False
        self._reasons: deque[str] = deque()
        """Why it stops, as far as that is not announced yet."""
        self._ready = False
        self._failure: Notice | None = None
        self._cut_short = False

    def stop(self, reason: str = "asked to") -> None:
        """Stop the workers gracefully; the second call stops them at once, the third by force.

        May be called from any thread or signal handler.
        """
        self._requests += 1
        if self._requests == 1:
            self._reasons.append(reason)
        for process in self._processes:
            process.tell(self._requests)
        with suppress(OSError):  # it is full, or closed: we have ended
            os.write(self._wake_write, b"\n")

    def _requests_to(self, process: Process) -> int:
        """How many times the processes were told to stop."""
        return max(self._requests, self._worker_requests if process.is_worker else 0)

    def run(self) -> bool:
        """Supervise until all workers have ended; returns whether none had to cut jobs short.

        Raises HoldfastError if no worker could be started.
        """
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        try:
            for process in self._processes:
                self._start(process)
            while any(not process.is_over for process in self._processes):
                self._wait()
                self._look_around()
        finally:
            self._close()
        if self._failure is not None:
            raise (ConfigError if self._failure.wrong_usage else HoldfastError)(self._failure.failure)
        return not self._cut_short

    def _start(self, process: Process) -> None:
        if self._requests_to(process):
            process.is_over = True
            return
        try:
            process.start()
        except OSError as error:  # no process can be started, or no memory is left
            process.failure = Notice(failure=f"it could not be started: {error}")
            self._died(process, EXIT_NOT_STARTED)
        else:
            self._selector.register(process.notices, selectors.EVENT_READ, process)

    def _wait(self) -> None:
        for key, _ in self._selector.select(_POLL_SECONDS):
            if key.data is None:
                os.read(self._wake_read, 4096)
            elif not key.data.hear():
                self._collect(key.data)
        if not self._ready and all(process.first for process in self._processes):
            self._ready = True
            said = (process.first for process in self._processes)
            self._on_ready([notice.worker_id for notice in said if notice and notice.worker_id])

    def _look_around(self) -> None:
        self._tick()
        for process in self._processes:
            # Something that a dead worker had forked may keep its notices open: then they do not end.
            if process.has_ended():
                process.hear()
                self._collect(process)
        if os.getpid() == 1:
            self._collect_orphans()
        if self._stop_file is not None and os.path.lexists(self._stop_file):
            self._stop_workers(f"{self._stop_file} exists")
        if self._requests or self._worker_requests:
            self._pass_on()
        for process in self._processes:
            if process.start_at is not None:
                self._wait_to_start(process, process.start_at)

    def _stop_workers(self, reason: str) -> None:
        """Stop the workers gracefully; then exit, unless we also run a server, which keeps accepting jobs."""
        if all(process.is_worker for process in self._processes):
            if not self._requests:
                self.stop(reason)
        elif not self._worker_requests:
            self._worker_requests = 1
            self._reasons.append(reason)

    def _pass_on(self) -> None:
        """Tell the processes what we were told, should one have come up meanwhile."""
        if self._requests and not self._all_told:
            self._all_told = True
            self._on_stop()
        while self._reasons:
            reason = self._reasons.popleft()
            if self._failure is None:
                running = sum(process.is_running and process.is_worker for process in self._processes)
                self._events.emit(e.SupervisorStopping(workers=running, reason=reason))
        for process in self._processes:
            process.tell(self._requests_to(process))
            if process.start_at is not None and self._requests_to(process):
                self._give_up(process)

    def _collect(self, process: Process) -> None:
        """A worker process is gone: as it should, to be replaced, or dead."""
        self._selector.unregister(process.notices)
        code = process.collect()
        if code != process.announced:
            self._died(process, code)
        elif code in (0, EXIT_CUT_SHORT) and not process.is_worker and not self._requests:
            self._replace(process, process.next_pause())  # somebody else has stopped it
        elif code in (0, EXIT_CUT_SHORT):
            self._cut_short = self._cut_short or code == EXIT_CUT_SHORT
            process.is_over = True
        elif code == EXIT_NOT_STARTED and not self._ready:
            # It would fail again and again: a wrong --app, a database that can't be opened.
            self._failure = self._failure or process.failure
            process.is_over = True
            if not self._requests:
                self.stop("a worker process could not start")
        elif code == EXIT_EXHAUSTED:
            worker_id = process.worker.worker_id if process.worker else None
            self._events.emit(e.WorkerRecycled(worker_id=worker_id, pid=process.pid))
            self._replace(process, 0.0)
        else:
            self._died(process, code)

    def _died(self, process: Process, code: int) -> None:
        worker, pause, requests = process.worker, process.next_pause(), self._requests_to(process)
        if worker is None and requests and code in (-signal.SIGTERM, -signal.SIGINT):
            process.is_over = True  # by our own signal, before it could listen to it
            return
        how = _how(code) + (f" ({process.failure.failure})" if process.failure else "")
        restart_in = None if requests else pause
        if not process.is_worker:
            self._events.emit(e.ServerDied(pid=process.pid, how=how, restart_in=restart_in))
            self._replace(process, pause)
            return
        worker_id = worker.worker_id if worker else None
        self._events.emit(e.WorkerDied(worker_id=worker_id, pid=process.pid, how=how, restart_in=restart_in))
        if worker is not None:
            end_processes_of(worker.worker_id or "")
            self._dead_workers.free_jobs(worker, stopping=requests > 0)
            process.dead_worker = worker
        self._replace(process, pause)

    def _replace(self, process: Process, pause: float) -> None:
        if self._requests_to(process):
            self._give_up(process)
        else:
            process.start_at = time.monotonic() + pause

    def _wait_to_start(self, process: Process, start_at: float) -> None:
        """Wait for the time of the next start; the dead worker may be asked to stop meanwhile."""
        if process.dead_worker is not None:
            self._dead_workers.keep_row(process.dead_worker)
            if process.dead_worker.worker_id in self._dead_workers.asked_to_stop:
                self._give_up(process)
                return
        if time.monotonic() >= start_at:
            self._end_wait(process)
            self._start(process)

    def _give_up(self, process: Process) -> None:
        """A worker that was due to be replaced no longer is."""
        self._end_wait(process)
        process.is_over = True

    def _end_wait(self, process: Process) -> None:
        dead_worker, process.dead_worker, process.start_at = process.dead_worker, None, None
        if dead_worker is not None:
            self._dead_workers.remove_row(dead_worker)

    def _collect_orphans(self) -> None:
        """As a container's first process we inherit whatever lost its parent, and nobody else collects it."""
        ours = {process.pid for process in self._processes if process.is_running}
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in ours:
                    return  # the next look collects it
                os.waitpid(ended.si_pid, 0)

    def _close(self) -> None:
        """Nobody is left to be stopped, but after a mistake of ours."""
        running = [process for process in self._processes if process.is_running]
        for process in running:
            process.tell(1)
        for process in running:
            process.collect()
        self._dead_workers.close()
        self._cut_short = self._cut_short or self._dead_workers.cut_short > 0
        self._selector.close()
        wake_write, self._wake_write = self._wake_write, -1  # a late signal finds nothing to write to
        os.close(wake_write)
        os.close(self._wake_read)


@contextmanager
def signals_to(supervisor: Supervisor) -> Iterator[None]:
    """Let signals stop a supervisor while it runs."""

    def stop(number: int, _: object) -> None:
        supervisor.stop(signal.Signals(number).name)

    # Where the end of children is ignored, nobody learns how one ended.
    before = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL)}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _how(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
