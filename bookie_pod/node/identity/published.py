"""The identity of the bookie: its cookies checked against its cluster, and the data that it publishes.

Commands use the same checks before the bookie is started, which changes nothing.

Threads: event loop; name look-ups and files on threads.

Source: docs/internals/metadata-layout.md, sections 4 and 5.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_pod.config.sections.network import NetworkConfig
from bookie_pod.node.identity.bookie_id import (
    bookie_service_info,
    candidate_bookie_ids,
    derive_bookie_id,
    derive_host,
)
from bookie_pod.node.identity.cookie_check import (
    CookieAction,
    NoStoredCookie,
    StoredCookie,
    decide,
    read_directory,
    read_stored_cookies,
    verify_cookies,
)
from bookie_pod.node.identity.cookies import BookieDirectories, Cookie
from bookie_pod.node.identity.leaving import decommissioned_at
from bookie_pod.node.identity.places import DirectoryPlaces
from bookie_pod.node.metadata import open_metadata
from bookie_pod.node.start_errors import as_no_cluster
from bookie_pod.storage.entry_log.names import parse_log_name
from bookie_pod.storage.files import Files
from bookie_pod.storage.journal.directory import SUFFIX as JOURNAL_SUFFIX
from bookie_protocol.errors import InvalidConfiguration, InvalidCookie, MetadataNotFound
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BookieServiceInfo
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.shown import moment

_TIME: Final = "%Y-%m-%d %H:%M:%SZ"

_VERDICTS = {
    CookieAction.START: "matches",
    CookieAction.STAMP_NEW: "none: a new bookie, which gets one with its first start",
    CookieAction.EXPAND: "matches but for new directories, which get one with the next start",
}


async def check_cookies(
    config: BookieConfig, metadata: MetadataService, files: Files, bookie_id: str, address: NetworkConfig
) -> StoredCookie:
    """Verify every cookie, stamp a new bookie's directories. Return the stored cookie.

    Raises InvalidCookie, MetadataUnavailable.
    """
    directories = BookieDirectories.of(config.directories)
    with as_no_cluster(config):
        instance_id = await metadata.cluster.instance_id()
    try:
        _, own = await verify_cookies(
            metadata.cookies,
            files,
            Cookie.expected(bookie_id, directories, instance_id),
            await asyncio.to_thread(candidate_bookie_ids, address),
            directories,
            allow_storage_expansion=may_expand_storage(config),
        )
        return own
    except NoStoredCookie as error:
        if (ended := await decommissioned_at(metadata, bookie_id)) is not None:
            advice = await asyncio.to_thread(_advice, files, directories, ended)
            raise InvalidCookie(
                f"{error}; a bookie of this id was decommissioned at {ended:{_TIME}}; {advice}"
            ) from error
        raise
    except InvalidCookie as error:
        if config.directories.allow_storage_expansion and not may_expand_storage(config):
            raise InvalidCookie(
                f"{error} (allowStorageExpansion does not apply to DbLedgerStorage, which finds a ledger by the number"
                " of its directories: replace this bookie by one with more directories)"
            ) from error
        raise


def _advice(files: Files, directories: BookieDirectories, decommissioned: datetime) -> str:
    """Tell what may be done with directories whose cookie is gone. Their stamp does not count: a suspended bookie
    may have taken data afterwards."""
    try:
        written_ms = newest_data_ms(files, directories)
    except OSError as error:
        return f"keep the directories: cannot tell when the newest data here was written ({error})"
    written = None if written_ms is None else moment(written_ms)
    if written_ms is not None and (written is None or written >= decommissioned):
        when = "later" if written is None else f"at {written:{_TIME}}"
        return (
            f"keep the directories: the newest data here was written {when}, which is not before that; they may hold"
            " the only copies of acknowledged entries (`bookie disk ledgers` lists what they hold)"
        )
    when = "no data is here" if written is None else f"the newest data here was written at {written:{_TIME}}"
    return f"{when}, so no ledger needs these directories any more, and they may be removed"


def newest_data_ms(files: Files, directories: BookieDirectories) -> int | None:
    """Return when a journal or entry log of these directories was written last, in ms since the epoch; None: there is
    none. Raises `OSError`."""
    newest: int | None = None
    for folder in directories.current_folders():
        for name in files.listdir(folder):
            if name.endswith(JOURNAL_SUFFIX) or parse_log_name(name) is not None:
                newest = max(newest or 0, files.modified_ms(os.path.join(folder, name)))
    return newest


def may_expand_storage(config: BookieConfig) -> bool:
    """Return whether directories may be added.

    With another number of them DbLedgerStorage would look for a ledger in the wrong one, and answer that it does not
    exist.
    """
    return config.directories.allow_storage_expansion and config.ledger_storage.engine is not StorageEngine.DB


def directory_places(config: BookieConfig, files: Files) -> DirectoryPlaces:
    """Return the places that the configuration gives to its directories."""
    return DirectoryPlaces(files, BookieDirectories.of(config.directories), ordered=not may_expand_storage(config))


async def service_info(config: BookieConfig, address: NetworkConfig, http_port: int | None) -> BookieServiceInfo:
    """The endpoints to publish with the registration. `http_port`: where the HTTP server listens, if there is one."""
    listener = config.http.listener
    return bookie_service_info(
        await asyncio.to_thread(derive_host, address),
        address.bookie_port,
        tls=config.tls.provider_factory_class is not None,
        http_port=http_port,
        http_host=listener.host if listener is not None else None,
        http_tls=config.http.tls_enable,
        network_location=config.network.network_location,
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a bookie, as a command shows it.

    `instance_id` is the cluster's, `cookie_instance_ids` those that the stored and local cookies name.

    `registered`: writable, read-only or None; `registered_address`: the address in the registration. `cookie` is the
    state of the cookies; `problem` why a bookie would refuse to start, None if it would not.
    """

    bookie_id: str
    advertised_address: str
    metadata_service: str
    instance_id: str | None
    cookie_instance_ids: tuple[str | None, ...]
    registered: str | None
    registered_address: str | None
    cookie: str
    problem: str | None

    @property
    def instance_id_matches(self) -> bool | None:
        """Return whether every cookie names the cluster's instance id; None if there is no cookie."""
        if not self.cookie_instance_ids:
            return None
        return all(found == self.instance_id for found in self.cookie_instance_ids)


