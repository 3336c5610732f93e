"""Logins by Kerberos: SASL GSSAPI (RFC 4752) without a security layer, as Apache's SASL providers speak it.

Client and bookie exchange tokens of GSSAPI until both know each other. Then the bookie offers that nothing is wrapped
from here on, and the client agrees; to that it gets no answer. A bookie has the keys of its principal
(`bookkeeper/HOST@REALM`) in a keytab. A client takes its ticket by a keytab, and takes another before it ends; or finds
one in a cache, which another program keeps fresh (`kinit`). Keytabs and caches are read again for each login.

Calls that wait for a KDC or a disk run in one of few threads of their own, and no caller waits longer than `SECONDS`. A
bookie, which asks no KDC, has other threads than clients in the same process: a KDC that does not answer keeps out no
client that has a ticket. The rest: event loop.

Source: docs/internals/wire-protocol.md, section 5.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar, Final

from bookie_protocol.auth.digest_md5 import SERVICE
from bookie_protocol.errors import InvalidConfiguration, Unauthorized
from bookie_protocol.extras import needed
from bookie_protocol.wire.auth import AuthStep, Peer

SECONDS: Final = 20.0
"""Seconds for one step of a login: the client library waits longer for a KDC that does not answer."""
THREADS: Final = 4
LONGEST: Final = 64 * 1024
"""Bytes of a token: some realms put the groups of a user into it."""
LONGEST_TOLD: Final = 500
"""Characters of what went wrong, of which a stranger may have chosen names."""
_NO_LAYER: Final = b"\x01\x00\x00\x00"
"""The offer of a bookie, and the choice of a client: nothing is wrapped."""
_PROTOCOL: Final = 2**32 - 1765328384
"""The first of the library's error codes, which are about what was said, but for those below."""
_OWN_FAULTS: Final = frozenset({_PROTOCOL + 44, *range(_PROTOCOL + 157, _PROTOCOL + 256), *range(1, 200)})
"""A keytab without the newest keys of the bookie, files such as the replay cache, and errors of the system."""
_caches = itertools.count()
_own_lock = threading.Lock()
_own: dict[KerberosAuth, tuple[tuple[int, int], str]] = {}
"""Identity of the keytab's file, and the cache of its tickets."""


class _Threads:
    """A few daemons, begun when they are needed: the end of the process does not wait for a KDC."""

    def __init__(self, name: str, asks: str) -> None:
        """`asks`: what may not answer."""
        self._name = name
        self._asks = asks
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._begun = itertools.count()

    async def run(self, what: str, work: Callable[[], Any]) -> Any:
        """Raises InvalidConfiguration if that takes too long, and what `work` raises."""
        if self._process != os.getpid():
            self._begin()  # a fork has none of the threads
        future: Future[Any] = Future()
        self._work.put((future, work))
        if (number := next(self._begun)) < THREADS:
            threading.Thread(target=self._serve, name=f"kerberos-{self._name}-{number}", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), SECONDS)
        except TimeoutError:
            raise InvalidConfiguration(
                f"{what}: no answer within {SECONDS:.0f} s; does the {self._asks} answer?"
            ) from None

    def _serve(self) -> None:
        while True:
            future, work = self._work.get()
            if future.set_running_or_notify_cancel():  # the caller still waits
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del future, work


_of_bookies, _of_clients = _Threads("bookie", "disk"), _Threads("client", "KDC")


@dataclass(frozen=True, slots=True)
class KerberosKeys:
    """The credentials by which a bookie accepts clients: the keys of its principal. None: any of the keytab, and
    the system's."""

    principal: str | None = None
    keytab: str | None = None

    def __post_init__(self) -> None:
        """Raises InvalidConfiguration."""
        self.credentials()

    def credentials(self) -> Any:
        """Return the credentials, as the keytab has them now. Raises InvalidConfiguration."""
        gssapi = _library()
        _check_file(self.keytab)
        name = _principal(gssapi, self.principal)
        try:
            store = {"keytab": self.keytab} if self.keytab else None
            return gssapi.Credentials(usage="accept", name=name, mechs=[gssapi.MechType.kerberos], store=store)
        except gssapi.exceptions.GSSError as error:
            raise InvalidConfiguration(
                f"Kerberos keytab {self.keytab or 'of the system'}: {_told(error)}; it must hold the keys of"
                f" {self.principal or f'{SERVICE}/HOST'}"
            ) from None

    def new_login(self) -> KerberosServer:
        return KerberosServer(self)


