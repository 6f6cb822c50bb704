"""Pause and resume, rate limits, and every setting with what it may be."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from holdfast.config import SETTINGS, find_setting
from holdfast.core.job import base_type, check_type
from holdfast.errors import ConfigError
from holdfast.queue import Queue
from holdfast.web.dashboard import words
from holdfast.web.dashboard.page import done, page, query_of, submitted
from holdfast.web.desk import desk_of

router = APIRouter(include_in_schema=False)

MOST_TYPES = 200
_PURPOSES = {
    "max_attempts": "how often a job may start before it fails for good",
    "backoff_strategy": "how the waits between attempts grow",
    "backoff_base": "what a wait is multiplied with after each attempt, when exponential",
    "backoff_factor": "the first wait, in seconds",
    "backoff_max": "the longest wait between attempts",
    "backoff_jitter": "how much a wait may differ by chance, as a part of it",
    "job_timeout": "how long an attempt may run",
    "lease_seconds": "after how long without a heartbeat a worker's jobs are given to others",
    "heartbeat_interval": "how often workers renew their leases",
    "poll_interval": "how often workers look for what they were not told of",
    "stuck_seconds": "after how long a running job is reported as stuck",
    "concurrency": "jobs that one worker process runs at a time",
    "max_running": "jobs that run at a time over all processes",
    "rate_limit": "jobs that start a second over all processes",
    "max_depth": "jobs that may wait before more are refused",
    "max_payload_bytes": "the largest payload",
    "max_result_bytes": "the largest result",
    "max_log_bytes": "how much output of a command is kept",
    "retention_completed": "for how long completed and cancelled jobs are kept",
    "retention_failed": "for how long failed jobs are kept",
    "shutdown_timeout": "how long a worker that stops waits for its jobs",
    "transaction_seconds": "how long a handler's own transaction may take",
}


@router.get("/controls")
async def controls(request: Request) -> Response:
    return await _show(request, query_of(request).get("type"))


async def _show(
    request: Request, type: str, status: int = 200, *, wrong: dict[str, str] | None = None
) -> Response:
    desk = desk_of(request)
    view = await desk.call(_look, desk.queue, type)
    address = f"/controls?{urlencode({'type': type})}" if type else "/controls"
    return page(
        request, "controls.html", status, address=address, events="limit=1", wrong=wrong or {}, **view
    )


def _look(queue: Queue, type: str) -> dict[str, Any]:
    chosen = check_type(type) if type else None
    paused = queue.store.list_paused()
    counts = queue.stats()["by_type"]
    settings = queue.refresh_settings()
    handled = {name for worker in queue.workers() for name in worker.types}
    known = sorted({*counts, *handled, *(name for name in paused if name), *queue.registry.types()})
    return {
        "chosen": chosen,
        "is_paused": "" in paused,
        "has_workers": bool(handled),
        "overall_rate": settings.get("rate_limit", ""),
        "types": [
            {
                "name": name,
                "is_paused": name in paused,
                "counts": counts.get(name),
                "rate": settings.get("rate_limit", name),
                "has_own_rate": ("rate_limit", name) in settings.stored,
                "is_handled": name in handled or base_type(name) in handled,
            }
            for name in known[:MOST_TYPES]
        ],
        "more_types": max(0, len(known) - MOST_TYPES),
        "type_names": known,
        "settings": [
            {
                "name": name,
                "purpose": _PURPOSES[name],
                "value": words.setting(settings.get(name, chosen or "")),
                "default": words.setting(setting.default),
                "is_stored": (name, chosen or "") in settings.stored,
                "allowed": setting.allowed,
            }
            for name, setting in SETTINGS.items()
            if chosen is None or setting.per_type
        ],
    }


@router.post("/controls/pause")
async def pause(request: Request) -> Response:
    return await _set_paused(request, True)


@router.post("/controls/resume")
async def resume(request: Request) -> Response:
    return await _set_paused(request, False)


async def _set_paused(request: Request, paused: bool) -> Response:
    form = await submitted(request)
    type = form.get("type") or None
    desk = desk_of(request)
    await desk.call(desk.queue.pause if paused else desk.queue.resume, type)
    what = "The whole queue" if type is None else f"Type {type}"
    text = f"{what} is paused; running jobs finish." if paused else f"{what} is resumed."
    return done(request, form.get("back") or "/controls", text)


@router.post("/controls/setting")
async def change_setting(request: Request) -> Response:
    """Store a value, or forget it with reset."""
    form = await submitted(request)
    key, type = form.get("key"), form.get("type") or None
    desk = desk_of(request)
    try:
        name = find_setting(key, type=type).name
        if form.get("reset"):
            await desk.call(desk.queue.unset_config, name, type)
        else:
            await desk.call(desk.queue.set_config, name, form.get("value").strip(), type)
    except ConfigError as error:
        place = form.get("place") or f"setting-{key}"
        shown = form.get("shown")
        wrong = {"place": place, "text": str(error), "value": form.get("value")}
        if key not in SETTINGS or (shown and shown != type and not place.startswith("rate-")):
            raise  # there is no field on the page to tell it beside
        return await _show(request, shown, 400, wrong=wrong)
    value = words.setting((await desk.call(desk.queue.config, type))[name])
    of = f" of {type}" if type else ""
    shown = form.get("shown")
    back = f"/controls?{urlencode({'type': shown})}" if shown else "/controls"
    return done(request, back, f"{name}{of} is {value} now.")
