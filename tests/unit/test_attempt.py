"""ctx.transaction() on every engine: when its time is up, and what became of a commit in doubt."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.job import Status
from holdfast.errors import CommitUncertain
from holdfast.store.attempt import TimeLimit, commit_completion
from holdfast.store.records import Claim
from tests.support import wait_until

CLAIM = Claim(7, "job", "work", "{}", 0, 1, 3, 5, None, 0, 0, "worker")


def test_it_expires_once_when_its_time_is_up() -> None:
    expired: list[str] = []
    limit = TimeLimit(0.001, lambda: expired.append(threading.current_thread().name))
    limit.start()
    wait_until(lambda: expired, 30)
    with limit.lifted():
        assert len(expired) == 1
        assert expired != [threading.current_thread().name]


def test_it_does_not_expire_once_it_is_lifted() -> None:
    expired: list[None] = []
    limit = TimeLimit(60, lambda: expired.append(None))
    limit.start()
    with limit.lifted():
        limit._run_out()  # as a timer that was cancelled a moment too late
    limit._run_out()
    assert expired == []


def test_who_lifts_it_waits_until_it_has_expired() -> None:
    begun, may_end = threading.Event(), threading.Event()
    steps: list[str] = []

    def expire() -> None:
        begun.set()
        may_end.wait(60)
        steps.append("expired")

    def lift() -> None:
        with limit.lifted():
            steps.append("lifted")

    limit = TimeLimit(0.001, expire)
    limit.start()
    assert begun.wait(60)
    lifting = threading.Thread(target=lift)
    lifting.start()
    lifting.join(0.05)
    assert steps == []
    may_end.set()
    lifting.join(60)
    assert steps == ["expired", "lifted"]


class Doubtful:
    """A database that does not know whether it has committed, and the job's row in it."""

    def __init__(self, row: tuple[Status, int] | None) -> None:
        self._row = row

    def commit(self) -> None:
        raise CommitUncertain

    def read_one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        assert list(parameters) == [CLAIM.seq]
        return self._row


def test_commit_in_doubt_that_got_through_is_no_error() -> None:
    database: Any = Doubtful((Status.COMPLETED, CLAIM.version))
    commit_completion(database, database.commit, CLAIM)


@pytest.mark.parametrize(
    "row",
    [(Status.PROCESSING, CLAIM.version), (Status.COMPLETED, CLAIM.version + 1), None],
    ids=["not completed", "completed by a later attempt", "pruned"],
)
def test_commit_in_doubt_that_did_not_get_through_stays_in_doubt(row: tuple[Status, int] | None) -> None:
    database: Any = Doubtful(row)
    with pytest.raises(CommitUncertain):
        commit_completion(database, database.commit, CLAIM)
