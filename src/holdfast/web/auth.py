"""Who may do what: hosts, origins, tokens, and login cookies. Decides; the guard enforces."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import time
from collections.abc import Iterable, Mapping
from enum import IntEnum

from msgspec import Struct

from holdfast.errors import ConfigError
from holdfast.text import shown

COOKIE = "holdfast_session"
SESSION_SECONDS = 12 * 3600
SHORTEST_TOKEN = 16
"""The minimum length of a token: shorter ones can be guessed."""

ANY_HOST = "*"
READING = frozenset({"GET", "HEAD"})

_HOST = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?))(?::(?P<port>\d{0,5}))?"
)


class Right(IntEnum):
    """What a request may do."""

    NOTHING = 0
    LOOK = 1
    CHANGE = 2


class Session(Struct, frozen=True, kw_only=True):
    """A login: what it may do, and until when, in seconds of the Unix epoch."""

    id: str
    right: Right
    until: int


class Access(Struct, frozen=True, kw_only=True):
    """The rules of one application. `outer` means that the application that mounts it authenticates."""

    tokens: dict[Right, bytes] = {}
    """The SHA-256 digest of the token for each right."""
    hosts: frozenset[str] = frozenset()
    """Host names that are accepted in addition to loopback."""
    outer: bool = False

    @property
    def needs_token(self) -> bool:
        return bool(self.tokens)

    @property
    def is_for_this_machine(self) -> bool:
        """Whether there is no authentication, so that only clients on this machine are answered."""
        return not self.tokens and not self.outer

    def is_host_allowed(self, host: str | None) -> bool:
        name = host_name(host)
        if name is None:
            return False
        if ANY_HOST in self.hosts or (self.outer and not self.hosts):
            return True
        return is_loopback(name) or name in self.hosts

    def is_foreign(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the request comes from another site's page. Programs send neither header."""
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in (b"same-origin", b"none"):
            return True
        origin = headers.get(b"origin")
        return origin is not None and not self._is_own_origin(origin.decode("latin-1"), headers)

    def _is_own_origin(self, origin: str, headers: Mapping[bytes, bytes]) -> bool:
        scheme, _, place = origin.lower().partition("://")
        if scheme not in ("http", "https") or host_name(place) is None:
            return False
        if scheme == "http" and outer_scheme(headers) == "https":
            return False
        default = ":443" if scheme == "https" else ":80"
        place = place.removesuffix(default)
        own = headers.get(b"host", b"").decode("latin-1").lower()
        if host_name(place) == host_name(own):  # the same name on another port is another service
            return place == own.removesuffix(default)
        # A proxy may have put a name of its own in Host; then the outer one, without a port, is allowed.
        return place in self.hosts and not is_loopback(place)

    def right_of_token(self, token: bytes) -> Right:
        """By digests: their comparison takes the same time whatever was given, and any bytes will do."""
        digest = hashlib.sha256(token).digest()
        found = Right.NOTHING
        for right, wanted in self.tokens.items():
            if hmac.compare_digest(digest, wanted):
                found = right
        return found

    # The cookie names a right and when it ends, signed with a key that only who has the token can make. So
    # it holds in every process and after a restart, and ends with the token.

    def make_session(self, right: Right) -> str:
        body = f"{int(right)}.{int(time.time()) + SESSION_SECONDS}.{os.urandom(16).hex()}"
        return f"{body}.{self._signature(right, body)}"

    def session_of(self, cookie: str) -> Session | None:
        """The session that a cookie stands for; None if it is forged or its time is over."""
        body, _, signature = cookie.rpartition(".")
        number, _, rest = body.partition(".")
        if number not in ("1", "2"):
            return None
        right = Right(int(number))
        if right not in self.tokens or not hmac.compare_digest(
            signature.encode(), self._signature(right, body).encode()
        ):
            return None
        until, _, id = rest.partition(".")
        return Session(id=id, right=right, until=int(until)) if int(until) > time.time() else None

    def _signature(self, right: Right, body: str) -> str:
        key = b"holdfast session" + self.tokens[right]
        return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()


def make_access(
    token: str | None, read_token: str | None, allowed_hosts: Iterable[str] | None, auth: str
) -> Access:
    """The rules, from what an application says; wrong ones are refused."""
    if auth not in ("token", "outer"):
        raise ConfigError(f"auth must be 'token' or 'outer', not {shown(auth)}")
    if auth == "outer" and (token is not None or read_token is not None):
        raise ConfigError("auth='outer' leaves authentication to the outer application; don't pass a token")
    if read_token is not None and token is None:
        raise ConfigError(
            "a read-only token requires a full-access token too, or everyone could make changes"
        )
    tokens = {
        right: _digest(name, value)
        for right, name, value in (
            (Right.CHANGE, "token", token),
            (Right.LOOK, "read-only token", read_token),
        )
        if value is not None
    }
    if len(set(tokens.values())) < len(tokens):
        raise ConfigError("the token and the read-only token must be different")
    hosts = frozenset(_allowed_host(host) for host in allowed_hosts or ())
    return Access(tokens=tokens, hosts=hosts, outer=auth == "outer")


def _digest(name: str, value: str) -> bytes:
    if not value.isprintable():
        raise ConfigError(f"the {name} must be printable text")
    token = value.strip()
    if len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"the {name} is too short: at least {SHORTEST_TOKEN} characters are required",
            hint="generate one with openssl rand -hex 32",
        )
    return hashlib.sha256(token.encode()).digest()


def _allowed_host(host: str) -> str:
    if host == ANY_HOST:
        return host
    name = host_name(host)
    if name is None:
        raise ConfigError(f"{shown(host)} is not a host name such as queue.example.com, or * for any host")
    return name


def host_name(host: str | None) -> str | None:
    """The name in a Host header, without the port; None if it is none."""
    match = _HOST.fullmatch(host or "")
    if match is None or int(match["port"] or 0) > 65_535:
        return None
    if match["address"] is not None:
        try:
            return str(ipaddress.IPv6Address(match["address"]))
        except ValueError:
            return None
    return match["name"].lower().removesuffix(".")


def is_loopback(name: str) -> bool:
    """Whether a host name or address is loopback."""
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def outer_scheme(headers: Mapping[bytes, bytes]) -> str:
    """The scheme that a proxy says the browser used; empty if it says nothing."""
    return headers.get(b"x-forwarded-proto", b"").partition(b",")[0].strip().lower().decode("latin-1")
