"""Pause and resume, rate limits, and every setting with its allowed values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from holdfast.config import SETTINGS, find_setting
from holdfast.core.job import base_type, check_type
from holdfast.core.settings import Settings
from holdfast.errors import ConfigError
from holdfast.observe import words
from holdfast.queue import Queue
from holdfast.web.backend import backend_of
from holdfast.web.dashboard.page import done, page, query_of, submitted

router = APIRouter(include_in_schema=False)

MOST_TYPES = 200
_PURPOSES = {
    "max_attempts": "how many times a job may start before it fails permanently",
    "backoff_strategy": "how the delay between attempts grows",
    "backoff_base": "multiplier of exponential back-off",
    "backoff_factor": "base delay between attempts, in seconds",
    "backoff_max": "maximum delay between attempts",
    "backoff_jitter": "random jitter of the delay, 0 to 1",
    "job_timeout": "how long an attempt may run",
    "lease_seconds": "how long a worker may miss its heartbeat before its jobs go to others",
    "heartbeat_interval": "how often workers renew their leases",
    "poll_interval": "polling interval of idle workers",
    "stuck_seconds": "how long a job may run before it is reported as stuck",
    "concurrency": "jobs that one worker process runs at the same time",
    "max_running": "maximum number of running jobs across all processes",
    "group_concurrency": "maximum number of running jobs of one group across all processes",
    "fair": "whether groups take turns within a priority",
    "prefetch": "how many jobs a worker process may hold ready; by default as many as start within 50 ms",
    "rate_limit": "maximum number of job starts per second across all processes",
    "max_depth": "maximum number of waiting jobs; more are refused",
    "max_payload_bytes": "maximum size of a payload",
    "max_result_bytes": "maximum size of a result",
    "max_log_bytes": "maximum size of a command's stored output",
    "log_jobs": "which events of jobs are logged: all, failures or none",
    "retention_completed": "how long completed and cancelled jobs are kept",
    "retention_failed": "how long failed jobs are kept",
    "shutdown_timeout": "how long running jobs may continue when a worker shuts down",
    "transaction_seconds": "how long a handler's transaction may take",
}


@router.get("/controls")
async def controls(request: Request) -> Response:
    return await _show(request, query_of(request).get("type"))


async def _show(
    request: Request, type: str, status: int = 200, *, wrong: dict[str, str] | None = None
) -> Response:
    view = await backend_of(request).call(_view_of, type)
    return page(
        request, "controls.html", status, address=_address(type), events="limit=1", wrong=wrong or {}, **view
    )


def _address(type: str) -> str:
    return f"/controls?{urlencode({'type': type})}" if type else "/controls"


def _view_of(queue: Queue, type: str) -> dict[str, Any]:
    chosen = check_type(type) if type else None
    paused = queue.paused()
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
            _type(name, settings)
            | {
                "counts": counts.get(name),
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


def _type(name: str, settings: Settings) -> dict[str, Any]:
    """Its pauses and its rate limit, each with the name that it is inherited from: what is shared is shown
    once, under the name that it was set for."""
    limits = settings.limits(name)
    rate = settings.resolve("rate_limit", name)
    return {
        "name": name,
        "is_paused": name in limits.paused,
        "paused_with": next((other for other in limits.paused if other and other != name), None),
        "rate": rate.value if rate.source == name else "",
        "inherited_rate": rate.value,
        "rate_of": rate.source,
        "has_own_rate": ("rate_limit", name) in settings.stored,
    }


@router.post("/controls/pause")
async def pause(request: Request) -> Response:
    return await _set_paused(request, Queue.pause, "Paused {}; running jobs will finish.")


@router.post("/controls/resume")
async def resume(request: Request) -> Response:
    return await _set_paused(request, Queue.resume, "Resumed {}.")


async def _set_paused(request: Request, change: Callable[[Queue, str | None], None], text: str) -> Response:
    form = await submitted(request)
    type = form.get("type") or None
    await backend_of(request).call(change, type)
    return done(request, form.get("back") or "/controls", text.format(type or "the whole queue"))


@router.post("/controls/setting")
async def change_setting(request: Request) -> Response:
    """Store a value, or forget it with reset."""
    form = await submitted(request)
    key, type, shown = form.get("key"), form.get("type") or None, form.get("shown")
    backend = backend_of(request)
    try:
        name = find_setting(key, type=type).name
        if form.get("reset"):
            await backend.call(Queue.unset_config, name, type)
        else:
            await backend.call(Queue.set_config, name, form.get("value").strip(), type)
    except ConfigError as error:
        place = form.get("place") or f"setting-{key}"
        wrong = {"place": place, "text": str(error), "value": form.get("value")}
        if key not in SETTINGS or (shown and shown != type and not place.startswith("rate-")):
            raise  # there is no field on the page to tell it beside
        return await _show(request, shown, 400, wrong=wrong)
    value = words.setting((await backend.call(Queue.config, type))[name])
    scope = f" for {type}" if type else ""
    return done(request, _address(shown), f"{name}{scope} is now {value}.")
