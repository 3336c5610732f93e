"""A metadata service that a bookie asks about ledgers (`bookie_pod.server.tcp.metadata_questions`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.keys import creation_token_of, life_of
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.server_rig import ServerRig, answers

NEWEST = 100
"""The newest ledger that there was when the bookie was new."""
YOUNGER = NEWEST + 1
NOW = life_of(2)


class Metadata:
    """What the metadata service says of each ledger, when it is let."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.closed: set[int] = set()
        self.life = NOW
        """Of all ledgers."""
        self.ensembles: dict[int, tuple[str, ...]] = {0: ("b1",)}
        self.write_quorum = 1
        self.password: bytes | None = None
        self.down = False
        self.asked: list[int] = []
        self.at_once = self.most_at_once = 0
        """Questions under way, and the most that ever were."""
        self.answers = asyncio.Event()
        self.answers.set()

    async def look(self, ledger_id: int) -> LedgerMetadata | None:
        self.asked.append(ledger_id)
        found = self._metadata(ledger_id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.answers.wait()
        finally:
            self.at_once -= 1
        if self.down:
            raise MetadataUnavailable("nobody answers")
        return found

    def _metadata(self, ledger_id: int) -> LedgerMetadata | None:
        token = creation_token_of(self.life) if self.life else 0
        size, quorum = len(self.ensembles[0]), self.write_quorum
        metadata = LedgerMetadata(ledger_id, size, quorum, quorum, self.ensembles, creation_token=token)
        if self.password is not None:
            metadata = replace(metadata, password=self.password, digest_type=DigestType.CRC32C)
        if ledger_id in self.open:
            return metadata
        return metadata.closed(9, 90) if ledger_id in self.closed else None


async def ask(rig: ServerRig, *frames: bytes) -> list[bytes]:
    """Send all at once; the answers, as the journal acknowledges."""
    conn, transport = rig.connect()
    conn.data_received(b"".join(frames))
    return await answers(rig, transport, len(frames))
