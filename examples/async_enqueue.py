"""Enqueue from asyncio: concurrent callers share a commit, and the event loop keeps running.

Each await returns only when its own job is durable. No caller waits for others to arrive: the first commit
starts at once, and callers that arrive in the meantime form the next batch.
"""

from __future__ import annotations

import asyncio
import tempfile
import time

from holdfast import Queue

REQUESTS = 200


async def handle_request(queue: Queue, number: int) -> str:
    """What a web server does for each request."""
    job = await queue.enqueue_async("send_email", {"to": f"user{number}@example.com"})
    return job.id


async def serve(queue: Queue) -> None:
    started = time.perf_counter()
    for number in range(REQUESTS):
        await handle_request(queue, number)
    alone = time.perf_counter() - started

    started = time.perf_counter()
    ids = await asyncio.gather(*(handle_request(queue, number) for number in range(REQUESTS)))
    together = time.perf_counter() - started

    print(f"{REQUESTS} requests one after another: {REQUESTS / alone:,.0f} jobs per second")
    print(f"{REQUESTS} requests at the same time:  {REQUESTS / together:,.0f} jobs per second")
    print(f"distinct jobs: {len(set(ids))}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Queue(f"sqlite:///{folder}/app.db") as queue:
        asyncio.run(serve(queue))
        print(f"waiting in the database: {queue.stats()['pending']}")


if __name__ == "__main__":
    main()