async def who_am_i(config: BookieConfig, files: Files) -> Identity:
    """Raises `InvalidConfiguration`, `MetadataNotFound` (no cluster), `MetadataUnavailable`."""
    uri = config.metadata.service_uri
    if uri is None:
        raise InvalidConfiguration("metadataServiceUri=: set it, such as zk+hierarchical://zk1:2181/ledgers")
    address = config.network
    bookie_id = await asyncio.to_thread(derive_bookie_id, address)
    host = await asyncio.to_thread(derive_host, address)
    service = await open_metadata(config.metadata, uri)
    try:
        instance_id = await service.cluster.instance_id()
        registered, registered_address = await _registration(service, bookie_id)
        candidates = await asyncio.to_thread(candidate_bookie_ids, address)
        verdict, problem, named = await _cookies(config, files, service, bookie_id, candidates, instance_id)
    finally:
        await service.close()
    return Identity(
        bookie_id=bookie_id,
        advertised_address=f"{host}:{address.bookie_port}",
        metadata_service=uri,
        instance_id=instance_id,
        cookie_instance_ids=named,
        registered=registered,
        registered_address=registered_address,
        cookie=verdict,
        problem=problem,
    )


async def _registration(service: MetadataService, bookie_id: str) -> tuple[str | None, str | None]:
    for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY):
        if await service.bookies.is_registered(bookie_id, group):
            try:
                address = (await service.bookies.service_info(bookie_id)).bookie_address()
            except MetadataNotFound:
                return None, None  # it left just now
            return group.value, None if address is None else f"{address[0]}:{address[1]}"
    return None, None


async def _cookies(
    config: BookieConfig,
    files: Files,
    service: MetadataService,
    bookie_id: str,
    candidates: tuple[str, ...],
    instance_id: str | None,
) -> tuple[str, str | None, tuple[str | None, ...]]:
    """Return the state of the cookies, the obstacle to a start, and the instance ids that they name."""
    directories = BookieDirectories.of(config.directories)
    expected = Cookie.expected(bookie_id, directories, instance_id)
    named: list[str | None] = []
    try:
        stored = await read_stored_cookies(service.cookies, candidates)
        states = [await asyncio.to_thread(read_directory, files, path) for path in directories.current_folders()]
        cookies = [item.cookie for item in stored] + [state.cookie for state in states if state.cookie is not None]
        named = list(dict.fromkeys(cookie.instance_id for cookie in cookies))
        expansion = may_expand_storage(config)
        action = decide(expected, stored, states, allow_storage_expansion=expansion)
        await asyncio.to_thread(directory_places(config, files).check)
    except InvalidCookie as error:
        return "refused", str(error), tuple(named)
    return _VERDICTS[action], None, tuple(named)
