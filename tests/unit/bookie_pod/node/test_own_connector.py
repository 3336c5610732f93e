"""How a client in the bookie's process reaches bookies."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from bookie_client.connection.pool import tcp_connector
from bookie_client.connection.request import FramedRequest
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.security import TlsConfig
from bookie_pod.node.side_services import own_connector
from bookie_pod.server.tcp.connection import Connection
from bookie_protocol.errors import BookieUnavailable, Unauthorized
from bookie_protocol.keys import master_key
from bookie_protocol.wire.varint import encode_varint
from tests.support.add_frames import add_frames
from tests.support.auth import TwoTokens, TwoTokensClient
from tests.support.client_operations import Operations
from tests.support.frames import entry
from tests.support.served_bookie import ServedBookie
from tests.support.until import until

KEY = master_key(b"")
OURS, OTHER = "ours", "other"


@pytest.fixture
async def bookies(tmp_path):
    async with ServedBookie(tmp_path / "a") as ours, ServedBookie(tmp_path / "b") as other:
        yield ours, other


@pytest.fixture
async def operations(bookies):
    ours, other = bookies
    published = ("127.0.0.1", ours.port)
    connector = own_connector(BookieConfig(), ours.listener, lambda: published)
    operations = Operations({OURS: ours.port, OTHER: other.port}, connector)
    yield operations
    await operations.pool.close()


def peers(bookie):
    return [connection.peer for connection in bookie.server.context.connections]


async def test_the_own_bookie_is_reached_without_its_port_and_others_over_theirs(bookies, operations):
    ours, other = bookies
    for bookie in (OURS, OTHER):
        for number in range(3):
            await operations.add_entry(bookie, 1, number, entry(1, number, bytes(100_000)), KEY)
        assert (await operations.read_entry(bookie, 1, 2)).entry == entry(1, 2, bytes(100_000))
    assert peers(ours) == ["in-process:0"]
    assert [peer.split(":")[0] for peer in peers(other)] == ["127.0.0.1"]


class Add(FramedRequest):
    """Counts its answers."""

    def __init__(self, txn_id):
        self.key, self.answers = encode_varint(txn_id), []

    @property
    def frame(self):
        raise AssertionError("it is sent with others")

    def accepted(self, bookie, answer):
        self.answers.append(bookie)

    def refused(self, bookie, error):
        self.answers.append(error)

    def describe(self):
        return "the add"


async def test_many_adds_reach_the_own_bookie_as_they_are_and_others_as_frames(bookies, operations, monkeypatch):
    taken, received = [], Connection.adds_received

    def watched(connection, adds):
        taken.append(len(adds.entries(adds.common)))
        received(connection, adds)

    monkeypatch.setattr(Connection, "adds_received", watched)
    many = add_frames(1, KEY, 1, [bytes([number]) * (1000 + number % 3) for number in range(200)], txn=1 << 20)
    for bookie in (OURS, OTHER):
        await operations.add_entry(bookie, 1, 0, entry(1, 0), KEY)
        adds = [Add((1 << 20) + place) for place in range(200)]
        operations.pool.channel(bookie).send_adds(many, adds)
        await until(lambda adds=adds: all(add.answers for add in adds))
        assert all(add.answers == [bookie] for add in adds)
        for number in (1, 100, 200):
            assert (await operations.read_entry(bookie, 1, number)).entry == many.entries(many.common)[number - 1]
    assert taken == [200]  # once, by our own


async def test_it_is_refused_as_over_the_port_once_the_bookie_stops(bookies, operations):
    ours, _ = bookies
    await operations.add_entry(OURS, 1, 0, entry(1, 0), KEY)
    await ours.listener.stop(0.0)
    channel = operations.pool.channel(OURS)
    await until(lambda: not channel.is_connected)
    with pytest.raises(BookieUnavailable, match="this bookie's port is closed"):
        await channel.connect()
    assert peers(ours) == []


async def test_tls_goes_over_the_port():
    config = dataclasses.replace(BookieConfig(), tls=TlsConfig(provider_factory_class="TLSContextFactory"))
    assert own_connector(config, None, lambda: None) is tcp_connector


def test_a_bookie_without_a_gateway_starts_without_the_client() -> None:
    code = "import sys, bookie_pod.node.bookie, bookie_pod.gateway.start; sys.exit('bookie_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


async def test_the_own_bookie_asks_for_a_login_too(bookies):
    ours, _ = bookies
    ours.server.context.auth = TwoTokens()
    connector = own_connector(BookieConfig(), ours.listener, lambda: ("127.0.0.1", ours.port))
    for secret in (b"guess", b"secret"):
        operations = Operations({OURS: ours.port}, connector, auth=TwoTokensClient(secret))
        if secret == b"guess":
            with pytest.raises(Unauthorized):
                await operations.add_entry(OURS, 1, 0, entry(1, 0), KEY)
            assert ours.side.storage.ledger(1) is None
        else:
            await operations.add_entry(OURS, 1, 0, entry(1, 0), KEY)
            assert (await operations.read_entry(OURS, 1, 0)).entry == entry(1, 0)
            assert peers(ours) == ["in-process:0"]
        await operations.pool.close()
