"""How this bookie asks the admin API of others: bookies of one cluster are configured alike, so its own token and
certificates are theirs.

Threads: any; reads small files.
"""

from __future__ import annotations

import ssl

from bookie_pod.autorecovery.decommission.presence import HttpBookieAdmin
from bookie_pod.config.sections.service import HttpConfig
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.interface import MetadataService


def bookie_admin(service: MetadataService, config: HttpConfig) -> HttpBookieAdmin:
    """`InvalidConfiguration` for a file that cannot be read."""
    return HttpBookieAdmin(service, token=_token(config), tls=_client_context(config))


def _token(config: HttpConfig) -> str | None:
    path = config.auth_token_file
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            words = file.read(64 * 1024).split()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"httpServerAuthTokenFile={path}: it cannot be read: {error}") from error
    return words[0] if words else None


def _client_context(config: HttpConfig) -> ssl.SSLContext | None:
    if not config.tls_enable:
        return None
    try:
        context = ssl.create_default_context(cafile=config.trust_store_path)
        context.load_cert_chain(config.key_store_path or "", password=config.key_store_password or "")
    except OSError as error:
        raise InvalidConfiguration(f"the certificates of the HTTP server cannot be used: {error}") from error
    return context
