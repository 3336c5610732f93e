"""Connections on a network and a clock that are not real: nothing here waits, or looks at the real clock."""

import asyncio
import time

import pytest

from bookie_protocol.errors import BookieTimeout, BookieUnavailable
from tests.support.client_operations import Operations
from tests.support.frames import KEY, entry
from tests.support.model_bookie import ModelBookie, ModelBookieServer, _Connection
from tests.support.virtual_loop import VirtualLoop


class Wire(asyncio.Transport):
    """One direction: what is written arrives at the peer after the latency, unless the network is cut."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.protocol = None
        self.peer = None
        self.is_closed = False

    def write(self, data):
        if data and not self.is_closed:
            asyncio.get_running_loop().call_later(self.network.latency, self._arrive, bytes(data))

    def _arrive(self, data):
        if not self.peer.is_closed and not self.network.is_cut:
            self.peer.protocol.data_received(data)

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.abort()

    def abort(self):
        for end in (self, self.peer):
            if not end.is_closed:
                end.is_closed = True
                asyncio.get_running_loop().call_soon(end.protocol.connection_lost, None)


class Network:
    def __init__(self):
        self.latency = 0.001
        self.is_cut = False
        self.server = ModelBookieServer(ModelBookie("b"))
        self.connects = 0

    async def connect(self, factory, host, port):
        self.connects += 1
        await asyncio.sleep(self.latency)
        if self.is_cut:
            await asyncio.Event().wait()
        here, there = Wire(self), Wire(self)
        here.peer, there.peer = there, here
        here.protocol, there.protocol = factory(), _Connection(self.server)
        here.protocol.connection_made(here)
        there.protocol.connection_made(there)
        return here, here.protocol


@pytest.fixture
def virtual():
    """Runs a test on virtual time; returns how many seconds passed there."""
    started = time.monotonic()

    def run(main):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main())
            return runner.get_loop().time()

    yield run
    assert time.monotonic() - started < 60  # the clock that the tests look at goes through hundreds of seconds


def test_requests_over_a_virtual_network_take_its_latency(virtual):
    async def main():
        network = Network()
        ask = Operations({"b": 1}, network.connect)
        network.latency = 0.25
        for e in range(10):
            await ask.add_entry("b", 1, e, entry(1, e), KEY)
        for e in range(10):
            assert (await ask.read_entry("b", 1, e)).entry == entry(1, e)
        assert ask.pool.health.expected_read_seconds("b") == pytest.approx(0.5, rel=0.2)
        await ask.pool.close()

    assert virtual(main) == pytest.approx(20 * 0.5 + 0.25, abs=0.1)


def test_time_outs_back_off_and_reconnects_follow_the_virtual_clock(virtual):
    async def main():
        network = Network()
        ask = Operations({"b": 1}, network.connect, read_timeout=300.0, add_timeout=300.0, max_reconnect_delay=600.0)
        loop = asyncio.get_running_loop()
        await ask.add_entry("b", 1, 0, entry(1, 0), KEY)
        network.is_cut = True
        errors = []
        while network.connects == 1:
            try:
                await ask.read_entry("b", 1, 0)
            except BookieUnavailable as error:
                errors.append(error)
            await asyncio.sleep(1.0)
        assert sum(isinstance(error, BookieTimeout) for error in errors) >= 3
        assert 900.0 < loop.time() < 3000.0
        assert ask.pool.health.slow() == {"b"}
        network.is_cut = False
        while True:
            try:
                await ask.read_entry("b", 1, 0)
                break
            except BookieUnavailable:
                await asyncio.sleep(1.0)
        assert ask.pool.health.failed_lately() == frozenset()
        await asyncio.sleep(61.0)
        assert ask.pool.health.slow() == frozenset()
        await ask.pool.close()

    assert virtual(main) > 900.0


def test_two_runs_are_alike(virtual):
    async def main():
        network = Network()
        ask = Operations({"b": 1}, network.connect)
        adds = (ask.add_entry("b", 1, e, entry(1, e), KEY) for e in range(100))
        await asyncio.gather(*adds)
        await ask.pool.close()

    assert virtual(main) == virtual(main)
