"""The auditor's election: ephemeral sequential votes; the oldest one wins.

Invariants
- A session has one vote that counts; of several, after lost answers, the newer ones are taken back.
- A vote of a candidacy that ended is taken back, in the background if need be: an abandoned vote of a living session
  would keep all others from being auditor.
- A candidate waits only in the session that its vote belongs to: after an expired one it votes again.
- Each candidate watches only the vote right before its own: no herd when the auditor goes.
- The holder of the oldest vote wins. The data of `auditorelection` is for people only.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, section 10.7.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.under_replication import formats
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.tree.watching import RETRY_SECONDS


@dataclass(frozen=True, slots=True)
class Term:
    """The auditor, and the name of its term. Another term of the same bookie has another name."""

    bookie_id: str
    name: str


class AuditorElection:
    """One auditor in a cluster: the candidate with the oldest vote."""

    def __init__(self, base: UnderReplicationBase) -> None:
        self._base = base
        self._tree = base.tree
        self._parent = f"{base.path}/{formats.AUDITOR_ELECTION}"
        self._withdrawing: asyncio.Task[None] | None = None

    async def elect(self, bookie_id: str) -> Auditorship:
        """Vote, and wait until it is our turn; cancelling takes the vote back. One candidacy at a time in a session."""
        data = formats.encode_vote(bookie_id)
        vote: str | None = None
        if self._withdrawing is not None:
            self._withdrawing.cancel()  # this candidacy goes on with a vote that is still there
        try:
            while True:
                session = self._tree.session_id
                votes = await self._votes()
                if vote is None or vote not in votes:  # not yet cast, or gone with an expired session
                    vote = await self._cast(data)
                    continue
                place = votes.index(vote)
                if place == 0:
                    with suppress(MetadataNotFound):
                        await self._tree.overwrite(self._parent, data)
                    path = f"{self._parent}/{vote}"
                    stat = await self._tree.exists(path)
                    if stat is not None and stat.owner == session:
                        return Auditorship(self._tree, path, session, bookie_id)
                    vote = None  # the vote of a session that ended may still be listed, and will go
                    continue
                await self._wait_for(votes[place - 1], session)
        except BaseException:
            self._withdraw_all(self._tree.session_id)
            raise

    def _withdraw_all(self, session: int) -> None:
        self._withdrawing = self._tree.settle(lambda: self._withdraw(session), times=2)

    async def current_auditor(self) -> str | None:
        """Return the bookie id of the oldest vote; None: there is no auditor."""
        term = await self.current_term()
        return term.bookie_id if term is not None else None

    async def current_term(self) -> Term | None:
        """Return whose vote is the oldest; None: there is no auditor."""
        while True:
            votes = await self._votes()
            if not votes:
                await self._base.cluster.require()
                return None
            path = f"{self._parent}/{votes[0]}"
            with suppress(MetadataNotFound):  # gone just now: look again
                return Term(formats.decode_vote((await self._tree.get(path)).data, path), votes[0])

    async def _votes(self) -> list[str]:
        """Names of all votes, oldest first."""
        try:
            listed = (await self._tree.children(self._parent)).names
        except MetadataNotFound:
            return []
        numbered = ((formats.vote_number(name), name) for name in listed)
        return [name for _, name in sorted((number, name) for number, name in numbered if number is not None)]

    async def _cast(self, data: bytes) -> str:
        prefix = f"{self._parent}/{formats.VOTE_PREFIX}"
        await self._base.prepare()
        await self._tree.ensure(self._parent)
        made = await self._tree.create(prefix, data, ephemeral=True, sequential=True)
        return await self._oldest_of_ours(made.path.rpartition("/")[2])

    async def _oldest_of_ours(self, newest: str) -> str:
        """Lost answers may have left older votes behind, for which others would wait for ever: keep only the oldest."""
        session = self._tree.session_id
        ours = await self._ours(session)
        for vote in ours[1:]:
            await self._tree.delete_own(f"{self._parent}/{vote}", session)
        return ours[0] if ours else newest

    async def _ours(self, session: int) -> list[str]:
        """Return the votes of this session, oldest first."""
        ours = []
        for vote in await self._votes():
            stat = await self._tree.exists(f"{self._parent}/{vote}")
            if stat is not None and stat.owner == session:
                ours.append(vote)
        return ours

    async def _wait_for(self, vote: str, session: int) -> None:
        """Wait until this vote, the one before ours, changes. Not when `session` has ended meanwhile: our vote has gone
        with it, and only its next session watches."""
        changed = asyncio.Event()
        stat = await self._tree.exists(f"{self._parent}/{vote}", watch=changed.set)
        if stat is not None and self._tree.session_id == session:
            await changed.wait()

    async def _withdraw(self, session: int) -> None:
        """Take all votes of this session back, also one that was cast and not answered."""
        for vote in await self._ours(session):
            await self._tree.delete_own(f"{self._parent}/{vote}", session)


class Auditorship:
    """A won election; it ends with `resign`, or with the session that held the vote."""

    def __init__(self, tree: RetryingTree, path: str, session_id: int, bookie_id: str) -> None:
        self._tree = tree
        self._path = path
        self._session_id = session_id
        self.bookie_id = bookie_id
        self.term = path.rpartition("/")[2]
        """The name of it, see `Term`."""

    async def lost(self) -> None:
        """Return when the vote is gone. While its state is unknown, it is not."""
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
        """Take the vote back, so that the next candidate wins. Calling it again is fine."""
        try:
            await self._tree.delete_own(self._path, self._session_id)
        except BaseException:
            self._tree.abandon(self._path, self._session_id)
            raise
