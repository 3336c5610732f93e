"""Hosts and ports as configurations and URIs write them, in IPv4 and IPv6.

Pure; any thread.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EVERY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})
"""Hosts to listen on that mean all addresses of the machine, of both families: a pod may have either or both."""


def host_and_port(host: str, port: int) -> str:
    """`host:port`, or `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_to_bind(host: str, port: int) -> str | None:
    """What `asyncio`'s `create_server` listens on; None: on all addresses of both families. With port 0 each family
    would get a port of its own, so that is IPv4 alone."""
    if host not in EVERY_ADDRESS:
        return host
    return None if port else "0.0.0.0"


@contextmanager
def resolving() -> Iterator[None]:
    """Around what resolves names: one that no host can have is one that nobody has, and an `OSError` as of any other.
    Python says UnicodeError."""
    try:
        yield
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"no host can have this name: {error}") from None


def server_name(host: str) -> str:
    """What the certificate of a host has to name: without the dot at the end of a complete name, and of an IPv6 address
    without brackets and zone."""
    bare = host.strip("[]")
    address = bare.partition("%")[0]
    return address if ":" in address and is_address(address) else bare.rstrip(".")


def is_address(host: str) -> bool:
    """Whether it is an address, and no name that has to be resolved."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether it means this machine, whoever says it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
