"""Opening a metadata service on ZooKeeper.

Threads: event loop only.
"""

from __future__ import annotations

from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.options import MetadataServiceOptions
from bookie_protocol.metadata_service.tree.service import TreeMetadataService
from bookie_protocol.metadata_service.uri import MetadataServiceUri
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree


async def open_zookeeper(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect and settle the layout.

    Raises `MetadataUnavailable`, `InvalidConfiguration`, `MetadataDamaged`; then nothing stays open.
    """
    tree = ZooKeeperTree(
        uri.connect_string, options.timeout, auth=options.auth, sasl=options.sasl, secure=options.secure
    )
    await tree.connect()
    service = TreeMetadataService(tree, uri.root, uri.layout, options)
    try:
        await service.prepare()
    except BaseException:
        await service.close()
        raise
    return service
