"""The bookies as this client knows them: their groups (writable, read-only), addresses and published properties.

Invariants
- Both sets follow the metadata service's watches; nothing older than what was seen is ever used.
- "No bookie is registered" is an answer; "could not tell" is an error.
- What a bookie says about itself is kept only while its registration lasts: a bookie that registers again is asked
  again.
- A verdict on a bookie's copies needs more (`Registrations`): "registered nowhere" is said only after the metadata
  service was asked again, in an order that a bookie which just changes between writable and read-only cannot slip
  through.

Event loop only.

Source: docs/internals/metadata-layout.md, section 4; docs/internals/auto-recovery.md, section 2 ("available").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import MetadataDamaged, MetadataError
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet
from bookie_protocol.metadata_service.service_info import BookieServiceInfo

if TYPE_CHECKING:
    from bookie_protocol.metadata_service.tree.bookies import BookieRegistry

FOLLOW_PAUSE: Final = 5.0
"""Seconds until a set that could not be followed is followed again."""
REMEMBERED_SECONDS: Final = 1.0
"""Seconds for which an answer of the metadata service is reused: a ledger names a lost bookie many times."""


class FollowedGroup:
    """One group of registered bookies; `on_change` gets the set before and after."""

    def __init__(
        self, registry: BookieRegistry, group: BookieGroup, on_change: Callable[[frozenset[str], frozenset[str]], None]
    ) -> None:
        self._registry = registry
        self._group = group
        self._on_change = on_change
        self._seen: BookieSet | None = None
        self.is_following = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow; `close` it."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"{self._group.value} bookies")

    async def close(self) -> None:
        """Stop following. Calling it again is fine."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def known(self) -> frozenset[str]:
        """The members as last seen; empty before anything was seen."""
        return self._seen.bookies if self._seen is not None else frozenset()

    async def members(self) -> frozenset[str]:
        """Return the members now. Asks the metadata service while the watch tells nothing; raises its error."""
        if self._seen is None or not self.is_following:
            self._take(await self._registry.list(self._group))
        return self.known

    async def _follow(self) -> None:
        # While this tells nothing, `members` asks the service itself, and its caller sees the error: there may be no
        # cluster, and another one later.
        while True:
            try:
                with suppress(MetadataError):
                    async with self._registry.watch(self._group) as snapshots:
                        async for snapshot in snapshots:
                            self.is_following = True
                            self._take(snapshot)
            finally:
                self.is_following = False
            await asyncio.sleep(FOLLOW_PAUSE)

    def _take(self, snapshot: BookieSet) -> None:
        if self._seen is None or snapshot.version > self._seen.version:
            before, self._seen = self.known, snapshot
            self._on_change(before, snapshot.bookies)


class Bookies:
    """Follows the registry while it is open; `start` before use."""

    def __init__(self, registry: BookieRegistry) -> None:
        self._registry = registry
        self._writable = FollowedGroup(registry, BookieGroup.WRITABLE, self._writable_changed)
        self._read_only = FollowedGroup(registry, BookieGroup.READ_ONLY, self._registrations_changed)
        self._changed = asyncio.Event()
        self._infos: dict[str, BookieServiceInfo] = {}
        self._registrations = 0

    def start(self) -> None:
        """Begin to follow the sets of writable and of read-only bookies."""
        self._writable.start()
        self._read_only.start()

    async def close(self) -> None:
        """Stop following."""
        await self._writable.close()
        await self._read_only.close()

    @property
    def is_following(self) -> bool:
        """The watch tells who is writable."""
        return self._writable.is_following

    @property
    def known_writable(self) -> frozenset[str]:
        """The writable bookies as last seen, without asking anybody."""
        return self._writable.known

    @property
    def known_read_only(self) -> frozenset[str]:
        """The read-only bookies as last seen, without asking anybody."""
        return self._read_only.known

    async def writable(self) -> frozenset[str]:
        """Return the writable bookies. Ask the metadata service if the watch has reported nothing yet; raises its
        error."""
        return await self._writable.members()

    async def read_only(self) -> frozenset[str]:
        """Return the read-only bookies, in the same way."""
        return await self._read_only.members()

    async def changed(self, timeout: float) -> None:
        """Wait until the writable set changes, at most `timeout` seconds."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()

    async def address(self, bookie_id: str) -> tuple[str, int]:
        """Host and port of a registered bookie, as the metadata service tells now. Raises `MetadataError`."""
        info = await self._registry.service_info(bookie_id)
        address = info.bookie_address()
        if address is None:
            raise MetadataDamaged(f"bookie {bookie_id} is registered without an endpoint for the BookKeeper protocol")
        return address

    async def info(self, bookie_id: str) -> BookieServiceInfo:
        """Return what a registered bookie publishes about itself; it is read once for each registration. Raises
        `MetadataError`."""
        known = self._infos.get(bookie_id)
        if known is not None:
            return known
        registrations = self._registrations
        info = await self._registry.service_info(bookie_id)
        if registrations == self._registrations and bookie_id in self.known_writable | self.known_read_only:
            self._infos[bookie_id] = info
        return info

    async def rack_assignments(self) -> bytes:
        """Return the rack configuration that Apache Pulsar stores; empty if there is none. Raises `MetadataError`."""
        return await self._registry.rack_assignments()

    def _writable_changed(self, before: frozenset[str], after: frozenset[str]) -> None:
        self._changed.set()
        self._registrations_changed(before, after)

    def _registrations_changed(self, before: frozenset[str], after: frozenset[str]) -> None:
        self._registrations += 1
        if before == after:
            # A bookie left and came back between two looks, and it is not known which one.
            self._infos.clear()
        for bookie in before ^ after:
            self._infos.pop(bookie, None)


class Registration(Enum):
    """WRITABLE or READ_ONLY: it serves what it has. NOWHERE: it is down, or gone for good."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    NOWHERE = "nowhere"


class Registrations:
    """Asks for one client. Bounded by the number of bookies that ledgers name."""

    def __init__(self, bookies: Bookies, registry: BookieRegistry) -> None:
        self._bookies = bookies
        self._registry = registry
        self._nowhere_until: dict[str, float] = {}

    async def of(self, bookie: str, *, asked_now: bool = False) -> Registration:
        """Return where the bookie is registered, as far as this client knows.

        With `asked_now`, ignore what was known before, which may still name a bookie that has just gone. Raises
        `MetadataUnavailable`."""
        if not asked_now and bookie in await self._bookies.writable():
            return Registration.WRITABLE
        if not asked_now and bookie in await self._bookies.read_only():
            return Registration.READ_ONLY
        now = asyncio.get_running_loop().time()
        if now < self._nowhere_until.get(bookie, now):
            return Registration.NOWHERE
        # Writable is asked twice: it may leave the read-only ones for the writable ones between two questions.
        for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY, BookieGroup.WRITABLE):
            if await self._registry.is_registered(bookie, group):
                return Registration.WRITABLE if group is BookieGroup.WRITABLE else Registration.READ_ONLY
        self._nowhere_until[bookie] = asyncio.get_running_loop().time() + REMEMBERED_SECONDS
        return Registration.NOWHERE
