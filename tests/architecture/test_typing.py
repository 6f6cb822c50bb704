"""What mypy says about code that uses Holdfast: wrong calls are errors, right ones are not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# A line that ends in "# error" must be refused, every other line must be fine.
PROGRAM = """
from datetime import UTC, datetime
from typing import assert_type

from holdfast import Context, Fail, Job, Queue, Retry, Status, tq

queue = Queue("sqlite:///queue.db")


@queue.job
def send_email(to: str, subject: str = "Hi") -> int:
    return 1


@queue.job(max_attempts=5, timeout=30, concurrency=4, rate_limit=10)
def render(ctx: Context, path: str) -> None:
    ctx.progress(0.5, "half")
    assert_type(ctx.attempt, int)
    assert_type(ctx.job, Job)
    if not path:
        raise Fail("no path")
    raise Retry(delay=5)


@queue.job
async def crawl(ctx: Context, url: str, *, depth: int = 1) -> str:
    async with ctx.transaction() as connection:
        connection.execute("SELECT 1")
    return url


@queue.job(executor="process")
def count(below: int) -> int:
    return below


assert_type(send_email.enqueue(to="a@b.c"), Job)
assert_type(send_email.enqueue("a@b.c", subject="Hello"), Job)
assert_type(send_email("a@b.c"), int)
send_email.enqueue(to=1)  # error
send_email.enqueue()  # error
send_email.enqueue("a@b.c", "Hi", "more")  # error
send_email.enqueue(to="a@b.c", body="x")  # error
send_email.with_options(priority=5, delay=60, key="k").enqueue(to="a@b.c")
send_email.with_options(priority=5).enqueue(to=1)  # error
send_email.enqueue_many([{"to": "a@b.c"}])

render.enqueue(path="film")
render.enqueue("film")
render.enqueue(path=1)  # error
render.enqueue()  # error

crawl.enqueue(url="u", depth=2)
crawl.enqueue("u", 2)  # error
count.enqueue(below=5)
count.enqueue(below="5")  # error


async def serve() -> None:
    assert_type(await crawl.enqueue_async(url="u"), Job)
    await crawl.enqueue_async(url=1)  # error
    assert_type(await queue.enqueue_async("crawl", {"url": "u"}), Job)


job = queue.enqueue("send_email", {"to": "a@b.c"}, run_at=datetime.now(UTC), max_attempts=10)
assert_type(job.status, Status)
assert_type(queue.get(job.id), Job | None)
assert_type(queue.wait(job.id, timeout=10), Job)
assert_type(queue.jobs(status="failed"), list[Job])
assert_type(queue.drain(), int)
assert_type([reason.text for reason in queue.why(job.id)], list[str])
job.status = Status.FAILED  # error

tq.init("sqlite:///app.db")
tq("crawl").set_worker(lambda payload: None).set_worker_count(3).set_rate_limit(10).set_timeout(300)
tq("crawl").add({"url": "u"}).add({"url": "v"}, run_at=datetime.now(UTC))

with Queue() as other:
    assert_type(other, Queue)
"""


def complaints(folder: Path) -> dict[int, str]:
    """What mypy --strict says about the program, by line."""
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--config-file=",
            "--cache-dir=.cache",
            "program.py",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert {file for file, _, _ in found} == {"program.py"}, done.stdout
    return {int(line): message for _, line, message in found}


def test_mypy_refuses_wrong_calls_and_no_right_one(tmp_path: Path) -> None:
    expected = {
        number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.rstrip().endswith("# error")
    }
    found = complaints(tmp_path)
    lines = PROGRAM.splitlines()
    wrongly_refused = {lines[n - 1]: found[n] for n in found.keys() - expected}
    assert wrongly_refused == {}
    wrongly_accepted = [lines[n - 1] for n in sorted(expected - found.keys())]
    assert wrongly_accepted == []
