"""Limits of the control groups that this process is in: its container's, its systemd unit's, and those above it.

The kernel names the group of a process in `/proc/self/cgroup`. Within a container it is usually `/`, and the limits of
the container are at the top of what is mounted; on a machine it is a path such as `/system.slice/bookie.service`.

Reads a few small files of the kernel; any thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

_MOUNT: Final = "sys/fs/cgroup"


def group_limits(controller: str, newer: str, older: str, root: str = "/") -> list[int]:
    """Return the limits that the groups of this process set; [] if none is known.

    `newer` and `older` are the names of the file in versions 2 and 1. `root` is the folder with the kernel's files.
    """
    groups = _groups(root)
    places = [
        *(os.path.join(_MOUNT, above, newer) for above in _upwards(groups.get("", ""))),
        *(os.path.join(_MOUNT, controller, above, older) for above in _upwards(groups.get(controller, ""))),
    ]
    found = (_limit(os.path.join(root, place)) for place in places)
    return [limit for limit in found if limit is not None]


def _groups(root: str) -> dict[str, str]:
    """Return the group of this process in each hierarchy, by controller; "" is version 2."""
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8", errors="replace") as file:
            lines = file.read(65_536).splitlines()
    except OSError:
        return {}
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {controller: path for _, controllers, path in parts for controller in controllers.split(",")}


def _upwards(group: str) -> Iterator[str]:
    """Yield the group, then each one above it, as paths below the mount."""
    path = group.strip("/")
    while path and ".." not in path.split("/"):  # a group outside what the container sees begins with `/..`
        yield path
        path = os.path.dirname(path)
    yield ""


def _limit(path: str) -> int | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(64).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) > 0 else None  # "max" means no limit
