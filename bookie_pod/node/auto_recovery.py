"""Auto-recovery inside a bookie (`autoRecoveryDaemonEnabled`).

Invariants
- It shares the bookie's metadata service and event loop, and reaches bookies, this one among them, by connections of
  its own, as any client does.
- It never ends the bookie that it runs in: what does not work is begun again, and told by the probes, logs and metrics.
- It is stopped before the bookie leaves the metadata service, so that locks and the vote are given back.

Event loop only.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.registry import Registry
from bookie_protocol.errors import MetadataError
from bookie_protocol.metadata_service.interface import MetadataService

if TYPE_CHECKING:
    from bookie_pod.autorecovery.start import RunningAutoRecovery

RETRY_S: Final = 5.0

_log = structlog.get_logger(__name__)


async def start_auto_recovery(
    config: BookieConfig,
    metadata: MetadataService,
    registry: Registry,
    bookie_id: str,
    run: Callable[[Awaitable[None]], None],
) -> RunningAutoRecovery | None:
    """None if the configuration asks for none. What it needs takes a while to load. `run` gets its watching."""
    if not config.auto_recovery.daemon_enabled:
        return None
    await asyncio.to_thread(importlib.import_module, "bookie_pod.autorecovery.start")
    from bookie_pod.autorecovery.start import start

    while True:
        try:
            running = await start(config, metadata, registry, bookie_id, embedded=True)
        except MetadataError as error:
            _log.warning("auto-recovery cannot start yet", reason=str(error))
            await asyncio.sleep(RETRY_S)
            continue
        run(_watch(running))
        return running


async def _watch(running: RunningAutoRecovery) -> None:
    """The session is the bookie's: what becomes of it the registration decides."""
    while True:
        await running.watch()
        await asyncio.sleep(1.0)
