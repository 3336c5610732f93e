"""The number of files and connections that this process may have open.

Shells and container runtimes hand out a soft limit of 1024 for the sake of old programs, and a hard one that is what
the administrator means. Nothing here has such a program's trouble, so every process raises its soft limit to the hard
one.

Any thread; `raise_descriptor_limit` once, at the start of a process.
"""

from __future__ import annotations

import resource
from typing import Final

MOST: Final = 1 << 20
"""Maximum descriptors if there is no hard limit. Some programs walk through all descriptors when they start a child."""


FILES: Final = 32_768
"""Descriptors that are kept for files, at most: entry logs, journals, index files, databases."""


SIDE_PORTS: Final = 3
"""gRPC, HTTP, and HTTP of administrators."""
SIDE_MOST: Final = 1024
SIDE_SHARE: Final = 8


def side_connections() -> int:
    """Return the maximum connections of each of `SIDE_PORTS`: an eighth of all, if those are few."""
    return min(SIDE_MOST, _connections() // SIDE_SHARE)


def bookie_connections() -> int:
    """Return the maximum connections of the bookie's own port: what files and the other ports leave."""
    return _connections() - SIDE_PORTS * side_connections()


def _connections() -> int:
    """Return the connections of all ports that leave enough descriptors for files."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = MOST if soft == resource.RLIM_INFINITY else soft
    return limit - min(limit // 2, FILES)


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, and return what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
