"""Columns that follow from records: their names, their kinds, and rows as records and back."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from holdfast.core.clock import to_datetime
from holdfast.core.job import Job, Progress, Status
from holdfast.store.postgres.insert import _TYPES as ARRAYS
from holdfast.store.records import Minute, NewJob, TypeRecord, WorkerRecord, empty_minute
from holdfast.store.rows import (
    JOB_NAMES,
    MINUTE,
    NEW_JOB_NAMES,
    TYPE,
    WORKER,
    Stored,
    job_from,
    job_kinds,
)


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Order(Struct, frozen=True, kw_only=True):
    """One field of every kind."""

    group: Annotated[str | None, Meta(description="what it belongs to")] = None
    count: int = 0
    weight: float | None = None
    is_late: bool = False
    status: Status = Status.PENDING
    size: Size = Size.SMALL
    at: datetime | None = None
    tags: tuple[str, ...] = ()
    anything: Any = None
    raw: bytes = b""


def test_columns_are_the_fields_by_their_names() -> None:
    stored = Stored(Order, without=("raw",), called={"count": "counts"})
    assert stored.names == (
        "group",
        "counts",
        "weight",
        "is_late",
        "status",
        "size",
        "at",
        "tags",
        "anything",
    )
    assert stored.columns.startswith('"group", "counts", ')  # quoted: one is a word of SQL
    assert list(stored.kinds.values()) == ["s", "i", "f", "b", "s", "i", "i", "s", "s"]


def test_row_becomes_a_record() -> None:
    row = ("g", 2, 0.5, 1, "failed", 2, 1_000_000, '["a", "b"]', '{"a": 1}', b"x")
    assert Stored(Order).read(row) == Order(
        group="g",
        count=2,
        weight=0.5,
        is_late=True,
        status=Status.FAILED,
        size=Size.LARGE,
        at=to_datetime(1_000_000),
        tags=("a", "b"),
        anything={"a": 1},
        raw=b"x",
    )


def test_null_stays_none() -> None:
    order = Stored(Order).read((None, 0, None, 0, "pending", 1, None, "[]", None, b""))
    assert order == Order()
    assert isinstance(order.size, Size)


class Mixed(Struct):
    value: int | str | None = None


def test_column_of_two_types_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"one type, not int \| str \| None"):
        Stored(Mixed).kinds  # noqa: B018 -- finds out


def test_new_job_may_have_fields_of_every_kind_but_bytes() -> None:
    assert ARRAYS.keys() == {*Stored(Order, without=("raw",)).kinds.values()}


@pytest.mark.parametrize(
    ("stored", "record"),
    [
        (TYPE, TypeRecord(type="t", executor="thread", schema={"type": "object"})),
        (MINUTE, empty_minute(7, "t", "w")),
        (
            WORKER,
            WorkerRecord(
                id="w", host="h", pid=1, state="running", concurrency=2, types=("a", "b"), slots={"a": 1}
            ),
        ),
    ],
)
def test_record_comes_back_from_its_row(stored: Stored[Any], record: Any) -> None:
    assert stored.read(stored.row(record)) == record


def test_every_field_of_a_job_is_a_column_or_follows_from_some() -> None:
    follows = {"limit_is_open", "errors", "progress", "next_retry_at"}
    assert {*Job.__struct_fields__} - follows <= {*JOB_NAMES}
    assert {*JOB_NAMES} < job_kinds().keys()


def test_every_field_of_a_new_job_is_stored_or_decides_over_its_insert() -> None:
    decides = {"run_at", "delay", "max_depth", "has_new_id"}
    assert {*NewJob.__struct_fields__} == decides | {*NEW_JOB_NAMES}


def test_job_tells_its_progress_and_its_next_retry() -> None:
    values: dict[str, Any] = dict.fromkeys(JOB_NAMES)
    values |= {"id": "j", "type": "t", "payload": "{}", "status": "scheduled", "priority": 0, "attempts": 1}
    values |= {"version": 1, "cancel_requested": 0, "created_at": 1, "updated_at": 2, "due_at": 3}
    values |= {"progress": 0.5, "progress_message": "half"}
    job = job_from([values[name] for name in JOB_NAMES])
    assert job.next_retry_at == to_datetime(3)
    assert job.progress == Progress(0.5, "half")


def test_minutes_add_up() -> None:
    total, part = empty_minute(0, "t", ""), empty_minute(5, "t", "w")
    part.completed, part.run_seconds, part.runs[2] = 3, 1.5, 3
    total.add(part)
    total.add(part)
    assert (total.minute, total.worker_id, total.completed, total.run_seconds) == (0, "", 6, 3.0)
    assert total.runs[2] == 6
    assert isinstance(total, Minute)
