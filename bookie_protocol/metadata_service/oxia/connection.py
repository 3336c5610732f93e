"""Calls of Oxia: where the shards are, which server leads each, and what the errors mean.

Invariants
- One server says where the shards are, as a stream; the calls go to the leaders that it names. When it is lost, the
  next endpoint is asked.
- An error of gRPC or Oxia never means that a record does not exist: only an answer says so. `ConnectionLost` is worth
  another try, such as after a leader has moved or a shard was split. `InvalidConfiguration` names what has to be
  changed first.
- A leader whose address begins with `tls://` is spoken to over TLS, as by Oxia's own clients.
- No message contains the token, and none is shown to another machine but over TLS.

Threads: event loop only.

Source: Oxia's public client API, and the texts of its errors (`common/constant/errors.go`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

import grpc

from bookie_protocol.addresses import is_loopback
from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.errors import (
    BadRequest,
    InvalidConfiguration,
    MetadataRefused,
    MetadataUnavailable,
    PodkeeperError,
    fresh,
)
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.grpc_channel import ServiceChannel
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia import wire
from bookie_protocol.metadata_service.oxia.shards import ShardMap
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost

TOKEN_KEY: Final = "metadataServiceTokenFile"
_PAUSE: Final = 0.2
_PATIENCE: Final = 0.5
_LONGEST_PATIENCE: Final = 8.0
_TLS_SCHEME: Final = "tls://"
_MEANINGS: Final = (
    ("node is not leader", "the leader of the shard has moved, or the shard is being split"),
    ("node is not a member", "the shard has moved to other servers"),
    ("not initialized", "the server has not yet heard from Oxia's coordinator"),
    ("shard not found", "the server does not have the shard any more: it was split or moved"),
    ("invalid status", "the shard has no leader at present"),
    ("invalid term", "the shard has no leader at present"),
    ("resource unavailable", "the leader of the shard is giving way to another"),
    ("operation was aborted", "the server is closing, or too slow"),
)
"""Errors that another try may mend, by their texts."""


class SessionGone(MetadataUnavailable):
    """An error: the shard does not know this session any more."""


class _Calls:
    """The calls of a server, by the names of Oxia's API."""

    def __init__(self, channel: grpc.aio.Channel, service: str) -> None:
        def call(name: str, request: Any, response: Any) -> Any:
            return channel.unary_unary(f"/{service}/{name}", request.SerializeToString, response.FromString)

        def stream(name: str, request: Any, response: Any) -> Any:
            return channel.unary_stream(f"/{service}/{name}", request.SerializeToString, response.FromString)

        m = messages
        self.assignments = stream("GetShardAssignments", m.ShardAssignmentsRequest, m.ShardAssignments)
        self.read = stream("Read", m.ReadRequest, m.ReadResponse)
        self.list = stream("List", m.ListRequest, m.ListResponse)
        self.notifications = stream("GetNotifications", m.NotificationsRequest, m.NotificationBatch)
        self.create_session = call("CreateSession", m.CreateSessionRequest, m.CreateSessionResponse)
        self.keep_alive = call("KeepAlive", m.SessionHeartbeat, m.KeepAliveResponse)
        self.close_session = call("CloseSession", m.CloseSessionRequest, m.CloseSessionResponse)
        self.write = call("Write", m.WriteRequest, m.WriteResponse)


