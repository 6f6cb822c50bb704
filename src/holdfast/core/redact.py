"""Secrets in payloads and results, told by the names of their fields: what is shown, and what is kept."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

REDACTED = "[redacted]"

_WORDS = re.compile(
    r"pass(?:word|wd|phrase|code)?|pwd|secrets?|tokens?|authori[sz]ation|credentials?|cookies?|"
    r"(?:api|access|private|secret|signing|encryption)_?keys?|bearer|jwt|otp|pin|cvv|ssn",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a field of that name holds a secret: one of its words, or two together, say so."""
    parts = [part for part in re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])", name) if part]
    pairs = ["_".join(pair) for pair in pairwise(parts)]
    return any(_WORDS.fullmatch(part) for part in (*parts, *pairs))


def redact(value: Any) -> Any:
    """The value with every secret replaced by a marker."""
    if isinstance(value, dict):
        return {
            name: REDACTED if is_secret(name) and item not in (None, "") else redact(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [redact(item) for item in value]
    return value


def restore(edited: Any, stored: Any) -> Any:
    """What was edited, with the stored value wherever a field still shows the marker."""
    if isinstance(edited, dict) and isinstance(stored, dict):
        return {
            name: stored[name]
            if item == REDACTED and name in stored and is_secret(name)
            else restore(item, stored.get(name))
            for name, item in edited.items()
        }
    if isinstance(edited, list) and isinstance(stored, list):
        return [
            restore(item, stored[place] if place < len(stored) else None) for place, item in enumerate(edited)
        ]
    return edited
