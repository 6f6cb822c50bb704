"""Takes the pictures of the README: a shop's queue, filled in the same way each time, as a browser shows it.

`make screenshots` runs it. The clock stands still at a fixed instant: what differs from the last picture is
the page, and not the day.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import sin
from pathlib import Path

from holdfast import Queue
from holdfast.core.job import Status
from holdfast.core.lifecycle import Decision, completion
from holdfast.handlers.options import EnqueueOptions
from holdfast.store.open import store_of
from holdfast.store.records import Claim, Demand, Finish, WorkerRecord
from holdfast.testing import MovableClock
from holdfast.web import create_app
from holdfast.worker.statistics import Statistics
from tests.surfaces.browser import NO_BROWSER, Chromium, find_browser
from tests.surfaces.live import live

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZE = {"width": 1280, "height": 900}
MARGIN = 10
NOW = datetime(2026, 3, 5, 10, 42, 40, tzinfo=UTC)
HOSTS = ("web-1", "web-2")
SLOTS = 4
MINUTES = 60
LEASE = 300.0

# Jobs a minute, and the seconds that one waits and runs.
PACE = {
    "send_receipt": (11, 0.3, 0.4),
    "resize_image": (8, 1.8, 3.0),
    "charge_card": (8, 0.08, 0.9),
    "update_stock": (5, 0.04, 0.02),
    "build_report": (1, 4.0, 40.0),
}
ERRORS = {
    "charge_card": "CardDeclined: order {number}: the bank declined the card",
    "send_receipt": "SMTPServerDisconnected: no answer from mail.example.com after {seconds:.1f} s",
    "resize_image": "UnidentifiedImageError: cannot identify image file 'product-{number}.heic'",
}
FAILING = {
    "charge_card": dict.fromkeys(range(4, MINUTES, 5), 1),
    "send_receipt": {33: 2, 34: 5, 35: 6, 36: 4, 37: 1},
    "resize_image": {20: 1, 41: 1, 52: 1},
}
"""How many jobs fail for good, and in which minutes."""


def main() -> None:
    browser_path = find_browser()
    if browser_path is None:
        sys.exit(NO_BROWSER)
    IMAGES.mkdir(exist_ok=True)
    clock = MovableClock(NOW)
    with tempfile.TemporaryDirectory() as folder, Queue(f"sqlite:///{folder}/shop.db", clock=clock) as queue:
        Shop(queue, clock).work()
        with live(create_app(queue)) as address:
            take(browser_path, f"{address}/", "dashboard", down_to="#types")


def take(browser_path: str, address: str, name: str, down_to: str) -> None:
    """Pictures of a page as far as the end of an element, light and dark."""
    browser = Chromium(browser_path)
    try:
        for scheme, suffix in (("light", ""), ("dark", "-dark")):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
            page = context.new_page()
            page.goto(address)
            page.locator("#live").wait_for()  # shown by the script: it has run
            box = page.locator(down_to).bounding_box()
            assert box is not None
            height = box["y"] + box["height"] + MARGIN
            page.screenshot(
                path=IMAGES / f"{name}{suffix}.png",
                full_page=True,
                clip={"x": 0, "y": 0, "width": SIZE["width"], "height": height},
            )
            context.close()
    finally:
        browser.close()


class Shop:
    """Does the work of an hour and stops in the middle of more."""

    def __init__(self, queue: Queue, clock: MovableClock) -> None:
        self._queue = queue
        self._store = store_of(queue)
        self._clock = clock
        self._chance = random.Random(7)
        self._order = 18_000
        self._statistics = Statistics(HOSTS[0])
        for pid, host in enumerate(HOSTS, 4021):
            worker = WorkerRecord(
                id=host, host=host, pid=pid, state="running", concurrency=SLOTS, types=tuple(PACE)
            )
            self._store.register_worker(worker, [])

    def work(self) -> None:
        self._clock.advance(minutes=-MINUTES)
        for minute in range(MINUTES):
            self._clock.advance(minutes=1)
            for type, (pace, _, _) in PACE.items():
                self._enqueue(type, self._varied(pace, minute))
                claims = self._claim(HOSTS[0], type)
                failing = FAILING.get(type, {}).get(minute, 0)
                self._finish(claims[:failing], lambda claim: self._failure(claim, Status.FAILED))
                self._finish(claims[failing:], lambda _: completion(None))
        self._store.write_statistics(self._statistics.portion())
        self._stop_in_the_middle()

    def _stop_in_the_middle(self) -> None:
        first, second = HOSTS
        self._clock.advance(-30)
        self._enqueue("send_receipt", 9)
        waiting = self._claim(first, "send_receipt")
        self._finish(waiting, lambda claim: self._failure(claim, Status.SCHEDULED))
        self._enqueue("build_report", 2)
        self._queue.cancel(f"build-report-{self._order}")
        self._claim(second, "build_report")
        self._clock.advance(26)
        self._enqueue("translate", 3)
        self._enqueue("resize_image", 17)
        self._claim(first, "resize_image", 3)
        self._clock.advance(2.6)
        self._claim(second, "resize_image", 3)
        self._enqueue("charge_card", 2)
        self._clock.advance(0.7)
        self._claim(first, "charge_card", 1)
        for host in HOSTS:
            self._store.heartbeat(host, [], state="running", lease_seconds=LEASE)
        self._clock.move_to(NOW)

    def _varied(self, pace: int, minute: int) -> int:
        """The pace with its tides and its accidents."""
        return round(pace * (1 + 0.35 * sin(minute / 9) + self._chance.uniform(-0.2, 0.2)))

    def _enqueue(self, type: str, count: int) -> None:
        jobs: list[tuple[str, object, EnqueueOptions]] = []
        for _ in range(count):
            self._order += 1
            jobs.append((type, {"order": self._order}, {"id": f"{type.replace('_', '-')}-{self._order}"}))
        self._queue.enqueue_batch(jobs)

    def _claim(self, host: str, type: str, limit: int = 1000) -> list[Claim]:
        demand = Demand(type=type, limit=limit, max_attempts=3)
        return self._store.claim_jobs(host, [demand], limit=limit, lease_seconds=LEASE).claims

    def _failure(self, claim: Claim, status: Status) -> Decision:
        number = claim.id.rpartition("-")[2]
        error = ERRORS[claim.type].format(number=number, seconds=30 + self._chance.random())
        return Decision("fail", status, delay=90, error=error)

    def _finish(self, claims: Sequence[Claim], decide: Callable[[Claim], Decision]) -> None:
        now = self._store.now()
        finishes = [
            Finish(
                seq=claim.seq,
                type=claim.type,
                version=claim.version,
                worker_id=claim.worker_id,
                attempt=claim.attempts,
                decision=decide(claim),
                started_at=now,
            )
            for claim in claims
        ]
        self._store.finish_jobs(finishes)
        for claim, finish in zip(claims, finishes, strict=True):
            if finish.decision.status is not Status.SCHEDULED:
                _, wait, run = PACE[claim.type]
                varied = self._chance.uniform(0.5, 2)
                pace = [(wait * varied, run * varied)]
                self._statistics.end(claim.type, finish.decision.status, now, pace)


if __name__ == "__main__":
    main()
