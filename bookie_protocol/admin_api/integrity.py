"""The integrity of a bookie: the scrubber, the check of what was lost, the rebuild of indexes."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from bookie_protocol.admin_api.bodies import API, Body, Route

ScrubPhase = Literal["waiting", "entry logs", "index", "journals"]
DamageKind = Literal["entry", "entry log", "ledgers map", "index", "journal"]
RebuildPhase = Literal[
    "waiting", "waiting for garbage collection", "ledgers", "entry logs", "old rows", "putting in place"
]
RebuildOutcome = Literal["none", "running", "done", "stopped", "damaged", "failed"]


class ScrubProgress(Body):
    """The work of the scrubber in one directory."""

    directory: str
    """A ledger or journal directory; of an engine with one space of entry logs, the first one stands for all."""
    phase: ScrubPhase
    """`waiting` between passes; entry logs come before the index."""
    pass_number: int
    """Number of the pass that runs, or that ran last; counts from 1."""
    done: int
    """Entry logs, ledgers or journals of this phase that are checked."""
    total: int
    """Total number of these."""
    started_time: int
    """Time at which this pass began, in ms since 1970; 0: never."""
    completed_time: int
    """Time at which the last complete pass ended, in ms since 1970; 0: never."""
    entries: int
    """Entries that this pass has read since the bookie was started."""
    digests: int
    """Number of these whose digest was checked: others need a password, or their ledger is not known."""
    rows: int
    """Rows of the index that were followed."""
    restored_rows: int
    """Rows of the index that were missing and were put back."""
    entry_logs: int
    """Entry logs that were read."""
    journals: int
    """Journals that were read."""
    errors: list[str]
    """Failed checks, one line each; the next pass tries again."""


class ScrubStatus(Body):
    """The scrubber of this bookie."""

    enabled: bool
    """Passes come by themselves (`localScrubInterval`)."""
    running: bool
    """A pass goes on."""
    next_pass_time: int | None
    """Time at which the next pass begins, in ms since 1970; null: one is running, or none is planned."""
    damages: int
    """Number of current findings; `/api/v1/bookie/scrub/damages` lists them."""
    damages_not_kept: int
    """Findings beyond what is kept; the pass after a repair finds them again."""
    directories: list[ScrubProgress]
    """One each."""


class ScrubRequest(Body):
    """The outcome of the request for a pass."""

    triggered: bool
    """false: a pass goes on already, or was asked for before."""


class DamageFound(Body):
    """One finding: refused to readers, kept from garbage collection, until another copy is there."""

    kind: DamageKind
    """Kind of the damage."""
    detail: str
    """Finding and its place."""
    file_id: int | None
    """Id of the entry log or journal; null: it is neither."""
    ledger_id: int | None
    """The ledger; null: of several, or not known."""
    entry_id: int | None
    """The entry; null: of several, or not known."""
    found_time: int
    """Time at which it was first found, in ms since 1970."""


class DataIntegrity(Body):
    """The check after lost cookies or an unclean stop without journaled data (`dataIntegrityChecking`), of a new bookie
    that ledgers name already, and of ledgers that are in limbo because their index was lost or damaged."""

    enabled: bool
    """It is switched on, or needed; otherwise everything below is 0 or false."""
    needed: bool
    """Ledgers are in limbo, or all have to be compared, until a check has ended without a failure."""
    running: bool
    """A check goes on."""
    ledgers_checked: int
    """Ledgers checked in this check, or the last one."""
    ledgers_failed: int
    """Number of these that will be tried again."""
    ledgers_recovered: int
    """Ledgers that were open and were closed, since the bookie was started."""
    entries_copied: int
    """Entries fetched from other bookies, since the bookie was started."""
    last_error: str
    """Reason of the last failure; empty: none."""
    in_limbo: int = 0
    """Ledgers in limbo, when the check looked last."""


class RebuildProgress(Body):
    """The rebuild that runs, or ran last, in one ledger directory. Counts of rows are of the location index."""

    directory: str
    """The ledger directory."""
    phase: RebuildPhase
    """Current phase; `waiting` before and after, and while another directory is done."""
    outcome: RebuildOutcome
    """`stopped`, `damaged` (entry logs are damaged, and that was not accepted) and `failed`: the old index is used."""
    detail: str
    """Reason why it ended like that; empty: it runs, or all went well."""
    started_time: int
    """Start in ms since 1970; 0: it has not begun."""
    ended_time: int
    """End in ms since 1970; 0: it has not ended."""
    bytes_done: int
    """Bytes of entry logs that were read."""
    bytes_total: int
    """Total of these bytes, as of when reading began."""
    entry_logs: int
    """Entry logs that were read."""
    entries: int
    """Entries of known ledgers in them, copies included."""
    entries_of_unknown_ledgers: int
    """Entries of ledgers that were deleted."""
    changed_rows: int
    """Rows that the old index lacked or had otherwise."""
    salvaged_rows: int
    """Rows that only the old index had, and whose entries are there."""
    dangling_rows: int
    """Rows whose entries are not there: they are kept, so that reads fail and deny nothing."""
    ledgers: int
    """Ledgers in the new ledger index."""
    restored_ledgers: int
    """Number of these that the old one lacked; they are fenced."""
    ledgers_without_key: int
    """Number of these whose master key is unknown: the next client that presents one sets it."""
    damages: list[str]
    """Damaged entry logs and journals, the first ones."""
    old_index_unreadable: str
    """Reason why the old location index could not be read to its end; empty: it could."""
    backups: list[str]
    """Paths of the old databases; they are no longer needed."""


class RebuildBody(Body, forbid_unknown_fields=True):
    """The indexes to rebuild. Everything may be left out."""

    directories: Annotated[list[str], Meta(min_length=1)] | UnsetType = UNSET
    """Ledger directories as they are configured; left out: all."""
    locations: bool = True
    """false: not the location index."""
    ledgers: bool = True
    """false: not the ledger index."""
    accept_damage: bool = False
    """true: use the new location index although entry logs are damaged; what lies behind the damage may be missing."""


class RebuildBegun(Body):
    """The outcome of the request."""

    triggered: bool
    """false: a rebuild runs already."""


class RebuildStop(Body):
    """The outcome of the request."""

    stopping: bool
    """false: none runs."""


SCRUB_STATUS: Final = Route("GET", f"{API}/bookie/scrub", ScrubStatus)
SCRUB: Final = Route("PUT", SCRUB_STATUS.path, ScrubRequest)
DAMAGES: Final = Route("GET", f"{API}/bookie/scrub/damages", list[DamageFound])
DATA_INTEGRITY: Final = Route("GET", f"{API}/bookie/data_integrity", DataIntegrity)
REBUILD_STATUS: Final = Route("GET", f"{API}/bookie/index_rebuild", list[RebuildProgress])
REBUILD: Final = Route("PUT", REBUILD_STATUS.path, RebuildBegun, body=RebuildBody)
STOP_REBUILD: Final = Route("DELETE", REBUILD_STATUS.path, RebuildStop)
