"""One value of a form: in words what it may be, and what a text means under the rule of its JSON Schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any
from uuid import UUID

from holdfast.core.payload import MAX_INTEGER_BITS, decode_strictly
from holdfast.errors import one_line


class Wrong(Exception):
    """What is wrong with a text, in words for the one who wrote it."""


# In words.

_FORMATS = {
    "date-time": "a date and time such as 2026-01-15T10:00:00Z",
    "date": "a date such as 2026-01-15",
    "time": "a time such as 10:00:00",
    "duration": "a duration such as PT1H30M",
    "uuid": "a UUID such as 12345678-1234-5678-1234-567812345678",
    "decimal": "a decimal number such as 12.50",
    "uri": "a URL such as https://example.com/",
    "email": "an e-mail address",
}


def described(rule: Mapping[str, Any]) -> str:
    description = rule.get("description")
    if not isinstance(description, str):
        return ""
    return one_line(short(" ".join(description.split()).rstrip(".")))


def short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:299]}…"


def allowed(rule: Mapping[str, Any]) -> str:
    """What a value may be, to be read after "must be"; empty if it may be any text."""
    kind = rule.get("type")
    if is_union(rule):
        return 'JSON such as 1, "text" or {"a": 1}'
    if kind == "string":
        return _allowed_text(rule)
    if kind in ("integer", "number"):
        return _allowed_number(rule)
    if kind == "array":
        items = rule.get("items")
        is_text = isinstance(items, Mapping) and items.get("type") == "string"
        return 'a JSON array such as ["a", "b"]' if is_text else "a JSON array such as [1, 2]"
    if kind == "object":
        return 'a JSON object such as {"a": 1}'
    return 'JSON such as 1, "text" or {"a": 1}'


def _allowed_text(rule: Mapping[str, Any]) -> str:
    if rule.get("contentEncoding") == "base64":
        return "bytes as base64"
    form = rule.get("format")
    words = [_FORMATS.get(form, "") if isinstance(form, str) else ""]
    least, most = count_in(rule, "minLength"), count_in(rule, "maxLength")
    if least == most == 1:
        words.append("of 1 character")
    elif least and most is not None:
        words.append(f"of {least} to {most} characters")
    elif least or most is not None:
        words.append(f"of at least {_characters(least)}" if least else f"of at most {_characters(most)}")
    pattern = _pattern(rule)
    if pattern is not None:
        words.append(f"that matches {one_line(pattern)}")
    return " ".join(filter(None, words if words[0] else ["text" if words[1:] else "", *words]))


def _characters(count: int | None) -> str:
    return "1 character" if count == 1 else f"{count} characters"


def _allowed_number(rule: Mapping[str, Any]) -> str:
    words = "a whole number" if rule.get("type") == "integer" else "a number"
    bounds = {word: _figure(bound) for word in _BOUNDS if (bound := _number(rule, word)) is not None}
    if set(bounds) == {"minimum", "maximum"}:
        words += f" from {bounds['minimum']} to {bounds['maximum']}"
    elif bounds:
        words += " that is " + " and ".join(f"{_BOUNDS[word]} {bound}" for word, bound in bounds.items())
    step = _step(rule)
    return words if step is None else f"{words}, a multiple of {_figure(step)}"


_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def _figure(number: float) -> str:
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else str(number)


# A rule's parts, if they are what they should be.


def _number(rule: Mapping[str, Any], word: str) -> int | float | None:
    value = rule.get(word)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    is_usable = math.isfinite(value) if isinstance(value, float) else _is_storable(value)
    return value if is_usable else None


def _is_storable(value: int) -> bool:
    return value.bit_length() <= MAX_INTEGER_BITS


def _step(rule: Mapping[str, Any]) -> int | float | None:
    step = _number(rule, "multipleOf")
    return step if step is not None and step > 0 else None


def count_in(rule: Mapping[str, Any], word: str) -> int | None:
    value = _number(rule, word)
    return value if isinstance(value, int) and value >= 0 else None


def _pattern(rule: Mapping[str, Any]) -> str | None:
    pattern = rule.get("pattern")
    return pattern if isinstance(pattern, str) and 0 < len(pattern) <= 200 else None


# Reading.


def read_text(rule: Mapping[str, Any], kind: str, text: str) -> Any:
    """What the text of a field means; raises Wrong if that is not allowed."""
    if kind == "number":
        return _read_number(rule, text.strip())
    if kind == "json":
        return _read_json(rule, text)
    if not _is_allowed_text(rule, text):
        raise Wrong(f"must be {allowed(rule)}")
    return text


_FRACTION = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _read_number(rule: Mapping[str, Any], text: str) -> int | float:
    value: int | float = math.nan
    if re.fullmatch(r"-?[0-9]{1,400}", text):
        value = int(text)
    elif rule.get("type") == "number" and re.fullmatch(_FRACTION, text):
        value = float(text)
    if not _is_within_bounds(rule, value):
        raise Wrong(f"must be {allowed(rule)}")
    if isinstance(value, int) and not _is_storable(value):
        raise Wrong(f"must be a number of at most {MAX_INTEGER_BITS} bits")
    return value


def _is_within_bounds(rule: Mapping[str, Any], value: float) -> bool:
    if not -math.inf < value < math.inf:
        return False
    least, most = _number(rule, "minimum"), _number(rule, "maximum")
    above, below = _number(rule, "exclusiveMinimum"), _number(rule, "exclusiveMaximum")
    return (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
        and (below is None or value < below)
        and _is_multiple(value, _step(rule))
    )


def _is_multiple(value: float, step: float | None) -> bool:
    if step is None:
        return True
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    # Fractions are not exact, and handlers differ in what they forgive: refuse only what is clearly none.
    try:
        times = value / step
        return abs(times - round(times)) <= 1e-9 * max(1.0, abs(times))
    except (OverflowError, ValueError):
        return True


def _read_json(rule: Mapping[str, Any], text: str) -> Any:
    try:
        value = decode_strictly(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise Wrong(f"must be {allowed(rule)} ({error.msg[:1].lower()}{error.msg[1:]}: {place})") from None
    except ValueError as error:  # a key that stands twice, or a number of thousands of digits
        reason = str(error).partition(";")[0]
        raise Wrong(f"must be {allowed(rule)} ({reason[:1].lower()}{reason[1:]})") from None
    except RecursionError:
        raise Wrong("is nested too deep") from None
    if not json_text(value):
        raise Wrong("must be JSON, which has no NaN and no infinite numbers")
    kind = None if is_union(rule) else rule.get("type")
    if (kind == "array" and not isinstance(value, list)) or (
        kind == "object" and not isinstance(value, dict)
    ):
        raise Wrong(f"must be {allowed(rule)}")
    return value


def _is_allowed_text(rule: Mapping[str, Any], text: str) -> bool:
    least, most = count_in(rule, "minLength"), count_in(rule, "maxLength")
    if (least is not None and len(text) < least) or (most is not None and len(text) > most):
        return False
    return _has_format(rule.get("format"), text) and _matches(_pattern(rule), text)


def _has_format(form: object, text: str) -> bool:
    try:
        if form == "date-time":
            # Wider than RFC 3339 (a space for the T, no seconds, no zone): the handlers differ in that.
            datetime.fromisoformat(text.upper())
        elif form == "date":
            date.fromisoformat(text)
        elif form == "uuid":
            UUID(text)
    except ValueError:
        return False
    return True


def _matches(pattern: str | None, text: str) -> bool:
    """Whether the pattern is found in the text, or can't be looked for here."""
    if pattern is None or not _is_cheap(pattern, len(text)):
        return True
    try:
        return re.search(pattern, text) is not None
    except Exception:  # another language's pattern, or one that Python warns of
        return True


# Python's search tries every way to share a text among the repeats of a pattern: some length ** repeats
# steps, and without end where one repeat stands inside another (or may: in a comment's or spaces' disguise).
def _is_cheap(pattern: str, length: int) -> bool:
    if length > 1000 or re.search(r"\)[*+{]|\(\?(#|[a-zA-Z]*x)", pattern):
        return False
    choices = len(re.findall(r"[*+?{|]", re.sub(r"\\.|\(\?", "", pattern)))
    return (choices + 1) * math.log10(max(length, 2)) <= 7


# JSON.


def is_union(rule: Mapping[str, Any]) -> bool:
    return any(isinstance(rule.get(word), list) and rule[word] for word in ("anyOf", "oneOf", "allOf"))


def json_text(value: object) -> str:
    """The value as JSON on one line; empty if it is none."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return text if text.isprintable() else json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return ""
