"""An API server by itself, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.api.transport import Transport
from tests.support.fake_kubernetes.api_server import ApiServer, serving
from tests.support.fake_kubernetes.store import Store

NOW = 1_800_000_000.0


@asynccontextmanager
async def kubernetes_alone(timeout_s: float = 5.0) -> AsyncIterator[tuple[Kubernetes, ApiServer]]:
    async with serving(Store(lambda: NOW)) as server:
        kubernetes = Kubernetes(Transport(server.configuration(), timeout_s=timeout_s))
        try:
            yield kubernetes, server
        finally:
            await kubernetes.close()
