"""The cluster's metadata service, as the configuration describes it.

Threads: event loop.
"""

from __future__ import annotations

from bookie_pod.config.sections.security import MetadataConfig
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.options import MetadataTls, SaslLogin
from bookie_protocol.metadata_service.uri import open_metadata_service


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
