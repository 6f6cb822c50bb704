"""Why a job is not running (yet), and when that will change. Pure: the facts are passed in."""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.clock import SECOND, to_iso
from holdfast.core.job import Job, Status


class Facts(Struct, frozen=True, kw_only=True):
    """What the queue knows that bears on one job."""

    now: int
    paused_all: bool = False
    paused_type: bool = False
    workers: int = 0
    workers_for_type: int = 0
    slots_for_type: int = 0
    running: int = 0
    slots: int = 0
    running_in_all: int = 0
    max_running: int | None = None
    running_under_cap: int = 0
    rate_limit: float = 0.0
    rate_wait: float = 0.0
    ahead: int = 0
    ahead_capped: bool = False


class Reason(Struct, frozen=True):
    """One reason, in a word for programs and a sentence for people."""

    code: str
    text: str
    until: str | None = None


def explain(job: Job, facts: Facts) -> list[Reason]:
    """Every reason that holds a job back, the one that decides first; for a finished one, how it ended."""
    match job.status:
        case Status.COMPLETED:
            return [Reason("completed", f"it completed at {_at(job)} in attempt {job.attempts}")]
        case Status.FAILED:
            attempts = "1 attempt" if job.attempts == 1 else f"{job.attempts} attempts"
            return [Reason("failed", f"it failed for good at {_at(job)} after {attempts}: {_error(job)}")]
        case Status.CANCELLED:
            return [Reason("cancelled", f"it was cancelled at {_at(job)}")]
        case Status.PROCESSING:
            return [_running(job)]
        case Status.SCHEDULED:
            return [_scheduled(job), *_standing(facts)]
        case Status.PENDING:
            return _pending(facts)


def _error(job: Job) -> str:
    return (job.error or "").partition("\n")[0]


def _at(job: Job) -> str:
    return _iso(job.finished_at) or "an unknown time"


def _iso(moment: object) -> str | None:
    return None if moment is None else str(moment).replace(" ", "T").replace("+00:00", "Z")


def _running(job: Job) -> Reason:
    if job.cancel_requested:
        return Reason("cancelling", f"it runs on worker {job.worker_id}, which was asked to stop it")
    return Reason(
        "running", f"it runs since {_iso(job.started_at)} on worker {job.worker_id}, attempt {job.attempts}"
    )


def _scheduled(job: Job) -> Reason:
    if job.next_retry_at is not None:
        until = _iso(job.next_retry_at)
        text = f"attempt {job.attempts} failed ({_error(job)}); the next is at {until}"
        return Reason("back-off", text, until)
    until = _iso(job.run_at)
    return Reason("scheduled", f"it is to run at {until}", until)


def _standing(facts: Facts) -> list[Reason]:
    """What would hold it back however long it waited."""
    reasons = []
    if facts.paused_all:
        reasons.append(Reason("paused", "the whole queue is paused"))
    if facts.paused_type:
        reasons.append(Reason("paused", "its type is paused"))
    if not facts.workers:
        reasons.append(Reason("no_workers", "no worker is running"))
    elif not facts.workers_for_type:
        reasons.append(Reason("no_worker_for_type", "no running worker handles its type"))
    return reasons


def _pending(facts: Facts) -> list[Reason]:
    reasons = _standing(facts)
    if facts.max_running is not None and facts.running_under_cap >= facts.max_running:
        reasons.append(
            Reason("max_running", f"{facts.running_under_cap} run already, as many as max_running allows")
        )
    elif facts.slots_for_type and facts.running >= facts.slots_for_type:
        reasons.append(Reason("slots_full", f"{_all_slots(facts.slots_for_type)} for its type"))
    elif facts.slots and facts.running_in_all >= facts.slots:
        reasons.append(Reason("slots_full", f"{_all_slots(facts.slots)} of the workers"))
    if facts.rate_limit and facts.rate_wait > 0:
        until = to_iso(facts.now + round(facts.rate_wait * SECOND))
        reasons.append(Reason("rate_limit", f"the rate limit of {facts.rate_limit:g} starts a second", until))
    if facts.ahead:
        count = f"more than {facts.ahead}" if facts.ahead_capped else str(facts.ahead)
        who = "1 job of its type is" if facts.ahead == 1 else f"{count} jobs of its type are"
        reasons.append(Reason("in_line", f"{who} before it; a higher priority goes first, always"))
    return reasons or [Reason("ready", "it is ready and starts as soon as a worker looks")]


def _all_slots(count: int) -> str:
    return "another job has the one slot" if count == 1 else f"other jobs have all {count} slots"
