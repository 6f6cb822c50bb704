"""queuectl worker: starting, stopping and listing worker processes."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec

from holdfast.cli.command import DONE, FAILED, Call, Parser, UsageError, command, say
from holdfast.cli.detach import PYTHON, clean_environment, detach, rotation, tell_ready
from holdfast.cli.output import Column, age, print_json, print_line, print_table
from holdfast.cli.supervised import RECONCILE
from holdfast.config import parse_setting, stop_file
from holdfast.core.clock import to_datetime
from holdfast.core.job import check_type
from holdfast.durations import parse_duration
from holdfast.errors import ConfigError, HoldfastError, QueueNotFound
from holdfast.events import Events
from holdfast.facts import slots_of
from holdfast.jobs.process_group import WORKER_MARK, end_marked
from holdfast.observe import log, shapes
from holdfast.observe.overview import MOST_RUNNING
from holdfast.queue import Queue
from holdfast.store.protocol import RESTARTING, Running, StopRequest, WorkerRecord
from holdfast.worker.supervisor import Supervisor

MOST_WORKERS = 1000
_STOP_MARGIN = 10.0
_PAUSE = 0.1


def _start_arguments(parser: Parser) -> None:
    parser.add_argument("--count", metavar="N", type=int, default=1, help="worker processes (1)")
    parser.add_argument(
        "--concurrency", metavar="N", type=int, help="jobs at a time in each (the setting; commands: 1)"
    )
    parser.add_argument("--app", metavar="PKG.MODULE:QUEUE", help="load your handlers from there")
    parser.add_argument("--types", metavar="A,B", help="serve only these types")
    parser.add_argument(
        "--detach", action="store_true", help="return when they are up; they survive the terminal"
    )
    parser.add_argument("--drain", action="store_true", help="end when nothing is left to do")
    no_reconcile_argument(parser)
    parser.add_argument("--log-format", choices=("text", "json"), help="(text on a terminal, JSON elsewhere)")
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)


def no_reconcile_argument(parser: Parser) -> None:
    parser.add_argument(
        "--no-reconcile", action="store_true", help="do not compare completed jobs with the world at start"
    )


@command(
    "queuectl worker start",
    "queuectl worker start --count 3 --detach",
    "queuectl worker start --app shop.jobs:queue --types send_email,shell --concurrency 20",
    "queuectl worker start --drain",
    arguments=_start_arguments,
    makes_queue=True,
)
def start(call: Call) -> int:
    """Run worker processes, in the foreground or detached.

    The first Ctrl-C or SIGTERM stops claiming and lets running jobs finish within shutdown_timeout; the
    second gives them back and exits at once. A process that dies is replaced, and its jobs are freed at once.
    """
    arguments = call.arguments
    options = _options(call)
    refuse_stop_file()
    if arguments.detach:
        return detach(call, options)
    if call.wants_json:
        raise UsageError("queuectl worker start: --json goes with --detach; the log has --log-format json")
    log.configure(options["log_format"])

    def on_ready(ids: list[str]) -> None:
        if not tell_ready(arguments.ready_fd, ids):
            supervisor.stop("nobody waits for it any more")

    supervisor = Supervisor(
        worker_command(options),
        arguments.count,
        events=Events(),
        environment=clean_environment(call.arguments.database),
        told_first={} if arguments.no_reconcile else {RECONCILE: "1"},
        stop_file=stop_file(),
        on_ready=on_ready,
        on_death=end_commands_of,
        tick=rotation() if arguments.ready_fd is not None else lambda: None,
    )
    with signals_to(supervisor):
        return DONE if supervisor.run() else FAILED


def worker_command(options: dict[str, Any]) -> list[str]:
    """What starts a worker process."""
    return [*PYTHON, "holdfast.cli.worker_process", msgspec.json.encode(options).decode()]


def end_commands_of(worker_id: str) -> None:
    """End the commands that a dead worker has left behind."""
    end_marked(f"{WORKER_MARK}={worker_id}")


def _options(call: Call) -> dict[str, Any]:
    """What each worker process is told; wrong values are found here, before any is started."""
    arguments = call.arguments
    if not 1 <= arguments.count <= MOST_WORKERS:
        raise UsageError(
            f"queuectl worker start: --count must be from 1 to {MOST_WORKERS}, not {arguments.count}"
        )
    if arguments.concurrency is not None:
        parse_setting("concurrency", arguments.concurrency)
    types = None
    if arguments.types is not None:
        types = [check_type(type.strip()) for type in arguments.types.split(",")]
    format = arguments.log_format or ("text" if sys.stdout.isatty() else "json")
    return {
        "app": arguments.app,
        "types": types,
        "concurrency": arguments.concurrency,
        "drain": arguments.drain,
        "log_format": format,
    }


def refuse_stop_file() -> None:
    if os.path.lexists(stop_file()):
        raise HoldfastError(f"{stop_file()} exists, which stops all workers", hint="remove it to start some")


@contextmanager
def signals_to(supervisor: Supervisor) -> Iterator[None]:
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


# Stopping and listing.


def _stop_arguments(parser: Parser) -> None:
    parser.add_argument("workers", nargs="*", metavar="ID", help="only these workers")
    parser.add_argument("--timeout", metavar="S", help="how long to wait (shutdown_timeout and 10 s)")
    parser.add_argument("--force", action="store_true", help="give running jobs back and exit at once")
    parser.add_argument("--all-hosts", action="store_true", help="also the workers of other machines")


@command(
    "queuectl worker stop",
    "queuectl worker stop --force --timeout 5s",
    arguments=_stop_arguments,
    prints_data=False,
)
def stop(call: Call) -> int:
    """Ask the workers that run now on this machine to stop, and wait until they have.

    They claim nothing more and finish what they run, within shutdown_timeout.
    """
    arguments = call.arguments
    given_timeout = _given_timeout(call)
    chosen, code = _chosen(call)
    if not chosen:
        if not arguments.workers:
            say("no worker is running" + ("" if arguments.all_hosts else " on this machine"))
        return code
    request = StopRequest.AT_ONCE if arguments.force else StopRequest.IN_ORDER
    call.queue.store.request_stop([worker.id for worker in chosen], request)
    left = {worker.id: worker for worker in chosen}
    timeout = _own_timeout(call) if given_timeout is None else given_timeout
    deadline = time.monotonic() + timeout
    while left and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        alive = {worker.id for worker in call.queue.workers(restarting=True) if not _is_dead(worker)}
        for id in [id for id in left if id not in alive]:
            del left[id]
            print_line(f"{id} stopped")
            sys.stdout.flush()
    for worker in left.values():
        say(f"worker {worker.id} (pid {worker.pid} on {worker.host}) is still running after {timeout:g} s")
    return FAILED if left else code


def _is_dead(worker: WorkerRecord) -> bool:
    """Whether a worker of this machine is certainly gone, though its last heartbeat is not old yet."""
    if worker.host != socket.gethostname() or worker.state == RESTARTING:
        return False
    try:
        os.kill(worker.pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _chosen(call: Call) -> tuple[list[WorkerRecord], int]:
    """The workers to stop, and the exit code so far: ids that name none are failures."""
    arguments = call.arguments
    workers = _running(call)
    if not arguments.workers:
        here = socket.gethostname()
        return [worker for worker in workers if arguments.all_hosts or worker.host == here], DONE
    known = {worker.id: worker for worker in workers}
    for id in arguments.workers:
        if id not in known:
            say(f"there is no running worker {id!r}")
    found = [known[id] for id in arguments.workers if id in known]
    return found, DONE if len(found) == len(arguments.workers) else FAILED


def _running(call: Call) -> list[WorkerRecord]:
    """Where there is no queue, nobody works: what was asked for is so already."""
    try:
        return call.queue.workers(restarting=True)
    except QueueNotFound:
        return []


def _own_timeout(call: Call) -> float:
    return float(call.queue.settings().get("shutdown_timeout")) + _STOP_MARGIN


def _given_timeout(call: Call) -> float | None:
    if call.arguments.timeout is None:
        return None
    try:
        return parse_duration(call.arguments.timeout)
    except ValueError as error:
        raise ConfigError(f"--timeout: {error}") from None


@command("queuectl worker list", "queuectl worker list --json")
def list_workers(call: Call) -> int:
    """List the running workers, and what each is running."""
    queue = call.queue
    workers = queue.workers(restarting=True)
    running = queue.store.list_running(MOST_RUNNING)
    now = to_datetime(queue.store.now())
    if call.wants_json:
        print_json([shapes.worker(worker, running, now) for worker in workers])
        return DONE
    print_table(WORKER_COLUMNS, worker_rows(queue, workers, running, now), empty="no worker is running")
    return DONE


WORKER_COLUMNS = (
    Column("ID", whole=True),
    Column("PID", right=True, whole=True),
    Column("HOST", spare=True),
    Column("STATE"),
    Column("UP", right=True, spare=True),
    Column("BEAT", right=True, whole=True),
    Column("SLOTS", right=True, whole=True),
    Column("RUNNING", below=True),
)


def worker_rows(
    queue: Queue, workers: list[WorkerRecord], running: list[Running], now: datetime
) -> list[tuple[object, ...]]:
    settings = queue.settings()
    jobs: dict[str, list[str]] = {worker.id: [] for worker in workers}
    for job in running:
        jobs.setdefault(job.worker_id, []).append(job.id)
    return [
        (
            worker.id,
            worker.pid,
            worker.host,
            worker.state,
            age(worker.started_at, now),
            age(worker.heartbeat_at, now),
            f"{len(jobs[worker.id])}/{slots_of(worker, settings)}",
            ", ".join(jobs[worker.id]),
        )
        for worker in workers
    ]
