"""Fencing: every bookie of the last ensemble is told to refuse the old writer, and asked for its last entry.

Invariants
- Behind `fence` the old writer can never again collect Qa acknowledgements in any write set: the vote was
  covered, by bookies that made their fence durable before they answered.
- The LAC that comes out was confirmed by the writer, or by a recovery before this one: nothing below it needs
  to be recovered. It is a start, not the end.

Event loop only.

Source: reference client protocol, sections 14.2 to 14.4.
"""

from __future__ import annotations

from bookie_client.reading.ballot import Ballot
from bookie_client.reading.lac import least_lac, vote_failure
from bookie_client.reading.lac_vote import LacVote, LastEntry, VoteOutcome
from bookie_client.recovery.parts import RecoveryParts
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import DigestMismatch, PodkeeperError


class Fencing:
    """One round; `close` it when the recovery ends, because bookies that answer late are fenced all the same."""

    def __init__(self, parts: RecoveryParts) -> None:
        self._parts = parts
        self._vote = LacVote(parts.quorums)
        self._ballot = Ballot(
            {position: self._fence(bookie) for position, bookie in enumerate(parts.metadata.last_ensemble)}
        )

    async def run(self) -> int:
        """Fence; returns the highest LAC that is known then.

        Raises `Unauthorized` at once; else, when too few bookies could be fenced, the last error.
        """
        async for position, answer in self._ballot:
            self._count(position, answer)
            if self._vote.outcome is not VoteOutcome.OPEN:
                break
        if self._vote.outcome is not VoteOutcome.COVERED:
            raise vote_failure(self._parts.metadata, self._vote, "it cannot be fenced")
        return max(self._vote.lac, least_lac(self._parts.metadata))

    def exact_length(self, lac: int) -> int | None:
        """Payload bytes of entries 0 to `lac`, if one of the last entries told."""
        return self._vote.exact_length(lac)

    @property
    def length_heard(self) -> int:
        """What the reference would take for the length, when nothing exact can be had."""
        return self._vote.length_heard

    async def close(self) -> None:
        """Give up what is not answered."""
        await self._ballot.close()

    def _count(self, position: int, answer: LastEntry | PodkeeperError) -> None:
        if isinstance(answer, DigestMismatch):
            self._vote.damaged(position, answer)
        elif isinstance(answer, PodkeeperError):
            self._vote.failed(position, answer)
        else:
            self._vote.served(position, answer)

    async def _fence(self, bookie: str) -> LastEntry:
        parts = self._parts
        answer = await parts.context.operations.read_entry(
            bookie, parts.ledger_id, LAST_ENTRY, fence_key=parts.master_key, high_priority=True
        )
        return LastEntry.of(parts.digest, parts.ledger_id, answer.entry)
