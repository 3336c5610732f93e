"""The schemas of a topic, as brokers of Pulsar store them: read only.

A node `/schemas/<tenant>/<namespace>/<topic>` lists the versions; each is an entry of a ledger. Partitions of a topic
have the schemas of the topic.

| message | fields that are read |
|---|---|
| `SchemaLocator` (the node) | `index` 2, repeated |
| `IndexEntry` | `version` 1, `position` 2 {`ledgerId` 1, `entryId` 2} |
| `SchemaEntry` (the ledger's entry) | `schema_data` 2 |
| `SchemaInfo` (`schema_data`) | `type` 3, `schema` 4, `deleted` 6 |

Invariants
- Nothing of Pulsar's is changed, and no ledger is fenced.
- What strangers wrote is bounded: versions, bytes of one schema, and bytes of all, which travel with each task.

Event loop of the client only; the decoding is pure. Source: the storage formats of Apache Pulsar.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from bookie_client.streams.managed_ledgers import stored_name
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.together import bounded
from pyspark_bookie.common.errors import DECODE, PodkeeperSparkError
from pyspark_bookie.source.pulsar import Fields
from pyspark_bookie.source.pulsar_schema.types import Schemas, StoredSchema

if TYPE_CHECKING:
    from bookie_client.client import Client

ROOT: Final = "/schemas"
MAX_VERSIONS: Final = 1_000
MAX_SCHEMA_BYTES: Final = 512 * 1024
MAX_TOTAL_BYTES: Final = 4 * 1024 * 1024
_AT_ONCE: Final = 16
_PARTITION: Final = re.compile(r"-partition-\d+$", re.ASCII)


class SchemaReader:
    """Reads the schemas of one topic. Versions never change, so each is read once."""

    def __init__(self, topic: str) -> None:
        self._name = schema_name(topic)
        self._known: dict[int, StoredSchema | None] = {}

    async def read(self, client: Client) -> Schemas:
        """Return all versions; none, if the topic has no schema. Raises `PodkeeperError`, `PodkeeperSparkError`."""
        what = f"the schemas of {self._name}"
        try:
            node = await client.metadata_service.managed_ledgers(ROOT).read(self._name)
        except MetadataNotFound:
            return {}
        places = decode_locator(what, node.value)
        if len(places) > MAX_VERSIONS:
            raise _too_large(f"{what} have {len(places)} versions, more than {MAX_VERSIONS}")
        new = [version for version in places if version not in self._known]
        read = await bounded(new, lambda version: self._version(client, version, *places[version]), _AT_ONCE)
        self._known |= dict(zip(new, read, strict=True))
        found = {version: each for version in sorted(places) if (each := self._known[version]) is not None}
        total = sum(len(each.definition) for each in found.values())
        if total > MAX_TOTAL_BYTES:
            raise _too_large(f"{what} have {total} bytes, more than {MAX_TOTAL_BYTES}")
        return found

    async def _version(self, client: Client, version: int, ledger_id: int, entry_id: int) -> StoredSchema | None:
        async with client.open(ledger_id, password=None) as ledger:
            (entry,) = await ledger.read(entry_id, entry_id)
        what = f"version {version} of the schemas of {self._name}"
        if len(entry.payload) > MAX_SCHEMA_BYTES:
            raise _too_large(f"{what} has {len(entry.payload)} bytes, more than {MAX_SCHEMA_BYTES}")
        return decode_entry(what, entry.payload)


def schema_name(topic: str) -> str:
    """Return the name under which Pulsar stores the schemas of a managed ledger or topic. Raises `BadRequest`."""
    tenant, namespace, _, local = stored_name(topic).split("/")
    return f"{tenant}/{namespace}/{_PARTITION.sub('', local)}"


def decode_locator(what: str, data: bytes) -> dict[int, tuple[int, int]]:
    """Return ledger and entry of each version. Raises `MetadataDamaged`."""
    try:
        found = {}
        for index in map(Fields, Fields(data).all(2)):
            place = Fields(index.last(2) or b"")
            found[index.integer(1)] = (place.integer(1), place.integer(2))
        return found
    except ValueError as error:
        raise MetadataDamaged(f"{what} cannot be read: {error}") from None


def decode_entry(what: str, data: bytes) -> StoredSchema | None:
    """Return the schema in an entry; None: it was deleted. Raises `MetadataDamaged`."""
    try:
        info = Fields(Fields(data).last(2) or b"")
    except ValueError as error:
        raise MetadataDamaged(f"{what} cannot be read: {error}") from None
    if info.integer(6) or 3 not in info:
        return None
    return StoredSchema(info.integer(3), info.last(4) or b"")


def _too_large(text: str) -> PodkeeperSparkError:
    return PodkeeperSparkError(DECODE, f"{text}; read the topic without pulsarSchema=json")
