"""Enqueueing a job through a form that is made from the schema of its payload."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from holdfast.core.clock import parse_instant
from holdfast.core.ids import new_id
from holdfast.core.job import Job, base_type
from holdfast.durations import parse_duration
from holdfast.enqueueing.options import OPTIONS, Kind
from holdfast.errors import ConfigError, DuplicateJob, InvalidPayload, KeyTaken, UnknownType
from holdfast.queue import Queue
from holdfast.web.api.control import known_types
from holdfast.web.api.messages import JobType
from holdfast.web.backend import backend_of
from holdfast.web.dashboard.form import fields_of, problem_at, read_form
from holdfast.web.dashboard.page import (
    FORM_FIELD,
    done,
    page,
    payload_from,
    query_of,
    require_change,
    submitted,
)

router = APIRouter(include_in_schema=False)

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _instant(text: str) -> datetime:
    """A browser's field for date and time knows no zone: what it says is meant in UTC."""
    return parse_instant("run at", text if len(text) != len("2026-01-15T10:00") else text + "Z")


_READERS: dict[Kind, Callable[[str], Any]] = {
    "whole": int,
    "text": str,
    "duration": parse_duration,
    "instant": _instant,
}
_PROBLEMS: dict[Kind, str] = {
    "whole": "must be a whole number",
    "duration": "must be a duration such as 30s, 5m or 1h",
}


@router.get("/enqueue")
async def enqueue(request: Request) -> Response:
    require_change(request)
    given = query_of(request)
    return await _show(request, given.get("type"), as_text=bool(given.get("text")))


async def _show(
    request: Request,
    type: str,
    status: int = 200,
    *,
    as_text: bool = False,
    values: dict[str, str] | None = None,
    wrong: dict[str, str] | None = None,
) -> Response:
    backend = backend_of(request)
    known = await backend.call(known_types, backend.may_enqueue)
    types = _enqueueable(known)
    schema = _schema_of(type, types)
    fields = [] if schema is None or as_text else fields_of(schema)
    values = values or {field.name: field.initial for field in fields} | {"new_id": new_id()}
    return page(
        request,
        "enqueue.html",
        status,
        type=type,
        types=list(types),
        refused_types=[found.type for found in known if not found.enqueueable and found.workers],
        is_known=schema is not None,
        fields=fields,
        as_text=as_text or schema is None,
        options=OPTIONS.values(),
        values=values,
        wrong=wrong or {},
        is_refused=bool(type) and not backend.may_enqueue(type),
    )


def _enqueueable(known: list[JobType]) -> dict[str, dict[str, Any]]:
    """The schemas of the payloads of the types that may be enqueued here."""
    return {found.type: found.payload_schema for found in known if found.enqueueable}


def _schema_of(type: str, types: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """A lane's is that of the type that runs it."""
    return types.get(type, types.get(base_type(type)))


@router.post("/enqueue")
async def create(request: Request) -> Response:
    form = await submitted(request)
    backend = backend_of(request)
    type = form.get("type").strip()
    as_text = bool(form.get("text"))
    values = {name: value.replace("\r\n", "\n") for name, value in form.first_values().items()}
    if not type:
        return await _show(request, "", 400, wrong={"type": "Enter a job type."})
    backend.require_enqueueable(type)
    schema = _schema_of(type, _enqueueable(await backend.call(known_types, backend.may_enqueue))) or {}
    payload, wrong = _read_text(values) if as_text else read_form(schema, values)
    options, wrong_options = _read_options(values)
    wrong |= wrong_options
    if not wrong:
        backend.count_enqueues(request)
        try:
            job = await backend.call(_enqueue, type, payload, options, _form_id(values))
            return done(request, f"/jobs/{job.id}", f"Job {job.id} enqueued.")
        except KeyTaken as error:
            wrong = {"key": str(error)}
        except DuplicateJob as error:
            wrong = {"id": str(error)}
        except InvalidPayload as error:
            wrong = {"payload" if as_text else problem_at(schema, error.where): str(error)}
        except ConfigError as error:
            wrong = {error.option if error.option and error.option in OPTIONS else "": str(error)}
        except UnknownType as error:
            wrong = {"": str(error)}
    return await _show(request, type, 400, as_text=as_text, values=values, wrong=wrong)


def _enqueue(queue: Queue, type: str, payload: dict[str, Any], options: dict[str, Any], form_id: str) -> Job:
    """The job of a form; the one that is there already if the same form was sent twice."""
    try:
        return queue.enqueue(type, payload, **{"id": form_id, **options})
    except KeyTaken:
        raise
    except DuplicateJob as error:
        known = queue.get(form_id) if error.job_id == form_id else None
        if known is None:
            raise
        return known


def _form_id(values: dict[str, str]) -> str:
    """An id for what a form says: sent twice it is the same one, and sent with changes another."""
    given = values.get("new_id", "")
    if not _UUID.fullmatch(given):
        return new_id()
    said = sorted((name, value) for name, value in values.items() if name != FORM_FIELD)
    return given[:24] + hashlib.sha256(repr(said).encode()).hexdigest()[:12]


def _read_text(values: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        return payload_from(values.get("payload", "").strip() or "{}"), {}
    except InvalidPayload as error:
        return {}, {"payload": error.problem}


def _read_options(values: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The options from the form; empty fields are left out."""
    options: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, option in OPTIONS.items():
        text = values.get(name, "").strip()
        try:
            if text:
                options[name] = _READERS[option.kind](text)
                option.check(name, options[name])
        except ConfigError as error:
            wrong[name] = str(error)
        except ValueError:
            wrong[name] = _PROBLEMS[option.kind]
    return options, wrong
