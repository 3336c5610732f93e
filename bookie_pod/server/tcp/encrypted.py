"""Connections with TLS. Each has buffers that nobody else counts, however little its client wants, so they are counted
here: as few bytes as a handshake takes, until the client sends much at once, from then on as many as that may take.
Together they are at most what clients may hold once more (`MemoryGovernor.limit`). Beyond, those go that have sent
nothing for longest: who comes back is served again, and who comes now may have something to say.

Event loop only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

SMALL_BYTES: Final = 128 * 1024
"""Of one connection that has ended its handshake and receives `SMALL_READ` bytes at a time at most."""
SMALL_READ: Final = 32 * 1024
LARGE_BYTES: Final = 512 * 1024
"""Of one connection that has received more: 256 KiB to receive into, and as much before it is decrypted; of one that
takes its answers slowly once more as much (`Connection` gives TLS no more)."""
FEWEST: Final = 64
"""Connections that may have received much, however little clients may hold."""
_AT_A_TIME: Final = 16
"""Such a part of the bytes goes together: to find whose takes a look at all."""


class EncryptedConnections:
    """All of a bookie's. `limit`: bytes that clients may hold."""

    def __init__(self, limit: int) -> None:
        self.limit = max(FEWEST * LARGE_BYTES, limit)
        self.nbytes = 0
        self._connections: dict[Connection, int] = {}
        """And the bytes that each counts as."""
        self.sent_away = 0

    def __len__(self) -> int:
        return len(self._connections)

    def came(self, conn: Connection) -> None:
        """It has TLS from now on."""
        self._count(conn, SMALL_BYTES)

    def grew(self, conn: Connection) -> None:
        """It has received more than `SMALL_READ` at once."""
        self._count(conn, LARGE_BYTES)

    def gone(self, conn: Connection) -> None:
        """It is closed; it may never have had TLS."""
        self.nbytes -= self._connections.pop(conn, 0)

    def _count(self, conn: Connection, nbytes: int) -> None:
        self.nbytes += nbytes - self._connections.get(conn, 0)
        self._connections[conn] = nbytes
        if self.nbytes > self.limit:
            self._make_room(conn)

    def _make_room(self, newest: Connection) -> None:
        enough = self.limit - self.limit // _AT_A_TIME
        for conn in sorted(self._connections, key=lambda conn: conn.received_at):
            if self.nbytes <= enough:
                return
            if conn is newest:
                continue
            self.sent_away += 1
            reason = (
                f"connections with TLS take more than {self.limit} bytes (clientMemoryMb), and it has sent nothing for"
                " longest"
            )
            conn.context.complaints.warning("connection closed", peer=conn.peer, reason=reason)
            conn.drop()
