"""Traffic classes of reads: whose reads a bookie serves first. An extension of Podkeeper; other bookies ignore it.

`wire.traffic_class` says how a request tells its class. Any thread.
"""

from __future__ import annotations

from enum import StrEnum


class TrafficClass(StrEnum):
    """The class of the reads of one client."""

    ONLINE = "online"
    """Somebody waits for them. What every client is that says nothing."""
    BATCH = "batch"
    """Those of jobs: served behind everything else."""
