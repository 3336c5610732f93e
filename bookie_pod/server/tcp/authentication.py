"""The provider that connections must authenticate with, as the configuration names it, and the one of our own: the role
in the certificate that a client shows in the TLS handshake, as the reference implementation's `BookieAuthZFactory`
has it.

The role stands in the organisational unit (OU) of the certificate's subject: parts that `;` separates, each a code
and `:` and names that `,` separates. Code 0 holds the roles, of which the first counts: `OU=0:broker;1:cluster-a` has
the role `broker`. Of several organisational units the first one in the certificate counts. Whoever has no role of
`authorizedRoles` is refused, and so is every request before the handshake; AUTH messages are read and change nothing.

Threads: event loop only; a provider is made anywhere, once at start-up.

Source: reference wire protocol, section 5.
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
        """Nothing is remembered of one connection."""
        return self

    async def process(self, token: bytes) -> AuthStep:
        """Only the handshake counts."""
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
    """The role that a subject names; None: there is none."""
    unit = next((value for part in subject for name, value in part if name == _UNIT), "")
    named = [match.groups() for part in unit.split(";") if (match := _PART.fullmatch(part)) is not None]
    roles = {code.strip(): names.strip() for code, names in named}.get(_ROLE_CODE, "")
    return roles.split(",")[0].strip() or None


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
