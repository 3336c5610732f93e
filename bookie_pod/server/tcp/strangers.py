"""Clients that are not known yet: those that have to authenticate or to use TLS first, or are in the middle of it.

Whoever can reach the port is one of them, so what one takes is little, and what all of them take is bounded: frames of
at most `FRAME_BYTES`, `FRAMES` of them, `SECONDS` altogether, and `MOST` connections at the same time, of which
`MOST_ENCRYPTED` have TLS or are on the way to it, and no more than a half of all those who may. Beyond that it is the
one that has been here for longest that goes: it has had its time, and who comes now may be somebody.

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
"""Each has some 100 KB of buffers, which nobody counts (`encrypted`)."""
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
