"""What happens when a disk is slow or a cache is full. Disks are held by gates, so nothing depends on the clock."""

from __future__ import annotations

import asyncio
import re
import struct
from pathlib import Path

from tests.support.frames import entry, v2_add, v2_code, v2_entry, v2_read, v3_add, v3_read, v3_status
from tests.support.gated_files import READS, WRITES, GatedFiles
from tests.support.served_bookie import RawClient, ServedBookie
from tests.support.until import until

KB = 1024
SMALL_CACHE = {"dbStorage_writeCacheMaxSizeMb": "1"}  # two halves of 512 KiB


def big(e: int, ledger_id: int = 1) -> bytes:
    return entry(ledger_id, e, bytes([e % 256]) * 8 * KB)


async def codes(client: RawClient, count: int) -> dict[int, int]:
    """Entry id to code of the next answers (version 2)."""
    frames = [await client.frame() for _ in range(count)]
    return {struct.unpack_from(">q", frame, 20)[0]: v2_code(frame) for frame in frames}


async def test_a_burst_beyond_the_write_cache_waits_for_one_flush(tmp_path: Path) -> None:
    files = GatedFiles()
    gate = files.gate("/ledgers/current/")
    bookie = ServedBookie(tmp_path, SMALL_CACHE, files)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client, await RawClient.connect(bookie.port) as reader:
        gate.close()
        client.send(*(v2_add(big(e)) for e in range(200)))  # 1.6 MB
        admission = bookie.server.admission
        await asyncio.to_thread(gate.reached)  # until one half is frozen, what is parked is let in once more
        await until(lambda: admission.parked_adds > 10 and bookie.side.storage.is_full(1))
        answered = await codes(client, 64)
        assert set(answered.values()) == {0}
        # Reads are served meanwhile: of both halves, and what does not exist.
        for e in (0, 70, 100):
            assert v2_entry(await reader.ask(v2_read(1, e))) == big(e)
        assert v2_code(await reader.ask(v2_read(1, 150))) in (0, 2)
        assert v2_code(await reader.ask(v2_read(9, 0))) == 1
        gate.open()
        answered |= await codes(client, 136)
        assert answered == dict.fromkeys(range(200), 0)
        assert (admission.parked_adds, admission.parked_bytes) == (0, 0)
        assert bookie.failures == []
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        for e in range(200):
            assert v2_entry(await client.ask(v2_read(1, e))) == big(e)
    await bookie.stop()


def counted(bookie: ServedBookie, name: str) -> float:
    """The counter over all its labels."""
    found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", bookie.registry.render(), re.MULTILINE)
    return sum(map(float, found))


async def test_beyond_the_throttle_time_adds_are_rejected_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    files = GatedFiles()
    gate = files.gate("/ledgers/current/")
    bookie = ServedBookie(tmp_path, {**SMALL_CACHE, "dbStorage_maxThrottleTimeMs": "100"}, files)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        gate.close()
        client.send(*(v2_add(big(e)) for e in range(200)))
        answered = await codes(client, 200)
        assert set(answered.values()) == {0, 106}
        accepted = {e for e, code in answered.items() if code == 0}
        assert len(accepted) >= 100
        rejected = 200 - len(accepted)
        assert counted(bookie, "bookie_throttled_write_requests") >= rejected
        assert counted(bookie, "bookie_rejected_write_requests") == rejected
        assert counted(bookie, "bookkeeper_server_ADD_ENTRY_REJECTED") == rejected
        assert v2_code(await client.ask(v2_add(big(300)))) == 106
        gate.open()
        await until(lambda: not bookie.side.storage.is_full(1))
        assert v2_code(await client.ask(v2_add(big(301)))) == 0
    for _ in range(2):
        async with await RawClient.connect(bookie.port) as client:
            for e in accepted | {301}:
                assert v2_entry(await client.ask(v2_read(1, e))) == big(e)
        await bookie.crash()
        await bookie.start()
    await bookie.stop()


async def test_a_failing_flush_keeps_everything_until_it_works(tmp_path: Path) -> None:
    files = GatedFiles()
    gate = files.gate("/ledgers/current/")
    bookie = ServedBookie(tmp_path, {**SMALL_CACHE, "dbStorage_maxThrottleTimeMs": "200"}, files)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        gate.failure = OSError(5, "Input/output error", "a disk")
        client.send(*(v2_add(big(e)) for e in range(200)))
        answered = await codes(client, 200)
        accepted = {e for e, code in answered.items() if code == 0}
        assert set(answered.values()) == {0, 106}
        for e in accepted:
            assert v2_entry(await client.ask(v2_read(1, e))) == big(e)
        gate.failure = None
        await bookie.checkpoint()
        assert v2_code(await client.ask(v2_add(big(300)))) == 0
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        for e in accepted | {300}:
            assert v2_entry(await client.ask(v2_read(1, e))) == big(e)
    await bookie.stop()


