"""Options of the source, of batch and streaming reads: the selection of ledgers and entries, and ways of reading.

The table is in docs/spark.md.

Pure; any process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
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
from pyspark_bookie.source.starting_times import NoMatch, StartingTimes, milliseconds, times_by_name

if TYPE_CHECKING:
    from bookie_client.options import ClientOptions

REPLICA: Final = "replica"
QUORUM: Final = "quorum"
_BOOKIE: Final = "bookie:"
_FROM_EARLIEST: Final = Positions(EARLIEST, is_default=True)
_FROM_LATEST: Final = Positions(LATEST, is_default=True)
_STREAM_SELECTIONS: Final = frozenset({"stream", "streams", "streamPattern", "managedLedger"})


class OpenLedgers(Enum):
    """The treatment of ledgers that are not closed.

    LAC: read up to the last add confirmed, without fencing. SKIP: leave out. RECOVER: recover, which locks their writer
    out for good.
    """

    LAC = "lac"
    SKIP = "skip"
    RECOVER = "recover"


class Locality(Enum):
    """PREFERRED: near and healthy replicas first, the striping's order otherwise. NONE: in that order alone."""

    PREFERRED = "preferred"
    NONE = "none"


class Tiers(Enum):
    """The places where ledgers are looked for.

    ALL: in bookies, and those gone from there in the archives that `offload` has written. BOOKIES: in bookies alone.
    """

    ALL = "all"
    BOOKIES = "bookies"


class Decode(Enum):
    """RAW: entries as they are. PULSAR: the messages in the entries of a Pulsar topic. DLOG: the log records in the
    entries of a DistributedLog log."""

    RAW = "raw"
    PULSAR = "pulsar"
    DLOG = "dlog"


class PulsarSchema(Enum):
    """NONE: values as they are. JSON: also as JSON texts, by the schema of the topic."""

    NONE = "none"
    JSON = "json"


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
    """Read a scope; only `all` is valid."""
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
    starting_position: Positions = option(_FROM_EARLIEST, read=positions)
    starting_timestamp: int | None = option(None, read=milliseconds)
    starting_offsets_by_timestamp: Mapping[str, int] | None = option(None, read=times_by_name)
    starting_offsets_by_timestamp_strategy: NoMatch = option(NoMatch.ERROR)
    ending_position: Positions = option(positions("latest"), read=positions)
    open_ledgers: OpenLedgers = option(OpenLedgers.LAC)

    # --- how they are cut -------------------------------------------------------------------------------------
    min_partitions: int = option(1, read=at_least(1))
    max_bytes_per_partition: int = option(128 * MIB, read=size)
    max_ledgers_per_partition: int = option(1_000, read=at_least(1))
    max_entries_per_partition: int | None = option(None, read=at_least(1), also="maxRecordsPerPartition")

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
    """Number of tasks that can run at the same time; by default as many as there are partitions, which never
    exceeds the rate."""

    # --- what a row has ---------------------------------------------------------------------------------------
    decode: Decode = option(Decode.RAW)
    pulsar_schema: PulsarSchema = option(PulsarSchema.NONE)
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
        if self.applies_schema and (self.managed_ledger is None or self.decode is not Decode.PULSAR):
            raise ValueError("pulsarSchema=json needs managedLedger and decode=pulsar: a topic has the schema")
        self._check_start()

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
        """Return the token for the bookies' HTTP API. Raises `PodkeeperSparkError` (OPTION)."""
        if self.admin_token_file is None:
            return None
        return read_token("admin.tokenFile", self.admin_token_file)

    def _check_start(self) -> None:
        starts = {
            "startingPosition": not self.starting_position.is_default,
            "startingTimestamp": self.starting_timestamp is not None,
            "startingOffsetsByTimestamp": self.starting_offsets_by_timestamp is not None,
        }
        given = [name for name, is_given in starts.items() if is_given]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: a query has one start")

    @property
    def starting_times(self) -> StartingTimes | None:
        """The times to begin at; None: `starting_position` counts. Raises `BadRequest`."""
        named, strategy = self.starting_offsets_by_timestamp, self.starting_offsets_by_timestamp_strategy
        if named is None:
            since = self.starting_timestamp
            return None if since is None else StartingTimes(since, otherwise=strategy)
        if self.managed_ledger is not None:
            from bookie_client.streams.managed_ledgers import stored_name

            named = {stored_name(name): at for name, at in named.items()}
        return StartingTimes(named=named, otherwise=strategy)

    @property
    def applies_schema(self) -> bool:
        """Return True if values are decoded by the schema of their topic."""
        return self.pulsar_schema is PulsarSchema.JSON

    @property
    def entries_have_times(self) -> bool:
        """Return True if each entry says when it was made, as those of Pulsar do."""
        return self.managed_ledger is not None or self.decode is Decode.PULSAR

    def selections(self) -> list[str]:
        """Return the names of the options that select ledgers and are given."""
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
    def reads_streams(self) -> bool:
        """Return True if ledgers come as ordered lists, and not each by itself."""
        return bool(_STREAM_SELECTIONS & set(self.selections()))

    @property
    def reads_archive(self) -> bool:
        """Return True if ledgers that are gone from the bookies are looked for in archives, which have no replicas."""
        return self.tiers is Tiers.ALL and self.read_mode.is_quorum

    @property
    def has_metadata_column(self) -> bool:
        """Rows of replicas mean nothing without the bookie."""
        return self.include_metadata or self.read_mode.is_replica

    @property
    def has_corrupt_column(self) -> bool:
        """Return True if unreadable entries are reported in rows."""
        return not self.fail_on_data_loss or self.read_mode.is_replica


