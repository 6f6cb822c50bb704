"""Logins: they are over when somebody logs out, and wrong tokens are answered late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from holdfast.web import create_app
from holdfast.web.auth import COOKIE
from holdfast.web.failed_logins import LONGEST_SECONDS, FailedLogins
from holdfast.web.sessions import RECORD
from tests.support import both_engines, wait_until
from tests.surfaces.live import client, live

pytestmark = pytest.mark.slow

TOKEN, READ_TOKEN = "a token for changes", "a token for looking"


@pytest.fixture
def address(queue: Queue) -> Iterator[str]:
    with live(create_app(queue, TOKEN, READ_TOKEN)) as made:
        yield made


def cookie_of(address: str, token: str = TOKEN) -> dict[str, str]:
    """A header with the cookie of a login, as whoever has copied it sends it."""
    with client(address) as browser:
        assert browser.post("/login", data={"token": token}).status_code == 303
        return {"Cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}


def status(address: str, headers: dict[str, str], path: str = "/api/tasks") -> int:
    with client(address) as made:
        return made.get(path, headers=headers).status_code


# Logging out.


@both_engines
@pytest.mark.parametrize("token", [TOKEN, READ_TOKEN])
def test_session_that_was_logged_out_is_over_for_whoever_has_its_cookie(
    queue: Queue, address: str, token: str
) -> None:
    copied, other = cookie_of(address, token), cookie_of(address, token)
    assert status(address, copied) == 200
    with client(address) as made:
        assert made.post("/logout", headers=copied).status_code == 303
    assert status(address, copied) == 401
    assert status(address, other) == 200
    with live(create_app(queue, TOKEN, READ_TOKEN)) as restarted:
        assert status(restarted, copied) == 401
        assert status(restarted, other) == 200


def test_session_is_over_in_every_process_a_second_later(queue: Queue, address: str) -> None:
    copied = cookie_of(address)
    with live(create_app(queue, TOKEN)) as another:
        assert status(another, copied) == 200
        with client(address) as made:
            made.post("/logout", headers=copied)
        wait_until(lambda: status(another, copied) == 401, timeout=30)


def test_stream_of_a_session_ends_when_it_is_logged_out(queue: Queue, address: str) -> None:
    copied = cookie_of(address)
    with client(address) as made, made.stream("GET", "/api/events", headers=copied) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("retry:")
        made.post("/logout", headers=copied)
        queue.enqueue("mail", id="secret-job")
        assert "secret-job" not in "".join(lines)


def test_ended_session_is_no_setting_and_is_forgotten_when_its_time_is_over(queue: Queue) -> None:
    app = create_app(queue, TOKEN)
    store_of(queue).set_setting(RECORD, "long-over", int(time.time()) - 1)
    with live(app) as address, client(address) as made:
        made.post("/logout", headers=cookie_of(address))
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert made.get("/api/config", headers=bearer).json()["byType"] == {}
    [(name, _)] = store_of(queue).get_settings()
    assert name == RECORD


# Wrong tokens.


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_first_mistakes_cost_nothing_and_later_ones_more_and_more() -> None:
    logins = FailedLogins(Clock())
    waits = [logins.count(b"a") for _ in range(20)]
    assert waits[:5] == [0.0] * 5
    assert 0 < waits[5] < waits[6] < waits[7]
    assert waits[-1] == LONGEST_SECONDS
    assert logins.count(b"b") == 0.0


def test_mistakes_are_forgotten() -> None:
    clock = Clock()
    logins = FailedLogins(clock)
    for _ in range(20):
        logins.count(b"a")
    clock.now += 600
    assert logins.count(b"a") == 0.0


def test_many_addresses_together_are_slowed_down_too() -> None:
    logins = FailedLogins(Clock())
    waits = [logins.count(str(number).encode()) for number in range(120)]
    assert waits[:100] == [0.0] * 100
    assert waits[-1] == LONGEST_SECONDS


def guesses(made: httpx.Client, count: int) -> Iterator[httpx.Response]:
    for number in range(count):
        if number % 2:
            yield made.post("/login", data={"token": f"guess {number}"})
        else:
            yield made.get("/api/tasks", headers={"Authorization": f"Bearer guess {number}"})


def test_wrong_tokens_are_answered_late_and_the_right_one_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.web.failed_logins.LONGEST_SECONDS", 0.3)
    with client(address) as made:
        assert {answer.status_code for answer in guesses(made, 8)} == {401}
        for answer in guesses(made, 2):
            assert answer.status_code == 401
            assert answer.elapsed.total_seconds() >= 0.3
        monkeypatch.setattr("holdfast.web.failed_logins._FIRST_SECONDS", 600.0)
        monkeypatch.setattr("holdfast.web.failed_logins.LONGEST_SECONDS", 600.0)
        right: Any = {"Authorization": f"Bearer {TOKEN}"}
        assert made.get("/api/tasks", headers=right).status_code == 200
        assert made.post("/login", data={"token": TOKEN}).status_code == 303


def test_wrong_tokens_that_wait_are_few(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.failed_logins.most_connections", lambda: 0)
    with client(address) as made:
        answers = list(guesses(made, 6))
    assert [answer.status_code for answer in answers] == [401] * 5 + [429]
    assert answers[-1].headers["Retry-After"] == "2"
