"""The ephemeral node that says that this process takes part: a coordinator that waits for it goes on when it is gone.

Invariants
- A node is ours only if our session owns it: others may delete ours, and make one of its name. Then we make another.
- Where the coordinator's parent of such nodes is missing, no broker of Pulsar knows migrations: we wait for it.
- Our node is deleted in one transaction with a check that the flag is the one that we are ready for, and in the session
  in which the writes before were sent: none of them is carried out later.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from bookie_protocol.errors import MetadataNotFound, MetadataRefused, MetadataVersionConflict, SessionEnded
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.migrating.flag import Migration
from bookie_protocol.metadata_service.migrating.flag_reader import LONG_REMINDER_S
from bookie_protocol.metadata_service.migrating.lines import Lines
from bookie_protocol.metadata_service.migrating.own_nodes import SourceTree, below, nodes
from bookie_protocol.metadata_service.migrating.proofs import Proof, Proofs, ProvingWatch

PAUSE_S: Final = 0.5
"""Seconds before another one is made, if others deleted a new one at once."""

_log = get_logger(__name__)


class OurNode:
    """The node of one participant, below `scope`. `hear`: called when a look is due."""

    def __init__(self, source: SourceTree, scope: str, proofs: Proofs, hear: Callable[[], None], lines: Lines) -> None:
        self._source = source
        self._scope = scope
        self._hear = hear
        self._lines = lines
        self._timeout = source.session.default_timeout
        self._path = ""
        """Empty: it was not made yet, or is to go."""
        self._watch = ProvingWatch(proofs, hear)
        """Its watch, as long as it is there."""
        self.is_waited_for = False
        """True if it proves, as long as it is there, that the metadata have not moved."""
        self.unready_in: int | None = None
        """The session of ZooKeeper in which the coordinator may have to wait for us: a node of ours may be there."""

    @property
    def proofs(self) -> list[Proof]:
        """Return the proofs that it gives at present."""
        return [self._watch.proof] if self.is_waited_for else []

    @property
    def has_stayed(self) -> bool:
        """Return True if nothing has happened to it since it was looked at."""
        return self._watch.proof.holds

    def proves_nothing(self) -> None:
        self.is_waited_for = False
        self._watch.proof.end()

    def leave(self) -> None:
        """Rely on it no more."""
        self._path = ""
        self.proves_nothing()

    async def is_there(self, session_id: int) -> bool:
        """Return whether it exists, and watch it, because other clients may delete it.

        A read that finds none leaves no watch, as `exists` would: the next node has another name.
        """
        if not self._path:
            return False
        try:
            self._watch.renewed()
            node = await self._source.get(self._path, watch=self._watch, timeout=self._timeout)
        except (MetadataNotFound, MetadataRefused):  # ours may be read by all
            return False
        return node.stat.owner == session_id

    async def make(self, session_id: int) -> bool:
        """Make it, where that can be done, and return whether it exists. Otherwise each look tries it again."""
        parent = self._scope + flag.PARTICIPANTS
        try:
            stat = await self._source.exists(parent, watch=self._hear, timeout=self._timeout)
            if stat is None or stat.owner:  # an ephemeral one, which others may make, takes no children
                return False
            self.unready_in = session_id
            made = await self._source.create(
                self._scope + flag.PARTICIPANT,
                b"",
                ephemeral=True,
                sequential=True,
                open_to_all=True,
                session_id=session_id,
                timeout=self._timeout,
            )
        except MetadataNotFound:
            return False
        except MetadataRefused as error:
            event = "a migration of the metadata to Oxia would not wait for this process"
            self._lines.write(_log.warning, event, every=LONG_REMINDER_S, reason=str(error))
            return False
        self._path = made.path
        if await self.is_there(session_id):
            return True
        self.leave()
        asyncio.get_running_loop().call_later(PAUSE_S, self._hear)  # it is gone already
        return False

    async def all_of(self, session_id: int) -> list[str]:
        """Return our nodes, of which a lost answer may have left two."""
        parent = self._scope + flag.PARTICIPANTS
        await self._source.sync(parent, timeout=self._timeout)
        there = await nodes(self._source, await below(self._source, parent, self._timeout), self._timeout)
        return [path for path, node in there.items() if node.stat.owner == session_id]

    async def delete(self, ours: Sequence[str], migration: Migration, session_id: int) -> bool:
        """Delete our nodes if the flag has not changed. Return False if it has, or one of them is gone already.

        What it raises leaves open whether they were deleted.
        """
        if not ours:
            return True
        assert migration.written is not None  # it was read
        checked, version = self._scope + flag.FLAG, migration.written[1]
        try:
            await self._source.delete_while(ours, checked, version, session_id=session_id, timeout=self._timeout)
        except (MetadataNotFound, MetadataVersionConflict, SessionEnded):
            return False
        return True
