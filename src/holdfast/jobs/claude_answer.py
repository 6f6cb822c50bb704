"""What Claude Code's output means: an answer to keep, a transient error or a permanent one."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from holdfast.core.redact import REDACTED, is_secret
from holdfast.errors import Fail, Retry
from holdfast.jobs.errors import ExtractionFailed, how_it_ended
from holdfast.text import one_line

TAIL_CHARACTERS = 8 * 1024
"""How much of the end of the output is stored with a failure."""

LIMIT_PAUSE, LONGEST_LIMIT_PAUSE = 60.0, 3600.0
"""Seconds to wait at a rate limit without a stated time: doubled each time, up to an hour."""

_LONGEST_TOLD_PAUSE = 8 * 86_400.0
_LONGEST_MESSAGE = 2000  # of an error; what is longer is an answer
_LONGEST_NAME = 200
_SHORTEST_SECRET = 8
_MOST_RESULTS = 50


class Answer(Struct):
    """What `claude -p --output-format json` prints, as far as we read it."""

    is_error: bool
    subtype: str = "success"
    result: str | None = None
    errors: list[Any] | None = None
    api_error_status: int | None = None
    session_id: str | None = None
    total_cost_usd: float | None = None
    num_turns: int | None = None

    def run_details(self) -> dict[str, Any]:
        """What the run was, for the result and the history."""
        session = None if self.session_id is None else storable(self.session_id[:_LONGEST_NAME])
        told = {"sessionId": session, "costUsd": self.total_cost_usd, "turns": self.num_turns}
        return {name: value for name, value in told.items() if value is not None}

    def evidence(self) -> dict[str, Any]:
        return {"subtype": storable(self.subtype[:_LONGEST_NAME]), **self.run_details()}

    def is_failure(self) -> bool:
        """Whether it says so. Older versions give the limit as the answer of a run that went well."""
        is_limit = self.result is not None and _EPOCH.fullmatch(self.result.strip()) is not None
        return self.is_error or self.subtype != "success" or is_limit

    def message(self) -> str:
        """What it says about its failure."""
        return self.result or "; ".join(str(error) for error in self.errors or ())


class Run(NamedTuple):
    """How a run ended: its exit code, its answer if there is one, and what else it printed.

    `cut_at` says how many bytes were kept of an output that was longer.
    """

    exit_code: int
    answer: Answer | None
    rest: str
    cut_at: int | None


# The texts.


def tail_of(text: str) -> str:
    """The end of the output as it may be kept: without the secrets of the environment."""
    return storable(_last(text, TAIL_CHARACTERS))


def storable(text: str) -> str:
    """Text that the history takes, whatever was printed."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\N{SYMBOL FOR NULL}")


def _first(text: str, length: int) -> str:
    return _without_secrets(text[: 8 * length])[:length]


def _last(text: str, length: int) -> str:
    return _without_secrets(text[-8 * length :])[-length:]  # in this order: half a secret is not found


def _without_secrets(text: str) -> str:
    secrets = {value for name, value in os.environ.items() if is_secret(name)}
    for secret in sorted(secrets, key=len, reverse=True):  # one may hold another
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, REDACTED)
    return text


# What it printed.

# Inside the answer's text quotes are escaped, so there it is never found.
_BEGIN = re.compile(r'\{\s*"type"\s*:\s*"result"')


def read_answer(text: str) -> tuple[Answer | None, str]:
    """The last result that was printed, among warnings or other messages, and what else was printed.

    Of a result that can't be read only what came before it: an answer must not be taken for an error's text.
    """
    decoder = json.JSONDecoder(parse_constant=_no_number)
    first = _BEGIN.search(text)
    begin = end = position = first.start() if first else len(text)
    found: dict[str, Any] | None = None
    for _ in range(_MOST_RESULTS):
        match = _BEGIN.search(text, position)
        if match is None:
            break
        position = match.end()
        try:
            value, position = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        found, begin, end = value, match.start(), position
    with suppress(msgspec.ValidationError):
        if found is not None:
            return msgspec.convert(found, Answer), text[:begin] + text[end:]
    return None, text[: first.start()] if first else text


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


_FENCED = re.compile(r"\A```[^\n`]*\n(.*?)\n?```\Z", re.DOTALL)


def checked_bytes(text: str, path: str) -> bytes:
    """The bytes to write. Raises ValueError with what is wrong with the answer."""
    if not text.strip():
        raise ValueError("the answer is empty")
    is_json = path.lower().endswith(".json")
    if is_json:
        text = text.strip()
        if fenced := _FENCED.match(text):
            text = fenced[1].strip()
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ValueError("the answer is not valid UTF-8") from None
    if is_json:
        try:
            msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"the answer is not valid JSON: {error}") from None
    return data if data.endswith(b"\n") else data + b"\n"


