"""PostgreSQL's query plans: what a duty reads does not grow with what waits, runs elsewhere or is over.

Each statement that a duty really runs is explained just before, with the rows that every step of its plan
reads. Its plan is that for the values at hand, or the one for any values, which the server turns to once it
has prepared a statement; made with no statistics at all, and with those of the day.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from msgspec import Struct
from msgspec.structs import replace
from psycopg import sql

from holdfast.core.clock import SECOND
from holdfast.core.filter import SORTS
from holdfast.core.job import FINISHED, RETRYING, Status
from holdfast.core.lifecycle import Completed, Errored, LeaseEnded, Outcome, Released
from holdfast.store.candidates import MOST_IN_LINE
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore, tallies
from holdfast.store.postgres.line import FIRST, FIRST_UNGROUPED
from holdfast.store.postgres.session import Session
from holdfast.store.records import Demand, JobFilter, Place
from holdfast.testing import MovableClock
from tests import postgres
from tests.conformance.steps import claim, ending, finish, insert, new_job, reap, rolled_back, settings_of

START = datetime(2030, 1, 1, tzinfo=UTC)
FEW = 1000
"""Rows that a step may read, whatever there is."""

MANY = 400

OVER, WAITING, RUNNING = 50_000, 20_000, 60

KNOWN = ["never analyzed", "analyzed empty", "analyzed"]
"""What the server knows of the tables: nothing, that they were empty, or all."""

_numbers = itertools.count(1)

# Jobs that are over, of three types, five priorities and three states; then those that wait: pending,
# paused, for their time and for a retry; and some that run.
FILL = f"""
INSERT INTO holdfast_jobs (id, type, status, priority, attempts, max_attempts, key, due_at, created_at,
    updated_at, started_at, finished_at, worker_id, lease_expires_at, error, error_group, token, payload)
SELECT 'job-' || n, type, status, n % 5 - 2, CASE WHEN status = 'scheduled' THEN n % 2 ELSE 1 END, 3,
    CASE WHEN n % 10 = 0 THEN 'key-' || n END, due, created, created, created,
    CASE WHEN n <= {OVER} THEN created + {SECOND} END,
    CASE WHEN status = 'processing' THEN 'w-' || n % 7 END,
    CASE WHEN status = 'processing' THEN created + {3600 * SECOND} END,
    CASE WHEN status = 'failed' THEN 'boom' END,
    CASE WHEN status <> 'failed' THEN NULL WHEN n % 30 = 1 THEN 'rare' ELSE 'group-1' END,
    'token-' || n, '{{}}'
