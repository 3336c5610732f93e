"""The provider that connections must authenticate with, as the configuration names it.

Threads: anywhere, once at start-up.
"""

from __future__ import annotations

import re

from bookie_pod.config.sections.security import CERTIFICATE_ROLES, ENTRY_POINT, SASL_BOOKIE, SHARED_TOKEN, AuthConfig
from bookie_pod.server.tcp.certificate_roles import CertificateRoles
from bookie_protocol.auth.entry_points import BOOKIE, make_provider
from bookie_protocol.auth.sasl import JAAS_FILE, SaslServer, accounts_of
from bookie_protocol.auth.shared_token import SharedTokens
from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.wire.auth import ServerAuthProvider


def server_authentication(config: AuthConfig) -> ServerAuthProvider | None:
    """None: nobody has to authenticate. The configuration keeps its rules. Raises InvalidConfiguration for files that
    cannot be used."""
    if config.provider_class == CERTIFICATE_ROLES:
        return CertificateRoles(config.authorized_roles)
    if config.provider_class == SASL_BOOKIE:
        section = config.jaas_bookie_section
        accounts = WatchedFile(JAAS_FILE, str(config.jaas_file), lambda content: accounts_of(content, section))
        accounts.value()
        return SaslServer(accounts.value, re.compile(config.jaas_allowed_ids))
    if config.provider_class == SHARED_TOKEN:
        return SharedTokens("authTokenFile", str(config.token_file))
    if config.provider_class == ENTRY_POINT:
        provider: ServerAuthProvider = make_provider(BOOKIE, str(config.entry_point), config.entry_point_file)
        return provider
    return None
