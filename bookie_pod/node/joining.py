"""A bookie joins its cluster: it is registered as what it is, writable or read-only.

Invariants
- Whether it is being decommissioned is asked before it is registered: one that is joins read-only, so that no client
  ever sees it writable.
- The mode speaks for the registration from then on, and no more once the bookie leaves.

Threads: event loop.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from bookie_pod.config.model import BookieConfig
from bookie_pod.node.identity.bookie_id import BookieAddressOptions
from bookie_pod.node.identity.leaving import Leaving
from bookie_pod.node.identity.published import service_info
from bookie_pod.node.live_status import LiveStatus
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.processes.background import BackgroundTasks
from bookie_pod.node.registration import RegistrationManager
from bookie_protocol.metadata_service.interface import MetadataService


async def join_cluster(
    config: BookieConfig,
    *,
    metadata: MetadataService,
    bookie_id: str,
    instance_id: str | None,
    address: BookieAddressOptions,
    http_port: int | None,
    mode: BookieMode,
    status: LiveStatus,
    tasks: BackgroundTasks,
    undo: AsyncExitStack,
) -> RegistrationManager:
    """Register the bookie in the cluster of this instance id; `undo` takes it back. `http_port`: that of its HTTP
    server, which has one by now also where any would do. Raises `RegistrationFailed`, `MetadataError`."""
    info = await service_info(config, address, http_port)
    leaving = Leaving(metadata, bookie_id, mode)
    if await leaving.look() or not leaving.is_known:
        tasks.run(leaving.follow())
    registration = status.registration = RegistrationManager(metadata, bookie_id, info, status.fail)
    read_only = mode.read_only
    await registration.register(read_only=read_only, instance_id=instance_id)
    undo.push_async_callback(registration.deregister)
    mode.attach(registration, announced_read_only=read_only)
    undo.callback(mode.detach)
    return registration
