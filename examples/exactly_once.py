"""Exactly once: what a handler writes through ctx.transaction() commits together with its job's completion.

Any queue runs a job again when a worker dies at the wrong moment. Here the effect and the record that
it happened are one commit, so there is no wrong moment.
"""

from __future__ import annotations

import sqlite3
import tempfile

from holdfast import Context, Queue, Retry
from holdfast.errors import HoldfastError


def book(ctx: Context, amount: int) -> None:
    with ctx.transaction() as connection:  # a connection to the queue's own database
        connection.execute("INSERT INTO bookings VALUES (?)", (amount,))
        print(f"attempt {ctx.attempt}: written, not yet committed")
        if ctx.attempt == 1:
            # Anything that goes wrong inside the block, even a crash, rolls the booking back.
            raise Retry("the power went out", delay=0)
        ctx.result = {"booked": amount}
    # From here on the job is completed, whatever else happens.


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        queue = Queue(f"sqlite:///{folder}/app.db")
        connection = sqlite3.connect(f"{folder}/app.db")
        connection.execute("CREATE TABLE bookings (amount INTEGER)")

        job = queue.job(book).enqueue(amount=100)
        queue.drain()  # runs the pending jobs in this thread, as a worker would

        done = queue.get(job.id)
        if done is None:
            raise HoldfastError("the job no longer exists")
        (count,) = connection.execute("SELECT count(*) FROM bookings").fetchone()
        print(f"{done.status} in attempt {done.attempts}: {done.result}")
        print(f"bookings in the database: {count}")

        connection.close()
        queue.close()


if __name__ == "__main__":
    main()
