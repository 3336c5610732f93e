"""Options of the source, of batch and streaming reads: which ledgers, from where to where, and how they are read.
docs/spark.md has the table.

Pure; any process.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from bookie_protocol.digest import DigestType
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.common.options import (
    MIB,
    at_least,
    digest_type,
    option,
    pattern,
    seconds,
    size,
    size_at_most,
    words,
)
from pyspark_bookie.common.secrets import read_token
from pyspark_bookie.source.positions import EARLIEST, LATEST, Positions, positions

if TYPE_CHECKING:
    from bookie_client.options import ClientOptions

REPLICA: Final = "replica"
QUORUM: Final = "quorum"
_BOOKIE: Final = "bookie:"


class OpenLedgers(Enum):
    """What becomes of ledgers that are not closed: read up to the last add confirmed (nobody is fenced), leave out, or
    recover, which locks their writer out for good."""

    LAC = "lac"
    SKIP = "skip"
    RECOVER = "recover"


class Locality(Enum):
    """PREFERRED: near and healthy replicas first, the striping's order otherwise. NONE: in that order alone."""

    PREFERRED = "preferred"
    NONE = "none"


class Tiers(Enum):
    """Where ledgers are looked for. ALL: in bookies, and what is gone from there in the archives that `offload` has
    written. BOOKIES: in bookies alone."""

    ALL = "all"
    BOOKIES = "bookies"


class Decode(Enum):
    """RAW: entries as they are. PULSAR: the messages in the entries of a Pulsar topic. DLOG: the log records in the
    entries of a DistributedLog log."""

    RAW = "raw"
    PULSAR = "pulsar"
    DLOG = "dlog"


class Table(Enum):
    """Metadata tables: what the cluster knows, without reading entries."""

    LEDGERS = "ledgers"
    FRAGMENTS = "fragments"
    REPLICAS = "replicas"
    BOOKIES = "bookies"
    UNDERREPLICATED = "underreplicated"
    COOKIES = "cookies"
    ENTRYLOGS = "entrylogs"
    STREAMS = "streams"


@dataclass(frozen=True)
class ReadMode:
    """QUORUM: each entry once, from any replica that is good. REPLICA: each replica of each entry. A bookie: what this
    one holds."""

    kind: str
    bookie: str | None = None

    @property
    def is_quorum(self) -> bool:
        return self.kind == QUORUM

    @property
    def is_replica(self) -> bool:
        return self.kind == REPLICA


def read_mode(text: str) -> ReadMode:
    """`quorum`, `replica` or `bookie:<id>`."""
    stripped = text.strip()
    if stripped.lower() in (QUORUM, REPLICA):
        return ReadMode(stripped.lower())
    if stripped.lower().startswith(_BOOKIE) and len(stripped) > len(_BOOKIE):
        return ReadMode("bookie", stripped[len(_BOOKIE) :])
    raise ValueError("must be quorum, replica or bookie:<id>")


@dataclass(frozen=True)
class CustomMetadataPattern:
    """Ledgers whose custom metadata has these keys with values that match; all of them."""

    conditions: tuple[tuple[str, re.Pattern[str]], ...]


def ledger_pattern(text: str) -> CustomMetadataPattern:
    """`application=pulsar,pulsar/managed-ledger=.*orders.*`."""
    conditions = []
    for word in words(text):
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ValueError("must be KEY=PATTERN of custom metadata, such as application=pulsar")
        conditions.append((key, pattern(value)))
    return CustomMetadataPattern(tuple(conditions))


def scope(text: str) -> str:
    """Only `all`."""
    if text.strip().lower() != "all":
        raise ValueError("must be all")
    return "all"


