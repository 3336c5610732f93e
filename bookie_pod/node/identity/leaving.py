"""A bookie that is being decommissioned starts read-only, and stays so until that is undone.

The coordinator of a decommission makes a bookie read-only that serves. One that restarts on the way would be writable
again until the coordinator sees it, take new data meanwhile, and have to be drained of it once more.

Invariants
- What cannot be told holds up no start: the bookie starts as it is configured, and goes on asking.
- A decommission that is undone gives back what this took and nothing else (`BookieMode.set_leaving`). One that is done
  leaves the bookie read-only; with the cookie that it deleted it is the business of an earlier bookie of the id.
- A bookie that is known not to leave asks no more: its coordinator tells it. No other answer ends the asking, whatever
  the metadata service says in between, as when a cluster is restored.

Event loop only.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

import structlog

from bookie_pod.node.mode import BookieMode
from bookie_protocol.errors import MetadataDamaged, MetadataError, MetadataNotFound
from bookie_protocol.metadata_service.interface import MetadataService, Versioned
from bookie_protocol.metadata_service.records import DECOMMISSION
from bookie_protocol.shown import moment

RETRY_S: Final = 1.0

_log = structlog.get_logger(__name__)


class Leaving:
    """What the metadata service says about the decommission of this bookie. `look` once, then `follow`."""

    def __init__(self, metadata: MetadataService, bookie_id: str, mode: BookieMode) -> None:
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._mode = mode
        self._started_ms: int | None = None
        self._told = False
        self.is_known = False
        """Whether the last look could tell."""

    async def look(self) -> bool:
        """Before the bookie is registered: whether it leaves, which the mode is told; False also if nobody can tell."""
        try:
            record = await self._metadata.records(DECOMMISSION).read(self._bookie_id)
        except MetadataNotFound:
            self.is_known = True
            return False
        except MetadataError as error:
            _log.warning("cannot tell whether the bookie is being decommissioned", reason=str(error))
            return False
        self.is_known = True
        leaves = self._names(record)
        if leaves:
            self._tell()
        return leaves

    async def follow(self) -> None:
        """Ends when the bookie does not leave (any more), or has left."""
        told = ""
        while True:
            try:
                async with self._metadata.records(DECOMMISSION).watch(self._bookie_id) as versions:
                    async for record in versions:
                        self.is_known = True
                        if record is None or not self._names(record):
                            break
                        self._tell()
                if not await self._is_done():
                    self._mode.set_leaving(False)
                return
            except MetadataError as error:  # the mode stays what it is until something is told
                if str(error) != told:
                    told = str(error)
                    _log.warning("cannot tell whether the bookie is being decommissioned", reason=told)
            await asyncio.sleep(RETRY_S)

    def _tell(self) -> None:
        """Once: an operator may have said otherwise since."""
        if not self._told:
            self._told = True
            self._mode.set_leaving(True)

    def _names(self, record: Versioned[bytes]) -> bool:
        """A record that cannot be read, such as one of a later release, counts: somebody wants the bookie to leave."""
        from bookie_pod.autorecovery.decommission.state import Phase, decode_record

        try:
            found = decode_record(record.value, self._bookie_id)
        except MetadataDamaged as error:
            _log.warning("the decommission of this bookie cannot be read: it stays read-only", reason=str(error))
            return True
        if found.phase is Phase.DONE and found.delete_cookie and not self._told:
            return False  # nobody starts without a cookie, so this one has another
        self._started_ms = found.started_ms
        return found.phase is not Phase.UNDOING

    async def _is_done(self) -> bool:
        """Whether the decommission that was seen last came to its end; one that is undone leaves nothing behind.
        Raises `MetadataError`."""
        from bookie_pod.autorecovery.decommission.store import DecommissionStore

        if self._started_ms is None:
            return False
        finished = await DecommissionStore(self._metadata).finished(self._bookie_id)
        return finished is not None and finished.started_ms == self._started_ms


async def has_left(metadata: MetadataService, bookie_id: str, stamped_at: datetime) -> bool:
    """Whether a decommission deleted the cookie of the bookie whose directories were stamped then, so that they are
    refused from now on. A bookie that had its id before does not count. False also if nobody can tell."""
    from bookie_pod.autorecovery.decommission.state import Phase
    from bookie_pod.autorecovery.decommission.store import DecommissionStore

    try:
        await metadata.cookies.read(bookie_id)
        return False
    except MetadataNotFound:
        pass
    except MetadataError:
        return False
    ended = await decommissioned_at(metadata, bookie_id)
    if ended is not None and ended > stamped_at:
        return True
    try:
        found = await DecommissionStore(metadata).active(bookie_id)
    except MetadataError:
        return False
    return found is not None and found.value.phase is Phase.REMOVING  # its coordinator did not live to say so


async def is_under_way(metadata: MetadataService, bookie_id: str, began_ms: int) -> bool:
    """Whether the decommission that began then goes on; one that is being undone does not. Raises `MetadataError`."""
    from bookie_pod.autorecovery.decommission.state import Phase
    from bookie_pod.autorecovery.decommission.store import DecommissionStore

    found = await DecommissionStore(metadata).active(bookie_id)
    return found is not None and found.value.started_ms == began_ms and found.value.phase is not Phase.UNDOING


async def decommissioned_at(metadata: MetadataService, bookie_id: str) -> datetime | None:
    """When a bookie of this id left for good; None: never, or nobody can tell. A later one may have its id."""
    from bookie_pod.autorecovery.decommission.store import DecommissionStore

    try:
        finished = await DecommissionStore(metadata).finished(bookie_id)
    except MetadataError:
        return None
    if finished is None or not finished.delete_cookie:
        return None
    return moment(finished.updated_ms)
