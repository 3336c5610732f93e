"""The callers over gRPC, and what each makes the process hold.

A caller is a connection, however many calls it has under way, and has one share of the process's `MemoryGovernor`.

gRPC does not expose its connections, and has no call that ends one, so `connections` looks for them among the
descriptors of the process; gRPC takes a shut-down for the client's end. Where descriptors cannot be listed, nothing is
found.

Invariants
- A call that waits for room goes on when there is some. Room that others keep without moving may be taken from them
  (see `MemoryGovernor`): all calls of such a caller end as `was_cut`.
- A call that has ended holds nothing; what came for it in gRPC's memory is freed (`to_its_end`).
- `cut_receivers` ends callers into whose calls messages may be coming in, those with most of them first, and shuts
  their connections: what gRPC has of a message is invisible before it is complete, and before it has notified hundreds
  of calls that they have ended more comes in than there is room for.
- A descriptor may be closed, and its number be a file's or another socket's, between two calls: so each looks again at
  what it is, and none is copied. (The end of a copy would give up the locks of a locked file.)

Event loop only; what looks at descriptors (`address_of`, `connections`, `shut_down`) on any thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import sys
import time
import urllib.parse
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from bookie_pod.client_memory import MemoryGovernor, Share
from bookie_protocol.lasting import heard

T = TypeVar("T")
FIRST_SHARE: Final = 8
"""Divisor of all memory that bounds the room for a first message, so that silent callers hold up no others for long."""
TAKES_S: Final = 0.1
"""Seconds that a client may take for what it is given without being in the way."""
SHORT: Final = "memory is short, and this call is in the way: try again later, or another bookie"
_CURRENT: ContextVar[Call] = ContextVar("call")
Address = tuple[str, int]
"""IP address and port."""
_FOLDER: Final = "/dev/fd"
_NOBODY: Final = struct.pack("=H14x", socket.AF_UNSPEC)
"""Address of no family: connecting to it disconnects, on Linux."""
_connect: Final = getattr(ctypes.CDLL(None), "connect", None) if sys.platform == "linux" else None
_MAPPED: Final = "::ffff:"
_BYTES_RECEIVED_SIZE: Final = 8
_TCP_INFO_BYTES: Final = 128 + _BYTES_RECEIVED_SIZE
"""Bytes of Linux' information on a connection, up to the number of bytes received."""


class Callers:
    """The callers of one process."""

    def __init__(self, memory: MemoryGovernor, apart: Callers | None = None) -> None:
        """`apart`: for calls that hold little, and have to go on whatever the others wait for."""
        self.memory = memory
        self.apart = self._beside = apart
        self.anybody = asyncio.Event()
        """Event that is set as long as there are callers."""
        if apart is not None:
            apart._beside, self.anybody = self, apart.anybody
        self._callers: dict[str, Caller] = {}

    @contextmanager
    def call(self, peer: str) -> Iterator[Call]:
        """A call of this connection, for as long as the task runs that serves it."""
        caller = self._callers.get(peer)
        if caller is None:
            caller = self._callers[peer] = Caller(self.memory, peer)
            self.anybody.set()
        call = Call(caller)
        caller.calls.add(call)
        token = _CURRENT.set(call)
        try:
            yield call
        finally:
            _CURRENT.reset(token)
            call.end()
            caller.calls.discard(call)
            if not caller.calls and self._callers.get(peer) is caller:
                del self._callers[peer]
                caller.share.end()
                if not self._callers and (self._beside is None or not self._beside._callers):
                    self.anybody.clear()

    @property
    def receivers(self) -> int:
        """Calls into which a message may be coming in, those `apart` too."""
        own = sum(caller.receivers for caller in self._callers.values())
        return own if self.apart is None else own + self.apart.receivers

    def cut_receivers(self, keep: int) -> int:
        """End the callers with most of them, until no more are left than this; how many calls that were."""
        left, ended, peers = self.receivers, 0, set[str]()
        for peer, caller in sorted(self._callers.items(), key=lambda item: item[1].receivers, reverse=True):
            if left <= keep or not caller.receivers:
                break
            left -= caller.receivers
            ended += len(caller.calls)
            peers.add(peer)
            for call in tuple(caller.calls):
                call.cut()
        shut(peers)
        if self.apart is not None and left > keep:
            ended += self.apart.cut_receivers(max(0, self.apart.receivers - (left - keep)))
        return ended


class Caller:
    """One connection."""

    def __init__(self, memory: MemoryGovernor, peer: str) -> None:
        """`peer`: the connection, as gRPC names it."""
        self.peer = peer
        self.calls: set[Call] = set()
        self.streams = 0
        """Number of the gateway's streaming calls."""
        self.memory = memory
        self.share = self._new_share()

    def _new_share(self) -> Share:
        return self.memory.share(self._cut_off)

    def _cut_off(self) -> None:
        """The governor has ended the share, with all that is held."""
        if self.calls:
            self.share = self._new_share()  # of the calls to come
            for call in self.calls:
                call.forget()
                call.cut()

    @property
    def receivers(self) -> int:
        """Return the number of its calls into which a message may be coming in."""
        return sum(call.receives for call in self.calls)

    def look(self) -> None:
        """Tell the governor since when nothing has moved."""
        waiting = [call.waits_since for call in self.calls if call.waits_since is not None]
        self.share.stuck_since = min(waiting) + TAKES_S if waiting else None


