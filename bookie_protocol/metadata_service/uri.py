"""Opening the metadata service that `metadataServiceUri` names (`uri_parser`).

The drivers are imported when they are needed: kazoo and grpc cost start-up time.

Threads: the event loop that will use the service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookie_protocol.extras import needed
from bookie_protocol.metadata_service.options import (
    DEFAULT_TIMEOUT_SECONDS,
    MetadataDriver,
    MetadataServiceOptions,
    MetadataTls,
    SaslLogin,
)
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri

_EMBEDDED: Final = "bookie_protocol.metadata_service.embedded"


async def open_metadata_service(
    uri: str,
    *,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    auth: Sequence[tuple[str, str]] = (),
    sasl: SaslLogin | None = None,
    secure: bool = False,
    tls: MetadataTls | None = None,
    token_file: str | None = None,
    requests_per_second: float = 0.0,
    ledger_metadata_version: int = -1,
    follow_migration: bool = True,
    make_store: bool = True,
) -> MetadataService:
    """Connect; the keywords are those of `MetadataServiceOptions`.

    Raises `InvalidConfiguration`, or `MetadataUnavailable` if there is no answer in time, or not to these credentials.
    A cluster that does not exist yet is not an error.
    """
    options = MetadataServiceOptions(
        timeout=timeout,
        auth=tuple(auth),
        sasl=sasl,
        secure=secure,
        tls=tls,
        token_file=token_file,
        requests_per_second=requests_per_second,
        ledger_metadata_version=ledger_metadata_version,
        follow_migration=follow_migration,
        make_store=make_store,
    )
    return await connect_metadata_service(uri, options)


async def connect_metadata_service(uri: str, options: MetadataServiceOptions) -> MetadataService:
    """Connect as `open_metadata_service` does, with all options in one object."""
    parsed = parse_metadata_service_uri(uri)
    if parsed.driver is MetadataDriver.ZOOKEEPER:
        from bookie_protocol.metadata_service.migrating.opening import open_zookeeper

        return await open_zookeeper(parsed, options)
    if parsed.driver is MetadataDriver.ETCD:
        etcd = needed("bookie_protocol.metadata_service.etcd.tree", "etcd", "metadataServiceUri=etcd://")
        shared: MetadataService = await etcd.open_etcd(parsed, options)
        return shared
    if parsed.driver is MetadataDriver.OXIA:
        oxia = needed("bookie_protocol.metadata_service.oxia.driver", "oxia", "metadataServiceUri=oxia://")
        sharded: MetadataService = await oxia.open_oxia(parsed, options)
        return sharded
    if parsed.driver is MetadataDriver.SERVED:
        remote = needed(f"{_EMBEDDED}.remote", "embedded", "metadataServiceUri=embedded://")
        served: MetadataService = await remote.open_served(parsed, options)
        return served
    local = needed(f"{_EMBEDDED}.local", "bookie", "a folder as metadataServiceUri")
    owned: MetadataService = await local.open_owned(parsed, options)
    return owned
