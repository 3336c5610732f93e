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
    ledger_search,
    ledgers,
    load,
    scrub,
    settings,
    streams,
)

CLUSTER: Final = (
    *cluster.RESOURCES,
    *ledgers.RESOURCES,
    *ledger_search.RESOURCES,
    *streams.RESOURCES,
    *decommission.RESOURCES,
    *cookies.RESOURCES,
    *autorecovery.RESOURCES,
    *facts.RESOURCES,
)
"""Resources of the cluster, not of one bookie: a process without a bookie serves these."""

RESOURCES: Final = (
    *settings.RESOURCES,
    *bookie.RESOURCES,
    *load.RESOURCES,
    *gc.RESOURCES,
    *scrub.RESOURCES,
    *index.RESOURCES,
    *CLUSTER,
)
