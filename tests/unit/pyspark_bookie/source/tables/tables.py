"""Metadata tables as Spark reads them, in one process: the client is that of the fixture `shelf`."""

from __future__ import annotations

from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BookieServiceInfo
from pyspark_bookie.source.batch import batch_reader
from pyspark_bookie.source.schema import schema_for


def reader_of(name, **more):
    raw = {"metadataServiceUri": "memory://", "table": name, **{key: str(value) for key, value in more.items()}}
    return batch_reader(raw, schema_for(raw))


def table(name, **more):
    """Its rows, of all tasks."""
    made = reader_of(name, **more)
    return [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]


def values(found, *names):
    return [tuple(row[name] for name in names) for row in found]


def service_of(shelf):
    async def service(client):
        return client.metadata_service

    return shelf.run(service)


def register(shelf, bookie, group=BookieGroup.WRITABLE, *, endpoints=(), properties=None):
    about = BookieServiceInfo(endpoints, properties or {})
    shelf.run(lambda client: client.metadata_service.bookies.register(bookie, group, about))
