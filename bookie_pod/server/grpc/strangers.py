"""Connections of a gRPC server of which no call was let in yet: those of strangers, or of who has not asked yet.

gRPC bounds all connections together, and ends none because its calls are refused, or because it asks for nothing but
the health, so strangers could hold them all. Here those go that have been there for too long, and the oldest of more
than there may be: there is always room for who comes next.

They are found among the sockets of the process (`bookie_pod.peers`). Where it has many of them a look takes a while, so
a thread looks, and the next look comes the later.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from bookie_pod.peers import Address, address_of, connections, shut_down

LOOK_S: Final = 1.0
_REST: Final = 100
"""Between two looks there is so many times what one took."""


class Strangers:
    """Those of one server: so many at `most`, for so many `seconds` each."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._known: set[Address] = set()
        self._since: dict[Address, float] = {}
        """Those that are not known, in the order in which they were seen."""
        self.sent_away = 0

    def let_in(self, peer: str) -> None:
        """A call of this connection, as gRPC calls it, was let in."""
        if (address := address_of(peer)) is not None:
            self._known.add(address)

    async def look(self, port: int) -> None:
        """Send those away whose time is over, or that are too many, of the connections to this port."""
        known = set(self._known)  # who is let in while the thread looks may have come after it did
        here = await asyncio.to_thread(lambda: dict(connections(port)))
        now = time.monotonic()
        self._known -= known - here.keys()
        since = {address: then for address, then in self._since.items() if address in here}
        since |= {address: now for address in here if address not in since}
        self._since = {address: then for address, then in since.items() if address not in self._known}
        too_many = len(self._since) - self._most
        for place, (address, then) in enumerate(self._since.items()):
            if place < too_many or now - then >= self._seconds:
                self.sent_away += 1
                shut_down(here[address], address)

    async def guard(self, port: int) -> None:
        """Until cancelled."""
        while True:
            began = time.monotonic()
            with suppress(OSError):  # no descriptor is left to look with
                await self.look(port)
            await asyncio.sleep(max(LOOK_S, _REST * (time.monotonic() - began)))
