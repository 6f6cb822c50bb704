"""Where a webhook may go: unambiguous URLs, and addresses that were checked."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.errors import ConfigError, Fail
from holdfast.jobs.name_lookup import names
from holdfast.jobs.public_address import is_public, meant
from holdfast.text import shown

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from holdfast.jobs.public_address import Address

ALLOW_PRIVATE = "QUEUECTL_WEBHOOK_ALLOW_PRIVATE"
ALLOW = "QUEUECTL_WEBHOOK_ALLOW"
"""The variables of a worker's environment that name targets besides public ones."""

LONGEST_URL = 2000
_PORTS = {"http": 80, "https": 443}

_URL = re.compile(r"[!-\[\]-~]+")  # ASCII without spaces, control characters and the backslash
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_BRACKETED = re.compile(r"\[[^\[\]]+\](?::[0-9]*)?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Target(Struct, frozen=True):
    """Where a request goes: the parts of a URL."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host and port as the header Host says them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_url(url: str) -> Target:
    """The parts of a URL that may be called; raises ValueError, with a message that does not repeat it."""
    from urllib.parse import urlsplit

    if len(url) > LONGEST_URL:
        raise ValueError(f"url: is longer than {LONGEST_URL} characters")
    if not _URL.fullmatch(url):
        raise ValueError(
            "url: contains a space, a backslash or a non-ASCII character; use %XX, or xn-- in the host"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("url: is not a valid URL") from None
    if "[" in parts.netloc and not _BRACKETED.fullmatch(parts.netloc):  # some Pythons pass over the rest
        raise ValueError("url: is not a valid URL")
    if parts.scheme not in _PORTS:
        raise ValueError("url: must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("url: contains a user name or password, which would be stored; use a header instead")
    if port == 0:
        raise ValueError("url: port 0 is not allowed")
    if not parts.hostname:
        raise ValueError("url: has no host")
    host = _checked_host(parts.hostname, is_v6="[" in parts.netloc)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or _PORTS[parts.scheme], path)


class Allowed(Struct, frozen=True):
    """Targets that may be called although they are not public."""

    everything: bool = False
    hosts: frozenset[str] = frozenset()
    networks: tuple[Any, ...] = ()

    @classmethod
    def from_environment(cls) -> Allowed:
        from ipaddress import ip_network

        private = os.environ.get(ALLOW_PRIVATE) or "0"
        if private not in ("0", "1"):
            raise ConfigError(f"{ALLOW_PRIVATE} must be 1 or 0, not {shown(private)}")
        hosts: set[str] = set()
        networks: list[IPv4Network | IPv6Network] = []
        for entry in filter(None, re.split(r"[,\s]+", os.environ.get(ALLOW, ""))):
            try:
                networks.append(ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                hosts.add(_allowed_host(entry))
        return cls(private == "1", frozenset(hosts), tuple(networks))

    def permits(self, host: str, address: Address) -> bool:
        """Whether a host may be called at this address of it."""
        address = meant(address)
        if self.everything or host in self.hosts or is_public(address):
            return True
        return any(address in network for network in self.networks)


async def checked_addresses(target: Target, allowed: Allowed) -> list[Address]:
    """Every address of the target, looked up once and checked; one that may not be called spoils all."""
    from ipaddress import ip_address

    try:
        found = [ip_address(target.host)]
    except ValueError:
        answers = await names.find(target.host, target.port)
        found = list(dict.fromkeys(ip_address(answer[4][0]) for answer in answers))
    for address in found:
        if not allowed.permits(target.host, address):
            raise Fail(
                f"{target.host} resolves to {address}, which is not a public address; "
                f"to allow it, set {ALLOW} or {ALLOW_PRIVATE} in the worker's environment"
            )
    return found


def _allowed_host(entry: str) -> str:
    try:
        return _checked_host(entry.lower())
    except ValueError:
        raise ConfigError(
            f"{ALLOW}: {shown(entry)} is not a host, an address or a network such as fd00::/8"
        ) from None


def _checked_host(host: str, is_v6: bool = False) -> str:
    """A host in lower case, without the dot of the root; raises ValueError."""
    from ipaddress import IPv4Address, IPv6Address

    if is_v6:
        try:
            address = IPv6Address(host)
        except ValueError:
            raise ValueError("url: the host is not a valid IPv6 address") from None
        if address.scope_id is not None:
            raise ValueError("url: the host is an IPv6 address with a zone, which is not allowed")
        return str(address)
    host = host.removesuffix(".")
    if not _NAME.fullmatch(host) or len(host) > 253:
        raise ValueError("url: the host is not a valid name or address")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        # Others read 127.1, 0177.0.0.1 and 2130706433 as addresses, too; each in its own way.
        try:
            IPv4Address(host)
        except ValueError:
            raise ValueError("url: an IPv4 address must be written as four decimal numbers") from None
    return host
