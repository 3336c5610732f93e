"""Moves a ledger's copies with a client: fragments through the replication library, ends through recovery.

Threads: event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from bookie_client.client import Client
from bookie_client.replication.check import CheckOptions, LedgerChecker, close_checked
from bookie_client.replication.fragments import fragments
from bookie_client.replication.replicator import CopyProgress, FragmentReplicator, ReplicationOptions
from bookie_protocol.ledger_metadata.model import LedgerMetadata

_LEAVES = "it is being drained"


class ClientMover:
    """Implements `drain.LedgerMover`."""

    def __init__(self, client: Client, options: ReplicationOptions | None = None) -> None:
        self._client = client
        self._replicator = FragmentReplicator(client, options)
        self._checker = LedgerChecker(client, CheckOptions(throttle=self._replicator.options.throttle))

    async def recover(self, ledger_id: int) -> None:
        await close_checked(self._client, await self._checker.check(ledger_id))

    async def move(
        self, metadata: LedgerMetadata, bookies: Collection[str], session_id: int, progress: Callable[[int], None]
    ) -> str:
        """The last segment of a ledger that is not closed is left out: its end is its writer's."""
        left_out = ""
        for fragment in fragments(metadata.ledger_id, metadata, -1):
            leaving = {at: bookie for bookie in bookies for at in fragment.positions(bookie)}
            if not leaving:
                continue
            if not fragment.is_closed:
                left_out = f"{metadata.state.value}: its last segment names {', '.join(sorted(leaving.values()))}"
                continue
            told = _Deltas(progress)
            excluded = dict.fromkeys(bookies, _LEAVES)
            result = await self._replicator.replicate(
                fragment, leaving, excluded=excluded, session_id=session_id, progress=told
            )
            told.upto(result.nbytes)
            if result.unfilled:
                left_out = "; ".join(result.unfilled.values())
        return left_out


class _Deltas:
    """Tells what came since the last time, of a progress that grows."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._told = 0

    def __call__(self, progress: CopyProgress) -> None:
        self.upto(progress.nbytes)

    def upto(self, nbytes: int) -> None:
        if nbytes > self._told:
            self._tell(nbytes - self._told)
            self._told = nbytes
