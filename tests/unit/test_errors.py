"""The error tree: each error one line, a default from its docstring, data in attributes, a hint."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from holdfast import errors
from holdfast.core.job import FINISHED, Status
from holdfast.core.lifecycle import sources
from holdfast.errors import (
    BatchRefused,
    Fail,
    HoldfastError,
    Interrupted,
    InvalidPayload,
    KeyHeld,
    KeyTaken,
    PayloadTooLarge,
    ProcessDied,
    Retry,
    StoreBusy,
    StoreError,
    TimedOut,
    WorkerLost,
    WrongState,
)

# How to make each error that needs to be told something.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "ExtractionFailed": {"problem": "the answer is empty", "exit_code": 0},
    "StoreBusy": {"seconds": 5.0},
    "JobNotFound": {"job_id": "job1"},
    "DuplicateJob": {"job_id": "job1"},
    "KeyTaken": {"job_id": "job1", "key": "k"},
    "KeyHeld": {"job_id": "job1", "key": "k"},
    "InvalidPayload": {"where": "payload.a", "problem": "is wrong"},
    "PayloadTooLarge": {"where": "payload", "problem": "is too large"},
    "UnknownType": {"type": "crawl", "known": ["b", "a"]},
    "WrongState": {
        "job_id": "job1",
        "status": "completed",
        "action": "retried",
        "allowed": "only failed ones",
    },
    "QueueFull": {"type": "crawl", "max_depth": 5},
    "TimedOut": {"after": 30.0},
    "WorkerLost": {"worker_id": "w1", "last_seen": "2030-01-01T00:00:00Z"},
    "ProcessDied": {"exit_code": -9},
    "CommandNotStarted": {"problem": "no such folder", "permanent": True},
    "CommandFailed": {"exit_code": 3, "last_line": "not found"},
    "BulkRefused": {"line": 3, "error": HoldfastError("wrong"), "stored": 0},
    "QueueNotFound": {"address": "sqlite:////srv/jobs.db"},
    "DatabaseReplaced": {"path": "/srv/jobs.db", "removed": True},
    "QueueMoved": {"to": "postgresql://db/jobs", "done": False},
    "QueueArriving": {"source": "sqlite:////srv/jobs.db"},
    "BatchRefused": {"index": 2, "error": HoldfastError("wrong")},
}

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HoldfastError) and kind.__module__ == errors.__name__
]


def make(kind: type[HoldfastError]) -> HoldfastError:
    return kind(**ARGUMENTS.get(kind.__name__, {}))


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_has_a_message_of_one_line(kind: type[HoldfastError]) -> None:
    message = str(make(kind))
    assert message
    assert message.isprintable()


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_has_a_docstring(kind: type[HoldfastError]) -> None:
    assert kind.__doc__


@pytest.mark.parametrize(
    "kind",
    [kind for kind in ERRORS if kind.__name__ not in ARGUMENTS and kind.__init__ is HoldfastError.__init__],
)
def test_an_error_without_a_message_says_what_its_docstring_says(kind: type[HoldfastError]) -> None:
    assert str(kind()) == (kind.__doc__ or "").splitlines()[0]


@pytest.mark.parametrize("kind", ERRORS)
def test_the_hint_is_an_attribute_and_part_of_the_message(kind: type[HoldfastError]) -> None:
    error = make(kind)
    if error.hint is not None:
        assert str(error).endswith(f"({error.hint})")


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind.__name__ in ARGUMENTS])
def test_the_data_of_an_error_is_in_its_attributes(kind: type[HoldfastError]) -> None:
    error = make(kind)
    texts = {"allowed", "known", "seconds"}  # only worded, not needed by programs
    for name, value in ARGUMENTS[kind.__name__].items():
        if name not in texts:
            assert getattr(error, name) == value


def test_a_hint_comes_after_the_message() -> None:
    error = HoldfastError("it broke", hint="mend it")
    assert (str(error), error.hint) == ("it broke (mend it)", "mend it")


def test_an_application_may_make_errors_of_its_own_without_a_docstring() -> None:
    class Ours(HoldfastError):
        pass

    assert str(Ours())


def test_errors_have_messages_where_docstrings_are_stripped() -> None:
    code = (
        "from holdfast.errors import LeaseLost, TransactionExpired; print(LeaseLost(), TransactionExpired())"
    )
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_a_message_with_line_breaks_becomes_one_line() -> None:
    assert str(InvalidPayload("payload", "has a\nline\x1b[31m")).isprintable()


def test_a_busy_store_names_the_way_out() -> None:
    error = StoreBusy(5.0)
    assert isinstance(error, StoreError)
    assert error.hint is not None
    assert "connection=" in error.hint


def test_a_taken_key_names_its_holder() -> None:
    assert "'job1'" in str(KeyTaken("job1", "k"))
    assert "'job1'" in str(KeyHeld("job1", "k"))


def test_a_wrong_state_says_what_is_allowed() -> None:
    error = WrongState("job1", "completed", "retried", "only failed ones")
    assert str(error) == "job 'job1' is completed and can't be retried (only failed ones)"


def test_refused_batch_names_the_place_and_what_is_wrong_there() -> None:
    error = BatchRefused(2, InvalidPayload("payload.to", "is missing"))
    assert str(error).startswith("tasks[2]: ")
    assert "payload.to" in str(error)
    assert str(error).endswith("nothing was stored")


def test_payload_that_is_too_large_is_an_invalid_one() -> None:
    assert issubclass(PayloadTooLarge, InvalidPayload)


@pytest.mark.parametrize(("code", "words"), [(-9, "was killed by signal 9"), (3, "exited with code 3")])
def test_a_dead_process_says_how_it_died(code: int, words: str) -> None:
    assert words in str(ProcessDied(code))


def test_evidence_of_a_lost_attempt_is_worded() -> None:
    assert "30 s" in str(TimedOut(30.0))
    assert "2030-01-01T00:00:00Z" in str(WorkerLost("w1", "2030-01-01T00:00:00Z"))


# What handlers raise.


def test_retry_carries_its_delay() -> None:
    assert Retry("busy", delay=60).delay == 60
    assert Retry().delay is None
    assert str(Retry())


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf")])
def test_retry_refuses_a_delay_that_is_none(delay: float) -> None:
    with pytest.raises(ValueError, match="delay"):
        Retry(delay=delay)


def test_what_a_handler_raises_is_no_error_of_holdfast() -> None:
    assert not issubclass(Fail, HoldfastError)
    assert not issubclass(Retry, HoldfastError)


def test_an_interruption_passes_a_handlers_except_exception() -> None:
    assert not issubclass(Interrupted, Exception)


@pytest.mark.parametrize("status", sorted(FINISHED))
@pytest.mark.parametrize("action", ["retried", "cancelled"])
def test_refusal_for_a_finished_job_advises_what_its_state_allows(status: Status, action: str) -> None:
    hint = WrongState("job1", status, action).hint or ""
    assert ("retried" in hint) == (status in sources("retry"))
    assert "deleted" in hint
    assert "cancel" not in hint


@pytest.mark.parametrize("status", sorted(set(Status) - FINISHED))
def test_refusal_for_an_unfinished_job_says_what_it_would_take(status: Status) -> None:
    assert WrongState("job1", status, "deleted").hint == "cancel it first"
    retry = WrongState("job1", status, "retried").hint or ""
    assert all(state in retry for state in sources("retry") - {Status.SCHEDULED})
