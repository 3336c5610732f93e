"""The services that a bookie needs: the metadata service, and clocks that agree with those of other bookies.

Asks the metadata service and a few bookies for what every client may know; changes nothing.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from typing import Final

from bookie_pod.cli.doctor.clocks import clock_findings
from bookie_pod.cli.doctor.findings import Finding, State
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.identity.bookie_id import derive_bookie_id
from bookie_pod.node.metadata import metadata_tls, open_metadata
from bookie_protocol.addresses import host_and_port
from bookie_protocol.errors import InvalidConfiguration, MetadataNotFound, MetadataRefused, PodkeeperError
from bookie_protocol.metadata_service.options import MetadataDriver
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri
from bookie_protocol.shown import one_line, shown_uri

SLOW_ANSWER_MS: Final = 100.0
CONNECT_S: Final = 5.0
_QUESTIONS: Final = 20
_MOST_SERVERS: Final = 9


async def metadata_findings(config: BookieConfig) -> list[Finding]:
    """Check the metadata service that the configuration names; [] if it names none."""
    if (uri := config.metadata.service_uri) is None:
        return []
    part, parsed = f"metadata service {shown_uri(uri)}", parse_metadata_service_uri(uri)
    if parsed.driver is MetadataDriver.OWNED:
        return [Finding(part, State.OK, "is a folder of this machine, which one process at a time may open")]
    servers = await asyncio.gather(*(_server(config, *host) for host in parsed.hosts[:_MOST_SERVERS]))
    return [*servers, *await _service(part, uri, config)]


async def _service(part: str, uri: str, config: BookieConfig) -> list[Finding]:
    found: list[Finding] = []
    try:
        service = await open_metadata(config.metadata, uri)
    except PodkeeperError as error:
        refused = isinstance(error, (InvalidConfiguration, MetadataRefused))
        remedy = "correct its address and credentials" if refused else "start it, or correct its address"
        return [Finding(part, State.PROBLEM, one_line(error), remedy)]
    try:
        found.append(await _answers(part, service))
        found.append(await _cookie(config, service))
        found.extend(_session(part, config, service))
        found.extend(await clock_findings(config, service))
    except MetadataNotFound:
        found.append(Finding(part, State.PROBLEM, "has no cluster", f"bookie cluster init {shown_uri(uri)}"))
    except PodkeeperError as error:
        found.append(Finding(part, State.UNKNOWN, one_line(error), "try again"))
    finally:
        await service.close()
    return found


async def _server(config: BookieConfig, host: str, port: int) -> Finding:
    """Connect to one server, with TLS if that is configured."""
    part, tls = f"metadata server {host_and_port(host, port)}", metadata_tls(config.metadata)
    began = time.perf_counter()
    try:
        context = None if tls is None else tls.context()
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.close()
    except ssl.SSLCertVerificationError as error:
        text = f"its certificate is refused: {one_line(error.verify_message)}"
        return Finding(part, State.PROBLEM, text, "correct metadataServiceTrustStorePath, or its certificate")
    except TimeoutError:
        return Finding(
            part, State.WARNING, f"did not answer within {CONNECT_S:g} s", "start it, or correct its address"
        )
    except OSError as error:
        return Finding(part, State.WARNING, one_line(error.strerror or error), "start it, or correct its address")
    return Finding(part, State.OK, f"accepts connections, within {(time.perf_counter() - began) * 1000:.1f} ms")


def _session(part: str, config: BookieConfig, service: MetadataService) -> Iterator[Finding]:
    wish, given = config.metadata.zk_timeout_ms / 1000, service.session.expires_after
    if given < wish:
        text = f"ends sessions after {given:g} s, not after zkTimeout ({wish:g} s): short pauses unregister the bookie"
        yield Finding(part, State.WARNING, text, "raise maxSessionTimeout of the servers, or lower zkTimeout")


async def _answers(part: str, service: MetadataService) -> Finding:
    times: list[float] = []
    for _ in range(_QUESTIONS):
        began = time.perf_counter()
        await service.cluster.instance_id()
        times.append((time.perf_counter() - began) * 1000)
    half = sorted(times)[_QUESTIONS // 2]
    text = f"answers within {half:.1f} ms"
    if half > SLOW_ANSWER_MS:
        return Finding(part, State.WARNING, text, "put it nearer: each new ledger waits for several answers")
    return Finding(part, State.OK, text)


async def _cookie(config: BookieConfig, service: MetadataService) -> Finding:
    bookie_id = derive_bookie_id(config.network)
    part = f"bookie {bookie_id}"
    try:
        await service.cookies.read(bookie_id)
    except MetadataNotFound:
        return Finding(part, State.OK, "has no cookie in the cluster: its next start is its first one")
    return Finding(part, State.OK, "has a cookie in the cluster")
