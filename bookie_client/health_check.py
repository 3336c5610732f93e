"""The cluster's switch over quarantine: while it is off, this client's quarantined bookies are released.

Invariants
- Nobody is asked while no bookie is in quarantine. A quarantine that begins is looked at at once, and as long as it
  lasts every `quarantine_interval`.
- A metadata service that cannot tell changes nothing.
- Every quarantine is told in the log once.

Event loop only.

Source: reference client protocol, section 17.1; metadata layout, section 3.1 (`disableHealthCheck`).
"""

from __future__ import annotations

import asyncio

from bookie_client.connection.health import BookieHealth
from bookie_client.logs import get_logger
from bookie_protocol.errors import MetadataError
from bookie_protocol.metadata_service.interface import ClusterMetadata

_log = get_logger(__name__)


async def follow_health_check(cluster: ClusterMetadata, health: BookieHealth, interval: float) -> None:
    """Until it is cancelled; `interval` in seconds."""
    while True:
        await health.quarantine_began.wait()
        health.quarantine_began.clear()
        told: frozenset[str] = frozenset()
        while quarantined := health.quarantined():
            if new := quarantined - told:
                _log.warning("many errors: bookies are kept out of new ensembles", bookies=sorted(new))
            told = quarantined
            try:
                enabled = await cluster.is_health_check_enabled()
            except MetadataError:
                enabled = True
            if not enabled:
                _log.info("health check is disabled: bookies released from quarantine", bookies=sorted(quarantined))
                for bookie in quarantined:
                    health.release(bookie)
                break
            await _began_again(health, interval)


async def _began_again(health: BookieHealth, interval: float) -> None:
    """Wait for the next quarantine, at most `interval` seconds."""
    try:
        async with asyncio.timeout(interval):
            await health.quarantine_began.wait()
    except TimeoutError:
        return
    health.quarantine_began.clear()
