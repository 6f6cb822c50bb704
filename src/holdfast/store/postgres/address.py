"""The address of a PostgreSQL queue: a libpq URI, plus a few options of our own."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from holdfast.errors import ConfigError

_OPTIONS = ("schema", "synchronous_commit", "pool")
_SYNCHRONOUS = ("on", "off", "local", "remote_write", "remote_apply")
_HIDDEN = "***"
_COLON = re.compile(":|%3a", re.IGNORECASE)
_SHOWN = frozenset(
    (
        *_OPTIONS,
        *("user", "host", "hostaddr", "port", "dbname", "service", "passfile", "client_encoding"),
        *("application_name", "fallback_application_name", "connect_timeout", "tcp_user_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslnegotiation", "gssencmode"),
        *("channel_binding", "require_auth", "target_session_attrs", "load_balance_hosts"),
    )
)
"""Options whose values may be shown."""
_SECRET = frozenset(("password", "sslpassword", "options"))
_QUOTED = re.compile(r'"([^"]*)"')
_NO_PORT = re.compile(r"^([^/\[\]]*:)[^/:]*[^/:0-9][^/:]*(?=/|$)")
"""What stands for a port without being one: the password of an address that lacks its host."""
_ENCODED = "in a password, write @ as %40, / as %2F, : as %3A, ? as %3F and % as %25"

# A peer that is gone without a word is noticed within 15 s, unless the address says otherwise.
_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "fallback_application_name": "holdfast",
}
_ENVIRONMENT = {"connect_timeout": "PGCONNECT_TIMEOUT", "target_session_attrs": "PGTARGETSESSIONATTRS"}
"""What libpq would take from the environment, were it not said."""


class Address(Struct, frozen=True, kw_only=True):
    """Where a queue is. `schema` is None for the first one of the connection's search path."""

    conninfo: str
    shown: str
    """The address without the password."""
    schema: str | None = None
    synchronous_commit: str | None = None
    pool: int = 10

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def parse_url(url: str) -> Address:
    """`postgresql://user@host:5432/database?schema=jobs`; other options of the query are libpq's."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    base, query = _split(url)
    # Not parse_qsl: libpq takes a + for a +.
    given = [(unquote(part.partition("=")[0]), part) for part in query.split("&")] if query else []
    ours = {name: unquote(part.partition("=")[2]) for name, part in given if name in _OPTIONS}
    theirs = "&".join(part for name, part in given if name not in _OPTIONS)
    try:
        if "\0" in url:
            raise ValueError("it contains a NUL")  # where libpq would stop reading
        known: dict[str, Any] = conninfo_to_dict(f"{base}?{theirs}" if theirs else base)
        _check_place(base, known)
        conninfo = make_conninfo(**(_defaults(known) | known | {"client_encoding": "utf8"}))
    except (ProgrammingError, ValueError) as error:
        shown = without_password(url)
        reason = _reason(error, url, shown)
        hint = None if shown == url else _ENCODED
        raise ConfigError(f"{shown!r} is not a valid PostgreSQL address: {reason}", hint=hint) from None
    schema, synchronous, pool = (ours.get(name) for name in _OPTIONS)
    wrong = _wrong_option(schema, synchronous, pool)
    if wrong is not None:
        raise ConfigError(f"{without_password(url)!r}: {wrong}")
    return Address(
        conninfo=conninfo,
        shown=without_password(url),
        schema=schema,
        synchronous_commit=synchronous,
        pool=int(pool or 10),
    )


def without_password(url: str) -> str:
    """An address as it may be shown, logged and stored; also one that is wrong, as far as it can be told."""
    base, query = _split(url)
    if "@" in query and ":" in base.partition("://")[2] and not _is_query_of(base, query):
        base, query = url, ""  # the ? and all before the last @ belong to the password
    scheme, mark, place = base.partition("://")
    if not mark:
        return _HIDDEN
    end = place.rfind("@")
    colon = _COLON.search(place, 0, max(end, 0))
    if colon is not None:
        place = f"{place[: colon.end()]}{_HIDDEN}{place[end:]}"
    elif end < 0:
        place = _NO_PORT.sub(rf"\1{_HIDDEN}", place)
    if not query:
        return f"{scheme}{mark}{place}"
    return f"{scheme}{mark}{place}?{'&'.join(_without_value(part) for part in query.split('&'))}"


def _split(url: str) -> tuple[str, str]:
    """The place and the query. As in libpq, a ? before the first @ is part of the password."""
    start = url.find("://") + 3
    named = url.find("@", start)
    if named >= 0 and "/" not in url[start:named]:
        start = named
    asks = url.find("?", start)
    return (url, "") if asks < 0 else (url[:asks], url[asks + 1 :])


def _is_query_of(base: str, query: str) -> bool:
    """Whether it consists of options that there are, behind a place that can be one."""
    parts = [part.partition("=") for part in query.split("&")]
    is_known = all(equals and unquote(name) in _SHOWN | _SECRET for name, equals, _ in parts)
    return is_known and not _NO_PORT.search(base.partition("://")[2])


def _without_value(part: str) -> str:
    name, equals, value = part.partition("=")
    if unquote(name) in _SHOWN and "=" not in value:
        return part
    return f"{name}={_HIDDEN}" if equals else _HIDDEN


def _reason(error: Exception, url: str, shown: str) -> str:
    """What libpq says of the address, without what it quotes of a password."""
    if '"' in url:
        return "it can't be parsed"  # nobody could tell what is quoted there
    text = str(error).strip().partition("\n")[0]
    return _QUOTED.sub(lambda quoted: quoted[0] if quoted[1] in shown else _HIDDEN, text)


def _check_place(base: str, known: dict[str, Any]) -> None:
    if "@" in base.partition("@")[2] or "@" in base.partition("://")[2].partition("/")[2]:
        raise ValueError("there is an @ after the host name")
    for port in known.get("port", "").split(","):
        if port and not (port.isdecimal() and 1 <= int(port) <= 65535):
            raise ValueError("the port must be a number from 1 to 65535")


def _defaults(known: dict[str, Any]) -> dict[str, str]:
    defaults = dict(_DEFAULTS)
    if "," in known.get("host", "") + known.get("hostaddr", ""):
        defaults["target_session_attrs"] = "read-write"  # the others are standbys
    return {name: value for name, value in defaults.items() if _ENVIRONMENT.get(name, "") not in os.environ}


def _wrong_option(schema: str | None, synchronous: str | None, pool: str | None) -> str | None:
    if schema is not None and not 0 < len(schema.encode()) <= 63:
        return "schema must be a name of 1 to 63 bytes"
    if schema is not None and schema.startswith("pg_"):
        return "schema names that begin with pg_ are reserved"
    if synchronous is not None and synchronous not in _SYNCHRONOUS:
        return f"synchronous_commit must be one of {', '.join(_SYNCHRONOUS)}"
    if pool is not None and not (pool.isdecimal() and 1 <= int(pool) <= 1000):
        return "pool must be a whole number from 1 to 1000"
    return None
