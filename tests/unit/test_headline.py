"""The state of the whole queue in a word, the throughput as bars, and the types as bars on one scale."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.job import Status
from holdfast.observe.overview import without_worker
from holdfast.observe.pulse import Percentiles, Pulse
from holdfast.store.records import Minute, WorkerRecord
from holdfast.web.dashboard.overview import (
    CHART_HEIGHT,
    CHART_WIDTH,
    MOST_TYPES,
    chart,
    headline,
    outlook,
    type_bars,
)
from holdfast.web.dashboard.page import Headline

STATES = [status.value for status in Status]


def counted(**by_type: dict[str, int]) -> dict[str, Any]:
    """What `Queue.stats` says, of these types."""
    whole = {type: {state: counts.get(state, 0) for state in STATES} for type, counts in by_type.items()}
    totals = {state: sum(counts[state] for counts in whole.values()) for state in STATES}
    return {**totals, "by_type": whole, "workers": 0}


def worker(*types: str, slots: int = 4) -> WorkerRecord:
    return WorkerRecord(id="w", host="here", pid=1, state="running", concurrency=slots, types=types)


def told(
    counts: dict[str, Any],
    workers: list[WorkerRecord],
    running: int = 0,
    *,
    paused: tuple[str, ...] = (),
    oldest: float | None = None,
) -> Headline:
    return headline(counts, workers, running, paused, without_worker(counts, workers), oldest)


HEADLINES = {
    "paused": (told(counted(email={"pending": 2}), [worker("email")], paused=("",)), "warning", "Paused"),
    "nobody, and jobs wait": (told(counted(email={"pending": 2}), []), "problem", "No workers"),
    "nobody, and nothing waits": (told(counted(email={"completed": 2}), []), "warning", "No workers"),
    "not served": (
        told(counted(email={"pending": 2}), [worker("crawl")]),
        "problem",
        "No worker for `email`",
    ),
    "held back": (
        told(counted(email={"pending": 2}), [worker("email")], paused=("email",)),
        "warning",
        "Blocked",
    ),
    "waiting": (told(counted(email={"pending": 2}), [worker("email")], oldest=3600), "warning", "Waiting"),
    "busy": (told(counted(email={"pending": 2}), [worker("email")], 4), "busy", "Busy"),
    "working": (told(counted(email={"pending": 2}), [worker("email")], 1), "busy", "Working"),
    "working, and nothing waits": (
        told(counted(email={"processing": 1}), [worker("email")], 1),
        "good",
        "Working",
    ),
    "idle": (told(counted(email={"completed": 1}), [worker("email")]), "good", "Idle"),
}


@pytest.mark.parametrize("name", HEADLINES)
def test_headline_of_each_state(name: str) -> None:
    found, level, word = HEADLINES[name]
    assert (found.level, found.word) == (level, word)
    assert found.text.endswith(".")


def test_states_differ_in_word_or_level_and_in_their_sentence() -> None:
    found = [made for made, _, _ in HEADLINES.values()]
    assert len({(made.level, made.word) for made in found}) == len(found)
    assert len({made.text for made in found}) == len(found)


def test_no_workers_looks_different_from_busy() -> None:
    nobody, busy = HEADLINES["nobody, and jobs wait"][0], HEADLINES["busy"][0]
    assert nobody.level != busy.level
    assert nobody.word != busy.word


def test_empty_queue_without_workers_is_a_warning() -> None:
    assert told(counted(), []).level == "warning"


@pytest.mark.parametrize(
    ("waiting", "words"), [(0, "no jobs waiting"), (1, "1 job waiting"), (1_234, "1,234 jobs waiting")]
)
def test_headline_says_how_many_wait(waiting: int, words: str) -> None:
    assert words in told(counted(email={"pending": waiting}), [worker("email")], paused=("",)).text


def test_scheduled_jobs_wait_for_a_worker_too() -> None:
    found = told(counted(email={"scheduled": 3}), [])
    assert found.level == "problem"
    assert "3 jobs waiting" in found.text


def test_jobs_of_a_dead_worker_are_not_said_to_be_nothing() -> None:
    found = told(counted(email={"processing": 2}), [], 2)
    assert found.level == "problem"
    assert "no jobs waiting" not in found.text


def test_lane_is_served_by_the_worker_of_its_type() -> None:
    assert told(counted(**{"shell:media": {"pending": 1}}), [worker("shell")]).word == "Working"


def test_one_served_type_among_others_is_work() -> None:
    counts = counted(email={"pending": 1}, crawl={"pending": 9})
    assert told(counts, [worker("email")]).word == "Working"


def test_served_type_that_only_finished_does_not_hide_the_unserved() -> None:
    counts = counted(email={"completed": 5}, crawl={"pending": 1})
    found = told(counts, [worker("email")])
    assert found.word == "No worker for `crawl`"
    assert found.text == "1 job waiting."


def test_several_types_without_a_worker_are_counted() -> None:
    counts = counted(crawl={"pending": 1}, fetch={"pending": 1_000})
    found = told(counts, [worker("email")])
    assert (found.word, found.text) == ("No worker for 2 types", "1,001 jobs waiting.")


def test_paused_type_beside_one_that_runs_is_work() -> None:
    counts = counted(email={"pending": 1}, crawl={"pending": 1})
    assert told(counts, [worker("email", "crawl")], paused=("crawl",)).word == "Working"


def test_type_that_is_paused_and_one_without_a_worker_are_held_back() -> None:
    counts = counted(email={"pending": 1}, crawl={"pending": 1})
    assert told(counts, [worker("email")], paused=("email",)).word == "Blocked"


@pytest.mark.parametrize(("slots", "words"), [(1, "1 slot is free"), (4, "4 slots are free")])
def test_jobs_that_wait_long_beside_free_slots_are_not_called_work(slots: int, words: str) -> None:
    counts = counted(email={"pending": 1})
    found = told(counts, [worker("email", slots=slots)], oldest=3600)
    assert (found.level, found.word) == ("warning", "Waiting")
    assert words in found.text
    assert "the oldest for 1 h" in found.text
    assert told(counts, [worker("email", slots=slots)], oldest=0.1).word == "Working"
    assert told(counts, [worker("email", slots=2)], 1, oldest=3600).word == "Working"


def test_slots_of_all_workers_count() -> None:
    counts = counted(email={"pending": 1})
    assert told(counts, [worker("email"), worker("email", slots=6)], 9).text.startswith("9 of 10 slots")
    assert told(counts, [worker("email", slots=1)], 1).text.startswith("The only slot is in use")


# When it will be empty.


def foretold(counts: dict[str, Any], workers: list[WorkerRecord], *paused: str, pace: float = 2.0) -> str:
    hour = Pulse(minutes=[], waits=Percentiles(), runs=Percentiles(), pace=pace)
    return outlook(counts, workers, paused, without_worker(counts, workers), hour)


def test_outlook_tells_never_from_later_and_from_not_known() -> None:
    some, served = counted(email={"pending": 10}), [worker("email")]
    assert foretold(counted(email={"scheduled": 3}), served) == "no jobs waiting"
    assert foretold(some, served) == "about 5.0 s"
    assert foretold(some, served, pace=0.0) == "no estimate yet"
    assert foretold(some, []) == "blocked: no workers"
    assert foretold(some, served, "") == "blocked: queue paused"
    assert foretold(some, served, "email") == "blocked"
    assert foretold(some, [worker("crawl")]) == "blocked"


def test_outlook_counts_only_what_can_run() -> None:
    counts = counted(email={"pending": 10}, crawl={"pending": 90}, report={"pending": 900})
    assert foretold(counts, [worker("email", "crawl")], "crawl") == "about 5.0 s"


# The chart.


def minutes(*pairs: tuple[int, int]) -> list[Minute]:
    return [minute(100 + place, *pair) for place, pair in enumerate(pairs)]


def minute(number: int, completed: int, failed: int) -> Minute:
    return Minute(minute=number, type="", worker_id="", completed=completed, failed=failed, waits=[], runs=[])


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=60))
def test_bars_stand_on_one_another_in_proportion(pairs: list[tuple[int, int]]) -> None:
    made = chart(minutes(*pairs))
    top, bars = made["top"], made["bars"]
    assert top >= max(completed + failed for completed, failed in pairs)
    assert len(bars) == len(pairs)
    for (completed, failed), bar in zip(pairs, bars, strict=True):
        for count, height in ((completed, bar.completed_height), (failed, bar.failed_height)):
            assert (height > 0) == (count > 0)
            assert abs(height - count / top * CHART_HEIGHT) <= 1.5 + 0.01
        assert abs(bar.completed_y + bar.completed_height - CHART_HEIGHT) < 0.02
        assert abs(bar.failed_y + bar.failed_height - bar.completed_y) < 0.02
        assert bar.failed_y >= -3
    assert all(bar.x >= 0 and bar.x + made["width"] <= CHART_WIDTH + 0.1 for bar in bars)
    assert [bar.x for bar in bars] == sorted({bar.x for bar in bars})


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (1, 1), (2, 2), (3, 5), (5, 5), (6, 10), (11, 20), (501, 1_000), (1_000, 1_000)]
)
def test_top_of_the_scale_is_round(most: int, top: int) -> None:
    assert chart(minutes((most, 0)))["top"] == top


def test_title_of_a_bar_says_when_and_how_many() -> None:
    [bar] = chart([minute(1_221, 1_234, 1)])["bars"]
    assert bar.title == "20:21 UTC: 1,234 completed, 1 failed"


def test_chart_of_nothing_is_empty() -> None:
    made = chart([])
    assert (made["bars"], made["from"]) == ([], None)


# Types.


def test_types_with_most_to_do_come_first() -> None:
    by_type = counted(
        done={"completed": 1_000},
        waiting={"pending": 3},
        failing={"failed": 2, "pending": 2},
        running={"processing": 1},
        older={"completed": 2_000},
    )["by_type"]
    assert [bar["type"] for bar in type_bars(by_type)] == ["failing", "waiting", "running", "older", "done"]


def test_no_more_types_than_the_page_shows() -> None:
    by_type = counted(**{f"type{n}": {"pending": n} for n in range(MOST_TYPES + 5)})["by_type"]
    bars = type_bars(by_type)
    assert [bar["type"] for bar in bars] == [f"type{n}" for n in range(MOST_TYPES + 4, 4, -1)]
    assert len(type_bars(by_type, None)) == MOST_TYPES + 5


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.tuples(*[st.integers(0, 10**6)] * len(STATES)).map(
            lambda counts: dict(zip(STATES, counts, strict=True))
        ),
        max_size=8,
    )
)
def test_parts_of_a_bar_are_its_counts_on_a_common_scale(by_type: dict[str, dict[str, int]]) -> None:
    bars = type_bars(by_type)
    most = max((sum(counts.values()) for counts in by_type.values()), default=0)
    assert {bar["type"] for bar in bars} == set(by_type)
    for bar in bars:
        counts = by_type[bar["type"]]
        assert bar["total"] == sum(counts.values())
        assert [part["state"] for part in bar["parts"]] == [state for state in STATES if counts[state]]
        before = 0
        for part in bar["parts"]:
            assert part["count"] == counts[part["state"]]
            assert abs(part["width"] - 100 * part["count"] / most) <= 0.4
            assert abs(part["x"] - 100 * before / most) <= 0.05
            before += part["count"]


def test_types_without_jobs_have_no_bars() -> None:
    assert type_bars({}) == []
    assert type_bars(counted(email={})["by_type"])[0]["parts"] == []