async def test_one_slow_ledger_directory_leaves_the_other_alone(tmp_path: Path) -> None:
    files = GatedFiles()
    gate = files.gate("/slow/current/")
    settings = {
        "ledgerDirectories": f"{tmp_path}/fast,{tmp_path}/slow",
        "dbStorage_writeCacheMaxSizeMb": "2",
    }
    async with (
        ServedBookie(tmp_path, settings, files) as bookie,
        await RawClient.connect(bookie.port) as slow,
        await RawClient.connect(bookie.port) as fast,
    ):
        gate.close()
        slow.send(*(v2_add(big(e, 1)) for e in range(200)))
        await asyncio.to_thread(gate.reached)
        await until(lambda: bookie.server.admission.parked_adds > 10 and bookie.side.storage.is_full(1))
        fast.send(*(v2_add(big(e, 2)) for e in range(400)))  # flushes of its own among them
        assert set((await codes(fast, 400)).values()) == {0}
        assert bookie.server.admission.parked_adds > 10
        gate.open()
        assert set((await codes(slow, 200)).values()) == {0}


# --- a slow journal, a slow ledger device -------------------------------------------------------------------------


async def test_a_slow_journal_moves_add_latency_and_nothing_else(tmp_path: Path) -> None:
    files = GatedFiles()
    gate = files.gate("/journal/", frozenset({"sync", "datasync"}))
    settings = {"journalQueueSize": "20", "dbStorage_maxThrottleTimeMs": "50"}
    async with (
        ServedBookie(tmp_path, settings, files) as bookie,
        await RawClient.connect(bookie.port) as writer,
        await RawClient.connect(bookie.port) as reader,
    ):
        writer.send(*(v2_add(entry(1, e)) for e in range(10)))
        await codes(writer, 10)
        await bookie.checkpoint()
        gate.close()
        admission = bookie.server.admission
        for first in range(10, 60, 10):
            writer.send(*(v2_add(entry(1, e)) for e in range(first, first + 10)))
            await until(lambda first=first: admission.adds_in_progress + admission.parked_adds == first)
        await asyncio.to_thread(gate.reached)
        assert admission.parked_adds > 0
        # Cold and hot reads, and a read of what waits for the journal.
        for e in (0, 9, 10):
            assert v2_entry(await reader.ask(v2_read(1, e))) == entry(1, e)
        await asyncio.sleep(0.15)  # several throttle times: these are for the write cache
        await bookie.checkpoint()  # the ledger device works on
        gate.open()
        assert await codes(writer, 50) == dict.fromkeys(range(10, 60), 0)


async def test_a_slow_ledger_device_moves_cold_reads_only(tmp_path: Path) -> None:
    files = GatedFiles()
    reads = files.gate("/ledgers/current/", READS)
    writes = files.gate("/ledgers/current/", WRITES)
    async with (
        ServedBookie(tmp_path, {"dbStorage_readAheadCacheMaxSizeMb": "0"}, files) as bookie,
        await RawClient.connect(bookie.port) as client,
        await RawClient.connect(bookie.port) as cold,
    ):
        client.send(*(v3_add(entry(1, e), txn=e) for e in range(20)))
        for _ in range(20):
            assert v3_status(await client.frame()) == 0
        await bookie.checkpoint()
        reads.close()
        writes.close()
        flushing = asyncio.create_task(bookie.checkpoint())
        cold.send(v2_read(1, 3))
        await asyncio.to_thread(reads.reached)
        for e in range(20, 300):
            assert v3_status(await client.ask(v3_add(entry(1, e)))) == 0  # adds do not wait
            assert v3_status(await client.ask(v3_read(1, e))) == 0  # nor do reads of what memory holds
        assert not cold.reader.at_eof()
        assert not await answered(cold)
        reads.open()
        assert v2_entry(await cold.frame()) == entry(1, 3)
        writes.open()
        await flushing


async def answered(client: RawClient) -> bool:
    """Whether an answer is there without waiting for one."""
    try:
        await client.frame(0.05)
    except TimeoutError:
        return False
    return True


# --- limits -------------------------------------------------------------------------------------------------------


async def test_adds_in_progress_limit(tmp_path: Path) -> None:
    files = GatedFiles()
    gate = files.gate("/journal/", frozenset({"sync", "datasync"}))
    async with (
        ServedBookie(tmp_path, {"maxAddsInProgressLimit": "5"}, files) as bookie,
        await RawClient.connect(bookie.port) as writer,
        await RawClient.connect(bookie.port) as other,
    ):
        gate.close()
        admission = bookie.server.admission
        writer.send(*(v2_add(entry(ledger_id, 0)) for ledger_id in range(40)))
        await until(lambda: admission.parked_adds == 35)
        assert admission.adds_in_progress == 5
        other.send(v2_add(entry(50, 0)))
        await until(lambda: admission.parked_adds == 36)
        assert v2_code(await other.ask(v2_read(1, 5))) == 2
        gate.open()
        for _ in range(40):
            assert v2_code(await writer.frame()) == 0
        assert v2_code(await other.frame()) == 0
        assert admission.adds_in_progress == 0


