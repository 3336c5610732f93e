"""What happened to each ledger, as somebody sees it who sees everything at once.

Bookies, the metadata service, writers and readers report here as things happen; `checks` judges each report, and a
breach is kept in `violations`. The first one ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bookie_protocol.entry import read_prefix
from bookie_protocol.ledger_metadata.codec import decode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.tree import paths
from tests.support.simulation.metadata import ANY_VERSION
from tests.support.simulation.trace import Trace

if TYPE_CHECKING:
    from tests.support.simulation.bookie import VirtualBookie


@dataclass(slots=True)
class Version:
    """One stored state of a ledger's metadata."""

    host: str
    """Who wrote it."""
    metadata: LedgerMetadata


@dataclass
class LedgerHistory:
    """`versions` is never empty."""

    ledger_id: int
    versions: list[Version]
    payloads: dict[int, bytes] = field(default_factory=dict)
    """What the writer gave, by entry id."""
    acked: dict[int, None] = field(default_factory=dict)
    """Acknowledged to the writer's application, in that order."""
    confirmed: int = -1
    """The writer's last add confirmed: what was acknowledged or, with deferred sync, forced."""
    deferred_sync: bool = False
    writer_failed: bool = False
    bulk: bool = False
    """Acknowledgements come for several entries at once, or not at all."""
    writer_lac: Callable[[], int] | None = None
    """The LAC of the writer's handle now; None until there is one."""
    headers: dict[int, int] = field(default_factory=dict)
    """The LAC in the header of each entry as its writer sent it."""
    negatives: dict[int, dict[str, None]] = field(default_factory=dict)
    """Bookies that answered "no such entry" to a fencing read, by entry id asked for."""
    fenced_by: dict[str, None] = field(default_factory=dict)
    """Bookies that answered a fencing read: their fence is durable."""
    is_cut_off: bool = False
    """It is in recovery, and so many bookies have fenced it that no add can reach its ack quorum any more."""
    late: dict[int, None] = field(default_factory=dict)
    """Entries that were appended after it was cut off."""
    heard_lac: int = -1
    """The highest LAC that any reader believed."""
    read_up_to: int = -1
    """The highest entry that any reader was given as confirmed."""

    @property
    def metadata(self) -> LedgerMetadata:
        """What is stored now."""
        return self.versions[-1].metadata

    @property
    def was_recovered(self) -> bool:
        """Somebody has begun to recover it."""
        return any(version.metadata.state is LedgerState.IN_RECOVERY for version in self.versions)


class Judge(Protocol):
    """The part of `checks` that is told by bookies and the metadata service."""

    def metadata_changed(
        self, history: History, ledger: LedgerHistory, host: str, before: LedgerMetadata, after: LedgerMetadata
    ) -> None: ...

    def entry_stored(
        self, history: History, ledger: LedgerHistory, bookie_id: str, entry_id: int, entry: bytes
    ) -> None: ...

    def written_blindly(self, history: History, ledger: LedgerHistory, host: str) -> None: ...

    def stored_by_writer(self, history: History, ledger: LedgerHistory, bookie_id: str, entry_id: int) -> None: ...

    def fenced(self, history: History, ledger: LedgerHistory, bookie_id: str) -> None: ...


class History:
    """`bookies` by bookie id; filled by the world."""

    def __init__(self, root: str, trace: Trace, judge: Judge) -> None:
        self._root = root
        self.judge = judge
        self._trace = trace
        self.bookies: dict[str, VirtualBookie] = {}
        self.ledgers: dict[int, LedgerHistory] = {}
        self.inexact_lengths: Mapping[int, None] = {}
        """Ledgers whose last entry could not be read when they were recovered, which was said in the log."""
        self.violations: list[str] = []
        self.on_violation: Callable[[], None] = lambda: None
        self.on_event: Callable[[str, str], None] = lambda event, host: None
        self.counts: dict[str, int] = {}

    def violated(self, rule: str, ledger: LedgerHistory | None, what: str) -> None:
        where = "" if ledger is None else f"ledger {ledger.ledger_id}: "
        self.violations.append(f"{rule}: {where}{what}")
        self._trace("CHECK", self.violations[-1])
        self.on_violation()

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    # --- the metadata service -------------------------------------------------------------------------------

    def metadata_written(self, host: str, path: str, data: bytes, version: int) -> None:
        """Any node was written, by a request that named this version."""
        directory, _, name = path.removeprefix(self._root).rpartition("/")
        ledger_id = paths.leaf_ledger_id(directory, name) if path.startswith(self._root) else None
        if ledger_id is None:
            return
        metadata = decode_ledger_metadata(ledger_id, data, 0)
        if self._trace.on:
            segments = ", ".join(f"{first}: {' '.join(members)}" for first, members in metadata.ensembles.items())
            end = f" at {metadata.last_entry_id}" if metadata.is_closed else ""
            self._trace("metadata", f"ledger {ledger_id} is {metadata.state.value}{end} [{segments}], says {host}")
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            self.ledgers[ledger_id] = LedgerHistory(ledger_id, [Version(host, metadata)])
        else:
            before = ledger.metadata
            ledger.versions.append(Version(host, metadata))
            if version == ANY_VERSION:
                self.judge.written_blindly(self, ledger, host)
            self.judge.metadata_changed(self, ledger, host, before, metadata)
            if before.ensembles != metadata.ensembles:
                self.count("ensemble changed")
                self.on_event("segment", host)
            if metadata.state is LedgerState.IN_RECOVERY:
                self.on_event("in recovery", host)
        self.count(f"metadata {metadata.state.value}")
        self.on_event("metadata", host)

    # --- bookies --------------------------------------------------------------------------------------------

    def stored(self, bookie_id: str, ledger_id: int, entry_id: int, entry: bytes, *, recovery: bool = False) -> None:
        """`recovery`: it is no writer's add, but a recovery's or a copy."""
        ledger = self.ledgers[ledger_id]
        if not recovery:
            self.judge.stored_by_writer(self, ledger, bookie_id, entry_id)
        if ledger.metadata.state is LedgerState.OPEN:
            ledger.headers.setdefault(entry_id, read_prefix(entry)[2])
        self.judge.entry_stored(self, ledger, bookie_id, entry_id, entry)

    def denied(self, bookie_id: str, ledger_id: int, entry_id: int) -> None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None:
            ledger.negatives.setdefault(entry_id, {})[bookie_id] = None

    def fenced(self, bookie_id: str, ledger_id: int) -> None:
        """The bookie answers a fencing read."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None:
            self.judge.fenced(self, ledger, bookie_id)

    def emptied(self, bookie_id: str) -> None:
        """The bookie lost its disk and does not know it, so it has forgotten its fences too."""
        for ledger in self.ledgers.values():
            if bookie_id in ledger.fenced_by:
                del ledger.fenced_by[bookie_id]
                ledger.is_cut_off = False
                ledger.late.clear()

    # --- writers --------------------------------------------------------------------------------------------

    def appends(self, ledger: LedgerHistory, entry_id: int, payload: bytes) -> None:
        """The writer's application is about to append this."""
        ledger.payloads[entry_id] = payload
        if ledger.is_cut_off:
            ledger.late[entry_id] = None
            self.count("appended after the fence")
