"""The whole admin API, as one table."""

from __future__ import annotations

from typing import Final

from bookie_pod.server.http.admin import (
    autorecovery,
    bookie,
    cluster,
    decommission,
    gc_control,
    gc_logs,
    gc_state,
    integrity,
    ledgers,
    settings,
)

RESOURCES: Final = (
    *settings.RESOURCES,
    *bookie.RESOURCES,
    *gc_control.RESOURCES,
    *gc_state.RESOURCES,
    *gc_logs.RESOURCES,
    *integrity.RESOURCES,
    *cluster.RESOURCES,
    *ledgers.RESOURCES,
    *decommission.RESOURCES,
    *autorecovery.RESOURCES,
)
