"""Planted mistakes: type checkers refuse every line that ends in `# error`, and no other. Nobody runs it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast import Context, Filter, Queue, Retry, Status, tq

queue = Queue("sqlite:///queue.db")


@queue.job
def send_email(to: str, subject: str = "Hi") -> int:
    return 1


@queue.job(timeout=30)
def render(ctx: Context, path: str) -> None:
    ctx.progress("half")  # error
    ctx.enqueue("send_email", {"to": "a@b.c"}, prority=1)  # error
    ctx.enqueue("send_email", {"to": "a@b.c"}, group=42)  # error
    ctx.enqueue(send_email, {"to": "a@b.c"}, priority="high")  # error
    ctx.enqueue(5)  # error
    raise Retry(delay=[5])  # error


@queue.job
async def crawl(ctx: Context, url: str, *, depth: int = 1) -> str:
    return url


def work(payload: dict[str, Any]) -> None:
    return None


# Settings of a queue.

Queue(defaults={"lease_second": 30})  # error
Queue(defaults={"lease_seconds": b"30"})  # error
Queue(defaults={"max_attempts": "3"})  # error
Queue(defaults={"backoff_strategy": "quadratic"})  # error
Queue(defaults={"retention_completed": ["1h"]})  # error
Queue(defaults={"timeout": 30})  # error
Queue(defaults=[("lease_seconds", 30)])  # error

# Options of a handler.

queue.job(max_retry=5)(work)  # error
queue.job(max_attempts="5")(work)  # error
queue.job(executor="greenlet")(work)  # error
queue.job(backoff_strategy="quadratic")(work)  # error
queue.job(timeout=b"30")(work)  # error
queue.job(reconcile=5)(work)  # error
queue.register("work", work, max_retry=5)  # error
queue.register("work", work, executor="threads")  # error
queue.register("work", work, concurrency=None)  # error
queue.register("work", work, rate_limit="10")  # error
queue.register("work", 5)  # error

# Arguments of a job's function.

send_email.enqueue(to=1)  # error
send_email.enqueue()  # error
send_email.enqueue("a@b.c", "Hi", "more")  # error
send_email.enqueue(to="a@b.c", body="x")  # error
send_email.with_options(priority=5).enqueue(to=1)  # error
render.enqueue(path=1)  # error
render.enqueue()  # error
crawl.enqueue("u", 2)  # error

# Options of a job.

send_email.with_options(prority=5)  # error
send_email.with_options(priority=5.5)  # error
send_email.with_options(lane=5)  # error
send_email.with_options(run_at="2030-01-01")  # error
send_email.enqueue_many([{"to": "a@b.c"}], atomic="yes")  # error
queue.enqueue("send_email", {"to": "a@b.c"}, max_tries=3)  # error
queue.enqueue("send_email", {"to": "a@b.c"}, delay=b"5m")  # error
queue.enqueue("send_email", {"to": "a@b.c"}, key=42)  # error
queue.enqueue("send_email", {"to": "a@b.c"}, max_attempts="3")  # error
queue.enqueue("send_email", {"to": "a@b.c"}, run_at=datetime.now)  # error
queue.enqueue_many("send_email", [{"to": "a@b.c"}], key="k")  # error
queue.enqueue_many("send_email", [{"to": "a@b.c"}], id="a")  # error
queue.enqueue(send_email, {"to": "a@b.c"})  # error
queue.enqueue_batch([("send_email", {"to": "a@b.c"}, {"prority": 1})])  # error
queue.enqueue_batch([("send_email", {"to": "a@b.c"}, {"priority": "high"})])  # error
queue.enqueue_batch([("send_email", {"to": "a@b.c"})])  # error
queue.bulk().add(1, "send_email", {"to": "a@b.c"}, {"prority": 1})  # error
queue.bulk().add(1, "send_email", {"to": "a@b.c"}, {"run_at": "2030-01-01"})  # error


async def serve() -> None:
    await crawl.enqueue_async(url=1)  # error
    await queue.enqueue_async("crawl", {"url": "u"}, priorty=1)  # error
    await queue.wait_async("a", timeout=b"10")  # error
    job = await queue.get_async("a")
    job.status.upper()  # error


# Reading and working.

queue.get(5)  # error
queue.get("a").status.upper()  # error
queue.wait("a", timeout=datetime.now)  # error
queue.require("a").status = Status.FAILED  # error
queue.jobs(status="faild")  # error
queue.count(status=["failed", "gone"])  # error
queue.page(sort="newest")  # error
queue.page(Filter(ascending="yes"))  # error
queue.retry_all(staus="failed")  # error
queue.act("drop", ["a"])  # error
queue.worker(concurency=5)  # error
queue.worker(concurrency="5")  # error
queue.worker(types=5)  # error
queue.run_worker(drain="yes")  # error
queue.drain(raise_error=True)  # error

# Settings.

queue.set_config("max_runing", 5)  # error
queue.set_config("max_running", b"5")  # error
queue.set_config("max_running", 5, type=["send_email"])  # error
queue.unset_config("max_runing")  # error
queue.set_rate_limit("fast")  # error

# The fluent form.

tq.init("sqlite:///app.db", batch_size="10")  # error
tq("crawl").add({"url": "u"}, priorty=1)  # error
tq("crawl").set_worker_count("3")  # error
