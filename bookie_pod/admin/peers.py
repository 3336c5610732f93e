"""Access to the admin API of other bookies of the cluster.

Bookies of one cluster are configured alike, so the token and the certificates of one's own configuration are theirs.

Threads: any; reads small files.
"""

from __future__ import annotations

import ssl
from dataclasses import replace

from bookie_pod.autorecovery.decommission.presence import BookieAdmin
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.server.http.tls import client_context
from bookie_protocol.addresses import is_loopback
from bookie_protocol.admin_api.trust import Trust, named
from bookie_protocol.bearer_tokens import MAX_BYTES, first_token
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.tree.service import MetadataService


def bookie_admin(
    service: MetadataService,
    config: HttpConfig,
    *,
    url: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> BookieAdmin:
    """Return a client of bookies' admin API. Arguments override the configuration; `tls` trusts named authorities only.
    `InvalidConfiguration` for a file that cannot be read."""
    context = tls or client_context(config)
    if url is not None:
        trust = named(url.rstrip("/"))
    else:
        trust = trust_of(config, context) if tls is None else Trust(authorities=tls)
    trust = replace(trust, remedy=f"{trust.remedy} (a command: --ca-file FILE, or the bookie's own --admin-url URL)")
    return BookieAdmin(service, url=url, token=token or _token(config), tls=context, trust=trust)


def trust_of(config: HttpConfig, tls: ssl.SSLContext | None) -> Trust:
    """Return the servers that a bookie's configuration names; `tls`: its `client_context`.

    A server is one of them with a certificate of the configured authorities, not of any that this machine trusts; or on
    this machine, if bookies serve it alone."""
    is_named = config.tls_enable and config.trust_store_path is not None
    return Trust(authorities=tls if is_named else None, own_machine=is_loopback(config.server_host))


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
