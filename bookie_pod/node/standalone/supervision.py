"""Keeping the bookies of a standalone cluster running: one that ends is started again.

Invariants
- Starts of one bookie are `FIRST_PAUSE` to `LONGEST_PAUSE` seconds apart: twice as long after each that failed, and
  after each bookie that came back and ended within `HEALTHY_SECONDS`. One that ran for longer begins anew.
- What ended is told with its exit code and the last line that it printed.
- What could not be started is told, and tried again; nothing ends the supervision but its cancellation, or the end of
  the cluster's own metadata service, without which nothing can be done.
- A bookie that was decommissioned is not started again: it would refuse.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from bookie_pod.node.standalone.bookie_process import BookieProcess
from bookie_pod.node.standalone.cluster import StandaloneCluster
from bookie_protocol.errors import PodkeeperError, ServerStartFailed

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
HEALTHY_SECONDS: Final = 60.0
"""Who runs for so long did not end for what ended it before."""
_LONGEST_LINE: Final = 300


async def keep_running(cluster: StandaloneCluster, tell: Callable[[str], None]) -> None:
    """Until cancelled. `tell` gets one line for each bookie that ended, came back or could not be started.

    Raises `ServerStartFailed` when the metadata service of the cluster failed.
    """
    async with asyncio.TaskGroup() as group:
        keepers = [group.create_task(_keep_one(cluster, bookie_id, tell)) for bookie_id in cluster.bookies]
        reason = await cluster.wait_broken()
        for keeper in keepers:
            keeper.cancel()
    raise ServerStartFailed(reason)


async def _keep_one(cluster: StandaloneCluster, bookie_id: str, tell: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    pause = 0.0
    while True:
        began = loop.time()
        bookie = cluster.bookies[bookie_id]
        ended = f"{bookie_id} ended with {_exit(await bookie.process.wait())}"
        if await cluster.was_decommissioned(bookie_id):
            tell(f"{ended}: it was decommissioned, so it is not started again")
            return
        short = loop.time() - began < HEALTHY_SECONDS
        pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE) if short else FIRST_PAUSE
        tell(f"{ended}{_last_line(bookie)}: starting it again in {pause:g} s")
        await asyncio.sleep(pause)
        try:
            await cluster.start_bookie(bookie_id)
        except (PodkeeperError, OSError) as error:
            tell(" ".join(str(error).split()))
        else:
            tell(f"{bookie_id} is back")


def _exit(code: int) -> str:
    """The exit code, with the name of the signal that it stands for."""
    if code < 0:
        with suppress(ValueError):
            return f"exit code {code} ({signal.Signals(-code).name})"
    return f"exit code {code}"


def _last_line(bookie: BookieProcess) -> str:
    """What it printed last; nothing if that cannot be read."""
    try:
        lines = bookie.output().splitlines()
    except OSError:
        return ""
    return f", its last line is {lines[-1].strip()[:_LONGEST_LINE]!r}" if lines else ""
