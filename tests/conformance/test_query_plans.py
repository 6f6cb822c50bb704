"""SQLite's query plans: what waits for its time and what is over costs the hot path nothing.

Checked twice: on an empty database, and on a lopsided one after ANALYZE, because an application may run that
on its own file and SQLite then plans by the numbers it finds.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.filter import SORTS
from holdfast.core.job import RETRYING, Status
from holdfast.core.lifecycle import Completed, Errored, LeaseEnded, Outcome, Released
from holdfast.core.settings import Settings
from holdfast.store import pages, prune, ranges
from holdfast.store.ranges import conditions
from holdfast.store.reads import EXPIRED
from holdfast.store.records import Claim, JobFilter, Place
from holdfast.store.sqlite import SqliteStore, open_store
from holdfast.store.sqlite import claim as claiming
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.insert import HOLDER
from holdfast.store.sqlite.leases import CANCELLING
from holdfast.store.sqlite.operate import FINISHED_SINCE, OLDEST_FINISHED
from holdfast.store.sqlite.promote import FIRST_DUE, MOST_URGENT
from holdfast.store.sqlite.waiting import OLDEST
from holdfast.testing import MovableClock
from tests.conformance.steps import claim, ending, finish, insert, new_job, settings_of

pytestmark = pytest.mark.slow

PLANS = {
    "heads": (claiming.HEADS, "holdfast_jobs_pending"),
    "heads beside paused lanes": (claiming.HEADS_APART, "holdfast_jobs_pending"),
    "claim of one type": (claiming.FIRST_ROWS, "holdfast_jobs_pending"),
    "claim": (claiming.FIRST, "holdfast_jobs_pending"),
    "claim without a group": (claiming.FIRST_UNGROUPED, "holdfast_jobs_pending"),
    "claim in turn": (claiming.FIRST_OF_GROUPS, "holdfast_jobs_grouped"),
    "claim more in turn": (claiming.MORE_OF_GROUPS, "holdfast_jobs_grouped"),
    "what runs": (claiming.RUNNING, "holdfast_jobs_leased"),
    "what runs of groups": (claiming.RUNNING_GROUPS, "holdfast_jobs_busy_groups"),
    "promote": (MOST_URGENT, "holdfast_jobs_due"),
    "promote the rest": (FIRST_DUE, "holdfast_jobs_scheduled"),
    "reap": (EXPIRED.format(clock=Database.clock), "holdfast_jobs_leased"),
    "key": (HOLDER, "holdfast_jobs_key"),
    "prune": (FINISHED_SINCE, "holdfast_jobs_finished"),
    "which to prune": (OLDEST_FINISHED, "holdfast_jobs_finished"),
    "cancel": (CANCELLING, "holdfast_jobs_cancelling"),
}
"""The statement of each duty, and the index that is made for it."""


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a queue with many jobs, made once."""
    path = tmp_path_factory.mktemp("analyzed") / "queue.db"
    with closing(
        open_store(f"sqlite:///{path}?synchronous=off", MovableClock(datetime(2030, 1, 1, tzinfo=UTC)))
    ) as store:
        fill(store)
        store.database.connection().execute("ANALYZE")
        store.database.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture(params=["empty", "analyzed"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: MovableClock, empty_database: Path
) -> Iterator[SqliteStore]:
    path = tmp_path / "queue.db"
    is_analyzed = request.param == "analyzed"
    shutil.copyfile(request.getfixturevalue("analyzed") if is_analyzed else empty_database, path)
    with closing(open_store(f"sqlite:///{path}?synchronous=off", clock)) as store:
        yield store


def fill(store: SqliteStore) -> None:
    """Many finished, scheduled and waiting jobs of one type, a few that run, with and without keys; and many
    that wait in a paused type."""
    insert(store, *(f"done-{n}" for n in range(600)))
    store.finish_jobs([ending(claimed, Completed()) for claimed in claim(store, limit=600)])
    insert(store, *(f"failed-{n}" for n in range(100)), max_attempts=1)
    store.finish_jobs([ending(claimed, Errored("boom")) for claimed in claim(store)])
    store.insert_jobs([new_job(f"later-{n}", delay=3600 + n, key=f"key-{n}") for n in range(600)])
    insert(store, *(f"running-{n}" for n in range(5)))
    claim(store)
    insert(store, *(f"pending-{n}" for n in range(600)))
    insert(store, *(f"paused-{n}" for n in range(600)), type="paused")


def one_of_each_state(store: SqliteStore) -> None:
    insert(store, "done", "failed", "running")
    done, failed, _ = claim(store, limit=3)
    finish(store, done, Completed())
    finish(store, replace(failed, max_attempts=1), Errored("boom"))
    store.insert_jobs([new_job("later", delay=3600)])


def plan(store: SqliteStore, sql: str, parameters: Any = None) -> list[str]:
    """What SQLite says it will do, line by line."""
    connection = store.database.connection()
    if parameters is None:
        # As many as it wants; which values they have does not change a plan here.
        numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
        parameters = ("[]",) * (max(numbered, default=0) or sql.count("?"))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]


