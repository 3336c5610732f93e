"""A bookie that is being decommissioned starts read-only, and stays so until that is undone.

The coordinator of a decommission makes a bookie read-only that serves. One that restarts on the way would be writable
again until the coordinator sees it, take new data meanwhile, and have to be drained of it once more.

Invariants
- It is looked for whenever a session with the metadata service begins (`membership`).
- A decommission that is undone gives back what this took and nothing else (`BookieMode.set_leaving`). One that is done
  leaves the bookie read-only; with the cookie that it deleted it is the business of an earlier bookie of the id.
- A bookie that is known not to leave asks no more: its coordinator tells it. No other answer ends the asking, whatever
  the metadata service says in between, as when a cluster is restored.

Event loop only.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from bookie_pod.node.mode import BookieMode
from bookie_protocol.errors import MetadataDamaged, MetadataError, MetadataNotFound
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.metadata_service.records import DECOMMISSION
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.shown import moment

RETRY_S: Final = 1.0
CLOCKS_DIFFER: Final = timedelta(minutes=5)
"""The difference of clocks, at most."""
UNREADABLE: Final = -1
"""Stands for the time at which a decommission began whose record cannot be read."""

_log = structlog.get_logger(__name__)


class Leaving:
    """The metadata service's record of the decommission of this bookie.

    Call `look` with each session, and `follow` once a record is found.
    """

    def __init__(self, metadata: MetadataService, bookie_id: str, mode: BookieMode) -> None:
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._mode = mode
        self._started_ms: int | None = None
        self._told: int | None = None
        """The begin of the decommission that was reported to the mode."""

    async def look(self) -> bool:
        """Return whether the bookie leaves, and report that to the mode. Raises `MetadataError`."""
        try:
            record = await self._metadata.records(DECOMMISSION).read(self._bookie_id)
        except MetadataNotFound:
            return False
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
                        if record is None or not self._names(record):
                            break
                        self._tell()
                if await self._is_done():
                    self._mode.set_by_operator(True)  # it stays so when it is started again, if it has its cookie still
                    return
                if not await self.look():  # else another decommission has begun since
                    self._mode.set_leaving(False)
                    return
            except MetadataError as error:  # the mode is unchanged until the service answers
                if str(error) != told:
                    told = str(error)
                    _log.warning("cannot tell whether the bookie is being decommissioned", reason=told)
            await asyncio.sleep(RETRY_S)

    def _tell(self) -> None:
        """Once for each decommission: an operator may have said otherwise since."""
        if self._told != self._started_ms:
            self._told = self._started_ms
            self._mode.set_leaving(True)

    def _names(self, record: Versioned[bytes]) -> bool:
        """Return whether the record names this bookie.

        A record that cannot be read, such as one of a later release, counts: an operator wants the bookie to leave.
        """
        from bookie_pod.autorecovery.decommission.state import Phase, decode_record

        try:
            found = decode_record(record.value, self._bookie_id)
        except MetadataDamaged as error:
            _log.warning("the decommission of this bookie cannot be read: it stays read-only", reason=str(error))
            self._started_ms = UNREADABLE
            return True
        if found.phase is Phase.DONE and found.delete_cookie and self._told != found.started_ms:
            return False  # no bookie goes on without a cookie, so this one has another
        self._started_ms = found.started_ms
        return found.phase is not Phase.UNDOING

    async def _is_done(self) -> bool:
        """Return whether the decommission that was seen last is complete; one that is undone leaves no record.

        Raises `MetadataError`.
        """
        from bookie_pod.autorecovery.decommission.store import DecommissionStore

        if self._started_ms is None:
            return False
        finished = await DecommissionStore(self._metadata).finished(self._bookie_id)
        return finished is not None and finished.started_ms == self._started_ms


async def has_left(metadata: MetadataService, bookie_id: str, stamped_at: datetime) -> bool:
    """Return whether a decommission deleted the cookie of the bookie whose directories were stamped at this time.

    If so, they are refused from now on. A bookie that had its id before does not count. False also if that cannot be
    determined.
    """
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
    """Return whether the decommission that began then is running and not being undone. Raises `MetadataError`."""
    from bookie_pod.autorecovery.decommission.state import Phase
    from bookie_pod.autorecovery.decommission.store import DecommissionStore

    found = await DecommissionStore(metadata).active(bookie_id)
    return found is not None and found.value.started_ms == began_ms and found.value.phase is not Phase.UNDOING


async def decommissioned_at(metadata: MetadataService, bookie_id: str) -> datetime | None:
    """Return when a bookie of this id left for good; None if never, or if that cannot be determined.

    It cannot where a wrong clock wrote a time in the future: everything written since would seem older. A later bookie
    may have its id.
    """
    from bookie_pod.autorecovery.decommission.store import DecommissionStore

    try:
        finished = await DecommissionStore(metadata).finished(bookie_id)
    except MetadataError:
        return None
    if finished is None or not finished.delete_cookie:
        return None
    ended = moment(finished.updated_ms)
    return None if ended is None or ended > datetime.now(UTC) + CLOCKS_DIFFER else ended
