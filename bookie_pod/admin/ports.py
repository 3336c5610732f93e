"""What the admin API needs of the node. The node implements these; the handlers know nothing else.

Threads: the event loop, but for methods that say that they block: the handlers call those on threads of their own.
Any method may raise what the error taxonomy knows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bookie_pod.admin.autorecovery_port import AutoRecoveryPort
from bookie_pod.admin.decommission_port import DecommissionPort
from bookie_pod.admin.facts_port import FactsPort
from bookie_pod.server.status import NodeState
from bookie_pod.storage.gc.reports import Forecast, GcState, LogReport
from bookie_pod.storage.index_rebuild.state import RebuildRequest, RebuildState
from bookie_pod.storage.integrity.scrub import ScrubState
from bookie_protocol.ledger_metadata.model import LedgerMetadata


class Space(NamedTuple):
    """Bytes over distinct file systems."""

    total: int
    free: int
    fullest_used_percent: float = 0.0
    """Of the fullest of them."""


class Mark(NamedTuple):
    """How far one journal is synced."""

    journal_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class DiskFiles:
    """Names of files, without their folders."""

    journal: Sequence[str]
    entry_log: Sequence[str]
    index: Sequence[str]


class ClusterState(NamedTuple):
    """The cluster in numbers."""

    auditor_id: str | None
    is_under_replicated: bool
    is_replication_enabled: bool
    total: int
    writable: int
    read_only: int


class NodePort(Protocol):
    """This bookie."""

    @property
    def bookie_id(self) -> str: ...
    @property
    def address(self) -> str:
        """Host and port that clients are told."""
        ...

    def state(self) -> NodeState: ...
    def space(self) -> Space:
        """Blocks."""
        ...

    def marks(self) -> Sequence[Mark]:
        """One per journal."""
        ...

    def files(self) -> DiskFiles:
        """Blocks."""
        ...

    async def set_read_only(self, read_only: bool, decommission: int | None = None) -> None:
        """Change the mode by an operator's word and announce it. `Refused` where the configuration forbids it.

        `decommission`: when the one began that asks for it. `Refused`, and nothing is changed, if that is over;
        `MetadataError` if nobody can tell."""
        ...

    async def drain_clients(self) -> None:
        """Before a stop: take no more writes, for this process only, and flush. Returns when that is announced, if the
        metadata service answers, and everything acknowledged is in ledger storage."""
        ...

    async def check_sanity(self) -> bool:
        """Write, read back and delete a small ledger on this bookie; whether all of that went well."""
        ...

    async def expand_storage(self) -> None:
        """Stamp new, empty directories of the configuration. `InvalidCookie` where that is refused."""
        ...

    def index_compactions(self) -> Mapping[str, bool]:
        """Path of each location index, and whether it is being compacted on request."""
        ...

    def compact_indexes(self, paths: Sequence[str] | None) -> None:
        """Begin in the background (None: all). `BadRequest` for an unknown path."""
        ...


class GcPort(Protocol):
    """The garbage collectors, one per storage."""

    @property
    def force_pending(self) -> bool: ...
    @property
    def major_suspended(self) -> bool: ...
    @property
    def minor_suspended(self) -> bool: ...
    def force(self, major: bool | None = None, minor: bool | None = None) -> None: ...
    def suspend(self, *, major: bool = False, minor: bool = False) -> None: ...
    def resume(self, *, major: bool = False, minor: bool = False) -> None: ...
    def states(self) -> Sequence[tuple[str, GcState]]:
        """Directory and state of each collector."""
        ...

    def reports(self, log_id: int) -> Sequence[tuple[str, LogReport]]:
        """Directory and report wherever there is such a log. Blocks."""
        ...

    def forecasts(self) -> Sequence[tuple[str, Forecast]]:
        """Blocks."""
        ...


class DataCheckState(NamedTuple):
    """What the data-integrity check does (`dataIntegrityChecking`)."""

    needed: bool
    running: bool
    ledgers_checked: int
    ledgers_failed: int
    entries_copied: int
    ledgers_recovered: int
    last_error: str


class IntegrityPort(Protocol):
    """The scrubber, and the check of what was lost."""

    def scrub_state(self) -> ScrubState: ...
    def request_scrub(self) -> bool:
        """Ask for a pass; False if one runs or was asked for before."""
        ...

    def rebuild_states(self) -> Sequence[RebuildState]:
        """One per ledger directory; none where the engine has no databases."""
        ...

    def request_rebuild(self, request: RebuildRequest) -> bool:
        """Begin; False if one runs. `BadRequest` for an unknown folder, `Refused` where there are no databases."""
        ...

    def cancel_rebuild(self) -> bool:
        """Stop the one that runs; False if none does."""
        ...

    def data_check(self) -> DataCheckState | None:
        """None: it is switched off."""
        ...


class ClusterPort(Protocol):
    """The other bookies, through the metadata service and the client."""

    async def bookies(self, *, read_only: bool) -> Sequence[str]:
        """Ids of the registered bookies of this mode, in order."""
        ...

    async def hosts(self, bookie_ids: Sequence[str]) -> Mapping[str, str | None]:
        """The host that each bookie published; None: none."""
        ...

    async def space(self) -> Mapping[str, Space]:
        """What every bookie says that answers; the others are missing."""
        ...

    async def state(self) -> ClusterState: ...


class LedgerPort(Protocol):
    """Ledgers of the whole cluster."""

    def ids(self) -> AsyncIterator[int]:
        """All, ascending; complete, or it raises."""
        ...

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """`NotThere` if the ledger does not exist."""
        ...

    async def delete(self, ledger_id: int) -> None:
        """One that does not exist is fine."""
        ...

    def entries(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, bytes], None]:
        """Ids and payloads; `last` None, or above the end: up to the last one confirmed."""
        ...


class SettingsPort(Protocol):
    """The configuration as it is held in memory."""

    def shown(self) -> Mapping[str, str]:
        """Keys that somebody set, secrets left out."""
        ...

    async def change(self, values: Mapping[str, str]) -> None:
        """Set keys until the next start. `InvalidConfiguration` names what is wrong; then nothing changes."""
        ...


@dataclass(frozen=True, slots=True)
class AdminPorts:
    """All of them."""

    node: NodePort
    gc: GcPort
    integrity: IntegrityPort
    cluster: ClusterPort
    ledgers: LedgerPort
    settings: SettingsPort
    decommission: DecommissionPort
    auto_recovery: AutoRecoveryPort
    facts: FactsPort
