"""The sanity test: a small ledger on this very bookie, written, read back, deleted.

Source: reference bookie behaviour, section 8.3.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.admin.client import AdminClient
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import PodkeeperError

if TYPE_CHECKING:
    from bookie_client import Client

_log = structlog.get_logger(__name__)

ENTRIES: Final = 10
REQUEST_S: Final = 1.0
"""Seconds that each add, read and connect may take."""


class SanityTest:
    """One at a time; others wait for their turn. Event loop only."""

    def __init__(self, client: AdminClient, bookie_id: str) -> None:
        self._client = client
        self._bookie_id = bookie_id
        self._turn = asyncio.Lock()

    async def run(self) -> bool:
        """Whether all went well; if not, the log says what did not."""
        async with self._turn:
            options = replace(
                await self._client.options(),
                add_timeout=REQUEST_S,
                read_timeout=REQUEST_S,
                connect_timeout=REQUEST_S,
            )
            from bookie_client import Client
            from bookie_client.placement.local_bookie import LocalBookiePlacement

            placement = LocalBookiePlacement(self._bookie_id)
            try:
                async with Client(self._client.metadata, options, placement=placement) as client:
                    problem = await _try(client)
            except PodkeeperError as error:
                problem = str(error)
        if problem is not None:
            _log.warning("sanity test failed", reason=problem)
        return problem is None


async def _try(client: Client) -> str | None:
    """What is wrong; None: nothing."""
    written = [f"entry-{number}".encode() for number in range(ENTRIES)]
    async with client.create(ensemble=1, write_quorum=1, ack_quorum=1, digest=DigestType.MAC) as ledger:
        ledger_id = ledger.ledger_id
        try:
            for payload in written:
                await ledger.append(payload)
            await ledger.close()
            async with client.open(ledger_id, digest=DigestType.MAC) as reader:
                if reader.last_add_confirmed != ENTRIES - 1:
                    return f"the last entry confirmed is {reader.last_add_confirmed}, not {ENTRIES - 1}"
                read = [entry.payload async for entry in reader.entries()]
        finally:
            await client.delete(ledger_id)
    return None if read == written else "what was read is not what was written"
