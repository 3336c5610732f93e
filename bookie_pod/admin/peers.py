"""How the admin API of bookies is asked by their like: bookies of one cluster are configured alike, so the token and
the certificates of one's own configuration are theirs.

Threads: any; reads small files.
"""

from __future__ import annotations

import ssl

from bookie_pod.autorecovery.decommission.presence import HttpBookieAdmin
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.server.http.tls import client_context
from bookie_protocol.bearer_tokens import MAX_BYTES, first_token
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.interface import MetadataService


def bookie_admin(
    service: MetadataService,
    config: HttpConfig,
    *,
    url: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> HttpBookieAdmin:
    """What is given counts in place of the configuration. `InvalidConfiguration` for a file that cannot be read."""
    return HttpBookieAdmin(service, url=url, token=token or _token(config), tls=tls or client_context(config))


def _token(config: HttpConfig) -> str | None:
    path = config.auth_token_file
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return first_token(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise InvalidConfiguration(f"httpServerAuthTokenFile={path}: it cannot be read: {error}") from error
    except ValueError as error:
        raise InvalidConfiguration(f"httpServerAuthTokenFile={path}: it is not a file with tokens") from error
