"""Connections of this process by the address of their other end, to shut them down from outside.

gRPC tells nobody of its connections, and has no call that ends one, so they are looked for among the descriptors of the
process; it takes a shut-down for the client's end. Where descriptors cannot be listed, nothing is found.

Threads: any. A descriptor may be closed, and its number be a file's or another socket's, between two calls: so each
looks again at what it is, and none is copied. (The end of a copy would give up the locks of a locked file.)
"""

from __future__ import annotations

import os
import socket
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

Address = tuple[str, int]
"""IP address and port."""

_FOLDER: Final = "/dev/fd"
_MAPPED: Final = "::ffff:"


def address_of(peer: str) -> Address | None:
    """Of a peer as gRPC names it: `ipv4:10.0.0.7:4711`, `ipv6:%5B::1%5D:4711`; None for what is none of these."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return host.strip("[]").removeprefix(_MAPPED), int(port)


def connections(port: int | None = None) -> Iterator[tuple[Address, int]]:
    """The other end and the descriptor of each TCP connection; with `port`, of those to it. Raises OSError if no
    descriptor is left to look with."""
    for number in map(int, os.listdir(_FOLDER)):
        address = None
        with suppress(OSError), _socket(number) as found:  # closed meanwhile, no socket, or nobody at the other end
            if found.family in (socket.AF_INET, socket.AF_INET6) and port in (None, found.getsockname()[1]):
                address = _peer_of(found)
        if address is not None:
            yield address, number


def shut_down(descriptor: int, address: Address) -> None:
    """Shut the connection down, if this address is still its other end."""
    with suppress(OSError), _socket(descriptor) as found:
        if _peer_of(found) == address:
            found.shutdown(socket.SHUT_RDWR)


@contextmanager
def _socket(descriptor: int) -> Iterator[socket.socket]:
    found = socket.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


def _peer_of(connection: socket.socket) -> Address:
    host, port, *_ = connection.getpeername()
    return host.removeprefix(_MAPPED), port
