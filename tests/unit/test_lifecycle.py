"""The life cycle: the table of transitions, and that `decide` never leaves it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import Backoff
from holdfast.core.job import FINISHED, Status
from holdfast.core.lifecycle import (
    TRANSITIONS,
    Completed,
    Decision,
    Errored,
    LeaseEnded,
    Outcome,
    Policy,
    Released,
    Stopped,
    decide,
    sources,
)

VERBS = {"promote", "claim", "complete", "fail", "reap", "release", "cancel", "retry"}


def targets(source: Status, verb: str) -> set[Status]:
    """The states that a verb can lead to from a state; empty when it is not allowed there."""
    return {t.target for t in TRANSITIONS if t.source == source and t.verb == verb}


outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, result=st.none() | st.just('{"n":1}')),
    st.builds(
        Errored,
        error=st.text(min_size=1),
        traceback=st.none() | st.text(),
        detail=st.none() | st.just({"exitCode": 3}),
        permanent=st.booleans(),
        delay=st.none() | st.floats(0, 1e6),
    ),
    st.builds(LeaseEnded, error=st.text(min_size=1), has_started=st.none() | st.booleans()),
    st.builds(Released, has_started=st.booleans()),
    st.builds(Stopped, error=st.none() | st.text()),
)
backoffs = st.builds(
    Backoff,
    strategy=st.sampled_from(["exponential", "linear", "fixed"]),
    base=st.floats(0, 10),
    factor=st.floats(0.001, 100),
    maximum=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
)
attempts_made = st.integers(1, 100)
chances = st.floats(0, 1)


def policy(max_attempts: int) -> Policy:
    return Policy(max_attempts, Backoff(jitter=0))


def after(outcome: Outcome, *, attempts: int = 1, max_attempts: int = 3) -> Decision:
    return decide(attempts, outcome, policy(max_attempts), 0.5)


def test_every_state_but_completed_has_a_way_out_and_every_state_a_way_in() -> None:
    assert {t.source for t in TRANSITIONS} == set(Status) - {Status.COMPLETED}
    assert {t.target for t in TRANSITIONS} | {Status.SCHEDULED, Status.PENDING} == set(Status)


def test_the_table_uses_one_verb_for_one_thing() -> None:
    assert {t.verb for t in TRANSITIONS} == VERBS


def test_no_arrow_is_drawn_twice() -> None:
    arrows = Counter((t.source, t.verb, t.target) for t in TRANSITIONS)
    assert set(arrows.values()) == {1}


def test_arrows_that_share_a_source_and_verb_say_when_each_is_taken() -> None:
    for t in TRANSITIONS:
        if len(targets(t.source, t.verb)) > 1:
            assert t.when, t


def test_only_a_pending_job_is_claimed() -> None:
    assert sources("claim") == {Status.PENDING}
    assert targets(Status.PENDING, "claim") == {Status.PROCESSING}


@pytest.mark.parametrize("verb", ["complete", "fail", "reap", "release"])
def test_an_attempt_ends_only_from_processing(verb: str) -> None:
    assert sources(verb) == {Status.PROCESSING}


def test_whatever_is_not_finished_can_be_cancelled() -> None:
    assert sources("cancel") == set(Status) - FINISHED
    assert all(targets(source, "cancel") == {Status.CANCELLED} for source in sources("cancel"))


def test_a_completed_job_is_never_changed_again() -> None:
    assert not [t for t in TRANSITIONS if t.source is Status.COMPLETED]


def test_a_person_retries_failed_cancelled_and_waiting_for_a_retry() -> None:
    assert sources("retry") == {Status.FAILED, Status.CANCELLED, Status.SCHEDULED}
    assert all(targets(source, "retry") == {Status.PENDING} for source in sources("retry"))


def test_a_verb_that_is_not_allowed_leads_nowhere() -> None:
    assert targets(Status.COMPLETED, "retry") == set()
    assert sources("explode") == set()


def test_waiting_finished_and_processing_are_all_states() -> None:
    waiting = {Status.SCHEDULED, Status.PENDING}
    assert waiting | FINISHED | {Status.PROCESSING} == set(Status)
    assert not waiting & FINISHED


@given(attempts_made, attempts_made, outcomes, backoffs, chances)
def test_every_outcome_takes_an_arrow_of_the_table(
    attempts: int, max_attempts: int, outcome: Outcome, backoff: Backoff, chance: float
) -> None:
    decision = decide(attempts, outcome, Policy(max_attempts, backoff), chance)
    assert decision.status in targets(Status.PROCESSING, decision.verb)


@given(attempts_made, attempts_made, outcomes, backoffs, chances)
def test_no_outcome_lets_a_job_start_more_often_than_allowed(
    attempts: int, max_attempts: int, outcome: Outcome, backoff: Backoff, chance: float
) -> None:
    decision = decide(attempts, outcome, Policy(max_attempts, backoff), chance)
    if decision.status not in FINISHED and not decision.attempts_back:
        assert attempts < max_attempts


@given(attempts_made, attempts_made, outcomes, backoffs, chances)
def test_only_an_attempt_that_was_released_or_has_not_started_is_given_back(
    attempts: int, max_attempts: int, outcome: Outcome, backoff: Backoff, chance: float
) -> None:
    decision = decide(attempts, outcome, Policy(max_attempts, backoff), chance)
    has_not_started = isinstance(outcome, LeaseEnded) and not outcome.has_started
    is_given_back = isinstance(outcome, Released) or has_not_started
    assert decision.attempts_back == int(is_given_back)
    assert not (is_given_back and decision.error)


@given(attempts_made, attempts_made, outcomes, backoffs, chances)
def test_only_a_lost_worker_counts_as_a_loss_and_only_what_ran_ends_the_row(
    attempts: int, max_attempts: int, outcome: Outcome, backoff: Backoff, chance: float
) -> None:
    decision = decide(attempts, outcome, Policy(max_attempts, backoff), chance)
    match outcome:
        case LeaseEnded(has_started=False) | Released(has_started=False):
            assert decision.loss == 0
        case LeaseEnded():
            assert decision.loss == 1
        case _:
            assert decision.loss is None


@given(attempts_made, attempts_made, outcomes, backoffs, chances)
def test_only_a_scheduled_retry_waits(
    attempts: int, max_attempts: int, outcome: Outcome, backoff: Backoff, chance: float
) -> None:
    decision = decide(attempts, outcome, Policy(max_attempts, backoff), chance)
    assert decision.delay >= 0
    if decision.status is not Status.SCHEDULED:
        assert decision.delay == 0


@pytest.mark.parametrize(
    ("outcome", "left", "none_left"),
    [
        (Completed(), ("complete", Status.COMPLETED), ("complete", Status.COMPLETED)),
        (Errored("boom"), ("fail", Status.SCHEDULED), ("fail", Status.FAILED)),
        (Errored("boom", permanent=True), ("fail", Status.FAILED), ("fail", Status.FAILED)),
        (Errored("later", delay=60.0), ("fail", Status.SCHEDULED), ("fail", Status.FAILED)),
        (LeaseEnded("gone"), ("reap", Status.SCHEDULED), ("reap", Status.FAILED)),
        (LeaseEnded("gone", has_started=False), ("reap", Status.PENDING), ("reap", Status.PENDING)),
        (LeaseEnded("gone", has_started=None), ("reap", Status.PENDING), ("reap", Status.PENDING)),
        (Released(), ("release", Status.PENDING), ("release", Status.PENDING)),
        (Stopped(), ("cancel", Status.CANCELLED), ("cancel", Status.CANCELLED)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Outcome) else None,
)
def test_each_outcome_with_attempts_left_and_none_left(
    outcome: Outcome, left: tuple[str, Status], none_left: tuple[str, Status]
) -> None:
    decisions = after(outcome, attempts=2), after(outcome, attempts=3)
    assert [(d.verb, d.status) for d in decisions] == [left, none_left]


def test_together_the_outcomes_reach_every_arrow_out_of_processing() -> None:
    all_outcomes: list[Outcome] = [
        Completed(),
        Errored("boom"),
        LeaseEnded("gone"),
        LeaseEnded("gone", has_started=False),
        Released(),
        Stopped(),
    ]
    reached = {
        (decision.verb, decision.status)
        for outcome in all_outcomes
        for attempts in (1, 3)
        for decision in [after(outcome, attempts=attempts)]
    }
    assert reached == {(t.verb, t.target) for t in TRANSITIONS if t.source is Status.PROCESSING}


def test_a_failed_attempt_keeps_its_evidence() -> None:
    decision = after(Errored("boom", traceback="Traceback…", detail={"exitCode": 2}))
    assert (decision.error, decision.traceback, decision.detail) == ("boom", "Traceback…", {"exitCode": 2})


@pytest.mark.parametrize("outcome", [Errored("boom"), LeaseEnded("gone")])
def test_a_failed_attempt_waits_as_its_back_off_says(outcome: Outcome) -> None:
    assert after(outcome, attempts=2).delay == 4.0


def test_the_jobs_of_a_lost_worker_do_not_all_come_back_at_once() -> None:
    jitter = Policy(3, Backoff(jitter=0.2))
    delays = [decide(1, LeaseEnded("gone"), jitter, chance).delay for chance in (0.0, 1.0)]
    assert delays == [pytest.approx(1.6), pytest.approx(2.4)]


def test_a_delay_the_handler_chose_beats_the_back_off() -> None:
    assert after(Errored("later", delay=0.0), attempts=2).delay == 0.0
    assert after(Errored("later", delay=90.0), attempts=2).delay == 90.0


def test_a_limit_lowered_below_the_attempts_made_ends_the_job() -> None:
    assert after(Errored("boom"), attempts=5, max_attempts=2).status is Status.FAILED
    assert after(LeaseEnded("gone"), attempts=5, max_attempts=2).status is Status.FAILED


def test_a_completed_attempt_keeps_its_result() -> None:
    assert after(Completed('{"n":1}')).result == '{"n":1}'
