"""The ledgers of a task: how they are made, and whose they are.

Each carries tags in its custom metadata that say who made it: for people, and for the job `orphans`, which finds what
attempts left behind that failed or were killed.

Any process but one that is forked while it uses this.

Source: reference Spark notes, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bookie_client.streams.model import APPLICATION, STREAM_KEY, StreamSettings
from pyspark_bookie.common.errors import told
from pyspark_bookie.sink.options import SinkOptions

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient
    from bookie_client.blocking.handles import BlockingLedgerWriter

SINK: Final = "pyspark_bookie"
"""Value of `application` of ledgers that belong to no stream, and of `podkeeper/sink`."""
TAG: Final = "podkeeper/"


@dataclass(frozen=True)
class Owner:
    """Who writes. `query_id` and `batch_id` are None in a batch write; `run_id` is the run of the query, or the
    write."""

    partition_id: int
    attempt: int
    task_attempt_id: int
    run_id: str
    query_id: str | None = None
    batch_id: int | None = None

    def tags(self) -> dict[str, bytes]:
        """Custom metadata."""
        found = {
            "sink": SINK,
            "query-id": self.query_id,
            "batch-id": self.batch_id,
            "partition-id": self.partition_id,
            "attempt": self.attempt,
            "task-attempt-id": self.task_attempt_id,
            "run-id": self.run_id,
        }
        return {f"{TAG}{name}": str(value).encode() for name, value in found.items() if value is not None}


def settings_of(options: SinkOptions, stream: StreamSettings | None) -> StreamSettings:
    """How ledgers are made: sizes that were given count more than those of the stream, which count more than the
    defaults."""
    settings = stream or StreamSettings()
    if stream is None or options.has_own_sizes:
        ensemble, write, ack = options.quorums
        settings = replace(settings, ensemble=ensemble, write_quorum=write, ack_quorum=ack)
    return replace(settings, digest=options.digest_type or settings.digest)


class TaskLedgers:
    """Makes and deletes the ledgers of one task. Raises `PodkeeperSparkError`."""

    def __init__(self, options: SinkOptions, owner: Owner) -> None:
        self._options = options
        self._owner = owner
        self._settings: StreamSettings | None = None

    def create(self) -> BlockingLedgerWriter:
        client = self._options.client()
        password = self._options.password.read() or b""
        if self._settings is None:
            self._settings = settings_of(self._options, self._stream_settings(client))
        made = self._settings
        with told():
            return client.create(
                ensemble=made.ensemble,
                write_quorum=made.write_quorum,
                ack_quorum=made.ack_quorum,
                digest=made.digest,
                password=password,
                metadata=self._metadata(),
            )

    def delete(self, ledger_id: int) -> None:
        self._options.client().delete(ledger_id)

    def _stream_settings(self, client: BlockingClient) -> StreamSettings | None:
        from bookie_client.streams.streams import Streams

        stream = self._options.stream
        if stream is None:
            return None
        with told(f"stream {stream}"):
            return client.run(lambda each: Streams(each).settings(stream))

    def _metadata(self) -> Mapping[str, bytes]:
        stream = self._options.stream
        own = {name: value.encode() for name, value in self._options.ledger_metadata.items()}
        of_stream = {"application": APPLICATION.encode(), STREAM_KEY: stream.encode()} if stream else {}
        return {"application": SINK.encode(), **own, **of_stream, **self._owner.tags()}
