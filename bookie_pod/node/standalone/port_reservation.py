"""Free ports for processes that are started soon, kept free for them.

A port is bound here, and nobody listens on it: nobody else gets it, neither a process that looks for a free port nor an
outgoing connection, and connecting to it is refused. On Linux a process that is told of it can listen there all the
same, because both sides set SO_REUSEADDR; so it stays reserved for as long as this process wants, restarts of the other
included. Elsewhere that does not hold, and the port is given up at once: what remains is that the system gives a port
that it gave a moment ago to nobody else for a while.

Event loop only.
"""

from __future__ import annotations

import socket
import sys

_CAN_BE_SHARED = sys.platform == "linux"


class ReservedPorts:
    """`close` it."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._held: dict[int, socket.socket] = {}
        self._given: set[int] = set()

    def take(self) -> int:
        """A port that nobody has, and that was not given before. Raises `OSError` when there is none."""
        while True:
            holder = socket.socket()
            try:
                holder.bind((self._host, 0))
                # After the bind, so that this bind itself shares a port with nobody.
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                port: int = holder.getsockname()[1]
            except OSError:
                holder.close()
                raise
            if not _CAN_BE_SHARED or port in self._given:
                holder.close()
            else:
                self._held[port] = holder
            if port not in self._given:
                self._given.add(port)
                return port

    def give_back(self, port: int) -> None:
        """Whoever wants it may have it; it is not given again here."""
        if (holder := self._held.pop(port, None)) is not None:
            holder.close()

    def close(self) -> None:
        """Give all of them back. Calling it again is fine."""
        for port in list(self._held):
            self.give_back(port)
