"""Testing an application that enqueues: a real queue in a temporary folder, and a clock you can move.

Nothing is mocked and nothing sleeps. With pytest, put `isolated` in a fixture; here, main() calls
the tests one by one.
"""

from __future__ import annotations

import tempfile

from holdfast import Queue
from holdfast.testing import assert_enqueued, isolated

# The application.

queue = Queue("sqlite:///app.db")
outbox: list[str] = []


@queue.job
def send_email(to: str, subject: str) -> None:
    outbox.append(f"{subject} -> {to}")


def sign_up(email: str) -> None:
    """Welcome a user now, and ask them tomorrow how it goes."""
    send_email.with_options(key=f"welcome:{email}").enqueue(to=email, subject="Welcome")
    send_email.with_options(delay=86_400).enqueue(to=email, subject="How is it going?")


# Its tests.


def test_signing_up_twice_welcomes_once() -> None:
    with tempfile.TemporaryDirectory() as folder, isolated(queue, folder):
        sign_up("ada@example.com")
        sign_up("ada@example.com")
        assert_enqueued(queue, "send_email", {"subject": "Welcome"}, key="welcome:ada@example.com", count=1)


def test_the_question_comes_a_day_later() -> None:
    outbox.clear()
    with tempfile.TemporaryDirectory() as folder, isolated(queue, folder) as clock:
        sign_up("ada@example.com")
        assert queue.drain() == 1  # runs the due jobs in this thread
        assert outbox == ["Welcome -> ada@example.com"]
        clock.advance(days=1)
        assert queue.drain() == 1
        assert outbox[1:] == ["How is it going? -> ada@example.com"]


def main() -> None:
    for test in (test_signing_up_twice_welcomes_once, test_the_question_comes_a_day_later):
        test()
        print(f"passed: {test.__name__}")


if __name__ == "__main__":
    main()
