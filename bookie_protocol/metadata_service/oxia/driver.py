"""Opening a metadata service on Oxia.

Threads: event loop only.
"""

from __future__ import annotations

import random
from dataclasses import replace

from bookie_protocol.addresses import is_loopback
from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.bearer_tokens import shown_token
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.grpc_channel import grpc_target
from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataServiceUri, MetadataTls
from bookie_protocol.metadata_service.oxia.client_file import CLIENT_FILE_KEY, read_client_file
from bookie_protocol.metadata_service.oxia.connection import TOKEN_KEY, OxiaConnection
from bookie_protocol.metadata_service.oxia.tree import OxiaTree
from bookie_protocol.metadata_service.tree.service import MetadataService


async def open_oxia(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect, prove the order of the namespace, and settle the layout.

    Raises `MetadataUnavailable`, `InvalidConfiguration`, `MetadataDamaged`; then nothing stays open.
    """
    tree = await connect_oxia(uri, options)
    return await MetadataService(tree, uri.root, uri.layout, options).open()


async def connect_oxia(uri: MetadataServiceUri, options: MetadataServiceOptions) -> OxiaTree:
    """Connect, and prove the order of the namespace. Raises `MetadataUnavailable`, `InvalidConfiguration`."""
    if options.login is not None:
        raise InvalidConfiguration(
            f"zkAuthCredentialsPath: Oxia knows no users and passwords; write a token into the file of {TOKEN_KEY}"
        )
    if options.secure:
        raise InvalidConfiguration("zkEnableSecurity=true: Oxia knows no access lists of keys")
    tls, token = options.tls, None
    if uri.client_file is not None:
        client = read_client_file(uri.client_file, uri.namespace)
        token = client.token
        if client.is_encrypted and tls is None:
            tls = MetadataTls()
    if options.token_file is not None:
        token = WatchedFile(TOKEN_KEY, options.token_file, shown_token)
    far = [host for host, _ in uri.hosts if not is_loopback(host.strip("[]"))]
    if token is not None and tls is None and far:
        raise InvalidConfiguration(
            f"{TOKEN_KEY if options.token_file is not None else CLIENT_FILE_KEY}: a listener on the way to"
            f" {', '.join(far)} could read the token; set metadataServiceTlsEnable=true"
        )
    if uri.session_seconds is not None:
        options = replace(options, timeout=uri.session_seconds)
    targets = [grpc_target(host, port) for host, port in uri.hosts]
    random.SystemRandom().shuffle(targets)  # so that not all processes ask one server
    tree = OxiaTree(OxiaConnection(targets, uri.namespace, tls, token), options.timeout)
    await tree.connect()
    return tree
