"""The sanity test: a small ledger on this very bookie, written, read back, deleted; and the gauge `SERVER_SANITY`.

The gauge (`sanityCheckMetricsEnabled`) shows a test that is made every minute.

Invariants
- The gauge is 1 after a test that passed, and of a read-only bookie, which has nothing wrong with it; 0 after one that
  failed or took too long; -1 until the first has ended.
- One test at a time; none fails the bookie.

Threads: event loop; the gauge may be read by any.

Source: docs/internals/bookie-behaviour.md, sections 8.3 and 11.3; apache/bookkeeper#3924.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.admin.client import ClusterClient
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import PodkeeperError

if TYPE_CHECKING:
    from bookie_client import Client


_log = structlog.get_logger(__name__)

ENTRIES: Final = 10
REQUEST_S: Final = 1.0
"""Seconds that each add, read and connect may take."""
_log = structlog.get_logger(__name__)
INTERVAL_S: Final = 60.0
TIMEOUT_S: Final = 60.0


class SanityTest:
    """One at a time; others wait for their turn. Event loop only."""

    def __init__(self, client: ClusterClient, bookie_id: str) -> None:
        self._client = client
        self._bookie_id = bookie_id
        self._turn = asyncio.Lock()

    async def run(self) -> bool:
        """Run the test. Return True if all went well; if not, the log says why."""
        async with self._turn:
            options = replace(
                await self._client.options(),
                add_timeout=REQUEST_S,
                read_timeout=REQUEST_S,
                connect_timeout=REQUEST_S,
            )
            from bookie_client import Client
            from bookie_client.placement.random_choice import LocalBookiePlacement

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
    """Return the problem; None if there is none."""
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


class Sanity(IntEnum):
    """Values of the gauge."""

    UNKNOWN = -1
    FAILED = 0
    PASSED = 1


class SanityWatch:
    """`test` says whether all went well; `read_only` whether there is nothing to try."""

    def __init__(
        self,
        test: Callable[[], Awaitable[bool]],
        read_only: Callable[[], bool],
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.value = Sanity.UNKNOWN
        self._test = test
        self._read_only = read_only
        self._interval_s = interval_s
        self._timeout_s = timeout_s

    async def run(self) -> None:
        """Run the test at intervals until cancelled."""
        while True:
            self.value = Sanity.PASSED if await self._passes() else Sanity.FAILED
            await asyncio.sleep(self._interval_s)

    async def _passes(self) -> bool:
        if self._read_only():
            return True
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._test()
        except TimeoutError:
            _log.warning("sanity test failed", reason=f"no result within {self._timeout_s:g} s")
        except Exception as error:  # whatever is wrong, it is this gauge that tells
            _log.exception("sanity test failed", reason=str(error))
        return False
