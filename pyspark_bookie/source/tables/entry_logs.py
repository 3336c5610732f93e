"""The table `entrylogs`: what is in the entry logs of bookies, by their HTTP API.

A bookie of Apache BookKeeper lists its logs only; sizes and live shares are null then. A bookie without an HTTP server,
or one that does not answer, is one row with an error.

Event loop of the client only.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

import aiohttp

from bookie_protocol.admin_api.bookie import DISK_FILES, FilesQuery
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.admin_api.gc import WHY, EntryLogQuery, LogWhy
from bookie_protocol.admin_api.trust import Trust
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, NotThere, PodkeeperError
from bookie_protocol.together import bounded
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.tables.rows import Row

if TYPE_CHECKING:
    from bookie_client.client import Client

LOGS_AT_A_TIME: Final = 8
"""Requests to one bookie."""
TIMEOUT_SECONDS: Final = 30.0


async def entry_log_rows(client: Client, bookies: Sequence[str], options: SourceOptions) -> AsyncIterator[list[Row]]:
    """The logs of these bookies, one bookie after the other."""
    async with aiohttp.ClientSession() as session:
        api = AdminClient(session, options.admin_token(), timeout_s=TIMEOUT_SECONDS)
        for bookie in bookies:
            try:
                url = await _address(client, bookie, options)
                yield await _logs(api, _place(url, options), bookie)
            except (PodkeeperError, LookupError, OSError, ValueError) as error:
                yield [_failed(bookie, str(error))]


async def _address(client: Client, bookie: str, options: SourceOptions) -> str:
    """Return the address of the bookie's HTTP server. Raises `LookupError` with the reason."""
    try:
        about = await client.metadata_service.bookies.service_info(bookie)
    except (MetadataNotFound, MetadataDamaged) as error:
        raise LookupError(str(error)) from None
    url = about.admin_url(tls=options.admin_tls)
    if url is None:
        raise LookupError("it has no HTTP server (httpServerEnabled=true)")
    return url


async def _logs(api: AdminClient, at: Place, bookie: str) -> list[Row]:
    names = sorted(await log_names(api, at))
    found = await bounded(names, lambda name: ask_why(api, at, name), at_a_time=LOGS_AT_A_TIME)
    return [row for name, logs in zip(names, found, strict=True) for row in _rows(bookie, name, logs)]


async def log_names(api: AdminClient, at: Place) -> list[str]:
    """The bookie's entry logs, each once, as it lists them."""
    listed = await api.ask(at, DISK_FILES, query=FilesQuery("entrylog"))
    return list(dict.fromkeys(name for text in listed.values() for name in text.split() if name.endswith(".log")))


async def ask_why(api: AdminClient, at: Place, name: str) -> list[LogWhy] | None:
    """Return what the bookie says about a log; None if it has no answer, as Apache's, or the log has gone meanwhile."""
    try:
        return await api.ask(at, WHY, query=EntryLogQuery(name))
    except NotThere:
        return None


def _rows(bookie: str, name: str, logs: list[LogWhy] | None) -> list[Row]:
    log_id = int(name.removesuffix(".log"), 16)
    if logs is None:
        return [(bookie, None, name, log_id, None, None, None, None, None, None, None)]
    return [
        (
            bookie,
            why.directory,
            name,
            log_id,
            why.size,
            why.usage,
            why.live_bytes,
            why.in_doubt_bytes,
            None if why.owners is None else {share.ledger_id: share.bytes for share in why.owners},
            why.reason,
            None,
        )
        for why in logs
    ]


def _failed(bookie: str, error: str) -> Row:
    return bookie, *([None] * 9), error


def _place(url: str, options: SourceOptions) -> Place:
    """Return the place of a published address: only authorities that `tls.caFile` names prove who answers there."""
    context = ssl.create_default_context(cafile=options.tls_ca_file)
    context.check_hostname = options.tls_check_hostname
    authorities = context if options.tls_ca_file is not None else None
    remedy = "set httpServerTlsEnable=true there, and the options admin.tls=true and tls.caFile here"
    return Place(url, url, context, trust=Trust(authorities=authorities, remedy=remedy))
