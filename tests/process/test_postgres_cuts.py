"""A connection that breaks at any message of an enqueue, of a worker's turn or of a heartbeat.

Every message is tried: before the server has it, while it works on it, and after it has answered. Nothing is
lost or doubled, whatever was or was not committed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Queue
from holdfast.errors import CommitUncertain, StoreError
from holdfast.store.open import store_of
from holdfast.store.postgres import enqueue as postgres_enqueue
from holdfast.store.records import Demand
from tests.postgres import server_url
from tests.process.conftest import DEFAULTS
from tests.process.postgres_database import PostgresDatabase
from tests.process.postgres_proxy import ASKING, STARTUP, Cut, Proxy, cut_at, pass_all
from tests.support import wait_until

Options = dict[str, str]


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    folder = tempfile.mkdtemp(prefix="holdfast-proxy-")  # the path of a socket must be short
    proxy = Proxy(Path(folder), server_url())
    yield proxy
    proxy.close()
    shutil.rmtree(folder)


@pytest.fixture
def through(queue: Queue, proxy: Proxy, database: PostgresDatabase) -> Iterator[Queue]:
    """The same queue, through the proxy."""
    store_of(queue).now()
    [(schema,)] = database.query("SELECT current_schema()")
    with Queue(proxy.url(schema=schema, options=f"-csearch_path={schema}"), defaults=DEFAULTS) as through:
        yield through


def points(messages: list[bytes]) -> list[tuple[int, Cut]]:
    """Where these messages can be cut: those that are answered in three places."""
    found = [(number, Cut.BEFORE) for number in range(len(messages))]
    for number, kind in enumerate(messages):
        if kind in ASKING:
            found += [(number, Cut.DURING), (number, Cut.AFTER)]
    return found


def marks(database: PostgresDatabase) -> Counter[str]:
    return Counter(json.loads(job.payload).get("mark") for job in database.jobs().values())


ENQUEUES: dict[str, Callable[[Queue, str], Any]] = {
    "one": lambda queue, mark: queue.enqueue("work", {"mark": mark}),
    "with a key": lambda queue, mark: queue.enqueue("work", {"mark": mark}, key=mark),
    "many": lambda queue, mark: queue.enqueue_many("work", [{"mark": f"{mark}/{n}"} for n in range(3)]),
    "all or none": lambda queue, mark: queue.enqueue_many("work", [{"mark": mark}], atomic=True),
}


@pytest.mark.parametrize("how", ENQUEUES)
def test_an_enqueue_that_is_cut_at_any_message_is_there_once(
    through: Queue, proxy: Proxy, database: PostgresDatabase, how: str
) -> None:
    enqueue = ENQUEUES[how]
    store_of(through).now()
    proxy.follow(pass_all)
    enqueue(through, "uncut")
    wanted = set(marks(database))
    for number, cut in points(proxy.messages):
        mark = f"{cut.value} {number}"
        proxy.follow(cut_at(number, cut))
        enqueue(through, mark)
        assert proxy.messages[number:] == [] or proxy.cuts == 1, mark
        wanted |= {mark} if how != "many" else {f"{mark}/{n}" for n in range(3)}
    assert marks(database) == dict.fromkeys(wanted, 1)


def test_an_enqueue_on_a_new_connection_that_is_cut_at_any_message_is_there_or_refused(
    through: Queue, proxy: Proxy, database: PostgresDatabase
) -> None:
    """A server that can't be reached is told at once: nothing was sent that could be in doubt."""
    store_of(through).now()
    accepted, refused = set(), set()
    for number, cut in [(n, cut) for n in range(8) for cut in Cut]:
        mark = f"{cut.value} {number}"
        store_of(through).database.pool.forget_idle()  # type: ignore[attr-defined]
        proxy.follow(cut_at(number, cut))
        try:
            through.enqueue("work", {"mark": mark})
            accepted.add(mark)
        except CommitUncertain:
            raise
        except StoreError:
            refused.add(mark)
    assert STARTUP in proxy.messages
    assert refused < {f"{cut.value} {number}" for cut in Cut for number in (0, 1)}
    assert marks(database) == dict.fromkeys(accepted, 1)


