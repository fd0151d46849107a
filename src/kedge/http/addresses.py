"""Whether an IP address is one of the public internet. Others belong to this machine or its network."""

from __future__ import annotations

import ipaddress

# Special-purpose blocks of IANA that some version of `ipaddress` calls global. The few reachable addresses in them
# (anycast of PCP and TURN, AMT, AS112, ORCHID) have no web pages.
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "100.64.0.0/10",  # shared by carriers' customers (RFC 6598)
            "192.0.0.0/24",  # protocol assignments; clouds have their metadata there
            "192.88.99.0/24",  # relays of 6to4, given up
            "2001::/23",  # protocol assignments
            "2001:db8::/32",  # documentation
            "3fff::/20",  # documentation (RFC 9637)
        ),
    )
)
# Other IPv6 addresses are local, or embed an IPv4 address.
_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(ip: Address) -> bool:
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(ip.ipv4_mapped)
        if ip.sixtofour is not None:
            return is_public(ip.sixtofour)
        if ip.teredo is not None:
            return False
        if ip in _NAT64:
            return is_public(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
        if ip not in _UNICAST:
            return False
    return (
        ip.is_global and not ip.is_multicast and not any(ip in net for net in _NOT_PUBLIC if net.version == ip.version)
    )
