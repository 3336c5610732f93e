"""Starting the gateway without holding up its process: what it needs takes long to load."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.registry import Registry
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from bookie_pod.gateway.gateway import Gateway


async def start_gateway(
    config: BookieConfig,
    metadata: MetadataService,
    registry: Registry,
    memory: MemoryGovernor,
    tracer: Tracer | None = None,
) -> Sequence[Gateway]:
    """The started gateway, or nothing if the configuration asks for none. `tracer`: of its client."""
    if not config.gateway.enabled:
        return ()
    await asyncio.to_thread(importlib.import_module, "bookie_pod.gateway.gateway")
    from bookie_pod.gateway.gateway import Gateway

    gateway = Gateway(config, metadata, registry, memory, tracer)
    await gateway.start()
    return (gateway,)
