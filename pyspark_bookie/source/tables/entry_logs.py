"""The table `entrylogs`: what is in the entry logs of bookies, by their HTTP API.

A bookie of Apache BookKeeper lists its logs only; sizes and live shares are null then. A bookie without an HTTP server,
or one that does not answer, is one row with an error.

Event loop of the client only.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from pyspark_bookie.common.together import bounded
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.tables.ledgers import Row

if TYPE_CHECKING:
    from bookie_client.client import Client

LOGS_AT_A_TIME: Final = 8
"""Requests to one bookie."""
TIMEOUT_SECONDS: Final = 30.0
_LIST: Final = "/api/v1/bookie/list_disk_file?file_type=entrylog"
_WHY: Final = "/api/v1/bookie/gc/why"
_NO_SUCH_LOG: Final = (404, 405, 501)


async def entry_log_rows(client: Client, bookies: Sequence[str], options: SourceOptions) -> AsyncIterator[list[Row]]:
    """The logs of these bookies, one bookie after the other."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, headers=_headers(options)) as session:
        for bookie in bookies:
            try:
                yield await _logs(session, await _address(client, bookie, options), bookie, options)
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError, LookupError) as error:
                yield [_failed(bookie, str(error) or type(error).__name__)]


async def _address(client: Client, bookie: str, options: SourceOptions) -> str:
    """The address of the bookie's HTTP server. Raises `LookupError` with the reason."""
    try:
        about = await client.metadata_service.bookies.service_info(bookie)
    except (MetadataNotFound, MetadataDamaged) as error:
        raise LookupError(str(error)) from None
    url = about.admin_url(tls=options.admin_tls)
    if url is None:
        raise LookupError("it has no HTTP server (httpServerEnabled=true)")
    return url


async def _logs(session: aiohttp.ClientSession, address: str, bookie: str, options: SourceOptions) -> list[Row]:
    encryption = _encryption(options)
    async with session.get(address + _LIST, ssl=encryption) as answer:
        answer.raise_for_status()
        listed = await answer.json(content_type=None)
    names = sorted({name for text in dict(listed).values() for name in str(text).split() if name.endswith(".log")})
    found = await bounded(names, lambda name: _why(session, address, name, encryption), at_a_time=LOGS_AT_A_TIME)
    return [_row(bookie, name, why) for name, logs in zip(names, found, strict=True) for why in logs]


async def _why(
    session: aiohttp.ClientSession, address: str, name: str, encryption: ssl.SSLContext
) -> list[dict[str, Any]]:
    """What the bookie tells of a log; an empty object if it has no such answer."""
    async with session.get(address + _WHY, params={"entryLog": name}, ssl=encryption) as answer:
        if answer.status in _NO_SUCH_LOG:
            return [{}]
        answer.raise_for_status()
        return list(await answer.json())


def _row(bookie: str, name: str, why: dict[str, Any]) -> Row:
    owners = why.get("owners")
    return (
        bookie,
        why.get("directory"),
        name,
        int(name.removesuffix(".log"), 16),
        why.get("size"),
        why.get("usage"),
        why.get("liveBytes"),
        why.get("inDoubtBytes"),
        None if owners is None else {share["ledgerId"]: share["bytes"] for share in owners},
        why.get("reason"),
        None,
    )


def _failed(bookie: str, error: str) -> Row:
    return bookie, *([None] * 9), error


def _headers(options: SourceOptions) -> dict[str, str]:
    token = options.admin_token()
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _encryption(options: SourceOptions) -> ssl.SSLContext:
    """The context for bookies that serve HTTPS."""
    context = ssl.create_default_context(cafile=options.tls_ca_file)
    context.check_hostname = options.tls_check_hostname
    return context