class OxiaConnection:
    """A connection to a namespace, by any of `targets` (host:port)."""

    def __init__(
        self,
        targets: Sequence[str],
        namespace: str,
        tls: MetadataTls | None = None,
        token: WatchedFile[str] | None = None,
    ) -> None:
        """Raises `InvalidConfiguration` for files that cannot be used."""
        self.targets = tuple(targets)
        self.namespace = namespace
        self._tls = tls
        self._token = token
        if self._token is not None:
            self._token.value()
        self._service = wire.SERVICE
        self._discovery = self._channel(targets, tls)
        self._leaders: dict[str, ServiceChannel] = {}
        self._map: ShardMap | None = None
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._asked_until, self._patience = -math.inf, _PATIENCE
        """Time of the loop before which no other endpoint is asked, and the seconds that the last one had."""
        self._following: asyncio.Task[None] | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when shards have come or gone."""

    async def shards(self, timeout: float) -> ShardMap:
        """Return where the shards are, as far as is known. Raises the error of the last attempt to learn it."""
        if self._following is None:
            self._following = lasting_task(self._follow(), "shards of Oxia")
        try:
            async with asyncio.timeout(timeout):
                while self._map is None:
                    if isinstance(self._error, InvalidConfiguration | MetadataRefused):
                        raise fresh(self._error)
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            silent = ConnectionLost(f"no answer from Oxia at {self._discovery.target}")
            raise (silent if self._error is None else fresh(self._error)) from None
        return self._map

    @property
    def known(self) -> ShardMap:
        """The shards that were heard of last. `ConnectionLost`: none."""
        if self._map is None:
            raise ConnectionLost(f"Oxia at {self._discovery.target} has not said where the shards are")
        return self._map

    # --- calls to a shard's leader ---------------------------------------------------------------------------

    async def write(self, shard: int, request: messages.WriteRequest, timeout: float) -> messages.WriteResponse:
        request.shard = shard
        found: messages.WriteResponse = await self._ask(shard, "write", request, timeout)
        if (len(found.puts), len(found.deletes)) != (len(request.puts), len(request.deletes)):
            raise ConnectionLost(f"shard {shard} of Oxia did not answer every write of a request")
        return found

    async def read(self, shard: int, gets: Sequence[messages.GetRequest], timeout: float) -> list[messages.GetResponse]:
        """Return one answer for each."""
        request = messages.ReadRequest(shard=shard, gets=gets)
        found: list[messages.GetResponse] = []
        async with aclosing(self._stream(self._leader(shard), "read", request, timeout)) as answers:
            async for answer in answers:
                found.extend(answer.gets)
        if len(found) != len(gets):
            raise ConnectionLost(f"shard {shard} of Oxia answered {len(found)} of {len(gets)} reads")
        return found

    async def list(self, shard: int, first: str, end: str, timeout: float) -> list[str]:
        """Return all keys of the range in this shard, or raise."""
        request = messages.ListRequest(shard=shard, start_inclusive=first, end_exclusive=end)
        found: list[str] = []
        async with aclosing(self._stream(self._leader(shard), "list", request, timeout)) as answers:
            async for answer in answers:
                found.extend(answer.keys)
        return found

    async def has_any(self, shard: int, first: str, end: str, timeout: float) -> bool:
        """Return whether there is a key of the range in this shard, or raise."""
        request = messages.ListRequest(shard=shard, start_inclusive=first, end_exclusive=end)
        async with aclosing(self._stream(self._leader(shard), "list", request, timeout)) as answers:
            async for answer in answers:
                if answer.keys:
                    return True
        return False

    async def create_session(self, shard: int, timeout_ms: int, identity: str, timeout: float) -> int:
        """Return its id, which is also the place of this write in the history of the shard."""
        request = messages.CreateSessionRequest(shard=shard, session_timeout_ms=timeout_ms, client_identity=identity)
        return int((await self._ask(shard, "create_session", request, timeout)).session_id)

    async def keep_alive(self, shard: int, session: int, timeout: float) -> None:
        """`SessionGone`."""
        await self._ask(shard, "keep_alive", messages.SessionHeartbeat(shard=shard, session_id=session), timeout)

    async def close_session(self, shard: int, session: int, timeout: float) -> None:
        """`SessionGone`: it was closed before."""
        await self._ask(shard, "close_session", messages.CloseSessionRequest(shard=shard, session_id=session), timeout)

    async def position(self, shard: int, timeout: float) -> int:
        """Return the place of the newest change in the history of the shard, as its leader knows it.
        `InvalidConfiguration`: the namespace has no notifications."""
        request = messages.NotificationsRequest(shard=shard)
        async with aclosing(self._stream(self._leader(shard), "notifications", request, timeout)) as batches:
            async for batch in batches:
                return int(batch.offset)
        raise ConnectionLost(f"the leader of shard {shard} of Oxia ended the stream of notifications")

    async def notifications(self, shard: int, behind: int) -> AsyncGenerator[messages.NotificationBatch, None]:
        """Yield what changed in the shard behind this place, until the stream breaks (`MetadataUnavailable`)."""
        request = messages.NotificationsRequest(shard=shard, start_offset_exclusive=behind)
        async with aclosing(self._stream(self._leader(shard), "notifications", request, None)) as batches:
            async for batch in batches:
                yield batch
        raise ConnectionLost(f"the leader of shard {shard} of Oxia ended the stream of notifications")

    # --- connections -----------------------------------------------------------------------------------------

    async def reconnect(self) -> None:
        """Give up connections that are silent, and ask the next endpoint where the shards are, unless one is asked that
        may still answer: over a slow link that takes longer than a leader needs to refuse."""
        now = asyncio.get_running_loop().time()
        if now >= self._asked_until:
            self._patience = min(self._patience * 2, _LONGEST_PATIENCE)
            self._asked_until = now + self._patience
            self._discovery.unheard(grpc.StatusCode.DEADLINE_EXCEEDED)
            await self._discovery.reconnect()
        for channel in list(self._leaders.values()):
            await channel.reconnect()

    async def stop_following(self) -> None:
        """Hear no more of shards. Before the last requests: gRPC reports the end of a stream behind it, to the loop."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def close(self) -> None:
        await self.stop_following()
        for channel in (self._discovery, *self._leaders.values()):
            await channel.close()

    async def _follow(self) -> None:
        request = messages.ShardAssignmentsRequest(namespace=self.namespace)
        while True:
            target = self._discovery.target
            try:
                async with aclosing(self._stream(self._discovery, "assignments", request, None)) as answers:
                    async for answer in answers:
                        await self._take(answer)
                raise ConnectionLost(f"Oxia at {target} ended the stream of shards")
            except (MetadataUnavailable, InvalidConfiguration) as error:
                self._error = error
            self._news.set()
            if self._discovery.target == target:
                await self._discovery.reconnect()
            await asyncio.sleep(_PAUSE)

    async def _take(self, answer: messages.ShardAssignments) -> None:
        found = answer.namespaces.get(self.namespace)
        if found is None:
            raise self._no_namespace(self._discovery.target)
        if found.shard_key_router != messages.XXHASH3:
            raise InvalidConfiguration(
                f"Oxia at {self._discovery.target} spreads keys in a way that this release does not know"
                f" ({found.shard_key_router}); update Podkeeper"
            )
        before, self._map = self._map, ShardMap.of_answer(found)
        self._error = None
        self._asked_until, self._patience = -math.inf, _PATIENCE
        self._news.set()
        for address in self._leaders.keys() - set(self._map.leaders.values()):
            await self._leaders.pop(address).close()
        if before is not None and before.numbers != self._map.numbers:
            self.on_change()

    def _leader(self, shard: int) -> ServiceChannel:
        address = self.known.leaders.get(shard)
        if address is None:
            raise ConnectionLost(f"shard {shard} of Oxia is there no longer: it was split")
        if not address:
            raise ConnectionLost(f"shard {shard} of Oxia has no leader at present")
        channel = self._leaders.get(address)
        if channel is None:
            channel = self._leaders[address] = self._channel_of_leader(address)
        return channel

    def _channel_of_leader(self, address: str) -> ServiceChannel:
        target = address.removeprefix(_TLS_SCHEME)
        tls = self._tls if target == address else self._tls or MetadataTls()
        host = target.rpartition(":")[0].strip("[]")
        if self._token is not None and tls is None and not is_loopback(host):
            raise InvalidConfiguration(
                f"a listener on the way to {target}, which leads a shard of Oxia, could read the token; set"
                " metadataServiceTlsEnable=true"
            )
        try:
            return self._channel((target,), tls)
        except InvalidConfiguration as error:  # the files were good when the first channel was opened
            raise ConnectionLost(f"{target}, which leads a shard of Oxia, cannot be reached now: {error}") from error

    def _channel(self, targets: Sequence[str], tls: MetadataTls | None) -> ServiceChannel:
        return ServiceChannel("Oxia", targets, tls, lambda channel: _Calls(channel, self._service))

    # --- inside ----------------------------------------------------------------------------------------------

    async def _ask(self, shard: int, call: str, request: Any, timeout: float) -> Any:
        channel = self._leader(shard)
        try:
            answer = await getattr(channel.stub, call)(request, timeout=timeout, metadata=self._metadata())
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            raise self._told(error, channel) from error
        channel.heard()
        return answer

    async def _stream(
        self, channel: ServiceChannel, call: str, request: Any, timeout: float | None
    ) -> AsyncGenerator[Any, None]:
        answers = getattr(channel.stub, call)(request, timeout=timeout, metadata=self._metadata())
        try:
            while (answer := await answers.read()) is not grpc.aio.EOF:
                channel.heard()
                yield answer
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            raise self._told(error, channel) from error
        finally:
            answers.cancel()
            del answers  # the frame may live on in an error, and with the call a closed channel goes on connecting

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what every call shows. Raises `ConnectionLost` if the token cannot be read now."""
        try:
            return () if self._token is None else (("authorization", f"Bearer {self._token.value()}"),)
        except InvalidConfiguration as error:
            raise ConnectionLost(str(error)) from error

    def _told(self, error: BaseException, channel: ServiceChannel) -> BaseException:
        if isinstance(error, asyncio.CancelledError):
            error.__traceback__ = None
            return channel.given_up()
        assert isinstance(error, grpc.aio.AioRpcError)
        unanswered = channel.unanswered(error)
        return self._meaning(error, channel) or unanswered

    def _meaning(self, error: grpc.aio.AioRpcError, channel: ServiceChannel) -> PodkeeperError | None:
        code, details, at = error.code(), error.details() or "", f"Oxia at {channel.target}"
        if "session not found" in details:
            return SessionGone(f"{at} does not know the session any more")
        if "namespace not found" in details:
            return self._no_namespace(channel.target)
        if "notifications not enabled" in details:
            return InvalidConfiguration(
                f"the namespace {self.namespace} of {at} has no notifications, without which nothing hears of changes:"
                f" enable them (`oxia admin namespace patch {self.namespace} --notifications`)"
            )
        for text, meaning in _MEANINGS:
            if text in details:
                return ConnectionLost(f"{meaning} ({at}: {details})")
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return MetadataRefused(f"{at} refuses this client: {details}; see {TOKEN_KEY}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return self._unknown(at)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return BadRequest(f"{at} takes no message of this size: {details}")
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
            return MetadataUnavailable(f"{at} failed: {code.name} {details}")
        return None

    def _unknown(self, at: str) -> MetadataUnavailable:
        """The service has two names; older servers know the former one alone."""
        if self._service == wire.SERVICE:
            self._service = wire.FORMER_SERVICE
            self._discovery.unheard(grpc.StatusCode.DEADLINE_EXCEEDED)  # so that its calls are made again
            return ConnectionLost(f"{at} does not know the newer name of Oxia's service")
        return MetadataUnavailable(f"{at} does not know this request: it is not Oxia, or one that is too old")

    def _no_namespace(self, target: str) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"Oxia at {target} has no namespace {self.namespace}: correct metadataServiceUri, or create it (`oxia admin"
            f" namespace create {self.namespace} --initial-shards 1 --replication-factor 3 --key-sorting hierarchical`)"
        )