# What a failure means.

_LIMITED_STATUS = {429, 529}
_PERMANENT_STATUS = {400, 401, 403, 404, 413}
_STATUS = re.compile(r"API Error: (\d{3})\b|Request rejected \((\d{3})\)")
_LIMITED = re.compile(
    r"rate.?limit|overloaded|too many requests|temporarily limiting requests|"
    r"(?:usage|session|hour|daily|weekly|opus|sonnet) limit|(?:hit|reached) your .{0,40}limit",
    re.IGNORECASE,
)
_PERMANENT = re.compile(
    r"not logged in|run /login|invalid (?:x-)?api.key|authentication_error|permission_error|"
    r"oauth token (?:revoked|has expired)|organization has been disabled|credit balance is too low|"
    r"prompt is too long|request too large|context limit|"
    r"issue with the selected model|not_found_error|invalid_request_error|"
    r"unknown option|argument .* is invalid",
    re.IGNORECASE,
)


def failure_of(run: Run, attempt: int) -> Exception:
    """The error that ends the attempt: permanent, retried after a limit's delay, or retried as usual."""
    answer = run.answer
    # Where a failed run has its error, one that exits with 1 and does not call itself failed has an answer.
    message = answer.message() if answer and answer.is_failure() else ""
    said = _first(message, _LONGEST_MESSAGE) or _last(run.rest, _LONGEST_MESSAGE)
    problem = _problem(run, said)
    status = (answer and answer.api_error_status) or _status(said)
    if status in _LIMITED_STATUS or _LIMITED.search(said):
        return Retry(problem, delay=pause_for(said, attempt))
    spent = answer is not None and answer.subtype == "error_max_budget_usd"
    if spent or status in _PERMANENT_STATUS or _PERMANENT.search(said):
        return Fail(problem)
    return ExtractionFailed(problem)


def _problem(run: Run, said: str) -> str:
    """One line: how it ended and what it said."""
    parts = [how_it_ended(run.exit_code)]
    if run.answer is None:
        size = "its" if run.cut_at is None else f"more than {run.cut_at} bytes of"
        parts.append(f"no result in {size} output")
    elif run.answer.subtype != "success":
        parts.append(run.answer.subtype)
    elif run.answer.is_error:
        parts.append("is_error")
    lines = said.strip().splitlines()
    line = (lines[0] if run.answer else lines[-1]).strip() if lines else ""
    message = f"Claude Code failed ({', '.join(parts)})"
    return one_line(storable(f"{message}: {line[:200]}" if line else message))


def _status(said: str) -> int | None:
    match = _STATUS.search(said)
    return int(match[1] or match[2]) if match else None


_EPOCH = re.compile(r"(?:Claude AI )?usage limit reached\|(\d{10})(?:\d{3})?")
_SECONDS = re.compile(r"retry[-_ ]after\D{0,4}(\d{1,6})\b", re.IGNORECASE)
_RESET = re.compile(
    r"resets? (?:at )?(?:([a-z]{3})[a-z]* (\d{1,2})(?:,| at)? )?(\d{1,2})(?::(\d\d))? ?([ap])m\b"
    r"(?: \(([^)]{1,50})\))?",
    re.IGNORECASE,
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def pause_for(said: str, attempt: int) -> float:
    """Seconds until a limit ends, if the message says so."""
    now = time.time()
    told = 0.0
    if match := _EPOCH.search(said):
        told = int(match[1]) - now
    elif match := _SECONDS.search(said):
        told = float(match[1])
    elif match := _RESET.search(said):
        told = _seconds_until(match, now)
    if told > 0:
        return min(told, _LONGEST_TOLD_PAUSE)
    return min(LIMIT_PAUSE * 2.0 ** min(attempt - 1, 10), LONGEST_LIMIT_PAUSE)


def _seconds_until(match: re.Match[str], now: float) -> float:
    """Seconds until a time as in `resets Sep 15, 3am (Europe/Dublin)`; 0 if there is no such time."""
    from zoneinfo import ZoneInfo

    month, day, hour, minute, half, zone = match.groups()
    try:
        local = datetime.fromtimestamp(now, UTC).astimezone(ZoneInfo(zone) if zone else None)
        hours = int(hour) % 12 + (12 if half.lower() == "p" else 0)
        at = local.replace(hour=hours, minute=int(minute or 0), second=0, microsecond=0)
        if month:
            at = at.replace(month=_MONTHS.index(month.lower()) + 1, day=int(day))
            at = at.replace(year=at.year + (at < local - timedelta(days=1)))
        elif at <= local:
            at += timedelta(days=1)
    except (ValueError, KeyError, OSError):  # ZoneInfo raises any of them for a zone it does not know
        return 0.0
    return at.timestamp() - now