class Call:
    """The memory that one call holds. It belongs to the task that makes it."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.receives = False
        """A message may be coming in."""
        self.waits_since: float | None = None
        """Time since which its client has not taken what it was given, or not sent what it has to."""
        self.cut_for: str | None = None
        """The reason why the server ended it; None: it did not."""
        self.has_ended = False
        self._task = asyncio.current_task()
        self._share = caller.share
        self._held = self._making = 0

    def hold(self, nbytes: int) -> None:
        """Count so many bytes more, or less, as held."""
        if self.was_cut:
            return
        self._held += nbytes
        self._share.hold(nbytes)
        if nbytes > 0:
            self._share.relieve()

    def make(self, nbytes: int) -> None:
        """Expect so many bytes more, or less."""
        self._making += nbytes
        self._share.make(nbytes)

    def fits(self, nbytes: int) -> bool:
        """Return True if there is room for bytes that have come already, even beyond the caller's part."""
        memory = self.caller.memory
        return memory.total + nbytes <= memory.limit or self._share.fits(nbytes)

    async def room(self, nbytes: int, *, has_begun: bool = False) -> int:
        """Wait for so much room, and take it; it is given back by `make`. How much was taken: never more than half.
        See `Waiter.has_begun`."""
        wanted = min(nbytes, self.caller.memory.limit // 2)
        if not self._share.take(wanted, has_begun=has_begun):
            await self._wait(wanted, has_begun)
        self._making += wanted
        return wanted

    async def _wait(self, wanted: int, has_begun: bool) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if granted.cancelled():
                self._share.make(-wanted)  # in this very turn of the loop
            else:
                granted.set_result(None)

        waiter = self._share.wait(wanted, go_on, has_begun=has_begun)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._share.make(-wanted)
            self.caller.memory.leave(waiter)
            raise

    @contextmanager
    def giving(self) -> Iterator[None]:
        """While the client is to take something."""
        self.waits()
        try:
            yield
        finally:
            self.goes_on()

    def waits(self) -> None:
        """Let the call wait for its client from now on."""
        self.waits_since = time.perf_counter()
        self.caller.look()

    def goes_on(self) -> None:
        """It waits for its client no more."""
        if self.waits_since is not None:
            self.waits_since = None
            self.caller.look()

    @property
    def was_cut(self) -> bool:
        """Return True if the server ended it."""
        return self.cut_for is not None

    def cut(self, reason: str = SHORT) -> None:
        """End this call, which is in the way."""
        if not self.was_cut and self._task is not None:
            self.hold(-self._held)
            self.cut_for = reason
            self._task.cancel()

    def forget(self) -> None:
        """Stop counting what was held."""
        self._held = 0

    def end(self) -> None:
        """Give everything back."""
        self.has_ended = True
        self.hold(-self._held)
        self.make(-self._making)


async def to_its_end(operation: Coroutine[Any, Any, T]) -> T:
    """Return the result of this operation of gRPC, which receives a message. On cancellation the operation
    continues: gRPC never frees a message that is not awaited."""
    going = asyncio.ensure_future(operation)
    try:
        await asyncio.wait((going,))
    except asyncio.CancelledError:
        going.add_done_callback(heard)
        raise
    try:
        return going.result()
    finally:
        del going  # an error's frames, this one among them, would keep it


def shut(peers: Collection[str]) -> None:
    """Shut the connections of these peers, as gRPC names them: at once, so that nothing more comes in. Where they
    cannot be found, the calls' own ends have to do."""
    addresses = {address_of(peer) for peer in peers}
    with suppress(OSError):
        for address, descriptor in connections():
            if address in addresses:
                shut_down(descriptor, address)


def current_call() -> Call:
    """Return the call that this task serves."""
    return _CURRENT.get()


def address_of(peer: str) -> Address | None:
    """Return the address of a peer as gRPC names it: `ipv4:10.0.0.7:4711`, `ipv6:%5B::1%5D:4711`; None for any
    other form."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return host.strip("[]").removeprefix(_MAPPED), int(port)


def connections(port: int | None = None) -> Iterator[tuple[Address, int]]:
    """The other end and the descriptor of each TCP connection; with `port`, of those to it. Raises OSError if no
    descriptor is left to look with."""
    for number in map(int, os.listdir(_FOLDER)):
        address = None
        with suppress(OSError), _socket(number) as found:  # closed meanwhile, not a socket, or not connected
            if found.family in (socket.AF_INET, socket.AF_INET6) and port in (None, found.getsockname()[1]):
                address = _peer_of(found)
        if address is not None:
            yield address, number


def shut_down(descriptor: int, address: Address) -> None:
    """Shut the connection down, if this address is still its other end."""
    with suppress(OSError), _socket(descriptor) as found:
        if _peer_of(found) == address:
            found.shutdown(socket.SHUT_RDWR)


def reset(descriptor: int, address: Address) -> None:
    """Reset the connection, if this address is still its other end, which also drops what the kernel holds unread,
    some megabytes. If the kernel cannot, shut it down."""
    with suppress(OSError), _socket(descriptor) as found:
        if _peer_of(found) == address and (_connect is None or _connect(descriptor, _NOBODY, len(_NOBODY)) != 0):
            found.shutdown(socket.SHUT_RDWR)


def received(descriptor: int, address: Address) -> int | None:
    """Return the bytes that have ever come over the connection, if this address is still its other end; None:
    unknown, as off Linux."""
    with suppress(OSError), _socket(descriptor) as found:
        if sys.platform == "linux" and _peer_of(found) == address:
            told = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            if len(told) == _TCP_INFO_BYTES:
                return int.from_bytes(told[-_BYTES_RECEIVED_SIZE:], sys.byteorder)
    return None


@contextmanager
def _socket(descriptor: int) -> Iterator[socket.socket]:
    found = socket.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


def _peer_of(connection: socket.socket) -> Address:
    host, port, *_ = connection.getpeername()
    return host.removeprefix(_MAPPED), port
