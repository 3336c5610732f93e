"""Which dialect speaks a protocol version. Any thread."""

from __future__ import annotations

from bookie_client.connection.dialect import Dialect
from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.dialect_v3 import V3Dialect


def dialect(version: int) -> Dialect:
    """The dialect of protocol version 2 or 3."""
    return V3Dialect() if version == 3 else V2Dialect()
