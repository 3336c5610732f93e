"""A wire dialect as the client speaks it: bytes in, answers out, no I/O.

Invariants
- A request's key is the bytes by which its answer is found: in v3 the transaction id's varint as it is
  echoed, in v2 the ids of an add, or the header word and the ids. So the answer to an add is not decoded.
- A frame does not name the bookie: one frame serves all replicas of an add.
- `acknowledged` accepts exactly the common answer to an add that succeeded; everything else goes through
  `decode`.
- What a protocol version has no message for is refused with `BadVersion` before anything is sent.

Transaction ids come from the caller and are unique for one client. Pure; any thread.

Source: docs/internals/wire-protocol.md, sections 3, 4 and 12.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

from bookie_client.connection.request import Answer, SplitAdd
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import BadVersion
from bookie_protocol.keys import NO_LIFE
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire.auth import AuthMessage

KeyAndFrame = tuple[bytes, bytes]


class AddEncoder(Protocol):
    """Encodes the adds of one ledger."""

    @property
    def tail(self) -> bytes:
        """Return the bytes behind the entry in each frame."""
        ...

    def __call__(self, txn_id: int, entry_id: int, front: bytes, rest: bytes = b"", /) -> KeyAndFrame:
        """One add. The entry may come in two parts, which are copied once."""
        ...

    def make_heads(self, adds: Sequence[SplitAdd], lac: int, digest: DigestManager, txn_ids: Iterator[int], /) -> None:
        """Give one add or many, of consecutive entries, their `head` and `key`: the header of the entry carries `lac`.
        Head, body and `tail` are the frame then. `txn_ids` counts up."""
        ...


class Dialect(ABC):
    """One protocol version. Each request method gives the key and the frame of a request."""

    version: int
    """2 or 3."""
    add_overhead: int
    """Bytes that the frame of an add has beyond its entry, at most."""

    def shown_key(self, key: bytes) -> str:
        """Return what a request's key tells beside ledger and entry, for messages: the transaction id of version 3."""
        return ""

    @abstractmethod
    def add_encoder(
        self,
        ledger: LedgerLife,
        master_key: bytes,
        *,
        recovery: bool = False,
        background: bool = False,
        restored: bool = False,
        deferred_sync: bool = False,
    ) -> AddEncoder:
        """The encoder of all adds of one ledger, which name its life unless it is `unnamed` (v3; version 2 has no place
        for it). `recovery`: adds that a fenced ledger accepts, with high priority; `background`: such adds without it,
        for copies; `restored`: the same from the ledger's writer; `deferred_sync`: acknowledged before the sync (v3).
        """

    @abstractmethod
    def read(
        self,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        *,
        fence_key: bytes | None = None,
        life: bytes = NO_LIFE,
        recovery: bool = False,
        batch_class: bool = False,
    ) -> KeyAndFrame:
        """`fence_key`: the master key, to fence the ledger first, if it has this `life` (v3); `recovery`: with high
        priority; `batch_class`: of the traffic class `batch`, never together with these."""

    @abstractmethod
    def auth(self, txn_id: int, message: AuthMessage) -> KeyAndFrame:
        """One token of the authentication."""

    def batch_read(
        self,
        txn_id: int,
        ledger_id: int,
        first_entry_id: int,
        max_count: int,
        max_bytes: int,
        *,
        recovery: bool,
        batch_class: bool = False,
        step: int = 1,
    ) -> KeyAndFrame:
        """Consecutive entries from the first on, or every `step`-th. `max_bytes` counts the whole answer. The rest as
        in `read`."""
        raise self._cannot("BATCH_READ_ENTRY", 2)

    def long_poll(
        self, txn_id: int, ledger_id: int, entry_id: int, previous_lac: int, timeout_ms: int, *, piggyback: bool
    ) -> KeyAndFrame:
        """Answered when the LAC passes `previous_lac`, or after `timeout_ms`."""
        raise self._cannot("long poll", 3)

    def read_lac(self, txn_id: int, ledger_id: int) -> KeyAndFrame:
        """Return the explicit LAC and the last entry."""
        raise self._cannot("READ_LAC", 3)

    def write_lac(
        self, txn_id: int, ledger_id: int, master_key: bytes, lac: int, packet: bytes, life: bytes = NO_LIFE
    ) -> KeyAndFrame:
        """Store an explicit LAC."""
        raise self._cannot("WRITE_LAC", 3)

    def force_ledger(self, txn_id: int, ledger_id: int) -> KeyAndFrame:
        """Sync what was acknowledged before its sync."""
        raise self._cannot("FORCE_LEDGER", 3)

    def bookie_info(self, txn_id: int) -> KeyAndFrame:
        """Total and free space."""
        raise self._cannot("GET_BOOKIE_INFO", 3)

    def entries_of_ledger(self, txn_id: int, ledger_id: int) -> KeyAndFrame:
        """Which entries the bookie stores."""
        raise self._cannot("GET_LIST_OF_ENTRIES_OF_LEDGER", 3)

    @abstractmethod
    def acknowledged_run(self, data: bytes) -> tuple[Sequence[bytes], int] | None:
        """The keys, when `data` begins with whole frames that are such answers, and how many bytes these take; None:
        look at each frame. Costs a fraction of `acknowledged`."""

    @abstractmethod
    def acknowledged(self, data: bytes, start: int, end: int) -> bytes | None:
        """Return the key, when the frame body `data[start:end]` is the usual answer to an add that succeeded."""

    @abstractmethod
    def decode(self, body: bytes) -> Answer:
        """Any answer. Raises ProtocolViolation."""

    def _cannot(self, operation: str, version: int) -> BadVersion:
        return BadVersion(
            f"protocol version {self.version} has no {operation}: use ClientOptions(protocol_version={version})"
        )
