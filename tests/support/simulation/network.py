"""A virtual network: hosts, links with delays, connections that behave like TCP, and everything that goes wrong.

Invariants
- One direction of one connection keeps its order; different connections know no order between them.
- Bytes that are on their way are delivered, held back (partition, receiver that does not read) or lost with the
  whole connection. They are never lost from the middle.
- What a server answers may come a second time, frame by frame, and later than what it sent since.
- A host that lost its power says nothing: its peers see silence until they send to it after it came back.

Each ordered pair of hosts is a link with its own delays. All chances come from the one `Random`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.support.simulation.trace import Trace
from tests.support.simulation.transport import VirtualConnection

SYN_RETRY_SECONDS: Final = 1.0
STRAGGLER_SECONDS: Final = 0.4
"""A piece that is late for no reason is at most this late."""
HEALED_SECONDS: Final = 0.002
"""Longest base delay, and longest mean of the random part, of a network that works well."""
REFUSED: Final = "connection refused"

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


@dataclass(slots=True)
class Link:
    """Delays from one host to another, in seconds."""

    base: float
    jitter: float
    slow_until: float = 0.0
    slowness: float = 1.0


@dataclass(slots=True)
class NetworkOptions:
    base_delay: float = 0.0005
    jitter: float = 0.5
    """Mean of the random part, as a multiple of the link's base delay."""
    spread: float = 0.5
    """How much the base delays of links differ."""
    split_chance: float = 0.0
    """How often a write arrives in two pieces."""
    straggler_chance: float = 0.0
    """How often a piece takes `straggler` times as long."""
    straggler: float = 50.0


class Network:
    """Hosts are names. `listen` makes a host reachable, `connector` is a client's way in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random, trace: Trace, options: NetworkOptions) -> None:
        self.loop = loop
        self.random = random
        self.trace = trace
        self.options = options
        self.connections: dict[int, VirtualConnection] = {}
        self.on_partition: list[Callable[[], None]] = []
        """Called whenever a block was set or removed."""
        self.on_event: Callable[[str], None] = lambda event: None
        """Told "connect" before each attempt to connect."""
        self._links: dict[tuple[str, str], Link] = {}
        self._blocks: dict[tuple[str, str], int] = {}
        self._repeated_until: dict[str, float] = {}
        self._listening: dict[tuple[str, int], ProtocolFactory] = {}
        self._dark: dict[str, None] = {}
        self._retired: dict[str, None] = {}
        self._numbers = 0

    # --- links ----------------------------------------------------------------------------------------------

    def delay(self, source: str, target: str) -> float:
        """How long the next piece takes."""
        link = self._link(source, target)
        random, options = self.random, self.options
        seconds = link.base + random.expovariate(1.0) * link.jitter
        if options.straggler_chance and random.random() < options.straggler_chance:
            seconds = min(seconds * options.straggler, STRAGGLER_SECONDS)
        if self.loop.time() < link.slow_until:
            seconds *= link.slowness
        return seconds

    def slow_down(self, source: str, target: str, seconds: float, factor: float) -> None:
        """Make one direction slower for a while."""
        link = self._link(source, target)
        link.slow_until, link.slowness = self.loop.time() + seconds, factor

    def repeat_answers(self, server: str, seconds: float) -> None:
        """Many of the frames that a server answers with are sent a second time, for a while."""
        self._repeated_until[server] = self.loop.time() + seconds

    def repeats_answers(self, server: str) -> bool:
        return self.loop.time() < self._repeated_until.get(server, 0.0)

    def blocked(self, source: str, target: str) -> bool:
        """Whether nothing gets from one host to the other at present."""
        return (source, target) in self._blocks or source in self._dark or target in self._dark

    def block(self, source: str, target: str) -> None:
        """A one-way partition; several on top of each other count."""
        self._blocks[source, target] = self._blocks.get((source, target), 0) + 1
        self._partition_changed()

    def unblock(self, source: str, target: str) -> None:
        count = self._blocks.pop((source, target), 0)
        if count > 1:
            self._blocks[source, target] = count - 1
        self._partition_changed()

    def heal(self) -> None:
        """No partition, no slow link and no repeated answer any more."""
        self._blocks.clear()
        self._repeated_until.clear()
        options = self.options
        options.straggler_chance, options.base_delay = 0.0, min(options.base_delay, HEALED_SECONDS)
        options.jitter = options.spread = 1.0
        for link in self._links.values():
            link.slow_until = 0.0
            link.base, link.jitter = min(link.base, HEALED_SECONDS), min(link.jitter, HEALED_SECONDS)
        self._partition_changed()

    def _partition_changed(self) -> None:
        for connection in list(self.connections.values()):
            connection.kick()
        for listener in self.on_partition:
            listener()

    def _link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            options = self.options
            base = options.base_delay * (1.0 + self.random.random() * options.spread)
            link = self._links[source, target] = Link(base, base * options.jitter)
        return link

    # --- hosts ----------------------------------------------------------------------------------------------

    def listen(self, host: str, port: int, factory: ProtocolFactory) -> None:
        self._listening[host, port] = factory

    def stop_listening(self, host: str, port: int) -> None:
        self._listening.pop((host, port), None)

    def power_off(self, host: str) -> None:
        """The host falls silent: nothing that it had under way is known any more, nobody is told."""
        self._dark[host] = None
        for connection in self.of(host):
            connection.vanish(host)

    def retire(self, host: str) -> None:
        """The process on this host is killed and never comes back. What it sent before still arrives."""
        self._retired[host] = None
        for connection in self.of(host):
            connection.hang_up(host)

    def power_on(self, host: str) -> None:
        """The host is back, with no connection: peers that still send to an old one are told so."""
        self._dark.pop(host, None)
        self._partition_changed()

    def is_dark(self, host: str) -> bool:
        return host in self._dark

    def of(self, host: str) -> list[VirtualConnection]:
        """Connections with an end at this host, oldest first."""
        return [connection for connection in self.connections.values() if host in connection.hosts]

    def between(self, host: str, other: str) -> list[VirtualConnection]:
        return [connection for connection in self.of(host) if other in connection.hosts]

    # --- connecting -----------------------------------------------------------------------------------------

    def connector(self, host: str) -> Callable[[ProtocolFactory, str, int], Awaitable[object]]:
        """The `Connector` of a client on this host."""

        async def connect(factory: ProtocolFactory, target: str, port: int) -> object:
            self.on_event("connect")
            return await self._connect(host, factory, target, port)

        return connect

    async def _connect(self, host: str, factory: ProtocolFactory, target: str, port: int) -> object:
        await asyncio.sleep(self.delay(host, target))
        if host in self._retired:
            raise OSError(f"{host} is gone")
        wait = SYN_RETRY_SECONDS
        while self.blocked(host, target) or self.blocked(target, host):
            await asyncio.sleep(wait)
            wait *= 2
        server = self._listening.get((target, port))
        if server is None:
            await asyncio.sleep(self.delay(target, host))
            raise ConnectionRefusedError(f"{target}:{port}: {REFUSED}")
        self._numbers += 1
        connection = VirtualConnection(self, self._numbers, (host, target))
        self.connections[connection.number] = connection
        connection.accept(server())
        try:
            await asyncio.sleep(self.delay(target, host))
        except asyncio.CancelledError:
            connection.give_up(host)
            raise
        if connection.is_over(host):
            raise ConnectionResetError(f"{target}:{port}: connection reset")
        protocol = factory()
        connection.established(protocol)
        return connection, protocol
