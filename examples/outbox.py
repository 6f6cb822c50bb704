"""The outbox: a job is enqueued inside your own transaction, so it exists if and only if your row does.

Without it there is always a gap. Enqueue first, and the e-mail goes out to a user whose row was rolled
back; commit first, and a crash in between loses the e-mail.
"""

from __future__ import annotations

import sqlite3
import tempfile

from holdfast import Queue


def sign_up(connection: sqlite3.Connection, queue: Queue, email: str, *, broken: bool = False) -> None:
    """Store a user and enqueue the welcome, both or neither."""
    with connection:  # commits at the end, rolls back on an exception
        connection.execute("INSERT INTO users VALUES (?)", (email,))
        queue.enqueue("send_email", {"to": email}, connection=connection)
        if broken:
            raise RuntimeError("the payment was refused")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # The queue's tables (holdfast_…) live beside your own in one file: one commit covers both.
        queue = Queue(f"sqlite:///{folder}/app.db").open()
        connection = sqlite3.connect(f"{folder}/app.db")
        connection.execute("CREATE TABLE users (email TEXT)")

        sign_up(connection, queue, "ada@example.com")
        try:
            sign_up(connection, queue, "eve@example.com", broken=True)
        except RuntimeError as error:
            print(f"rolled back: {error}")

        print("users:", [email for (email,) in connection.execute("SELECT email FROM users")])
        print("jobs: ", [job.payload["to"] for job in queue.jobs(type="send_email")])

        connection.close()
        queue.close()


if __name__ == "__main__":
    main()
