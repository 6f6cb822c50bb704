"""A queue behind a real PgBouncer, which gives each transaction to any of its few server connections."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast import Context, Queue
from holdfast.errors import StoreUnavailable
from holdfast.events import JobCompleted, WorkerStarted
from holdfast.observe.doctor import examine
from holdfast.store.open import store_of
from holdfast.store.postgres import PostgresStore
from tests import postgres
from tests.support import Recorder, wait_until

MISSING = "there is no pgbouncer here: apt-get install pgbouncer"
PORT = 6432

SETTINGS = """
[databases]
in_transactions = {server} pool_mode=transaction pool_size=3
in_sessions = {server} pool_mode=session pool_size=40

[pgbouncer]
unix_socket_dir = {folder}
unix_socket_mode = 0777
listen_port = {port}
auth_type = any
logfile = {folder}/log
pidfile = {folder}/pid
server_login_retry = 0.1
max_client_conn = 200
"""


def find_pgbouncer() -> str:
    """The program, or else the test is skipped; in CI it fails."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(MISSING, pytrace=False)
    if found is None:
        pytest.skip(MISSING)
    return found


@pytest.fixture(scope="module")
def pgbouncer() -> Iterator[Path]:
    """The folder of a running PgBouncer's socket."""
    program = find_pgbouncer()
    parts = conninfo_to_dict(postgres.server_url())
    names = ("host", "port", "user", "password", "dbname")
    server = " ".join(f"{name}={parts[name]}" for name in names if name in parts)
    user = postgres.ACCOUNT if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="holdfast-pgb-") as name:
        folder = Path(name)
        (folder / "ini").write_text(SETTINGS.format(server=server, folder=folder, port=PORT))
        if user is not None:
            shutil.chown(folder, user)
        process = subprocess.Popen(
            [program, "-q", str(folder / "ini")],
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: is_up(folder) or process.poll() is not None, 30)
            assert process.poll() is None, (folder / "log").read_text()
            yield folder
        finally:
            process.kill()
            process.wait()


def is_up(folder: Path) -> bool:
    with suppress(OSError), closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(str(folder / f".s.PGSQL.{PORT}"))
        return True
    return False


@pytest.fixture(params=["in_transactions", "in_sessions"])
def behind(request: pytest.FixtureRequest, pgbouncer: Path) -> Iterator[str]:
    """The address of a fresh queue behind PgBouncer, in each of its modes."""
    schema = postgres.new_schema()
    yield f"postgresql://any@/{request.param}?host={pgbouncer}&port={PORT}&schema={schema}"
    postgres.drop_schema(schema)


@pytest.fixture
def queue(behind: str) -> Iterator[Queue]:
    with Queue(behind, defaults={"poll_interval": 60, "heartbeat_interval": 0.2}) as queue:
        yield queue


def database_of(queue: Queue) -> Any:
    assert isinstance(store_of(queue), PostgresStore)
    return store_of(queue).database


def test_pooler_is_found_out_and_the_doctor_says_so(queue: Queue) -> None:
    assert database_of(queue).is_pooled
    [found] = [finding for finding in examine(queue) if finding.check == "pooler"]
    assert (found.level, "50 ms" in found.text) == ("ok", True)


def test_server_without_a_pooler_is_not_taken_for_one() -> None:
    with postgres.fresh_url() as url, Queue(url) as queue:
        assert not database_of(queue).is_pooled
        assert database_of(queue).hears
        assert [finding for finding in examine(queue) if finding.check == "pooler"] == []


