"""Which addresses are public: our own table, since that of `ipaddress` differs from one Python to the next.

It holds the special-purpose registries of IANA (IPv4 and IPv6, as of 2025) whole, also the few entries that
can be reached from everywhere, such as relays and blackholes: nobody's webhook is there.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

    Address = IPv4Address | IPv6Address

SPECIAL_V4 = (
    "0.0.0.0/8",  # this network
    (0x0A000000, 8),  # private: 10/8
    "100.64.0.0/10",  # between providers and their customers
    "127.0.0.0/8",  # loopback
    "168.63.129.16/32",  # not of IANA: the platform of Azure, which answers from within
    "169.254.0.0/16",  # link-local, and the metadata of clouds
    "172.16.0.0/12",  # private
    "192.0.0.0/24",  # protocol assignments, and the metadata of a cloud
    "192.0.2.0/24",  # documentation
    "192.31.196.0/24",  # AS112
    "192.52.193.0/24",  # multicast tunnelling
    "192.88.99.0/24",  # relays of 6to4
    (0xC0A80000, 16),  # private: 192.168/16
    "192.175.48.0/24",  # AS112
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and broadcast
)

GLOBAL_V6 = "2000::/3"
"""All of IPv6 that is handed out. Loopback, private, link-local, multicast and others lie outside."""

SPECIAL_V6 = (
    "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
    "2001:db8::/32",  # documentation
    "2620:4f:8000::/48",  # AS112
    "3fff::/20",  # documentation
)


def is_public(address: Address) -> bool:
    """Whether an address, as `meant` gives it, is one that anybody may have on the internet."""
    special, everything = _networks(address.version)
    return address in everything and not any(address in network for network in special)


def meant(address: Address) -> Address:
    """The IPv4 address inside an IPv6 address that is only another way to it: mapped, NAT64, 6to4."""
    from ipaddress import IPv4Address, IPv6Network

    if address.version == 4:
        return address
    if address in IPv6Network("64:ff9b::/96"):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


@cache
def _networks(version: int) -> tuple[list[IPv4Network | IPv6Network], IPv4Network | IPv6Network]:
    from ipaddress import ip_network

    special, everything = (SPECIAL_V4, "0.0.0.0/0") if version == 4 else (SPECIAL_V6, GLOBAL_V6)
    return [ip_network(network) for network in special], ip_network(everything)
