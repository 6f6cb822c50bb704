"""queuectl worker: starting, stopping and listing worker processes."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time

from holdfast.cli import supervise
from holdfast.cli.command import DONE, FAILED, WRONG_USAGE, Call, Command, UsageError, argument, say
from holdfast.cli.output import print_json, print_line, print_table
from holdfast.cli.status import WORKER_COLUMNS, worker_rows
from holdfast.cli.worker_process import Options
from holdfast.config import parse_setting, stop_file
from holdfast.core.job import check_type
from holdfast.errors import ConfigError, QueueNotFound
from holdfast.events import Events
from holdfast.observe import shapes, words
from holdfast.store.records import RESTARTING, WorkerRecord
from holdfast.supervisor.detach import NotDetached, rotate_log, start_detached, tell_ready
from holdfast.supervisor.supervisor import Supervisor
from holdfast.system.lifeline import PYTHON

_STOP_MARGIN = 10.0
_PAUSE = 0.1


@Command(
    "queuectl worker start",
    "queuectl worker start --count 3 --detach",
    "queuectl worker start --app shop.jobs:queue --types send_email,shell --concurrency 20",
    "queuectl worker start --drain",
    arguments=(
        argument("--count N", "number of worker processes (default: 1)", type=int, default=1),
        argument(
            "--concurrency N",
            "concurrent jobs per process (default: the setting; 1 for shell commands)",
            type=int,
        ),
        supervise.handlers_argument,
        argument("--types A,B", "run only these job types"),
        argument("--detach", "return once the workers are up; they keep running when the terminal closes"),
        argument("--drain", "exit when no jobs are left to run"),
        supervise.no_reconcile_argument,
        *supervise.log_arguments,
        argument("--ready-fd N", argparse.SUPPRESS, type=int),
    ),
    makes_queue=True,
)
def start(call: Call) -> int:
    """Run worker processes, in the foreground or detached.

    The first Ctrl-C or SIGTERM shuts down gracefully: workers claim no more jobs, and running ones may finish
    within shutdown_timeout. A second one releases running jobs and exits immediately. A process that dies is
    replaced: the jobs that it ran are retried after their back-off, those that it only held start at once.
    """
    arguments = call.arguments
    options = _options(call)
    supervise.refuse_stop_file()
    if arguments.detach:
        _detach(call)
        return DONE
    if call.wants_json:
        raise UsageError("--json requires --detach; for JSON logs, use --log-format json")
    options.log.configure()

    def on_ready(ids: list[str]) -> None:
        if not tell_ready(arguments.ready_fd, ids):
            supervisor.stop("the command that started it has exited")

    supervisor = Supervisor(
        supervise.process_command("worker_process", options),
        arguments.count,
        events=Events(),
        environment=supervise.clean_environment(arguments.database),
        reconciles=not arguments.no_reconcile,
        stop_file=stop_file(),
        on_ready=on_ready,
        tick=rotate_log if arguments.ready_fd is not None else lambda: None,
    )
    return supervise.run(supervisor)


def _detach(call: Call) -> None:
    """Run the same command again, detached."""
    arguments = call.arguments
    options = ["--count", str(arguments.count), "--log-format", arguments.log_format or "text"]
    for name in ("app", "types", "concurrency", "log-level"):
        if (value := getattr(arguments, name.replace("-", "_"))) is not None:
            options += [f"--{name}", str(value)]
    options += [
        f"--{name}" for name in ("drain", "no-reconcile") if getattr(arguments, name.replace("-", "_"))
    ]
    try:
        started = start_detached(
            [*PYTHON, "holdfast.cli", "worker", "start", *options, "--ready-fd"],
            supervise.clean_environment(arguments.database),
        )
    except NotDetached as error:
        if error.said is None:
            call.queue.open()  # on a full disk there is no log, but the reason can be found again
        elif error.exit_code == WRONG_USAGE:
            raise ConfigError(error.said) from None
        raise
    count = words.plain_plural(len(started.workers), "worker")
    call.answer(started._asdict(), f"{count} started, supervisor pid {started.pid}, log {started.log}")


def _options(call: Call) -> Options:
    """The options of each worker process; invalid values are rejected here, before any is started."""
    arguments = call.arguments
    call.require_between("count", 1, supervise.MOST_WORKERS)
    if arguments.concurrency is not None:
        parse_setting("concurrency", arguments.concurrency)
    types = None
    if arguments.types is not None:
        types = [check_type(type.strip()) for type in arguments.types.split(",")]
    return Options(
        app=arguments.app,
        types=types,
        concurrency=arguments.concurrency,
        drain=arguments.drain,
        log=supervise.log_options(call),
    )


@Command(
    "queuectl worker stop",
    "queuectl worker stop --force --timeout 5s",
    arguments=(
        argument("workers ID", "only these workers", nargs="*"),
        argument("--timeout S", "how long to wait (default: shutdown_timeout plus 10 s)"),
        argument("--force", "release running jobs and exit immediately"),
        argument("--all-hosts", "include workers on other machines"),
    ),
    prints_data=False,
)
def stop(call: Call) -> int:
    """Shut down the workers on this machine gracefully, and wait until they have stopped.

    They claim no more jobs, and finish the running ones within shutdown_timeout.
    """
    arguments = call.arguments
    timeout = None if arguments.timeout is None else call.seconds("timeout")
    chosen, code = _chosen(call)
    if not chosen:
        if not arguments.workers:
            say("no worker is running" + ("" if arguments.all_hosts else " on this machine"))
        return code
    call.queue.stop_workers([worker.id for worker in chosen], at_once=arguments.force)
    left = {worker.id: worker for worker in chosen}
    if timeout is None:
        timeout = float(call.queue.settings().get("shutdown_timeout")) + _STOP_MARGIN
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
    """Whether a worker on this machine is certainly gone, even though its last heartbeat is recent."""
    if worker.host != socket.gethostname() or worker.state == RESTARTING:
        return False
    try:
        os.kill(worker.pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _chosen(call: Call) -> tuple[list[WorkerRecord], int]:
    """The workers to stop, and the exit code so far: unknown ids count as failures."""
    arguments = call.arguments
    try:
        workers = call.queue.workers(restarting=True)
    except QueueNotFound:  # where there is no queue, nobody works: what was asked for is so already
        workers = []
    if not arguments.workers:
        here = socket.gethostname()
        return [worker for worker in workers if arguments.all_hosts or worker.host == here], DONE
    known = {worker.id: worker for worker in workers}
    for id in arguments.workers:
        if id not in known:
            say(f"there is no running worker {id!r}")
    found = [known[id] for id in arguments.workers if id in known]
    return found, DONE if len(found) == len(arguments.workers) else FAILED


@Command("queuectl worker list", "queuectl worker list --json")
def list_workers(call: Call) -> None:
    """List running workers and their jobs."""
    queue = call.queue
    workers = queue.workers(restarting=True)
    running, now = queue.running(), queue.now()
    if call.wants_json:
        print_json([shapes.worker(worker, running, now) for worker in workers])
    else:
        print_table(WORKER_COLUMNS, worker_rows(queue, workers, running, now), empty="no worker is running")
