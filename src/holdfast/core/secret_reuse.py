"""Whether stored secrets may be reused with an edited payload: only if they go where they went before.

Someone who may retry a job with a different payload may not be allowed to read its secrets. But the handler
sends them somewhere, and the destination is in the payload too: a URL, a host, a command. So none of these
may change while a secret is kept.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.core.redact import REDACTED, restore
from holdfast.errors import InvalidPayload

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PLACE = re.compile(
    r".*(?:url|uri|host|hostname|endpoint|server|domain|address|proxy|dsn)(?:e?s)?|"
    r"href|origin|gateway|callback|webhook|brokers?|relay|addr|ip|port|command",
    re.IGNORECASE,
)
"""A word in the name of a field that says where something goes."""

_URL = re.compile(r"((?:[a-z][a-z0-9+.-]*:)?//[^/?#\\\s]+)(?:[/?#]((?!//).)*)?", re.IGNORECASE | re.DOTALL)
"""One URL that everybody reads alike. Some take a line end out of one, and a backslash for a slash."""

_HOST = re.compile(
    r"(?:localhost|(?:[a-z0-9_-]+\.)+[a-z][a-z0-9-]+|\d+\.\d+\.\d+\.\d+)\.?(?::\d+)?|"
    r"[a-z][a-z0-9_-]*:\d+|\[[0-9a-f:.]+\](?::\d+)?",
    re.IGNORECASE,
)


def restore_secrets(edited: Any, stored: Any) -> Any:
    """What was edited, with the stored secret wherever a field still shows the marker.

    Raises InvalidPayload if a secret would be restored and the edit leads elsewhere. A URL may change behind
    its host and port.
    """
    payload = restore(edited, stored)
    if payload != edited:
        before, after = dict(_places(stored)), dict(_places(payload))
        for where in (*after, *before):
            if before.get(where) != after.get(where):
                raise InvalidPayload(
                    where,
                    f"can't be changed while a secret shows {REDACTED}, which might be sent elsewhere; "
                    "enter the secret again",
                )
    return payload


def _places(value: Any, where: str = "payload", *, named: bool = False) -> list[tuple[str, object]]:
    """The places that a payload names: the field of each, and what of its value must stay."""
    if isinstance(value, dict):
        inner = [
            _places(item, f"{where}.{name}", named=named or _names_place(name))
            for name, item in value.items()
        ]
    elif isinstance(value, list):
        inner = [_places(item, f"{where}[{place}]", named=named) for place, item in enumerate(value)]
    else:
        found = _place(value, named=named)
        return [] if found is None else [(where, found)]
    return [place for places in inner for place in places]


def _names_place(name: str) -> bool:
    return any(_PLACE.fullmatch(word) for word in _WORD.findall(name))


def _place(value: Any, *, named: bool) -> object:
    if isinstance(value, str):
        if url := _URL.fullmatch(value):
            return url[1].lower()
        if _HOST.fullmatch(value):
            return value.lower()
        if "//" in value:  # a URL among other words, or in another one
            return value
    return value if named else None
