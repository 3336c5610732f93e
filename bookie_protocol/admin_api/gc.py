"""Garbage collection: what it does, why a log is still there, what compaction would give back."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from bookie_protocol.admin_api.bodies import API, Body, Query, Route

YesNo = Literal["true", "false"]
"""A boolean as Apache's bookies write it."""
EntryLog = Annotated[str, Meta(extra_json_schema={"pattern": r"^(0x)?[0-9a-fA-F]{1,16}(\.log)?$"})]
MOST_LOGS: Final = 10_000
INDEX_COMPACTIONS: Final = Route("GET", f"{API}/bookie/entry_location_compact", dict[str, bool])


class ForceState(Body):
    """The state of a forced pass."""

    in_force_gc: YesNo = field(name="is_in_force_gc")
    """A forced pass waits or runs in some storage."""


class ForceBody(Body):
    """Which compaction to run; one that is not named runs unless it is suspended."""

    force_major: bool | UnsetType = UNSET
    """Force major compaction, even while it is suspended."""
    force_minor: bool | UnsetType = UNSET
    """Force minor compaction, even while it is suspended."""


class Suspensions(Body):
    """Which compactions are held back."""

    minor_suspended: YesNo = field(name="isMinorGcSuspended")
    """Minor compaction is suspended in some storage."""
    major_suspended: YesNo = field(name="isMajorGcSuspended")
    """Major compaction is suspended in some storage."""


class SuspendBody(Body):
    """The compactions to hold back; at least one of them."""

    suspend_major: bool | UnsetType = UNSET
    """true: hold back major compaction."""
    suspend_minor: bool | UnsetType = UNSET
    """true: hold back minor compaction."""


class ResumeBody(Body):
    """The compactions to resume; at least one of them."""

    resume_major: bool | UnsetType = UNSET
    """true: allow major compaction."""
    resume_minor: bool | UnsetType = UNSET
    """true: allow minor compaction."""


class CompactIndexBody(Body):
    """Which location indexes to compact."""

    entry_location_rocks_db_compact: bool = field(name="entryLocationRocksDBCompact")
    """false: none."""
    entry_locations: str | UnsetType = UNSET
    """Paths with commas between them; none: all."""


class GcDetails(Body, kw_only=True):
    """One storage, as the reference tells it."""

    force_compacting: bool
    """A forced pass waits or runs."""
    major_compacting: bool
    """A major compaction runs."""
    minor_compacting: bool
    """A minor compaction runs."""
    last_major_compaction_time: int
    """Time at which the last one ended, in ms since 1970; before the first: when the bookie was new."""
    last_minor_compaction_time: int
    """Time at which the last minor one ended, as for the major one."""
    last_entry_location_compaction_time: int = 0
    """Time at which the location index was last compacted by itself, or at which the bookie started; ms since 1970."""
    major_compaction_counter: int
    """Major compactions so far."""
    minor_compaction_counter: int
    """Minor compactions so far."""
    entry_location_compaction_counter: int = 0
    """Compactions of the location index since the start."""


class GcPass(Body):
    """The work of one pass."""

    ledgers_deleted: int
    """Ledgers that were forgotten."""
    logs_deleted: int
    """Entry logs that were removed."""
    logs_compacted: int
    """Entry logs of which what lived was copied first."""
    reclaimed_bytes: int
    """Bytes given back, less what was copied."""
    compaction: Literal["major", "minor"] | None
    """Which compaction ran."""
    errors: list[str]
    """Errors of the pass, one line each; the next pass tries again."""


class GcProgress(Body):
    """The current work of one collector, and its last pass."""

    directory: str
    """Its ledger directory; of an engine with one collector: all of them."""
    phase: str
    """`waiting` between passes."""
    done: int
    """Entry logs of this phase that are done."""
    total: int
    """Number of entry logs in this phase; 0 if the phase counts none."""
    force_compacting: bool
    """A forced pass waits or runs."""
    major_suspended: bool
    """Major compaction is held back."""
    minor_suspended: bool
    """Minor compaction is held back."""
    last_pass: GcPass | None
    """null: none has ended since the start."""
    deletions_held: str | None = None
    """Reason why ledgers that the metadata service does not have are kept, with the remedy; null: only their grace
    period."""
    ledgers_awaiting_deletion: int = 0
    """Number of such ledgers that the last pass found."""


class AllowDeletionsBody(Body):
    """The deletions that the next pass may make; at least one of them. Apache's bookies do not have this."""

    ledgers: Annotated[int, Meta(ge=0)] = 0
    """It may delete up to so many ledgers that the metadata service does not have, however unusual that is."""
    older_metadata: bool = False
    """true: the state of the metadata service counts, although it is older than one before."""


class LedgerShare(Body):
    """One ledger of an entry log."""

    ledger_id: int
    """Its id."""
    bytes: int
    """Bytes that it holds of the log, deleted entries included."""


