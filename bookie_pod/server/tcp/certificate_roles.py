"""Who may connect, by the role in the certificate that a client shows in the TLS handshake.

What the reference implementation's `BookieAuthZFactory` does. The role stands in the organisational unit (OU) of the
certificate's subject: parts that `;` separates, each a code and `:` and names that `,` separates. Code 0 holds the
roles, of which the first counts: `OU=0:broker;1:cluster-a` has the role `broker`. Of several organisational units the
first one in the certificate counts. Whoever has no role of `authorizedRoles` is refused, and so is every request before
the handshake; AUTH messages are read and change nothing.

Threads: event loop only.

Source: reference wire protocol, section 5.
"""

from __future__ import annotations

import re
from typing import Final

from bookie_protocol.errors import Unauthorized
from bookie_protocol.wire.auth import AuthStep, Peer, Subject

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
