"""What is public agrees with IANA's registries of special-purpose addresses, whatever version of Python runs."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.http.addresses import is_public

# https://www.iana.org/assignments/iana-ipv4-special-registry and …-ipv6-special-registry, with the blocks that are
# multicast, site-local or not handed out. Those that are globally reachable only for a protocol without pages
# (192.0.0.9, 2001:1::1, 2001:3::/32, 2001:20::/28, …) lie in blocks that are not, and are refused with them.
NOT_PUBLIC = (
    "0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32", "192.0.0.171/32",
    "192.0.0.192/32", "192.0.2.0/24", "192.88.99.0/24", "192.88.99.2/32", "192.168.0.0/16", "198.18.0.0/15",
    "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32",
    "::1/128", "::/128", "::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32",
    "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28",
    "2001:20::/28", "2001:30::/28", "2001:db8::/32", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10",
    "ff00::/8", "4000::/3", "8000::/1",
)  # fmt: skip
PUBLIC = (
    "1.1.1.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "192.0.1.0/24", "198.20.0.0/16",
    "2001:200::/23", "2606:4700::/32", "2620:4f:8000::/48", "2a00::/12",
)  # fmt: skip
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def addresses_of(networks: tuple[str, ...]) -> st.SearchStrategy[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    return st.sampled_from(networks).map(ipaddress.ip_network).flatmap(_address_in)


def _address_in(network: Network) -> st.SearchStrategy[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    return st.integers(0, network.num_addresses - 1).map(lambda at: network[at])


@pytest.mark.parametrize("block", NOT_PUBLIC)
def test_the_ends_of_a_block_that_is_not_public_are_not(block: str) -> None:
    network = ipaddress.ip_network(block)
    assert not is_public(network[0])
    assert not is_public(network[-1])


@given(addresses_of(NOT_PUBLIC))
def test_no_address_of_such_a_block_is_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert not is_public(ip)
    if isinstance(ip, ipaddress.IPv4Address):
        for prefix in ("::ffff:", "64:ff9b::"):
            assert not is_public(ipaddress.ip_address(f"{prefix}{ip}"))
        assert not is_public(ipaddress.IPv6Address(0x2002 << 112 | int(ip) << 80 | 1))


@given(addresses_of(PUBLIC))
def test_others_are(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert is_public(ip)
