"""Secrets in payloads and results, told by the names of their fields: what is shown, and what is kept."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any

from holdfast.core.payload import MAX_DEPTH
from holdfast.errors import InvalidPayload

REDACTED = "[redacted]"
_LONGEST_NAME = 200

# A word of a name, or two together; and words that are plain enough to be found at the end of a longer one.
_WORDS = re.compile(
    r"pass(?:word|wd|phrase|code)?|pwd|secrets?|tokens?|authori[sz]ation|credentials?|cookies?|"
    r"(?:api|access|private|secret|signing|encryption)_?keys?|bearer|jwt|otp|pin|cvv|ssn|"
    r".*(?:password|passwd|passphrase|secret|token|credential)s?",
    re.IGNORECASE,
)
_BORDERS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@lru_cache(4096)
def is_secret(name: str) -> bool:
    """Whether a field of that name holds a secret; its end tells."""
    parts = [part for word in _BORDERS.split(name[-_LONGEST_NAME:]) if (part := word.rstrip("0123456789"))]
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


def restore(edited: Any, stored: Any, where: str = "payload", depth: int = 1) -> Any:
    """What was edited, with the stored value wherever a field still shows the marker.

    Raises InvalidPayload where it can't be told whose secret is meant: an entry of a list keeps its secrets
    only as a whole, in its place.
    """
    if depth > MAX_DEPTH:
        raise InvalidPayload("payload", f"is nested deeper than {MAX_DEPTH}")
    if isinstance(edited, dict):
        return {
            name: _restored(name, item, stored, f"{where}.{name}", depth) for name, item in edited.items()
        }
    if isinstance(edited, list):
        before = stored if isinstance(stored, list) else []
        return [
            before[place]
            if place < len(before) and item == redact(before[place])
            else restore(item, None, f"{where}[{place}]", depth + 1)
            for place, item in enumerate(edited)
        ]
    return edited


def _restored(name: str, item: Any, stored: Any, where: str, depth: int) -> Any:
    known = isinstance(stored, dict) and name in stored
    if item == REDACTED and is_secret(name):
        if not known:
            raise InvalidPayload(where, f"shows {REDACTED}, and no stored value belongs there; say it anew")
        return stored[name]
    return restore(item, stored[name] if known else None, where, depth + 1)
