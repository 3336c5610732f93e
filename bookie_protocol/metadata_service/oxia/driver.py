"""Opening a metadata service on Oxia.

Threads: event loop only.
"""

from __future__ import annotations

import random
from dataclasses import replace

from bookie_protocol.addresses import is_loopback
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.grpc_channel import grpc_target
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataServiceUri
from bookie_protocol.metadata_service.oxia.connection import TOKEN_KEY, OxiaConnection
from bookie_protocol.metadata_service.oxia.tree import OxiaTree
from bookie_protocol.metadata_service.tree.service import TreeMetadataService


async def open_oxia(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect, prove the order of the namespace, and settle the layout.

    Raises `MetadataUnavailable`, `InvalidConfiguration`, `MetadataDamaged`; then nothing stays open.
    """
    if options.login is not None:
        raise InvalidConfiguration(
            f"zkAuthCredentialsPath: Oxia knows no users and passwords; write a token into the file of {TOKEN_KEY}"
        )
    if options.secure:
        raise InvalidConfiguration("zkEnableSecurity=true: Oxia knows no access lists of keys")
    far = [host for host, _ in uri.hosts if not is_loopback(host.strip("[]"))]
    if options.token_file is not None and options.tls is None and far:
        raise InvalidConfiguration(
            f"{TOKEN_KEY}={options.token_file}: a listener on the way to {', '.join(far)} could read the token; set"
            " metadataServiceTlsEnable=true"
        )
    if uri.session_seconds is not None:
        options = replace(options, timeout=uri.session_seconds)
    targets = [grpc_target(host, port) for host, port in uri.hosts]
    random.SystemRandom().shuffle(targets)  # so that not all processes ask one server
    tree = OxiaTree(OxiaConnection(targets, uri.namespace, options.tls, options.token_file), options.timeout)
    await tree.connect()
    service = TreeMetadataService(tree, uri.root, uri.layout, options)
    try:
        await service.prepare()
    except BaseException:
        await service.close()
        raise
    return service
