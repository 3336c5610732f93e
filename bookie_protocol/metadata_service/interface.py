"""The values and the session of the metadata service, which are the same for every driver, and what all stores promise.

`tree.service.MetadataService` holds the stores.

Invariants
- "It is not there" (`MetadataNotFound`) and "could not tell" (`MetadataUnavailable`) never share a type. A
  call raises the first only when the service answered.
- Every call takes `timeout` in seconds (of `under_replication` few do); None means the session time-out of the service
  (`zkTimeout`). When it has passed the call raises `MetadataUnavailable`; a write may then have happened or not.
- A write is durable when its call returns.
- A write or delete names the `Identity` that it replaces: version and creation. The service compares both in one step,
  so that nothing of a later life of the name is ever changed by who means an earlier one. What deletes by name alone
  says so (`delete`), and is for people who name the thing.

Threads: everything here belongs to the event loop on which the service was opened. Call-backs run there too.

Sources: docs/internals/metadata-layout.md, sections 1, 3, 4, 5, 6, 7, 9 and 12.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bookie_protocol.versioned import Identity as Identity
from bookie_protocol.versioned import LedgerLife as LedgerLife
from bookie_protocol.versioned import Versioned as Versioned

# --- cluster ----------------------------------------------------------------------------------------------


class LedgerLayout(Enum):
    """The mapping of ledger ids to paths; the value is the class that `LAYOUT` names (section 3.2)."""

    FLAT = "org.apache.bookkeeper.meta.FlatLedgerManagerFactory"
    LEGACY_HIERARCHICAL = "org.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory"
    HIERARCHICAL = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
    LONG_HIERARCHICAL = "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory"


# --- bookies ----------------------------------------------------------------------------------------------


class BookieGroup(Enum):
    """Which bookies: registered writable, registered read-only, or all that ever stamped a cookie."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class BookieSet:
    """The members of a group; of two sets of one group the one with the greater version is newer, also
    when the cluster was removed and made again in between."""

    bookies: frozenset[str]
    version: int


# --- ledgers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """All ledgers with `start <= id <= end`: an id in that span that is not in `ids` did not exist.

    Ranges of one listing follow each other without a gap: each starts one after the end of the one before.
    """

    start: int
    end: int
    ids: tuple[int, ...]


# --- session ----------------------------------------------------------------------------------------------


class SessionState(Enum):
    """The state of a session.

    CONNECTED: requests are answered. SUSPENDED: not at present, but registrations remain. EXPIRED: everything that this
    session registered is gone. CLOSED: by this process.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


class Session:
    """The bond with the metadata service. After EXPIRED a new one is opened without our doing (CONNECTED).

    Listeners hear every change of state, in order, and nothing twice in a row. One that raises is reported to the
    loop's exception handler; the others still hear. Drivers hop to the event loop before they call `move`.
    """

    def __init__(self, default_timeout: float) -> None:
        self._default_timeout = default_timeout
        self.expires_after = default_timeout
        """Seconds without an answer after which a session like this one ends: what the server made of the wish. A
        driver that gets another time from the server sets it, from any thread."""
        self.position = 0
        """Position of the service's newest answer in its history: a number that only grows, with the changes of
        all clients (ZooKeeper's zxid, the revision of an embedded store). 0: unknown."""
        self.went_back_to: int | None = None
        """Position of an answer that was older than an earlier one: the service was put back to an older state.
        None: it was not, as far as is known."""
        self.counts = ""
        """Name of the unit of `position`. Positions in different units cannot be compared."""
        self.doubt = ""
        """Reason why the service may lack writes of this session. Empty if it has no such reason."""
        self._histories = 0
        self._state = SessionState.SUSPENDED
        self._listeners: list[Callable[[SessionState], None]] = []
        self._connected = asyncio.Event()

    def asks(self) -> tuple[int, int]:
        """Return the arguments with which `answered` is called for a request that is sent now."""
        return self._histories, self.position

    def answered(self, position: int, asked: tuple[int, int]) -> None:
        """An answer came that the service gave at `position`. `asked`: what `asks` said when the request was sent."""
        history, asked_at = asked
        if history != self._histories:
            return
        if 0 < position < asked_at:
            self.went_back_to = position
        self.position = max(self.position, position)

    def begin_history(self) -> None:
        """Accept the current state of the service, whatever it was before."""
        self._histories += 1
        self.position, self.went_back_to, self.doubt = 0, None, ""

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def default_timeout(self) -> float:
        """Seconds; the time-out of the session, as asked for, and of every call that names none."""
        return self._default_timeout

    def add_listener(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call `listener` on the event loop with every change, none left out; returns its removal."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    def move(self, state: SessionState) -> None:
        """Take a new state and tell everybody."""
        if state is self._state or self._state is SessionState.CLOSED:
            return
        self._state = state
        if state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a metadata session listener failed", "exception": error}
                )

    async def wait_connected(self) -> None:
        """Wait until the state is CONNECTED; the caller bounds the wait."""
        await self._connected.wait()
