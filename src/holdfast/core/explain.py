"""Why a job is not running, and when that will change. Pure: the facts are passed in."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from holdfast.core.clock import SECOND, from_datetime, to_datetime, to_iso
from holdfast.core.job import Job, Status
from holdfast.core.starting import MOST_LOSSES, Hold
from holdfast.durations import relative, rounded_down


class Situation(Struct, frozen=True, kw_only=True):
    """What the queue knows that is relevant to one job."""

    now: int
    worker: str | None = None
    """Where the job is running, for people: host and pid, if the worker is known."""
    holds: tuple[Hold, ...] = ()
    """The pauses and the limits over all processes that keep it from starting."""
    workers: int = 0
    workers_for_type: int = 0
    slots_for_type: int = 0
    running: int = 0
    slots: int = 0
    running_in_all: int = 0
    losses: int = 0
    """How many workers in a row were lost while they ran it."""
    ahead: int = 0
    ahead_capped: bool = False
    fair: bool = False


class Reason(Struct, frozen=True):
    """One reason: a code for programs, a sentence for people, and when it ends, if that is known."""

    code: str
    text: str
    until: str | None = None


def explain(job: Job, situation: Situation) -> list[Reason]:
    """Every reason why a job is not running, the decisive one first; for a finished job, how it ended."""
    match job.status:
        case Status.COMPLETED:
            return [Reason("completed", f"completed{_at(job, situation)}, attempt {job.attempts}")]
        case Status.FAILED:
            attempts = "1 attempt" if job.attempts == 1 else f"{job.attempts} attempts"
            text = f"failed permanently{_at(job, situation)} after {attempts}: {_error(job)}"
            return [Reason("failed", text)]
        case Status.CANCELLED:
            return [Reason("cancelled", f"cancelled{_at(job, situation)}")]
        case Status.PROCESSING:
            return [_running(job, situation)]
        case Status.SCHEDULED:
            return [_scheduled(job, situation), *_standing(situation)]
        case Status.PENDING:
            return _pending(job, situation)


def _error(job: Job) -> str:
    return (job.error or "").partition("\n")[0]


def _at(job: Job, situation: Situation) -> str:
    """When a job finished, if that is known."""
    return "" if job.finished_at is None else f" at {_clock_time(job.finished_at, situation.now)}"


def _clock_time(moment: datetime, now: int) -> str:
    """A time for people: 18:49:37 UTC (in 59 min), with the date unless it is today."""
    is_today = moment.date() == to_datetime(now).date()
    exact = f"{moment:%H:%M:%S}" if is_today else f"{moment:%Y-%m-%d %H:%M:%S}"
    return f"{exact} UTC ({relative((from_datetime(moment) - now) / SECOND)})"


def _running(job: Job, situation: Situation) -> Reason:
    worker = situation.worker or f"worker {job.worker_id}"
    if job.cancel_requested:
        return Reason("cancelling", f"cancellation requested; still running on {worker}")
    began_at = situation.now if job.started_at is None else from_datetime(job.started_at)
    ran = rounded_down(max(0, situation.now - began_at) / SECOND)
    return Reason("running", f"running for {ran} on {worker}, attempt {job.attempts}")


def _scheduled(job: Job, situation: Situation) -> Reason:
    due = job.next_retry_at or job.run_at
    when = "an unknown time" if due is None else _clock_time(due, situation.now)
    until = None if due is None else to_iso(from_datetime(due))
    if job.next_retry_at is not None:
        text = f"attempt {job.attempts} failed ({_error(job)}); next attempt at {when}"
        return Reason("back-off", text, until)
    return Reason("scheduled", f"scheduled for {when}", until)


def _standing(situation: Situation) -> list[Reason]:
    """Reasons that would hold the job back however long it waits."""
    reasons = [Reason("paused", _paused(hold)) for hold in situation.holds if hold.kind == "paused"]
    if not situation.workers:
        reasons.append(Reason("no_workers", "no worker is running"))
    elif not situation.workers_for_type:
        reasons.append(Reason("no_worker_for_type", "no running worker handles its type"))
    return reasons


def _paused(hold: Hold) -> str:
    return f"{hold.name} is paused" if hold.name else "the whole queue is paused"


def _pending(job: Job, situation: Situation) -> list[Reason]:
    reasons = _standing(situation)
    if situation.losses >= MOST_LOSSES:
        reasons.append(Reason("runs_alone", _alone(situation.losses)))
    limited = {hold.kind: hold for hold in situation.holds}
    if (hold := limited.get("max_running")) is not None:
        reasons.append(Reason("max_running", _full(hold, job)))
    elif situation.slots_for_type and situation.running >= situation.slots_for_type:
        reasons.append(Reason("slots_full", _slots_in_use(situation.slots_for_type, "slot", " for its type")))
    elif situation.slots and situation.running_in_all >= situation.slots:
        reasons.append(Reason("slots_full", _slots_in_use(situation.slots, "worker slot")))
    if (hold := limited.get("group_concurrency")) is not None:
        reasons.append(Reason("group_concurrency", _full_group(hold, job)))
    if (hold := limited.get("rate_limit")) is not None:
        free_at = situation.now + round((hold.wait or 0.0) * SECOND)
        when = _clock_time(to_datetime(free_at), situation.now)
        text = f"rate limit of {hold.size:.15g} jobs/s{_of(hold, job)} reached; the next can start at {when}"
        reasons.append(Reason("rate_limit", text, to_iso(free_at)))
    if situation.ahead:
        count = f"more than {situation.ahead}" if situation.ahead_capped else str(situation.ahead)
        who = "1 job of its type is" if situation.ahead == 1 else f"{count} jobs of its type are"
        order = (
            "groups take turns within a priority" if situation.fair else "higher priorities always go first"
        )
        reasons.append(Reason("in_line", f"{who} ahead of it; {order}"))
    return reasons or [Reason("ready", "ready; starts as soon as a worker picks it up")]


def _alone(losses: int) -> str:
    count = "two" if losses == MOST_LOSSES else str(losses)
    return f"{count} workers were lost while it ran; it waits until a worker has nothing else to run"


def _full(hold: Hold, job: Job) -> str:
    """How many run and how many may, which can be fewer: a limit that is lowered stops nothing."""
    running = "1 job is" if hold.used == 1 else f"{hold.used} jobs are"
    return f"{running} already running; {hold.kind}{_of(hold, job)} allows {int(hold.size)}"


def _full_group(hold: Hold, job: Job) -> str:
    size, limit = int(hold.size), f"group_concurrency{_of(hold, job)}"
    if hold.used > size:
        return f"{hold.used} jobs of {job.group} are running; {limit} allows {size}"
    verb = "is" if hold.used == 1 else "are"
    return f"{hold.used} of {size} jobs of {job.group} {verb} running, the most that {limit} allows"


def _of(hold: Hold, job: Job) -> str:
    """Whose limit it is, where that is not the job's own type."""
    return "" if hold.name == job.type else f" of {hold.name}" if hold.name else " of the whole queue"


def _slots_in_use(count: int, kind: str, whose: str = "") -> str:
    return f"the only {kind}{whose} is in use" if count == 1 else f"all {count} {kind}s{whose} are in use"
