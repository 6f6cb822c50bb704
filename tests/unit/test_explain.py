"""Every reason why a job is not running, or how it ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.clock import from_datetime
from holdfast.core.explain import Reason, Situation, explain
from holdfast.core.job import Job, Status
from holdfast.core.starting import Hold, HoldKind

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2030, 1, 2, 4, 0, 0, tzinfo=UTC)
# A queue in which a pending job would start at once.
IDLE = Situation(now=from_datetime(NOW), workers=1, workers_for_type=1, slots_for_type=10)


def job(status: Status, **fields: Any) -> Job:
    return Job(id="job1", type="crawl", payload={}, status=status, created_at=NOW, updated_at=NOW, **fields)


def codes(reasons: list[Reason]) -> list[str]:
    return [reason.code for reason in reasons]


def pending(**situation: Any) -> list[Reason]:
    return explain(job(Status.PENDING), replace(IDLE, **situation))


def test_a_completed_job_says_when_and_in_which_attempt() -> None:
    (reason,) = explain(job(Status.COMPLETED, attempts=2, finished_at=NOW), IDLE)
    assert (reason.code, reason.text) == ("completed", "completed at 03:04:05 UTC (just now), attempt 2")


def test_a_failed_job_says_when_and_why() -> None:
    (reason,) = explain(job(Status.FAILED, attempts=3, finished_at=NOW, error="ValueError: no"), IDLE)
    assert reason.code == "failed"
    assert reason.text == "failed permanently at 03:04:05 UTC (just now) after 3 attempts: ValueError: no"


def test_a_job_that_failed_in_its_first_attempt_did_not_take_1_attempts() -> None:
    (reason,) = explain(job(Status.FAILED, attempts=1, finished_at=NOW, error="Fail: no"), IDLE)
    assert reason.text == "failed permanently at 03:04:05 UTC (just now) after 1 attempt: Fail: no"


def test_a_cancelled_job_says_when() -> None:
    (reason,) = explain(job(Status.CANCELLED, finished_at=NOW), IDLE)
    assert (reason.code, reason.text) == ("cancelled", "cancelled at 03:04:05 UTC (just now)")


def test_a_running_job_says_since_when_and_where() -> None:
    began_at = NOW - timedelta(seconds=6.7)
    running = job(Status.PROCESSING, attempts=1, started_at=began_at, worker_id="w1")
    (reason,) = explain(running, replace(IDLE, worker="web-1 (pid 860)"))
    assert (reason.code, reason.text) == ("running", "running for 6 s on web-1 (pid 860), attempt 1")


def test_a_running_job_names_a_worker_that_is_not_known_by_its_id() -> None:
    (reason,) = explain(job(Status.PROCESSING, attempts=1, started_at=NOW, worker_id="w1"), IDLE)
    assert (reason.code, reason.text) == ("running", "running for 0 s on worker w1, attempt 1")


def test_a_running_job_that_was_asked_to_stop_says_so() -> None:
    stopping = job(Status.PROCESSING, worker_id="w1", cancel_requested=True)
    (reason,) = explain(stopping, IDLE)
    assert (reason.code, reason.text) == ("cancelling", "cancellation requested; still running on worker w1")
    (reason,) = explain(stopping, replace(IDLE, worker="web-1 (pid 860)"))
    assert reason.text == "cancellation requested; still running on web-1 (pid 860)"


def test_a_scheduled_job_says_until_when() -> None:
    (reason,) = explain(job(Status.SCHEDULED, run_at=LATER), IDLE)
    assert (reason.code, reason.until) == ("scheduled", "2030-01-02T04:00:00Z")
    assert reason.text == "scheduled for 04:00:00 UTC (in 55 min)"


def test_an_instant_of_another_day_has_its_date() -> None:
    (reason,) = explain(job(Status.SCHEDULED, run_at=NOW + timedelta(days=2)), IDLE)
    assert reason.text == "scheduled for 2030-01-04 03:04:05 UTC (in 2 d)"
    (reason,) = explain(job(Status.CANCELLED, finished_at=NOW - timedelta(hours=4)), IDLE)
    assert reason.text == "cancelled at 2030-01-01 23:04:05 UTC (4 h ago)"


def test_instants_are_told_without_fractions_of_a_second() -> None:
    run_at = datetime(2030, 1, 2, 3, 5, 6, 123456, tzinfo=UTC)
    (reason,) = explain(job(Status.SCHEDULED, run_at=run_at), IDLE)
    assert reason.text == "scheduled for 03:05:06 UTC (in 1 min)"
    assert reason.until == "2030-01-02T03:05:06.123456Z"


def test_a_job_that_waits_for_a_retry_says_what_failed_and_until_when() -> None:
    waiting = job(Status.SCHEDULED, attempts=1, error="OSError: down", next_retry_at=LATER)
    (reason,) = explain(waiting, IDLE)
    assert (reason.code, reason.until) == ("back-off", "2030-01-02T04:00:00Z")
    assert reason.text == "attempt 1 failed (OSError: down); next attempt at 04:00:00 UTC (in 55 min)"


def test_a_scheduled_job_also_says_what_will_hold_it_back_then() -> None:
    reasons = explain(
        job(Status.SCHEDULED, run_at=LATER), replace(IDLE, holds=(Hold("paused", "crawl"),), workers=0)
    )
    assert codes(reasons) == ["scheduled", "paused", "no_workers"]


def test_a_job_that_nothing_holds_back_is_ready() -> None:
    assert pending() == [Reason("ready", "ready; starts as soon as a worker picks it up")]


def test_a_paused_queue_is_a_reason() -> None:
    assert pending(holds=(Hold("paused"),)) == [Reason("paused", "the whole queue is paused")]


def test_a_paused_type_is_a_reason() -> None:
    assert pending(holds=(Hold("paused", "crawl"),)) == [Reason("paused", "crawl is paused")]


def test_no_worker_at_all_is_a_reason() -> None:
    assert codes(pending(workers=0, workers_for_type=0, slots_for_type=0)) == ["no_workers"]


def test_no_worker_for_the_type_is_a_reason() -> None:
    assert codes(pending(workers=2, workers_for_type=0, slots_for_type=0)) == ["no_worker_for_type"]


def test_full_slots_are_a_reason() -> None:
    reasons = pending(running=10)
    assert codes(reasons) == ["slots_full"]
    assert reasons[0].text == "all 10 slots for its type are in use"


def test_max_running_is_a_reason_and_stands_for_full_slots() -> None:
    reasons = pending(running=10, holds=(Hold("max_running", "crawl", 4, 4),))
    assert codes(reasons) == ["max_running"]
    assert reasons[0].text == "4 jobs are already running; max_running allows 4"


@pytest.mark.parametrize(("name", "whose"), [("craw", " of craw"), ("", " of the whole queue")])
def test_a_limit_that_it_shares_with_others_names_whose_it_is(name: str, whose: str) -> None:
    (reason,) = pending(holds=(Hold("max_running", name, 1, 1),))
    assert reason.text == f"1 job is already running; max_running{whose} allows 1"
    (reason,) = pending(holds=(Hold("rate_limit", name, 0.5, wait=2.0),))
    assert reason.text.startswith(f"rate limit of 0.5 jobs/s{whose} reached; ")


def test_large_limits_are_written_out() -> None:
    texts = [
        reason.text
        for kind in ("max_running", "rate_limit")
        for reason in pending(holds=(Hold(kind, "crawl", 1_000_000, 1_000_000, wait=2.0),))
    ]
    assert texts[0].endswith("max_running allows 1000000")
    assert texts[1].startswith("rate limit of 1000000 jobs/s reached")


@pytest.mark.parametrize(
    ("used", "who"), [(1, "1 of 1 jobs of customer:42 is"), (2, "2 of 2 jobs of customer:42 are")]
)
@pytest.mark.parametrize(
    ("name", "whose"), [("crawl", ""), ("craw", " of craw"), ("", " of the whole queue")]
)
def test_a_full_group_is_a_reason_and_says_whose_limit_it_is(
    used: int, who: str, name: str, whose: str
) -> None:
    job_of_group = job(Status.PENDING, group="customer:42")
    situation = replace(IDLE, holds=(Hold("group_concurrency", name, used, used),))
    (reason,) = explain(job_of_group, situation)
    assert reason.code == "group_concurrency"
    assert reason.text == f"{who} running, the most that group_concurrency{whose} allows"


@pytest.mark.parametrize("kind", ["max_running", "group_concurrency"])
def test_a_limit_that_was_lowered_is_told_from_what_still_runs(kind: HoldKind) -> None:
    situation = replace(IDLE, holds=(Hold(kind, "crawl", 2, 5),))
    (reason,) = explain(job(Status.PENDING, group="g"), situation)
    assert reason.text.startswith("5 jobs ")
    assert reason.text.endswith(f"{kind} allows 2")


def test_a_rate_limit_is_a_reason_and_says_until_when() -> None:
    (reason,) = pending(holds=(Hold("rate_limit", "crawl", 0.5, wait=2.0),))
    assert (reason.code, reason.until) == ("rate_limit", "2030-01-02T03:04:07Z")
    assert reason.text == "rate limit of 0.5 jobs/s reached; the next can start at 03:04:07 UTC (in 2 s)"


def test_jobs_before_it_are_a_reason_that_warns_of_strict_priorities() -> None:
    (reason,) = pending(ahead=7)
    assert reason.code == "in_line"
    assert reason.text == "7 jobs of its type are ahead of it; higher priorities always go first"


def test_jobs_before_it_in_a_fair_type_are_a_reason_that_names_the_turns() -> None:
    (reason,) = pending(ahead=7, fair=True)
    assert reason.text == "7 jobs of its type are ahead of it; groups take turns within a priority"


def test_many_jobs_before_it_are_not_counted_to_the_end() -> None:
    (reason,) = pending(ahead=10_000, ahead_capped=True)
    assert reason.text.startswith("more than 10000 jobs")


def test_all_reasons_are_told_the_one_that_decides_first() -> None:
    holds = Hold("paused", "crawl"), Hold("paused"), Hold("rate_limit", "crawl", 1.0, wait=1.0)
    reasons = pending(holds=holds, running=10, ahead=3)
    assert codes(reasons) == ["paused", "paused", "slots_full", "rate_limit", "in_line"]


@pytest.mark.parametrize("status", list(Status))
def test_every_state_is_explained_in_a_line(status: Status) -> None:
    reasons = explain(job(status, error="ValueError: a\nb"), IDLE)
    assert reasons
    assert all("\n" not in reason.text for reason in reasons)


def test_a_job_that_has_lost_two_workers_says_that_it_waits_to_run_alone() -> None:
    assert codes(pending(losses=1)) == ["ready"]
    (reason,) = pending(losses=2)
    assert reason.code == "runs_alone"
    assert reason.text == (
        "two workers were lost while it ran; it waits until a worker has nothing else to run"
    )
    (reason,) = pending(losses=3)
    assert reason.text.startswith("3 workers were lost")
