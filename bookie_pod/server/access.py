"""The rights of callers on the HTTP and gRPC ports; this module alone decides, for both.

A caller is known, in this order
1. by a token, where the port has a file with tokens: it has the roles of its line, and no caller without a token has
   any;
2. by its certificate, where the port demands certificates: by the roles in its subject, which are where the bookie's
   own port finds them (`OU=0:viewer`, or `OU=0:bookie,operator`: there the first name counts, here those that are roles
   of ours). A subject that names none of ours has no rights here; one that names nothing has `accessCertificateRoles`.
   A caller without a certificate, or with one that cannot be read, has no rights.

Where the port has neither tokens nor certificates
- `allowInsecureAccess=true`: every caller may do everything;
- else callers from this machine with a loopback address may, because they could stop the process too. Others are
  viewers: they change nothing, and are shown neither passwords nor payloads. A request that a proxy passed on comes
  from elsewhere, and so does one that a browser makes for a page of another site: it names another host, or that page.

Pages for people are all that takes HTTP Basic, as browsers have it: a token is the password, with any user name. A
browser sends such credentials along with requests that pages of other sites make, too. So they count for GET of a page
alone, which changes nothing; over TLS or on this machine, as clients show tokens; and not for what a page of another
site embeds or fetches (`of_browser`, `local_requests.is_embedded`). Everything else takes them for no credentials.

Event loop only.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bookie_pod.config.sections.service import AccessConfig
from bookie_pod.roles import EVERYTHING, ROLE_NAMES, Caller, Role, roles_named
from bookie_pod.server.tcp.authentication import role_names_of
from bookie_pod.server.tokens import Tokens
from bookie_protocol.local_requests import comes_from_here, is_on_this_machine
from bookie_protocol.wire.auth import Subject

CREDENTIALS: Final = "authorization"
BEARER: Final = "Bearer "
_BASIC: Final = "basic "
_NAME: Final = "commonName"
_VIEWER: Final = frozenset({Role.VIEWER})


class Shown(NamedTuple):
    """The credentials and origin that a request shows."""

    address: str
    """The other end's, as text; whatever is no IP address comes from elsewhere."""
    header: Callable[[str], str | None]
    """Returns a header of HTTP, or of a call's metadata, by its name in lower case."""
    subject: Subject | None = None
    """The subject of a trusted certificate. None: the connection has no certificate that can be read."""
    is_encrypted: bool = False
    """The connection uses TLS."""


def one_of(name: str, values: Sequence[str]) -> str | None:
    """The first value of a header. Credentials that are given twice count as none: which of them is meant would be for
    the caller to choose."""
    return None if not values or (name == CREDENTIALS and len(values) > 1) else values[0]


class Access:
    """The access rules of one port. `token_key` is the key of its file with tokens, for messages."""

    def __init__(
        self,
        rules: AccessConfig,
        token_key: str,
        tokens: Tokens | None,
        *,
        certificates: bool,
        of_other_names: frozenset[Role] = frozenset(),
    ) -> None:
        """`certificates`: the port serves only clients that show one. `of_other_names`: the roles of a certificate
        whose subject names roles, and none of ours."""
        self._rules = rules
        self._token_key = token_key
        self._tokens = tokens
        self._of_certificates = roles_named(",".join(rules.certificate_roles)) if certificates else None
        self._of_other_names = of_other_names

    @property
    def has_tokens(self) -> bool:
        return self._tokens is not None

    @property
    def knows_nobody(self) -> bool:
        """The port demands neither tokens nor certificates."""
        return self._tokens is None and self._of_certificates is None

    async def caller(self, shown: Shown) -> Caller:
        """Return the caller and its roles."""
        if self._tokens is not None:
            holder = await self._tokens.holder(shown.header(CREDENTIALS))
            if holder is None:
                return Caller("a stranger", shown.address, frozenset(), is_known=False)
            return Caller(holder.name, shown.address, holder.roles)
        if self._of_certificates is not None:
            if shown.subject is None:
                return Caller("a stranger", shown.address, frozenset(), is_known=False)
            named = {name: value for part in reversed(shown.subject) for name, value in part}
            name = named.get(_NAME, "a certificate without a name")[:100]
            return Caller(name, shown.address, self._certified(shown.subject))
        if self._rules.allow_insecure:
            return Caller("anybody", shown.address, EVERYTHING)
        if comes_from_here(shown.address, shown.header):
            return Caller("this machine", shown.address, EVERYTHING)
        return Caller("a stranger", shown.address, _VIEWER, is_known=False)

    def refusal(self, caller: Caller, role: Role) -> str | None:
        """Return why the caller may not do what needs the role, and the remedy; None if it may."""
        if role in caller.roles:
            return None
        if caller.is_known:
            return f"this needs the role {role.value}, which {caller.name} does not have"
        if self._tokens is not None:
            return f"a token is needed: Authorization: Bearer <token>, one of {self._token_key}"
        if self._of_certificates is not None:
            return "a certificate is needed, and this connection shows none that can be read"
        return (
            f"this needs the role {role.value}, and this port does not authenticate callers:"
            f" only its own machine may do it, by a loopback address. Set {self._token_key}, or demand certificates;"
            " or set allowInsecureAccess=true, if every caller that reaches the port may do everything"
        )

    def _certified(self, subject: Subject) -> frozenset[Role]:
        """The roles of a certificate. A name that is not a role of ours, such as a misspelt one, gives no rights."""
        assert self._of_certificates is not None, "the port demands certificates"
        names = role_names_of(subject)
        if not names:
            return self._of_certificates
        ours = [name for name in names if name in ROLE_NAMES]
        return roles_named(",".join(ours)) if ours else self._of_other_names


def may_show_password(shown: Shown) -> bool:
    """Return whether no third party reads what the browser shows: it uses TLS, or is on this machine."""
    return shown.is_encrypted or is_on_this_machine(shown.address, shown.header)


def of_browser(shown: Shown) -> Shown:
    """Return the credentials of a browser that asks for a page.

    The password of HTTP Basic credentials counts as a bearer token if `may_show_password`; otherwise there are none.
    """
    given = shown.header(CREDENTIALS)
    if given is None or not given.lower().startswith(_BASIC):
        return shown
    token = _password(given[len(_BASIC) :]) if may_show_password(shown) else None
    credentials = BEARER + token if token else None
    return shown._replace(header=lambda name: credentials if name == CREDENTIALS else shown.header(name))


def _password(basic: str) -> str | None:
    """Return the password of HTTP Basic credentials; None if they cannot be read."""
    try:
        text = base64.b64decode(basic.strip(), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return text.partition(":")[2]
