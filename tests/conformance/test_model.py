"""A store and a small model are driven by the same random operations and must agree after every one.

A failure prints the shortest sequence of steps that shows it. Hypothesis keeps it in `.hypothesis` and tries
it first next time; every id, token and instant in it is counted, so that it replays exactly.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.backoff import Backoff
from holdfast.core.clock import SECOND, from_datetime
from holdfast.core.filter import SORTS
from holdfast.core.job import FINISHED, RETRYING, Job, Status
from holdfast.core.lifecycle import (
    Completed,
    Errored,
    LeaseEnded,
    Outcome,
    Policy,
    Released,
    Stopped,
    decide,
)
from holdfast.core.settings import Depth, Settings
from holdfast.errors import HoldfastError
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, Claimed, Demand, Finish, JobFilter, NewJob
from holdfast.testing import MovableClock
from tests.conformance.engines import Engine
from tests.conformance.model import LOST_IN_A_ROW, Model, ModelClaim, ModelJob, Refused

pytestmark = pytest.mark.slow

EXAMPLES = {"sqlite": 200, "postgres": 100}
"""A server takes longer for a step than a file."""
STEPS = 50

START = datetime(2030, 1, 1, tzinfo=UTC)
TABLES = ("jobs", "failures", "links", "pauses", "limits", "settings")

KEY_HOLDERS = """
SELECT type, key, id FROM holdfast_jobs
WHERE CAST(key_held AS INTEGER) = 1 AND (key_until IS NULL OR key_until > {now})
"""
COUNTS = "SELECT type, status, count(*) FROM holdfast_jobs GROUP BY type, status"

TYPES = ["crawl", "email", "email:lane"]
types = st.sampled_from(TYPES)
workers = st.sampled_from(["w1", "w2"])
payloads = st.sampled_from(['{"n": 1}', '{"n": 2}'])
keys = st.sampled_from([None, "k1", "k1", "k2"])
few = st.integers(1, 4)
leases = st.sampled_from([5.0, 20.0])
picks = st.lists(st.integers(0, 1000), max_size=4)
"""Numbers that choose among what there is, whatever there is."""
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [
        Completed('{"ok": true}'),
        Completed(None),
        Errored("boom"),
        Errored("wait", delay=3.0),
        Errored("never 7", permanent=True),
        LeaseEnded("gone"),
        Released(),
        Stopped(),
        Stopped("stopped"),
    ]
)


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    key = draw(keys)
    return {
        "type": draw(types),
        "group": draw(st.sampled_from([None, None, "g", "g", "h"])),
        "payload": draw(payloads),
        "priority": draw(st.integers(-1, 1)),
        "delay": draw(st.sampled_from([None, None, 0.0, 4.0, 15.0])),
        "max_attempts": draw(st.sampled_from([None, 1, 2])),
        "key": key,
        "key_for": draw(st.sampled_from([None, 12.0])) if key else None,
        "max_depth": draw(st.sampled_from([None, None, None, (2, "email"), (3, "")])),
    }


class StoreMachine(RuleBasedStateMachine):
    """The rules take numbers where they mean one of the jobs or attempts there are."""

    def __init__(self, store: Store, clock: MovableClock, connection: Any, tables: Sequence[str]) -> None:
        super().__init__()
        self.tables = tables
        self.store = store
        self.clock = clock
        self.connection = connection
        self.model = Model()
        self.claims: list[tuple[Claim, ModelClaim]] = []
        self.numbers = itertools.count(1)

    @initialize(stock=st.lists(options(), min_size=3, max_size=6))
    def begin(self, stock: list[dict[str, Any]]) -> None:
        for table in self.tables:
            self.connection.execute(f"DELETE FROM holdfast_{table}")
        self.clock.move_to(START)
        self.model.now = self.clock()
        self.insert_all([self.new_job(given) for given in stock])

    # Enqueue.

    def new_job(self, given: dict[str, Any], id: str | None = None) -> NewJob:
        number = next(self.numbers)
        size, name = given["max_depth"] or (None, "")
        depth = Depth(size, name, ("email:lane",)) if size is not None else None
        options = {**given, "max_depth": depth}
        return NewJob(id=id or f"job-{number}", token=f"token-{number}", **options)

    @rule(given=options(), taken=st.none() | st.integers(0, 1000))
    def insert(self, given: dict[str, Any], taken: int | None) -> None:
        ids = list(self.model.jobs)
        id = ids[taken % len(ids)] if taken is not None and ids else None
        self.insert_all([self.new_job(given, id)])

    @rule(given=st.lists(options(), min_size=2, max_size=4))
    def insert_many(self, given: list[dict[str, Any]]) -> None:
        self.insert_all([self.new_job(one) for one in given])

    @rule(given=options(), count=st.integers(2, 4), taken=st.booleans())
    def insert_plain_batch(self, given: dict[str, Any], count: int, taken: bool) -> None:
        """Without keys and depths a store may insert a batch in a faster way."""
        plain = {**given, "key": None, "key_for": None, "max_depth": None}
        jobs = [self.new_job(plain) for _ in range(count)]
        if taken and self.model.jobs:
            jobs[1] = self.new_job(plain, next(iter(self.model.jobs)))
        self.insert_all(jobs)

    def insert_all(self, jobs: list[NewJob]) -> None:
        for new, verdict in zip(jobs, self.store.insert_jobs(jobs), strict=True):
            error = None if verdict.error is None else type(verdict.error)
            try:
                expected: Any = (*self.model.insert(new), None)
            except Refused as refused:
                expected = (verdict.id, False, refused.error)
            assert (verdict.id, verdict.inserted, error) == expected

    # The turn.

    @rule(
        worker=workers,
        wanted=st.sets(types, min_size=1),
        limit=few,
        lease=leases,
        alone=st.sampled_from([False, False, True]),
    )
    def claim(self, worker: str, wanted: set[str], limit: int, lease: float, alone: bool) -> None:
        demands = [demand(type, limit) for type in sorted(wanted)]
        self.claim_by(worker, demands, limit, lease, alone=alone)

    def claim_by(
        self, worker: str, demands: list[Demand], limit: int, lease: float, *, alone: bool = False
    ) -> list[Claim]:
        stale = Settings({}, version=self.store.read_settings().version - 1)
        refused = self.store.claim_jobs(worker, demands, stale, limit=limit, lease_seconds=lease, alone=alone)
        assert refused == Claimed([], is_stale=True)
        claimed = self.store.claim_jobs(worker, demands, limit=limit, lease_seconds=lease, alone=alone).claims
        expected = self.model.claim(worker, demands, limit, lease, alone=alone)
        assert [seen(c) for c in claimed] == [
            (m.job.new.id, m.job.payload, m.job.attempts, m.job.max_attempts, m.version, m.worker)
            for m in expected
        ]
        self.claims += zip(claimed, expected, strict=True)
        return claimed

    @rule(worker=workers, ends=st.lists(outcomes, min_size=4, max_size=4))
    def serve(self, worker: str, ends: list[Outcome]) -> None:
        """A turn of a worker whose handlers end at once."""
        claimed = self.claim_by(worker, [demand(type, 4) for type in TYPES], 4, 20.0)
        self.offer([ending(claim, outcome) for claim, outcome in zip(claimed, ends, strict=False)])

    def picked(self, numbers: list[int]) -> list[tuple[Claim, ModelClaim]]:
        """Attempts that were made at any time, each once; most are over, as those of zombies are."""
        count = len(self.claims)
        return [self.claims[n] for n in dict.fromkeys(number % count for number in numbers)] if count else []

    @precondition(lambda self: self.claims)
    @rule(numbers=picks, ends=st.lists(outcomes, min_size=4, max_size=4), child=st.none() | options())
    def finish(self, numbers: list[int], ends: list[Outcome], child: dict[str, Any] | None) -> None:
        picked = self.picked(numbers)
        finishes = [
            ending(claim, outcome, (self.new_child(claim, child),) if child else ())
            for (claim, _), outcome in zip(picked, ends, strict=False)
        ]
        # A store may write completions first, and each kind in the order of the jobs; who comes first gets a
        # key, and its child the lower number.
        finishes.sort(key=lambda f: (f.decision.status is not Status.COMPLETED, f.seq))
        if child and child["key"] is not None:  # nor is it said whether all end before the first child comes
            for finish in finishes:
                self.offer([finish])
        else:
            self.offer(finishes)

    @precondition(lambda self: any(self.model.owns(claim) for _, claim in self.claims))
    @rule(number=st.integers(0, 1000), outcome=outcomes)
    def finish_running(self, number: int, outcome: Outcome) -> None:
        running = [claim for claim, model in self.claims if self.model.owns(model)]
        self.offer([ending(running[number % len(running)], outcome)])

    @precondition(lambda self: self.zombies())
    @rule(number=st.integers(0, 1000), outcome=outcomes)
    def finish_late(self, number: int, outcome: Outcome) -> None:
        """An attempt that lost its job ends while another attempt runs it."""
        late = self.zombies()
        self.offer([ending(late[number % len(late)], outcome)])

    def zombies(self) -> list[Claim]:
        return [
            claim
            for claim, model in self.claims
            if model.job.status is Status.PROCESSING and not self.model.owns(model)
        ]

    @precondition(lambda self: any(self.model.owns(claim) for _, claim in self.claims))
    @rule(number=st.integers(0, 1000), outcome=outcomes)
    def finish_by_another(self, number: int, outcome: Outcome) -> None:
        """A worker ends an attempt that is not its own."""
        running = [claim for claim, model in self.claims if self.model.owns(model)]
        forged = msgspec.structs.replace(running[number % len(running)], worker_id="nobody")
        assert self.store.finish_jobs([ending(forged, outcome)]) == {}

    @rule(worker=workers)
    def suspend(self, worker: str) -> None:
        """Every lease runs out, all is reaped, and a worker, perhaps the same, takes what there is."""
        self.advance(30)
        self.reap()
        self.claim_by(worker, [demand(type, 4) for type in TYPES], 4, 20.0)

    def new_child(self, parent: Claim, given: dict[str, Any]) -> NewJob:
        # A full type does not keep a child out.
        return self.new_job({**given, "parent_id": parent.id, "max_depth": None})

    def offer(self, finishes: list[Finish]) -> None:
        ended = self.store.finish_jobs(finishes)
        expected = {}
        for finish in finishes:
            claim = self.claim_of(finish)
            led_to = self.model.finish(
                claim, finish.decision, finish.children, expired_only=finish.expired_only
            )
            if led_to is not None:
                expected[finish.seq, finish.version] = led_to
        assert ended == expected

    def claim_of(self, finish: Finish) -> ModelClaim:
        return next(m for c, m in self.claims if (c.seq, c.version) == (finish.seq, finish.version))

    @rule()
    def reap(self) -> None:
        expired = self.store.list_expired()
        assert {(x.id, x.version) for x in expired} == {
            (job.new.id, job.version) for job in self.model.jobs.values() if self.model.is_expired(job)
        }
        policies = [(x, Policy(x.max_attempts, Backoff())) for x in expired]
        self.offer(
            [
                Finish(
                    seq=x.seq,
                    type=x.type,
                    version=x.version,
                    worker_id=x.worker_id,
                    attempt=x.attempts,
                    decision=decide(x.attempts, LeaseEnded("lost"), policy, 0.5),
                    started_at=x.started_at,
                    expired_only=True,
                )
                for x, policy in policies
            ]
        )

    @precondition(lambda self: self.claims)
    @rule(numbers=picks)
    def reap_what_was_seen_long_ago(self, numbers: list[int]) -> None:
        self.offer([ending(c, LeaseEnded("lost"), expired_only=True) for c, _ in self.picked(numbers)])

    @precondition(lambda self: self.claims)
    @rule(worker=workers, numbers=picks, lease=leases)
    def renew(self, worker: str, numbers: list[int], lease: float) -> None:
        zombies = self.zombies()
        held = [
            (claim, model)
            for claim, model in self.claims
            if claim.worker_id == worker and (claim in zombies or (claim, model) in self.picked(numbers))
        ]
        beat = self.store.heartbeat(
            worker, [(c.seq, c.version) for c, _ in held], state="running", lease_seconds=lease
        )
        assert beat.lost == {(c.seq, c.version) for c, m in held if not self.model.renew(m, lease)}
        assert beat.cancelled == {
            (c.seq, c.version)
            for c, m in self.claims
            if m.worker == worker and m.job.cancel_requested and self.model.owns(m)
        }

    @rule(limit=few)
    def promote(self, limit: int) -> None:
        due = sorted(self.model.due(), key=_urgency)
        promoted = self.store.promote_jobs(limit)
        chosen = [self.model.jobs[id] for id, _ in promoted]
        # Among those of one priority that are due at one instant, any may come first.
        assert sorted(map(_urgency, chosen)) == [_urgency(job) for job in due[:limit]]
        assert set(chosen) <= set(due)
        for id, type in promoted:
            assert self.model.jobs[id].new.type == type
            self.model.promote(id)

    @rule(
        age=st.sampled_from([0, 0, 10]),
        statuses=st.just(set(FINISHED)) | st.sets(st.sampled_from(sorted(FINISHED))),
        limit=few,
    )
    def prune(self, age: int, statuses: set[Status], limit: int) -> None:
        before = self.clock() - age * SECOND
        prunable = self.model.prunable(before, statuses)
        pruned = self.store.prune_jobs(finished_before=before, statuses=sorted(statuses), limit=limit)
        assert len(pruned) == min(limit, len(prunable))
        kept = {job.id for job in self.all_jobs()}
        gone = [job for job in self.model.jobs.values() if job.new.id not in kept]
        assert set(gone) <= set(prunable)
        for job in gone:
            del self.model.jobs[job.new.id]

    # People.

    def some_id(self, number: int, *, of: set[Status] | None = None) -> str:
        """The id of a job in one of these states, if there is any and the number is even; else of any."""
        ids = [*self.model.jobs, "unknown"]
        if of is not None and number % 2 == 0:
            ids = [id for id, job in self.model.jobs.items() if job.status in of] or ids
        return ids[number // 2 % len(ids)]

    def attempted(self, of_store: Callable[[], Any], of_model: Callable[[], None]) -> None:
        """Do the same to both; both must refuse, for the same reason, or neither."""
        error: type[Exception] | None = None
        refused: type[Exception] | None = None
        try:
            of_store()
        except HoldfastError as raised:
            error = type(raised)
        try:
            of_model()
        except Refused as raised:
            refused = raised.error
        assert error is refused

    @rule(number=st.integers(0, 1000))
    def cancel(self, number: int) -> None:
        id = self.some_id(number, of={Status.PROCESSING})
        self.attempted(lambda: self.store.cancel_job(id), lambda: self.model.cancel(id))

    @rule(number=st.integers(0, 1000), payload=st.none() | payloads)
    def retry(self, number: int, payload: str | None) -> None:
        id = self.some_id(number, of={Status.FAILED, Status.CANCELLED, Status.SCHEDULED})
        self.attempted(lambda: self.store.retry_job(id, payload), lambda: self.model.retry(id, payload))

    @rule(number=st.integers(0, 1000))
    def delete(self, number: int) -> None:
        id = self.some_id(number, of=set(FINISHED))
        self.attempted(lambda: self.store.delete_job(id), lambda: self.model.delete(id))

    @rule(type=st.sampled_from(["", *TYPES]), paused=st.sampled_from([True, False, False]))
    def pause_or_resume(self, type: str, paused: bool) -> None:
        self.store.set_paused(type, paused)
        (self.model.paused.add if paused else self.model.paused.discard)(type)
        assert set(self.store.list_paused()) == self.model.paused

    @rule(
        limit=st.sampled_from(["max_running", "group_concurrency"]),
        type=st.sampled_from(["", *TYPES]),
        size=st.sampled_from([None, None, 1, 2, 3]),
    )
    def set_limit(self, limit: str, type: str, size: int | None) -> None:
        if size is None:
            assert self.store.unset_setting(limit, type) == ((limit, type) in self.model.limits)
            self.model.limits.pop((limit, type), None)
        else:
            self.store.set_setting(limit, type, size)
            self.model.limits[limit, type] = size

    @invariant()
    def heads_agree(self) -> None:
        """Those of the jobs that an ordinary claim takes."""
        waiting = [
            job
            for job in self.model.jobs.values()
            if job.status is Status.PENDING and job.losses < LOST_IN_A_ROW
        ]
        first: dict[str, int] = {}
        for job in waiting:
            first[job.new.type] = max(first.get(job.new.type, -9), job.new.priority)
        assert {head.type: head.priority for head in self.store.list_heads()} == first

    @rule(seconds=st.sampled_from([1, 4, 10, 30]))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.model.now = self.clock()

    @rule(
        size=st.integers(1, 5),
        words=st.sets(st.sampled_from([*Status, RETRYING]), max_size=3),
        type=st.none() | types,
        error=st.sampled_from([None, None, None, "boom", "never #"]),
        sort=st.sampled_from(SORTS),
        ascending=st.booleans(),
        ages=st.tuples(*[st.sampled_from([None, None, 0, 4, 20])] * 2),
        brief=st.booleans(),
    )
    def read_page_by_page(
        self,
        size: int,
        words: set[str],
        type: str | None,
        error: str | None,
        sort: str,
        ascending: bool,
        ages: tuple[int | None, int | None],
        brief: bool,
    ) -> None:
        since, until = (None if age is None else self.clock() - age * SECOND for age in ages)
        filter = JobFilter(
            statuses=tuple(sorted(words)),
            type=type,
            error=error,
            since=since,
            until=until,
            sort=sort,
            ascending=ascending,
            limit=size,
            brief=brief,
        )
        found: list[str] = []
        page, after = self.store.list_placed(filter)
        while True:
            assert len(page) == size or after is None
            found += [placed.job.id for placed in page]
            if after is None:
                break
            page, after = self.store.list_placed(msgspec.structs.replace(filter, after=after))
        assert found == self.model.listed(filter)
        assert self.store.count_matching(filter, 1000) == len(found)
        assert self.store.count_matching(filter, 2) == min(2, len(found))
        assert {job.id for job in self.store.get_jobs([*found, "nobody"])} == set(found)

    # After every step.

    def all_jobs(self) -> list[Job]:
        return list(reversed(self.store.list_jobs(JobFilter(limit=10_000))))

    @invariant()
    def jobs_agree(self) -> None:
        assert [as_seen(job) for job in self.all_jobs()] == [
            as_modelled(job) for job in self.model.jobs.values()
        ]

    @invariant()
    def key_holders_agree(self) -> None:
        rows = self.connection.execute(KEY_HOLDERS.format(now=self.clock())).fetchall()
        assert sorted(map(tuple, rows)) == sorted(
            (job.new.type, job.new.key, job.new.id)
            for job in self.model.jobs.values()
            if self.model.holds_key(job)
        )

    @invariant()
    def counts_agree(self) -> None:
        counted: dict[str, dict[Status, int]] = {}
        for type, status, count in self.connection.execute(COUNTS).fetchall():
            counted.setdefault(type, dict.fromkeys(Status, 0))[Status(status)] = count
        assert self.store.count_jobs() == counted
        assert self.store.count_enqueued() == self.model.enqueued

    @invariant()
    def error_groups_agree(self) -> None:
        ends: dict[tuple[str, str], list[int]] = {}
        for job in self.model.jobs.values():
            if (error := self.model.group_of(job)) is not None:
                ends.setdefault((job.new.type, error), []).append(job.finished_at or 0)
        found = self.store.list_error_groups(1000)
        assert {(group.type, group.error): group.jobs for group in found} == {
            key: len(instants) for key, instants in ends.items()
        }
        assert [group.jobs for group in found] == sorted((group.jobs for group in found), reverse=True)
        for group in found:
            assert from_datetime(group.last_at) >= max(ends[group.type, group.error])

    def teardown(self) -> None:
        """The histories, once at the end: they take a query a job."""
        for id, modelled in self.model.jobs.items():
            found = self.store.get_job(id)
            assert found is not None
            assert len(found.errors) == modelled.failures


def _urgency(job: ModelJob) -> tuple[int, int]:
    return -job.new.priority, job.due_at


def demand(type: str, limit: int) -> Demand:
    return Demand(type=type, limit=limit, max_attempts=2)


def ending(claim: Claim, outcome: Outcome, children: tuple[NewJob, ...] = (), **given: Any) -> Finish:
    policy = Policy(claim.max_attempts, Backoff(strategy="linear", factor=2, jitter=0))
    return Finish(
        seq=claim.seq,
        type=claim.type,
        version=claim.version,
        worker_id=claim.worker_id,
        attempt=claim.attempts,
        decision=decide(claim.attempts, outcome, policy, 0.5),
        started_at=claim.due_at,
        children=children,
        **given,
    )


def seen(claim: Claim) -> tuple[Any, ...]:
    return claim.id, claim.payload, claim.attempts, claim.max_attempts, claim.version, claim.worker_id


def as_seen(job: Job) -> dict[str, Any]:
    """What the model knows of a job, from the store."""
    return {
        "id": job.id,
        "status": job.status,
        "payload": job.payload,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "version": job.version,
        "cancelling": job.cancel_requested and not job.is_finished,
        "worker": job.worker_id,
        "lease": job.lease_expires_at and from_datetime(job.lease_expires_at),
        "retry_at": job.next_retry_at and from_datetime(job.next_retry_at),
        "run_at": job.run_at,
        "finished_at": job.finished_at and from_datetime(job.finished_at),
        "error": job.error,
        "result": job.result,
        "parent": job.parent_id,
    }


def as_modelled(job: ModelJob) -> dict[str, Any]:
    waits_for_retry = job.status is Status.SCHEDULED and job.attempts > 0
    return {
        "id": job.new.id,
        "status": job.status,
        "payload": json.loads(job.payload),
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "version": job.version,
        "cancelling": job.cancel_requested and job.status not in FINISHED,
        "worker": job.worker,
        "lease": job.lease_until,
        "retry_at": job.due_at if waits_for_retry else None,
        "run_at": job.run_at,
        "finished_at": job.finished_at,
        "error": job.error,
        "result": job.result and json.loads(job.result),
        "parent": job.new.parent_id,
    }


@pytest.fixture
def drive(
    engine: Engine, tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], StoreMachine]]:
    """Makes machines on one database, which each of them empties first."""
    tables = (*TABLES, engine.counts)  # the last: what is deleted is counted
    try:
        with closing(engine.open(tmp_path, clock)) as store, closing(engine.connect(tmp_path)) as connection:
            if isinstance(store, PostgresStore):  # which ends what a busy machine leaves alone for too long
                monkeypatch.setattr(store.database, "_idle", 60.0)
            yield lambda: StoreMachine(store, clock, connection, tables)
    finally:
        engine.drop(tmp_path)


@pytest.mark.timeout(600)
def test_store_and_model_agree(drive: Callable[[], StoreMachine], engine: Engine) -> None:
    run_state_machine_as_test(
        drive,  # type: ignore[arg-type]
        settings=settings(
            max_examples=EXAMPLES[engine.name],
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
