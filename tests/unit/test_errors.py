"""The error tree: each error one line, a default from its docstring, data in attributes, a hint."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest

import holdfast
from holdfast import errors
from holdfast.core.job import FINISHED, Status
from holdfast.core.lifecycle import sources
from holdfast.errors import (
    AttemptFailed,
    BatchRefused,
    ConfigError,
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
from holdfast.jobs import errors as job_errors

# How to make each error that needs to be told something.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "NotDetached": {"path": "workers.log", "exit_code": 1, "said": None},
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
    "WorkerLost": {"worker_id": "w1", "last_seen": "2030-01-01 00:00:00 UTC"},
    "ProcessDied": {"exit_code": -9},
    "CommandNotStarted": {"problem": "no such folder", "permanent": True},
    "CommandFailed": {"exit_code": 3, "last_line": "not found"},
    "BulkRefused": {"line": 3, "error": HoldfastError("wrong"), "stored": 0},
    "QueueNotFound": {"address": "sqlite:////srv/jobs.db"},
    "DatabaseReplaced": {"path": "/srv/jobs.db", "removed": True},
    "QueueMoved": {"to": "postgresql://db/jobs", "done": False},
    "QueueArriving": {"source": "sqlite:////srv/jobs.db"},
    "OwnFile": {"path": "/srv/jobs.db"},
    "BatchRefused": {"index": 2, "error": HoldfastError("wrong")},
}

ERRORS = [
    kind
    for module in (errors, job_errors)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, HoldfastError) and kind.__module__ == module.__name__
]


def test_the_module_holds_errors_only() -> None:
    ours = [value for value in vars(errors).values() if getattr(value, "__module__", None) == errors.__name__]
    others = [value for value in ours if not inspect.isclass(value) and not value.__name__.startswith("_")]
    assert others == []
    assert all(issubclass(kind, BaseException) for kind in ours if inspect.isclass(kind))


def repickled(error: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(error, protocol))


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


def raised_by_us() -> list[type[BaseException]]:
    """Every error that may leave the package, in whichever module it is."""
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    kinds: list[type[BaseException]] = [HoldfastError, Fail, Retry, Interrupted]
    for kind in kinds:
        kinds += [one for one in kind.__subclasses__() if one.__module__.startswith("holdfast.")]
    return kinds


@pytest.mark.parametrize("copied", [copy.copy, *(partial(repickled, protocol=n) for n in range(6))])
def test_every_error_survives_pickling_with_its_message_and_all_attributes(copied: Any) -> None:
    kinds = raised_by_us()
    assert set(ERRORS) < set(kinds)
    for kind in kinds:
        error = kind(**ARGUMENTS.get(kind.__name__, {}))
        error.add_note("seen in Boston")
        found = copied(error)
        assert type(found) is kind
        assert str(found) == str(error)
        assert _plain(vars(found)) == _plain(vars(error)), kind


def test_an_error_survives_with_its_hint_and_data() -> None:
    error = repickled(KeyHeld("job1", "k", is_finished=True))
    assert (error.job_id, error.key, error.hint) == (
        "job1",
        "k",
        "delete that job, or wait until its key_for has expired",
    )
    assert repickled(ConfigError("wrong", hint="mend it")).hint == "mend it"
    about = repickled(ConfigError("must be text", option="key"))
    assert (str(about), about.option, about.problem) == ("key must be text", "key", "must be text")
    assert repickled(Retry("later", delay="1m")).delay == 60
    inner = repickled(BatchRefused(2, KeyTaken("job1", "k"))).error
    assert (type(inner), inner.key) == (KeyTaken, "k")


def test_an_error_raised_in_another_process_arrives_whole() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        error = pool.submit(_fail_in_a_process).exception(60)
    assert isinstance(error, WrongState)
    assert (error.job_id, error.status, error.action) == ("job1", "completed", "retried")


def _fail_in_a_process() -> None:
    raise WrongState("job1", "completed", "retried")


def _plain(attributes: dict[str, Any]) -> dict[str, str]:
    return {name: repr(value) for name, value in attributes.items()}


def test_a_hint_comes_after_the_message() -> None:
    error = HoldfastError("it broke", hint="mend it")
    assert (str(error), error.hint) == ("it broke (mend it)", "mend it")


def test_an_application_may_make_errors_of_its_own_without_a_docstring() -> None:
    class Ours(HoldfastError):
        pass

    assert str(Ours())


@pytest.mark.process
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


def test_an_exception_may_be_the_message() -> None:
    assert str(AttemptFailed(ConnectionError("refused"), permanent=True)) == "refused"  # type: ignore[arg-type]
