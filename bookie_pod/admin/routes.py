"""The whole admin API, as one table."""

from __future__ import annotations

from typing import Final

from bookie_pod.admin import (
    autorecovery,
    bookie,
    cluster,
    cookies,
    decommission,
    facts,
    gc,
    index,
    ledgers,
    scrub,
    settings,
)

CLUSTER: Final = (
    *cluster.RESOURCES,
    *ledgers.RESOURCES,
    *decommission.RESOURCES,
    *cookies.RESOURCES,
    *autorecovery.RESOURCES,
    *facts.RESOURCES,
)
"""What is about the cluster, and not about one bookie: a process without a bookie serves these."""

RESOURCES: Final = (
    *settings.RESOURCES,
    *bookie.RESOURCES,
    *gc.RESOURCES,
    *scrub.RESOURCES,
    *index.RESOURCES,
    *CLUSTER,
)