@pytest.mark.parametrize("then", ["no connection", "no transaction", "no insert"])
def test_an_enqueue_of_which_nobody_knows_is_in_doubt_and_says_so(
    through: Queue, proxy: Proxy, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(postgres_enqueue, "PATIENCE", 0.5)
    store_of(through).now()

    def plan(number: int, kind: bytes, content: bytes) -> Cut | None:
        if b"COMMIT\0" in content:
            return Cut.AFTER
        ends = {
            "no connection": kind == STARTUP,
            # The server answers when it is asked, and is gone again.
            "no transaction": b"BEGIN" in content or (kind == STARTUP and proxy.cuts > 1),
            "no insert": b"INSERT" in content,
        }
        return Cut.BEFORE if proxy.cuts and ends[then] else None

    proxy.follow(plan)
    with pytest.raises(CommitUncertain):
        through.enqueue("work", {"mark": "doubtful"}, key="k")  # with a key there is a transaction around it
    assert proxy.cuts > 1
    proxy.follow(pass_all)
    assert marks(database) == {"doubtful": 1}
    through.enqueue("work", {"mark": "next"})
    assert marks(database) == {"doubtful": 1, "next": 1}


def test_an_enqueue_of_one_statement_whose_answer_is_lost_is_in_doubt_and_says_so(
    through: Queue, proxy: Proxy, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_enqueue, "PATIENCE", 0.3)
    store_of(through).now()
    proxy.follow(lambda number, kind, content: Cut.AFTER if b"INSERT" in content else None)
    with pytest.raises(CommitUncertain):
        through.enqueue("work", {"mark": "doubtful"})
    proxy.follow(pass_all)
    assert marks(database) == {"doubtful": 1}


def test_an_enqueue_that_never_reached_its_commit_is_refused_and_not_there(
    through: Queue, proxy: Proxy, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_enqueue, "PATIENCE", 0.3)
    store_of(through).now()
    proxy.follow(lambda number, kind, content: Cut.AFTER if b"INSERT" in content else None)
    with pytest.raises(StoreError) as raised:
        through.enqueue("work", {"mark": "refused"}, key="k")
    assert not isinstance(raised.value, CommitUncertain)
    proxy.follow(pass_all)
    assert marks(database) == {}


def test_a_heartbeat_that_is_cut_at_any_message_loses_no_lease(
    queue: Queue, through: Queue, proxy: Proxy, database: PostgresDatabase
) -> None:
    queue.enqueue("work")
    store = store_of(through)
    [claim] = store.claim_jobs(
        "w", [Demand(type="work", limit=1, max_attempts=3)], limit=1, lease_seconds=60
    ).claims

    def beat() -> Any:
        return store.heartbeat("w", [(claim.seq, claim.version)], state="running", lease_seconds=60)

    proxy.follow(pass_all)
    beat()
    cuts = []
    for number, cut in points(proxy.messages):
        proxy.follow(cut_at(number, cut))
        try:
            found = beat()
        except StoreError:
            found = beat()  # as the heartbeat does, a moment later
        cuts.append(proxy.cuts)
        assert found.lost == frozenset()
    # How many messages an exchange takes depends on how busy the machine is: the last may be missing.
    assert set(cuts) <= {0, 1}
    assert cuts[0] == 1
    [job] = database.jobs().values()
    assert (job.status, job.version) == ("processing", claim.version)


@pytest.mark.parametrize("type", ["plain", "with_row"])
def test_a_worker_whose_turn_is_cut_at_any_message_runs_its_job(
    queue: Queue,
    through: Queue,
    proxy: Proxy,
    database: PostgresDatabase,
    start_worker: Callable[..., Any],
    type: str,
) -> None:
    database.make_rows_table()
    starts: list[str] = []

    @through.job
    def plain(ctx: Context) -> None:
        starts.append(ctx.idempotency_key)

    @through.job
    def with_row(ctx: Context) -> None:
        starts.append(ctx.idempotency_key)
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO rows VALUES (%s, %s)", (ctx.idempotency_key, ctx.attempt))

    def run_one(number: int, cut: Cut | None) -> list[bytes]:
        proxy.follow(pass_all if cut is None else cut_at(number, cut))
        job = queue.enqueue(type, max_attempts=2).id
        wait_until(lambda: database.count("completed") == len(database.jobs()), 30, f"{number} {cut}")
        row = database.jobs()[job]
        if type == "plain":
            assert starts.count(job) == 1, (number, cut)
            assert row.attempts == 1, (number, cut)
        else:
            assert database.query("SELECT attempt FROM rows WHERE job = ?", job) == [(row.attempts,)]
            assert starts.count(job) == row.attempts, (number, cut)
        return proxy.messages

    start_worker(through)
    messages = run_one(0, None)
    # The messages of a statement go out together; here only the last one of each is cut, to save time.
    for number, cut in points(messages):
        if messages[number] in ASKING and cut is not Cut.DURING:
            run_one(number, cut)
    assert database.query("SELECT count(*) - count(DISTINCT job) FROM rows") == [(0,)]