class KerberosServer:
    """One login to a bookie."""

    def __init__(self, keys: KerberosKeys) -> None:
        self._keys = keys
        self._context: Any = None
        self._offered = False

    async def step(self, token: bytes) -> tuple[bytes | None, str | None]:
        """Return the answer, and the user once that is known. Raises Unauthorized; InvalidConfiguration while the
        keytab cannot be used."""
        if len(token) > LONGEST:
            raise Unauthorized(f"a Kerberos token of more than {LONGEST} bytes")
        if self._offered:
            return None, self._chosen(token)
        if self._context is None:
            if not token:
                raise Unauthorized("a SASL login that begins with an empty token: only Kerberos (GSSAPI) is served")
            self._context, answer = await _of_bookies.run("the Kerberos keytab", lambda: self._accept(token))
            if answer:
                return answer, None
        elif token:
            raise Unauthorized("a Kerberos login that goes on with a token where none is due")
        self._offered = True
        return self._context.wrap(_NO_LAYER, False).message, None

    def _accept(self, token: bytes) -> tuple[Any, bytes | None]:
        gssapi, credentials = _library(), self._keys.credentials()
        try:
            accepted = gssapi.raw.accept_sec_context(token, credentials)
        except gssapi.exceptions.GSSError as error:
            if error.min_code in _OWN_FAULTS:
                raise InvalidConfiguration(f"Kerberos: {_told(error)}") from None
            raise Unauthorized(f"Kerberos: {_told(error)}") from None
        if accepted.more_steps:
            raise Unauthorized("a Kerberos login that wants more than one round")
        return gssapi.SecurityContext(accepted.context), accepted.token

    def _chosen(self, token: bytes) -> str:
        user = str(self._context.initiator_name)
        try:
            chosen = self._context.unwrap(token).message
        except _library().exceptions.GSSError as error:
            raise Unauthorized(f"Kerberos login of {user!r}: {_told(error)}") from None
        if chosen[:1] != _NO_LAYER[:1] or len(chosen) < len(_NO_LAYER):
            raise Unauthorized(f"Kerberos login of {user!r} that wants what follows to be wrapped")
        if chosen[len(_NO_LAYER) :] not in (b"", user.encode()):
            raise Unauthorized(f"Kerberos login of {user!r} in the name of another user")
        return user


@dataclass(frozen=True, slots=True)
class KerberosAuth:
    """Log in to bookies by Kerberos: `ClientOptions.auth`. By the key of `principal` in `keytab`; without one by the
    ticket in `ticket_cache`, None: the system's. `service`: the first part of the bookies' principals. Raises
    InvalidConfiguration."""

    is_mutual: ClassVar[bool] = True
    principal: str | None = None
    keytab: str | None = None
    ticket_cache: str | None = None
    service: str = SERVICE

    def __post_init__(self) -> None:
        _library()
        if self.keytab is not None and self.principal is None:
            raise InvalidConfiguration(f"a Kerberos login by keytab {self.keytab} needs a principal")
        _check_file(self.keytab)

    @property
    def plugin_name(self) -> str:
        """The name on the wire."""
        return "sasl"

    def new_exchange(self, peer: Peer) -> _ClientExchange:
        return _ClientExchange(self, peer.address)

    def credentials(self) -> Any:
        """Return credentials with a ticket, which may be requested now. Raises InvalidConfiguration."""
        gssapi = _library()
        store = {"ccache": self.ticket_cache} if self.ticket_cache else {}
        if self.keytab is not None:
            store = {"client_keytab": self.keytab, "ccache": _own_cache(self)}
        name = _principal(gssapi, self.principal)
        try:
            mechs = [gssapi.MechType.kerberos]
            return gssapi.Credentials(usage="initiate", name=name, mechs=mechs, store=store or None)
        except gssapi.exceptions.GSSError as error:
            remedy = f"is there a key of {self.principal} in keytab {self.keytab}?" if self.keytab else "run kinit"
            raise InvalidConfiguration(f"there is no Kerberos ticket: {_told(error)}; {remedy}") from None


