"""The share of the processors that a background process claims: less than what serves clients beside it.

On Linux niceness counts among the threads of one scheduling group. Where the kernel makes a group of each session
(`/proc/self/autogroup`) the group is made nicer too. In a container it is the container's share of processors that
counts towards other pods.

Threads: the main thread, before it starts others, which inherit what it has.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

_AUTOGROUP: Final = "/proc/self/autogroup"


def yield_processors(niceness: int) -> None:
    """Make this process at least as nice as `niceness`, 0 to 19. What the machine does not offer is left out."""
    if niceness <= os.getpriority(os.PRIO_PROCESS, 0):
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if os.getsid(0) != os.getpid():
        return  # the session belongs to another process, such as a shell
    # Not a file that is made: without grouping by session it does not exist.
    with suppress(OSError), open(_AUTOGROUP, "r+") as group:
        group.write(str(niceness))