def wasteful(lines: list[str]) -> list[str]:
    """The steps that grow with the table: reading all of it, or sorting; but for what runs, or runs alone."""
    few = ("holdfast_jobs_leased", "holdfast_jobs_busy_groups", "holdfast_jobs_suspect")
    is_of_few = any(line.endswith(few[:2]) for line in lines)
    return [
        line
        for line in lines
        if (line.startswith("SCAN holdfast_jobs") and not line.endswith(few))
        or ("TEMP B-TREE" in line and not (is_of_few and "GROUP BY" in line))
    ]


@pytest.mark.parametrize("duty", PLANS)
def test_duty_uses_the_index_made_for_it(store: SqliteStore, duty: str) -> None:
    sql, index = PLANS[duty]
    lines = plan(store, sql)
    assert wasteful(lines) == []
    assert [line for line in lines if "holdfast_jobs" in line and f" {index} " in f"{line} "], lines


# Every statement that the hot path really runs, whatever it is called in the source.


def turn(store: SqliteStore, clock: MovableClock) -> None:
    claims = claim(store, "email", "crawl", limit=5)
    store.list_heads()
    finish_some(store, claims)
    clock.advance(60)
    store.promote_jobs(100)
    store.next_due_at()
    late = [(expired.seq, expired.version) for expired in store.list_expired()]
    store.suspect_jobs(late)
    store.list_unsuspected("worker", late, patience=1.0)
    store.redate_leases(30)
    store.heartbeat("worker", late[:1], state="running", lease_seconds=30)
    store.write_progress("worker", [(seq, version, 0.5, None) for seq, version in late])
    store.list_cancelled("worker")
    store.prune_jobs(finished_before=store.now(), statuses=tuple(Status), limit=2)


def finish_some(store: SqliteStore, claims: list[Claim]) -> None:
    """Ends of every kind, one of them refused so that the batch is written one by one as well."""
    outcomes: list[Outcome] = [Completed(), Errored("boom"), Released(), LeaseEnded("gone")]
    ends = [ending(claimed, outcome) for claimed, outcome in zip(claims, outcomes, strict=False)]
    store.finish_jobs(ends)
    store.finish_jobs([*ends[:1], *(ending(claimed, Completed()) for claimed in claims[4:])])


def enqueue(store: SqliteStore, clock: MovableClock) -> None:
    store.insert_jobs([new_job("one", key="k", key_for=5, max_depth=100_000)])
    store.insert_jobs([new_job("two", key="k"), new_job("one")])
    store.insert_jobs([new_job(f"plain-{n}", type="crawl") for n in range(5)])


def operate(store: SqliteStore, clock: MovableClock) -> None:
    insert(store, "job", type="crawl", key="mine", key_for=5)
    store.get_job("job")
    store.cancel_job("job")
    store.retry_job("job", None)
    [claimed] = claim(store, "crawl")
    store.cancel_job("job")
    children = (new_job("child", type="crawl", parent_id="job"), new_job("job"))
    finish(store, claimed, Completed(), children=children)
    store.delete_job("job")
    store.count_jobs()
    store.count_ahead("child", 100)


def watch(store: SqliteStore, clock: MovableClock) -> None:
    """What somebody who looks every second asks."""
    for filter in (
        JobFilter(),
        JobFilter(statuses=("failed",), type="email"),
        JobFilter(statuses=("failed", RETRYING), type="email"),
        JobFilter(statuses=(RETRYING, "cancelled"), type="crawl"),
        JobFilter(parent_id="parent"),
        JobFilter(parent_id="parent", statuses=("failed",)),
        JobFilter(error="boom"),
        JobFilter(error="boom", type="email", sort="finished"),
        JobFilter(statuses=("completed",), since=0, until=store.now()),
        JobFilter(since=0, until=store.now(), type="email"),
        JobFilter(sort="finished", since=0, until=store.now()),
    ):
        store.count_matching(filter, 100)
    store.list_error_groups(10)


def retry_failed(store: SqliteStore, clock: MovableClock) -> None:
    insert(store, "dead", type="crawl", key="mine", max_attempts=1)
    [claimed] = claim(store, "crawl")
    finish(store, claimed, Errored("boom"))
    store.retry_failed_jobs(None, after=3, limit=2)
    store.retry_failed_jobs("crawl", after=3, limit=2)
    store.retry_failed_jobs(None, after=0, limit=2)


@pytest.mark.parametrize("work", [turn, enqueue, operate, watch, retry_failed])
def test_no_statement_reads_or_sorts_the_whole_table(
    store: SqliteStore, clock: MovableClock, work: Callable[[SqliteStore, MovableClock], None]
) -> None:
    insert(store, *(f"job-{n}" for n in range(10)))
    statements: set[str] = set()
    connection = store.database.connection()
    connection.set_trace_callback(statements.add)
    work(store, clock)
    connection.set_trace_callback(None)
    explained = {sql: wasteful(plan(store, sql, ())) for sql in statements if explainable(sql)}
    assert len(explained) >= 4
    assert {sql: lines for sql, lines in explained.items() if lines} == {}