class KerberosClient:
    """One login to a server. Its methods may wait for a KDC, so they run on a thread; `service` is `NAME@HOST`."""

    def __init__(self, auth: KerberosAuth, service: str) -> None:
        self._auth = auth
        self._service = service
        self._context: Any = None
        self.complete = False
        """True once the server has proved who it is; its last token is then still to be sent."""

    def first(self) -> bytes:
        """Return the token with the ticket. Raises InvalidConfiguration: no server has said anything yet."""
        gssapi, credentials = _library(), self._auth.credentials()
        flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
        try:
            self._context = gssapi.SecurityContext(
                name=gssapi.Name(self._service, gssapi.NameType.hostbased_service),
                creds=credentials,
                mech=gssapi.MechType.kerberos,
                flags=flags,
                usage="initiate",
            )
            token: bytes | None = self._context.step()
        except gssapi.exceptions.GSSError as error:
            raise InvalidConfiguration(f"there is no Kerberos ticket for {self._service}: {_told(error)}") from None
        return token or b""

    def answer(self, token: bytes) -> bytes:
        """Return the answer to a token of the server. Raises Unauthorized for one that does not prove who it is."""
        if len(token) > LONGEST:
            raise Unauthorized(f"the server's part of the login has {len(token)} bytes, more than {LONGEST}")
        try:
            if not self._context.complete:
                self._context.step(token)
                if not self._context.complete:
                    raise Unauthorized(f"the server does not prove that it is {self._service}")
                return b""
            offered = self._context.unwrap(token).message
        except _library().exceptions.GSSError as error:
            raise Unauthorized(f"the server does not prove that it is {self._service}: {_told(error)}") from None
        if len(offered) != len(_NO_LAYER) or not offered[0] & _NO_LAYER[0]:
            raise Unauthorized("the server wants what follows the Kerberos login to be wrapped: set its QOP to auth")
        self.complete = True
        answer: bytes = self._context.wrap(_NO_LAYER, False).message
        return answer


class _ClientExchange:
    def __init__(self, auth: KerberosAuth, host: str) -> None:
        self._service = f"{auth.service}@{host}"
        self._client = KerberosClient(auth, self._service)

    async def start(self) -> AuthStep:
        """Send the ticket. Raises InvalidConfiguration: no bookie has said anything yet."""
        return AuthStep(await _of_clients.run(f"Kerberos ticket for {self._service}", self._client.first), False)

    async def process(self, token: bytes) -> AuthStep:
        """Raises Unauthorized for a bookie that does not prove who it is."""
        return AuthStep(self._client.answer(token), self._client.complete)

    async def tls_established(self, peer: Peer) -> bool:
        """A certificate is no login."""
        return False


def keys_of(options: Mapping[str, str]) -> KerberosKeys:
    """Return the keys of a bookie's `Krb5LoginModule`. Raises ValueError, InvalidConfiguration."""
    if not _is_set(options, "useKeyTab"):
        raise ValueError("Kerberos of a bookie needs useKeyTab=true and keyTab, the file with its keys")
    return KerberosKeys(options.get("principal"), _path(options, "keyTab"))


def login_of(options: Mapping[str, str]) -> KerberosAuth:
    """Return the login of a client's `Krb5LoginModule`. Raises ValueError, InvalidConfiguration."""
    principal, service = options.get("principal"), options.get("serviceName", SERVICE)
    if _is_set(options, "useKeyTab"):
        if (keytab := _path(options, "keyTab")) is None:
            raise ValueError("useKeyTab=true needs keyTab, the file with the client's key")
        return KerberosAuth(principal, keytab, service=service)
    if not _is_set(options, "useTicketCache"):
        raise ValueError("Kerberos needs useKeyTab=true with keyTab and principal, or useTicketCache=true")
    return KerberosAuth(principal, None, _path(options, "ticketCache"), service)


def _is_set(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


def _path(options: Mapping[str, str], name: str) -> str | None:
    path = options.get(name)
    return path[len("file:") :] if path and path.lower().startswith("file:") else path


def _library() -> Any:
    return needed("gssapi", "kerberos", "a Kerberos login")


def _principal(gssapi: Any, principal: str | None) -> Any:
    return None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)


def _check_file(keytab: str | None) -> None:
    try:
        if keytab is not None:
            os.close(os.open(keytab, os.O_RDONLY))
    except OSError as error:
        raise InvalidConfiguration(f"Kerberos keytab {keytab}: {error.strerror}") from None


def _own_cache(auth: KerberosAuth) -> str:
    """Return the cache for the tickets of a keytab: in memory, and a new one once the file was replaced."""
    try:
        status = os.stat(str(auth.keytab))
    except OSError as error:
        raise InvalidConfiguration(f"Kerberos keytab {auth.keytab}: {error.strerror}") from None
    file = status.st_ino, status.st_mtime_ns
    with _own_lock:
        known, cache = _own.get(auth, (None, ""))
        if known != file:
            cache = f"MEMORY:podkeeper-{next(_caches)}"
            _own[auth] = file, cache
    return cache


def _told(error: Any) -> str:
    """Return the reason of an error, without the numbers, and the remedy if there is one."""
    text = str(error)[:LONGEST_TOLD]
    if not error.min_code or text.endswith((": Success", ": Unknown error")):
        text = text.partition(", Minor")[0]
    reason = text.rpartition("): ")[2]
    if "Clock skew" in reason or "not yet valid" in reason:
        return f"{reason}: set the clocks of the client, the bookie and the KDC"
    return reason
