"""The authentication provider for connections, as configured, and the built-in provider of certificate roles.

The built-in one takes the role from the certificate of the TLS handshake, as the reference implementation's
`BookieAuthZFactory` does.

The role is in the organisational unit (OU) of the certificate's subject: parts that `;` separates, each a code and `:`
and names that `,` separates. Code 0 holds the roles, of which the first counts: `OU=0:broker;1:cluster-a` has the role
`broker`. Of several organisational units the first one in the certificate counts. A client without a role of
`authorizedRoles` is refused, and so is every request before the handshake; AUTH messages are read and change nothing.

Threads: event loop only; a provider is made anywhere, once at start-up.

Source: docs/internals/wire-protocol.md, section 5.
"""

from __future__ import annotations

import re
from typing import Final

from bookie_pod.config.sections.security import CERTIFICATE_ROLES, ENTRY_POINT, SASL_BOOKIE, SHARED_TOKEN, AuthConfig
from bookie_protocol.auth.entry_points import BOOKIE, make_provider
from bookie_protocol.auth.sasl import JAAS_FILE, SaslServer, accounts_of
from bookie_protocol.auth.shared_token import SharedTokens
from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.errors import Unauthorized
from bookie_protocol.wire.auth import AuthStep, Peer, ServerAuthProvider, Subject

PLUGIN_NAME: Final = "BookieAuthZFactory"
_UNIT: Final = "organizationalUnitName"
_PART: Final = re.compile(r"([0-9]+):(.*)")
_ROLE_CODE: Final = "0"


class CertificateRoles:
    """A `ServerAuthProvider`; `authorized` are the roles that may connect."""

    plugin_name = PLUGIN_NAME

    def __init__(self, authorized: tuple[str, ...]) -> None:
        self._authorized = frozenset(authorized)

    def new_exchange(self, peer: Peer) -> CertificateRoles:
        """Return this provider: it keeps no state of a connection."""
        return self

    async def process(self, token: bytes) -> AuthStep:
        """Change nothing: only the handshake counts."""
        return AuthStep(None, False)

    async def tls_established(self, peer: Peer) -> bool:
        """Raises Unauthorized."""
        role = role_of(peer.subject)
        if role is None:
            raise Unauthorized(f"{peer.address} has no role in its certificate: its subject needs an OU such as 0:ROLE")
        if role not in self._authorized:
            raise Unauthorized(f"the role {role!r} of {peer.address} is not one of authorizedRoles")
        return True


def role_of(subject: Subject) -> str | None:
    """Return the role that a subject names, or None."""
    names = role_names_of(subject)
    return names[0] or None if names else None


def role_names_of(subject: Subject) -> list[str]:
    """Return all names in the roles of a subject; the first one may be empty."""
    unit = next((value for part in subject for name, value in part if name == _UNIT), "")
    named = [match.groups() for part in unit.split(";") if (match := _PART.fullmatch(part)) is not None]
    roles = {code.strip(): names.strip() for code, names in named}.get(_ROLE_CODE, "")
    return [name.strip() for name in roles.split(",")] if roles else []


def server_authentication(config: AuthConfig) -> ServerAuthProvider | None:
    """Return the configured provider; None if clients need not authenticate.

    The configuration keeps its rules. Raises InvalidConfiguration for files that cannot be used.
    """
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
