"""A check of records that others may have written: each member, however deep, has the type that its class says.

Pure; any thread.
"""

from __future__ import annotations

from typing import Any

import msgspec


def is_well_typed(record: Any) -> bool:
    """Return True if all members of a dataclass, and of those in it, have their types."""
    try:
        msgspec.convert(msgspec.to_builtins(record), type(record))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True