FROM (
    SELECT n, created, status,
        CASE WHEN status = 'pending' AND n % 4 = 0 THEN 'paused' ELSE (ARRAY['email', 'crawl', 'report',
            'email'])[n % 4 + 1] END AS type,
        CASE WHEN status = 'scheduled' THEN created + (n - {OVER}) * {SECOND // 10} ELSE created END AS due
    FROM (
        SELECT n, $1::bigint + n * 1000 AS created,
            CASE WHEN n <= {OVER} THEN CASE WHEN n % 10 = 1 THEN 'failed' WHEN n % 50 = 2 THEN 'cancelled'
                    ELSE 'completed' END
                WHEN n <= {OVER + WAITING} THEN CASE WHEN n % 10 < 3 THEN 'scheduled' ELSE 'pending' END
                ELSE 'processing' END AS status
        FROM generate_series(1, {OVER + WAITING + RUNNING}::bigint) AS n) AS drafts) AS jobs
ORDER BY n
"""
FAILURES = """
INSERT INTO holdfast_failures (seq, version, attempt, started_at, finished_at, error)
SELECT seq, number, number, 0, 0, 'boom' FROM holdfast_jobs, generate_series(1, 2) AS number
WHERE status = 'failed' ORDER BY seq
"""
ERRORS = """
INSERT INTO holdfast_error_tallies (type, error_group, jobs, last_at)
SELECT type, error_group, count(*), max(finished_at) FROM holdfast_jobs WHERE status = 'failed'
GROUP BY type, error_group
"""


@pytest.fixture(scope="module", params=KNOWN)
def queue(request: pytest.FixtureRequest) -> Iterator[PostgresStore]:
    """A queue with many jobs, which every test leaves as it is."""
    clock = MovableClock(START)
    with postgres.fresh_url() as url, closing(open_store(url, clock)) as store:
        assert isinstance(store, PostgresStore)
        forbid_autovacuum(store)
        if request.param == "analyzed empty":
            analyze(store)
        run_sql(store, FILL, [clock()])
        run_sql(store, FAILURES)
        run_sql(store, ERRORS)
        store.set_paused("paused", True)
        if request.param == "analyzed":
            analyze(store)
        clock.advance(120)
        yield store


def forbid_autovacuum(store: PostgresStore) -> None:
    """Or the server would look at any of the tables whenever it likes, and plan differently from then on."""
    for table in tables(store):
        run_sql(store, f"ALTER TABLE {table} SET (autovacuum_enabled = false)")


def analyze(store: PostgresStore) -> None:
    """From all rows, which are fewer than 300 times the target: from a sample, it would differ each time."""
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:
        connection.execute("SET default_statistics_target = 250")
        for table in tables(store):
            connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(store.database.schema, table)))


def empty(store: PostgresStore) -> None:
    """Statistics of a table whose rows are gone and whose pages are not: until it is analyzed again, the
    server takes it to be empty, however many rows come, and all ways to read it to cost the same."""
    run_sql(store, FILL, [0])
    for table in ("holdfast_jobs", "holdfast_tallies", "holdfast_error_tallies"):
        run_sql(store, f"DELETE FROM {table}")
    analyze(store)


def tables(store: PostgresStore) -> list[str]:
    rows = run_sql(store, "SELECT tablename FROM pg_tables WHERE schemaname = $1", [store.database.schema])
    return sorted(name for (name,) in rows)


def run_sql(store: PostgresStore, text: str, parameters: Sequence[Any] = ()) -> list[Any]:
    return store.database.read(text, parameters)


class Step(Struct, frozen=True):
    """A step of a plan that was carried out, and how many rows it has looked at."""

    kind: str
    source: str
    rows: int
    statement: str


def steps_of(plan: dict[str, Any], statement: str) -> Iterator[Step]:
    looked_at = sum(
        plan.get(name, 0)
        for name in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    )
    source = plan.get("Index Name") or plan.get("Relation Name") or ""
    yield Step(plan["Node Type"], source, round(looked_at * plan["Actual Loops"]), statement)
    for part in plan.get("Plans", ()):
        yield from steps_of(part, statement)


def explain(session: Session, text: str, parameters: Sequence[Any], mode: str) -> list[Step]:
    """Carry a statement out and undo it: what each step of its plan has read."""
    if not text.lstrip().startswith(("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")):
        return []  # such as SAVEPOINT: it has no plan
    connection = session.connection
    values = sql.SQL(", ").join(map(sql.Literal, parameters))
    given = sql.SQL("({})").format(values) if parameters else sql.SQL("")
    types = ", ".join("bigint" if is_large(value) else "unknown" for value in parameters)
    kinds = f" ({types})" if types else ""
    name = f"explained_{next(_numbers)}"
    connection.execute(f"PREPARE {name}{kinds} AS {session.database.text(text)}")
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        [([plan],)] = connection.execute(
            sql.SQL("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE {}{}").format(sql.SQL(name), given)
        ).fetchall()
    return list(steps_of(plan["Plan"], text))


def is_large(value: object) -> bool:
    """Whether it is sent as a number that no integer of four bytes can hold."""
    return isinstance(value, int) and not -(2**31) <= value < 2**31


@contextmanager
def explained(mode: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Step]]:
    """Collects the steps of all statements on our tables."""
    found: list[Step] = []
    execute, ahead = Session._execute, Session.ahead

    def explaining(session: Session, text: str, parameters: Sequence[Any]) -> Any:
        if "holdfast_" in text:
            found.extend(explain(session, text, parameters, mode))
        return execute(session, text, parameters)

    def explaining_ahead(session: Session, text: str, parameters: Sequence[Any] = ()) -> Any:
        if "holdfast_" in text:
            found.extend(explain(session, text, parameters, mode))
        return ahead(session, text, parameters)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "_execute", explaining)
        patched.setattr(Session, "ahead", explaining_ahead)
        yield found


def wasteful(steps: Sequence[Step]) -> list[str]:
    """Those that grow with the queue: whatever reads or sorts many rows, or the table from its beginning."""
    return [
        f"{step.rows} rows, {step.kind} {step.source}, of {' '.join(step.statement.split())}"
        for step in steps
        if step.rows > FEW or (step.kind, step.source) == ("Seq Scan", "holdfast_jobs")
    ]


# What the turn does.


def claim_one_type(store: PostgresStore) -> None:
    assert len(claim(store, limit=20)) == 20


def claim_several_types(store: PostgresStore) -> None:
    assert len(claim(store, "email", "crawl", "paused", "nobody", limit=20)) == 20


def claim_with_limits(store: PostgresStore) -> None:
    limits = settings_of(store, rate_limit={"": 10.0}, max_running={"": 100})
    assert len(claim(store, "email", "crawl", limit=20, settings=limits)) == 10


def claim_alone(store: PostgresStore) -> None:
    assert len(claim(store, "email", "crawl", limit=20, alone=True)) == 20


def finish_attempts(store: PostgresStore) -> None:
    outcomes: list[Outcome] = [Completed(), Completed(), Errored("boom"), Released(), LeaseEnded("gone")]
    claims = claim(store, "email", "crawl", limit=5)
    ends = [ending(claimed, outcome) for claimed, outcome in zip(claims, outcomes, strict=True)]
    assert len(store.finish_jobs(ends)) == 5
    store.list_ended([(claimed.seq, claimed.version) for claimed in claims])


def finish_with_children(store: PostgresStore) -> None:
    [claimed] = claim(store, limit=1)
    finish(store, claimed, Completed(), children=(new_job("child", parent_id=claimed.id), new_job("job-1")))
    store.list_children(claimed.id)


def renew(store: PostgresStore) -> None:
    held = [(claimed.seq, claimed.version) for claimed in claim(store, limit=20)]
    assert not store.heartbeat("worker", held, state="running", lease_seconds=30).lost
    store.heartbeat("worker", [(1, 1), *held], state="running", lease_seconds=30)
    store.write_progress("worker", [(seq, version, 0.5, "half") for seq, version in held])
    store.list_cancelled("worker")
    store.list_held("worker")


def promote(store: PostgresStore) -> None:
    store.next_due_at()
    assert len(store.promote_jobs(100)) == 100


def reap_and_forget(store: PostgresStore) -> None:
    store.list_expired()
    store.redate_leases(30)
    claims = [(each.seq, each.version) for each in claim(store, limit=20, lease=-1.0)]
    assert store.suspect_jobs(claims) == {*claims}
    assert store.list_unsuspected("worker", claims, patience=1.0) == set()
    assert len(reap(store, back_off=10.0)) == 20
    store.remove_silent_workers(60)


def prune(store: PostgresStore) -> None:
    states = sorted(FINISHED)
    assert len(store.prune_jobs(finished_before=store.now(), statuses=states, limit=100)) == 100
    assert store.prune_jobs(finished_before=0, statuses=states, limit=100) == []


def enqueue(store: PostgresStore) -> None:
    insert(store, "one", key="k", key_for=5, max_depth=100_000)
    store.insert_jobs([new_job("two", key="k"), new_job("one"), new_job("three", key="key-60010")])
    insert(store, *(f"plain-{n}" for n in range(100)))


# What people do and see.


def operate(store: PostgresStore) -> None:
    insert(store, "mine", key="mine", type="crawl")
    store.cancel_job("mine")
    store.retry_job("mine", None)
    store.count_ahead("mine", 100)
    store.get_job("mine")
    store.get_jobs([f"job-{n}" for n in range(50)])
    store.list_payloads([f"job-{n}" for n in range(50)])
    store.cancel_job("mine")
    store.delete_job("mine")
    store.delete_job("job-1")


def retry_failed(store: PostgresStore) -> None:
    for type in (None, "crawl"):
        store.retry_failed_jobs(type, after=0, limit=20)
        store.retry_failed_jobs(type, after=OVER // 2, limit=20)


def look(store: PostgresStore) -> None:
    assert store.oldest_waiting() is not None
    store.list_heads()
    store.read_usage()
    store.list_busy_types()
    store.list_running(10)
    store.count_jobs()
    store.count_enqueued()
    store.count_finished(store.now() - SECOND)
    store.list_error_groups(10)
    store.measure()


def fold(store: PostgresStore) -> None:
    tallies.fold(store.database)


DUTIES: list[Callable[[PostgresStore], None]] = [
    claim_one_type,
    claim_several_types,
    claim_with_limits,
    claim_alone,
    finish_attempts,
    finish_with_children,
    renew,
    promote,
    reap_and_forget,
    prune,
    enqueue,
    operate,
    retry_failed,
    look,
    fold,
]
MODES = ["force_custom_plan", "force_generic_plan"]


@pytest.fixture(scope="module")
def emptied() -> Iterator[PostgresStore]:
    """The same queue, of which the server knows that it was emptied."""
    clock = MovableClock(START)
    with postgres.fresh_url() as url, closing(open_store(url, clock)) as store:
        assert isinstance(store, PostgresStore)
        forbid_autovacuum(store)
        empty(store)
        run_sql(store, FILL, [clock()])
        run_sql(store, ERRORS)
        store.set_paused("paused", True)
        clock.advance(120)
        yield store


# What a turn does with many jobs at once, of as many as the server knew of when it last looked.


def finish_many(store: PostgresStore) -> None:
    claims = claim(store, limit=MANY)
    assert len(store.finish_jobs([ending(claimed, Completed()) for claimed in claims])) == MANY
    failed = claim(store, limit=MANY)
    assert len(store.finish_jobs([ending(claimed, Errored("boom")) for claimed in failed])) == MANY
    store.list_ended([(claimed.seq, claimed.version) for claimed in claims])


def finish_and_claim(store: PostgresStore) -> None:
    ends = [ending(claimed, Completed()) for claimed in claim(store, limit=MANY)]
    demand = Demand(type="email", limit=MANY, max_attempts=3)
    with store.finish_and_claim(ends, "worker", [demand], limit=MANY, lease_seconds=30) as answer:
        pass
    assert len(answer.ended) == len(answer.claimed.claims) == MANY


def renew_many(store: PostgresStore) -> None:
    held = [(claimed.seq, claimed.version) for claimed in claim(store, limit=MANY)]
    assert not store.heartbeat("worker", held, state="running", lease_seconds=30).lost
    store.heartbeat("worker", [(1, 7), *held], state="running", lease_seconds=30)
    store.write_progress("worker", [(seq, version, 0.5, "half") for seq, version in held])


def reuse_many_keys(store: PostgresStore) -> None:
    for name in ("first", "second"):
        store.insert_jobs([new_job(f"{name}-{n}", key=f"key-{n}", key_for=5) for n in range(MANY)])


@pytest.fixture
def hurried_queue() -> Iterator[PostgresStore]:
    """Jobs that waited, all of them, when the server last looked."""
    clock = MovableClock(START)
    with postgres.fresh_url() as url, closing(open_store(url, clock)) as store:
        assert isinstance(store, PostgresStore)
        forbid_autovacuum(store)
        store.insert_jobs([new_job(f"job-{n}") for n in range(8 * MANY)])
        run_sql(store, "VACUUM ANALYZE holdfast_jobs")
        yield store


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("duty", [finish_many, finish_and_claim, renew_many, reuse_many_keys])
def test_each_of_many_jobs_is_found_once_whatever_the_statistics_say(
    hurried_queue: PostgresStore,
    duty: Callable[[PostgresStore], None],
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with explained(mode, monkeypatch) as steps:
        duty(hurried_queue)
    assert steps
    # An entry of an index that has just been left is seen once more.
    assert [step for step in steps if step.rows > 4 * MANY] == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("duty", DUTIES)
def test_duty_reads_few_rows_and_sorts_no_more(
    queue: PostgresStore,
    duty: Callable[[PostgresStore], None],
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rolled_back(queue), explained(mode, monkeypatch) as steps:
        duty(queue)
    assert steps
    assert wasteful(steps) == []


# Not those that find given jobs by their `seq`: no words tell the server that these are fewer than all.
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "duty", [claim_one_type, claim_several_types, claim_with_limits, claim_alone, promote, look]
)
def test_duty_reads_few_rows_where_the_server_takes_the_table_to_be_empty(
    emptied: PostgresStore,
    duty: Callable[[PostgresStore], None],
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rolled_back(emptied), explained(mode, monkeypatch) as steps:
        duty(emptied)
    assert steps
    assert wasteful(steps) == []


# Lines that are read from where this process knows them to begin.

FLOORS = {"email": {2: 1, 0: OVER + 1000, -1: 1}, "crawl": {0: OVER + 2000}}


def know_floors(store: PostgresStore) -> None:
    known = store._claiming.floors
    known._needed_until = math.inf
    known.learn([(type, priority) for type, floors in FLOORS.items() for priority in floors])
    known._floors.update({(t, p): floor for t, floors in FLOORS.items() for p, floor in floors.items()})
    known._whole_at = [math.inf, math.inf]
    known._rise_at = 0.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("returned", [False, True], ids=["none returned", "many returned"])
@pytest.mark.parametrize("duty", [claim_one_type, claim_several_types, claim_with_limits, look])
def test_duty_reads_few_rows_from_floors(
    queue: PostgresStore,
    emptied: PostgresStore,
    duty: Callable[[PostgresStore], None],
    returned: bool,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for store in (queue, emptied):
        with rolled_back(store):
            if returned:
                run_sql(store, "UPDATE holdfast_jobs SET returned = true WHERE status = 'pending'")
            know_floors(store)
            with explained(mode, monkeypatch) as steps:
                duty(store)
        store._claiming.floors.forget()
        store._claiming.floors._needed_until = 0.0
        assert any("segments" in step.statement for step in steps)
        assert wasteful(steps) == []


# Groups: one with very many jobs, which come first, and many with few.

GROUPS = """
INSERT INTO holdfast_jobs (id, type, status, priority, "group", due_at, created_at, updated_at, token,
    payload)
SELECT 'grouped-' || n, 'email', 'pending', CASE WHEN n % 1000 = 7 THEN 1 ELSE 0 END,
    CASE WHEN n <= 20000 THEN 'big' WHEN n < 50000 THEN 'small-' || n % 3000 END, 1, 1, 1, 't', '{}'
FROM generate_series(1, 50000) AS n ORDER BY n
"""
GROUPS_OVER = """
INSERT INTO holdfast_jobs (id, type, status, "group", due_at, created_at, updated_at, started_at, finished_at,
    token, payload)
SELECT 'over-' || n, 'email', 'completed', 'small-' || n % 3000, 1, 1, 1, 1, 1, 't', '{}'
FROM generate_series(1, 30000) AS n ORDER BY n
"""
IN_GROUPS: dict[str, dict[str, Any]] = {
    "fair": {"fair": True},
    "limited": {"group_concurrency": 1},
    "both": {"fair": True, "group_concurrency": 1},
}


@pytest.fixture(scope="module", params=[*KNOWN, "emptied"])
def grouped(request: pytest.FixtureRequest) -> Iterator[PostgresStore]:
    """Many jobs in groups, which every test leaves as they are."""
    with postgres.fresh_url() as url, closing(open_store(url, MovableClock(START))) as store:
        assert isinstance(store, PostgresStore)
        forbid_autovacuum(store)
        if request.param == "analyzed empty":
            analyze(store)
        if request.param == "emptied":
            empty(store)
        run_sql(store, GROUPS)
        run_sql(store, GROUPS_OVER)
        if request.param == "analyzed":
            analyze(store)
        yield store


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", IN_GROUPS)
def test_claim_by_groups_reads_few_rows(
    grouped: PostgresStore, kind: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(grouped, **IN_GROUPS[kind])
    with rolled_back(grouped), explained(mode, monkeypatch) as steps:
        for _ in range(3):
            assert len(claim(grouped, limit=20, settings=settings)) == 20
        grouped.read_usage()
    # But where the line is gone through, in search of groups with room and of jobs without one.
    lines = [step for step in steps if FIRST in step.statement or FIRST_UNGROUPED in step.statement]
    assert [step for step in lines if step.rows > (2000 if FIRST in step.statement else MOST_IN_LINE)] == []
    assert wasteful([step for step in steps if step not in lines]) == []


@pytest.mark.parametrize("mode", MODES)
def test_list_of_a_group_reads_few_rows(
    grouped: PostgresStore, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with explained(mode, monkeypatch) as steps:
        for ascending in (False, True):
            for group in ("big", "small-7", "nobody"):
                filter = JobFilter(group=group, limit=20, ascending=ascending)
                grouped.list_placed(filter)
                grouped.list_placed(replace(filter, after=Place(0, 10_000)))
                grouped.count_matching(filter, 500)
    assert wasteful(steps) == []


LISTS = {
    "all": JobFilter(),
    "a type": JobFilter(type="email"),
    "no type": JobFilter(type="nobody"),
    "pending": JobFilter(statuses=("pending",)),
    "scheduled": JobFilter(statuses=("scheduled",)),
    "running": JobFilter(statuses=("processing",)),
    "completed": JobFilter(statuses=("completed",)),
    "cancelled, which are few": JobFilter(statuses=("cancelled",)),
    "failed of a type": JobFilter(statuses=("failed",), type="crawl"),
    "failed of a type, of which there are none": JobFilter(statuses=("failed",), type="paused"),
    "retrying": JobFilter(statuses=(RETRYING,)),
    "unfinished": JobFilter(statuses=("pending", "scheduled", "processing")),
    "several": JobFilter(statuses=("failed", "cancelled", RETRYING)),
    "an error": JobFilter(error="group-1"),
    "an error of a type": JobFilter(error="group-1", type="crawl"),
    "a parent": JobFilter(parent_id="nobody"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sort", SORTS)
def test_page_of_any_list_reads_few_rows_wherever_it_is(
    queue: PostgresStore, sort: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wasteful_lists(queue, sort, mode, monkeypatch) == {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sort", SORTS)
def test_page_of_any_list_reads_few_rows_where_the_server_takes_the_table_to_be_empty(
    emptied: PostgresStore, sort: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wasteful_lists(emptied, sort, mode, monkeypatch) == {}


def test_what_runs_is_never_looked_for_along_all_jobs(
    queue: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be by the primary key, in whose order it would have to be sorted otherwise."""
    with explained(MODES[1], monkeypatch) as steps:
        for ascending in (False, True):
            filter = replace(LISTS["unfinished"], limit=20, ascending=ascending)
            queue.list_placed(filter)
            queue.list_placed(replace(filter, after=Place(0, OVER // 2)))
    running = {" ".join(step.statement.split()) for step in steps if "= 'processing'" in step.statement}
    assert running
    assert [text for text in running if re.search(r"ORDER BY seq|[^.]\bseq [<>]", text)] == []


def wasteful_lists(
    queue: PostgresStore, sort: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[str]]:
    deep = Place({"created": 0, "finished": queue.now() - 100 * SECOND, "priority": 0}[sort], OVER // 2)
    found = {}
    for name, asked in LISTS.items():
        filter = replace(asked, sort=sort, limit=20, brief=True)
        with explained(mode, monkeypatch) as steps:
            queue.list_placed(filter)
            queue.list_placed(replace(filter, after=deep, ascending=mode == "force_generic_plan"))
            queue.count_matching(filter, 100)
        found[name] = wasteful(steps)
    return {name: steps for name, steps in found.items() if steps}


@pytest.mark.parametrize("mode", MODES)
def test_page_of_a_time_reads_few_rows(
    queue: PostgresStore, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = queue.now() - 95 * SECOND
    found = {}
    for filter in (
        JobFilter(since=middle, limit=20),
        JobFilter(until=middle, limit=20, type="email"),
        JobFilter(since=middle, until=middle + SECOND // 10, limit=20, statuses=("completed", "pending")),
        JobFilter(since=middle, until=middle + SECOND, limit=20, sort="finished"),
    ):
        with explained(mode, monkeypatch) as steps:
            queue.list_placed(filter)
            queue.count_matching(filter, 100)
        found[filter] = wasteful(steps)
    assert {filter: steps for filter, steps in found.items() if steps} == {}


# What triggers do is in no plan, but it is counted.


def rows_read(store: PostgresStore, table: str) -> int:
    """The rows of a table that this transaction has read from its beginning on."""
    [(count,)] = run_sql(
        store,
        "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relid = $1::regclass",
        [f"{store.database.schema}.{table}"],
    )
    return int(count)


def test_deleting_reads_no_table_whole_whatever_was_deleted_before(queue: PostgresStore) -> None:
    """A trigger keeps the plan that it made first: for many jobs at once, or for one."""
    with rolled_back(queue):
        before = [rows_read(queue, table) for table in ("holdfast_jobs", "holdfast_failures")]
        queue.prune_jobs(finished_before=queue.now(), statuses=[Status.COMPLETED], limit=2000)
        for n in (1, 11, 21, 31):
            queue.delete_job(f"job-{n}")
        after = [rows_read(queue, table) for table in ("holdfast_jobs", "holdfast_failures")]
    assert after == before
