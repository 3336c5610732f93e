"""The cluster and its ledgers, as the metadata service knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import field

from bookie_protocol.admin_api.bodies import API, Body, FromOne, OrMinusOne, Query, Route, Whole


class ClusterFacts(Body):
    """What the metadata service says about the cluster, read for this answer."""

    instance_id: str
    """Of the cluster: another one, another cluster."""
    writable: list[str]
    """Ids of the bookies that are registered writable, in order."""
    read_only: list[str]
    """Ids of those that are registered read-only. One that changes just now may be in both lists."""
    cookies: list[str]
    """Ids of the bookies that have a cookie."""
    under_replicated: int
    """Ledgers that are marked as under-replicated."""
    auditor: str | None
    """Who is the auditor; null: nobody."""
    last_audit_ms: int | None
    """When the last complete audit of the bookies began, in ms since 1970; null: there was none, or its auditor is one
    of Java's, which do not tell."""
    autorecovery_enabled: bool
    """Auto-recovery may run."""
    lost_bookie_recovery_delay_seconds: int
    """As it is stored; while nobody has stored one, `lostBookieRecoveryDelay` of the process that answers."""
    unrecoverable: int | None
    """Ledgers with an entry of which no bookie has a copy, as the last complete check of replicas found; null: there
    was none."""


class ClusterInfo(Body):
    """The cluster in numbers."""

    auditor_elected: bool
    """Some bookie is the auditor."""
    auditor_id: str
    """Which one; empty: none."""
    cluster_under_replicated: bool
    """Some ledger is marked as under-replicated."""
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


class EnsembleMember(Body):
    """One bookie of an ensemble."""

    id: str
    """Its bookie id."""


class LedgerView(Body):
    """The metadata of one ledger."""

    ledger_id: int
    """Its id."""
    metadata_format_version: int
    """How it is stored: 1, 2 or 3."""
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
    """When it was created, in ms since 1970; -1: not known."""
    digest_type: str | None
    """How entries are checked; null: not recorded."""
    password: str
    """The password in base64, for the role `admin`; else empty."""
    custom_metadata: Mapping[str, str]
    """What its creator noted, in base64."""
    closed: bool
    """Its end is final."""
    all_ensembles: Mapping[str, list[EnsembleMember]]
    """The bookies, by the first entry that they hold."""
    ctoken: int
    """Tells apart two creators of one id."""


class BookiesQuery(Query):
    """Which bookies to list."""

    kind: Literal["rw", "ro"] = field(name="type", default="rw")
    """Writable ones, or read-only ones."""
    print_hostnames: bool = False
    """Tell the hosts too."""


class LedgersQuery(Query):
    """What to tell of ledgers."""

    print_metadata: bool = False
    """With what is stored of each."""
    decode_meta: bool = False
    """With `print_metadata`: as an object."""
    page: FromOne | None = None
    """With `print_metadata`: 100 at a time, the first page one less. Counted from 1; not given: everything."""


class LedgerQuery(Query):
    """One ledger."""

    ledger_id: Whole
    """The ledger."""


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
SPACE: Final = Route("GET", f"{API}/bookie/list_bookie_info", dict[str, str])
LEDGERS: Final = Route("GET", f"{API}/ledger/list", dict[str, str | LedgerView | None], LedgersQuery)
METADATA: Final = Route("GET", f"{API}/ledger/metadata", dict[str, LedgerView], LedgerQuery)
READ: Final = Route("GET", f"{API}/ledger/read", dict[str, str], EntriesQuery)
DELETE: Final = Route("DELETE", f"{API}/ledger/delete", str, LedgerQuery)
