"""Keeping the bookies of a standalone cluster running: one that ends is started again.

Invariants
- Starts of one bookie are `FIRST_PAUSE` to `LONGEST_PAUSE` seconds apart, twice as long after each that failed.
- What could not be started is told, and tried again; nothing ends the supervision but its cancellation.
- A bookie that was decommissioned is not started again: it would refuse.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bookie_pod.node.standalone import StandaloneCluster
from bookie_protocol.errors import PodkeeperError

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0


async def keep_running(cluster: StandaloneCluster, tell: Callable[[str], None]) -> None:
    """Until cancelled. `tell` gets one line for each bookie that ended, came back or could not be started."""
    async with asyncio.TaskGroup() as group:
        for bookie_id in cluster.bookies:
            group.create_task(_keep_one(cluster, bookie_id, tell))
        await asyncio.Event().wait()


async def _keep_one(cluster: StandaloneCluster, bookie_id: str, tell: Callable[[str], None]) -> None:
    pause = FIRST_PAUSE
    while True:
        code = await cluster.bookies[bookie_id].process.wait()
        if await cluster.was_decommissioned(bookie_id):
            tell(f"{bookie_id} ended with exit code {code}: it was decommissioned, so it is not started again")
            return
        tell(f"{bookie_id} ended with exit code {code}: starting it again")
        try:
            await asyncio.sleep(pause)
            await cluster.start_bookie(bookie_id)
        except (PodkeeperError, OSError) as error:
            tell(" ".join(str(error).split()))
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            tell(f"{bookie_id} is back")
            pause = FIRST_PAUSE
