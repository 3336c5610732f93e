"""Hosts and ports as configurations and URIs write them, in IPv4 and IPv6.

Pure; any thread.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EVERY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})
"""Hosts to listen on that mean all addresses of the machine, of both families: a pod may have either or both."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_IPV6: Final = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?")


def host_and_port(host: str, port: int) -> str:
    """`host:port`, or `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_to_bind(host: str, port: int) -> str | None:
    """Return the host that `asyncio`'s `create_server` listens on; None: all addresses of both families.

    With port 0 each family would get a port of its own, so that is IPv4 alone.
    """
    if host not in EVERY_ADDRESS:
        return host
    return None if port else "0.0.0.0"


@contextmanager
def resolving() -> Iterator[None]:
    """Turn the UnicodeError of an impossible name, in a block that resolves names, into an `OSError` as for any
    unknown name."""
    try:
        yield
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"no host can have this name: {error}") from None


def server_name(host: str) -> str:
    """Return the name that the certificate of a host must have: without the dot at the end of a complete name, and
    for an IPv6 address without brackets and zone."""
    bare = host.strip("[]")
    address = bare.partition("%")[0]
    return address if ":" in address and is_address(address) else bare.rstrip(".")


def is_address(host: str) -> bool:
    """Return True if it is an address, not a name that has to be resolved."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_host(host: str) -> bool:
    """Return True if a URL can have this text as its host: a name, or an address of IPv4 or IPv6, with or without
    brackets. Names of Docker and Kubernetes may have underscores."""
    if _NAME.fullmatch(host) is not None:
        return True
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return _IPV6.fullmatch(bare) is not None and is_address(bare)


def is_loopback(host: str) -> bool:
    """Return True if the host means the machine of any process that uses it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
