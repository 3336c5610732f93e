"""Who the bookie is: its cookies checked against its cluster, and what it publishes about itself.

Threads: event loop; name look-ups and files on threads.

Source: reference metadata layout, sections 4 and 5.
"""

from __future__ import annotations

import asyncio

from bookie_pod.config.model import BookieConfig
from bookie_pod.node import options
from bookie_pod.node.bookie_id import (
    BookieAddressOptions,
    bookie_service_info,
    candidate_bookie_ids,
    derive_host,
)
from bookie_pod.node.cookie_check import verify_cookies
from bookie_pod.node.cookies import Cookie
from bookie_pod.storage.files import Files
from bookie_protocol.errors import InvalidCookie, MetadataNotFound
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.service_info import BookieServiceInfo


async def check_cookies(
    config: BookieConfig, metadata: MetadataService, files: Files, bookie_id: str, address: BookieAddressOptions
) -> None:
    """Verify every cookie, stamp a new bookie's directories. Raises InvalidCookie, MetadataUnavailable."""
    directories = options.bookie_directories(config)
    try:
        instance_id = await metadata.cluster.instance_id()
    except MetadataNotFound as error:
        uri = config.metadata.service_uri
        raise InvalidCookie(f"{uri} holds no cluster; make one with `bookie cluster init {uri}`") from error
    await verify_cookies(
        metadata.cookies,
        files,
        Cookie.expected(bookie_id, directories, instance_id),
        await asyncio.to_thread(candidate_bookie_ids, address),
        directories,
        allow_storage_expansion=config.directories.allow_storage_expansion,
    )


async def service_info(config: BookieConfig, address: BookieAddressOptions) -> BookieServiceInfo:
    """The endpoints to publish with the registration."""
    listener = config.http.listener
    return bookie_service_info(
        await asyncio.to_thread(derive_host, address),
        address.port,
        tls=config.tls.provider_factory_class is not None,
        http_port=listener.port if listener is not None else None,
        http_host=listener.host if listener is not None else None,
        network_location=config.network.network_location,
    )
