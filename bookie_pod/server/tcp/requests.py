"""Requests as the handlers see them, and what they ask of a reply, independent of the wire version.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, section 9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookie_pod.telemetry.tracing import JoinedRequest
from bookie_protocol.keys import NO_LIFE


class Reply:
    """Encodes the answer of one request in the version it came in, and sends it. Exactly one call per request.

    Each operation's reply overrides `error` and the one method that is its success.
    """

    __slots__ = ()

    @property
    def joined(self) -> JoinedRequest | None:
        """Return the traced request of an add whose client traces it."""
        return None

    @property
    def gone(self) -> bool:
        """True if the client is gone: work that has not begun need not be done."""
        return False

    @property
    def must_wait(self) -> bool:
        """True while there is no room for what the answer may bring. Any thread."""
        return False

    def making(self, nbytes: int) -> None:
        """Count so many bytes more, or less, of answers to this client that are being made. Any thread."""

    def made(self, nbytes: int) -> None:
        """Count so many bytes that are made as what waits for the client."""

    def take(self, nbytes: int) -> bool:
        """Have so many bytes made if there is room for them, see `making`. Any thread."""
        return True

    def postpone(self, again: Callable[[], None], nbytes: int) -> None:
        """Call `again` when so many bytes were taken."""
        again()

    def wait(self) -> None:
        """A long poll begins to wait: until `go_on` no answer is being made."""

    def go_on(self, *, newer: bool) -> None:
        """The wait is over, the answer follows. `newer`: because of a newer LAC, not of the time."""

    def entry_read(self, *, success: bool) -> None:
        """A fencing read has its entry, or cannot have it; what is left is that the fence becomes durable."""

    def fenced(self, *, success: bool) -> None:
        """The fence is durable, or cannot be; the answer follows."""

    def error(self, error: BaseException) -> None:
        raise self._foreign()

    def added(self) -> bytes:
        """Return the encoded answer of an add, which waits in a lane instead of being sent at once."""
        raise self._foreign()

    def entry(
        self,
        body: bytes | None,
        *,
        entry_id: int | None = None,
        max_lac: int | None = None,
        lac_time_ms: int | None = None,
    ) -> None:
        """A read succeeded; no body when a long poll ended without an entry."""
        raise self._foreign()

    def batch(self, entries: Sequence[bytes]) -> None:
        raise self._foreign()

    def lac_written(self) -> None:
        raise self._foreign()

    def lac_read(self, status: BaseException | None, packet: bytes | None, last_entry: bytes | None) -> None:
        raise self._foreign()

    def forced(self) -> None:
        raise self._foreign()

    def bookie_info(self, total: int | None, free: int | None) -> None:
        raise self._foreign()

    def entry_list(self, availability: bytes) -> None:
        raise self._foreign()

    def _foreign(self) -> TypeError:
        return TypeError(f"{type(self).__name__} does not answer this operation")


@dataclass(slots=True)
class AddRequest:
    """An add of either version."""

    ledger_id: int
    """The ledger id of the entry itself; the answer echoes what the envelope said."""
    entry_id: int
    lac: int
    key: bytes
    entry: bytes
    recovery: bool = False
    high_priority: bool = False
    deferred_sync: bool = False
    life: bytes = NO_LIFE
    """The life of the ledger that is meant, see `bookie_protocol.keys`."""


@dataclass(slots=True)
class ReadRequest:
    """A read of one entry: ordinary, fencing, or a long poll."""

    ledger_id: int
    entry_id: int
    """-1 asks for the last entry."""
    fence_key: bytes | None = None
    """The master key of a fencing read; b"" if it is fencing without a key. None: an ordinary read."""
    life: bytes = NO_LIFE
    """The life of the ledger that a fencing read means."""
    high_priority: bool = False
    previous_lac: int | None = None
    """Set: a long poll."""
    timeout_ms: int | None = None
    piggyback: bool = False
    """Answer a long poll with the entry after `previous_lac`."""
    wants_lac: bool = False
    """The answer carries the LAC known here (version 3)."""
    batch_class: bool = False
    """True if the read is of the traffic class `batch`. Counts for an ordinary read alone."""


@dataclass(slots=True)
class BatchReadRequest:
    """A read of consecutive entries, or of every `step`-th."""

    ledger_id: int
    first_entry_id: int
    max_count: int
    """Entries at most; 0 or less: as many as `max_size` allows."""
    max_size: int
    """Bytes of the answer's frame."""
    fence_key: bytes | None = None
    high_priority: bool = False
    batch_class: bool = False
    """True if the read is of the traffic class `batch`, as in `ReadRequest`."""
    step: int = 1
