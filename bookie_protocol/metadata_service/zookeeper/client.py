"""kazoo's client as the driver wants it: reconnects for ever, shares its time between servers, logs in, over TLS; and
the way from kazoo's threads to the event loop.

Invariants
- The loop never waits for kazoo: requests are queued by kazoo and answered through `call_soon_threadsafe`.
- A loop that is gone swallows what still arrives: kazoo's threads never see an error of ours.

Threads: `make_client` anywhere; `await_result` and `hop` are called on the loop; the rest, and what these two hand to
kazoo, runs on kazoo's threads.

Sources: reference metadata layout, sections 12 and 13.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, SASLException, SessionClosedRequireSaslError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.options import MetadataTls, SaslLogin, SaslMechanism

_RECONNECT_PAUSE: Final = 0.1
LONGEST_RECONNECT_PAUSE: Final = 2.0
_HANDSHAKES_PER_SESSION: Final = 4
"""A server that is just starting accepts connections that it never answers. Waiting for one of them must not use up the
time in which the session could be saved by another."""


def make_client(
    hosts: str,
    timeout: float,
    auth: Sequence[tuple[str, str]],
    sasl: SaslLogin | None,
    on_agreed: Callable[[float], None],
    *,
    secure: bool,
    tls: MetadataTls | None,
) -> Any:
    """A client that is not started; see `ZooKeeperTree`. `on_agreed` hears, with each connection, after how many
    seconds of silence the session ends: the server has the last word on that. Raises `InvalidConfiguration`."""
    client = KazooClient(
        hosts=hosts,
        timeout=timeout,
        handler=_Handler(timeout / len(hosts.split(",")), tls),
        auth_data=list(auth) or None,
        sasl_options=None if sasl is None else _sasl_options(sasl),
        default_acl=CREATOR_ALL_ACL if secure else None,
        connection_retry=KazooRetry(
            max_tries=-1, delay=_RECONNECT_PAUSE, max_delay=LONGEST_RECONNECT_PAUSE, ignore_expire=True
        ),
        logger=logging.getLogger("kazoo.client"),
    )
    _wrap_handshakes(client, timeout / _HANDSHAKES_PER_SESSION, on_agreed)
    if sasl is not None:
        _tame_login(client)
    return client


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """With several servers, one that does not even refuse must leave time for the others.

    `connect_timeout` in seconds. TLS is ours: kazoo's own trusts the authorities of the system in any case.
    """

    def __init__(self, connect_timeout: float, tls: MetadataTls | None) -> None:
        super().__init__()
        self._connect_timeout = connect_timeout
        self._tls = tls
        self.failure = ""
        """Why TLS did not come about last."""
        if tls is not None:
            tls.check()

    def create_connection(self, *args: Any, timeout: float, hostname: str | None = None, **kwargs: Any) -> Any:
        limit = min(timeout, self._connect_timeout)
        connection = super().create_connection(*args, timeout=limit, **kwargs)
        if self._tls is None:
            return connection
        try:
            connection.settimeout(limit)
            return self._tls.context().wrap_socket(connection, server_hostname=hostname)
        except OSError as error:
            self.failure = f" ({error})"
            connection.close()
            raise

    def select(self, readable: list[Any], *others: Any, **kwargs: Any) -> Any:
        """What TLS has decrypted already shows on no socket, and answers that came together would wait for the next."""
        held = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        return (held, [], []) if held else super().select(readable, *others, **kwargs)


def _wrap_handshakes(client: Any, longest: float, on_agreed: Callable[[float], None]) -> None:
    """What is said while a connection is made is answered within so many seconds, or the connection is given up."""
    invoke = client._connection._invoke

    def hastened(timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = invoke(min(timeout, longest), request, xid)
        if isinstance(request, Connect) and answer[0].time_out > 0:
            on_agreed(answer[0].time_out / 1000)
        return answer

    client._connection._invoke = hastened


def _tame_login(client: Any) -> None:
    """Some refusals of a login end kazoo's connection thread with a traceback: make them the refusal that it knows."""
    login = client._connection._authenticate_with_sasl

    def authenticate(host: str, timeout: float) -> None:
        try:
            login(host, timeout)
        except (SASLException, SessionClosedRequireSaslError) as error:
            raise AuthFailedError(type(error).__name__) from error

    client._connection._authenticate_with_sasl = authenticate


def _sasl_options(login: SaslLogin) -> dict[str, str]:
    """As kazoo hands them to pure-sasl."""
    packages = {SaslMechanism.DIGEST_MD5: ("puresasl",), SaslMechanism.GSSAPI: ("puresasl", "kerberos")}
    for package in packages[login.mechanism]:
        if find_spec(package) is None:
            raise InvalidConfiguration(
                f"a SASL login to ZooKeeper by {login.mechanism.value} needs the Python package {package}:"
                + (" install podkeeper[sasl]" if package == "puresasl" else " install it")
            )
    options = {"mechanism": login.mechanism.value, "service": login.service}
    if login.username is not None:
        options["principal" if login.mechanism is SaslMechanism.GSSAPI else "username"] = login.username
    if login.password is not None:
        options["password"] = login.password
    return options


def hop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None]) -> Callable[..., None]:
    """A function for any thread that runs `callback` on the loop."""

    def from_any_thread(*arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(callback, *arguments)

    return from_any_thread


async def await_result(result: Any) -> Any:
    """The value of a kazoo `IAsyncResult`, or its exception."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(_: object) -> None:
        if future.done():
            return
        error = result.exception
        if error is None:
            future.set_result(result.value)
        else:
            future.set_exception(error)

    result.rawlink(hop(loop, settle))
    return await future
