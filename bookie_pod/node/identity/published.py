"""Who the bookie is: its cookies checked against its cluster, and what it publishes about itself.

Threads: event loop; name look-ups and files on threads.

Source: reference metadata layout, sections 4 and 5.
"""

from __future__ import annotations

import asyncio

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_pod.node import options
from bookie_pod.node.identity.bookie_id import (
    BookieAddressOptions,
    bookie_service_info,
    candidate_bookie_ids,
    derive_host,
)
from bookie_pod.node.identity.cookie_check import NoStoredCookie, verify_cookies
from bookie_pod.node.identity.cookies import Cookie
from bookie_pod.node.identity.leaving import decommissioned_at
from bookie_pod.node.start_errors import as_no_cluster
from bookie_pod.storage.files import Files
from bookie_protocol.errors import InvalidCookie
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.service_info import BookieServiceInfo


async def check_cookies(
    config: BookieConfig, metadata: MetadataService, files: Files, bookie_id: str, address: BookieAddressOptions
) -> str | None:
    """Verify every cookie, stamp a new bookie's directories. Returns the instance id of the cluster they belong to.

    Raises InvalidCookie, MetadataUnavailable.
    """
    directories = options.bookie_directories(config)
    with as_no_cluster(config):
        instance_id = await metadata.cluster.instance_id()
    try:
        await verify_cookies(
            metadata.cookies,
            files,
            Cookie.expected(bookie_id, directories, instance_id),
            await asyncio.to_thread(candidate_bookie_ids, address),
            directories,
            allow_storage_expansion=may_expand_storage(config),
        )
        return instance_id
    except NoStoredCookie as error:
        if (ended := await decommissioned_at(metadata, bookie_id)) is not None:
            raise InvalidCookie(
                f"{error}; a bookie of this id was decommissioned at {ended:%Y-%m-%d %H:%M:%SZ}: if these directories"
                " are older, nothing needs them any more, and they may be removed"
            ) from error
        raise
    except InvalidCookie as error:
        if config.directories.allow_storage_expansion and not may_expand_storage(config):
            raise InvalidCookie(
                f"{error} (allowStorageExpansion does not apply to DbLedgerStorage, which finds a ledger by the number"
                " of its directories: replace this bookie by one with more directories)"
            ) from error
        raise


def may_expand_storage(config: BookieConfig) -> bool:
    """Whether directories may be added. With another number of them DbLedgerStorage would look for a ledger in the
    wrong one, and answer that it does not exist."""
    return config.directories.allow_storage_expansion and config.ledger_storage.engine is not StorageEngine.DB


async def service_info(config: BookieConfig, address: BookieAddressOptions, http_port: int | None) -> BookieServiceInfo:
    """The endpoints to publish with the registration. `http_port`: where the HTTP server listens, if there is one."""
    listener = config.http.listener
    return bookie_service_info(
        await asyncio.to_thread(derive_host, address),
        address.port,
        tls=config.tls.provider_factory_class is not None,
        http_port=http_port,
        http_host=listener.host if listener is not None else None,
        http_tls=config.http.tls_enable,
        network_location=config.network.network_location,
    )