async def test_reads_in_progress_limit(tmp_path: Path) -> None:
    files = GatedFiles()
    gate = files.gate("/ledgers/current/", READS)
    async with (
        ServedBookie(
            tmp_path, {"maxReadsInProgressLimit": "3", "dbStorage_readAheadCacheMaxSizeMb": "0"}, files
        ) as bookie,
        await RawClient.connect(bookie.port) as client,
        await RawClient.connect(bookie.port) as other,
    ):
        client.send(*(v2_add(entry(1, e)) for e in range(10)))
        await codes(client, 10)
        await bookie.checkpoint()
        gate.close()
        client.send(*(v2_read(1, e) for e in range(10)))
        context = bookie.server.context
        await until(lambda: context.reads_in_progress.count == 3)
        assert v2_code(await other.ask(v2_add(entry(1, 10)))) == 0  # adds are no reads
        gate.open()
        assert sorted([v2_entry(await client.frame()) for _ in range(10)]) == [entry(1, e) for e in range(10)]
        assert context.reads_in_progress.count == 0


async def test_too_many_reads_are_rejected(tmp_path: Path) -> None:
    files = GatedFiles()
    gate = files.gate("/ledgers/current/", READS)
    settings = {
        "maxPendingReadRequestsPerThread": "5",
        "numReadWorkerThreads": "1",
        "dbStorage_readAheadCacheMaxSizeMb": "0",
    }
    async with ServedBookie(tmp_path, settings, files) as bookie, await RawClient.connect(bookie.port) as client:
        client.send(*(v2_add(entry(1, e)) for e in range(20)))
        await codes(client, 20)
        await bookie.checkpoint()
        gate.close()
        client.send(*(v2_read(1, e) for e in range(20)))
        rejected = [v2_code(await client.frame()) for _ in range(15)]
        assert rejected == [106] * 15
        gate.open()
        assert [v2_entry(await client.frame()) for _ in range(5)] == [entry(1, e) for e in range(5)]


async def test_a_client_with_many_waiting_adds_leaves_room_for_others(tmp_path: Path) -> None:
    """It is not read from before it holds all that may wait: others are let in, and nobody is refused."""
    files = GatedFiles()
    gate = files.gate("/ledgers/current/")
    settings = {**SMALL_CACHE, "maxPendingAddRequestsPerThread": "10", "numAddWorkerThreads": "1"}
    async with (
        ServedBookie(tmp_path, settings, files) as bookie,
        await RawClient.connect(bookie.port) as greedy,
        await RawClient.connect(bookie.port) as modest,
    ):
        gate.close()
        admission = bookie.server.admission
        greedy.send(*(v2_add(big(e)) for e in range(200)))
        (directory,) = bookie.side.storage.directories
        # Both halves are full: nobody is let in before the gate opens.
        await until(lambda: directory.write_cache_usage()[0] > 960 * KB and admission.parked_adds == 5)
        modest.send(v2_add(big(1000)), v2_add(big(1001)))
        await until(lambda: admission.parked_adds == 7)
        gate.open()
        assert set((await codes(greedy, 200)).values()) == {0}
        assert set((await codes(modest, 2)).values()) == {0}


async def test_a_client_that_reads_nothing_does_not_fill_the_memory(tmp_path: Path) -> None:
    """It is not read from any more: the answers under way are all that there is."""
    async with (
        ServedBookie(tmp_path) as bookie,
        await RawClient.connect(bookie.port) as lazy,
        await RawClient.connect(bookie.port) as other,
    ):
        body = entry(1, 0, bytes(64 * KB))
        assert v2_code(await lazy.ask(v2_add(body))) == 0
        lazy.reader._transport.pause_reading()  # type: ignore[attr-defined]
        lazy.send(*(v2_read(1, 0) for _ in range(20_000)))  # 1.2 GB of answers
        (wire,) = [c for c in bookie.server.clients.connections if c.stalled] or [None]
        while wire is None:
            await asyncio.sleep(0.005)
            (wire,) = [c for c in bookie.server.clients.connections if c.stalled] or [None]
        waiting = wire.answers.transport.get_write_buffer_size()
        assert waiting < 96 * KB * KB
        assert v2_code(await other.ask(v2_add(entry(2, 0)))) == 0
        lazy.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            assert v2_entry(await lazy.frame()) == body
