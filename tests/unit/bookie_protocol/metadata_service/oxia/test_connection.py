"""What Oxia's errors mean, and what every call shows: asked of a server that says what a test tells it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.bearer_tokens import shown_token
from bookie_protocol.errors import InvalidConfiguration, MetadataRefused, MetadataUnavailable
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia import wire
from bookie_protocol.metadata_service.oxia.connection import OxiaConnection, SessionGone
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.bookie_process import free_port
from tests.support.certificates import Certificates
from tests.support.until import until

LAST = 2**32 - 1


class Server:
    """One shard, or none. `fail` is called with the context of each call to it."""

    def __init__(self, service: str = wire.SERVICE) -> None:
        self.address = ""
        self.leader: str | None = None
        self.router = messages.XXHASH3
        self.fail: Callable[[Any], Any] | None = None
        self.shown: list[dict[str, str]] = []
        self.delay = 0.0
        """Seconds before the answer where the shards are."""
        handlers = {
            "GetShardAssignments": grpc.unary_stream_rpc_method_handler(
                self._assignments,
                messages.ShardAssignmentsRequest.FromString,
                lambda answer: answer.SerializeToString(),
            ),
            "KeepAlive": grpc.unary_unary_rpc_method_handler(
                self._keep_alive, messages.SessionHeartbeat.FromString, lambda each: each.SerializeToString()
            ),
        }
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async def start(self) -> None:
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _assignments(self, request: Any, context: Any) -> AsyncIterator[messages.ShardAssignments]:
        self.shown.append(dict(context.invocation_metadata()))
        if request.namespace == "nothing":
            await context.abort(grpc.StatusCode.NOT_FOUND, "oxia: namespace not found")
        await asyncio.sleep(self.delay)
        hashes = messages.Int32HashRange(min_hash_inclusive=0, max_hash_inclusive=LAST)
        leader = self.address if self.leader is None else self.leader
        shard = messages.ShardAssignment(shard=0, leader=leader, int32_hash_range=hashes)
        found = messages.NamespaceShardsAssignment(assignments=[shard], shard_key_router=self.router)
        yield messages.ShardAssignments(namespaces={request.namespace: found})
        await asyncio.Event().wait()

    async def _keep_alive(self, _: Any, context: Any) -> messages.KeepAliveResponse:
        if self.fail is not None:
            await self.fail(context)
        return messages.KeepAliveResponse()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    await made.start()
    yield made
    await made.stop()


async def ask(server: Server, **options: Any) -> None:
    connection = OxiaConnection([server.address], "ns", **options)
    try:
        await connection.shards(10)
        await connection.keep_alive(0, 1, 10)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, "oxia: session not found", SessionGone),
        (grpc.StatusCode.ABORTED, "oxia: node is not leader", ConnectionLost),
        (grpc.StatusCode.ABORTED, "oxia: node is not a member", ConnectionLost),
        (grpc.StatusCode.UNAVAILABLE, "oxia: server not initialized yet", ConnectionLost),
        (grpc.StatusCode.NOT_FOUND, "oxia: shard not found", ConnectionLost),
        (grpc.StatusCode.FAILED_PRECONDITION, "oxia: invalid status", ConnectionLost),
        (grpc.StatusCode.UNAVAILABLE, "oxia: resource unavailable", ConnectionLost),
        (grpc.StatusCode.UNKNOWN, "anything", ConnectionLost),
        (grpc.StatusCode.NOT_FOUND, "anything", ConnectionLost),
        (grpc.StatusCode.FAILED_PRECONDITION, "oxia: notifications not enabled on namespace", InvalidConfiguration),
        (grpc.StatusCode.UNAUTHENTICATED, "no token", MetadataRefused),
        (grpc.StatusCode.PERMISSION_DENIED, "oxia: unexpected authority", MetadataRefused),
        (grpc.StatusCode.INVALID_ARGUMENT, "anything", MetadataUnavailable),
    ],
)
async def test_what_an_error_means(server: Server, code: grpc.StatusCode, details: str, kind: type[Exception]) -> None:
    server.fail = lambda context: context.abort(code, details)
    with pytest.raises(kind) as caught:
        await ask(server)
    assert type(caught.value) is kind


async def test_a_shard_without_a_leader_is_worth_another_try(server: Server) -> None:
    server.leader = ""
    with pytest.raises(ConnectionLost):
        await ask(server)


async def test_a_slow_answer_where_the_shards_are_is_waited_for_while_renewals_fail(server: Server) -> None:
    server.delay = 0.6
    connection = OxiaConnection([server.address], "ns")
    asking = asyncio.create_task(connection.shards(20))
    while not asking.done():
        await connection.reconnect()
        await asyncio.wait([asking], timeout=0.1)
    assert (await asking).leaders == {0: server.address}
    await connection.close()


async def test_no_call_outlives_a_connection_that_was_closed_without_an_answer() -> None:
    """With it the channel would go on connecting."""

    def calls() -> set[int]:
        return {id(each) for each in gc.get_objects() if type(each).__name__ == "UnaryStreamCall"}

    connection = OxiaConnection([f"127.0.0.1:{free_port()}"], "ns")
    gc.collect()
    of_others = calls()
    gc.disable()
    try:
        with pytest.raises(ConnectionLost) as caught:
            await connection.shards(1)
        await connection.close()
        assert "UNAVAILABLE" in str(caught.value)
        await until(lambda: calls() <= of_others)
    finally:
        gc.enable()


async def test_keys_that_are_spread_in_an_unknown_way_are_refused(server: Server) -> None:
    server.router = messages.UNKNOWN
    with pytest.raises(InvalidConfiguration):
        await ask(server)


async def test_a_server_that_knows_the_former_name_of_the_service_is_understood() -> None:
    """That of the releases that Pulsar 4 came with."""
    server = Server(wire.FORMER_SERVICE)
    await server.start()
    try:
        await ask(server)
    finally:
        await server.stop()


async def test_a_server_that_is_not_oxia_is_not_asked_for_ever() -> None:
    server = Server("another.Service")
    await server.start()
    try:
        connection = OxiaConnection([server.address], "ns")
        with pytest.raises(MetadataUnavailable):
            await connection.shards(1)
        await connection.close()
    finally:
        await server.stop()


async def test_the_token_is_shown_and_a_new_one_is_read(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-some-length\n")
    await ask(server, token=WatchedFile("a file", str(file), shown_token))
    assert server.shown[0]["authorization"] == "Bearer a-token-of-some-length"
    with pytest.raises(InvalidConfiguration):
        OxiaConnection([server.address], "ns", token=WatchedFile("a file", str(tmp_path / "none"), shown_token))


async def test_a_leader_whose_address_asks_for_tls_has_it(server: Server) -> None:
    own = MetadataTls(ca_file="/dev/null")
    for leader, tls, encrypted in (
        ("tls://leader:6648", None, MetadataTls()),
        ("tls://leader:6648", own, own),
        ("leader:6648", None, None),
    ):
        server.leader = leader
        connection = OxiaConnection([server.address], "ns")
        await connection.shards(10)
        connection._tls = tls
        seen: list[tuple[tuple[str, ...], MetadataTls | None]] = []
        connection._channel = lambda *given, seen=seen: seen.append(given)  # type: ignore[method-assign, assignment]
        connection._leader(0)
        assert seen == [(("leader:6648",), encrypted)]
        connection._leaders.clear()
        await connection.close()


async def test_no_leader_on_another_machine_is_shown_the_token_in_plain_text(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-some-length\n")
    token = WatchedFile("a file", str(file), shown_token)
    for leader, is_refused in (("far.example:6648", True), ("tls://far.example:6648", False), ("[::1]:6648", False)):
        server.leader = leader
        connection = OxiaConnection([server.address], "ns", token=token)
        await connection.shards(10)
        with pytest.raises(InvalidConfiguration) if is_refused else nullcontext():
            connection._leader(0)
        await connection.close()


async def test_a_new_leader_is_worth_another_try_while_files_of_tls_are_replaced(
    server: Server, tmp_path: Path
) -> None:
    """The files were good when the process started, and are about to be again."""
    Certificates(tmp_path).make_all()
    authority = tmp_path / "authority.pem"
    good = authority.read_bytes()
    connection = OxiaConnection([server.address], "ns")
    await connection.shards(10)
    connection._tls = MetadataTls(ca_file=str(authority))
    for half_done in (lambda: authority.write_bytes(good[:50]), authority.unlink):
        half_done()
        with pytest.raises(ConnectionLost):
            connection._leader(0)
    authority.write_bytes(good)
    connection._leader(0)
    await connection.close()
