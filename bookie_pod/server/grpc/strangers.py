"""Connections of a gRPC server of which no call was let in yet: those of strangers, or of who has not asked yet.

gRPC bounds all connections together, and ends none because its calls are refused, so strangers could hold them all.
Here it is the strangers that have been there for longest that go, once they are more than `most`: there is always
room for who comes next.

They are found among the sockets of the process (`bookie_pod.peers`), which has to be one with few of them.

Event loop only.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from bookie_pod.peers import Address, address_of, connections, shut_down

LOOK_S: Final = 1.0


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
        if (address := address_of(peer)) is not None:
            self._known.add(address)

    def look(self, port: int) -> None:
        """Send those away that are too many, of the connections to this port."""
        here = dict(connections(port))
        self._known &= here.keys()
        strangers = {address: None for address in self._here if address in here}
        strangers.update((address, None) for address in here if address not in strangers)
        self._here = {address: None for address in strangers if address not in self._known}
        for address in list(self._here)[: max(0, len(self._here) - self._most)]:
            self.sent_away += 1
            shut_down(here[address], address)

    async def guard(self, port: int) -> None:
        """Until cancelled."""
        while True:
            with suppress(OSError):  # no descriptor is left to look with
                self.look(port)
            await asyncio.sleep(LOOK_S)
