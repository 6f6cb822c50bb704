"""Ids: UUIDv7 that increase within a process, and what a caller's own ids and types may look like."""

from __future__ import annotations

import threading
import time
import uuid
from itertools import islice
from types import SimpleNamespace

import pytest

from holdfast.core import ids
from holdfast.core.ids import new_id, new_ids
from holdfast.core.job import base_type, check_id, check_type
from holdfast.errors import ConfigError


def set_clock(monkeypatch: pytest.MonkeyPatch, *instants: int) -> None:
    """Let the clock that ids are made from show these nanoseconds, the last one for ever."""
    left = list(instants)
    clock = SimpleNamespace(time_ns=lambda: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(ids, "time", clock)


def test_an_id_is_a_valid_uuid_of_version_7() -> None:
    made = uuid.UUID(new_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_an_id_is_written_in_the_canonical_form() -> None:
    text = new_id()
    assert str(uuid.UUID(text)) == text
    assert check_id(text) == text


def test_ids_made_ahead_are_like_those_made_one_by_one() -> None:
    made = list(islice(new_ids(), 600))
    assert made == sorted(set(made))
    assert len({text[19:] for text in made}) == 600
    assert {(uuid.UUID(text).version, uuid.UUID(text).variant) for text in made} == {(7, uuid.RFC_4122)}
    assert all(str(uuid.UUID(text)) == text for text in made)


def test_an_id_carries_the_time_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    milliseconds = uuid.UUID(new_id()).int >> 80
    assert before <= milliseconds <= time.time_ns() // 1_000_000 + 1000


def test_ids_increase() -> None:
    made = [new_id() for _ in range(5000)]
    assert made == sorted(set(made))


def test_ids_increase_while_the_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, time.time_ns())
    made = [new_id() for _ in range(5000)]
    assert made == sorted(set(made))


def test_ids_increase_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    set_clock(monkeypatch, now, now - 3_600_000_000_000, now - 3_599_000_000_000, now - 1)
    made = [new_id() for _ in range(10)]
    assert made == sorted(set(made))
    assert {uuid.UUID(text).version for text in made} == {7}


def test_ids_are_unique_over_threads_and_increase_in_each() -> None:
    barrier = threading.Barrier(4)
    made: list[list[str]] = [[] for _ in range(4)]

    def make(mine: list[str]) -> None:
        barrier.wait()
        mine += [new_id() for _ in range(1000)]

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    assert len({text for mine in made for text in mine}) == 4000


@pytest.mark.parametrize("value", ["a", "0", "job1", "A.b_c:d-e", "x" * 128])
def test_a_caller_may_name_a_job(value: str) -> None:
    assert check_id(value) == value


@pytest.mark.parametrize(
    "value",
    ["", ".a", "-a", ":a", "_a", "a b", "a/b", "ä", "a\n", "a\x00", "x" * 129, "٣", None, 1, b"a", True],
)
def test_what_cannot_be_an_id_is_refused_with_the_rule(value: object) -> None:
    with pytest.raises(ConfigError, match="1 to 128 of A-Z a-z 0-9"):
        check_id(value)


@pytest.mark.parametrize("word", ["stats", "batch", "bulk", "pause", "resume", "rate-limit"])
def test_the_words_that_are_paths_cannot_be_ids(word: str) -> None:
    with pytest.raises(ConfigError, match="reserved"):
        check_id(word)
    assert check_id(word + "1") == word + "1"


@pytest.mark.parametrize("value", ["a", "_a", "send_email", "shell:media", "pkg.mod:fn", "-", "x" * 255])
def test_a_type_may_be(value: str) -> None:
    assert check_type(value) == value


@pytest.mark.parametrize("value", ["", "a b", "a/b", "é", "a\n", "x" * 256, None, 1])
def test_what_cannot_be_a_type_is_refused_with_the_rule(value: object) -> None:
    with pytest.raises(ConfigError, match="1 to 255 of A-Z a-z 0-9"):
        check_type(value)


def test_an_id_of_thousands_of_digits_is_refused_like_any_other_wrong_one() -> None:
    with pytest.raises(ConfigError):
        check_id(10**5000)
    with pytest.raises(ConfigError):
        check_type(10**5000)


@pytest.mark.parametrize(
    ("type", "base"), [("shell", "shell"), ("shell:media", "shell"), ("shell:media:big", "shell")]
)
def test_a_lane_is_run_by_its_base(type: str, base: str) -> None:
    assert base_type(type) == base
