"""A soak: `make soak ARGS=45m` works both engines for that long under load, and lets nothing go undisturbed.

Workers and producers are killed, suspended for up to three leases and restarted at random instants. On
PostgreSQL connections are cut and the server is restarted and killed; on SQLite an application holds the
write lock. It goes in rounds: after each the faults stop, everything has to finish, the oracle checks the
invariants, and the finished jobs are deleted. One worker and one producer are never killed or suspended:
their memory must not grow, and the rate must not fall. The exit status is 1 if anything is wrong; then the
logs are kept.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from holdfast import Queue
from holdfast.durations import parse_duration
from holdfast.handlers.options import Defaults
from tests.postgres import Server, share_server, with_parameters
from tests.process import oracle
from tests.process.app import MAX_RUNNING, RATE
from tests.process.oracle import Database
from tests.process.postgres_database import PostgresDatabase, own_url
from tests.process.programs import Program, Programs
from tests.support import wait_until

ROUND = 45.0
"""Seconds of load and faults between two checks."""

LEASE = 5.0
LONGEST_PAUSE = 3 * LEASE
RESTARTED = LEASE + 15.0
"""Seconds within which a job of a lost worker runs elsewhere."""

BETWEEN_FAULTS = (0.2, 1.6)
WORKERS, PRODUCERS = 3, 2
TYPES = {
    "work": 60,
    "work_async": 20,
    "work_in_process": 1,
    "limited": 5,
    "rated": 5,
    "insert_row": 8,
    "parent": 1,
}
DEFAULTS: Defaults = {
    "lease_seconds": LEASE,
    "heartbeat_interval": 1,
    "max_attempts": 50,
    "backoff_factor": 0.01,
}
OUTAGES = {"StoreBusy", "StoreUnavailable", "ConnectionLost"}
"""What a producer may be told when the database is locked or gone."""

Fault = Callable[[], None]


class Engine:
    """A database of the soak, and the faults that are its own."""

    name: str
    url: str
    database: Database
    can_be_away: bool
    """Whether nobody can reach it during a long fault, so that any job may be taken over after it."""

    def faults(self) -> Mapping[Fault, int]:
        """What can be done to it, with weights."""
        raise NotImplementedError

    def close(self) -> None:
        self.database.close()


class SQLiteEngine(Engine):
    name = "sqlite"
    can_be_away = False  # who is only kept from writing keeps its jobs

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._path = folder / "queue.db"
        self._chance = chance
        self.url = f"sqlite:///{self._path}"
        self.database = Database(self._path)

    def faults(self) -> Mapping[Fault, int]:
        return {self.hold_the_write_lock: 2}

    def hold_the_write_lock(self) -> None:
        with closing(
            sqlite3.connect(self._path, isolation_level=None, timeout=LONGEST_PAUSE + 5)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(self._chance.uniform(0.1, 0.8 * LEASE))
            connection.execute("ROLLBACK")


class PostgresEngine(Engine):
    name = "postgres"
    can_be_away = True
    database: PostgresDatabase

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._chance = chance
        self._server = Server(folder / "server")
        self._server.make()
        self._server.start()
        self.url = own_url(with_parameters(self._server.url, schema="jobs"), "soak")
        self.database = PostgresDatabase(self.url)

    def faults(self) -> Mapping[Fault, int]:
        return {self.cut_a_connection: 20, self.restart_the_server: 1, self.kill_the_server: 1}

    def cut_a_connection(self) -> None:
        busy = self.database.backends("state <> 'idle'") if self._chance.random() < 0.5 else []
        if backends := busy or self.database.backends():
            self.database.terminate(self._chance.choice(backends))

    def restart_the_server(self) -> None:
        self._server.stop("fast")
        self._server.start()

    def kill_the_server(self) -> None:
        self._server.kill()
        self._server.start()

    def close(self) -> None:
        super().close()
        self._server.stop()


class Sample(NamedTuple):
    """What a round came to."""

    jobs: int
    rate: float
    slowest_restart: float
    refused: int
    worker_kb: int
    producer_kb: int
    worker_files: int


class Soak:
    """The processes of one engine, and one round after another of disturbing them."""

    def __init__(self, engine: Engine, programs: Programs, folder: Path, chance: random.Random) -> None:
        self._engine = engine
        self._programs = programs
        self._gate = folder / "gate"
        self._chance = chance
        self._producers_started = 0
        self._queue = Queue(engine.url, defaults=DEFAULTS)
        self._queue.open()
        engine.database.make_rows_table()
        self._steady_worker = self._start_worker()
        self._steady_producer = self._start_producer()
        self._workers: list[Program] = []
        self._producers: list[Program] = []
        self._suspended: dict[Program, threading.Timer] = {}
        self._stopped: dict[int, float] = {}
        self._stopped_in_all = self._silent_in_all = 0
        self.faults: Counter[str] = Counter()
        self.samples: list[Sample] = []

    def run_round(self) -> Sample:
        self._gate.unlink(missing_ok=True)
        self._workers = [self._start_worker() for _ in range(WORKERS)]
        self._producers = [self._start_producer() for _ in range(PRODUCERS)]
        began = time.monotonic()
        while time.monotonic() < began + ROUND:
            time.sleep(self._chance.uniform(*BETWEEN_FAULTS))
            self._disturb()
            self._check_limits()
        seconds = time.monotonic() - began
        self._calm_down()
        sample = self._check(seconds)
        self._tidy_up()
        self.samples.append(sample)
        return sample

    def close(self) -> None:
        """End the processes, however the last round has ended."""
        self._resume_all()
        self._programs.close()
        self._queue.close()

    # Faults.

    def _disturb(self) -> None:
        faults: dict[Fault, int] = {
            self.kill_a_worker: 8,
            self.kill_a_producer: 3,
            self.suspend_a_worker: 8,
            self.suspend_a_producer: 2,
            self.restart_a_worker: 3,
            **self._engine.faults(),
        }
        [fault] = self._chance.choices(list(faults), list(faults.values()))
        began = time.monotonic()
        fault()
        self.faults[fault.__name__.replace("_", " ")] += 1
        if self._engine.can_be_away and time.monotonic() - began > LEASE / 3:
            for worker in (self._steady_worker, *self._workers):
                self._stopped.setdefault(worker.pid, time.time())

    def kill_a_worker(self) -> None:
        self._kill(self._workers, self._start_worker)

    def kill_a_producer(self) -> None:
        self._kill(self._producers, self._start_producer)

    def suspend_a_worker(self) -> None:
        self._suspend(self._chance.choice(self._workers))

    def suspend_a_producer(self) -> None:
        self._suspend(self._chance.choice(self._producers))

    def restart_a_worker(self) -> None:
        worker = self._chance.choice(self._workers)
        if not self._is_suspended(worker):
            worker.stop()
            self._workers[self._workers.index(worker)] = self._start_worker()

    def _kill(self, group: list[Program], start: Callable[[], Program]) -> None:
        index = self._chance.randrange(len(group))
        self._assert_alive(group[index])
        self._programs.kill(group[index])
        group[index] = start()

    def _suspend(self, program: Program) -> None:
        if self._is_suspended(program):
            return
        self._assert_alive(program)
        program.signal(signal.SIGSTOP)
        self._stopped.setdefault(program.pid, time.time())
        # In a thread of its own: it may hold a lock for which the next fault, or a check, has to wait.
        timer = threading.Timer(self._chance.uniform(0.1, LONGEST_PAUSE), self._resume, [program])
        self._suspended[program] = timer
        timer.start()

    def _is_suspended(self, program: Program) -> bool:
        return program in self._suspended and self._suspended[program].is_alive()

    def _resume(self, program: Program) -> None:
        if program.is_running:
            program.signal(signal.SIGCONT)

    def _resume_all(self) -> None:
        for program, timer in self._suspended.items():
            timer.cancel()
            timer.join()
            self._resume(program)
        self._suspended.clear()

    def _start_worker(self) -> Program:
        """A worker that has begun: one that finds no server at its start ends and says so, as it should."""
        worker = self._programs.fork("worker", concurrency=oracle.SLOTS)
        log = self._programs.log
        wait_until(
            lambda: not worker.is_running or log.events("worker.started", pid=worker.pid),
            timeout=LONGEST_PAUSE + RESTARTED,
            message="a worker begins",
        )
        return worker

    def _start_producer(self) -> Program:
        self._producers_started += 1
        name = f"p{self._producers_started}"
        return self._programs.fork(
            "steadfast_producer", name=name, types=TYPES, seconds=0.03, pause=0.015, gate=str(self._gate)
        )

    def _assert_alive(self, program: Program) -> None:
        assert program.is_running, f"a process ended by itself:\n{program.errors()[-4000:]}"

    # Checks.

    def _check_limits(self) -> None:
        for program in (self._steady_worker, self._steady_producer):
            self._assert_alive(program)
        oracle.check_limits_now(self._engine.database, {"limited": MAX_RUNNING})

    def _calm_down(self) -> None:
        """No more faults and no more jobs; all there is has to end."""
        self._resume_all()
        self._gate.touch()
        for producer in self._producers:
            self._programs.kill(producer)
        wait_until(lambda: "waiting" in self._steady_producer.output(), message="the producer waits")
        wait_until(
            lambda: self._engine.database.unfinished() == 0,
            timeout=RESTARTED + LONGEST_PAUSE,
            message="every job ends",
        )
        for worker in self._workers:
            worker.stop()

    def _check(self, seconds: float) -> Sample:
        database, log, accepted = self._engine.database, self._programs.log, self._programs.accepted()
        stopped = {**self._stopped, **self._programs.killed}
        for pid in self._stopped.keys() & self._programs.killed.keys():
            stopped[pid] = min(self._stopped[pid], self._programs.killed[pid])
        assert {job.status for job in database.jobs().values()} == {"completed"}
        oracle.check_all(database, log, accepted=accepted, stopped=stopped, given_back=True)
        self._stopped_in_all += len(stopped)
        self._silent_in_all += len(oracle.silent_starts(database, log))
        assert self._silent_in_all <= oracle.silent_at_most(self._stopped_in_all)
        oracle.check_marks(database, self._programs.refused())
        oracle.check_rows(database)
        oracle.check_rate(database, "rated", RATE)
        database.check_size()  # not before: nobody can reuse the WAL while who reads it is suspended
        refused = {line.split()[1] for line in self._programs.refused()}
        assert refused <= OUTAGES, refused
        slowest = self._slowest_restart(stopped)
        assert slowest <= RESTARTED + LONGEST_PAUSE, f"a job of a lost worker started again after {slowest} s"
        return Sample(
            jobs=len(accepted),
            rate=len(accepted) / seconds,
            slowest_restart=slowest,
            refused=len(self._programs.refused()),
            worker_kb=_memory(self._steady_worker.pid),
            producer_kb=_memory(self._steady_producer.pid),
            worker_files=len(os.listdir(f"/proc/{self._steady_worker.pid}/fd")),
        )

    def _slowest_restart(self, stopped: Mapping[int, float]) -> float:
        starts = sorted(self._programs.log.starts(), key=lambda start: (start.job, start.attempt))
        return max(
            (
                later.at - stopped[earlier.worker]
                for earlier, later in pairwise(starts)
                if earlier.job == later.job and earlier.at < stopped.get(earlier.worker, 0.0) < later.at
            ),
            default=0.0,
        )

    def _tidy_up(self) -> None:
        self._queue.cleanup(0)
        assert self._engine.database.count(*oracle.STATES) == 0
        self._engine.database.write("DELETE FROM rows")
        self._programs.start_over()
        self._stopped.clear()


def _memory(pid: int) -> int:
    """Kilobytes that are the process's own: pages that it shares with the one it was forked from aside."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty", "Private_Clean")))


