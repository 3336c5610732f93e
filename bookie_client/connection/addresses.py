"""Where each bookie listens: asked at every connect, and remembered for when nobody answers.

Invariants
- An address comes from the metadata service at every attempt to connect, so a bookie that moved is found. Only
  while the service cannot tell is the last known one used.
- A bookie that is not registered has no address: it is forgotten.
- Addresses of registered bookies are also looked up ahead, one after the other, so that a bookie can be reached
  for the first time while the metadata service is out of reach.

Host names are not resolved here: that happens at every attempt, in the connector.

Bounded by the number of bookies that were ever registered or asked for. Event loop only.

Source: reference metadata layout, section 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from bookie_protocol.errors import MetadataError, MetadataNotFound, MetadataUnavailable

Address = tuple[str, int]
"""Host and port."""
Resolver = Callable[[str], Awaitable[Address]]
"""Bookie id -> address. Raises a `MetadataError`."""

LOOK_UP_SECONDS: Final = 2.0
"""How long the metadata service may take when there is a last known address."""
REFRESH_SECONDS: Final = 60.0
"""Time between looks for bookies whose address is not known, while the set of bookies does not change."""


class AddressBook:
    """See the module. `look_up` asks the metadata service."""

    def __init__(self, look_up: Resolver) -> None:
        self._look_up = look_up
        self._known: dict[str, Address] = {}
        self._task: asyncio.Task[None] | None = None

    async def resolve(self, bookie: str) -> Address:
        """The address of a bookie. Raises `MetadataNotFound` when it is not registered, another
        `MetadataError` when nobody can tell and nobody ever could."""
        known = self._known.get(bookie)
        try:
            async with asyncio.timeout(None if known is None else LOOK_UP_SECONDS):
                address = await self._look_up(bookie)
        except MetadataNotFound:
            self._known.pop(bookie, None)
            raise
        except (MetadataError, TimeoutError):
            if known is None:
                raise
            return known
        self._known[bookie] = address
        return address

    def start(self, registered: Callable[[], frozenset[str]], changed: Callable[[float], Awaitable[None]]) -> None:
        """Begin to look ahead. `registered`: the bookies known now; `changed`: returns when they change, or
        after the given seconds."""
        self._task = asyncio.get_running_loop().create_task(
            self._look_ahead(registered, changed), name="bookie addresses"
        )

    async def close(self) -> None:
        """Stop looking ahead. Calling it again is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _look_ahead(
        self, registered: Callable[[], frozenset[str]], changed: Callable[[float], Awaitable[None]]
    ) -> None:
        while True:
            for bookie in sorted(registered() - self._known.keys()):
                try:
                    await self.resolve(bookie)
                except MetadataUnavailable:
                    break
                except MetadataError:
                    continue
            await changed(REFRESH_SECONDS)
