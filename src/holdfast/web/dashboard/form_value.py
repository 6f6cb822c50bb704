"""One value of a form: in words what it may be, and what a text means under the rule of its JSON Schema.

A schema comes from the database and may hold anything: `sound` keeps what can be understood.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any
from uuid import UUID

from holdfast.core.payload import MAX_INTEGER_BITS, decode_strictly
from holdfast.text import one_line

UNIONS = ("anyOf", "oneOf", "allOf")


class Wrong(Exception):
    """What is wrong with the text of a field, worded for the person who entered it."""


# A rule's parts, if they are what they should be.


def sound(rule: Mapping[str, Any]) -> dict[str, Any]:
    """The rule without what means nothing."""
    return {word: part for word, part in rule.items() if word not in _SOUND or _SOUND[word](part)}


def _is_number(part: object) -> bool:
    if isinstance(part, float):
        return math.isfinite(part)
    return isinstance(part, int) and not isinstance(part, bool) and _is_storable(part)


def _is_storable(value: int) -> bool:
    return value.bit_length() <= MAX_INTEGER_BITS


_SOUND: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("$ref", "description", "format"), lambda part: isinstance(part, str)),
    **dict.fromkeys(("enum", "required"), lambda part: isinstance(part, list)),
    **dict.fromkeys(UNIONS, lambda part: isinstance(part, list) and bool(part)),
    **dict.fromkeys(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(
        ("minLength", "maxLength"), lambda part: isinstance(part, int) and _is_number(part) and part >= 0
    ),
    "multipleOf": lambda part: _is_number(part) and part > 0,
    "pattern": lambda part: isinstance(part, str) and 0 < len(part) <= 200,
    "items": lambda part: isinstance(part, Mapping),
    "properties": lambda part: isinstance(part, Mapping) and all(isinstance(name, str) for name in part),
}


def is_union(rule: Mapping[str, Any]) -> bool:
    return any(word in rule for word in UNIONS)


# In words.

_FORMATS = {
    "date-time": "a date and time such as 2026-01-15T10:00:00Z",
    "date": "a date such as 2026-01-15",
    "time": "a time such as 10:00:00",
    "duration": "a duration such as PT1H30M",
    "uuid": "a UUID such as 12345678-1234-5678-1234-567812345678",
    "decimal": "a decimal number such as 12.50",
    "uri": "a URL such as https://example.com/",
    "email": "an email address",
}
_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": ("at least", operator.ge),
    "exclusiveMinimum": ("more than", operator.gt),
    "maximum": ("at most", operator.le),
    "exclusiveMaximum": ("less than", operator.lt),
}


def described(rule: Mapping[str, Any]) -> str:
    return one_line(short(" ".join(rule.get("description", "").split()).rstrip(".")))


def short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:299]}…"


def allowed(rule: Mapping[str, Any]) -> str:
    """What a value may be, to be read after "must be"; empty if it may be any text."""
    kind = None if is_union(rule) else rule.get("type")
    if kind == "string":
        return _allowed_text(rule)
    if kind in ("integer", "number"):
        return _allowed_number(rule)
    if kind == "array":
        is_of_texts = rule.get("items", {}).get("type") == "string"
        return 'a JSON array such as ["a", "b"]' if is_of_texts else "a JSON array such as [1, 2]"
    return 'a JSON object such as {"a": 1}' if kind == "object" else 'JSON such as 1, "text" or {"a": 1}'


def _allowed_text(rule: Mapping[str, Any]) -> str:
    if rule.get("contentEncoding") == "base64":
        return "base64-encoded bytes"
    words = []
    least, most = rule.get("minLength", 0), rule.get("maxLength")
    if least == most == 1:
        words.append("of 1 character")
    elif least and most is not None:
        words.append(f"of {least} to {most} characters")
    elif least or most is not None:
        words.append(f"of at least {_characters(least)}" if least else f"of at most {_characters(most)}")
    if "pattern" in rule:
        words.append(f"that matches {one_line(rule['pattern'])}")
    return " ".join(filter(None, [_FORMATS.get(rule.get("format", "")) or ("text" if words else ""), *words]))


def _characters(count: int | None) -> str:
    return "1 character" if count == 1 else f"{count} characters"


def _allowed_number(rule: Mapping[str, Any]) -> str:
    words = "a whole number" if rule["type"] == "integer" else "a number"
    bounds = {word: _figure(rule[word]) for word in _BOUNDS if word in rule}
    if set(bounds) == {"minimum", "maximum"}:
        words += f" from {bounds['minimum']} to {bounds['maximum']}"
    elif bounds:
        words += " that is " + " and ".join(f"{_BOUNDS[word][0]} {bound}" for word, bound in bounds.items())
    return f"{words}, a multiple of {_figure(rule['multipleOf'])}" if "multipleOf" in rule else words


def _figure(number: float) -> str:
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else str(number)


# Reading.


def read_text(rule: Mapping[str, Any], kind: str, text: str) -> Any:
    """The value of a field's text; raises Wrong if it is not allowed."""
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
    elif rule["type"] == "number" and re.fullmatch(_FRACTION, text):
        value = float(text)
    if not _is_within_bounds(rule, value):
        raise Wrong(f"must be {allowed(rule)}")
    if isinstance(value, int) and not _is_storable(value):
        raise Wrong(f"must be a number of at most {MAX_INTEGER_BITS} bits")
    return value


def _is_within_bounds(rule: Mapping[str, Any], value: float) -> bool:
    if not -math.inf < value < math.inf:
        return False
    is_within = all(holds(value, rule[word]) for word, (_, holds) in _BOUNDS.items() if word in rule)
    return is_within and ("multipleOf" not in rule or _is_multiple(value, rule["multipleOf"]))


def _is_multiple(value: float, step: float) -> bool:
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
    except ValueError as error:
        cause = error.__cause__  # a key that stands twice, a number of thousands of digits, or no JSON
        if cause is None:
            raise Wrong(str(error)) from None
        reason = str(cause).partition(";")[0]
        if isinstance(cause, json.JSONDecodeError):
            reason = f"{cause.msg}: line {cause.lineno}, column {cause.colno}"
        raise Wrong(f"must be {allowed(rule)} ({reason[:1].lower()}{reason[1:]})") from None
    if not json_text(value):
        raise Wrong("must be valid JSON, without NaN or Infinity")
    kind = None if is_union(rule) else rule.get("type")
    if not isinstance(value, list if kind == "array" else dict if kind == "object" else object):
        raise Wrong(f"must be {allowed(rule)}")
    return value


def _is_allowed_text(rule: Mapping[str, Any], text: str) -> bool:
    if not rule.get("minLength", 0) <= len(text) <= rule.get("maxLength", math.inf):
        return False
    return _has_format(rule.get("format", ""), text) and _matches(rule.get("pattern", ""), text)


_READERS: dict[str, Callable[[str], object]] = {
    # Wider than RFC 3339 (a space for the T, no seconds, no zone): the handlers differ in that.
    "date-time": lambda text: datetime.fromisoformat(text.upper()),
    "date": date.fromisoformat,
    "uuid": UUID,
}


def _has_format(form: str, text: str) -> bool:
    try:
        _READERS.get(form, str)(text)
    except ValueError:
        return False
    return True


def _matches(pattern: str, text: str) -> bool:
    """Whether the pattern is found in the text, or can't be looked for here."""
    if not _is_cheap(pattern, len(text)):
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


def json_text(value: object) -> str:
    """The value as JSON on one line; empty if it is none."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return text if text.isprintable() else json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return ""
