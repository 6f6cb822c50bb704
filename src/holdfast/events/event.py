"""What every event is: a name, a level and fields."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from msgspec import Struct

LOGGER = "holdfast"
DEBUG, INFO, WARNING, ERROR, CRITICAL = 10, 20, 30, 40, 50


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened. `str()` gives its name and fields, for loggers not configured by Holdfast.

    If it has an `error`, its `exception` is the error itself, if it was raised in this process. That is for
    subscribers and is not logged.
    """

    name: ClassVar[str]
    """Derived from the class name unless set explicitly: job.cancel_requested for JobCancelRequested."""
    level: ClassVar[int] = INFO

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls) and not cls.__name__.endswith("Event"):
            subject, *words = re.findall("[A-Z][a-z]+", cls.__name__)
            cls.name = f"{subject}.{'_'.join(words)}".lower()

    def fields(self) -> dict[str, Any]:
        """The fields that have a value, in order."""
        return {
            field: str(value) if isinstance(value, str) else value
            for field in self.__struct_fields__
            if (value := getattr(self, field)) is not None and field != "exception"
        }

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{field}={value!r}" for field, value in self.fields().items())])


class JobEvent(Event, frozen=True, kw_only=True):
    job_id: str
    type: str


class AttemptEvent(JobEvent, frozen=True, kw_only=True):
    attempt: int
    worker_id: str
