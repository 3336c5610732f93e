"""The clock of this machine beside those of other bookies, by the `Date` of their answers over HTTP."""

from __future__ import annotations

import asyncio
import ssl
import statistics
import time
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp

from bookie_pod.cli.doctor.findings import Finding, State
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.identity.bookie_id import derive_bookie_id
from bookie_pod.server.http.tls import client_context
from bookie_protocol.errors import InvalidConfiguration, PodkeeperError
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.tree.service import MetadataService

FAR_S: Final = 2.0
"""Seconds between clocks that count as a difference: a `Date` is a whole second."""
_MOST_BOOKIES, _SECONDS = 5, 3.0
_PROBE: Final = "/healthz"


async def clock_findings(config: BookieConfig, service: MetadataService) -> list[Finding]:
    """Compare the clock with those of a few other bookies; [] if no other one has an admin API. `MetadataError`."""
    urls = await _urls(config, service)
    if not urls:
        return []
    part, remedy = "clock beside other bookies", "synchronise the clocks of all machines (chrony, systemd-timesyncd)"
    try:
        context = client_context(config.http)
    except InvalidConfiguration:
        context = None
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS)) as session:
        answers = await asyncio.gather(*(_ahead(session, url, context) for url in urls))
    known = [ahead for ahead in answers if ahead is not None]
    if not known:
        return [
            Finding(part, State.UNKNOWN, f"none of {len(urls)} bookies answered with its time", "see whether they run")
        ]
    ahead = statistics.median(known)
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the median of {len(known)}"
    if abs(ahead) > FAR_S:
        return [Finding(part, State.WARNING, f"is {text}", remedy)]
    return [Finding(part, State.OK, f"agrees with {len(known)}, to {FAR_S:g} s")]


async def _urls(config: BookieConfig, service: MetadataService) -> list[str]:
    own = derive_bookie_id(config.network)
    found: list[str] = []
    for bookie in sorted((await service.bookies.list(BookieGroup.WRITABLE)).bookies - {own}):
        try:
            url = (await service.bookies.service_info(bookie)).admin_url(tls=config.http.tls_enable)
        except PodkeeperError:
            continue  # it went away
        if url is not None:
            found.append(url)
        if len(found) == _MOST_BOOKIES:
            break
    return found


async def _ahead(session: aiohttp.ClientSession, url: str, context: ssl.SSLContext | None) -> float | None:
    """Return the seconds by which this clock is ahead of the bookie's; None if it does not tell."""
    began = time.time()
    try:
        async with session.get(url + _PROBE, ssl=True if context is None else context, allow_redirects=False) as answer:
            told = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (OSError, TimeoutError, aiohttp.ClientError, KeyError, ValueError, OverflowError):
        return None
    return (began + time.time()) / 2 - (told + 0.5)
