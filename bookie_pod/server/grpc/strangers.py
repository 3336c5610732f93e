"""Connections of a gRPC server of which no call was let in yet: those of strangers, or of who has not asked yet.

gRPC bounds all connections together, and ends none because its calls are refused, so strangers could hold them all.
Here it is the strangers that have been there for longest that go, once they are more than `most`: there is always
room for who comes next.

gRPC tells nobody of its connections. They are found among the sockets of the process, which has to be one with few of
them, and are shut down there; gRPC takes that for the client's end.

Event loop only.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

LOOK_S: Final = 1.0
_FOLDER: Final = "/dev/fd"
_MAPPED: Final = "::ffff:"
Address = tuple[str, int]


class Strangers:
    """Those of one server."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[Address] = set()
        self._here: dict[Address, None] = {}
        """Those that are not known, in the order in which they were seen."""
        self.sent_away = 0

    def let_in(self, peer: str) -> None:
        """A call of this connection, as gRPC calls it, was let in."""
        if (address := _address(peer)) is not None:
            self._known.add(address)

    def look(self, port: int) -> None:
        """Send those away that are too many, of the connections to this port."""
        connections = dict(_connections(port))
        self._known &= connections.keys()
        strangers = {address: None for address in self._here if address in connections}
        strangers.update((address, None) for address in connections if address not in strangers)
        self._here = {address: None for address in strangers if address not in self._known}
        for address in list(self._here)[: max(0, len(self._here) - self._most)]:
            self.sent_away += 1
            _shut_down(connections[address], address)

    async def guard(self, port: int) -> None:
        """Until cancelled."""
        while True:
            with suppress(OSError):  # no descriptor is left to look with
                self.look(port)
            await asyncio.sleep(LOOK_S)


def _address(peer: str) -> Address | None:
    """`ipv4:10.0.0.7:4711`, `ipv6:%5B::1%5D:4711`; None for what is none of these."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (
        (host.strip("[]").removeprefix(_MAPPED), int(port)) if kind in ("ipv4", "ipv6") and port.isdecimal() else None
    )


def _connections(port: int) -> Iterator[tuple[Address, int]]:
    """The other end and the descriptor of each."""
    for name in os.listdir(_FOLDER):
        try:
            descriptor = int(name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and (address := _peer_of(descriptor, port)) is not None:
                yield address, descriptor
        except OSError:
            continue  # closed meanwhile, or nobody at the other end


def _peer_of(descriptor: int, port: int) -> Address | None:
    found = socket.socket(fileno=descriptor)
    try:
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.getsockname()[1] != port:
            return None
        host, peer_port, *_ = found.getpeername()
        return host.removeprefix(_MAPPED), peer_port
    finally:
        found.detach()


def _shut_down(descriptor: int, address: Address) -> None:
    try:
        own = socket.socket(fileno=os.dup(descriptor))  # so that nobody else can get its number now
        with own:
            host, port, *_ = own.getpeername()
            if (host.removeprefix(_MAPPED), port) == address:
                own.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has gone by itself
