"""Why the process ended, where Kubernetes shows it: the file of a container's `terminationMessagePath`.

Invariants
- Nothing is created: the file is there only in a container, and Kubernetes made it.
- It gets the one line that standard error gets too, and a fault of it changes nothing about the process's end.

Any thread.
"""

from __future__ import annotations

import os
import stat
from typing import Final

PATH: Final = "/dev/termination-log"
MAX_BYTES: Final = 4096
"""What Kubernetes shows of it."""


def tell_kubernetes(line: str, path: str | None = None) -> None:
    """Replace the content of the file, if it is there and may be written."""
    data = line.encode("utf-8", "replace")[: MAX_BYTES - 1] + b"\n"
    try:
        file = os.open(path or PATH, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return  # no container
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, 0)
            os.write(file, data)
    except OSError:
        pass  # standard error has it
    finally:
        os.close(file)
