"""All clients of the BookKeeper port: their connections, and what these share beside the state of requests.

Threads: event loop only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from bookie_pod.descriptors import bookie_connections
from bookie_pod.server.tcp.context import ServerContext
from bookie_pod.server.tcp.handlers import RequestHandlers
from bookie_pod.server.tcp.strangers import ENCRYPTED_SHARE, IDLE_BYTES, EncryptedConnections, Strangers
from bookie_pod.server.tcp.wire import Wire
from bookie_pod.server.tls import HandshakeTurns, RenewedTls
from bookie_protocol.wire.auth import ServerAuthProvider

ASLEEP_S: Final = 5.0
"""Seconds between two looks at the connections, at which the time counts for no client: see `Clients.look`."""

LOOKS_PER_TURN: Final = 256
"""Connections that are looked at in one turn of the loop: some milliseconds."""


class Clients:
    """All clients of one bookie."""

    def __init__(
        self,
        context: ServerContext,
        handlers: RequestHandlers,
        *,
        auth: ServerAuthProvider | None = None,
        tls: RenewedTls | None = None,
    ) -> None:
        self.context = context
        self.handlers = handlers
        self.auth = auth
        self.tls = tls
        self.accepting = False
        """False until the bookie has replayed its journals, and again while it stops."""
        self.max_connections = context.options.max_connections or bookie_connections()
        self.connections: dict[Wire, Callable[[float, float], None]] = {}
        """The connections, each with its `Connection.look`."""
        self.connections_refused = 0
        """The connections refused beyond `max_connections`."""
        self.refusals = 0
        """Requests of clients that had to authenticate first."""
        self.encrypted = EncryptedConnections(context.memory.limit // ENCRYPTED_SHARE)
        self.strangers = Strangers(self.encrypted.limit // IDLE_BYTES // 2)
        self.handshakes = HandshakeTurns(self.strangers.most_encrypted)
        self._looked_at = time.perf_counter()
        self._to_look: Iterator[Callable[[float, float], None]] | None = None
        """The rest of the look that is under way."""

    def look(self) -> None:
        """Look at each connection; called every now and then: see `Connection.look`. Does nothing while the last look
        goes on, unless the process was asleep."""
        context, now = self.context, time.perf_counter()
        passed, self._looked_at = now - self._looked_at, now
        # A process that was stopped, or a machine that was: what clients sent meanwhile has still to be received.
        asleep = passed if passed > ASLEEP_S else 0.0
        if self._to_look is not None and not asleep:
            return
        self._to_look = iter(tuple(self.connections.values()))
        self._look_at_some(asleep)
        self.strangers.look(now, asleep)
        context.frame_rooms.look(now, asleep)
        context.memory.relieve(now)
        context.complaints.look()
        context.request_log.look()

    def _look_at_some(self, asleep: float = 0.0) -> None:
        """Look at a few of the connections, and at the others in the next turns of the loop: there may be thousands.

        After a time asleep, look at all at once: none may be judged before it knows of that."""
        looks, self._to_look, now = self._to_look, None, time.perf_counter()
        if looks is None:
            return  # all were looked at meanwhile, after a time asleep
        some = list(islice(looks, None if asleep else LOOKS_PER_TURN))
        for look in some:
            look(now, asleep)
        if len(some) == LOOKS_PER_TURN and not asleep:
            self._to_look = looks
            self.context.loop.call_soon(self._look_at_some)