@dataclass(frozen=True, kw_only=True)
class EitherOptions(SourceOptions):
    """The options of a read before it is known whether it is a batch or a stream: Spark asks for the schema first."""

    max_entries_per_trigger: int | None = option(None, read=at_least(1), also="maxOffsetsPerTrigger")
    max_bytes_per_trigger: int | None = option(None, read=size)
    max_ledgers_per_trigger: int = option(1_000, read=at_least(1))
    """Ledgers without a stream that one batch begins."""
    min_entries_per_trigger: int | None = option(None, read=at_least(1), also="minOffsetsPerTrigger")
    max_trigger_delay: float = option(900.0, read=seconds)
    """Seconds after a batch for which the next one waits for `min_entries_per_trigger`."""
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

    starting_position: Positions = option(_FROM_LATEST, read=positions)

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
        least, most = self.min_entries_per_trigger, self.max_entries_per_trigger
        if least is not None and most is not None and least > most:
            raise ValueError(f"minEntriesPerTrigger={least} is more than maxEntriesPerTrigger={most}")
        if self.cursor is not None and (self.managed_ledger is not None or not self.reads_streams):
            raise ValueError("cursor needs stream, streams or streamPattern: other ledgers have no place for it")

    @property
    def fingerprint(self) -> str:
        """Tells this selection of ledgers from others in the offsets of a query. Streams need none: their offsets name
        each of them."""
        (kind,) = self.selections()
        pattern = self.ledger_pattern
        conditions = [] if pattern is None else [(key, value.pattern) for key, value in pattern.conditions]
        chosen = json.dumps([str(self.ledgers), conditions, self.scope])
        return f"{kind}:{sha256(chosen.encode()).hexdigest()[:16]}"

    @property
    def start_text(self) -> str:
        """The start as the first offset tells it; `start_of` reads it."""
        if self.starting_times is not None:
            return self.starting_times.text()
        chosen = self.starting_position
        if chosen.everywhere is not None:
            return {EARLIEST: "earliest", LATEST: "latest"}[chosen.everywhere]
        return json.dumps({str(ledger_id): chosen.ledgers[ledger_id] for ledger_id in sorted(chosen.ledgers)})
