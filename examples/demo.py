"""A small shop: the handlers that `make run` serves, some initial jobs, and customers who keep coming.

Run as a program, it enqueues those jobs: python -m examples.demo && queuectl serve --app examples.demo:queue
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from holdfast import Context, Fail, Queue

# The queue of QUEUECTL_HOME. Finished jobs are kept for an hour, failed ones for a day, unless
# `queuectl config` says otherwise.
queue = Queue(defaults={"retention_completed": "1h", "retention_failed": "1d", "backoff_factor": 2})


@dataclass
class Customer:
    name: str
    email: str


@queue.job
def greet(name: str) -> str:
    """Returns at once; the return value is the job's result."""
    return f"Hello, {name}!"


@queue.job
def take_order(
    ctx: Context, order: int, customer: Customer, delivery: Literal["post", "courier", "collect"] = "post"
) -> dict[str, str]:
    """Enqueues the next steps of an order: its children, which exist only if it completes."""
    charged = ctx.enqueue(charge, {"order": order, "card_token": "4242-4242"})
    ctx.enqueue(greet, {"name": customer.name}, delay=15)
    return {"charged_by": charged, "delivered_by": delivery}


@queue.job(max_attempts=4)
def charge(ctx: Context, order: int, card_token: str) -> str:
    """Fails at first for every fifth order, and is retried. Its card_token is shown as [redacted]."""
    if order % 5 == 0 and ctx.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"order {order} paid in attempt {ctx.attempt}"


@queue.job(concurrency=2, fair=True)
def resize(ctx: Context, picture: str, width: int = 800) -> dict[str, int]:
    """Takes a few seconds, reports its progress, and can be stopped between steps. Customers take turns."""
    steps = 20
    for step in range(steps):
        ctx.check()
        ctx.progress(step / steps, f"{picture}: {width} pixels wide")
        time.sleep(0.25)
    return {"width": width}


@queue.job
def deliver(address: str, parcel: int = 1) -> str:
    """Fails permanently if a retry would not help: retry it with a different address."""
    if address == "Atlantis":
        raise Fail(f"parcel {parcel}: there is no place called {address!r}")
    return f"parcel {parcel} is on its way to {address}"


@queue.job(max_attempts=1)
def count_stock(warehouse: int) -> int:
    """Has a bug."""
    shelves = {1: 120, 2: 80}
    return shelves[warehouse]


@queue.job(rate_limit=2)
def newsletter(to: str) -> None:
    """Limited to two starts per second, across all processes."""


CUSTOMERS = ("Ada", "Grace", "Linus", "Barbara", "Dennis", "Margaret", "Ken")
SECONDS_BETWEEN_CUSTOMERS = 3


@queue.job
def open_shop(ctx: Context) -> None:
    """Lets a customer in and enqueues itself for the next one. The key keeps it to one job."""
    order = int(ctx.job.created_at.timestamp())
    name = CUSTOMERS[order % len(CUSTOMERS)]
    customer = {"name": name, "email": f"{name.lower()}@example.com"}
    ctx.enqueue(take_order, {"order": order, "customer": customer})
    if order % 4 == 0:
        ctx.enqueue(resize, {"picture": f"picture{order}.jpg"}, group=name.lower())
    ctx.enqueue(open_shop, delay=SECONDS_BETWEEN_CUSTOMERS, key="shop")


def main() -> None:
    for order, name in zip((1005, 1010, 1015), CUSTOMERS, strict=False):
        customer = Customer(name, f"{name.lower()}@example.com")
        take_order.with_options(priority=5).enqueue(order=order, customer=customer)
    for group, numbers in (("ada", range(1, 7)), ("ken", range(7, 9))):
        pictures = [{"picture": f"picture{number}.jpg"} for number in numbers]
        resize.with_options(group=group).enqueue_many(pictures)
    deliver.enqueue_many({"parcel": 70 + number, "address": "Atlantis"} for number in range(5))
    deliver.enqueue(parcel=75, address="Lisbon")
    count_stock.enqueue_many({"warehouse": number} for number in range(1, 6))
    newsletter.enqueue_many({"to": f"reader{number}@example.com"} for number in range(50))
    greet.with_options(delay=60).enqueue(name="whoever came later")
    open_shop.with_options(key="shop").enqueue()
    counts = queue.stats()
    print(f"{counts['pending']} jobs pending and {counts['scheduled']} scheduled in {queue.address}")
    print("to watch them, open the address that `queuectl serve` prints in a browser")


if __name__ == "__main__":
    main()