def trends(samples: Sequence[Sample]) -> list[str]:
    """What has got worse between the second and the last third; nothing is said of a short soak.

    In the first third the worker still warms up. Its threads open their connections as they need them, and
    SQLite keeps a descriptor for each connection that was ever open beside others: closing one would drop
    the locks of all.
    """
    third = len(samples) // 3
    if third < 3:
        return []
    early, late = samples[-2 * third : -third], samples[-third:]
    found = []
    before, after = (median(sample.rate for sample in part) for part in (early, late))
    if after < 0.8 * before:
        found.append(f"the rate fell from {before:.0f} to {after:.0f} jobs/s")
    for what, of in (
        ("the worker's memory", lambda sample: sample.worker_kb),
        ("the producer's memory", lambda sample: sample.producer_kb),
    ):
        before, after = (median(of(sample) for sample in part) for part in (early, late))
        if after > 1.1 * before + 2048:
            found.append(f"{what} grew from {before:,.0f} to {after:,.0f} KB")
    before, after = (median(sample.worker_files for sample in part) for part in (early, late))
    if after > before + 5:
        found.append(f"the worker's open files grew from {before:.0f} to {after:.0f}")
    return found


def soak(engine_name: str, seconds: float, seed: int) -> bool:
    """Whether all was well. Prints a line a round, and what the rounds came to."""
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-soak-{engine_name}-"))
    folder.chmod(0o755)
    os.environ["QUEUECTL_HOME"] = str(folder)
    engine: Engine = (SQLiteEngine if engine_name == "sqlite" else PostgresEngine)(folder, chance)
    programs = Programs(folder, engine.url, DEFAULTS, folder / "bytecode")
    run = Soak(engine, programs, folder, chance)
    deadline = time.monotonic() + seconds
    wrong: list[str] = []
    try:
        while time.monotonic() < deadline:
            sample = run.run_round()
            _say(engine_name, f"round {len(run.samples)}: {_worded(sample)}")
        wrong = trends(run.samples)
    except AssertionError as error:
        wrong = [f"{error}\n{traceback.format_exc()}"[:4000]]
    finally:
        run.close()
        engine.close()
    _say(engine_name, f"{len(run.samples)} rounds, seed {seed}: {_summary(run)}")
    for line in wrong:
        _say(engine_name, f"WRONG: {line}")
    if wrong:
        _say(engine_name, f"the logs are in {folder}")
    else:
        shutil.rmtree(folder)
    return not wrong


