"""Moves a ledger's copies with a client: fragments through the replication library, ends through recovery.

Threads: event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from bookie_client.client import Client
from bookie_client.connection.request import EntryAnswer
from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_client.replication.closing import close_checked, last_words, mark_losses
from bookie_client.replication.fragments import fragments
from bookie_client.replication.replicator import CopyProgress, FragmentReplicator, ReplicationOptions
from bookie_client.replication.source_reads import FAULTY_ANSWERS
from bookie_client.replication.targets import unregistered
from bookie_protocol.errors import BookieUnavailable, EntriesUnreadable, PodkeeperError, RecoveryFailed
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.versioned import LedgerLife

_LEAVES = "it is being drained"


class Passing(str):
    """A reason that another try may not meet any more."""


class ClientMover:
    """The client's part of a drain."""

    def __init__(self, client: Client, options: ReplicationOptions | None = None) -> None:
        self._client = client
        self._replicator = FragmentReplicator(client, options)
        self._checker = LedgerChecker(client, CheckOptions(throttle=self._replicator.options.throttle))

    async def recover(self, life: LedgerLife) -> None:
        """Fence the writer and close the ledger. Raises what `bookie_client.replication.check` raises, and
        `RecoveryFailed` only if no bookie that is registered may tell its end later."""
        try:
            await close_checked(self._client, self._checker, life)
        except RecoveryFailed as error:
            ensemble = (await self._client.metadata(life.ledger_id)).last_ensemble
            words = await last_words(self._client, life.ledger_id, ensemble)
            # A bookie that is busy, or in limbo, may tell later.
            told = {bookie for bookie, word in words.items() if isinstance(word, (EntryAnswer, *FAULTY_ANSWERS))}
            await self._unless_they_answer(error, words.keys() - told)
            # They tell now, and may have been silent before.
            await close_checked(self._client, self._checker, life)

    async def move(
        self, metadata: LedgerMetadata, bookies: Collection[str], session_id: int, progress: Callable[[int], None]
    ) -> str:
        """Copy what these bookies hold of every segment that has its end, and exchange them in the metadata, in the
        session that holds the ledger's lock. The last segment of a ledger that is not closed is its writer's.

        Return why something was left out; empty: nothing was. `progress` is called with the bytes as they are copied.
        Raises `PodkeeperError`, and `EntriesUnreadable` only if no bookie that is registered may have the entries.
        """
        left_out = ""
        members = () if metadata.is_closed else frozenset(metadata.last_ensemble).intersection(bookies)
        for fragment in fragments(metadata.ledger_id, metadata, -1):
            leaving = {at: bookie for bookie in bookies for at in fragment.positions(bookie)}
            if not leaving:
                continue
            if not fragment.is_closed:
                left_out = f"{metadata.state.value}: its last segment names {', '.join(sorted(leaving.values()))}"
                continue
            if members:
                # What they deny of this segment may be all that shows that they lost entries of the last one.
                await mark_losses(self._client, self._checker, metadata.ledger_id, members)
                members = ()
            told = _Deltas(progress)
            excluded = dict.fromkeys(bookies, _LEAVES)
            try:
                result = await self._replicator.replicate(
                    fragment, leaving, excluded=excluded, session_id=session_id, progress=told
                )
            except EntriesUnreadable as error:
                # A bookie that stays and cannot tell may never be able to; it keeps what it has.
                await self._unless_they_answer(error, error.silent | error.untold.intersection(bookies))
                raise
            told.upto(result.nbytes)
            if result.unfilled:
                left_out = Passing("; ".join(result.unfilled.values()))  # the next try tells whether there is no spare
        return left_out

    async def _unless_they_answer(self, error: PodkeeperError, silent: Collection[str]) -> None:
        """Raises `BookieUnavailable` if some of the silent bookies are registered: they may still have everything."""
        silent = sorted(frozenset(silent) - await unregistered(self._client, silent))
        if silent:
            raise BookieUnavailable(
                f"{', '.join(silent)} may have what is missing, and cannot tell just now. If one never will, stop it:"
                f" then what it may have counts as lost ({error})"
            )


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
