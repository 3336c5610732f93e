"""One channel per bookie: connects on demand, reconnects with back-off, fails fast while a bookie is down.

Invariants
- `Channel.send` never blocks: the request goes out, waits for a connection attempt under way, or fails at the
  next turn of the loop. It always ends.
- After a failed attempt no other is made before the delay has passed; requests fail at once meanwhile, so one
  dead bookie costs a reader or writer nothing but the turn to the next replica.
- A bookie's address is resolved through the metadata service at every attempt; if the service cannot tell,
  the last known one is tried.

Event loop only.

Source: reference client protocol, sections 2 and 18; reference metadata layout, section 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil
from typing import Final

from bookie_client.connection.connection import TICKS_PER_TIMEOUT, BookieConnection
from bookie_client.connection.dialect import dialect
from bookie_client.connection.request import Request
from bookie_client.options import ClientOptions
from bookie_protocol.errors import BookieUnavailable, MetadataError, MetadataNotFound, PodkeeperError

Resolver = Callable[[str], Awaitable[tuple[str, int]]]
"""Bookie id -> host and port. Raises a `MetadataError`."""

Connector = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[object]]
"""Opens a connection and binds the protocol; replaced by simulations."""


async def tcp_connector(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> object:
    """The real network."""
    return await asyncio.get_running_loop().create_connection(factory, host, port)


SHUT_DOWN_SECONDS: Final = 1.0
"""How long closing waits until a bookie has taken what was sent to it."""

PROBE_SECONDS: Final = 2.0
"""How long a spare bookie may take to accept a connection before another one is chosen."""


class Channel:
    """The way to one bookie."""

    def __init__(self, pool: ChannelPool, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._connection: BookieConnection | None = None
        self._address: tuple[str, int] | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._waiting: list[tuple[bytes, bytes, Request, int]] = []
        self._retry_at = 0.0
        self._down_until = 0.0
        self._delay = 0.0
        self._error: PodkeeperError | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def is_down(self) -> bool:
        """The last attempt failed, or the connection broke, a short while ago, and none has succeeded
        since."""
        return self._error is not None and self._loop.time() < self._down_until

    def send_add(self, frame: bytes, key: bytes, request: Request) -> None:
        """Send an add, with the time-out of adds."""
        if self._connection is not None:
            self._connection.send(frame, key, request, self._pool.add_ticks)
        else:
            self._send_later(frame, key, request, self._pool.add_ticks)

    def send_read(self, frame: bytes, key: bytes, request: Request) -> None:
        """Send a read, with the time-out of reads."""
        if self._connection is not None:
            self._connection.send(frame, key, request, self._pool.read_ticks)
        else:
            self._send_later(frame, key, request, self._pool.read_ticks)

    async def connect(self) -> None:
        """Have a connection, whatever the back-off says. Raises `BookieUnavailable`."""
        if self._connection is not None:
            return
        if self._attempt is None:
            self._start_attempt()
        assert self._attempt is not None
        await asyncio.shield(self._attempt)
        if self._connection is None:
            raise self._error or self._pool.closed_error(self.bookie_id)

    def _send_later(self, frame: bytes, key: bytes, request: Request, ticks: int) -> None:
        if self._pool.is_closed:
            self._loop.call_soon(request.failed, self._pool.closed_error(self.bookie_id))
        elif self._attempt is not None:
            self._waiting.append((frame, key, request, ticks))
        elif self._error is not None and self._loop.time() < self._retry_at:
            self._loop.call_soon(request.failed, self._error)
        else:
            self._waiting.append((frame, key, request, ticks))
            self._start_attempt()

    def _start_attempt(self) -> None:
        self._attempt = self._loop.create_task(self._open(), name=f"connect {self.bookie_id}")

    async def _open(self) -> None:
        options = self._pool.options
        try:
            async with asyncio.timeout(options.connect_timeout):
                host, port = await self._resolve()
                connection = BookieConnection(
                    self.bookie_id,
                    self._pool.dialect,
                    max_frame_size=options.max_frame_size,
                    tick=self._pool.tick,
                    on_closed=self._closed,
                )
                await self._pool.connector(lambda: connection, host, port)
        except TimeoutError:
            error = BookieUnavailable(f"bookie {self.bookie_id}: no connection in {options.connect_timeout:g} s")
            self._attempt_failed(error)
        except OSError as problem:
            self._attempt_failed(BookieUnavailable(f"bookie {self.bookie_id}: cannot connect: {problem}"))
        except MetadataNotFound:
            self._attempt_failed(BookieUnavailable(f"bookie {self.bookie_id} is not registered: it is down"))
        except MetadataError as problem:
            self._attempt_failed(BookieUnavailable(f"bookie {self.bookie_id}: address unknown: {problem}"))
        else:
            self._attempt_succeeded(connection)

    async def _resolve(self) -> tuple[str, int]:
        try:
            self._address = await self._pool.resolve(self.bookie_id)
        except MetadataNotFound:
            raise
        except MetadataError:
            if self._address is None:
                raise
        return self._address

    def _attempt_succeeded(self, connection: BookieConnection) -> None:
        self._attempt = None
        if not connection.is_open:
            # A bookie that is starting up accepts and hangs up at once.
            self._attempt_failed(BookieUnavailable(f"bookie {self.bookie_id} is not ready: it closed the connection"))
            return
        self._connection, self._error, self._delay = connection, None, 0.0
        waiting, self._waiting = self._waiting, []
        for frame, key, request, ticks in waiting:
            connection.send(frame, key, request, ticks)

    def _attempt_failed(self, error: PodkeeperError) -> None:
        self._attempt = None
        self._back_off(error)
        waiting, self._waiting = self._waiting, []
        for _, _, request, _ in waiting:
            request.failed(error)

    def _back_off(self, error: PodkeeperError) -> None:
        options = self._pool.options
        self._error = error
        self._delay = min(max(self._delay * 2, options.reconnect_delay), options.max_reconnect_delay)
        self._retry_at = self._loop.time() + self._delay
        self._down_until = self._loop.time() + options.max_reconnect_delay

    def _closed(self, connection: BookieConnection) -> None:
        if self._connection is connection:
            self._connection = None
            self._back_off(BookieUnavailable(f"bookie {self.bookie_id}: connection lost"))

    async def close(self, reason: PodkeeperError) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
            self._attempt_failed(reason)
        if self._connection is not None:
            await self._connection.shut_down(reason, SHUT_DOWN_SECONDS)


class ChannelPool:
    """The channels of one client, by bookie id."""

    def __init__(self, resolve: Resolver, options: ClientOptions, connector: Connector = tcp_connector) -> None:
        self.resolve = resolve
        self.options = options
        self.connector = connector
        self.dialect = dialect(options.protocol_version)
        shortest = min(options.add_timeout, options.read_timeout)
        self.tick = shortest / TICKS_PER_TIMEOUT
        # One tick more, because a request may be sent just before one.
        self.add_ticks = ceil(options.add_timeout / self.tick) + 1
        self.read_ticks = ceil(options.read_timeout / self.tick) + 1
        self.is_closed = False
        self._channels: dict[str, Channel] = {}

    def channel(self, bookie_id: str) -> Channel:
        """The one channel to this bookie; nothing is connected before something is sent."""
        channel = self._channels.get(bookie_id)
        if channel is None:
            channel = self._channels[bookie_id] = Channel(self, bookie_id)
        return channel

    def down(self) -> frozenset[str]:
        """Bookies that could not be reached lately; for `max_reconnect_delay` after the last failure."""
        return frozenset(bookie for bookie, channel in self._channels.items() if channel.is_down)

    async def reachable(self, bookie_id: str) -> bool:
        """Whether there is a connection, or one can be made within `PROBE_SECONDS`."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self.channel(bookie_id).connect()
        except (BookieUnavailable, TimeoutError):
            return False
        return True

    def closed_error(self, bookie_id: str) -> PodkeeperError:
        return BookieUnavailable(f"bookie {bookie_id}: this client is closed")

    async def close(self) -> None:
        """Close every connection; outstanding requests fail. Calling it again is fine."""
        self.is_closed = True
        closing = map(partial(self._close_channel), list(self._channels.values()))
        await asyncio.gather(*closing)

    async def _close_channel(self, channel: Channel) -> None:
        await channel.close(self.closed_error(channel.bookie_id))
