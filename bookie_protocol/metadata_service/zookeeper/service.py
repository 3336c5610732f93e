"""Opening a metadata service on ZooKeeper.

Threads: event loop only.
"""

from __future__ import annotations

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.options import MetadataServiceOptions
from bookie_protocol.metadata_service.tree.service import TreeMetadataService
from bookie_protocol.metadata_service.uri import MetadataServiceUri
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree


async def open_zookeeper(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect and settle the layout.

    Raises `MetadataUnavailable`, `InvalidConfiguration`, `MetadataDamaged`; then nothing stays open.
    """
    if options.token_file is not None:
        raise InvalidConfiguration(
            f"metadataServiceTokenFile={options.token_file}: ZooKeeper takes no token; set zkAuthCredentialsPath"
        )
    tree = ZooKeeperTree(
        uri.connect_string,
        options.timeout,
        auth=options.auth,
        sasl=options.sasl,
        secure=options.secure,
        tls=options.tls,
    )
    await tree.connect()
    service = TreeMetadataService(tree, uri.root, uri.layout, options)
    try:
        await service.prepare()
    except BaseException:
        await service.close()
        raise
    return service
