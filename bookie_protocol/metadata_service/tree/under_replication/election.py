"""The auditor's election: ephemeral sequential votes; the oldest one wins.

Invariants
- A session has at most one vote; of two, after a lost answer, the newer is taken back.
- A candidate waits only in the session that its vote belongs to: after an expired one it votes again.
- Each candidate watches only the vote right before its own: no herd when the auditor goes.
- The winner is whoever holds the oldest vote. The data of `auditorelection` merely tells people.

Threads: event loop only.

Source: reference metadata layout, section 10.7.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bookie_protocol.errors import MetadataError, MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.under_replication import formats, names
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.tree.watching import RETRY_SECONDS
from bookie_protocol.metadata_service.versioned import ANY_VERSION


class TreeAuditorElection:
    """Implements `AuditorElection`."""

    def __init__(self, base: UnderReplicationBase) -> None:
        self._base = base
        self._tree = base.tree
        self._parent = f"{base.path}/{names.AUDITOR_ELECTION}"

    async def elect(self, bookie_id: str, *, timeout: float | None = None) -> TreeAuditorship:
        data = formats.encode_vote(bookie_id)
        vote: str | None = None
        try:
            while True:
                session = self._tree.session_id
                votes = await self._votes(timeout)
                if vote is None or vote not in votes:  # not yet cast, or gone with an expired session
                    vote = await self._cast(data, timeout)
                    continue
                place = votes.index(vote)
                if place == 0:
                    with suppress(MetadataNotFound):
                        await self._tree.set(self._parent, data, ANY_VERSION, timeout=timeout)
                    return TreeAuditorship(self._tree, f"{self._parent}/{vote}", bookie_id)
                await self._wait_for(votes[place - 1], session, timeout)
        except BaseException:
            if vote is not None:
                await self._withdraw(vote)
            raise

    async def current_auditor(self, *, timeout: float | None = None) -> str | None:
        while True:
            votes = await self._votes(timeout)
            if not votes:
                await self._base.cluster.require(timeout=timeout)
                return None
            path = f"{self._parent}/{votes[0]}"
            with suppress(MetadataNotFound):  # gone just now: look again
                return formats.decode_vote((await self._tree.get(path, timeout=timeout)).data, path)

    async def _votes(self, timeout: float | None) -> list[str]:
        """Names of all votes, oldest first."""
        try:
            listed = (await self._tree.children(self._parent, timeout=timeout)).names
        except MetadataNotFound:
            return []
        numbered = ((names.vote_number(name), name) for name in listed)
        return [name for _, name in sorted((number, name) for number, name in numbered if number is not None)]

    async def _cast(self, data: bytes, timeout: float | None) -> str:
        prefix = f"{self._parent}/{names.VOTE_PREFIX}"
        await self._base.prepare(timeout)
        await self._tree.ensure(self._parent, timeout=timeout)
        path = await self._tree.create(prefix, data, ephemeral=True, sequential=True, timeout=timeout)
        return await self._oldest_of_ours(path.rpartition("/")[2], timeout)

    async def _oldest_of_ours(self, newest: str, timeout: float | None) -> str:
        """A lost answer may have left an older vote behind, for which others would wait for ever: keep only that."""
        for vote in await self._votes(timeout):
            if vote == newest:
                break
            stat = await self._tree.exists(f"{self._parent}/{vote}", timeout=timeout)
            if stat is not None and stat.owner == self._tree.session_id:
                await self._withdraw(newest)
                return vote
        return newest

    async def _wait_for(self, vote: str, session: int, timeout: float | None) -> None:
        """Wait until this vote, the one before ours, changes. Not when `session` has ended meanwhile: our vote has gone
        with it, and only its next session watches."""
        changed = asyncio.Event()
        stat = await self._tree.exists(f"{self._parent}/{vote}", watch=changed.set, timeout=timeout)
        if stat is not None and self._tree.session_id == session:
            await changed.wait()

    async def _withdraw(self, vote: str) -> None:
        with suppress(MetadataError):  # else it goes with the session
            await self._tree.delete_own(f"{self._parent}/{vote}", self._tree.session_id)


class TreeAuditorship:
    """Implements `Auditorship`."""

    def __init__(self, tree: RetryingTree, path: str, bookie_id: str) -> None:
        self._tree = tree
        self._path = path
        self._session_id = tree.session_id
        self.bookie_id = bookie_id

    async def lost(self) -> None:
        while True:
            changed = asyncio.Event()
            try:
                stat = await self._tree.exists(self._path, watch=changed.set)
            except MetadataUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if stat is None or stat.owner != self._session_id:
                return
            await changed.wait()

    async def resign(self) -> None:
        await self._tree.delete_own(self._path, self._session_id)
