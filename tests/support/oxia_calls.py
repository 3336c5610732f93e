"""A client of Oxia's protocol without anything around it, for tests. Any port; event loop only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia
from bookie_protocol.metadata_service.oxia.wire import FORMER_SERVICE

NEW = -1
"""The version of a record that does not exist."""


class OxiaCalls:
    """The calls of a server, one shard. Close it."""

    def __init__(self, target: str, *, service: str = FORMER_SERVICE, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.channel = grpc.aio.insecure_channel(target, options=(("grpc.use_local_subchannel_pool", 1),))
        self.metadata = tuple(metadata)
        self._service = service

    async def close(self) -> None:
        await self.channel.close()

    def one(self, name: str, request: Any, answer: Any) -> Any:
        call = self.channel.unary_unary(f"/{self._service}/{name}", lambda m: m.SerializeToString(), answer.FromString)
        return call(request, metadata=self.metadata)

    def many(self, name: str, request: Any, answer: Any) -> Any:
        call = self.channel.unary_stream(f"/{self._service}/{name}", lambda m: m.SerializeToString(), answer.FromString)
        return call(request, metadata=self.metadata)

    async def write(self, request: oxia.WriteRequest) -> oxia.WriteResponse:
        request.shard = 0
        answer: oxia.WriteResponse = await self.one("Write", request, oxia.WriteResponse)
        return answer

    def write_stream(
        self, requests: AsyncIterator[oxia.WriteRequest], namespace: str = "default", shard: str = "0"
    ) -> Any:
        call = self.channel.stream_stream(
            f"/{self._service}/WriteStream", lambda m: m.SerializeToString(), oxia.WriteResponse.FromString
        )
        return call(requests, metadata=(*self.metadata, ("namespace", namespace), ("shard-id", shard)))

    async def put(self, key: str, value: bytes = b"", **fields: Any) -> oxia.PutResponse:
        answer = await self.write(oxia.WriteRequest(puts=[oxia.PutRequest(key=key, value=value, **fields)]))
        return answer.puts[0]

    async def delete(self, key: str, **fields: Any) -> int:
        answer = await self.write(oxia.WriteRequest(deletes=[oxia.DeleteRequest(key=key, **fields)]))
        return answer.deletes[0].status

    async def gets(self, *requests: oxia.GetRequest) -> list[oxia.GetResponse]:
        asked = oxia.ReadRequest(shard=0, gets=requests)
        return [each async for part in self.many("Read", asked, oxia.ReadResponse) for each in part.gets]

    async def get(self, key: str, **fields: Any) -> oxia.GetResponse:
        return (await self.gets(oxia.GetRequest(key=key, include_value=True, **fields)))[0]

    async def list(self, start: str = "", end: str = "", **fields: Any) -> list[str]:
        asked = oxia.ListRequest(shard=0, start_inclusive=start, end_exclusive=end, **fields)
        return [key async for part in self.many("List", asked, oxia.ListResponse) for key in part.keys]

    async def scan(self, start: str = "", end: str = "", **fields: Any) -> list[oxia.GetResponse]:
        asked = oxia.RangeScanRequest(shard=0, start_inclusive=start, end_exclusive=end, **fields)
        return [each async for part in self.many("RangeScan", asked, oxia.RangeScanResponse) for each in part.records]

    async def session(self, timeout_ms: int = 10_000, identity: str = "me") -> int:
        asked = oxia.CreateSessionRequest(shard=0, session_timeout_ms=timeout_ms, client_identity=identity)
        opened: oxia.CreateSessionResponse = await self.one("CreateSession", asked, oxia.CreateSessionResponse)
        return opened.session_id

    async def keep_alive(self, session_id: int) -> None:
        await self.one("KeepAlive", oxia.SessionHeartbeat(session_id=session_id), oxia.KeepAliveResponse)

    async def close_session(self, session_id: int) -> None:
        await self.one("CloseSession", oxia.CloseSessionRequest(session_id=session_id), oxia.CloseSessionResponse)

    def notifications(self, after: int | None = None) -> Any:
        asked = oxia.NotificationsRequest(shard=0, start_offset_exclusive=after)
        return self.many("GetNotifications", asked, oxia.NotificationBatch)
