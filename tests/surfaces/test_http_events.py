"""GET /api/events: the present state first, then every change, whoever made it, and never more than that."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Queue
from holdfast.errors import StoreUnavailable
from holdfast.store.open import store_of
from holdfast.web import create_app, events
from holdfast.web.errors import Refused
from holdfast.web.events import Broadcast, Interest, Listener
from tests.support import both_engines, wait_until
from tests.surfaces.live import client, live
from tests.surfaces.support import queuectl

pytestmark = pytest.mark.slow

SOON = 60.0
"""Seconds that are plenty for a message, on a machine that has other things to do."""

THREAD = "holdfast-events"


class Message:
    """One event as it arrived."""

    def __init__(self, name: str, data: Any) -> None:
        self.name = name
        self.data = data
        self.clock = time.monotonic()

    @property
    def statuses(self) -> dict[str, str]:
        return {task["id"]: task["status"] for task in self.data["tasks"]}


class Stream:
    """A stream that is read message by message, each wait bounded."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._messages = self._read()

    def _read(self) -> Iterator[Message]:
        name = ""
        for line in self.response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield Message(name, json.loads(line.removeprefix("data: ")))

    def __iter__(self) -> Iterator[Message]:
        return self._messages

    def until(self, name: str, fits: Callable[[Message], object] = lambda _: True) -> Message:
        """The next message of a name that fits."""
        deadline = time.monotonic() + SOON
        for message in self._messages:
            if message.name == name and fits(message):
                return message
            assert time.monotonic() < deadline, f"no such {name} within {SOON:g} s; last: {message.data}"
        raise AssertionError(f"the stream ended before such a {name} came")

    def until_all(self, **fits: Callable[[Message], object]) -> dict[str, Message]:
        """The first message of each name that fits, in whichever order they come."""
        found: dict[str, Message] = {}
        deadline = time.monotonic() + SOON
        while found.keys() != fits.keys():
            message = next(self._messages)
            if message.name not in found and fits[message.name](message):
                found[message.name] = message
            assert time.monotonic() < deadline, f"only {sorted(found)} came; last: {message.data}"
        return found


@contextmanager
def listening(api: httpx.Client, **parameters: Any) -> Iterator[Stream]:
    with api.stream("GET", "/api/events", params=parameters, timeout=SOON) as response:
        assert response.status_code == 200, response.read()
        yield Stream(response)


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD]


# What a stream says.


@both_engines
def test_a_stream_begins_with_the_present_state(jobs: Queue, api: httpx.Client) -> None:
    done = jobs.enqueue("echo", {"secret": 1}).id
    jobs.drain()
    waiting = jobs.enqueue("ok").id
    with listening(api) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["cache-control"] == "no-store"
        first, second = next(stream._messages), next(stream._messages)
    assert first.name == "stats"
    assert (first.data["pending"], first.data["completed"], first.data["failed"]) == (1, 1, 0)
    assert first.data["byType"]["echo"]["completed"] == 1
    assert first.data["byType"]["ok"]["pending"] == 1
    assert first.data["paused"] is False
    assert first.data["pausedTypes"] == []
    assert second.name == "tasks"
    assert second.data["ids"] == [waiting, done]
    assert second.statuses == {waiting: "pending", done: "completed"}
    [item] = [task for task in second.data["tasks"] if task["id"] == done]
    assert item == api.get("/api/tasks", params={"type": "echo"}).json()["tasks"][0]


def test_an_empty_queue_has_a_present_state_too(api: httpx.Client) -> None:
    with listening(api) as stream:
        assert stream.until("stats").data["pending"] == 0
        assert stream.until("tasks").data == {"tasks": [], "ids": []}


def test_once_ends_the_stream_after_the_present_state(queue: Queue, api: httpx.Client) -> None:
    id = queue.enqueue("ok").id
    answer = api.get("/api/events", params={"once": "true"})
    assert answer.status_code == 200
    assert answer.text.startswith("retry: 1000\n\n")
    assert [line for line in answer.text.splitlines() if line.startswith("event: ")] == [
        "event: stats",
        "event: tasks",
    ]
    assert id in answer.text


def test_a_reconnect_begins_with_the_present_state(jobs: Queue, api: httpx.Client) -> None:
    id = jobs.enqueue("ok").id
    with listening(api, id=id) as stream:
        assert stream.until("tasks").statuses == {id: "pending"}
    jobs.drain()
    with listening(api, id=id) as stream:
        assert stream.until("stats").data["completed"] == 1
        assert stream.until("tasks").statuses == {id: "completed"}


