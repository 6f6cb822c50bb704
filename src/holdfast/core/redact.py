"""Secrets in payloads, results and details, recognised by field name: what is shown, what is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from holdfast.core.payload import MAX_DEPTH
from holdfast.errors import InvalidPayload

REDACTED = "[redacted]"
_LONGEST_NAME = 200
_LABELS = frozenset({"name", "key", "header"})

_BORDERS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@cache
def _secret_words() -> re.Pattern[str]:
    """A word of a name, or two together; and words that are plain enough to be found at the end of a longer
    one. Compiled at the first question: most commands ask none."""
    return re.compile(
        r"pass(?:word|wd|phrase|code)?|pwd?|(?:db|smtp|imap|ftp|ldap|sql|pg|root|admin|user)(?:pass|pwd?)|"
        r"secrets?|tokens?|auth|authori[sz]ation|credentials?|creds?|cookies?|session(?:_?id)?|signature|"
        r"(?:api|access|private|secret|signing|encryption|ssh|account|master|client|shared|storage|hmac|"
        r"licen[sc]e|service)_?keys?|bearer|jwt|otp|pin|cvv|ssn|sas|dsn|"
        r"(?:database|db|connection|webhook)_?(?:url|uri|string)|"
        r".*(?:password|passwd|passphrase|secret|token|credential)s?",
        re.IGNORECASE,
    )


@lru_cache(4096)
def is_secret(name: str) -> bool:
    """Whether a field with this name contains a secret, judged by the end of the name."""
    parts = [part for word in _BORDERS.split(name[-_LONGEST_NAME:]) if (part := word.rstrip("0123456789"))]
    if len(parts) == 1 and parts[0].lower() == "key":  # a longer name may be a primary key or a sort key
        return True
    pairs = ["_".join(pair) for pair in pairwise(parts)]
    return any(_secret_words().fullmatch(part) for part in (*parts, *pairs))


def hides(fields: Mapping[str, Any], name: str) -> bool:
    """Whether a field of an object is secret: by its own name or, in a pair, by the name next to the value.

    A pair is `{"name": "Authorization", "value": …}`, as headers, variables and tags are often written.
    """
    label = _label(fields)
    if label is None:
        return is_secret(name)
    return name != label and (is_secret(name) or (name.lower() == "value" and is_secret(fields[label])))


def _label(fields: Mapping[str, Any]) -> str | None:
    """The field that names the value next to it; None if this is no such pair."""
    if not any(name.lower() == "value" for name in fields):
        return None
    labels = (name for name in fields if name.lower() in _LABELS and isinstance(fields[name], str))
    return next(labels, None)


def redact(value: Any) -> Any:
    """The value with every secret replaced by a marker."""
    if isinstance(value, dict):
        return {
            name: REDACTED if item not in (None, "") and hides(value, name) else redact(item)
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
        raise InvalidPayload("payload", f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(edited, dict):
        return {name: _restored(edited, name, stored, f"{where}.{name}", depth) for name in edited}
    if isinstance(edited, list):
        before = stored if isinstance(stored, list) else []
        return [
            before[place]
            if place < len(before) and item == redact(before[place])
            else restore(item, None, f"{where}[{place}]", depth + 1)
            for place, item in enumerate(edited)
        ]
    return edited


def _restored(edited: Mapping[str, Any], name: str, stored: Any, where: str, depth: int) -> Any:
    item = edited[name]
    known = isinstance(stored, dict) and name in stored
    if item == REDACTED and hides(edited, name):
        if not known:
            raise InvalidPayload(where, f"shows {REDACTED}: nothing stored to restore; enter the value again")
        return stored[name]
    return restore(item, stored[name] if known else None, where, depth + 1)
