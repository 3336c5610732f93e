"""Logins by SASL, as Apache's `SASLBookieAuthProvider` and `SASLClientAuthProvider` speak them.

A section of a JAAS file says how: by Kerberos (`Krb5LoginModule`), or by DIGEST-MD5. Users of the latter are listed in
the section, the bookie's as `user_NAME="password"`, the client's own login as `username` and `password`. The client
speaks first, with an empty token, because DIGEST-MD5 has no initial response; then challenge, answer and proof.

Event loop only.

Source: docs/internals/wire-protocol.md, section 5.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, TypeVar

from bookie_protocol.auth import kerberos
from bookie_protocol.auth.digest_md5 import DigestMd5Client, DigestMd5Server
from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.errors import InvalidConfiguration, Unauthorized
from bookie_protocol.wire.auth import AuthStep, ClientAuthExchange, ClientAuthProvider, Peer

T = TypeVar("T")
PLUGIN_NAME: Final = "sasl"
CLIENT_SECTION: Final = "BookKeeper"
"""The section of the JAAS file with the login of clients, unless the configuration names another one."""
AUDITOR_SECTION: Final = "Auditor"
"""The section with the login of auto-recovery, if the file has it."""
JAAS_FILE: Final = "saslJaasConfigFile"
"""The name of the file in messages: the configuration key."""
_USER: Final = "user_"
_KERBEROS: Final = "Krb5LoginModule"
_COMMENT: Final = re.compile(r'("(?:[^"\\\n]|\\.)*")|/\*.*?\*/|//[^\n]*|^[ \t]*#[^\n]*', re.DOTALL | re.MULTILINE)
_TOKEN: Final = re.compile(r'\s*(?:"((?:[^"\\\n]|\\.)*)"|([^\s"{};=]+)|([{};=]))', re.DOTALL)
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One login module of a section of a JAAS file, with its options."""

    name: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name}, {', '.join(self.options)})"


def parse_jaas(content: bytes) -> dict[str, tuple[LoginModule, ...]]:
    """Return the sections of a JAAS file, Java's login configuration, by name.

    A section lists login modules with options::

        Bookie {
          org.apache.zookeeper.server.auth.DigestLoginModule required
          user_bookkeeper="s3cret";
        };

    Comments are Java's, and lines that begin with `#`. Raises ValueError; no message shows the content of the file,
    which may be a password. Pure; any thread.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    tokens = _Tokens(_COMMENT.sub(lambda found: found[1] or " ", text))
    sections: dict[str, tuple[LoginModule, ...]] = {}
    while not tokens.at_end:
        name = tokens.word("the name of a section")
        tokens.mark("{")
        modules = []
        while not tokens.skip("}"):
            modules.append(_module(tokens))
        tokens.mark(";")
        if name in sections:
            raise ValueError(f"section {name} is there twice")
        sections[name] = tuple(modules)
    return sections


def _module(tokens: _Tokens) -> LoginModule:
    name = tokens.word("a login module")
    if tokens.word("a control flag").lower() not in _FLAGS:
        raise ValueError(f"line {tokens.line}: a control flag is one of {', '.join(sorted(_FLAGS))}")
    options = {}
    while not tokens.skip(";"):
        option = tokens.word("the name of an option")
        tokens.mark("=")
        options[option] = tokens.word("the value of an option")
    return LoginModule(name, options)


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    @property
    def at_end(self) -> bool:
        return not self._text[self._at :].strip()

    def word(self, what: str) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found[3]:
            raise ValueError(f"line {self.line}: {what} is missing")
        self._at = found.end()
        return found[2] or re.sub(r"\\(.)", r"\1", found[1] or "")

    def skip(self, mark: str) -> bool:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found[3] != mark:
            return False
        self._at = found.end()
        return True

    def mark(self, mark: str) -> None:
        if not self.skip(mark):
            raise ValueError(f"line {self.line}: {mark} is missing")


class Login(Protocol):
    """One login to a bookie, by either mechanism."""

    async def step(self, token: bytes) -> tuple[bytes | None, str | None]:
        """Return the answer, and the user once that is known. Raises Unauthorized."""
        ...


class Accounts(Protocol):
    """The accounts that may log in to a bookie."""

    def new_login(self) -> Login: ...


@dataclass(frozen=True, slots=True)
class Users:
    """Passwords by the names of users."""

    passwords: Mapping[str, str] = field(repr=False)

    def new_login(self) -> _DigestLogin:
        return _DigestLogin(self.passwords)


class _DigestLogin:
    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._server = DigestMd5Server(passwords)
        self._asked = False

    async def step(self, token: bytes) -> tuple[bytes | None, str | None]:
        if not self._asked:
            if token:
                raise Unauthorized("a SASL login that does not begin with an empty token: only DIGEST-MD5 is served")
            self._asked = True
            return self._server.challenge(), None
        user, proof = self._server.verify(token)
        return proof, user


class SaslServer:
    """A `ServerAuthProvider`. `accounts` is asked at each login; `allowed`: users that may connect."""

    plugin_name = PLUGIN_NAME

    def __init__(self, accounts: Callable[[], Accounts], allowed: re.Pattern[str]) -> None:
        self.accounts = accounts
        self.allowed = allowed

    def new_exchange(self, peer: Peer) -> _ServerExchange:
        return _ServerExchange(self)


class _ServerExchange:
    def __init__(self, provider: SaslServer) -> None:
        self._provider = provider
        self._login: Login | None = None

    async def process(self, token: bytes) -> AuthStep:
        """Raises Unauthorized, and InvalidConfiguration while the file cannot be used."""
        if self._login is None:
            self._login = self._provider.accounts().new_login()
        answer, user = await self._login.step(token)
        if user is not None and self._provider.allowed.fullmatch(user) is None:
            raise Unauthorized(f"user {user!r} does not match saslJaasClientAllowedIds")
        return AuthStep(answer, user is not None)

    async def tls_established(self, peer: Peer) -> bool:
        """A certificate is no login."""
        return False


@dataclass(frozen=True, slots=True)
class SaslAuth:
    """Log in to bookies by SASL DIGEST-MD5: `ClientOptions.auth`. Raises InvalidConfiguration for what cannot be
    carried to every bookie."""

    is_mutual: ClassVar[bool] = True
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        for name, text in (("user name", self.username), ("password", self.password)):
            if not text or not text.isascii() or not text.isprintable():
                raise InvalidConfiguration(f"a SASL login to bookies needs a {name} of printable ASCII characters")

    @property
    def plugin_name(self) -> str:
        """The name on the wire."""
        return PLUGIN_NAME

    def new_exchange(self, peer: Peer) -> _ClientExchange:
        return _ClientExchange(self.username, self.password)


class JaasAuth:
    """Log in to bookies as a section of a JAAS file says, which is read again when it changes: `ClientOptions.auth`."""

    plugin_name = PLUGIN_NAME
    is_mutual = True

    def __init__(self, path: str, *sections: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`sections`: the first that the file has counts; none: `BookKeeper`. Raises InvalidConfiguration."""
        names = sections or (CLIENT_SECTION,)
        self._of = path, names
        self._login = WatchedFile(JAAS_FILE, path, lambda content: login_of(content, *names), clock)
        self._login.value()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JaasAuth) and other._of == self._of

    def __hash__(self) -> int:
        return hash(self._of)

    def new_exchange(self, peer: Peer) -> ClientAuthExchange:
        return self._login.value().new_exchange(peer)


