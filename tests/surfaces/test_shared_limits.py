"""A limit belongs to the name it was set for, on every surface: two types with two lanes each."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from holdfast import Queue
from holdfast.listing.why import slots_of
from holdfast.observe.overview import overview
from holdfast.store.open import store_of
from holdfast.store.records import WorkerRecord
from holdfast.testing import MovableClock
from tests.conformance.steps import claim, claim_one
from tests.support import both_engines, unsynced
from tests.surfaces.answers import NOW, got
from tests.surfaces.html_page import Page, Reader
from tests.surfaces.support import Cli

pytestmark = pytest.mark.slow

TYPES = ("pay", "pay:eu", "pay:us", "mail", "mail:a", "mail:b")


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    """The home's queue with a job of each type, on a clock that stands still."""
    with Queue(unsynced(url), clock=MovableClock(NOW)) as queue:
        for type in TYPES:
            queue.enqueue(type, {}, id=type)
        yield queue


@pytest.fixture
def web(api: httpx.Client) -> Reader:
    return Reader(api)


def reasons(queue: Queue, id: str) -> list[str]:
    return [reason.text for reason in queue.why(id)]


def works(queue: Queue, concurrency: int = 10, **slots: int) -> WorkerRecord:
    """A worker for both types, whose code gives them so many slots; lanes are named with an underscore."""
    record = WorkerRecord(
        id="w1",
        host="here",
        pid=17,
        state="running",
        concurrency=concurrency,
        types=TYPES,
        slots={name.replace("_", ":"): size for name, size in slots.items()},
    )
    store_of(queue).register_worker(record, [])
    return record


# Pauses.


@both_engines
def test_a_pause_holds_the_lanes_of_its_type_and_no_other(queue: Queue) -> None:
    queue.pause("pay")
    queue.pause("mail:a")
    for id, held in {"pay": "pay", "pay:eu": "pay", "pay:us": "pay", "mail:a": "mail:a"}.items():
        assert f"{held} is paused" in reasons(queue, id)
    for id in ("mail", "mail:b"):
        assert not [text for text in reasons(queue, id) if "paused" in text]
    assert queue.paused() == ["mail:a", "pay"]


def test_the_overview_counts_lanes_of_a_paused_type_as_paused(queue: Queue, web: Reader) -> None:
    works(queue)
    queue.pause("pay")
    page = web.open("/")
    assert "Type pay is paused, with 2 lanes." in page.section("attention-card").text
    assert page.heading != "Blocked"
    queue.pause("mail")
    page = web.open("/")
    assert page.heading == "Blocked"
    assert "6 jobs waiting, all of types that are paused or have no worker." in page.section("state").text
    assert page.section("figures").pairs()["Time to drain"] == "blocked"


def test_controls_say_by_which_pause_a_lane_is_held(queue: Queue, web: Reader) -> None:
    works(queue)
    queue.pause("pay")
    queue.pause("mail:a")
    states = {name: row[1] for name, row in rows(web.open("/controls")).items()}
    assert states == {
        "pay": "paused",
        "pay:eu": "pay paused",
        "pay:us": "pay paused",
        "mail": "running",
        "mail:a": "paused",
        "mail:b": "running",
    }


def test_a_resume_says_what_still_holds_the_lane(queue: Queue, cli: Cli) -> None:
    for name in ((), ("--type", "pay"), ("--type", "pay:eu")):
        cli("pause", *name)
    text = "pay:eu is no longer paused, but pay still is\n"
    assert cli("resume", "--type", "pay:eu").out == text
    assert cli("resume", "--type", "pay").out == "pay is no longer paused, but the whole queue still is\n"
    assert cli("resume").out == "the whole queue is no longer paused\n"
    assert queue.paused() == []


# Caps over all processes.


