"""`bookie gateway` beside real bookies: what clients get through it, and how it ends."""

from __future__ import annotations

import signal
import subprocess

import grpc
import psutil
import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.gateway_command import GatewayCommand
from tests.support.standalone_command import BOOKIE, StandaloneCommand
from tests.support.until import until

QUORUMS = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
MANY = [b"%06d" % number for number in range(10_000)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with StandaloneCommand(tmp_path_factory.mktemp("standalone") / "data") as cluster:
        yield cluster


@pytest.fixture
def gateway(cluster, tmp_path):
    with GatewayCommand(tmp_path, cluster.uri) as gateway:
        yield gateway


async def appending(stub):
    """A call that has written one entry, and its ledger."""
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(**QUORUMS), entries=[b"stored"]))
    ledger_id = (await call.read()).ledger_id
    assert (await call.read()).last_entry_id == 0
    return call, ledger_id


async def finish(call):
    """To its end: whatever it is told later would come to the event loop of the next test."""
    await call.done_writing()
    while await call.read() is not grpc.aio.EOF:
        pass


async def read(address, ledger_id):
    async with grpc.aio.insecure_channel(address) as channel:
        request = pb.ReadRequest(ledger_id=ledger_id)
        return [entry async for response in LedgerServiceStub(channel).Read(request) for entry in response.entries]


async def test_it_and_the_bookies_gateways_serve_the_same_ledgers(cluster, gateway):
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = LedgerServiceStub(channel)
        first = pb.AppendRequest(create=pb.CreateRequest(**QUORUMS), entries=MANY)
        responses = [response async for response in stub.Append(iter([first]))]
        assert (responses[-1].last_entry_id, responses[-1].closed) == (len(MANY) - 1, True)
        theirs = LedgerServiceStub(grpc.aio.insecure_channel(cluster.grpc[0]))
        written = [response async for response in theirs.Append(iter([first]))]
    assert await read(cluster.grpc[1], responses[-1].ledger_id) == MANY
    assert await read(gateway.address, written[-1].ledger_id) == MANY


async def test_what_it_did_is_in_its_metrics(gateway):
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        first = pb.AppendRequest(create=pb.CreateRequest(**QUORUMS), entries=MANY)
        _ = [response async for response in LedgerServiceStub(channel).Append(iter([first]))]
    found = dict(line.rsplit(" ", 1) for line in gateway.metrics().splitlines() if not line.startswith("#"))
    assert float(found["bookie_gateway_APPENDED_ENTRIES"]) == len(MANY)


async def test_it_reaches_every_bookie_over_its_port(cluster, gateway):
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        call, _ = await appending(LedgerServiceStub(channel))
        reached = {peer.raddr.port for peer in psutil.Process(gateway.pid).net_connections("tcp") if peer.raddr}
        await finish(call)
    assert {bookie["port"] for bookie in cluster.ready["bookies"]} <= reached


async def test_told_to_stop_it_closes_what_is_being_written(cluster, gateway):
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        call, ledger_id = await appending(LedgerServiceStub(channel))
        assert gateway.stop() == 0, gateway.tail()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert raised.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION)
    with BlockingClient(cluster.uri) as client:
        metadata = client.metadata(ledger_id)
        assert (metadata.is_closed, metadata.last_entry_id) == (True, 0)


async def test_killed_it_leaves_what_was_acknowledged(cluster, gateway):
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        _, ledger_id = await appending(LedgerServiceStub(channel))
        gateway.kill()
    async with grpc.aio.insecure_channel(cluster.grpc[0]) as channel:
        metadata = await LedgerServiceStub(channel).Recover(pb.RecoverRequest(ledger_id=ledger_id))
        assert (metadata.state, metadata.last_entry_id) == (pb.LedgerMetadata.CLOSED, 0)
    assert await read(cluster.grpc[1], ledger_id) == [b"stored"]


async def test_it_is_unready_while_the_metadata_service_is_away(tmp_path):
    """And goes on writing to the ledgers that it has open; then it is ready again."""
    with (
        StandaloneCommand(tmp_path / "data") as cluster,
        GatewayCommand(tmp_path, cluster.uri, {"zkTimeout": "4000"}) as gateway,
    ):
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            call, _ = await appending(LedgerServiceStub(channel))
            cluster.process.send_signal(signal.SIGSTOP)  # the bookies are processes of their own
            try:
                await until(lambda: gateway.probe("/readyz") == 503, 30)
                assert gateway.probe("/healthz") == 200
                await call.write(pb.AppendRequest(entries=[b"more"]))
                assert (await call.read()).last_entry_id == 1
            finally:
                cluster.process.send_signal(signal.SIGCONT)
            await until(lambda: gateway.probe("/readyz") == 200, 30)
            await call.done_writing()
            assert (await call.read()).closed


@pytest.mark.parametrize(
    ("uri", "arguments", "code", "line"),
    [
        ("{uri}-other", (), 2, "bookie: there is no cluster at {uri}-other: create it with `bookie cluster init`"),
        ("{uri}", ("--set", "grpcServerEnabled=false"), 1, "bookie: grpcServerEnabled=false: the gateway is served"),
        ("{uri}", ("--set", "grpcServerPort={taken}"), 2, "bookie: gRPC port {taken} on 0.0.0.0 cannot be opened"),
        ("{uri}", ("--set", "grpcServerPrt=1"), 1, "grpcServerPrt"),
    ],
    ids=["no cluster", "no gRPC", "port in use", "unknown key"],
)
def test_what_it_cannot_start_with_is_one_line(cluster, uri, arguments, code, line):
    words = {"uri": cluster.uri, "taken": cluster.grpc[0].rpartition(":")[2]}
    given = [argument.format(**words) for argument in ("--metadata-service-uri", uri, *arguments)]
    quiet = ["--set", "httpServerEnabled=false", "--set", "prometheusStatsHttpEnable=false", "--log-level", "error"]
    ended = subprocess.run([BOOKIE, "gateway", *quiet, *given], capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert line.format(**words) in ended.stderr