def explainable(sql: str) -> bool:
    """Whether it is a statement on jobs that may grow with them.

    Those inside triggers are traced as comments; the first entry of an index is a scan in name only.
    """
    words = ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH")
    return (
        "holdfast_jobs" in sql
        and sql.strip().upper().startswith(words)
        and not sql.endswith("ORDER BY due_at LIMIT 1")
    )


def test_jobs_that_wait_for_a_retry_are_counted_in_their_own_index(store: SqliteStore) -> None:
    lines = traced_plans(store, store.count_retrying)
    assert lines == ["SCAN holdfast_jobs USING INDEX holdfast_jobs_retrying"]


def test_job_that_waits_longest_is_the_first_of_a_line_or_of_an_index(store: SqliteStore) -> None:
    lines = [line.replace("COVERING ", "") for line in plan(store, OLDEST, ())]
    looks = {line for line in lines if "holdfast_jobs" in line}
    assert looks == {
        "SCAN holdfast_jobs USING INDEX holdfast_jobs_pending",
        "SEARCH j USING INDEX holdfast_jobs_pending (type=? AND priority<?)",
        "SEARCH j USING INDEX holdfast_jobs_pending (type>?)",
        "SEARCH j USING INDEX holdfast_jobs_pending (type=? AND priority=?)",
        "SCAN holdfast_jobs USING INDEX holdfast_jobs_ready",
        "SEARCH holdfast_jobs USING INTEGER PRIMARY KEY (rowid=?)",
    }


def test_running_jobs_are_listed_from_their_own_index_in_its_order(store: SqliteStore) -> None:
    lines = traced_plans(store, lambda: store.list_running(100))
    assert lines == ["SCAN holdfast_jobs USING INDEX holdfast_jobs_leased"]


def test_jobs_that_finished_lately_are_found_by_when(store: SqliteStore) -> None:
    lines = traced_plans(store, lambda: store.count_finished(store.now()))
    assert wasteful(lines) == []
    [line] = [line for line in lines if "holdfast_jobs" in line]
    index = "SEARCH holdfast_jobs USING COVERING INDEX holdfast_jobs_finished"
    assert line == f"{index} (type=? AND status=? AND finished_at>?)"


def test_jobs_that_wait_for_a_retry_are_listed_from_their_own_index(store: SqliteStore) -> None:
    fail_once(store)
    filter = JobFilter(statuses=(RETRYING,), type="email", after=Place(0, 2**40))
    lines = traced_plans(store, lambda: store.list_jobs(filter))
    assert wasteful(lines) == []
    searches = [line for line in lines if line.startswith("SEARCH holdfast_jobs")]
    assert searches == [
        "SEARCH holdfast_jobs USING INDEX holdfast_jobs_retrying (type=? AND priority=? AND seq>? AND seq<?)",
        "SEARCH holdfast_jobs USING INTEGER PRIMARY KEY (rowid=?)",
    ]


def fail_once(store: SqliteStore) -> None:
    insert(store, "retrying", type="email", priority=9)
    finish(store, claim(store, limit=1)[0], Errored("boom"))


def traced_plans(store: SqliteStore, work: Callable[[], object]) -> list[str]:
    """The plans of the statements on jobs that some work runs."""
    statements: list[str] = []
    connection = store.database.connection()
    connection.set_trace_callback(statements.append)
    work()
    connection.set_trace_callback(None)
    return [line for sql in statements if explainable(sql) for line in plan(store, sql, ())]


# What it costs, counted in steps of SQLite's own machine.


def steps(store: SqliteStore, work: Callable[[], object]) -> int:
    """How many instructions SQLite executes for it."""
    count = 0

    def counting() -> int:
        nonlocal count
        count += 1
        return 0

    connection = store.database.connection()
    connection.set_progress_handler(counting, 1)
    work()
    connection.set_progress_handler(None, 1)
    return count


