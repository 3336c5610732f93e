"""The bounds of connections that cost much before they ask for anything.

They are `Strangers`, and connections with TLS (`EncryptedConnections`).

Strangers are clients that are not known yet: those that have to authenticate or to use TLS first, or are in the middle
of it. Any client that reaches the port is one of them, so each of them gets little, and all of them together are
bounded: frames of at most `FRAME_BYTES`, `FRAMES` of them, `SECONDS` altogether, and `MOST` connections at the same
time, of which `MOST_ENCRYPTED` have TLS or are on the way to it, and no more than half of all connections that may have
it. Beyond that the oldest one is closed: it has had its time, and the new one may be a legitimate client.

Each connection with TLS has buffers that no other account counts, however little its client wants, so they are counted
here. A connection that uses up its receive size may receive more, as long as those that do take a quarter of all at
most. Together they are at most half of what clients may hold (`MemoryGovernor.limit`), beside that. Beyond, those are
closed that have sent nothing for longest: a client that comes back is served again, and a new one may have requests.

Threads: event loop only.
"""

from __future__ import annotations

import time
from typing import Final

from bookie_pod.server.tcp.wire import Wire
from bookie_protocol.errors import ProtocolViolation

MOST: Final = 4096
"""Connections at the same time."""
MOST_ENCRYPTED: Final = 512
"""The number of strangers with TLS, at most. Each has some 100 KB of buffers, which clients' memory does not count."""
SECONDS: Final = 30.0
"""Seconds until a client has to be known."""
FRAMES: Final = 1000
"""Frames of one client. Requests that it sends too early are answered, so that it learns what it lacks."""
FRAME_BYTES: Final = 256 * 1024
"""Bytes of a frame: more than any token, and than most requests that come too early."""
ENCRYPTED_SHARE: Final = 2
"""Such a part of what clients may hold there is beside it for all connections with TLS."""
IDLE_BYTES: Final = 64 * 1024
"""Bytes of one connection that has ended its handshake and received a little."""
SMALL_BYTES: Final = 128 * 1024
"""Bytes of one connection that has received `tls_reads.PART` bytes at a time."""
LARGE_BYTES: Final = 512 * 1024
"""Bytes of one connection that may receive more.

They are 256 KiB to receive into, and as much before it is decrypted. Its answers are counted elsewhere.
"""
GROWN_SHARE: Final = 4
"""The divisor of the limit for connections that may receive more. All others keep their small size."""
FEWEST: Final = 64
"""Connections that may have received something, however little clients may hold."""
_AT_A_TIME: Final = 16
"""Such a part of the bytes goes together: to find whose takes a look at all."""


class Strangers:
    """All of a bookie's. `most_encrypted`: at most so many with TLS."""

    def __init__(self, most_encrypted: int) -> None:
        self._most_encrypted = most_encrypted
        self._since: dict[Wire, float] = {}
        """The strangers in the order in which they came, with the time of that."""
        self._encrypted: dict[Wire, None] = {}
        """The strangers with TLS, or in the middle of its handshake, in the order in which that began."""
        self.sent_away = 0

    def __len__(self) -> int:
        return len(self._since)

    @property
    def most_encrypted(self) -> int:
        """Return how many strangers may have TLS, or be on the way to it."""
        return min(MOST_ENCRYPTED, self._most_encrypted)

    def came(self, wire: Wire) -> None:
        """Add a client that is not known, or not any more."""
        if wire in self._since:
            return
        if len(self._since) >= MOST:
            self._send_away(next(iter(self._since)), f"more than {MOST} clients are not authenticated yet")
        self._since[wire] = time.perf_counter()

    def gone(self, wire: Wire) -> None:
        """It is known now, or not there any more."""
        self._since.pop(wire, None)
        self._encrypted.pop(wire, None)

    def encrypts(self, wire: Wire) -> None:
        """Note that a stranger begins a TLS handshake, and holds its buffers until it is known or gone.

        A client that ends the handshake and says nothing more is no better than one that does not end it.
        """
        if len(self._encrypted) >= self.most_encrypted:
            reason = f"more than {self.most_encrypted} clients with TLS are not known yet"
            self._send_away(next(iter(self._encrypted)), reason)
        self._encrypted[wire] = None

    def look(self, now: float, asleep: float) -> None:
        """Every now and then: those go whose time is over. As `Connection.look`."""
        if asleep:
            self._since = {wire: since + asleep for wire, since in self._since.items()}
        while self._since:
            wire, since = next(iter(self._since.items()))
            if now - since <= SECONDS:
                break
            self._send_away(wire, f"it was not authenticated after {SECONDS:.0f} s")

    def _send_away(self, wire: Wire, reason: str) -> None:
        self.gone(wire)
        self.sent_away += 1
        wire.context.complaints.warning("connection closed", peer=wire.peer, reason=reason)
        wire.drop()


def check_frame(length: int) -> None:
    """Raises ProtocolViolation for a frame that no stranger needs."""
    if length > FRAME_BYTES:
        raise ProtocolViolation(
            f"a frame of {length} bytes before authentication; {FRAME_BYTES} are let in until the client is known"
        )


class EncryptedConnections:
    """All of a bookie's, which take `limit` bytes at most."""

    def __init__(self, limit: int) -> None:
        self.limit = max(FEWEST * SMALL_BYTES, limit)
        self.nbytes = 0
        self._grown = 0
        """Bytes of those that may receive more."""
        self._connections: dict[Wire, int] = {}
        """The connections and the bytes that each counts as."""
        self.sent_away = 0

    def __len__(self) -> int:
        return len(self._connections)

    def came(self, wire: Wire) -> None:
        """It has TLS from now on."""
        self._count(wire, IDLE_BYTES)

    def may_grow(self, wire: Wire) -> bool:
        """It uses up all that it may receive at a time. Whether it may receive more from now on."""
        if wire not in self._connections:
            return False
        self._count(wire, SMALL_BYTES)
        most = min(self.limit // GROWN_SHARE, self.limit - len(self._connections) * SMALL_BYTES)
        if self._grown + LARGE_BYTES > most:
            return False  # no connection is closed for that
        self._grown += LARGE_BYTES
        self._count(wire, LARGE_BYTES)
        return True

    def gone(self, wire: Wire) -> None:
        """It is closed; it may never have had TLS."""
        nbytes = self._connections.pop(wire, 0)
        self.nbytes -= nbytes
        if nbytes == LARGE_BYTES:
            self._grown -= nbytes

    def _count(self, wire: Wire, nbytes: int) -> None:
        self.nbytes += nbytes - self._connections.get(wire, 0)
        self._connections[wire] = nbytes
        if self.nbytes > self.limit:
            self._make_room(wire)

    def _make_room(self, newest: Wire) -> None:
        enough = self.limit - self.limit // _AT_A_TIME
        for wire in sorted(self._connections, key=lambda wire: wire.received_at):
            if self.nbytes <= enough:
                return
            if wire is newest:
                continue
            self.sent_away += 1
            reason = (
                f"connections with TLS take more than {self.limit} bytes (half of clientMemoryMb), and it has sent"
                " nothing for longest"
            )
            wire.context.complaints.warning("connection closed", peer=wire.peer, reason=reason)
            wire.drop()
