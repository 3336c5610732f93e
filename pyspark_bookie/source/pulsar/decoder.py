"""Messages of Pulsar as rows.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_bookie.source.planning import LedgerSnapshot
from pyspark_bookie.source.pulsar.entries import Message, messages


class PulsarDecoder:
    """`decode=pulsar`. Columns: `pyspark_bookie.source.schema`."""

    def records(self, entry: bytes) -> Sequence[Message]:
        """Raises `UndecodableEntry`."""
        return messages(entry)

    def columns(self, record: Message) -> Mapping[str, Any]:
        return {
            "key": record.key,
            "value": record.value,
            "publish_time": record.publish_time * 1000,
            "event_time": None if record.event_time is None else record.event_time * 1000,
            "properties": list(record.properties.items()),
            "batch_index": record.batch_index,
        }

    def ledger_columns(self, ledger: LedgerSnapshot) -> Mapping[str, Any]:
        return {"topic": topic_of(ledger.stream)}


def topic_of(stream: str | None) -> str | None:
    """`persistent://tenant/namespace/topic` of the managed ledger `tenant/namespace/persistent/topic`."""
    parts = stream.split("/") if stream is not None else []
    if len(parts) != 4:
        return stream
    tenant, namespace, domain, topic = parts
    return f"{domain}://{tenant}/{namespace}/{topic}"
