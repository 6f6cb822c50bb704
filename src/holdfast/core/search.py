"""Parsing and matching searches: words, phrases and fields of the payload. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from holdfast.core import check
from holdfast.core.redact import hides, is_secret, redact
from holdfast.errors import ConfigError

LONGEST = 500
MOST_WORDS = 20

_MISSING = object()

# A field of the payload and its value, a phrase in quotes (the last one may be left open), or a word.
_PART = re.compile(
    r"""
    payload(?P<path>(?:\.[^\s.:"]+)+):(?:"(?P<quoted>[^"]*)(?:"|$)|(?P<value>[^\s"]\S*))
    | "(?P<phrase>[^"]*)(?:"|$)
    | (?P<word>[^\s"]+)
    """,
    re.VERBOSE,
)


class Field(Struct, frozen=True):
    """A field of the payload, by the path that leads to it, and the text that its value must have."""

    path: tuple[str, ...]
    value: str

    def found_in(self, payload: Any) -> bool:
        value = payload
        for step in self.path:
            if isinstance(value, dict) and hides(value, step):
                return False
            value = _step(value, step)
        if value is _MISSING:
            return False
        if isinstance(value, str):
            return value.casefold() == self.value
        # What is secret further down stays so: not even a right guess is confirmed.
        return _json(redact(value)).casefold() == self.value


class Search(Struct, frozen=True):
    """Words and phrases that must all be found in a job's id, key, group or error, and payload fields."""

    words: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()

    def finds(self, *texts: str | None) -> bool:
        """Whether each word stands in one of the texts."""
        folded = [text.casefold() for text in texts if text]
        return all(any(word in text for text in folded) for word in self.words)

    def finds_in(self, payload: Any) -> bool:
        """Whether the payload has all the fields."""
        return all(field.found_in(payload) for field in self.fields)


def parse_search(text: object) -> Search:
    """Parse a search. Raises ConfigError if it is too long or searches a secret field."""
    text = check.text("search", text)
    if len(text) > LONGEST:
        raise ConfigError(f"a search may have at most {LONGEST} characters, not {len(text)}")
    words: dict[str, None] = {}
    fields: dict[Field, None] = {}
    for part in _PART.finditer(text):
        if part["path"] is not None:
            value = part["value"] if part["quoted"] is None else part["quoted"]
            fields[_field(part["path"][1:].split("."), value)] = None
        elif word := (part["word"] or part["phrase"] or "").strip():
            words[word.casefold()] = None
    if len(words) + len(fields) > MOST_WORDS:
        raise ConfigError(f"a search may have at most {MOST_WORDS} words, not {len(words) + len(fields)}")
    return Search(tuple(words), tuple(fields))


def _field(path: list[str], value: str) -> Field:
    for step in path:
        if is_secret(step):
            raise ConfigError(f"payload.{'.'.join(path)} can't be searched: {step} is the name of a secret")
    return Field(tuple(path), value.casefold())


def _step(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _MISSING)
    if isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
        return value[int(step)]
    return _MISSING


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
