"""A job's fields and the words for its states."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.core.job import RETRYING, Job, Status, parse_status
from holdfast.errors import ConfigError

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def job(status: Status) -> Job:
    return Job(id="job1", type="crawl", payload={}, status=status, created_at=NOW, updated_at=NOW)


def test_there_are_six_states() -> None:
    assert [status.value for status in Status] == [
        "scheduled",
        "pending",
        "processing",
        "completed",
        "failed",
        "cancelled",
    ]


@pytest.mark.parametrize("status", list(Status))
def test_a_state_is_its_own_word(status: Status) -> None:
    assert parse_status(status.value) is status


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("dead", Status.FAILED),
        ("queued", Status.PENDING),
        ("claimed", Status.PROCESSING),
        ("done", Status.COMPLETED),
    ],
)
def test_other_words_for_the_states_are_taken(word: str, status: Status) -> None:
    assert parse_status(word) is status


def test_retrying_is_a_filter_of_its_own() -> None:
    assert parse_status("retrying") == RETRYING


def test_an_unknown_word_is_an_error_that_lists_what_is_allowed() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_status("sleeping")
    message = str(caught.value)
    assert all(word in message for word in [*Status, RETRYING, "dead", "queued", "claimed", "done"])


@pytest.mark.parametrize("status", list(Status))
def test_a_job_is_finished_in_three_states(status: Status) -> None:
    assert job(status).is_finished == (status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED))


def test_a_job_is_a_snapshot_that_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        job(Status.PENDING).status = Status.FAILED  # type: ignore[misc]
