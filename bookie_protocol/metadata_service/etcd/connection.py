"""Calls of etcd: the connection, the login, and the meaning of errors.

Invariants
- An error of gRPC or etcd never means that a node is missing: only an answer says that. After `ConnectionLost` another
  try may succeed; an error that needs a person names the remedy.
- A member that has lost its leader says so and is left, instead of answering late or never.
- A token that etcd no longer accepts is replaced by a new one. No message contains the user's name or password.

Threads: event loop only.

Source: etcd's public API of version 3, and the texts of its errors (`api/v3rpc/rpctypes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc

from bookie_protocol.errors import BadRequest, MetadataRefused, MetadataUnavailable, PodkeeperError
from bookie_protocol.metadata_service.etcd import etcd_pb2 as messages
from bookie_protocol.metadata_service.grpc_channel import ServiceChannel
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost

CREDENTIALS_KEY: Final = "zkAuthCredentialsPath"
_LEADER: Final = (("hasleader", "true"),)

_TOKEN_ENDED: Final = ("invalid auth token", "revision of auth store is old")
_NOBODY: Final = "user name is empty"
_NO_USERS: Final = "authentication is not enabled"
_WRONG_PASSWORD: Final = "authentication failed"

_KNOWN: Final[tuple[tuple[str, type[PodkeeperError], str], ...]] = (
    (
        "database space exceeded",
        MetadataUnavailable,
        "etcd's space quota is used up, and it takes no writes until that is mended: compact and defragment it"
        " (`etcdctl compact`, `etcdctl defrag`), raise --quota-backend-bytes if its data are that many, and then run"
        " `etcdctl alarm disarm`",
    ),
    (
        "required revision has been compacted",
        ConnectionLost,
        "etcd's history was compacted while it was being read; it is read again from the start",
    ),
    (
        "no leader",
        ConnectionLost,
        "etcd has no leader: more than half of its members have to run and reach each other",
    ),
    ("leader changed", ConnectionLost, "etcd's leader changed"),
    ("requested lease not found", ConnectionLost, "the session with etcd has ended"),
    (
        "request is too large",
        BadRequest,
        "it is larger than etcd takes; raise --max-request-bytes of its members",
    ),
    (
        "too many operations in txn request",
        MetadataUnavailable,
        "etcd takes too few operations at once; --max-txn-ops of its members must be 128 (the default) or more",
    ),
    (
        "corrupt",
        MetadataUnavailable,
        "etcd has found its data corrupt: replace the member that `etcdctl alarm list` names",
    ),
)

T = TypeVar("T")


class _Calls:
    """The calls of etcd's API, by their names there."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        def call(name: str, request: Any, response: Any) -> Any:
            return channel.unary_unary(name, request.SerializeToString, response.FromString)

        def stream(name: str, request: Any, response: Any) -> Any:
            return channel.stream_stream(name, request.SerializeToString, response.FromString)

        m = messages
        self.txn = call("/etcdserverpb.KV/Txn", m.TxnRequest, m.TxnResponse)
        self.range = call("/etcdserverpb.KV/Range", m.RangeRequest, m.RangeResponse)
        self.grant = call("/etcdserverpb.Lease/LeaseGrant", m.LeaseGrantRequest, m.LeaseGrantResponse)
        self.revoke = call("/etcdserverpb.Lease/LeaseRevoke", m.LeaseRevokeRequest, m.LeaseRevokeResponse)
        self.authenticate = call("/etcdserverpb.Auth/Authenticate", m.AuthenticateRequest, m.AuthenticateResponse)
        self.keep_alive = stream(
            "/etcdserverpb.Lease/LeaseKeepAlive", m.LeaseKeepAliveRequest, m.LeaseKeepAliveResponse
        )
        self.watch = stream("/etcdserverpb.Watch/Watch", m.WatchRequest, m.WatchResponse)


