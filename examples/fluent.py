"""`tq`: the queue in one chained line. The same engine and the same database as Queue, with less ceremony."""

from __future__ import annotations

import tempfile
from typing import TypedDict

from holdfast import tq
from holdfast.errors import InvalidPayload


class CrawlPayload(TypedDict):
    url: str


def crawl(payload: CrawlPayload) -> int:
    """A handler takes the payload and returns the result."""
    return len(payload["url"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tq.init(f"sqlite:///{folder}/app.db")  # once, before anything else

        # At most three at a time, at most a hundred starts per second. The first set_worker starts a worker
        # in the background of this process.
        tq("crawl", CrawlPayload).set_worker_count(3).set_rate_limit(100).set_worker(crawl)

        tq("crawl").add({"url": "https://example.com/1"}).add({"url": "https://example.com/22"}, priority=5)

        try:
            tq("crawl").add({"link": "https://example.com"})
        except InvalidPayload as error:
            print(f"refused: {error}")

        # Behind tq is an ordinary Queue, for everything that has no chained form.
        for job in reversed(tq.queue.jobs(type="crawl")):
            done = tq.queue.wait(job.id, timeout=10)
            print(f"{done.payload['url']} {done.status}: {done.result} characters")

        print(f"completed: {tq.stats()['completed']}")
        tq.stop()  # running jobs finish first


if __name__ == "__main__":
    main()
