"""Which columns each stored record has, and how rows become records: all of it follows from the records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.json import Decoder

from holdfast.core.clock import to_datetime
from holdfast.core.job import Failure, Job, Progress, Status
from holdfast.store.records import (
    ErrorGroup,
    Expired,
    LogTail,
    Minute,
    NewJob,
    Running,
    TypeRecord,
    Waiting,
    WorkerRecord,
)

T = TypeVar("T", bound=Struct)

Decode = Callable[[Any], Any]
Encode = Callable[[Any], Any]


def quoted(names: Iterable[str]) -> str:
    """Names of columns as they stand in SQL: one may be called like a word of it, such as group."""
    return ", ".join(f'"{name}"' for name in names)


class Stored(Generic[T]):
    """A record whose fields are columns, by the same names but for those in `called`.

    What kind each one is of is found out when it is first needed: a process that only enqueues never asks.
    """

    def __init__(
        self, record: type[T], *, without: Sequence[str] = (), called: Mapping[str, str] | None = None
    ) -> None:
        self._record = record
        self._fields = tuple(name for name in record.__struct_fields__ if name not in without)
        self.names = tuple((called or {}).get(name, name) for name in self._fields)
        self.columns = quoted(self.names)

    @cached_property
    def _types(self) -> dict[str, Any]:
        hints = get_type_hints(self._record)
        return {name: _plain(hints[name]) for name in self._fields}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Of each column, as every engine has it: i, f, s, b(ool) or x for bytes."""
        types = [self._types[name] for name in self._fields]
        return {name: _kind(type) for name, type in zip(self.names, types, strict=True)}

    @cached_property
    def _decoders(self) -> list[tuple[str, Decode]]:
        decoders = [(name, _decoder(self._types[name])) for name in self._fields]
        return [(name, decode) for name, decode in decoders if decode is not None]

    @cached_property
    def _encoders(self) -> list[tuple[str, Encode | None]]:
        return [(name, _encoder(self._types[name])) for name in self._fields]

    def read(self, row: Sequence[Any]) -> T:
        """The record in a row of its columns."""
        return self._record(**self.values(row))

    def values(self, row: Sequence[Any]) -> dict[str, Any]:
        """The same as its fields."""
        values = dict(zip(self._fields, row, strict=True))
        for name, decode in self._decoders:
            value = values[name]
            if value is not None:
                values[name] = decode(value)
        return values

    def row(self, record: T) -> list[Any]:
        """The columns of a record that holds no datetimes."""
        values = ((getattr(record, name), encode) for name, encode in self._encoders)
        return [value if encode is None else encode(value) for value, encode in values]


_KINDS = {bool: "b", int: "i", datetime: "i", float: "f", bytes: "x"}


def _kind(type: Any) -> str:
    """That of a type or, for an enum, of its values. All else is text."""
    return next((kind for base, kind in _KINDS.items() if _is_a(type, base)), "s")


def _is_a(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _plain(kind: Any) -> Any:
    """A type without the None that may stand for it."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    kinds = [each for each in get_args(kind) if each is not NoneType]
    if len(kinds) != 1:
        raise TypeError(f"a column holds values of one type, not {kind}")
    return kinds[0]


def _is_json(kind: Any) -> bool:
    return kind is Any or get_origin(kind) in (dict, list, tuple)


def _encoder(kind: Any) -> Encode | None:
    if not _is_json(kind):
        return None
    return str if kind == list[int] else json.dumps  # of numbers it makes the same, in less time


def _decoder(kind: Any) -> Decode | None:
    if kind is datetime:
        return to_datetime
    if kind is bool or _is_a(kind, Enum):
        return cast("Decode", kind)
    if not _is_json(kind):
        return None
    # A user's JSON is read as it was written, with numbers of any size. An hour of many workers has thousands
    # of the others.
    is_users = kind is Any or get_args(kind)[-1] is Any
    return json.loads if is_users else Decoder(kind).decode


# Jobs.

_JOB = Stored(Job, without=("limit_is_open", "errors", "progress", "next_retry_at"))
_INTERNAL = {"seq": "i", "due_at": "i", "progress": "f", "progress_message": "s"}

JOB_NAMES = (*_INTERNAL, *_JOB.names)
JOB_COLUMNS = quoted(JOB_NAMES)
"""What a Job is read from."""

_LARGE = {"payload": "'{}'", "result": "NULL"}
BRIEF_COLUMNS = ", ".join(_LARGE.get(name, f'"{name}"') for name in JOB_NAMES)
"""The same without what may be large, which then is not even read."""

_HIDDEN = {
    "key_held": "b", "key_until": "i", "error_group": "s", "token": "s", "has_started": "b", "losses": "i",
}  # fmt: skip

NEW_JOB_NAMES = tuple(
    name for name in NewJob.__struct_fields__ if name in {*_JOB.names, *_HIDDEN} - {"run_at"}
)
"""What is stored of a new job as it comes; the rest depends on the present instant."""

EXPIRED_COLUMNS = quoted(Expired.__struct_fields__)

FAILURE = Stored(Failure)


def job_kinds() -> dict[str, str]:
    """All columns of a job, each with its kind."""
    return {"seq": "i", **_JOB.kinds, **_INTERNAL, **_HIDDEN}


def job_from(row: Sequence[Any], failures: tuple[Failure, ...] = ()) -> Job:
    """A Job from the JOB_COLUMNS of a row."""
    _, due_at, progress, message = row[:4]
    values = _JOB.values(row[4:])
    if progress is not None:
        values["progress"] = Progress(progress, message)
    if values["status"] is Status.SCHEDULED and values["attempts"] > 0:
        values["next_retry_at"] = to_datetime(due_at)
    return Job(errors=failures, **values)


# What is kept beside the jobs.

WORKER = Stored(WorkerRecord)
TYPE = Stored(TypeRecord)
MINUTE = Stored(Minute)
LOG_TAIL = Stored(LogTail)

# What people look at.

RUNNING = Stored(Running, called={"attempt": "attempts"})
WAITING = Stored(Waiting, called={"since": "due_at"})
ERROR_GROUP = Stored(ErrorGroup, called={"error": "error_group"})
