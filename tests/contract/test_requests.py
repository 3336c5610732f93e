"""What requests do at a bookie, over real sockets: both versions on one bookie, batch reads, priorities, modes."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import V3Status
from tests.support.frames import (
    LAST,
    entry,
    lac_packet,
    v2_add,
    v2_batch,
    v2_code,
    v2_entries,
    v2_entry,
    v2_fence,
    v2_read,
    v3_add,
    v3_answer,
    v3_fence,
    v3_force,
    v3_poll,
    v3_read,
    v3_read_lac,
    v3_status,
    v3_write_lac,
)
from tests.support.gated_files import GatedFiles
from tests.support.served_bookie import RawClient, ServedBookie


async def test_both_versions_serve_one_ledger(tmp_path: Path) -> None:
    async with (
        ServedBookie(tmp_path) as bookie,
        await RawClient.connect(bookie.port) as two,
        await RawClient.connect(bookie.port) as three,
    ):
        for e in range(0, 40, 2):
            two.send(v2_add(entry(1, e)))
            three.send(v3_add(entry(1, e + 1), txn=e))
        assert [v2_code(await two.frame()) for _ in range(20)] == [0] * 20
        assert [v3_status(await three.frame()) for _ in range(20)] == [0] * 20
        for e in range(40):
            assert v2_entry(await two.ask(v2_read(1, e))) == entry(1, e)
            assert v3_answer(await three.ask(v3_read(1, e))).readResponse.body == entry(1, e)
        assert v3_status(await three.ask(v3_fence(1))) == 0
        assert v2_code(await two.ask(v2_add(entry(1, 40)))) == 104


async def test_answers_of_a_ledger_keep_the_order_of_its_adds(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie, await RawClient.connect(bookie.port) as client:
        for chunk in range(20):
            client.send(*(v2_add(entry(1, e)) for e in range(chunk * 50, chunk * 50 + 50)))
            await asyncio.sleep(0)
        answered = [struct.unpack_from(">q", await client.frame(), 20)[0] for _ in range(1000)]
        assert answered == list(range(1000))


async def test_adding_again_is_harmless(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie, await RawClient.connect(bookie.port) as client:
        for _ in range(3):
            assert v2_code(await client.ask(v2_add(entry(1, 0)))) == 0
            await bookie.checkpoint()
        assert v2_entry(await client.ask(v2_read(1, 0))) == entry(1, 0)
        assert v2_entries(await client.ask(v2_batch(1, 0))) == [entry(1, 0)]


async def test_deferred_sync_and_force(tmp_path: Path) -> None:
    """A deferred add is answered before the sync, a force only after it."""
    files = GatedFiles()
    gate = files.gate("/journal/", frozenset({"sync", "datasync"}))
    async with ServedBookie(tmp_path, files=files) as bookie, await RawClient.connect(bookie.port) as client:
        assert v3_status(await client.ask(v3_add(entry(1, 0)))) == 0
        gate.close()
        assert v3_status(await client.ask(v3_add(entry(1, 1), sync=False))) == 0
        client.send(v3_force(1, txn=7) + v3_add(entry(1, 2), txn=8) + v3_add(entry(1, 3), sync=False, txn=9))
        answer = v3_answer(await client.frame())
        assert (answer.header.txnId, answer.status) == (9, 0)
        await asyncio.to_thread(gate.reached)
        gate.open()
        answers = [v3_answer(await client.frame()) for _ in range(2)]
        assert [(a.header.txnId, a.status) for a in answers] == [(7, 0), (8, 0)]


async def test_force_of_a_ledger_that_nobody_knows(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie, await RawClient.connect(bookie.port) as client:
        assert v3_status(await client.ask(v3_force(999))) == 0


def expected_batch(sizes: list[int], count: int, limit: int) -> int:
    """How many entries the reference returns."""
    wanted = count if count > 0 else 2**31 - 1
    frame, taken = 36, 0
    for size in sizes:
        if taken >= wanted:
            break
        frame += size + 4
        if taken == 0:
            wanted = min(wanted, 1 + max(0, limit - frame) // max(1, size + 4))
        elif frame > limit:
            break
        taken += 1
    return taken


async def test_batch_selection(tmp_path: Path) -> None:
    payloads = [10, 10, 10, 500, 3, 3, 0, 2000, 1, 1, 1, 1]
    stored = [entry(1, e, bytes(size)) for e, size in enumerate(payloads)]
    async with (
        ServedBookie(tmp_path, {"maxBatchReadSize": "1500"}) as bookie,
        await RawClient.connect(bookie.port) as client,
    ):
        client.send(*map(v2_add, stored))
        for _ in stored:
            await client.frame()
        for flushed in (False, True):
            for first in (0, 2, 3, 6, 7, 8):
                sizes = [len(body) for body in stored[first:]]
                two = 36 + sum(size + 4 for size in sizes[:2])  # the limit that lets two of them in
                for count in (-1, 0, 1, 2, 5):
                    for size in (-1, 0, 50, two - 1, two, 300, 1499, 1500, 1501, 1 << 20):
                        got = v2_entries(await client.ask(v2_batch(1, first, count, size)))
                        taken = expected_batch(sizes, count, min(size, 1500))
                        assert got == stored[first : first + taken], (flushed, first, count, size)
            assert v2_code(await client.ask(v2_batch(1, 99))) == 2
            assert v2_code(await client.ask(v2_batch(2, 0))) == 1
            await bookie.checkpoint()


async def test_a_batch_ends_at_a_gap(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie, await RawClient.connect(bookie.port) as client:
        for e in (0, 1, 3):
            await client.ask(v2_add(entry(1, e)))
        assert v2_entries(await client.ask(v2_batch(1, 0))) == [entry(1, 0), entry(1, 1)]
        assert v2_code(await client.ask(v2_batch(1, 2))) == 2


@pytest.mark.parametrize("room", [True, False])
async def test_read_only(tmp_path: Path, room: bool) -> None:
    async with (
        ServedBookie(tmp_path) as bookie,
        await RawClient.connect(bookie.port) as two,
        await RawClient.connect(bookie.port) as three,
    ):
        assert v2_code(await two.ask(v2_add(entry(1, 0)))) == 0
        bookie.server.admission.set_mode(read_only=True, high_priority_writes=room)
        assert v2_code(await two.ask(v2_add(entry(1, 1)))) == 105
        assert v2_code(await two.ask(v2_add(entry(77, 0)))) == 105
        assert v2_code(await two.ask(v2_read(77, 0))) == 1  # nothing was made of it
        assert v3_status(await three.ask(v3_write_lac(1, 0))) == 505
        assert v2_code(await two.ask(v2_add(entry(1, 1), flags=6))) == (0 if room else 105)
        assert v3_status(await three.ask(v3_add(entry(1, 2), priority=True))) == (0 if room else 505)
        assert v2_code(await two.ask(v2_add(entry(1, 3), flags=2))) == 105  # recovery alone is no priority
        assert v2_entry(await two.ask(v2_read(1, 0))) == entry(1, 0)
        assert v3_status(await three.ask(v3_fence(1))) == 0
        assert v3_status(await three.ask(v3_force(1))) == 0
        bookie.server.admission.set_mode(read_only=False, high_priority_writes=True)
        assert v2_code(await two.ask(v2_add(entry(2, 1)))) == 0


async def test_reads_of_every_level(tmp_path: Path) -> None:
    """Just written, during the flush, after it; after a restart, again, and the one behind it."""
    files = GatedFiles()
    gate = files.gate("/ledgers/current/", frozenset({"sync", "datasync"}))
    async with ServedBookie(tmp_path, files=files) as bookie, await RawClient.connect(bookie.port) as client:
        client.send(*(v2_add(entry(1, e)) for e in range(10)))
        for _ in range(10):
            await client.frame()

        def hits(name: str) -> float:
            found = [line for line in bookie.registry.render().splitlines() if line.startswith(f"bookie_{name}")]
            return sum(float(line.rsplit(" ", 1)[1]) for line in found)

        async def read(e: int) -> tuple[float, float, float]:
            """What one read added to the hits of the write cache, of the read cache, to the misses of the latter."""
            names = ("write_cache_hits", "read_cache_hits", "read_cache_misses")
            before = [hits(name) for name in names]
            assert v2_entry(await client.ask(v2_read(1, e))) == entry(1, e)
            after = [hits(name) for name in names]
            added = [b - a for a, b in zip(before, after, strict=True)]
            return added[0], added[1], added[2]

        assert await read(3) == (1, 0, 0)
        gate.close()
        flushing = asyncio.create_task(bookie.checkpoint())
        await asyncio.to_thread(gate.reached)
        assert await read(3) == (1, 0, 0)
        gate.open()
        await flushing
        assert await read(3) == (0, 1, 0)  # kept
        await bookie.stop()
        await bookie.start()
        client = await RawClient.connect(bookie.port)
        assert await read(3) == (0, 0, 1)
        assert await read(3) == (0, 1, 0)
        assert await read(4) == (0, 0, 1)  # a read that follows none reads nothing ahead
        await client.close()


async def test_last_entry_over_memory_and_disk(tmp_path: Path) -> None:
    """A recovery add of an old entry does not hide a higher one that is on disk (the reference's does)."""
    async with ServedBookie(tmp_path) as bookie, await RawClient.connect(bookie.port) as client:
        for e in range(10):
            await client.ask(v2_add(entry(1, e)))
        await bookie.checkpoint()
        assert v2_code(await client.ask(v2_fence(1))) == 0
        assert v2_code(await client.ask(v2_add(entry(1, 4), flags=6))) == 0
        assert v2_entry(await client.ask(v2_read(1, LAST))) == entry(1, 9)


async def test_explicit_lacs(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie, await RawClient.connect(bookie.port) as client:
        answer = v3_answer(await client.ask(v3_read_lac(1)))
        assert answer.status == 403
        assert v3_status(await client.ask(v3_write_lac(1, 5))) == 0
        answer = v3_answer(await client.ask(v3_read_lac(1)))
        assert answer.status == 501  # the packet, and no entry: as the reference says it
        assert answer.readLacResponse.lacBody == lac_packet(1, 5)
        assert v3_status(await client.ask(v3_add(entry(1, 0)))) == 0
        answer = v3_answer(await client.ask(v3_read_lac(1)))
        assert answer.status == 0
        assert answer.readLacResponse.lastEntryBody == entry(1, 0)
        assert v3_answer(await client.ask(v3_read(1, 0))).readResponse.maxLAC == 5


async def test_a_poll_wakes_over_the_wire(tmp_path: Path) -> None:
    async with (
        ServedBookie(tmp_path) as bookie,
        await RawClient.connect(bookie.port) as reader,
        await RawClient.connect(bookie.port) as writer,
    ):
        for e in range(2):
            await writer.ask(v2_add(entry(1, e)))
        for e in range(2, 30):
            reader.send(v3_poll(1, e - 2))
            writer.send(v2_add(entry(1, e)))
            answer = v3_answer(await reader.frame())
            assert (answer.readResponse.maxLAC, answer.readResponse.body) == (e - 1, entry(1, e - 1))
            assert v2_code(await writer.frame()) == 0


async def test_negative_ledgers_and_entries_leave_the_disk_alone(tmp_path: Path) -> None:
    """-1 marks the ledgers map of an entry log, -0xeefd the flags of the ledger index."""
    bookie = ServedBookie(tmp_path)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        for ledger_id in (-1, -0xEEFD, -(2**63)):
            assert v2_code(await client.ask(v2_add(entry(ledger_id, 0)))) == 100
            assert v2_code(await client.ask(v2_fence(ledger_id))) == 100
            assert v2_code(await client.ask(v2_read(ledger_id, 0))) == 1
        assert v2_code(await client.ask(v2_add(entry(1, -0x1000)))) == 100
        assert v2_code(await client.ask(v2_add(entry(1, 0)))) == 0
    await bookie.stop()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_entry(await client.ask(v2_read(1, 0))) == entry(1, 0)
    await bookie.stop()


async def test_the_largest_entry_survives(tmp_path: Path) -> None:
    limit = 5 * 1024 * 1024
    largest = entry(1, 0, bytes(limit - 28 - 32))
    settings = {"memoryBudgetMb": "128", "dbStorage_writeCacheMaxSizeMb": "48", "nettyMaxFrameSizeBytes": str(limit)}
    bookie = ServedBookie(tmp_path, settings)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert len(v2_add(largest)) == limit
        assert v2_code(await client.ask(v2_add(largest))) == 0
        await bookie.checkpoint()
        # An answer to this read is 20 bytes shorter than the request was.
        assert v2_entry(await client.ask(v2_read(1, 0))) == largest
        client.send(v2_add(entry(1, 1, bytes(limit - 28 - 32 + 1))))
        assert await client.closed()
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_entry(await client.ask(v2_read(1, 0))) == largest
    await bookie.stop()


@pytest.mark.parametrize("less", [0, 1, 40, 72])
async def test_an_entry_that_version_2_lets_in_is_read_and_copied_over_version_3(tmp_path: Path, less: int) -> None:
    limit = 64 * 1024
    size = limit - 28 - 32 - less
    async with (
        ServedBookie(tmp_path, {"nettyMaxFrameSizeBytes": str(limit)}) as bookie,
        await RawClient.connect(bookie.port) as two,
        await RawClient.connect(bookie.port) as three,
    ):
        stored = entry(1, 0, bytes(size))
        assert v2_code(await two.ask(v2_add(stored))) == 0
        await bookie.checkpoint()
        assert v3_answer(await three.ask(v3_read(1, 0, txn=2**62))).readResponse.body == stored
        for ledger_id in (2, 2, 2):  # the last ones are hot
            copy = entry(ledger_id, 0, bytes(size))
            assert v3_status(await three.ask(v3_add(copy, recovery=True, txn=2**62))) == 0
        assert v2_entry(await two.ask(v2_read(2, 0))) == copy
        longer = v3_add(entry(2, 1, bytes(size + less + 1)))
        assert v3_status(await three.ask(longer)) == V3Status.EBADREQ
        assert v2_code(await two.ask(v2_read(2, 1))) == 2


async def test_a_batch_that_begins_at_the_last_possible_entry(tmp_path: Path) -> None:
    last = 2**63 - 1
    async with ServedBookie(tmp_path) as bookie, await RawClient.connect(bookie.port) as client:
        stored = [entry(1, last - 1), entry(1, last)]
        for each in stored:
            assert v2_code(await client.ask(v2_add(each))) == 0
        for _ in range(2):
            for first in (0, 1):
                assert v2_entries(await client.ask(v2_batch(1, last - 1 + first, 10))) == stored[first:]
            await bookie.checkpoint()


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.integers(-1, 15), st.integers(-10, 3000))
def test_the_rule_of_batches_returns_something(sizes: list[int], count: int, limit: int) -> None:
    """The model that the bookie is held against: never empty, never more than asked for."""
    taken = expected_batch(sizes, count, limit)
    assert 1 <= taken <= len(sizes)
    if count > 0:
        assert taken <= count