@both_engines
def test_only_what_changed_is_sent_again(jobs: Queue, api: httpx.Client) -> None:
    first, second = jobs.enqueue("ok").id, jobs.enqueue("bad").id
    with listening(api) as stream:
        assert stream.until("tasks").statuses == {first: "pending", second: "pending"}
        jobs.cancel(second)
        message = stream.until("tasks")
        assert message.statuses == {second: "cancelled"}
        assert message.data["ids"] == [second, first]


@both_engines
def test_pauses_and_rates_are_told(jobs: Queue, api: httpx.Client, start_worker: Callable[..., Any]) -> None:
    with listening(api) as stream:
        stream.until("stats")
        jobs.pause()
        jobs.pause("bad")
        told = stream.until("stats", lambda m: m.data["paused"] and m.data["pausedTypes"])
        assert told.data["pausedTypes"] == ["bad"]
        jobs.resume()
        stream.until("stats", lambda m: not m.data["paused"])
        jobs.enqueue_many("ok", [{}] * 60)
        start_worker(types=["ok"])
        message = stream.until("stats", lambda m: m.data["rates"].get("ok", {}).get("completed", 0) > 0)
        assert set(message.data["rates"]["ok"]) == {"completed", "failed", "retried"}


# Whoever made the change.


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is told because it has changed, and not because it is time to look."""
    monkeypatch.setattr(events, "_POLL_SECONDS", 600.0)


@pytest.mark.process
@both_engines
def test_a_job_enqueued_by_another_process_arrives_at_once(
    home: Path, no_looks: None, api: httpx.Client
) -> None:
    with listening(api) as stream:
        stream.until("tasks")
        assert queuectl(home, "enqueue", "--command", "true", "--id", "job1").code == 0
        message = stream.until("tasks")
        assert message.statuses == {"job1": "pending"}


@pytest.mark.process
@both_engines
def test_a_job_finished_by_another_process_arrives_at_once(
    home: Path, no_looks: None, queue: Queue, api: httpx.Client
) -> None:
    queue.enqueue("shell", {"command": "true"}, id="job1")
    with listening(api, id="job1") as stream:
        stream.until("tasks")
        worker = threading.Thread(target=queuectl, args=(home, "worker", "start", "--drain"))
        worker.start()
        stream.until_all(
            tasks=lambda m: m.statuses.get("job1") == "completed",
            stats=lambda m: m.data["completed"] == 1 and m.data["processing"] == 0,
        )
        worker.join(SOON)


def test_a_change_made_over_http_arrives_at_once(no_looks: None, api: httpx.Client) -> None:
    with listening(api) as stream:
        stream.until("tasks")
        id = api.post("/api/tasks", json={"type": "ok"}).json()["id"]
        message = stream.until("tasks")
        assert message.statuses == {id: "pending"}


# Which jobs are followed.


def test_jobs_are_followed_by_their_ids_in_the_order_asked_for(jobs: Queue, api: httpx.Client) -> None:
    a, b, _ = (jobs.enqueue("ok").id for _ in range(3))
    with listening(api, id=[b, "unknown", a, b]) as stream:
        assert stream.until("tasks").data["ids"] == [b, a]
        jobs.cancel(a)
        message = stream.until("tasks")
        assert message.statuses == {a: "cancelled"}
        assert message.data["ids"] == [b, a]


def test_a_deleted_job_leaves_the_ids(jobs: Queue, api: httpx.Client) -> None:
    kept, deleted = jobs.enqueue("ok").id, jobs.enqueue("ok").id
    jobs.drain()
    with listening(api, id=[kept, deleted]) as by_id, listening(api, status="completed") as by_filter:
        assert by_id.until("tasks").data["ids"] == [kept, deleted]
        assert by_filter.until("tasks").data["ids"] == [deleted, kept]
        jobs.delete(deleted)
        for stream in (by_id, by_filter):
            assert stream.until("tasks").data == {"tasks": [], "ids": [kept]}


def test_a_followed_job_that_does_not_exist_yet_comes_when_it_does(jobs: Queue, api: httpx.Client) -> None:
    with listening(api, id="later") as stream:
        assert stream.until("tasks").data["ids"] == []
        jobs.enqueue("ok", id="later")
        assert stream.until("tasks").statuses == {"later": "pending"}


def test_up_to_200_ids_can_be_followed(jobs: Queue, api: httpx.Client) -> None:
    ids = [job.id for job in jobs.enqueue_many("ok", [{}] * 201)]
    with listening(api, id=ids[:200]) as stream:
        assert stream.until("tasks").data["ids"] == ids[:200]
    answer = api.get("/api/events", params={"id": ids})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"


@both_engines
def test_a_filter_follows_its_first_page(jobs: Queue, api: httpx.Client) -> None:
    old, middle, new = (jobs.enqueue("ok").id for _ in range(3))
    jobs.enqueue("bad")
    with listening(api, type="ok", status=["pending", "failed"], limit=2) as stream:
        assert stream.until("tasks").data["ids"] == [new, middle]
        jobs.cancel(new)
        moved = stream.until("tasks")
        assert moved.data["ids"] == [middle, old]
        assert moved.statuses == {old: "pending"}
        newest = jobs.enqueue("ok").id
        moved = stream.until("tasks")
        assert moved.data["ids"] == [newest, middle]
        assert moved.statuses == {newest: "pending"}


def test_a_page_has_fifty_jobs_unless_it_is_told_otherwise(jobs: Queue, api: httpx.Client) -> None:
    jobs.enqueue_many("ok", [{}] * 120)
    for parameters, length in (({}, 50), ({"limit": 100}, 100)):
        with listening(api, **parameters) as stream:
            assert len(stream.until("tasks").data["ids"]) == length


def test_any_filter_of_the_list_but_a_search_can_be_followed(jobs: Queue, api: httpx.Client) -> None:
    first, second = (jobs.enqueue("ok", priority=number).id for number in (7, 1))
    for parameters, ids in (
        ({"sort": "priority", "order": "desc"}, [first, second]),
        ({"sort": "priority", "order": "asc"}, [second, first]),
        ({"parentId": first}, []),
        ({"since": "1h"}, [second, first]),
        ({"until": "1h"}, []),
        ({"error": "boom"}, []),
    ):
        with listening(api, **parameters) as stream:
            assert stream.until("tasks").data["ids"] == ids, parameters


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "limit=x",
        "status=odd",
        "id=a&status=pending",
        "id=a&type=ok",
        "id=a&parentId=b",
        "search=needle",
        "since=yesterday",
        "once=perhaps",
        "type=%00",
    ],
)
def test_a_wrong_question_is_refused_before_the_stream_begins(api: httpx.Client, query: str) -> None:
    answer = api.get(f"/api/events?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"
    assert watchers() == []


@pytest.mark.parametrize("query", ["type=%00", "id=%00", "id=", "type=", f"type={'x' * 300}", "id=%ED%A0%80"])
def test_an_odd_name_follows_nothing_and_harms_no_other_stream(
    jobs: Queue, api: httpx.Client, query: str
) -> None:
    with listening(api) as stream:
        stream.until("tasks")
        with api.stream("GET", f"/api/events?{query}", timeout=SOON) as odd:
            assert odd.status_code in (200, 400)
            if odd.status_code == 200:
                Stream(odd).until("stats")
        id = jobs.enqueue("ok").id
        assert stream.until("tasks").statuses == {id: "pending"}


def test_a_head_of_the_stream_ends_and_leaves_the_connection_usable(api: httpx.Client) -> None:
    answer = api.head("/api/events", timeout=SOON)
    assert answer.status_code in (200, 405)
    assert api.get("/healthz", timeout=SOON).json() == {"status": "ok"}
    wait_until(lambda: not watchers(), SOON, "nobody listens")


# How much is sent.


def test_at_most_four_messages_a_second_while_hundreds_of_changes_are_made(
    jobs: Queue, api: httpx.Client
) -> None:
    over = threading.Event()
    made = 0

    def change() -> None:
        nonlocal made
        while not over.is_set() and made < 50_000:
            jobs.enqueue("ok")
            made += 1

    with listening(api, limit=5) as stream:
        stream.until("tasks")
        changing = threading.Thread(target=change)
        began = time.monotonic()
        changing.start()
        told: dict[str, list[Message]] = {"stats": [], "tasks": []}
        for message in stream:
            told[message.name].append(message)
            if min(map(len, told.values())) >= 8:
                break
        over.set()
        changing.join(SOON)
        assert made > 200
        for messages in told.values():
            assert len(messages) <= 4 * (messages[-1].clock - began) + 2
        for earlier, later in pairwise(told["stats"]):
            assert later.data["pending"] > earlier.data["pending"]
        if told["stats"][-1].data["pending"] != made:
            stream.until("stats", lambda m: m.data["pending"] == made)


def test_nothing_is_sent_while_nothing_changes(queue: Queue, api: httpx.Client) -> None:
    queue.enqueue("ok")
    with listening(api) as stream:
        stream.until("tasks")
        time.sleep(1.5)  # longer than it takes to look again
        queue.enqueue("ok")
        assert stream.until("stats").data["pending"] == 2


async def first(messages: AsyncIterator[bytes], count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(SOON):
        async for message in messages:
            found.append(message)
            if len(found) == count:
                break
    return found


def data(message: bytes) -> Any:
    return json.loads(message.partition(b"data: ")[2])


def test_who_reads_slowly_gets_the_newest_state_and_nothing_is_kept_for_them() -> None:
    """A thousand rounds over a page that moves: what waits is one page, each job in its last state."""

    async def read() -> list[bytes]:
        listener = Listener(Interest(limit=50), asyncio.get_running_loop())
        for turn in range(1000):
            page = [{"id": f"job{number}", "turn": turn} for number in range(turn, turn + 50)]
            listener.tell({"pending": turn}, page)
            await asyncio.sleep(0)
        return await first(listener.messages(), 3)

    retry, counts, tasks = asyncio.run(read())
    assert retry == b"retry: 1000\n\n"
    assert data(counts) == {"pending": 999}
    assert data(tasks)["ids"] == [f"job{number}" for number in range(999, 1049)]
    assert data(tasks)["tasks"] == [{"id": f"job{n}", "turn": 999} for n in range(999, 1049)]
    assert len(tasks) < 5000


def test_what_changed_in_rounds_that_were_not_read_is_put_together() -> None:
    async def read() -> list[bytes]:
        listener = Listener(Interest(), asyncio.get_running_loop())
        messages = listener.messages()
        listener.tell({"n": 1}, [{"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "c", "n": 1}])
        begun = await first(messages, 3)
        listener.tell({"n": 2}, [{"id": "a", "n": 2}, {"id": "b", "n": 1}, {"id": "c", "n": 1}])
        listener.tell({"n": 2}, [{"id": "a", "n": 2}, {"id": "b", "n": 3}])
        listener.tell({"n": 2}, [{"id": "a", "n": 2}, {"id": "b", "n": 3}])
        more: list[bytes] = []
        async with asyncio.timeout(SOON):
            more.append(await anext(messages))
            more.append(await anext(messages))
        await messages.aclose()  # type: ignore[attr-defined]
        return begun + more

    *_, counts, tasks = asyncio.run(read())
    assert data(counts) == {"n": 2}
    assert data(tasks)["ids"] == ["a", "b"]
    assert sorted(data(tasks)["tasks"], key=lambda task: task["id"]) == [
        {"id": "a", "n": 2},
        {"id": "b", "n": 3},
    ]


def test_rounds_that_others_cause_by_coming_and_going_do_not_raise_the_rate() -> None:
    """A round every 10 ms, each with something new: those of a quarter of a second are one message."""

    async def read() -> tuple[list[Any], float]:
        listener = Listener(Interest(), asyncio.get_running_loop())
        told: list[Any] = []

        async def tell() -> None:
            turn = 0
            while len(told) < 4:
                turn += 1
                listener.tell({"turn": turn}, [])
                await asyncio.sleep(0.01)
            listener.end()

        began = time.monotonic()
        telling = asyncio.create_task(tell())
        async with asyncio.timeout(SOON):
            async for message in listener.messages():
                if message.startswith(b"event: stats"):
                    told.append(data(message))
            await telling
        return told, time.monotonic() - began

    told, seconds = asyncio.run(read())
    assert len(told) <= seconds / 0.25 + 2  # the first at once, and the last when it ends
    assert [message["turn"] for message in told] == sorted({message["turn"] for message in told})


def test_a_listener_whose_loop_is_closed_is_told_nothing_and_raises_nothing() -> None:
    async def make() -> Listener:
        return Listener(Interest(), asyncio.get_running_loop())

    listener = asyncio.run(make())
    listener.tell({"n": 1}, [])
    listener.end()


# How many listen, and who watches for them.


def test_all_streams_share_one_watching_thread_which_ends_with_the_last(
    queue: Queue, api: httpx.Client
) -> None:
    assert watchers() == []
    with listening(api) as one:
        one.until("stats")
        with listening(api) as other:
            other.until("stats")
            assert watchers() == [THREAD]
        id = queue.enqueue("ok").id
        assert one.until("tasks", lambda m: m.data["ids"]).statuses == {id: "pending"}
        assert watchers() == [THREAD]
    wait_until(lambda: not watchers(), SOON, "the thread ends with the last stream")
    with listening(api) as again:
        assert again.until("stats").data["pending"] == 1


def test_more_listeners_than_there_is_room_for_are_asked_to_come_back(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_LISTENERS", 2)
    with listening(api) as one:
        with listening(api) as other:
            one.until("stats")
            other.until("stats")
            answer = api.get("/api/events", timeout=SOON)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "busy"
            assert int(answer.headers["retry-after"]) >= 1
            assert api.get("/healthz").status_code == 200

        def has_room() -> bool:
            with api.stream("GET", "/api/events", timeout=SOON) as response:
                return response.status_code == 200

        wait_until(has_room, SOON, "who left makes room")


def test_two_hundred_may_listen() -> None:
    assert events.MOST_LISTENERS >= 200


def test_clients_that_hang_up_at_once_leave_no_listener(queue: Queue, api: httpx.Client) -> None:
    for _ in range(10):
        with api.stream("GET", "/api/events", timeout=SOON) as response:
            assert response.status_code == 200
    wait_until(lambda: not watchers(), SOON, "nobody listens")


# Trouble, and the end.


def test_database_trouble_does_not_end_a_stream(
    queue: Queue, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Semaphore(0)

    def trouble(_: Queue) -> dict[str, Any]:
        failed.release()
        raise StoreUnavailable("the disk is gone")

    with listening(api) as stream:
        stream.until("tasks")
        with monkeypatch.context() as patch:
            patch.setattr(events, "present_counts", trouble)
            id = queue.enqueue("ok").id
            assert failed.acquire(timeout=SOON)
            assert failed.acquire(timeout=SOON)
        stream.until_all(
            tasks=lambda m: m.statuses == {id: "pending"}, stats=lambda m: m.data["pending"] == 1
        )


def test_a_stream_that_begins_in_trouble_gets_the_present_state_when_it_has_passed(
    queue: Queue, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Semaphore(0)
    store = store_of(queue)

    def trouble(*_: object) -> Any:
        failed.release()
        raise StoreUnavailable("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "watch", trouble)
        patch.setattr(events, "present_counts", trouble)
        with listening(api) as stream:
            assert failed.acquire(timeout=SOON)
            patch.undo()
            assert stream.until("stats").data["pending"] == 0
            id = queue.enqueue("ok").id
            assert stream.until("tasks", lambda m: m.data["ids"]).statuses == {id: "pending"}


def test_a_mistake_in_a_round_does_not_leave_the_streams_without_a_watcher(
    queue: Queue, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def mistaken(_: Queue) -> dict[str, Any]:
        failed.set()
        raise RuntimeError("a mistake of ours")

    with listening(api) as stream:
        stream.until("tasks")
        with monkeypatch.context() as patch:
            patch.setattr(events, "present_counts", mistaken)
            id = queue.enqueue("ok").id
            assert failed.wait(SOON)
        assert stream.until("tasks").statuses == {id: "pending"}


def test_shutdown_ends_streams_in_order(queue: Queue) -> None:
    app = create_app(queue)
    reading = threading.Event()
    ended: list[bool] = []

    def read(address: str) -> None:
        with client(address) as api, listening(api) as stream:
            stream.until("stats")
            reading.set()
            for _ in stream:
                pass
            ended.append(True)

    with live(app) as address:
        reader = threading.Thread(target=read, args=(address,))
        reader.start()
        assert reading.wait(SOON)
    reader.join(SOON)
    assert ended == [True], "it ended otherwise than by the end of the answer"
    assert watchers() == []


def test_nobody_joins_a_server_that_stops(queue: Queue) -> None:
    async def join() -> None:
        broadcast = Broadcast(queue)
        broadcast.close()
        with pytest.raises(Refused) as refused:
            broadcast.join(Interest())
        assert refused.value.status_code == 503
        assert refused.value.headers == {"Retry-After": "1"}

    asyncio.run(join())
    assert watchers() == []
