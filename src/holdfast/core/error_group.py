"""The grouping key of an error: the part that stays the same when the same error happens again. Pure."""

from __future__ import annotations

import re
from functools import cache

LONGEST = 200
NO_MESSAGE = "(no message)"
_EXAMINED = 4000
"""How many characters of an error are examined: a line can be as long as a payload."""

_SPACE = re.compile(r"[\s\x00-\x1f\x7f]+")


@cache
def _changing() -> re.Pattern[str]:
    """Each of these holds a digit, and no digit is left afterwards: so a key's own key is the key itself.
    Compiled for the first error: most processes that enqueue meet none."""
    return re.compile(
        r"""
        (?<![0-9a-z])(?=[0-9a-f-]*[0-9])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-z])  # a UUID
        | 0x[0-9a-f]+                                                                            # an address
        | (?<![0-9a-z_])(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,}(?![0-9a-z_])                  # a digest
        | (?:(?<!\w)[-+])?\d+(?:[.,_]\d+)*(?:e[-+]?\d+)?                                         # a number
        """,
        re.IGNORECASE | re.VERBOSE,
    )


def error_group(error: str) -> str:
    """The first non-empty line, with `#` in place of the parts that vary."""
    for line in error.lstrip()[:_EXAMINED].splitlines():
        plain = line.encode("utf-8", "replace").decode()  # half a surrogate pair can't be stored
        found = _SPACE.sub(" ", _changing().sub("#", plain)).strip()[:LONGEST].rstrip()
        if found:
            return found
    return NO_MESSAGE
