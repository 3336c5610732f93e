"""Who may do what on the HTTP and on the gRPC port: the one place that decides, for both.

A caller is known, in this order
1. by a token, where the port has a file with tokens: it has the roles of its line, and without one nobody has any;
2. by its certificate, where the port demands certificates: by the role in its subject, as on the bookie's own port
   (`OU=0:viewer`), else it has those of `accessCertificateRoles`.

Where the port knows nobody
- `allowInsecureAccess=true`: everybody may do everything;
- else whoever asks from this machine by a loopback address may, because it could stop the process too, and others are
  viewers: they change nothing, and are shown neither passwords nor payloads. What was passed on by a proxy comes from
  elsewhere, and so does what a browser asks on behalf of a page of elsewhere: it names another host, or that page.

Event loop only.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from typing import Final, NamedTuple

from bookie_pod.config.sections.service import AccessConfig
from bookie_pod.roles import EVERYTHING, ROLE_NAMES, Caller, Role, roles_named
from bookie_pod.server.tcp.authentication import role_of
from bookie_pod.server.tokens import Tokens
from bookie_protocol.addresses import is_loopback
from bookie_protocol.wire.auth import Subject

_PASSED_ON: Final = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-real-ip", "via")
"""Envoy beside a pod, as meshes have it, may say nothing but `x-forwarded-proto`."""
_ELSEWHERE: Final = "cross-site"
_NAME: Final = "commonName"
_VIEWER: Final = frozenset({Role.VIEWER})


class Shown(NamedTuple):
    """What a request shows of the one who makes it."""

    address: str
    """The other end's, as text; whatever is no IP address comes from elsewhere."""
    header: Callable[[str], str | None]
    """Of HTTP, or of a call's metadata; by a name in lower case."""
    subject: Subject | None = None
    """Of the certificate that was shown and is trusted."""


class Access:
    """Who may do what on one port. `token_key`: of its file with tokens, for messages."""

    def __init__(self, rules: AccessConfig, token_key: str, tokens: Tokens | None, *, certificates: bool) -> None:
        """`certificates`: nobody is served who does not show one."""
        self._rules = rules
        self._token_key = token_key
        self._tokens = tokens
        self._of_certificates = roles_named(",".join(rules.certificate_roles)) if certificates else None

    @property
    def has_tokens(self) -> bool:
        return self._tokens is not None

    @property
    def knows_nobody(self) -> bool:
        """The port demands neither tokens nor certificates."""
        return self._tokens is None and self._of_certificates is None

    async def caller(self, shown: Shown) -> Caller:
        """Who asks, and what it may."""
        if self._tokens is not None:
            holder = await self._tokens.holder(shown.header("authorization"))
            if holder is None:
                return Caller("a stranger", shown.address, frozenset(), is_known=False)
            return Caller(holder.name, shown.address, holder.roles)
        if self._of_certificates is not None:
            named = {name: value for part in reversed(shown.subject or ()) for name, value in part}
            return Caller(
                named.get(_NAME, "a certificate without a name")[:100],
                shown.address,
                _own_roles(shown.subject or ()) or self._of_certificates,
            )
        if self._rules.allow_insecure:
            return Caller("anybody", shown.address, EVERYTHING)
        if comes_from_here(shown):
            return Caller("this machine", shown.address, EVERYTHING)
        return Caller("a stranger", shown.address, _VIEWER, is_known=False)

    def refusal(self, caller: Caller, role: Role) -> str | None:
        """Why the caller may not do what needs the role, and the remedy; None: it may."""
        if role in caller.roles:
            return None
        if caller.is_known:
            return f"this needs the role {role.value}, which {caller.name} has not"
        if self._tokens is not None:
            return f"a token is needed: Authorization: Bearer <token>, one of {self._token_key}"
        return (
            f"this needs the role {role.value}, and this port knows nobody: its own machine alone may do it, by a"
            f" loopback address. Set {self._token_key}, or demand certificates; or allowInsecureAccess=true, if"
            " everybody who reaches the port may do everything"
        )


def comes_from_here(shown: Shown) -> bool:
    """Whether a process of this machine asks, for itself, by a loopback address."""
    if not is_loopback(shown.address) or any(shown.header(name) is not None for name in _PASSED_ON):
        return False
    if shown.header("sec-fetch-site") == _ELSEWHERE:
        return False
    host, origin = shown.header("host"), shown.header("origin")
    return (host is None or _names_this_machine(f"//{host}")) and (origin is None or _names_this_machine(origin))


def _names_this_machine(url: str) -> bool:
    try:
        return is_loopback(urllib.parse.urlsplit(url).hostname or "")
    except ValueError:
        return False


def _own_roles(subject: Subject) -> frozenset[Role]:
    """The roles of a certificate that names one of ours where the reference's certificates have their role."""
    role = role_of(subject)
    return roles_named(role) if role is not None and role in ROLE_NAMES else frozenset()
