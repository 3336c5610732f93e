"""The cluster and its ledgers, as the metadata service knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from bookie_protocol.admin_api.bodies import API, Body, FromOne, OrMinusOne, Query, Route, Whole

Registration = Literal["writable", "read-only", "none"]
LedgerState = Literal["OPEN", "IN_RECOVERY", "CLOSED"]
MOST_FOUND: Final = 100
SPACE: Final = Route("GET", f"{API}/bookie/list_bookie_info", dict[str, str])


class ClusterFacts(Body):
    """The state of the cluster in the metadata service, read for this answer."""

    instance_id: str
    """Instance id of the cluster: another id means another cluster."""
    writable: list[str]
    """Ids of the bookies that are registered writable, in order."""
    read_only: list[str]
    """Ids of those that are registered read-only. One that changes just now may be in both lists."""
    cookies: list[str]
    """Ids of the bookies that have a cookie."""
    under_replicated: int
    """Ledgers that are marked as under-replicated."""
    auditor: str | None
    """Id of the auditor; null: none."""
    last_audit_ms: int | None
    """Time at which the last complete audit of the bookies began, in ms since 1970; null: there was none, or its
    auditor is one of Java's, which do not record it."""
    autorecovery_enabled: bool
    """Auto-recovery may run."""
    lost_bookie_recovery_delay_seconds: int
    """Stored delay in seconds; if none is stored, `lostBookieRecoveryDelay` of the process that answers."""
    unrecoverable: int | None
    """Ledgers with an entry of which no bookie has a copy, as the last complete check of replicas found; null: there
    was none."""
    unchecked: list[str] | UnsetType | None = UNSET
    """Ids of bookies that were away, and whose copies the auditor has not looked at since; null: there is no auditor,
    or it does not list them, as a new auditor for a moment, and Java's always."""


class ClusterInfo(Body):
    """The cluster in numbers."""

    auditor_elected: bool
    """True if a bookie is the auditor."""
    auditor_id: str
    """Which one; empty: none."""
    cluster_under_replicated: bool
    """True if a ledger is marked as under-replicated."""
    ledger_replication_enabled: bool
    """Auto-recovery may run."""
    total_bookies_count: int
    """Bookies that ever stamped a cookie."""
    writable_bookies_count: int
    """Bookies that take writes."""
    readonly_bookies_count: int
    """Bookies that only serve reads."""
    unavailable_bookies_count: int
    """Bookies that are not registered."""


class KnownBookie(Body):
    """A bookie that is registered, or has a cookie."""

    bookie_id: str
    """Its id."""
    registration: Registration
    """Its registration; `none`: it is not registered now."""
    has_cookie: bool
    """It has a cookie, so the cluster counts on it."""
    leaving: bool
    """A decommission of it is recorded."""
    host: str | None = None
    """Its host, as it publishes it; null: not known."""
    location: str | None = None
    """Its network location, such as `/zone/rack`, as it publishes it; null: it publishes none."""
    admin_url: str | None = None
    """URL of its admin API, without a path; null: it publishes none."""


class EnsembleMember(Body):
    """One bookie of an ensemble."""

    id: str
    """Its bookie id."""


class LedgerView(Body):
    """The metadata of one ledger."""

    ledger_id: int
    """Its id."""
    metadata_format_version: int
    """Format version of its metadata: 1, 2 or 3."""
    ensemble_size: int
    """Bookies of each ensemble."""
    write_quorum_size: int
    """Copies of each entry."""
    ack_quorum_size: int
    """Copies that make an entry acknowledged."""
    state: str
    """OPEN, IN_RECOVERY or CLOSED."""
    length: int
    """Bytes of payload, of a closed ledger."""
    last_entry_id: int
    """The last entry of a closed ledger; -1: none."""
    ctime: int
    """Time of its creation, in ms since 1970; -1: not known."""
    digest_type: str | None
    """Digest type of its entries; null: not recorded."""
    password: str
    """The password in base64, for the role `admin`; else empty."""
    custom_metadata: Mapping[str, str]
    """Custom metadata of its creator, in base64."""
    closed: bool
    """Its end is final."""
    all_ensembles: Mapping[str, list[EnsembleMember]]
    """The bookies, by the first entry that they hold."""
    ctoken: int
    """Tells apart two creators of one id."""
    fragments: int | UnsetType = UNSET
    """Number of its fragments, where `most` was given; the last ones are shown."""
    custom_metadata_values: int | UnsetType = UNSET
    """Number of its custom metadata, where `most` was given; the first ones are shown."""


class BookiesQuery(Query):
    """Which bookies to list."""

    kind: Literal["rw", "ro"] = field(name="type", default="rw")
    """Writable ones, or read-only ones."""
    print_hostnames: bool = False
    """Tell the hosts too."""


class LedgersQuery(Query):
    """The extent of the answer about ledgers."""

    print_metadata: bool = False
    """Include the metadata of each ledger."""
    decode_meta: bool = False
    """Return the metadata as an object, with `print_metadata`."""
    page: FromOne | None = None
    """Page of 100 ledgers with `print_metadata`, the first page with 99. Counted from 1; not given: everything."""


class LedgerSearch(Query):
    """Ledgers to find, in the order of their ids. One request looks at a bounded number of ledgers."""

    first: Whole = 0
    """Begin at this id."""
    state: LedgerState | None = None
    """Find only ledgers in this state."""
    bookie: str | None = None
    """Find only ledgers that name this bookie."""
    limit: Annotated[int, Meta(ge=1, le=MOST_FOUND)] = 50
    """Maximum number of ledgers."""


class FoundLedgers(Body):
    """One page of a search."""

    ledgers: list[LedgerView]
    """The ledgers, without their passwords."""
    looked_at: int
    """Number of ledgers that this request looked at."""
    next: int | None
    """Id at which the next page begins; null: there are no more ledgers."""
    damaged: list[int]
    """Ids of ledgers whose metadata cannot be read."""
    shortened: list[int] = field(default_factory=list)
    """Ids of ledgers of which only the last fragments, and a part of the custom metadata, are shown."""


class LedgerQuery(Query):
    """One ledger."""

    ledger_id: Whole
    """The ledger."""


class MetadataQuery(LedgerQuery):
    """One ledger, and how much of it."""

    most: FromOne | None = None
    """Show about this many bookies of fragments, the last ones, and this many custom metadata; not given: all."""


class EntriesQuery(LedgerQuery):
    """Entries of one ledger."""

    start_entry_id: Whole = 0
    """The first entry."""
    end_entry_id: OrMinusOne = -1
    """The last entry; -1: of the ledger."""
    page: FromOne | None = None
    """1000 entries at a time. Counted from 1; not given: everything."""


STATE: Final = Route("GET", f"{API}/cluster/state", ClusterFacts)
INFO: Final = Route("GET", f"{API}/bookie/cluster_info", ClusterInfo)
BOOKIES: Final = Route("GET", f"{API}/bookie/list_bookies", dict[str, str | None], BookiesQuery)
KNOWN: Final = Route("GET", f"{API}/cluster/bookies", list[KnownBookie])
SEARCH: Final = Route("GET", f"{API}/ledger/search", FoundLedgers, LedgerSearch)
LEDGERS: Final = Route("GET", f"{API}/ledger/list", dict[str, str | LedgerView | None], LedgersQuery)
METADATA: Final = Route("GET", f"{API}/ledger/metadata", dict[str, LedgerView], MetadataQuery)
READ: Final = Route("GET", f"{API}/ledger/read", dict[str, str], EntriesQuery)
DELETE: Final = Route("DELETE", f"{API}/ledger/delete", str, LedgerQuery)
