"""This bookie: its mode, its space, its sanity, its configuration."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from bookie_protocol.admin_api.bodies import API, NOTHING, Body, Query, Route, Whole

LAST_LOG_MARK: Final = Route("GET", f"{API}/bookie/last_log_mark", dict[str, str])
EXPAND_STORAGE: Final = Route("PUT", f"{API}/bookie/expand_storage", NOTHING)
_SETTINGS: Final[Any] = dict[str, Annotated[Any, Meta(extra_json_schema={"type": "string"})]]
"""Our bookies tell texts; what Apache's tell, which is numbers, flags and lists too, is taken as well."""
CONFIG: Final[Route[dict[str, Any]]] = Route("GET", f"{API}/config/server_config", _SETTINGS)
"""Values by key."""
SET_CONFIG: Final = Route("PUT", CONFIG.path, NOTHING, body=dict[str, str | int | float | bool])


class BookieState(Body):
    """The flags of the bookie."""

    running: bool
    """It serves."""
    read_only: bool
    """It takes no ordinary writes."""
    shutting_down: bool
    """It is being stopped."""
    available_for_high_priority_writes: bool
    """Its disks have room for the writes of recovery."""


class ReadOnlyState(Body):
    """The write mode of the bookie."""

    read_only: bool
    """true: it takes no ordinary writes."""


class ReadOnlyBody(Body):
    """The mode that is wanted."""

    read_only: bool
    """If true, take no writes until it is set to false again."""


class ReadOnlyQuery(Query):
    """The origin of the request for the mode."""

    decommission: Whole | None = None
    """The time in ms since 1970 at which the decommission began that asks for it: refused once that is over."""


class SanityResult(Body):
    """The outcome of the sanity test."""

    passed: bool
    """A ledger was written on this bookie, read back and deleted."""
    read_only: bool
    """The bookie takes no writes, so nothing was tried."""


class SpaceQuery(Query):
    """The extent of the answer about disk space."""

    fullest: bool = False
    """Tell how full the fullest file system is, and what the bookie has on them, too."""


class BookieSpace(Body):
    """Space on the file systems of the ledger directories, each counted once."""

    free_space: int
    """Free bytes."""
    total_space: int
    """All bytes."""
    fullest_used_percent: float | UnsetType = UNSET
    """Used percentage of the fullest file system, 0 to 100, if `fullest` asks for it: a bookie is read-only once
    one is full, whatever the sum is."""
    entry_log_bytes: int | UnsetType = UNSET
    """Bytes of this bookie's entry logs, where `fullest` asks for it: other programs may use the file systems too."""
    file_systems: list[str] | UnsetType = UNSET
    """An id of each file system on this machine, where `fullest` asks for it: bookies that name the same one share its
    space."""


class FilesQuery(Query):
    """Which files to name."""

    file_type: Literal["journal", "entrylog", "index"] | None = None
    """One kind only."""


class BookieLoad(Body):
    """The work of this bookie. Counts are since it started; quantiles are of the last full minute."""

    bookie_id: str
    """Its id."""
    read_only: bool
    """It takes no ordinary writes."""
    complaint: str | None
    """Current problem, in one line; null: none."""
    clock_seconds: float
    """A clock that only grows: two answers of one process are as far apart as it says."""
    free_space: int
    """Free bytes on the file systems of the ledger directories, each counted once."""
    total_space: int
    """All bytes of these."""
    fullest_used_percent: float
    """Used percentage of the fullest of them, 0 to 100."""
    file_systems: list[str]
    """An id of each of them on this machine: bookies that name the same one share its space."""
    adds: int
    """Entries that were added."""
    adds_failed: int
    """Entries whose add was refused or failed."""
    reads: int
    """Reads that were answered."""
    reads_failed: int
    """Reads that were refused or failed."""
    written_bytes: int
    """Bytes of the entries that were added."""
    read_bytes: int
    """Bytes of the entries that were read."""
    add_p50_ms: float | None
    """Half of all adds took at most this long, in ms; null: there were none."""
    add_p99_ms: float | None
    """99 % of all adds took at most this long, in ms; null: there were none."""
    read_p50_ms: float | None
    """Half of all reads took at most this long, in ms; null: there were none."""
    read_p99_ms: float | None
    """99 % of all reads took at most this long, in ms; null: there were none."""
    sync_p99_ms: float | None
    """99 % of the syncs of the slowest journal took at most this long, in ms; null: there were none."""
    write_cache_bytes: int
    """Bytes of entries in memory that are not in an entry log yet."""
    write_cache_max_bytes: int
    """Maximum of these; 0: not known."""
    read_cache_bytes: int
    """Bytes of entries that are kept in memory for readers."""
    read_cache_max_bytes: int
    """Maximum of these; 0: this engine has no such cache."""
    entry_log_bytes: int
    """Bytes of the entry logs at the last pass of garbage collection."""
    live_bytes: int
    """Number of these bytes that belong to ledgers that exist."""
    ledgers: int
    """Ledgers with entries here."""


STATE: Final = Route("GET", f"{API}/bookie/state", BookieState)
READ_ONLY: Final = Route("GET", f"{API}/bookie/state/readonly", ReadOnlyState)
SET_READ_ONLY: Final = Route("PUT", READ_ONLY.path, ReadOnlyState, ReadOnlyQuery, ReadOnlyBody)
DRAIN_CLIENTS: Final = Route("PUT", f"{API}/bookie/drain_clients", ReadOnlyState)
SANITY: Final = Route("GET", f"{API}/bookie/sanity", SanityResult)
INFO: Final = Route("GET", f"{API}/bookie/info", BookieSpace, SpaceQuery)
LOAD: Final = Route("GET", f"{API}/bookie/load", BookieLoad)
DISK_FILES: Final = Route("GET", f"{API}/bookie/list_disk_file", dict[str, str], FilesQuery)
