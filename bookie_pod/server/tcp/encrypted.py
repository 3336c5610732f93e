"""Connections with TLS. Each has buffers that nobody counts, however little its client wants, so there are at most as
many as take what clients may hold once more (`MemoryGovernor.limit`). Of more those go that have sent nothing for
longest: who comes back is served again, and who comes now may have something to say.

Event loop only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

TLS_BYTES: Final = 512 * 1024
"""Of one connection that has received large frames: 256 KiB to receive into, and as much before it is decrypted; of
one that takes its answers slowly once more as much (`Connection` gives TLS no more). After a handshake it is a tenth
of that."""
FEWEST: Final = 64
_AT_A_TIME: Final = 16
"""Such a part of them goes together: to find them takes a look at all."""


class EncryptedConnections:
    """All of a bookie's. `limit`: bytes that clients may hold."""

    def __init__(self, limit: int) -> None:
        self.most = max(FEWEST, limit // TLS_BYTES)
        self._connections: set[Connection] = set()
        self.sent_away = 0

    def __len__(self) -> int:
        return len(self._connections)

    def came(self, conn: Connection) -> None:
        """It has TLS from now on."""
        if len(self._connections) >= self.most:
            self._make_room()
        self._connections.add(conn)

    def gone(self, conn: Connection) -> None:
        """It is closed; it may never have had TLS."""
        self._connections.discard(conn)

    def _make_room(self) -> None:
        silent = sorted(self._connections, key=lambda conn: conn.received_at)
        for conn in silent[: max(1, self.most // _AT_A_TIME)]:
            self._connections.discard(conn)
            self.sent_away += 1
            reason = f"{self.most} connections have TLS, and it has sent nothing for longest"
            conn.context.complaints.warning("connection closed", peer=conn.peer, reason=reason)
            conn.drop()
