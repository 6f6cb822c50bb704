"""The handlers that `make run` serves, and some jobs to begin with: run as a program, it enqueues those.

python -m examples.demo && queuectl serve --app examples.demo:queue
"""

from __future__ import annotations

import time

from holdfast import Context, Fail, Queue

# The queue of QUEUECTL_HOME. Finished jobs are kept for a day, unless `queuectl config` says otherwise.
queue = Queue(defaults={"retention_completed": "1d", "backoff_factor": 2})


@queue.job
def greet(name: str) -> str:
    """Returns at once; what it returns is the job's result."""
    return f"Hello, {name}!"


@queue.job(concurrency=2)
def resize(ctx: Context, picture: str, width: int = 800) -> dict[str, int]:
    """Takes some seconds, reports how far it is, and stops where it can be stopped."""
    steps = 20
    for step in range(steps):
        ctx.check()
        ctx.progress(step / steps, f"{picture}: {width} pixels wide")
        time.sleep(0.25)
    return {"width": width}


@queue.job(max_attempts=4)
def charge(ctx: Context, order: int, card_token: str) -> str:
    """Fails at first and is tried again. Over HTTP its card_token is shown as [redacted]."""
    if ctx.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"order {order} paid in attempt {ctx.attempt}"


@queue.job
def deliver(address: str) -> None:
    """Fails for good: trying again would not help."""
    raise Fail(f"there is no place called {address!r}")


@queue.job(rate_limit=1)
def newsletter(to: str) -> None:
    """At most one starts a second, over all processes."""


def main() -> None:
    for name in ("Ada", "Grace", "Linus"):
        greet.enqueue(name=name)
    greet.with_options(delay=20).enqueue(name="whoever came later")
    for picture in ("cat.jpg", "dog.jpg", "sea.jpg"):
        resize.enqueue(picture=picture)
    charge.enqueue(order=7, card_token="4242-4242")
    deliver.enqueue(address="Atlantis")
    newsletter.enqueue_many({"to": f"reader{number}@example.com"} for number in range(10))
    queue.enqueue("translate", {"text": "nobody handles this type yet"})
    counts = queue.stats()
    print(f"{counts['pending']} jobs are pending and {counts['scheduled']} scheduled in {queue.url}")


if __name__ == "__main__":
    main()
