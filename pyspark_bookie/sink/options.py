"""Options of the sink. docs/spark.md has the table.

Pure; any process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.options import MIB, at_least, digest_type, option, seconds, size, words

if TYPE_CHECKING:
    from bookie_client.options import ClientOptions


class SinkMode(Enum):
    """STREAM: the ledgers become part of a stream of ledgers, all at once, when the batch is committed.
    LEDGER_PER_PARTITION: they stand alone."""

    STREAM = "stream"
    LEDGER_PER_PARTITION = "ledgerPerPartition"


class ReplayCheck(Enum):
    """The way to recognise a batch that was published before.

    CONTENT: by the number of its rows and a checksum of their content. ROWS: by the number alone, for queries that do
    not make the same content again.
    """

    CONTENT = "content"
    ROWS = "rows"


def stream_name(text: str) -> str:
    """A name that a stream may have."""
    from bookie_client.streams.model import check_stream_name

    try:
        return check_stream_name(text)
    except BadRequest as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class SinkOptions(AccessOptions):
    """Batch and streaming."""

    # --- where to ---------------------------------------------------------------------------------------------
    write_mode: SinkMode = option(SinkMode.STREAM)
    """Write mode. It is not called `mode`, which is Spark's own option, the save mode."""
    stream: str | None = option(None, read=stream_name)
    create_stream: bool = option(True)
    """Create the stream, with the sizes below, if there is none."""
    deletion_lag: float | None = option(None, read=seconds)
    """Seconds for which ledgers that were replaced can be read on: of a stream that is created."""
    ids_file: str | None = option(None)
    """File on the driver that tells, in JSON, which ledgers were written."""

    # --- what the ledgers are like ----------------------------------------------------------------------------
    ensemble_size: int | None = option(None, read=at_least(1))
    write_quorum: int | None = option(None, read=at_least(1))
    ack_quorum: int | None = option(None, read=at_least(1))
    digest_type: DigestType | None = option(None, read=digest_type)
    max_ledger_bytes: int = option(1024 * MIB, read=size)
    """Payload bytes behind which a task begins its next ledger."""
    ledger_metadata: Mapping[str, str] = option(factory=dict, prefix="metadata.")
    """Custom metadata of the ledgers; Spark gives the names in lower case."""

    # --- how they are written ---------------------------------------------------------------------------------
    max_inflight_bytes: int = option(16 * MIB, read=size)
    """Payload bytes of one task that were sent and are not acknowledged."""
    order_by: tuple[str, ...] = option((), read=words)
    """Columns by which a task sorts its rows, ascending, before it writes them."""
    order_by_max_bytes: int = option(256 * MIB, read=size)
    """Bytes that a task may hold in memory for that."""
    coalesce_partitions: bool = option(False)
    """The driver copies the ledgers of a batch into one if they are tiny."""
    tiny_ledger_bytes: int = option(8 * MIB, read=size)
    """Ledgers below are tiny: there is a warning when they are so on average."""

    # --- once ---------------------------------------------------------------------------------------------------
    txn_app_id: str | None = option(None)
    txn_version: int | None = option(None, read=at_least(0))
    replay_check: ReplayCheck = option(ReplayCheck.CONTENT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recorded_passwords:
            raise ValueError(
                "recordedPasswords=true is for reading: ledgers are made with the password of passwordFile"
            )
        if self.write_mode is SinkMode.STREAM and self.stream is None:
            raise ValueError(
                "option stream is missing: the stream of ledgers to write to (or writeMode=ledgerPerPartition)"
            )
        if self.write_mode is SinkMode.LEDGER_PER_PARTITION:
            self._refuse_what_needs_a_stream()
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise ValueError("txnAppId and txnVersion come together: who writes, and which of its batches this is")
        sizes = self.quorums
        if not 1 <= sizes[2] <= sizes[1] <= sizes[0]:
            raise ValueError(
                f"ensembleSize, writeQuorum and ackQuorum must not ascend: {sizes[0]}, {sizes[1]}, {sizes[2]}"
            )

    def client_options(self) -> ClientOptions:
        """Return the options of a client whose window is as large as a task's may be. Raises `PodkeeperSparkError`
        (OPTION)."""
        return replace(super().client_options(), write_window_bytes=self.max_inflight_bytes)

    @property
    def quorums(self) -> tuple[int, int, int]:
        """Ensemble, write quorum and ack quorum of a stream that is created, and of ledgers that stand alone. What is
        not given follows what is: 3, 3, 2 by default, and never more than the ensemble."""
        ensemble = self.ensemble_size or max(3, self.write_quorum or 0, self.ack_quorum or 0)
        write = self.write_quorum or max(min(3, ensemble), self.ack_quorum or 0)
        return ensemble, write, self.ack_quorum or min(2, write)

    @property
    def has_own_sizes(self) -> bool:
        """Return True if sizes were given, which override those of an existing stream."""
        return (self.ensemble_size, self.write_quorum, self.ack_quorum) != (None, None, None)

    def _refuse_what_needs_a_stream(self) -> None:
        given = {
            "stream": self.stream,
            "txnAppId": self.txn_app_id,
            "coalescePartitions": self.coalesce_partitions or None,
            "deletionLag": self.deletion_lag,
        }
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} and writeMode=ledgerPerPartition exclude each other")