class LogWhy(Body):
    """The reason why one entry log still exists."""

    directory: str
    """The ledger directory of its storage."""
    entry_log: str
    """Name of the file."""
    entry_log_id: int
    """Its id, which the name says in hexadecimal."""
    path: str
    """The file."""
    size: int
    """Bytes of the file."""
    usage: float | None
    """Live share at the last pass, 0 to 1; null: not measured."""
    live_bytes: int | None
    """Bytes that live, which compaction would copy; null: not measured."""
    in_doubt_bytes: int | None
    """Number of these bytes that count as live because their state is unknown; null: not measured."""
    owners: list[LedgerShare] | None
    """The ledgers that live in it, the largest first, not all of very many; null: not known."""
    reason: str
    """Reason why it exists and when it will go, in a sentence."""
    age_seconds: int | None = None
    """Seconds since it was last written."""


class EntryLogQuery(Query):
    """One entry log."""

    entry_log: EntryLog = field(name="entryLog")
    """Name or id of an entry log: `1f.log`, `0x1f`, `1f`, or 31 in decimal."""


class LogEntry(Body):
    """One entry log of a list."""

    entry_log: str
    """Name of the file."""
    entry_log_id: int
    """Its id."""
    size: int
    """Bytes of the file."""
    age_seconds: int
    """Seconds since it was last written."""
    usage: float | None
    """Live share at the last pass, 0 to 1; null: not measured."""
    state: Literal["written", "complete", "quarantined", "held"]
    """written: it is being written, or was not rotated and synced yet; quarantined, held: it is damaged, and garbage
    collection or the scrubber leaves it alone."""


class StorageLogs(Body):
    """The entry logs of one storage."""

    directory: str
    """Its ledger directory."""
    logs: list[LogEntry]
    """The one that was written longest ago first, at most as many as were asked for."""
    left_out: int
    """Logs that are not in the list because of the limit."""


class LogsQuery(Query):
    """The number of logs to list."""

    limit: Annotated[int, Meta(ge=1, le=MOST_LOGS)] = 1000
    """Maximum number of logs of each storage."""


class UsageTenth(Body):
    """The entry logs of one tenth of usage."""

    from_percent: int
    """Live share from here ..."""
    to_percent: int
    """... to here; the last tenth includes it."""
    logs: int
    """Entry logs."""
    total_bytes: int
    """Their entries."""
    reclaimable_bytes: int
    """Number of these bytes that are no longer live."""
    oldest_age_seconds: int | None = None
    """Seconds since the oldest of the logs was last written."""


class CompactionOutlook(Body):
    """The work that one kind of compaction would do now."""

    threshold: float
    """Logs with a smaller live share are compacted; 0 or less: none."""
    logs: int
    """Number of these logs."""
    rewritten_bytes: int
    """Bytes that would be copied."""
    reclaimable_bytes: int
    """Bytes that would be given back."""
    due_in_seconds: int | None
    """0: with the next pass; null: off or suspended."""


class GcForecast(Body):
    """The space that one storage could give back, as of its last pass."""

    directory: str
    """Its ledger directory."""
    usage: list[UsageTenth]
    """Usage from the emptiest logs to the fullest."""
    minor: CompactionOutlook
    """The minor compaction."""
    major: CompactionOutlook
    """The major compaction, which takes the minor one's logs too."""
    unmeasured_logs: int
    """Logs that are not counted: written at present, or not looked at yet."""


class QuarantinedLog(Body):
    """A damaged entry log: neither deleted nor compacted; what of it can be read is served."""

    directory: str
    """The ledger directory of its storage."""
    entry_log: str
    """Name of the file."""
    entry_log_id: int
    """Its id."""
    detail: str
    """Place and kind of the damage."""
    found_by: Literal["gc", "scrub"]
    """Finder of the damage. gc: garbage collection; the log stays until it is removed. scrub: the scrubber; the
    log is free again when the damage is mended."""


FORCE_STATE: Final = Route("GET", f"{API}/bookie/gc", ForceState)
FORCE: Final = Route("PUT", FORCE_STATE.path, str, body=ForceBody)
SUSPENSIONS: Final = Route("GET", f"{API}/bookie/gc/suspend_compaction", Suspensions)
SUSPEND: Final = Route("PUT", SUSPENSIONS.path, str, body=SuspendBody)
RESUME: Final = Route("PUT", f"{API}/bookie/gc/resume_compaction", str, body=ResumeBody)
COMPACT_INDEXES: Final = Route("PUT", INDEX_COMPACTIONS.path, str, body=CompactIndexBody)
DETAILS: Final = Route("GET", f"{API}/bookie/gc_details", list[GcDetails])
PROGRESS: Final = Route("GET", f"{API}/bookie/gc/progress", list[GcProgress])
ALLOW_DELETIONS: Final = Route("PUT", f"{API}/bookie/gc/deletions", list[GcProgress], body=AllowDeletionsBody)
WHY: Final = Route("GET", f"{API}/bookie/gc/why", list[LogWhy], EntryLogQuery)
FORECAST: Final = Route("GET", f"{API}/bookie/gc/forecast", list[GcForecast])
LOGS: Final = Route("GET", f"{API}/bookie/gc/logs", list[StorageLogs], LogsQuery)
QUARANTINE: Final = Route("GET", f"{API}/bookie/gc/quarantine", list[QuarantinedLog])
