"""Looking up names: a bound on threads, one thread for each name, and nobody waits for an answer too late."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.jobs.name_lookup import NameLookup
from tests.support import wait_until

PATIENCE = 60


class Resolver:
    """Answers with what it was asked; names that begin with `slow` wait until they are let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = threading.Event()

    def __call__(self, host: str, port: int, **_: object) -> list[Any]:
        self.asked.append(host)
        if host.startswith("slow"):
            assert self.go.wait(PATIENCE)
        if host.endswith("nowhere"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(host, port)]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.go.set()
    wait_until(lambda: not _threads(), timeout=PATIENCE, message="a thread stays")


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "holdfast-lookup"]


async def _until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition, PATIENCE)


def test_answers_and_errors_are_those_of_the_system(resolver: Resolver) -> None:
    async def look() -> None:
        names = NameLookup()
        assert await names.find("here", 80) == [("here", 80)]
        with pytest.raises(socket.gaierror, match="not known"):
            await names.find("nowhere", 80)

    asyncio.run(look())


def test_there_are_no_more_threads_than_allowed_and_the_rest_wait(resolver: Resolver) -> None:
    async def look() -> None:
        names = NameLookup(2)
        tasks = [asyncio.ensure_future(names.find(f"slow{n}", n)) for n in range(5)]
        await _until(lambda: len(resolver.asked) == 2)
        assert len(_threads()) == 2
        resolver.go.set()
        assert await asyncio.gather(*tasks) == [[(f"slow{n}", n)] for n in range(5)]

    asyncio.run(look())


def test_names_that_were_given_up_hold_up_no_others(resolver: Resolver) -> None:
    """Ten slots whose requests end after a second leave 200 behind while a resolver takes its 20 s."""

    async def look() -> None:
        names = NameLookup()
        tasks = [asyncio.ensure_future(names.find(f"slow{n}", n)) for n in range(200)]
        await _until(lambda: len(resolver.asked) == 200)
        for task in tasks:
            task.cancel()
        assert await names.find("here", 80) == [("here", 80)]

    asyncio.run(look())


def test_name_for_which_there_is_no_new_thread_waits_for_one(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def look() -> None:
        names = NameLookup()
        slow = asyncio.ensure_future(names.find("slow", 80))
        await _until(lambda: resolver.asked)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="start new thread"):
                await NameLookup().find("here", 80)
            here = asyncio.ensure_future(names.find("here", 80))
            await asyncio.sleep(0)
        resolver.go.set()
        assert await asyncio.gather(*[slow, here]) == [[("slow", 80)], [("here", 80)]]

    asyncio.run(look())


def test_many_who_ask_for_one_name_take_one_thread(resolver: Resolver) -> None:
    async def look() -> None:
        names = NameLookup(2)
        tasks = [asyncio.ensure_future(names.find("slow.nowhere", 80)) for _ in range(5)]
        await _until(lambda: resolver.asked)
        assert await names.find("here", 80) == [("here", 80)]
        resolver.go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, socket.gaierror) for answer in answers)
        assert await names.find("slow", 80) == [("slow", 80)]

    asyncio.run(look())
    assert resolver.asked == ["slow.nowhere", "here", "slow"]


def test_name_that_nobody_waits_for_any_more_is_not_looked_up(resolver: Resolver) -> None:
    async def look() -> None:
        names = NameLookup(1)
        tasks = [asyncio.ensure_future(names.find(host, 80)) for host in ("slow", "here", "there")]
        await _until(lambda: resolver.asked)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        resolver.go.set()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [False, True, False]

    asyncio.run(look())
    assert resolver.asked == ["slow", "there"]


def test_loop_that_ends_does_not_wait_for_a_slow_name(resolver: Resolver) -> None:
    async def look() -> None:
        async with asyncio.timeout(0.05):
            await NameLookup().find("slow", 80)

    with pytest.raises(TimeoutError):
        asyncio.run(look())
    assert len(_threads()) == 1