class _ClientExchange:
    def __init__(self, username: str, password: str) -> None:
        self._client = DigestMd5Client(username, password)

    async def start(self) -> AuthStep:
        """Send the empty token, which asks for the challenge."""
        return AuthStep(self._client.first(), False)

    async def process(self, token: bytes) -> AuthStep:
        """Raises Unauthorized for a bookie that does not prove that it knows the password."""
        return AuthStep(self._client.answer(token), self._client.complete)

    async def tls_established(self, peer: Peer) -> bool:
        """A certificate is no login."""
        return False


def accounts_of(content: bytes, section: str) -> Accounts:
    """Return the accounts of a bookie's section of a JAAS file. Raises ValueError."""
    _, modules = _first_section(content, section)
    options = {name: text for module in modules for name, text in module.options.items()}
    if any(map(_is_kerberos, modules)):
        return _of_section(section, lambda: kerberos.keys_of(options))
    users = {name.removeprefix(_USER): text for name, text in options.items() if name.startswith(_USER)}
    if not users:
        raise ValueError(f'section {section} has no user; write user_NAME="password"')
    for name, password in users.items():
        if not password:
            raise ValueError(f"section {section}: the password of user {name} is empty")
    return Users(users)


def login_of(content: bytes, *sections: str) -> ClientAuthProvider:
    """Return the login of a client's section of a JAAS file: of the first that it has. Raises ValueError."""
    section, modules = _first_section(content, *sections)
    options = {name: text for module in modules for name, text in module.options.items()}
    if any(map(_is_kerberos, modules)):
        return _of_section(section, lambda: kerberos.login_of(options))
    if "username" not in options or "password" not in options:
        raise ValueError(f"section {section} needs username and password")
    return _of_section(section, lambda: SaslAuth(options["username"], options["password"]))


def _is_kerberos(module: LoginModule) -> bool:
    return module.name.rpartition(".")[2] == _KERBEROS


def _of_section(section: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except (InvalidConfiguration, ValueError) as error:
        raise ValueError(f"section {section}: {error}") from None


def _first_section(content: bytes, *names: str) -> tuple[str, tuple[LoginModule, ...]]:
    sections = parse_jaas(content)
    for name in names:
        if name in sections:
            return name, sections[name]
    raise ValueError(f"there is no section {' or '.join(names)}, but {', '.join(sections) or 'none'}")
