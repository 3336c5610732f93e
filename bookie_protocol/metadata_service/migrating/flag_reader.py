"""Reading the flag of a migration.

Invariants
- A read and its watch are one request, so ZooKeeper reports each change behind what was read. The caller gets what that
  request found, and the proof of that request.
- What others than the cluster's own users could have written says nothing, nor does the absence of a flag that others
  could have deleted.
- Data and rights are of one flag: if it changed in between, it is the same node still, or it is read again.
- A read ends by its time-out, however often the flag changes.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from bookie_protocol.errors import MetadataNotFound, MetadataRefused, MetadataUnavailable
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.migrating.flag import Migration, Phase
from bookie_protocol.metadata_service.migrating.lines import Lines
from bookie_protocol.metadata_service.migrating.proofs import Proof, ProvingWatch
from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE, Node, NodeTree, changes_of_children, parent_of

LONG_REMINDER_S: Final = 3600.0
"""Seconds between two log lines of what may remain so without harm."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Told:
    """The result of a read of the flag. `proof` holds until it changes, and counts only for a flag that is believed."""

    migration: Migration
    proof: Proof

    @property
    def phase(self) -> Phase:
        return self.migration.phase

    @property
    def is_believed(self) -> bool:
        return self.migration.is_believed

    @property
    def is_missing(self) -> bool:
        return self.migration == flag.NONE


@dataclass(frozen=True, slots=True)
class Listing:
    """Names and creations of the children of the flag's directory (None: it may not be read), and the version, which
    counts what comes and goes."""

    version: int
    children: Mapping[str, int | None]

    def shows_no_flag_until(self, later: Listing | None) -> bool:
        """Return True if no flag has come and gone since this listing: what is shown explains the count."""
        if later is None:
            return False
        one_only = self.children.keys() ^ later.children.keys()
        both = self.children.keys() & later.children.keys()
        made_again = [each for each in both if len({self.children[each], later.children[each]} - {None}) > 1]
        is_made = self == NO_DIRECTORY
        changes = changes_of_children(later.version) if is_made else later.version - self.version
        return changes == len(one_only) + 2 * len(made_again)


NO_DIRECTORY: Final = Listing(0, {})


@dataclass(frozen=True, slots=True)
class Seen:
    """Flag and listing of its directory (None: it is not known) in a look that found no pause."""

    migration: Migration
    listing: Listing | None

    def no_migration_until(self, later: Seen) -> bool:
        """Return True if no migration has come and gone since then: no write of a flag is unknown."""
        before, now = self.migration.written, later.migration.written
        if before is not None:
            return now is not None and now[0] == before[0] and now[1] <= before[1] + 1
        is_new = now is None or now[1] == 0
        return is_new and self.listing is not None and self.listing.shows_no_flag_until(later.listing)


@asynccontextmanager
async def within(timeout: float, failure: str) -> AsyncIterator[None]:
    """Raise `MetadataUnavailable` if what is inside takes longer than so many seconds altogether."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise MetadataUnavailable(f"{failure} within {timeout:g} s") from None


class FlagReader:
    """Reads the flag at this path. Each read sets `watch`. `believes`: as for `Participant`."""

    def __init__(
        self,
        source: NodeTree,
        path: str,
        watch: ProvingWatch,
        believes: Callable[[float], Awaitable[bool]],
        lines: Lines,
    ) -> None:
        self.path = path
        self._failure = f"{path} cannot be read"
        self._source = source
        self._watch = watch
        self._believes = believes
        self._lines = lines

    async def newest(self, timeout: float) -> Told:
        """Return what the flag says in the newest state, as `read`."""
        async with within(timeout, self._failure):
            await self._source.sync(self.path, timeout=timeout)
            return await self.read(timeout)

    async def read(self, timeout: float) -> Told:
        """Return what the flag says, or `NONE` if it is missing.

        Raises `MetadataUnavailable` if that takes longer than `timeout` seconds altogether, `MetadataDamaged` if the
        flag is not valid, `MetadataRefused` if it may not be read although it is believed.
        """
        async with within(timeout, self._failure):
            while True:
                try:
                    told = await self._told(timeout)
                except MetadataRefused:
                    if await self._believes(timeout):
                        raise
                    return self._not_believed(self._watch.renewed())
                if told is not None:
                    return told

    async def _told(self, timeout: float) -> Told | None:
        """Return what one read tells, or None if it has to be read again."""
        proof = self._watch.renewed()
        if await self._source.exists(self.path, watch=self._watch, timeout=timeout) is None:
            return Told(flag.NONE if await self._believes(timeout) else flag.NOT_BELIEVED, proof)
        proof = self._watch.renewed()
        try:
            node = await self._source.get(self.path, watch=self._watch, timeout=timeout)
        except MetadataNotFound:
            return None
        if not await self._believes(timeout):
            return self._not_believed(proof)
        if not proof.holds and not await self._is_there_still(node, timeout):
            return None
        return Told(flag.decode(node.data, (node.stat.creation, node.stat.version)), proof)

    async def _is_there_still(self, node: Node, timeout: float) -> bool:
        """Return False if whose rights these are may not have written it."""
        stat = await self._source.exists(self.path, timeout=timeout)
        return stat is not None and stat.creation == node.stat.creation

    def _not_believed(self, proof: Proof) -> Told:
        event = "Pulsar's migration is not followed: others than the cluster's owners may say it"
        self._lines.write(_log.error, event, every=LONG_REMINDER_S, path=self.path)
        return Told(flag.NOT_BELIEVED, proof)

    async def listing(self, timeout: float) -> Listing | None:
        """Return the listing of the flag's directory. None: it is not known, because the directory may not be listed,
        or has more children than are read at once. Raises `MetadataUnavailable` if it changes meanwhile."""
        above = parent_of(self.path)
        try:
            listed = await self._source.children(above, timeout=timeout)
            if len(listed.names) > NODES_AT_ONCE:
                return None
            found = await self._source.get_each([f"{above}/{name}" for name in listed.names], timeout=timeout)
            if (await self._source.children(above, timeout=timeout)).version != listed.version:
                raise MetadataUnavailable(f"{above} changes while it is listed")
        except MetadataNotFound:
            return NO_DIRECTORY
        except MetadataRefused:
            return None
        creations = (each.stat.creation if isinstance(each, Node) else None for each in found)
        return Listing(listed.version, dict(zip(listed.names, creations, strict=True)))
