"""The address of a PostgreSQL queue: libpq's own, and a few options of ours in its query."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from holdfast.errors import ConfigError

_OPTIONS = ("schema", "synchronous_commit", "pool")
_SYNCHRONOUS = ("on", "off", "local", "remote_write", "remote_apply")
_PASSWORD = re.compile(r"(?P<before>^[a-z]+://[^/?#]*?:)[^@/?#]*(?=@)")

# A peer that is gone without a word is noticed within 15 s, unless the address says otherwise.
_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "application_name": "holdfast",
}


class Address(Struct, frozen=True, kw_only=True):
    """Where a queue is. `schema` is None for the first one of the connection's search path."""

    conninfo: str
    shown: str
    """As people may see it: without the password."""
    schema: str | None = None
    synchronous_commit: str | None = None
    pool: int = 10


def parse_url(url: str) -> Address:
    """`postgresql://user@host:5432/database?schema=jobs`; other options of the query are libpq's."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    base, _, query = url.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in _OPTIONS}
    theirs = [(name, value) for name, value in given if name not in _OPTIONS]
    plain = f"{base}?{urlencode(theirs, quote_via=quote)}" if theirs else base
    try:
        known: dict[str, Any] = conninfo_to_dict(plain)
    except ProgrammingError as error:
        reason = str(error).strip()
        raise ConfigError(f"{without_password(url)!r} is not an address of PostgreSQL: {reason}") from None
    defaults = {name: value for name, value in _DEFAULTS.items() if name not in known}
    return Address(
        conninfo=make_conninfo(plain, **defaults),
        shown=without_password(url),
        schema=_schema(url, ours.get("schema")),
        synchronous_commit=_synchronous(url, ours.get("synchronous_commit")),
        pool=_pool(url, ours.get("pool", "10")),
    )


def without_password(url: str) -> str:
    """An address as it may be shown, logged and stored."""
    url = _PASSWORD.sub(r"\g<before>***", url)
    if "password=" not in url:
        return url
    parts = urlsplit(url)
    kept = [(n, "***" if n in ("password", "sslpassword") else v) for n, v in parse_qsl(parts.query)]
    return urlunsplit(parts._replace(query=urlencode(kept, safe="*/")))


def _schema(url: str, name: str | None) -> str | None:
    if name is not None and not 0 < len(name.encode()) <= 63:
        raise ConfigError(f"{without_password(url)!r}: schema must be a name of 1 to 63 bytes")
    return name


def _synchronous(url: str, word: str | None) -> str | None:
    if word is not None and word not in _SYNCHRONOUS:
        raise ConfigError(
            f"{without_password(url)!r}: synchronous_commit must be one of {', '.join(_SYNCHRONOUS)}"
        )
    return word


def _pool(url: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ConfigError(f"{without_password(url)!r}: pool must be a whole number from 1 to 1000")
    return int(text)
