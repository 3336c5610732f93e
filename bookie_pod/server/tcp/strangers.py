"""What bounds connections that cost much before they ask for anything: `Strangers`, and those with TLS
(`EncryptedConnections`).

Strangers are clients that are not known yet: those that have to authenticate or to use TLS first, or are in the middle
of it. Whoever can reach the port is one of them, so what one takes is little, and what all of them take is bounded:
frames of at most `FRAME_BYTES`, `FRAMES` of them, `SECONDS` altogether, and `MOST` connections at the same time, of
which `MOST_ENCRYPTED` have TLS or are on the way to it, and no more than a half of all those who may. Beyond that it is
the one that has been here for longest that goes: it has had its time, and who comes now may be somebody.

Each connection with TLS has buffers that nobody else counts, however little its client wants, so they are counted here:
as few bytes as a handshake takes, until the client sends much at once, from then on as many as that may take. Together
they are at most what clients may hold once more (`MemoryGovernor.limit`). Beyond, those go that have sent nothing for
longest: who comes back is served again, and who comes now may have something to say.

Threads: event loop only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import ProtocolViolation

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

MOST: Final = 4096
"""Connections at the same time."""
MOST_ENCRYPTED: Final = 512
"""Each has some 100 KB of buffers, which clients' memory does not count."""
SECONDS: Final = 30.0
"""Until a client is known."""
FRAMES: Final = 1000
"""Of one client. Requests that it sends too early are answered, so that it learns what it lacks."""
FRAME_BYTES: Final = 256 * 1024
"""More than any token, and than most requests that come too early."""


class Strangers:
    """All of a bookie's. `most_encrypted`: at most so many with TLS."""

    def __init__(self, most_encrypted: int) -> None:
        self._most_encrypted = most_encrypted
        self._since: dict[Connection, float] = {}
        """In the order in which they came."""
        self._encrypted: dict[Connection, None] = {}
        """Those with TLS, or in the middle of its handshake, in the order in which that began."""
        self.sent_away = 0

    def __len__(self) -> int:
        return len(self._since)

    @property
    def most_encrypted(self) -> int:
        """So many have TLS, or are on the way to it."""
        return min(MOST_ENCRYPTED, self._most_encrypted)

    def came(self, conn: Connection) -> None:
        """Somebody who is not known, or not any more."""
        if conn in self._since:
            return
        if len(self._since) >= MOST:
            self._send_away(next(iter(self._since)), f"more than {MOST} clients are not authenticated yet")
        self._since[conn] = time.perf_counter()

    def gone(self, conn: Connection) -> None:
        """It is known now, or not there any more."""
        self._since.pop(conn, None)
        self._encrypted.pop(conn, None)

    def encrypts(self, conn: Connection) -> None:
        """A stranger begins a TLS handshake. What that takes it holds until it is known or gone: whoever ends the
        handshake and says nothing more is no better than who does not end it."""
        if len(self._encrypted) >= self.most_encrypted:
            reason = f"more than {self.most_encrypted} clients with TLS are not known yet"
            self._send_away(next(iter(self._encrypted)), reason)
        self._encrypted[conn] = None

    def look(self, now: float, asleep: float) -> None:
        """Every now and then: those go whose time is over. As `Connection.look`."""
        if asleep:
            self._since = {conn: since + asleep for conn, since in self._since.items()}
        while self._since:
            conn, since = next(iter(self._since.items()))
            if now - since <= SECONDS:
                break
            self._send_away(conn, f"it was not authenticated after {SECONDS:.0f} s")

    def _send_away(self, conn: Connection, reason: str) -> None:
        self.gone(conn)
        self.sent_away += 1
        conn.context.complaints.warning("connection closed", peer=conn.peer, reason=reason)
        conn.drop()


def check_frame(length: int) -> None:
    """Raises ProtocolViolation for a frame that no stranger needs."""
    if length > FRAME_BYTES:
        raise ProtocolViolation(
            f"a frame of {length} bytes before authentication; {FRAME_BYTES} are let in until the client is known"
        )


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
