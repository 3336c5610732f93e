"""The cluster's metadata service, as the configuration describes it, and the patience that a start has with it.

After a loss of power bookies and metadata service start together, and the bookies may be the faster ones. Ending would
not bring an answer any sooner: it would make the supervisor of the process wait longer with each try.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from bookie_pod.config.sections.security import MetadataConfig
from bookie_protocol.errors import InvalidConfiguration, MetadataRefused, MetadataUnavailable
from bookie_protocol.metadata_service.options import MetadataDriver, MetadataTls, SaslLogin
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri
from bookie_protocol.shown import one_line

START_TIMEOUTS: Final = 12
"""The number of `zkTimeout`s that a start waits for an answer.

Then the process ends all the same: the address may be wrong, or only another process would read changed files.
"""
PAUSE_S: Final = 1.0
"""Seconds between two tries where the connection fails at once."""

T = TypeVar("T")
_log = structlog.get_logger(__name__)


async def with_patience(config: MetadataConfig, ask: Callable[[], Awaitable[T]], told: Callable[[str], None]) -> T:
    """Return what `ask` returns, and repeat it as long as the metadata service does not answer.

    `told` is called meanwhile with the reason, in one line. `ask` must be something that a new start could do again.
    Raises what `ask` raises; `MetadataUnavailable` when the patience is over, `MetadataRefused` at once.
    """
    loop = asyncio.get_running_loop()
    is_own = config.service_uri is not None and (
        parse_metadata_service_uri(config.service_uri).driver is MetadataDriver.OWNED
    )  # it is in a folder of this machine: no other process has to come up
    until = loop.time() + (0 if is_own else START_TIMEOUTS * config.zk_timeout_ms / 1000)
    while True:
        try:
            return await ask()
        except MetadataUnavailable as error:
            left = until - loop.time()
            if left <= 0 or isinstance(error, MetadataRefused):
                raise
            reason = one_line(error)
        _log.warning("the metadata service does not answer yet", reason=reason, patience_s=round(left))
        told(reason)
        await asyncio.sleep(min(PAUSE_S, left))


async def open_metadata(config: MetadataConfig, uri: str, *, make_store: bool = False) -> MetadataService:
    """Connect to `uri` with the time-outs, limits and credentials of `config`. `make_store`: as in
    `MetadataServiceOptions`.

    Raises `InvalidConfiguration`, `MetadataUnavailable`, `MetadataNotFound` (a folder that is no metadata store yet).
    """
    auth: tuple[tuple[str, str], ...] = ()
    sasl = None
    if (path := config.zk_auth_credentials_path) is not None:
        user, password = read_credentials(path)
        if config.zk_auth_scheme == "sasl":
            sasl = SaslLogin(username=user, password=password)
        else:
            auth = (("digest", f"{user}:{password}"),)
    return await open_metadata_service(
        uri,
        timeout=config.zk_timeout_ms / 1000,
        auth=auth,
        sasl=sasl,
        secure=config.zk_enable_security,
        tls=metadata_tls(config),
        token_file=config.token_file,
        requests_per_second=config.zk_request_rate_limit,
        follow_migration=config.follow_migration,
        make_store=make_store,
    )


def metadata_tls(config: MetadataConfig) -> MetadataTls | None:
    """None: connections are not encrypted."""
    if not config.tls_enable:
        return None
    return MetadataTls(
        ca_file=config.trust_store_path, certificate_file=config.certificate_path, key_file=config.key_path
    )


def read_credentials(path: str) -> tuple[str, str]:
    """User and password out of a file with one line `user:password`. Raises `InvalidConfiguration`."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidConfiguration(f"zkAuthCredentialsPath={path}: {why}") from error
    user, colon, password = text.rstrip("\r\n").partition(":")
    if not (user and colon and password) or "\n" in text.rstrip("\r\n"):
        raise InvalidConfiguration(f"zkAuthCredentialsPath={path}: must hold one line user:password")
    return user, password
