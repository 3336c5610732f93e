"""This bookie: its mode, its space, its sanity, its configuration."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from bookie_protocol.admin_api.bodies import API, NOTHING, Body, Query, Route, Whole


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
    """Whether the bookie takes writes."""

    read_only: bool
    """true: it takes no ordinary writes."""


class ReadOnlyBody(Body):
    """The mode that is wanted."""

    read_only: bool
    """true: take no writes until somebody says false."""


class ReadOnlyQuery(Query):
    """Who wants the mode."""

    decommission: Whole | None = None
    """The time in ms since 1970 at which the decommission began that asks for it: refused once that is over."""


class SanityResult(Body):
    """How the sanity test ended."""

    passed: bool
    """A ledger was written on this bookie, read back and deleted."""
    read_only: bool
    """The bookie takes no writes, so nothing was tried."""


class SpaceQuery(Query):
    """What to tell of the space."""

    fullest: bool = False
    """Tell how full the fullest file system is, too."""


class BookieSpace(Body):
    """Space on the file systems of the ledger directories, each counted once."""

    free_space: int
    """Free bytes."""
    total_space: int
    """All bytes."""
    fullest_used_percent: float | UnsetType = UNSET
    """Of the fullest file system, 0 to 100, where `fullest` asks for it: a bookie is read-only once one is full,
    whatever the sum says."""


class FilesQuery(Query):
    """Which files to name."""

    file_type: Literal["journal", "entrylog", "index"] | None = None
    """One kind only."""


STATE: Final = Route("GET", f"{API}/bookie/state", BookieState)
READ_ONLY: Final = Route("GET", f"{API}/bookie/state/readonly", ReadOnlyState)
SET_READ_ONLY: Final = Route("PUT", READ_ONLY.path, ReadOnlyState, ReadOnlyQuery, ReadOnlyBody)
DRAIN_CLIENTS: Final = Route("PUT", f"{API}/bookie/drain_clients", ReadOnlyState)
SANITY: Final = Route("GET", f"{API}/bookie/sanity", SanityResult)
INFO: Final = Route("GET", f"{API}/bookie/info", BookieSpace, SpaceQuery)
LAST_LOG_MARK: Final = Route("GET", f"{API}/bookie/last_log_mark", dict[str, str])
DISK_FILES: Final = Route("GET", f"{API}/bookie/list_disk_file", dict[str, str], FilesQuery)
EXPAND_STORAGE: Final = Route("PUT", f"{API}/bookie/expand_storage", NOTHING)
_SETTINGS: Final[Any] = dict[str, Annotated[Any, Meta(extra_json_schema={"type": "string"})]]
"""Our bookies tell texts; what Apache's tell, which is numbers, flags and lists too, is taken as well."""
CONFIG: Final[Route[dict[str, Any]]] = Route("GET", f"{API}/config/server_config", _SETTINGS)
"""Values by key."""
SET_CONFIG: Final = Route("PUT", CONFIG.path, NOTHING, body=dict[str, str | int | float | bool])