def _worded(sample: Sample) -> str:
    return (
        f"{sample.jobs:,} jobs, {sample.rate:.0f}/s, slowest restart {sample.slowest_restart:.1f} s, "
        f"{sample.refused} refused; worker {sample.worker_kb / 1024:.1f} MiB, {sample.worker_files} files; "
        f"producer {sample.producer_kb / 1024:.1f} MiB"
    )


def _summary(run: Soak) -> str:
    faults = ", ".join(f"{count} × {name}" for name, count in sorted(run.faults.items()))
    return f"{sum(sample.jobs for sample in run.samples):,} jobs; {faults}"


def _say(engine: str, line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {engine:8} {line}", flush=True)  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("duration", nargs="?", default="45m", help="how long, such as 45m (the default)")
    parser.add_argument("--engine", choices=["sqlite", "postgres"], help="this one alone")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    seconds = parse_duration(given.duration)
    # Ended by a signal, it leaves no process behind either.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    share_server()
    if given.engine:
        return 0 if soak(given.engine, seconds, given.seed) else 1
    command = [sys.executable, "-m", "tests.process.soak", given.duration, "--seed", str(given.seed)]
    both = [subprocess.Popen([*command, "--engine", engine]) for engine in ("sqlite", "postgres")]
    return max([process.wait() for process in both])


if __name__ == "__main__":
    sys.exit(main())
