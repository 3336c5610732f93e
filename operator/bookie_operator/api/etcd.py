"""The etcd that the operator runs for a cluster, over gRPC, which the kubectl plugin does not load.

Invariants
- A fact that could not be had is left out or None, never a no: the list of members, the health of a member.
- Members are addressed by IP, since names of new pods may not resolve yet, and have to prove by a certificate of the
  cluster's authority that they are members. The operator shows the certificate of clients.
- Requests for changes raise EtcdError: they may have been carried out.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from bookie_operator.world.facts import EtcdFacts, Member, MemberHealth
from bookie_protocol.addresses import host_and_port
from bookie_protocol.metadata_service.etcd import etcd_pb2 as messages

PORT: Final = 2379
_FILES: Final = ("ca.crt", "tls.key", "tls.crt")
_TIMEOUT_S: Final = 5.0


class EtcdError(Exception):
    """The request was not carried out, or its outcome is unknown."""


class Etcd:
    """The etcd of one cluster. `files`: certificate, key and authority; without all of them `look` returns None.

    `hosts` are the addresses of its members by pod name.
    """

    def __init__(
        self, files: Mapping[str, str] | None, server_name: str, *, timeout_s: float = _TIMEOUT_S, port: int = PORT
    ) -> None:
        self._files = [((files or {}).get(name) or "").encode() for name in _FILES]
        self._server_name = server_name
        self._timeout_s = timeout_s
        self._port = port

    async def look(self, hosts: Mapping[str, str]) -> EtcdFacts | None:
        """Return the facts that its members report; None: none of them gave the list of members."""
        if not hosts or not all(self._files):
            return None
        async with self._channels(hosts) as channels:
            told = await asyncio.gather(*(self._health(each) for each in channels.values()))
            health = {pod: found for pod, found in zip(channels, told, strict=True) if found is not None}
            for pod in _best_first(health):
                listed = await self._members(channels[pod])
                if listed is not None:
                    return EtcdFacts(listed, health)
        return None

    async def remove_member(self, hosts: Mapping[str, str], member: int) -> None:
        """Take a member out of the list. Raises EtcdError."""
        await self._change(hosts, "MemberRemove", messages.MemberRemoveRequest(ID=member))

    async def add_member(self, hosts: Mapping[str, str], peer_url: str) -> None:
        """Add a member to the list, which has not started yet. Raises EtcdError."""
        await self._change(hosts, "MemberAdd", messages.MemberAddRequest(peerURLs=[peer_url]))

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _health(self, channel: grpc.aio.Channel) -> MemberHealth | None:
        try:
            told = await self._call(channel, "Maintenance/Status", messages.StatusRequest(), messages.StatusResponse)
        except grpc.aio.AioRpcError:
            return None
        return MemberHealth(
            id=told.header.member_id,
            leader=told.leader,
            version=told.version,
            database_bytes=told.dbSize,
            errors=tuple(told.errors),
        )

    async def _members(self, channel: grpc.aio.Channel) -> tuple[Member, ...] | None:
        request = messages.MemberListRequest(linearizable=True)
        try:
            told = await self._call(channel, "Cluster/MemberList", request, messages.MemberListResponse)
        except grpc.aio.AioRpcError:
            return None
        return tuple(Member(each.ID, each.name, tuple(each.peerURLs)) for each in told.members)

    async def _change(self, hosts: Mapping[str, str], name: str, request: Any) -> None:
        """Ask the first member that knows a leader: any of them hands the request to it."""
        if not all(self._files):
            raise EtcdError("the Secret with the certificate for etcd is not there, or lacks something")
        async with self._channels(hosts) as channels:
            told = await asyncio.gather(*(self._health(each) for each in channels.values()))
            health = {pod: found for pod, found in zip(channels, told, strict=True) if found is not None}
            pod = next((each for each in _best_first(health) if health[each].leader), None)
            if pod is None:
                raise EtcdError("no member of etcd answers that knows a leader")
            try:
                await self._call(channels[pod], f"Cluster/{name}", request, messages.MemberListResponse)
            except grpc.aio.AioRpcError as error:
                raise EtcdError(f"{name} at {pod}: {error.code().name} {error.details()}") from error

    async def _call(self, channel: grpc.aio.Channel, name: str, request: Any, response: Any) -> Any:
        call = channel.unary_unary(f"/etcdserverpb.{name}", type(request).SerializeToString, response.FromString)
        return await call(request, timeout=self._timeout_s)

    @asynccontextmanager
    async def _channels(self, hosts: Mapping[str, str]) -> AsyncIterator[dict[str, grpc.aio.Channel]]:
        """Connections for one question: certificates are renewed, and addresses change."""
        credentials = grpc.ssl_channel_credentials(*self._files)
        options = [
            ("grpc.ssl_target_name_override", self._server_name),
            ("grpc.use_local_subchannel_pool", 1),  # else a refusal of the last pass would be answered once more
            ("grpc.enable_http_proxy", 0),
        ]
        channels = {
            pod: grpc.aio.secure_channel(host_and_port(host, self._port), credentials, options)
            for pod, host in hosts.items()
        }
        try:
            yield channels
        finally:
            await asyncio.gather(*(each.close() for each in channels.values()))


def _best_first(health: Mapping[str, MemberHealth]) -> Sequence[str]:
    """Members that know a leader first, and of them the leader itself, whose list is the newest."""
    return sorted(health, key=lambda pod: (not health[pod].leader, health[pod].leader != health[pod].id, pod))