@dataclass(frozen=True, kw_only=True)
class SourceOptions(AccessOptions):
    """Batch and streaming. Exactly one selection is given (`selected`), or a table."""

    # --- which ledgers ----------------------------------------------------------------------------------------
    ledgers: LedgerIds | None = option(None, read=LedgerIds.parse)
    stream: str | None = option(None)
    streams: tuple[str, ...] | None = option(None, read=words)
    stream_pattern: re.Pattern[str] | None = option(None, read=pattern)
    managed_ledger: str | None = option(None)
    ledger_pattern: CustomMetadataPattern | None = option(None, read=ledger_pattern)
    scope: str | None = option(None, read=scope)
    table: Table | None = option(None)

    # --- from where to where ----------------------------------------------------------------------------------
    starting_position: Positions = option(positions("earliest"), read=positions)
    ending_position: Positions = option(positions("latest"), read=positions)
    open_ledgers: OpenLedgers = option(OpenLedgers.LAC)

    # --- how they are cut -------------------------------------------------------------------------------------
    min_partitions: int = option(1, read=at_least(1))
    max_bytes_per_partition: int = option(128 * MIB, read=size)
    max_ledgers_per_partition: int = option(1_000, read=at_least(1))

    # --- how they are read ------------------------------------------------------------------------------------
    read_mode: ReadMode = option(ReadMode(QUORUM), read=read_mode)
    tiers: Tiers = option(Tiers.ALL)
    locality: Locality = option(Locality.PREFERRED)
    batch_read: bool = option(True)
    batch_max_bytes: int = option(MIB, read=size)
    arrow_batch_bytes: int = option(2 * MIB, read=size_at_most(512 * MIB))
    """Bytes of values in one Arrow batch; a single entry may be larger."""
    fail_on_data_loss: bool = option(True)
    digest_type: DigestType = option(DigestType.CRC32C, read=digest_type)
    rate_limit: int | None = option(None, read=size, name="rateLimit.bytesPerSecond")
    rate_limit_tasks: int | None = option(None, read=at_least(1), name="rateLimit.concurrentTasks")
    """How many tasks can run at the same time; by default as many as there are partitions, which never exceeds the
    rate."""

    # --- what a row has ---------------------------------------------------------------------------------------
    decode: Decode = option(Decode.RAW)
    include_metadata: bool = option(False)

    # --- the bookies' HTTP API, for table=entrylogs -----------------------------------------------------------
    admin_token_file: str | None = option(None, name="admin.tokenFile")
    admin_tls: bool = option(False, name="admin.tls")
    """HTTPS, also of bookies that do not say that they serve it; what `tls.caFile` trusts is trusted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.selections()
        if self.table is not None:
            if set(given) - {"ledgers", "ledgerPattern", "scope"}:
                raise ValueError(f"table={self.table.value} and {given[0]} exclude each other")
            return
        if len(given) != 1:
            has = f"{' and '.join(given)} exclude each other" if given else "nothing is selected"
            raise ValueError(
                f"{has}: give exactly one of ledgers, stream, streams, streamPattern, managedLedger, ledgerPattern,"
                " scope=all, or a table"
            )
        if self.decode is not Decode.RAW and not self.read_mode.is_quorum:
            raise ValueError(f"decode={self.decode.value} needs readMode=quorum")

    def client_options(self) -> ClientOptions:
        """Raises `PodkeeperSparkError` (OPTION)."""
        from bookie_client.replication.throttle import piece_bytes

        return replace(
            super().client_options(),
            batch_reads=self.batch_read,
            batch_read_bytes=piece_bytes(self.rate_limit, self.batch_max_bytes),
            reorder_reads=self.locality is Locality.PREFERRED,
        )

    def admin_token(self) -> str | None:
        """The token for the bookies' HTTP API. Raises `PodkeeperSparkError` (OPTION)."""
        if self.admin_token_file is None:
            return None
        return read_token("admin.tokenFile", self.admin_token_file)

    def selections(self) -> list[str]:
        """The names of the options that select ledgers and are given."""
        chosen = {
            "ledgers": self.ledgers,
            "stream": self.stream,
            "streams": self.streams,
            "streamPattern": self.stream_pattern,
            "managedLedger": self.managed_ledger,
            "ledgerPattern": self.ledger_pattern,
            "scope": self.scope,
        }
        return [name for name, value in chosen.items() if value is not None]

    @property
    def reads_archive(self) -> bool:
        """Whether ledgers that are gone from the bookies are looked for in archives, which have no replicas."""
        return self.tiers is Tiers.ALL and self.read_mode.is_quorum

    @property
    def has_metadata_column(self) -> bool:
        """Rows of replicas mean nothing without the bookie."""
        return self.include_metadata or self.read_mode.is_replica

    @property
    def has_corrupt_column(self) -> bool:
        """What could not be read is told in a row."""
        return not self.fail_on_data_loss or self.read_mode.is_replica


_STREAM_SELECTIONS: Final = frozenset({"stream", "streams", "streamPattern", "managedLedger"})


@dataclass(frozen=True, kw_only=True)
class EitherOptions(SourceOptions):
    """What may be said of a read before it is known whether it is a batch or a stream: Spark asks for the schema
    first."""

    max_entries_per_trigger: int | None = option(None, read=at_least(1))
    max_bytes_per_trigger: int | None = option(None, read=size)
    max_ledgers_per_trigger: int = option(1_000, read=at_least(1))
    """Ledgers without a stream that one batch begins."""
    cursor: str | None = option(None)
    """Name under which the query tells the streams how far it is, so that retention waits for it."""
    metadata_refresh: float = option(0.2, read=seconds)
    """Seconds for which an idle query goes by what it knows."""
    discovery_interval: float = option(5.0, read=seconds)
    """Seconds between looks for new ledgers and streams."""
    settling_time: float = option(60.0, read=seconds)
    """Seconds after its creation in which a ledger with a lower id may still appear."""


@dataclass(frozen=True, kw_only=True)
class StreamingOptions(EitherOptions):
    """`starting_position` counts for a new query only; afterwards its checkpoint does."""

    starting_position: Positions = option(positions("latest"), read=positions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table is not None:
            raise ValueError(f"table={self.table.value} is for batch reads: a stream reads entries")
        if self.ending_position != positions("latest"):
            raise ValueError("endingPosition is for batch reads; trigger(availableNow=True) ends at what is there now")
        if self.open_ledgers is OpenLedgers.RECOVER:
            raise ValueError(
                "openLedgers=recover is for batch reads: a query that follows ledgers must not lock writers out"
            )
        if self.cursor is not None and (self.managed_ledger is not None or not self.reads_streams):
            raise ValueError("cursor needs stream, streams or streamPattern: other ledgers have no place for it")

    @property
    def reads_streams(self) -> bool:
        """Whether ledgers come as ordered lists, and not each by itself."""
        return bool(_STREAM_SELECTIONS & set(self.selections()))

    @property
    def start_text(self) -> str:
        """The starting position as the first offset tells it; `positions` reads it."""
        chosen = self.starting_position
        if chosen.everywhere is not None:
            return {EARLIEST: "earliest", LATEST: "latest"}[chosen.everywhere]
        return json.dumps({str(ledger_id): chosen.ledgers[ledger_id] for ledger_id in sorted(chosen.ledgers)})
