"""Opening a metadata service on ZooKeeper.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.tree.service import TreeMetadataService
from bookie_protocol.metadata_service.uri import MetadataServiceUri
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree


async def open_zookeeper(
    uri: MetadataServiceUri,
    timeout: float,
    *,
    auth: Sequence[tuple[str, str]] = (),
    secure: bool = False,
    client_id: tuple[int, bytes] | None = None,
) -> MetadataService:
    """Connect and settle the layout. `timeout` in seconds; `client_id` takes an existing session over.

    Raises `MetadataUnavailable`, `InvalidConfiguration`, `MetadataDamaged`; then nothing stays open.
    """
    tree = ZooKeeperTree(uri.connect_string, timeout, auth=auth, secure=secure, client_id=client_id)
    await tree.connect()
    service = TreeMetadataService(tree, uri.root, uri.layout)
    try:
        await service.prepare()
    except BaseException:
        await service.close()
        raise
    return service
