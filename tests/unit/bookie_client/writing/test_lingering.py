"""Acknowledged adds that a slow bookie has not answered: their bytes come back however that ends."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.errors import LedgerFenced
from tests.support.until import until

SIZE = 1000


def lingering(ledger):
    return ledger._pipeline._window.lingering


async def slow_bookie(three, ledger, count=1):
    """One that holds `count` adds, which the others have acknowledged."""
    slow = ledger.metadata.last_ensemble[2]
    three.servers[slow].hold = True
    for _ in range(count):
        await ledger.append(bytes(SIZE))
    assert lingering(ledger) >= count * SIZE
    await until(lambda: three.servers[slow].held == count)
    return three.servers[slow]


async def answers(server):
    server.release()


async def dies(server):
    await server.stop()


async def stays_silent(server):
    """Its adds time out."""


@pytest.mark.parametrize("end", [answers, dies, stays_silent])
async def test_the_bytes_come_back(three, version, end):
    async with three.client(protocol_version=version) as client, client.create(write_quorum=3, ack_quorum=2) as ledger:
        server = await slow_bookie(three, ledger, count=5)
        await end(server)
        await until(lambda: lingering(ledger) == 0)
        server.hold = False
        assert await ledger.append(b"goes on") == 5


async def test_a_writer_that_waits_for_a_slow_bookie_goes_on_when_its_adds_time_out(three):
    async with (
        three.client(write_linger_bytes=SIZE, add_timeout=1.0) as client,
        client.create(write_quorum=3, ack_quorum=2) as ledger,
    ):
        await slow_bookie(three, ledger)
        waiting = asyncio.create_task(ledger.append(b"behind it"))
        await asyncio.sleep(0)
        assert ledger.last_add_pushed == 0
        assert await waiting == 1


async def test_an_add_that_failed_lingers_until_every_bookie_is_heard(three):
    """Its bytes wait in the connections all the same."""
    async with three.client(add_timeout=60.0) as client, three.client() as another:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        await ledger.append(b"first")
        await another.recover(ledger.ledger_id)
        silent = three.servers[ledger.metadata.last_ensemble[2]]
        silent.hold = True
        fenced = await ledger.submit(bytes(SIZE))
        await until(fenced.done)
        assert isinstance(fenced.exception(), LedgerFenced)
        await until(lambda: silent.held == 1)
        assert lingering(ledger) >= SIZE
        silent.release()
        await until(lambda: lingering(ledger) == 0)
        await ledger.close()