class EtcdConnection:
    """A connection to one of `targets` (host:port) at a time.

    `login`: user and password. `prefix`: the prefix of all keys, for messages.
    """

    def __init__(
        self, targets: Sequence[str], tls: MetadataTls | None, login: tuple[str, str] | None, prefix: str
    ) -> None:
        """Raises `InvalidConfiguration` for files that cannot be used."""
        self.targets = tuple(targets)
        self._login = login
        self._prefix = prefix
        self._token: str | None = None
        self._logging_in = asyncio.Lock()
        self._needs_token = login is not None
        self._channel = ServiceChannel("etcd", targets, tls, _Calls)

    async def txn(self, request: messages.TxnRequest, timeout: float) -> messages.TxnResponse:
        return await self._ask(lambda calls: calls.txn, request, timeout)

    async def range(self, request: messages.RangeRequest, timeout: float) -> messages.RangeResponse:
        return await self._ask(lambda calls: calls.range, request, timeout)

    async def grant(self, seconds: int, timeout: float) -> messages.LeaseGrantResponse:
        return await self._ask(lambda calls: calls.grant, messages.LeaseGrantRequest(TTL=seconds), timeout)

    async def revoke(self, lease: int, timeout: float) -> messages.LeaseRevokeResponse:
        return await self._ask(lambda calls: calls.revoke, messages.LeaseRevokeRequest(ID=lease), timeout)

    async def keep_alive(self, lease: int, timeout: float) -> messages.LeaseKeepAliveResponse:
        async def once(request: messages.LeaseKeepAliveRequest, timeout: float, metadata: Any) -> Any:
            call = self._channel.stub.keep_alive(iter((request,)), timeout=timeout, metadata=metadata)
            try:
                answer = await call.read()
            finally:
                call.cancel()
            if answer is grpc.aio.EOF:
                raise ConnectionLost(f"etcd at {self._channel.target} ended the call that renews a session")
            return answer

        return await self._ask(lambda _: once, messages.LeaseKeepAliveRequest(ID=lease), timeout)

    async def watch(
        self, requests: AsyncIterator[messages.WatchRequest], timeout: float
    ) -> AsyncGenerator[messages.WatchResponse, None]:
        """Yield the answers to these requests until the stream breaks (`MetadataUnavailable`).

        `timeout`: seconds for logging in.
        """
        credential = await self._credential(timeout)
        call = self._channel.stub.watch(requests, metadata=credential)
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                yield response
            raise ConnectionLost(f"etcd at {self._channel.target} ended the stream of watches")
        except grpc.aio.AioRpcError as error:
            raise self._told(error, credential) from error
        except asyncio.CancelledError as error:
            raise self._channel.given_up() from error
        finally:
            call.cancel()

    async def reconnect(self) -> None:
        await self._channel.reconnect()

    async def close(self) -> None:
        await self._channel.close()

    # --- inside ----------------------------------------------------------------------------------------------

    async def _ask(self, call: Callable[[_Calls], Callable[..., Awaitable[T]]], request: Any, timeout: float) -> T:
        credential = await self._credential(timeout)
        return await self._answer(call, request, timeout, credential)

    async def _answer(
        self,
        call: Callable[[_Calls], Callable[..., Awaitable[T]]],
        request: Any,
        timeout: float,
        credential: tuple[tuple[str, str], ...],
    ) -> T:
        try:
            answer = await call(self._channel.stub)(request, timeout=timeout, metadata=credential)
        except grpc.aio.AioRpcError as error:
            raise self._told(error, credential) from error
        except asyncio.CancelledError as error:
            raise self._channel.given_up() from error
        self._channel.heard()
        return answer

    async def _credential(self, timeout: float) -> tuple[tuple[str, str], ...]:
        """Return the metadata that every call carries."""
        if not self._needs_token:
            return _LEADER
        async with self._logging_in:
            if self._token is None and self._needs_token:
                await self._log_in(timeout)
            return (*_LEADER, ("token", self._token)) if self._token is not None else _LEADER

    async def _log_in(self, timeout: float) -> None:
        assert self._login is not None
        request = messages.AuthenticateRequest(name=self._login[0], password=self._login[1])
        try:
            found = await self._answer(lambda calls: calls.authenticate, request, timeout, _LEADER)
        except _NoUsers:
            self._needs_token = False  # until etcd demands one
            return
        self._token = found.token

    def _told(self, error: grpc.aio.AioRpcError, credential: tuple[tuple[str, str], ...]) -> PodkeeperError:
        code, details = error.code(), error.details() or ""
        unanswered = self._channel.unanswered(error)
        at = f"etcd at {self._channel.target}"
        if _NO_USERS in details:
            return _NoUsers(f"{at}: {details}")
        if any(text in details for text in (*_TOKEN_ENDED, _NOBODY)) or code is grpc.StatusCode.UNAUTHENTICATED:
            return self._without_token(at, details, credential)
        if _WRONG_PASSWORD in details:
            return MetadataRefused(f"{at} refuses the user and password of {CREDENTIALS_KEY}")
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return MetadataRefused(
                f"{at} gives its user no access to all keys below {self._prefix}/: give the role of the user in"
                f" {CREDENTIALS_KEY} readwrite permission for that prefix"
            )
        for text, kind, meaning in _KNOWN:
            if text in details:
                return kind(f"{meaning} ({at}: {details})")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return MetadataUnavailable(f"{at} does not know this request: it is not etcd 3.4 or newer")
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
            return MetadataUnavailable(f"{at} failed: {code.name} {details}")
        return unanswered

    def _without_token(self, at: str, details: str, credential: tuple[tuple[str, str], ...]) -> PodkeeperError:
        if self._login is None:
            return MetadataRefused(f"{at} demands a user: set {CREDENTIALS_KEY} ({details})")
        shown = dict(credential).get("token")
        if shown == self._token:
            self._token, self._needs_token = None, True
        return ConnectionLost(f"{at} does not take the token any more ({details}); it is asked for a new one")


class _NoUsers(MetadataUnavailable):
    """etcd lets everybody in: it needs no token."""