HOT: dict[str, Callable[[SqliteStore], object]] = {
    "claim": lambda store: claim(store, limit=5),
    "claim of nothing": lambda store: claim(store, "crawl"),
    "claim of a paused type": lambda store: claim(store, "paused"),
    "claim beside a paused type": lambda store: claim(store, "email", "paused", limit=5),
    "promote": lambda store: store.promote_jobs(10),
    "next due": lambda store: store.next_due_at(),
    "reap": lambda store: store.list_expired(),
    "redate": lambda store: store.redate_leases(30),
    "claim under limits": lambda store: claim(
        store,
        "email",
        "paused",
        limit=5,
        settings=settings_of(store, max_running={"": 50}, rate_limit={"": 9}),
    ),
    "claim under a limit of groups": lambda store: claim(
        store, limit=5, settings=settings_of(store, group_concurrency=2)
    ),
    "claim alone": lambda store: claim(store, limit=5, alone=True),
    "heads": lambda store: store.list_heads(),
    "enqueue": lambda store: store.insert_jobs([new_job("new", key="new", max_depth=100_000)]),
    "found key": lambda store: store.insert_jobs([new_job("found", key="held")]),
    "counts": lambda store: store.count_jobs(),
    "running": lambda store: store.list_running(100),
    "count": lambda store: store.count_matching(JobFilter(statuses=("completed",)), 10_000),
    "count of a type": lambda store: store.count_matching(JobFilter(type="email"), 10_000),
    "count of children": lambda store: store.count_matching(JobFilter(parent_id="held"), 10_000),
    "retrying": lambda store: store.count_retrying(),
    "error groups": lambda store: store.list_error_groups(10),
    "count of what is retrying": lambda store: store.count_matching(JobFilter(statuses=(RETRYING,)), 10_000),
    "finished lately": lambda store: store.count_finished(store.now() + 1),
    "oldest": lambda store: store.oldest_waiting(),
    "ever enqueued": lambda store: store.count_enqueued(),
    "page": lambda store: store.list_placed(JobFilter(limit=5, brief=True)),
    "page of a type": lambda store: store.list_placed(JobFilter(limit=5, type="email", brief=True)),
    "by id": lambda store: store.get_jobs(["held", "job-3", "nobody"]),
    "whole, by id": lambda store: store.get_whole_jobs(["held", "job-3", "nobody"], 1000),
    "stop request": lambda store: store.get_stop_request("worker"),
}


def test_cost_does_not_grow_with_what_waits_or_is_over(tmp_path: Path, clock: MovableClock) -> None:
    costs: dict[str, list[int]] = {duty: [] for duty in HOT}
    for filled in (False, True):
        path = tmp_path / f"{filled}.db"
        with closing(open_store(f"sqlite:///{path}?synchronous=off", clock)) as store:
            store.set_paused("paused", True)
            insert(store, "one", type="paused")  # so that both have the same types, and states of these
            one_of_each_state(store)
            if filled:
                fill(store)
            insert(store, *(f"job-{n}" for n in range(10)))
            insert(store, "held", key="held", delay=60)
            store.database.checkpoint()
        for number, duty in enumerate(HOT):
            copied = shutil.copyfile(path, tmp_path / f"{filled}-{number}.db")
            with closing(open_store(f"sqlite:///{copied}?synchronous=off", clock)) as store:
                costs[duty].append(steps(store, lambda store=store, duty=duty: HOT[duty](store)))  # type: ignore[misc]
    for duty, (small, large) in costs.items():
        assert large <= 1.5 * small + 50, f"{duty}: {small} steps, and {large} with 2500 more jobs"


@pytest.mark.parametrize(
    ("fair", "limits"),
    [(True, {}), (False, {"group_concurrency": 1}), (True, {"group_concurrency": 1})],
    ids=["fair", "limited", "both"],
)
def test_claim_by_groups_costs_the_same_however_many_there_are(
    tmp_path: Path, clock: MovableClock, fair: bool, limits: dict[str, int]
) -> None:
    costs = []
    for small, big in ((100, 1500), (10_000, 15_000)):
        with closing(open_store(f"sqlite:///{tmp_path / f'{small}.db'}?synchronous=off", clock)) as store:
            store.insert_jobs([new_job(f"big-{n}", group="big") for n in range(big)])
            store.insert_jobs([new_job(f"small-{n}", group=f"g{n}", priority=n % 2) for n in range(small)])
            settings = settings_of(store, fair=fair, **limits)
            assert len(claim(store, limit=20, settings=settings)) == 20  # and has looked for lone jobs

            def again(store: SqliteStore = store, settings: Settings = settings) -> None:
                assert len(claim(store, limit=20, settings=settings)) == 20

            costs.append(steps(store, again))
    assert costs[1] <= 1.5 * costs[0] + 50, f"{costs[0]} steps, and {costs[1]} with 10,000 groups"


def test_search_for_reused_keys_costs_nothing_for_jobs_without_one(
    tmp_path: Path, clock: MovableClock
) -> None:
    costs = []
    for more in (0, 2000):
        with closing(open_store(f"sqlite:///{tmp_path / f'{more}.db'}?synchronous=off", clock)) as store:
            insert(store, "keyed", key="k")
            insert(store, *(f"keyless-{n}" for n in range(more)))
            costs.append(steps(store, lambda store=store: store.list_reused_keys(10)))  # type: ignore[misc]
    assert costs[1] <= 1.5 * costs[0] + 50, f"{costs[0]} steps, and {costs[1]} with 2000 more jobs"


