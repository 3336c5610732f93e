"""Logins by SASL DIGEST-MD5, as Apache's `SASLBookieAuthProvider` and `SASLClientAuthProvider` speak them.

The client speaks first, with an empty token, because the mechanism has no initial response; then challenge, answer and
proof. Users stand in a section of a JAAS file: the bookie's as `user_NAME="password"`, the client's own login as
`username` and `password`. Kerberos (GSSAPI), the other mechanism of those providers, is not there.

Event loop only.

Source: reference wire protocol, section 5.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final

from bookie_protocol.auth.digest_md5 import LONGEST, SERVICE, DigestMd5Server
from bookie_protocol.auth.jaas import LoginModule, parse_jaas
from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.errors import InvalidConfiguration, Unauthorized
from bookie_protocol.wire.auth import AuthStep, Peer

PLUGIN_NAME: Final = "sasl"
CLIENT_SECTION: Final = "BookKeeper"
"""Of a JAAS file, unless somebody says otherwise."""
JAAS_FILE: Final = "saslJaasConfigFile"
"""How messages call the file: by the configuration key that names it."""
_USER: Final = "user_"
_KERBEROS: Final = "Krb5LoginModule"


class SaslServer:
    """A `ServerAuthProvider`. `passwords` is asked at each login; `allowed`: users that may connect."""

    plugin_name = PLUGIN_NAME

    def __init__(self, passwords: Callable[[], Mapping[str, str]], allowed: re.Pattern[str]) -> None:
        self.passwords = passwords
        self.allowed = allowed

    def new_exchange(self, peer: Peer) -> _ServerExchange:
        return _ServerExchange(self)


class _ServerExchange:
    def __init__(self, provider: SaslServer) -> None:
        self._provider = provider
        self._login: DigestMd5Server | None = None

    async def process(self, token: bytes) -> AuthStep:
        """Raises Unauthorized, and InvalidConfiguration while the file cannot be used."""
        if self._login is None:
            if token:
                raise Unauthorized("a SASL login that does not begin with an empty token: only DIGEST-MD5 is served")
            self._login = DigestMd5Server(self._provider.passwords())
            return AuthStep(self._login.challenge(), False)
        user, proof = self._login.verify(token)
        if self._provider.allowed.fullmatch(user) is None:
            raise Unauthorized(f"user {user!r} is none of saslJaasClientAllowedIds")
        return AuthStep(proof, True)

    async def tls_established(self, peer: Peer) -> bool:
        """A certificate is no login."""
        return False


@dataclass(frozen=True, slots=True)
class SaslAuth:
    """Log in to bookies by SASL DIGEST-MD5: `ClientOptions.auth`. Raises InvalidConfiguration for what cannot be
    carried to every bookie."""

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        for name, text in (("user name", self.username), ("password", self.password)):
            if not text or not text.isascii() or not text.isprintable():
                raise InvalidConfiguration(f"a SASL login to bookies needs a {name} of printable ASCII characters")
        if find_spec("puresasl") is None:
            raise InvalidConfiguration(
                "a SASL login to bookies needs the Python package puresasl: install podkeeper[sasl]"
            )

    @property
    def plugin_name(self) -> str:
        """The name on the wire."""
        return PLUGIN_NAME

    def new_exchange(self, peer: Peer) -> _ClientExchange:
        return _ClientExchange(self.username, self.password)


class JaasAuth:
    """Log in to bookies as a section of a JAAS file says, which is read again when it changes: `ClientOptions.auth`."""

    plugin_name = PLUGIN_NAME

    def __init__(self, path: str, section: str = CLIENT_SECTION, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidConfiguration."""
        self._of = path, section
        self._login = WatchedFile(JAAS_FILE, path, lambda content: login_of(content, section), clock)
        self._login.value()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JaasAuth) and other._of == self._of

    def __hash__(self) -> int:
        return hash(self._of)

    def new_exchange(self, peer: Peer) -> _ClientExchange:
        return self._login.value().new_exchange(peer)


class _ClientExchange:
    def __init__(self, username: str, password: str) -> None:
        from puresasl import QOP
        from puresasl.client import SASLClient

        self._client = SASLClient(
            SERVICE, SERVICE, mechanism="DIGEST-MD5", username=username, password=password, qops=[QOP.AUTH]
        )

    async def start(self) -> AuthStep:
        """The empty token."""
        return AuthStep(b"", False)

    async def process(self, token: bytes) -> AuthStep:
        """Raises Unauthorized for a bookie that does not prove that it knows the password."""
        from puresasl import SASLError, SASLProtocolException

        if len(token) > LONGEST:  # which is read byte by byte
            raise Unauthorized(f"the bookie's part of the login has {len(token)} bytes, more than {LONGEST}")
        try:
            answer = self._client.process(token)
        except (SASLError, SASLProtocolException) as error:
            raise Unauthorized(f"the bookie does not know the password, or no DIGEST-MD5: {error}") from error
        return AuthStep(answer, self._client.complete)

    async def tls_established(self, peer: Peer) -> bool:
        """A certificate is no login."""
        return False


def users_of(content: bytes, section: str) -> dict[str, str]:
    """The passwords of a bookie's section of a JAAS file. Raises ValueError."""
    options = {name: text for module in _section(content, section) for name, text in module.options.items()}
    users = {name.removeprefix(_USER): text for name, text in options.items() if name.startswith(_USER)}
    if not users:
        raise ValueError(f'section {section} has no user; write user_NAME="password"')
    return users


def login_of(content: bytes, section: str) -> SaslAuth:
    """The login of a client's section of a JAAS file. Raises ValueError."""
    for module in _section(content, section):
        if "username" in module.options and "password" in module.options:
            try:
                return SaslAuth(module.options["username"], module.options["password"])
            except InvalidConfiguration as error:
                raise ValueError(f"section {section}: {error}") from None
    raise ValueError(f"section {section} needs username and password")


def _section(content: bytes, name: str) -> tuple[LoginModule, ...]:
    sections = parse_jaas(content)
    if name not in sections:
        raise ValueError(f"there is no section {name}, but {', '.join(sections) or 'none'}")
    for module in sections[name]:
        if module.name.rpartition(".")[2] == _KERBEROS:
            raise ValueError(f"section {name} asks for Kerberos, which is not there: use DIGEST-MD5 or certificates")
    return sections[name]
