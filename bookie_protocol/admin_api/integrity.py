"""What is sound and what is damaged: the scrubber, the check of what was lost, the rebuild of indexes."""

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
    """What the scrubber does in one directory."""

    directory: str
    """A ledger or journal directory; of an engine with one space of entry logs, the first one stands for all."""
    phase: ScrubPhase
    """`waiting` between passes; entry logs come before the index."""
    pass_number: int
    """Of the pass that runs, or that ran last; counts from 1."""
    done: int
    """Entry logs, ledgers or journals of this phase that are checked."""
    total: int
    """Of so many."""
    started_time: int
    """When this pass began, in ms since 1970; 0: never."""
    completed_time: int
    """When the last complete pass ended, in ms since 1970; 0: never."""
    entries: int
    """Entries that this pass has read since the bookie was started."""
    digests: int
    """Of these, entries whose digest was checked: others need a password, or their ledger is not known."""
    rows: int
    """Rows of the index that were followed."""
    restored_rows: int
    """Rows of the index that were missing and were put back."""
    entry_logs: int
    """Entry logs that were read."""
    journals: int
    """Journals that were read."""
    errors: list[str]
    """What could not be checked, one line each; the next pass tries again."""


class ScrubStatus(Body):
    """The scrubber of this bookie."""

    enabled: bool
    """Passes come by themselves (`localScrubInterval`)."""
    running: bool
    """A pass goes on."""
    next_pass_time: int | None
    """When the next pass begins, in ms since 1970; null: one goes on, or none is planned."""
    damages: int
    """Findings that stand; `/api/v1/bookie/scrub/damages` lists them."""
    damages_not_kept: int
    """Findings beyond what is kept; the pass after a repair finds them again."""
    directories: list[ScrubProgress]
    """One each."""


class ScrubRequest(Body):
    """What became of the request for a pass."""

    triggered: bool
    """false: a pass goes on already, or was asked for before."""


class DamageFound(Body):
    """One finding: refused to readers, kept from garbage collection, until another copy is there."""

    kind: DamageKind
    """What is damaged."""
    detail: str
    """What was found, and where."""
    file_id: int | None
    """Id of the entry log or journal; null: it is neither."""
    ledger_id: int | None
    """The ledger; null: of several, or not known."""
    entry_id: int | None
    """The entry; null: of several, or not known."""
    found_time: int
    """When it was found first, in ms since 1970."""


class DataIntegrity(Body):
    """The check after lost cookies or an unclean stop without journaled data (`dataIntegrityChecking`), and of a new
    bookie that ledgers name already."""

    enabled: bool
    """It is switched on, or needed; otherwise everything below is 0 or false."""
    needed: bool
    """Ledgers are in limbo until a check has ended without a failure."""
    running: bool
    """A check goes on."""
    ledgers_checked: int
    """In this check, or the last one."""
    ledgers_failed: int
    """Of these, ledgers that will be tried again."""
    ledgers_recovered: int
    """Ledgers that were open and were closed, since the bookie was started."""
    entries_copied: int
    """Entries fetched from other bookies, since the bookie was started."""
    last_error: str
    """Why the last failure was; empty: none."""


class RebuildProgress(Body):
    """The rebuild that runs, or ran last, in one ledger directory. Counts of rows are of the location index."""

    directory: str
    """The ledger directory."""
    phase: RebuildPhase
    """What goes on; `waiting` before and after, and while another directory is done."""
    outcome: RebuildOutcome
    """`stopped`, `damaged` (entry logs are damaged, and that was not accepted) and `failed`: the old index is used."""
    detail: str
    """Why it ended like that; empty: it runs, or all went well."""
    started_time: int
    """In ms since 1970; 0: it has not begun."""
    ended_time: int
    """In ms since 1970; 0: it has not ended."""
    bytes_done: int
    """Bytes of entry logs that were read."""
    bytes_total: int
    """Of so many, as of when reading began."""
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
    """Of these, ledgers that the old one lacked; they are fenced."""
    ledgers_without_key: int
    """Of these, ledgers whose master key nobody knows: the next client that presents one sets it."""
    damages: list[str]
    """Damaged entry logs and journals, the first ones."""
    old_index_unreadable: str
    """Why the old location index could not be read to its end; empty: it could."""
    backups: list[str]
    """Where the old databases are now; nothing needs them any more."""


class RebuildBody(Body, forbid_unknown_fields=True):
    """What to rebuild. Everything may be left out."""

    directories: Annotated[list[str], Meta(min_length=1)] | UnsetType = UNSET
    """Ledger directories as they are configured; left out: all."""
    locations: bool = True
    """false: not the location index."""
    ledgers: bool = True
    """false: not the ledger index."""
    accept_damage: bool = False
    """true: use the new location index although entry logs are damaged; what lies behind the damage may be missing."""


class RebuildBegun(Body):
    """What became of the request."""

    triggered: bool
    """false: a rebuild runs already."""


class RebuildStop(Body):
    """What became of the request."""

    stopping: bool
    """false: none runs."""


SCRUB_STATUS: Final = Route("GET", f"{API}/bookie/scrub", ScrubStatus)
SCRUB: Final = Route("PUT", SCRUB_STATUS.path, ScrubRequest)
DAMAGES: Final = Route("GET", f"{API}/bookie/scrub/damages", list[DamageFound])
DATA_INTEGRITY: Final = Route("GET", f"{API}/bookie/data_integrity", DataIntegrity)
REBUILD_STATUS: Final = Route("GET", f"{API}/bookie/index_rebuild", list[RebuildProgress])
REBUILD: Final = Route("PUT", REBUILD_STATUS.path, RebuildBegun, body=RebuildBody)
STOP_REBUILD: Final = Route("DELETE", REBUILD_STATUS.path, RebuildStop)
