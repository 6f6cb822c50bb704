"""Session: statements that go out together with the next one, and their answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import psycopg
import pytest

from holdfast.store.postgres.database import Database
from holdfast.store.postgres.session import Session
from tests import postgres


class Plain:
    """A database whose SQL is sent as it is."""

    schema = ""

    def text(self, sql: str) -> str:
        return sql


@pytest.fixture
def session() -> Iterator[Session]:
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:
        yield Session(connection, cast("Database", Plain()))


def test_answers_of_what_went_ahead_are_there_with_that_of_the_next(session: Session) -> None:
    first = session.ahead("SELECT $1::integer", [1])
    second = session.ahead("SELECT unnest($1::text[])", [["a", "b"]])
    assert session.rows("SELECT 3") == [(3,)]
    assert (first.rows, second.rows) == ([(1,)], [("a",), ("b",)])


def test_answer_of_what_was_not_sent_can_not_be_taken_for_none(session: Session) -> None:
    answer = session.ahead("SELECT 1")
    with pytest.raises(AssertionError, match="not been sent"):
        _ = answer.rows


def test_texts_that_can_not_be_stored_go_ahead_as_they_can(session: Session) -> None:
    answer = session.ahead("SELECT $1", ["nul \0, half \ud800"])
    assert session.rows("SELECT $1", ["nul \0"]) == [("nul \ufffd",)]
    assert answer.rows == [("nul \ufffd, half ?",)]


def test_nothing_is_read_while_statements_are_on_their_way(session: Session) -> None:
    answer = session.ahead("SELECT 2")
    with session.in_flight(), pytest.raises(AssertionError, match="not answered"):
        session.rows("SELECT 1")
    assert answer.rows == [(2,)]
    assert session.rows("SELECT 1") == [(1,)]


def test_statements_that_are_larger_than_a_socket_takes_go_out_whole(session: Session) -> None:
    text = "x" * 5_000_000
    answer = session.ahead("SELECT length($1)", [text])
    assert session.rows("SELECT $1", [text]) == [(text,)]
    assert answer.rows == [(5_000_000,)]
    assert session.rows("SELECT 1") == [(1,)]


def test_statement_that_fails_among_others_leaves_the_connection_usable(session: Session) -> None:
    session.ahead("SELECT 1")
    session.ahead("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        session.rows("SELECT 2")
    assert session.rows("SELECT 3") == [(3,)]