def test_which_types_are_busy_costs_nothing_for_jobs_that_wait_for_a_retry(
    tmp_path: Path, clock: MovableClock
) -> None:
    costs = []
    for count in (1, 600):
        with closing(open_store(f"sqlite:///{tmp_path / f'{count}.db'}?synchronous=off", clock)) as store:
            insert(store, *(f"job-{n}" for n in range(count)))
            store.finish_jobs([ending(claimed, Errored("boom")) for claimed in claim(store, limit=count)])
            costs.append(steps(store, lambda store=store: store.list_busy_types()))  # type: ignore[misc]
    assert costs[1] <= 1.5 * costs[0] + 50, f"{costs[0]} steps, and {costs[1]} with 600 jobs"


def test_prune_reads_a_bounded_number_of_jobs_that_hold_their_keys(
    tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "MOST_READ", 100)
    costs = []
    for count in (100, 1000):
        with closing(open_store(f"sqlite:///{tmp_path / f'{count}.db'}?synchronous=off", clock)) as store:
            store.insert_jobs([new_job(f"job-{n}", key=f"key-{n}", key_for=3600) for n in range(count)])
            store.finish_jobs([ending(claimed, Completed()) for claimed in claim(store, limit=count)])
            before = store.now() + 1
            costs.append(
                steps(
                    store,
                    lambda store=store, before=before: store.prune_jobs(  # type: ignore[misc]
                        finished_before=before, statuses=(Status.COMPLETED,), limit=50
                    ),
                )
            )
    assert costs[1] <= 1.5 * costs[0] + 50, f"{costs[0]} steps, and {costs[1]} with 1000 keys"


@pytest.mark.parametrize("analyzed", [False, True])
def test_key_that_was_used_often_is_still_found_at_once(
    tmp_path: Path, clock: MovableClock, analyzed: bool
) -> None:
    """One job holds it, however many had it before. When it was analyzed, no key had been used twice."""
    costs = []
    for times in (1, 300):
        with closing(open_store(f"sqlite:///{tmp_path / f'{times}.db'}?synchronous=off", clock)) as store:
            store.insert_jobs([new_job(f"other-{n}", key=f"key-{n}", delay=60) for n in range(300)])
            if analyzed:
                store.database.connection().execute("ANALYZE")
            for n in range(times):
                insert(store, f"before-{n}", key="nightly")
                finish(store, claim(store)[0])
            insert(store, "holder", key="nightly")
            work = partial(store.insert_jobs, [new_job("again", key="nightly")])
            costs.append(steps(store, work))
    assert costs[1] <= 1.5 * costs[0] + 50, f"{costs[0]} steps, and {costs[1]} after 300 uses"


# Pages of a long list.

LONG = 50_000
PAGE = 20
MOST_STEPS = 20_000
"""Of a page or a capped count, whatever it is of; reading the whole list takes many times as many."""

FILL = f"""
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {LONG}),
drafts AS (SELECT n,
    CASE WHEN n % 5000 = 5 THEN 'rare' WHEN n % 8 < 4 THEN 'email' ELSE 'crawl' END AS type,
    CASE WHEN n % 6250 = 3 THEN 'cancelled' WHEN n % 12500 = 7 THEN 'processing' ELSE
        CASE n % 4 WHEN 0 THEN 'pending' WHEN 1 THEN 'completed' WHEN 2 THEN 'failed' ELSE 'scheduled' END
    END AS status,
    iif(n % 5000 = 2, 'rare', 'group-' || (n / 4 % 3)) AS error FROM numbers)
INSERT INTO holdfast_jobs (id, type, status, priority, attempts, due_at, created_at, updated_at, finished_at,
    error, error_group, lease_expires_at, token, payload)
SELECT 'job-' || n, type, status, n * 31 % 5 - 2, n % 3 = 0, n, n * 40, n * 40,
    iif(status IN ('completed', 'failed', 'cancelled'), (n * 40 + n % 97 * 1000) / 500 * 500, NULL),
    iif(status = 'failed', error, NULL), iif(status = 'failed', error, NULL),
    iif(status = 'processing', n, NULL), 'token', '{{}}'
FROM drafts
"""

PAGED: dict[str, JobFilter] = {
    "all": JobFilter(),
    "type": JobFilter(type="email"),
    "rare type": JobFilter(type="rare"),
    "no type": JobFilter(type="nobody"),
    "pending": JobFilter(statuses=("pending",)),
    "completed": JobFilter(statuses=("completed",)),
    "failed": JobFilter(statuses=("failed",)),
    "cancelled, which are few": JobFilter(statuses=("cancelled",)),
    "running, which are few": JobFilter(statuses=("processing",)),
    "failed of a type": JobFilter(statuses=("failed",), type="crawl"),
    "completed of a rare type": JobFilter(statuses=("completed",), type="rare"),
    "failed of a rare type, of which there are none": JobFilter(statuses=("failed",), type="rare"),
    "retrying": JobFilter(statuses=(RETRYING,)),
    "retrying of a type": JobFilter(statuses=(RETRYING,), type="email"),
    "unfinished": JobFilter(statuses=("pending", "scheduled", "processing")),
    "several": JobFilter(statuses=("failed", "cancelled", RETRYING)),
    "error": JobFilter(error="group-1"),
    "rare error": JobFilter(error="rare"),
    "error of a type": JobFilter(error="group-1", type="email"),
    "time": JobFilter(since=500_000, until=1_500_000),
    "short time": JobFilter(since=1_000_000, until=1_000_500),
    "time of a type": JobFilter(since=500_000, type="crawl"),
    "time of a state": JobFilter(until=1_500_000, statuses=("failed",)),
    "short time of states": JobFilter(since=1_000_000, until=1_000_500, statuses=("pending", "completed")),
    "time of an error": JobFilter(since=500_000, until=1_500_000, error="group-2"),
}