def test_nothing_is_prepared_or_left_in_a_session(queue: Queue) -> None:
    threads = [
        threading.Thread(target=lambda: [queue.enqueue("a", {}, key=f"{n}") for n in range(12)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    database = database_of(queue)
    for _ in range(12):
        assert database.read("SELECT count(*) FROM pg_prepared_statements") == [(0,)]
        assert database.read("SELECT count(*) FROM pg_listening_channels()") == [(0,)]
        assert database.read("SHOW lock_timeout") == [("0",)]
    assert queue.count(type="a") == 12


def test_transactions_carry_their_bounds_and_their_durability(queue: Queue) -> None:
    names = ("synchronous_commit", "lock_timeout", "idle_in_transaction_session_timeout")
    database = database_of(queue)
    assert not database.commits_alone
    with database.transaction() as session:
        found = dict(session.rows("SELECT name, source FROM pg_settings WHERE name = ANY (?)", [[*names]]))
    assert found == dict.fromkeys(names, "session")
    for _ in range(12):  # of any server connection
        [(source,)] = database.read("SELECT source FROM pg_settings WHERE name = 'synchronous_commit'")
        assert source != "session"


def test_jobs_are_worked_off_by_two_workers(
    behind: str, queue: Queue, start_worker: Callable[..., Any]
) -> None:
    with Queue(behind, defaults={"poll_interval": 60, "heartbeat_interval": 0.2}) as other:
        recorders, workers = [], []
        for one in (queue, other):
            one.register("work", lambda payload: payload["n"])
            recorders.append(Recorder(one.events))
            workers.append(start_worker(one, concurrency=4))
        for recorder in recorders:
            recorder.wait(WorkerStarted)
        ids = [queue.enqueue("work", {"n": n}).id for n in range(30)]
        ids += [job.id for job in other.enqueue_many("work", [{"n": n} for n in range(30)])]
        for job_id in ids:
            assert queue.wait(job_id, timeout=60).status == "completed"
        assert queue.count(status="completed") == 60
        wait_until(lambda: sum(len(recorder.all(JobCompleted)) for recorder in recorders) == 60, 30)
        # Heartbeats, limits and pauses come through, too.
        before = {worker.id: worker.heartbeat_at for worker in queue.workers()}
        assert len(before) == 2
        wait_until(lambda: all(w.heartbeat_at != before[w.id] for w in queue.workers()), 30)
        queue.set_config("max_running", 1, type="work")
        queue.pause("work")
        held = other.enqueue("work", {"n": 1})
        assert queue.get(held.id).status == "pending"  # type: ignore[union-attr]
        queue.resume("work")
        assert queue.wait(held.id, timeout=60).status == "completed"
        for worker in workers:
            worker.stop(timeout=5)


def test_what_a_handler_writes_commits_with_its_job(
    behind: str, queue: Queue, start_worker: Callable[..., Any]
) -> None:
    schema = behind.rpartition("schema=")[2]

    def write(payload: dict[str, Any], ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(f"INSERT INTO {schema}.app_rows VALUES (%s)", [payload["n"]])
            if payload["n"] < 0:
                raise ValueError("no")

    queue.open()
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {schema}.app_rows (n integer)")
    queue.register("write", write, max_attempts=1)
    start_worker(concurrency=4)
    good = [queue.enqueue("write", {"n": n}).id for n in range(8)]
    bad = queue.enqueue("write", {"n": -1}).id
    assert {queue.wait(job_id, timeout=60).status for job_id in good} == {"completed"}
    wait_until(lambda: queue.get(bad).status == "failed", 30)  # type: ignore[union-attr]
    rows = database_of(queue).read(f"SELECT n FROM {schema}.app_rows ORDER BY n")
    assert [n for (n,) in rows] == list(range(8))


def test_server_connections_that_are_cut_behind_it_are_survived(queue: Queue) -> None:
    queue.enqueue("a", {})
    schema = database_of(queue).schema
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'holdfast' AND query LIKE %s AND state = 'idle'",
            [f"%{schema}%"],
        )
    queue.enqueue("a", {})
    assert queue.count(type="a") == 2


def test_parameter_that_it_does_not_know_is_explained(pgbouncer: Path) -> None:
    url = f"postgresql://any@/in_transactions?host={pgbouncer}&port={PORT}&options=-csearch_path%3Dx"
    with pytest.raises(StoreUnavailable, match="ignore_startup_parameters"), closing(Queue(url)) as queue:
        queue.open()