@both_engines
def test_an_inherited_cap_is_one_and_an_own_one_is_the_lanes_alone(queue: Queue, api: httpx.Client) -> None:
    queue.set_config("max_running", 1, type="pay")
    queue.set_config("max_running", 2, type="pay:us")
    queue.set_config("max_running", 1, type="mail:a")
    assert [job.type for job in claim(store_of(queue), "pay:eu", limit=1)] == ["pay:eu"]
    queue.enqueue("pay:eu", {}, id="next")
    full = "1 job is already running; max_running of pay allows 1"
    assert full in reasons(queue, "next")
    assert "1 job is already running; max_running allows 1" in reasons(queue, "pay")
    assert full in [each["text"] for each in got(api.get("/api/tasks/next/why"))["reasons"]]
    for id in ("pay:us", "mail", "mail:a", "mail:b"):
        assert not [text for text in reasons(queue, id) if "max_running" in text]
    assert claim(store_of(queue), "pay", "pay:eu") == []
    assert [job.type for job in claim(store_of(queue), "pay:us", "mail:a")] == ["pay:us", "mail:a"]


def test_a_rate_limit_is_shown_once_under_its_name_and_as_shared_below(queue: Queue, web: Reader) -> None:
    queue.set_rate_limit(5, "pay")
    queue.set_rate_limit(2, "pay:us")
    page = web.open("/controls")
    shown = {name: row[3] for name, row in rows(page).items()}
    assert "5, shared with pay" in shown["pay:eu"]
    assert not [name for name in TYPES if name != "pay:eu" and "shared" in shown[name]]
    forms = {form.value("type"): form for form in page.forms if ("key", "rate_limit") in form.fields}
    assert {name: forms[name].value("value") for name in ("pay", "pay:eu", "pay:us")} == {
        "pay": "5",
        "pay:eu": "",
        "pay:us": "2",
    }


def test_config_says_whose_value_a_lane_has(queue: Queue, cli: Cli) -> None:
    queue.set_config("max_running", 3, type="pay")
    queue.set_config("fair", True)
    shown = {row[0]: row[1:3] for row in cli("config", "list", "--type", "pay:eu").rows}
    assert shown["max_running"] == ["3", "type pay"]
    assert shown["fair"] == ["true", "set"]
    assert shown["group_concurrency"] == ["none", "default"]


# Slots of a process.


@pytest.mark.parametrize(
    ("concurrency", "slots", "size"),
    [
        (10, {}, 10),
        (10, {"pay": 2}, 10),
        (10, {"pay": 2, "mail": 3}, 5),
        (10, {"pay": 2, "mail": 3, "mail_a": 1}, 6),
        (10, {"pay": 20, "mail": 1}, 10),
    ],
)
def test_slots_that_types_share_are_counted_once(
    queue: Queue, concurrency: int, slots: dict[str, int], size: int
) -> None:
    assert slots_of(works(queue, concurrency, **slots), queue.settings()) == size


def test_slots_that_are_stored_for_a_type_are_one_number_for_its_lanes(queue: Queue) -> None:
    queue.set_config("concurrency", 1, type="pay")
    queue.set_config("concurrency", 2, type="mail:a")
    assert slots_of(works(queue, 10, mail=4), queue.settings()) == 7


def test_why_knows_which_lanes_share_slots_from_the_code_of_the_worker(queue: Queue) -> None:
    works(queue, 10, pay=1, pay_us=1)
    claim_one(store_of(queue), "pay:eu", "w1")
    text = "the only slot for its type is in use"
    assert text in reasons(queue, "pay")
    assert text not in reasons(queue, "pay:us")
    assert text not in reasons(queue, "mail")


def test_status_shows_lanes_of_a_served_type_as_served(queue: Queue) -> None:
    record = WorkerRecord(id="w", host="here", pid=1, state="running", concurrency=1, types=("pay", "mail:a"))
    store_of(queue).register_worker(record, [])
    assert overview(queue).without_worker == {"mail": 1, "mail:b": 1}


def rows(page: Page) -> dict[str, list[str]]:
    """The table of types on the controls page."""
    return {row[0]: row for row in page.section("types").rows()}