class Long:
    """The long list, and all its rows as Python sees them."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.rows = store.database.read(
            "SELECT seq, type, status, priority, attempts, created_at, finished_at, error_group"
            " FROM holdfast_jobs"
        )

        self._known: dict[JobFilter, list[Place]] = {}

    def places(self, filter: JobFilter) -> list[Place]:
        """The places of what a filter finds, in its order; looked at one by one."""
        if filter.ascending:
            return self.places(replace(filter, ascending=False))[::-1]
        if filter not in self._known:
            self._known[filter] = sorted(self._found(filter), reverse=True)
        return self._known[filter]

    def _found(self, filter: JobFilter) -> Iterator[Place]:
        for seq, type, status, priority, attempts, created_at, finished_at, error in self.rows:
            words = {status, RETRYING} if status == "scheduled" and attempts else {status}
            moment = finished_at if filter.sort == "finished" else created_at
            if (
                (not filter.statuses or words & set(filter.statuses))
                and filter.type in (None, type)
                and filter.error in (None, error)
                and moment is not None
                and (filter.since is None or moment >= filter.since)
                and (filter.until is None or moment < filter.until)
            ):
                yield Place({"created": 0, "finished": finished_at, "priority": priority}[filter.sort], seq)


@pytest.fixture(scope="module")
def long_list(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Long]:
    """A queue with so many jobs, of two types and in four states; and few of another type and two more."""
    path = tmp_path_factory.mktemp("long") / "queue.db"
    clock = MovableClock(datetime(2030, 1, 1, tzinfo=UTC))
    with closing(open_store(f"sqlite:///{path}?synchronous=off", clock)) as store:
        with store.database.transaction() as connection:
            connection.execute(FILL)
            connection.execute(  # jobs are not inserted as failed ones, so no trigger counts these
                "INSERT INTO holdfast_errors (type, error_group, jobs, last_at)"
                " SELECT type, error_group, count(*), max(finished_at) FROM holdfast_jobs"
                " WHERE status = 'failed' GROUP BY type, error_group"
            )
        yield Long(store)


@pytest.mark.parametrize("sort", SORTS)
def test_page_costs_the_same_wherever_it_is(long_list: Long, sort: str) -> None:
    """The first one, one in the middle and the last of many jobs, both ways round, counted in steps."""
    store = long_list.store
    for kind, ascending in product(PAGED, (False, True)):
        filter = replace(PAGED[kind], sort=sort, ascending=ascending)
        places = long_list.places(filter)
        for begin in sorted({0, len(places) // 2, max(0, len(places) - PAGE)}):
            asked = replace(filter, limit=PAGE, brief=True, after=places[begin - 1] if begin else None)
            found: list[Any] = []
            cost = steps(store, lambda asked=asked, found=found: found.append(store.list_placed(asked)))  # type: ignore[misc]
            [(listed, following)] = found
            assert [placed.place for placed in listed] == places[begin : begin + PAGE], kind
            assert following == (places[begin + PAGE - 1] if begin + PAGE < len(places) else None), kind
            assert cost <= MOST_STEPS, f"{kind}: {cost} steps from job {begin} of {len(places)}"


@pytest.mark.parametrize("sort", SORTS)
def test_count_costs_no_more_than_its_cap(long_list: Long, sort: str) -> None:
    store = long_list.store
    for kind, plain in PAGED.items():
        filter = replace(plain, sort=sort)
        places = long_list.places(filter)
        found: list[int] = []
        cost = steps(store, lambda f=filter, found=found: found.append(store.count_matching(f, 200)))  # type: ignore[misc]
        assert found == [min(200, len(places))], kind
        assert cost <= MOST_STEPS, kind
        assert store.count_matching(filter, LONG) == len(places), kind


def test_page_by_offset_is_what_costs_more(long_list: Long) -> None:
    """So the count of steps does show it."""
    store = long_list.store
    near = steps(store, lambda: store.list_placed(JobFilter(limit=PAGE)))
    far = steps(store, lambda: store.list_placed(JobFilter(limit=PAGE, offset=LONG - PAGE)))
    assert near < MOST_STEPS < far


def test_jobs_that_all_ended_at_once_are_paged_at_the_same_cost(tmp_path: Path, clock: MovableClock) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'queue.db'}?synchronous=off", clock)) as store:
        with store.database.transaction() as connection:
            connection.execute(BURY.replace("'completed', n, n, n, n,", "'completed', n, n, n, 7,"))
        for ascending, seq, following in ((False, 1000, 999), (True, BURIED - 1000, BURIED - 999)):
            filter = JobFilter(sort="finished", ascending=ascending, after=Place(7, seq), limit=1)
            found: list[Any] = []
            cost = steps(store, lambda filter=filter, found=found: found.append(store.list_placed(filter)))  # type: ignore[misc]
            assert found[0][0][0].place == Place(7, following)
            assert cost <= 1000


def test_page_of_running_jobs_costs_what_few_jobs_cost(long_list: Long) -> None:
    store = long_list.store
    for filter in (
        JobFilter(statuses=("processing",)),
        JobFilter(statuses=("processing",), after=Place(0, 9)),
    ):
        assert steps(store, lambda filter=filter: store.list_placed(filter)) <= 1000  # type: ignore[misc]


def test_pages_are_not_sorted(store: SqliteStore) -> None:
    for (kind, plain), sort, after in product(PAGED.items(), SORTS, (None, Place(0, 100))):
        filter = replace(plain, sort=sort, after=after)
        runs = sort != "finished" and (
            "processing" in filter.statuses
            or (not filter.statuses and not filter.error and (sort == "priority" or filter.type is not None))
        )
        lines = traced_plans(store, lambda filter=filter: store.list_placed(filter))  # type: ignore[misc]
        # But for those that run, which are few.
        assert len([line for line in lines if "TEMP B-TREE" in line]) <= runs, (kind, sort, lines)


BURIED = 50_000
STATES = [*Status, RETRYING]

BURY = f"""
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {BURIED})
INSERT INTO holdfast_jobs (id, type, status, due_at, created_at, updated_at, finished_at, token, payload)
SELECT 'over-' || n, iif(n % 2, 'email', 'crawl'), 'completed', n, n, n, n, 'token', '{{}}' FROM numbers
"""


def few_of_each_state(store: SqliteStore) -> None:
    """Sixty jobs of two types and three priorities, ten in each state but completed; and ten that retry."""
    for number, status in enumerate([s for s in Status if s is not Status.COMPLETED] * 10):
        finished = number if status in (Status.FAILED, Status.CANCELLED) else None
        _add(store, f"{status.value}-{number}", status, number, 0, finished)
    for number in range(10):
        _add(store, f"retrying-{number}", Status.SCHEDULED, number, 1, None)


def _add(
    store: SqliteStore, id: str, status: Status, number: int, attempts: int, finished: int | None
) -> None:
    with store.database.transaction() as connection:
        connection.execute(
            "INSERT INTO holdfast_jobs (id, type, status, priority, attempts, due_at, created_at, updated_at,"
            " finished_at, lease_expires_at, token, payload)"
            " VALUES (?, ?, ?, ?, ?, 1, 1, 1, ?, 1, 't', '{}')",
            (id, "email" if number % 3 else "crawl", status.value, number % 3, attempts, finished),
        )


@pytest.fixture(scope="module")
def buried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    """A few jobs of each state below many newer ones that are over."""
    path = tmp_path_factory.mktemp("buried") / "queue.db"
    clock = MovableClock(datetime(2030, 1, 1, tzinfo=UTC))
    with closing(open_store(f"sqlite:///{path}?synchronous=off", clock)) as store:
        few_of_each_state(store)
        with store.database.transaction() as connection:
            connection.execute(BURY)
        yield store


def test_few_jobs_of_a_state_are_found_below_many_others(buried: SqliteStore) -> None:
    for status, type in product(STATES, (None, "email")):
        filter = JobFilter(statuses=(status,), type=type, limit=5, brief=True)
        found: list[Any] = []
        cost = steps(buried, lambda filter=filter, found=found: found.append(buried.list_placed(filter)))  # type: ignore[misc]
        assert cost <= 20_000, filter
        where, parameters = conditions(filter)
        expected = buried.database.read(
            f"SELECT id, seq FROM holdfast_jobs{where} ORDER BY seq DESC LIMIT 6", parameters
        )
        [(page, following)] = found
        assert [placed.job.id for placed in page] == [id for id, _ in expected[:5]], filter
        assert following == (Place(0, expected[4][1]) if len(expected) > 5 else None), filter


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {(ranges, "MOST_RANGES"): 1},
        {(ranges, "MOST_RANGES"): 6},
        {(pages, "MOST_PASSED_OVER"): 3},
        {(pages, "_AT_ONCE"): 1},
        {(pages, "_FEW"): 1, (pages, "_LEVELS_AT_ONCE"): 1},
    ],
    ids=lambda limits: " ".join(f"{name}={value}" for (_, name), value in limits.items()),
)
def test_pages_are_the_same_however_they_are_found(
    tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, limits: dict[Any, int]
) -> None:
    for (module, name), value in limits.items():
        monkeypatch.setattr(module, name, value)
    sorts = {
        "created": ("seq DESC", Place(0, 50)),
        "finished": ("finished_at DESC, seq DESC", Place(45, 50)),
        "priority": ("priority DESC, seq DESC", Place(1, 40)),
    }
    assert sorts.keys() == set(SORTS)
    several = [("pending", "failed"), ("scheduled", RETRYING), tuple(Status)]
    with closing(open_store(f"sqlite:///{tmp_path / 'queue.db'}?synchronous=off", clock)) as store:
        few_of_each_state(store)
        for (sort, (order, after)), statuses, type in product(
            sorts.items(), [(), *((s,) for s in STATES), *several], (None, "email", "nothing")
        ):
            filter = JobFilter(
                statuses=statuses, type=type, sort=sort, limit=4, offset=1, after=after, since=1, until=40
            )
            where, parameters = conditions(filter)
            expected = store.database.read(
                f"SELECT id FROM holdfast_jobs{where} ORDER BY {order} LIMIT 4 OFFSET 1", parameters
            )
            assert [job.id for job in store.list_jobs(filter)] == [id for (id,) in expected], filter


@pytest.mark.parametrize("ascending", [False, True])
def test_page_whose_first_priorities_are_of_another_time_is_complete(
    tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, ascending: bool
) -> None:
    """Of many priorities only the first are looked up; if those hold nothing, nothing is passed over."""
    monkeypatch.setattr(ranges, "MOST_RANGES", 8)
    with closing(open_store(f"sqlite:///{tmp_path / 'queue.db'}?synchronous=off", clock)) as store:
        for number in range(40):
            # The highest and the lowest are the oldest.
            insert(store, f"job-{number}", priority=(20 - number // 2) * (1 if number % 2 else -1))
        since = store.now() + 1
        clock.advance(1)
        insert(store, "other", type="crawl", priority=-30 if ascending else 30, delay=60)
        insert(store, "middle", priority=0)
        insert(store, "last", type="crawl", priority=40 if ascending else -40, delay=60)
        filter = JobFilter(since=since, sort="priority", ascending=ascending, limit=1)
        found = []
        for _ in range(3):
            placed, following = store.list_placed(filter)
            found += [one.job.id for one in placed]
            filter = replace(filter, after=following)
        assert found == ["other", "middle", "last"]


def test_job_that_starts_while_a_page_is_read_is_not_missed(
    tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another handle takes it after the ranges were looked up, and before they are read."""
    url = f"sqlite:///{tmp_path / 'queue.db'}?synchronous=off"
    with closing(open_store(url, clock)) as store, closing(open_store(url, clock)) as other:
        insert(store, "job")
        ends_of = pages._ends_of

        def raced(*given: Any) -> Any:
            claim(other)
            return ends_of(*given)

        monkeypatch.setattr(pages, "_ends_of", raced)
        for sort in ("created", "priority"):
            filter = JobFilter(statuses=("pending", "processing"), sort=sort)
            assert [job.id for job in store.list_jobs(filter)] == ["job"]
        assert other.count_jobs()["email"][Status.PROCESSING] == 1


