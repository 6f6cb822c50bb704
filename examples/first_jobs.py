"""A first look: enqueue a few jobs, run them, and look at the results.

Run it with `.venv/bin/python examples/first_jobs.py`. It takes a few seconds, exits by itself and leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import Context, Fail, Job, Queue
from holdfast.observe import log

DATABASE = Path("holdfast-demo.db")

# Nothing is opened yet: the file is created when the queue is first used.
queue = Queue(f"sqlite:///{DATABASE}")


@queue.job
def greet(name: str) -> str:
    """A plain function runs in a thread of the worker."""
    return f"Hello, {name}!"


@queue.job
async def fetch(url: str) -> dict[str, int]:
    """An async function runs on the worker's event loop, alongside many others."""
    await asyncio.sleep(0.05)  # stands in for a request
    return {"characters": len(url)}


@queue.job(executor="process", timeout=30)
def count_primes(below: int) -> dict[str, int]:
    """CPU-bound work gets its own process, which is killed when it times out."""
    primes = [n for n in range(2, below) if all(n % d for d in range(2, int(n**0.5) + 1))]
    return {"primes": len(primes)}


@queue.job(max_attempts=3, backoff_factor=0.1)
def charge(ctx: Context, order: int) -> str:
    """An exception fails the attempt; the job is retried after an increasing delay."""
    if ctx.attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order} paid in attempt {ctx.attempt}"


@queue.job
def deliver(address: str) -> None:
    """Fail means that a retry would not help."""
    raise Fail(f"there is no place called {address!r}")


def main() -> None:
    remove_database()
    log.configure("text")  # log to this terminal, as lines of text

    print("\n1. Enqueue. When enqueue returns, the job survives kill -9 and power loss.\n")
    jobs = [
        greet.enqueue(name="Ada"),
        fetch.enqueue(url="https://example.com"),
        count_primes.enqueue(below=20_000),
        charge.enqueue(order=7),
        deliver.enqueue(address="Atlantis"),
    ]
    tomorrow = greet.with_options(delay=86_400).enqueue(name="tomorrow")
    for job in [*jobs, tomorrow]:
        print(f"   {job.type:<13} {job.payload}  is {job.status}")

    print("\n2. Run them. Here, the worker runs in the background; normally, it is a separate process.\n")
    worker = queue.worker(concurrency=4)
    worker.start()
    finished = [queue.wait(job.id, timeout=30) for job in jobs]
    print("\n3. Look at the results.\n")
    for job in finished:
        print(f"   {job.type:<13} {job.status:<10} {told(job)}")

    print("\n4. Ask why a job is in its state.\n")
    for job in [finished[-2], finished[-1], tomorrow]:
        for reason in queue.why(job.id):
            print(f"   why {job.type}? {reason.text}")

    print("\n5. Stop. Running jobs finish; the rest stay in the database for the next worker.\n")
    worker.stop()
    queue.close()
    remove_database()
    print("\nDone. Next: examples/outbox.py, examples/exactly_once.py, README.md")


def told(job: Job) -> object:
    """The result, or the error and how many attempts failed."""
    if job.error is not None:
        return job.error
    failed = f"   (attempts that failed: {len(job.errors)})" if job.errors else ""
    return f"{job.result}{failed}"


def remove_database() -> None:
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        Path(name).unlink(missing_ok=True)


# A handler's process imports this file to find its function; this line keeps it from running main() there.
if __name__ == "__main__":
    main()
