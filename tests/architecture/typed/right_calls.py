"""Right calls: type checkers accept every line. Nobody runs it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from holdfast import Context, Fail, Filter, Job, Queue, Reconcile, Retry, Status, tq
from holdfast.config import SettingName
from holdfast.handlers.options import Defaults, EnqueueOptions

queue = Queue("sqlite:///queue.db", defaults={"lease_seconds": "1m"})
defaults: Defaults = {"max_attempts": 5, "job_timeout": None, "retention_failed": timedelta(days=30)}
other_queue = Queue(defaults=defaults)


# Handlers.


@queue.job
def send_email(to: str, subject: str = "Hi") -> int:
    return 1


@queue.job(max_attempts=5, timeout=30, concurrency=4, rate_limit=0.5, backoff_strategy="linear")
def render(ctx: Context, path: str) -> None:
    ctx.progress(0.5, "half")
    assert_type(ctx.attempt, int)
    assert_type(ctx.job, Job)
    assert_type(ctx.now, datetime)
    if not path:
        raise Fail("no path")
    raise Retry(delay="5m")


@queue.job(name="crawl", timeout="1h", backoff_max=timedelta(minutes=5), max_running=None)
async def crawl(ctx: Context, url: str, *, depth: int = 1) -> str:
    assert_type(ctx.enqueue(send_email, {"to": "a@b.c"}, key="k"), str)
    assert_type(ctx.enqueue("send_email", {"to": "a@b.c"}, delay="1h"), str)
    async with ctx.transaction() as connection:
        connection.execute("SELECT 1")
    return url


@queue.job(executor="process")
def count(below: int) -> int:
    return below


def is_there(job: Job) -> str | None:
    return None


def work(payload: dict[str, Any], ctx: Context) -> None:
    return None


@queue.job(reconcile=Reconcile(is_there))
def write(path: str) -> None:
    return None


queue.register("work", work, executor="thread", max_depth=1000, reconcile=is_there, timeout=None)
queue.register("export", work, group_concurrency=2, fair=True, prefetch=0)


# Enqueue.

assert_type(send_email.enqueue(to="a@b.c"), Job)
assert_type(send_email.enqueue("a@b.c", subject="Hello"), Job)
assert_type(send_email("a@b.c"), int)
send_email.with_options(priority=5, delay=60, key="k", group="customer:42", lane="eu").enqueue(to="a@b.c")
send_email.with_options(run_at=datetime.now(UTC), connection=object()).enqueue(to="a@b.c")
send_email.enqueue_many([{"to": "a@b.c"}], atomic=True)
render.enqueue(path="film")
render.enqueue("film")
crawl.enqueue(url="u", depth=2)
count.enqueue(below=5)

job = queue.enqueue("send_email", {"to": "a@b.c"}, run_at=datetime.now(UTC), max_attempts=10)
queue.enqueue("send_email", id="a", timeout="5m", delay=timedelta(hours=1), key="k", key_for="1d")
queue.enqueue_many("send_email", [{"to": "a@b.c"}], priority=1, group="g", delay=None, atomic=True)
options: EnqueueOptions = {"priority": 1, "key": "k"}
queue.enqueue("send_email", None, **options)
assert_type(queue.enqueue_batch([("a", {}, {}), ("b", [1], {"group": "g"})]), list[tuple[Job, bool]])
queue.enqueue_batch(("send_email", {"to": to}, {"key": to, "key_for": "1d"}) for to in ("a@b.c", "d@e.f"))


async def serve() -> None:
    assert_type(await crawl.enqueue_async(url="u"), Job)
    assert_type(await queue.enqueue_async("crawl", {"url": "u"}, priority=1), Job)
    assert_type(await queue.get_async("a"), Job | None)
    assert_type(await queue.wait_async("a", timeout="10s"), Job)
    assert_type(await queue.cancel_async("a"), Job)


# Reading and working.

assert_type(job.status, Status)
assert_type(queue.get(job.id), Job | None)
assert_type(queue.require(job.id), Job)
assert_type(queue.wait(job.id, timeout="10s"), Job)
assert_type(queue.wait(job.id, timeout=timedelta(seconds=10)), Job)
assert_type(queue.jobs(status="failed"), list[Job])
assert_type(queue.count(status=["dead", Status.CANCELLED], since="1h"), int)
assert_type(queue.page(Filter(error="boom", until=timedelta(days=1)), limit=5).jobs, list[Job])
assert_type(queue.retry_all(type="crawl", search="timeout", sort="finished"), tuple[int, int])
assert_type(queue.drain(limit=5, raise_errors=True), int)
assert_type([reason.text for reason in queue.why(job.id)], list[str])
assert_type(queue.worker(concurrency=10, types=["crawl"], batch_size=5).start().stop(timeout="5s"), bool)
assert_type(queue.run_worker(drain=True, recycle=True), bool)
with queue.worker() as worker:
    assert_type(worker.is_running, bool)

with queue.bulk() as bulk:
    bulk.add(1, "send_email", {"to": "a@b.c"}, {"priority": 1})
    bulk.add(2, "send_email", {"to": "a@b.c"}, options)
    assert_type(bulk.count, int)

with Queue() as other:
    assert_type(other, Queue)


# Settings.

queue.set_config("max_running", 5)
queue.set_config("max_running", None, type="send_email")
queue.set_config("job_timeout", "5m")
queue.set_config("retention_failed", timedelta(days=30))
queue.set_config("fair", True, type="export")
queue.unset_config("max_running", type="send_email")
setting: SettingName = "rate_limit"
queue.set_config(setting, 0.5)
queue.set_rate_limit(2)


# The fluent form.

tq.init("sqlite:///app.db", poll_interval="1s", task_timeout="5m")
tq("crawl").set_worker(work).set_worker_count(3).set_rate_limit(10).set_timeout("5m")
tq("crawl").add({"url": "u"}).add({"url": "v"}, run_at=datetime.now(UTC))
tq.stop(timeout="5s")