def test_jobs_by_id_are_looked_up_one_by_one(store: SqliteStore) -> None:
    lines = traced_plans(store, lambda: store.get_jobs(["a", "b"]))
    assert [line for line in lines if line.startswith("SEARCH holdfast_jobs USING INDEX")], lines
    assert wasteful(lines) == []


BRIEF: dict[str, Callable[[SqliteStore], object]] = {
    "page": lambda store: store.list_placed(JobFilter(brief=True)),
    "page of failed": lambda store: store.list_placed(
        JobFilter(brief=True, statuses=("failed",), after=Place(0, 9))
    ),
    "by id": lambda store: store.get_jobs(["a", "b"]),
    "full page": lambda store: store.list_placed(JobFilter()),
}


@pytest.mark.parametrize("kind", BRIEF)
def test_large_columns_are_read_by_full_pages_alone(store: SqliteStore, kind: str) -> None:
    columns: set[str | None] = set()

    def watching(action: int, table: str | None, column: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_READ and table == "holdfast_jobs":
            columns.add(column)
        return sqlite3.SQLITE_OK

    connection = store.database.connection()
    connection.set_authorizer(watching)
    BRIEF[kind](store)
    connection.set_authorizer(None)
    assert {"id", "status", "error"} <= columns
    assert (columns & {"payload", "result"}) == ({"payload", "result"} if kind == "full page" else set())


def test_wasteful_plans_are_recognised(store: SqliteStore) -> None:
    assert wasteful(plan(store, "SELECT count(*) FROM holdfast_jobs WHERE error IS NOT NULL"))
    assert wasteful(plan(store, "SELECT 1 FROM holdfast_jobs WHERE seq > 5 ORDER BY priority"))
    assert not wasteful(plan(store, "SELECT 1 FROM holdfast_jobs WHERE seq = 5"))
