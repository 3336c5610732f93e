"""Options of a client, with their units. The reference client's key stands behind each default that equals
its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie_protocol.errors import BadRequest
from bookie_protocol.wire.framing import DEFAULT_MAX_FRAME_SIZE

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Immutable; one object may serve many clients."""

    protocol_version: int = 3
    """Wire protocol spoken with bookies: 3 (protobuf) or 2 (binary, `useV2WireProtocol`)."""
    connect_timeout: float = 10.0
    """Seconds until a connection must stand (`clientConnectTimeoutMillis`)."""
    add_timeout: float = 5.0
    """Seconds until a bookie must have answered an add (`addEntryTimeoutSec`)."""
    read_timeout: float = 5.0
    """Seconds until a bookie must have answered a read (`readEntryTimeoutSec`)."""
    reconnect_delay: float = 0.1
    """Seconds after a failed connection during which requests to that bookie fail at once; doubles at each
    failure."""
    max_reconnect_delay: float = 5.0
    """Upper limit of that delay, in seconds."""
    max_frame_size: int = DEFAULT_MAX_FRAME_SIZE
    """Bytes of the largest frame, length word included (`nettyMaxFrameSizeBytes`); the bookies' limit must
    match."""

    write_window_entries: int = 10_000
    """Adds of one ledger that may wait for their acknowledgement; beyond it `append` and `submit` wait."""
    write_window_bytes: int = 32 * MIB
    """Bytes of those adds."""
    write_linger_bytes: int = 64 * MIB
    """Bytes of acknowledged adds of one ledger that a slow bookie has not answered yet."""
    read_window_entries: int = 1_000
    """Reads of one range that may be under way or wait to be consumed."""
    read_window_bytes: int = 16 * MIB
    """Bytes of those entries, as far as the ledger's average entry size tells."""

    delay_ensemble_change: bool = False
    """Replace a failed bookie only when the ack quorum is out of reach (`delayEnsembleChange`)."""
    max_ensemble_changes: int | None = None
    """Ensemble changes of one ledger before its writer gives up; None: no limit (`maxNumEnsembleChanges`)."""
    degraded_retry_interval: float = 1.0
    """Seconds between attempts to replace, or to reach again, a failed bookie for which there was no
    spare."""

    def __post_init__(self) -> None:
        if self.protocol_version not in (2, 3):
            raise BadRequest(f"protocol_version {self.protocol_version} is not 2 or 3")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise BadRequest(f"client option {name} must be positive, not {getattr(self, name)}")


_POSITIVE: Final = (
    "connect_timeout",
    "add_timeout",
    "read_timeout",
    "reconnect_delay",
    "max_reconnect_delay",
    "max_frame_size",
    "write_window_entries",
    "write_window_bytes",
    "write_linger_bytes",
    "read_window_entries",
    "read_window_bytes",
    "degraded_retry_interval",
)
