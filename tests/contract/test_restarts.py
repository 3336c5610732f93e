"""What is there after a crash or a clean stop, whatever is journaled, synced and spread over directories."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bookie_pod.metrics.registry import Registry
from bookie_pod.node.garbage_collection import make_collection
from bookie_pod.storage.gc.fenced_deleted import NAME
from bookie_protocol.wire.v2 import Flag
from tests.support.frames import (
    LAST,
    NO_KEY,
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
    v3_poll,
    v3_read,
    v3_read_lac,
    v3_status,
    v3_write_lac,
)
from tests.support.gc_rig import DictatedMetadata
from tests.support.served_bookie import RawClient, ServedBookie
from tests.support.stored_disks import ENGINES

LEDGERS = range(1, 9)


def layouts(work: Path) -> dict[str, dict[str, str]]:
    def several(name: str, count: int) -> str:
        return ",".join(str(work / f"{name}{number}") for number in range(count))

    return {
        "one disk": {},
        "two journals": {"journalDirectories": several("j", 2)},
        "three ledger disks": {"ledgerDirectories": several("l", 3)},
        "many": {
            "journalDirectories": several("j", 3),
            "ledgerDirectories": several("l", 2),
            "indexDirectories": several("i", 2),
        },
        "no sync": {"journalSyncData": "false"},
        "format 5": {"journalFormatVersionToWrite": "5", "fileInfoFormatVersionToWrite": "0"},
    }


async def write_everything(bookie: ServedBookie) -> None:
    """Entries, fences, explicit LACs and a recovery add, everything acknowledged."""
    async with await RawClient.connect(bookie.port) as client:
        for ledger_id in LEDGERS:
            client.send(*(v3_add(entry(ledger_id, e), txn=e) for e in range(20)))
            for _ in range(20):
                assert v3_status(await client.frame()) == 0
        for ledger_id in (2, 3, 4):
            assert v3_status(await client.ask(v3_fence(ledger_id))) == 0
        assert v3_status(await client.ask(v3_add(entry(2, 20), recovery=True))) == 0
        for ledger_id in (4, 5):
            for lac in (30, 25):
                assert v3_status(await client.ask(v3_write_lac(ledger_id, lac))) == 0
        assert v3_status(await client.ask(v3_write_lac(100, 7))) == 0  # a ledger without entries


async def check_everything(bookie: ServedBookie, *, explicit_lacs: bool = True) -> None:
    async with await RawClient.connect(bookie.port) as client:
        for ledger_id in LEDGERS:
            count = 21 if ledger_id == 2 else 20
            assert v2_entries(await client.ask(v2_batch(ledger_id, 0))) == [entry(ledger_id, e) for e in range(count)]
            assert v2_entry(await client.ask(v2_read(ledger_id, LAST))) == entry(ledger_id, count - 1)
            assert v2_code(await client.ask(v2_read(ledger_id, count))) == 2
            code = v2_code(await client.ask(v2_add(entry(ledger_id, 0))))
            assert code == (104 if ledger_id in (2, 3, 4) else 0)
            assert v2_code(await client.ask(v2_add(entry(ledger_id, 0), NO_KEY))) == 102
        assert v2_code(await client.ask(v2_read(77, 0))) == 1
    async with await RawClient.connect(bookie.port) as client:
        for ledger_id, lac in ((4, 25), (5, 25), (100, 7)):
            answer = v3_answer(await client.ask(v3_read_lac(ledger_id)))
            if explicit_lacs:
                assert answer.readLacResponse.lacBody == lac_packet(ledger_id, lac)
            else:
                assert not answer.readLacResponse.HasField("lacBody")


@pytest.mark.parametrize("layout", ["one disk", "two journals", "three ledger disks", "many", "no sync", "format 5"])
@pytest.mark.parametrize("how", ["crash", "crash after a checkpoint", "clean stop"])
async def test_everything_acknowledged_is_there(tmp_path: Path, layout: str, how: str) -> None:
    bookie = ServedBookie(tmp_path, layouts(tmp_path)[layout])
    await bookie.start()
    await write_everything(bookie)
    if how == "crash after a checkpoint":
        await bookie.checkpoint()
    await (bookie.stop() if how == "clean stop" else bookie.crash())
    # Journals of format 5 hold no explicit LACs; the ledger index does, once it was flushed.
    explicit_lacs = layout != "format 5" or how != "crash"
    for _ in range(2):
        await bookie.start()
        await check_everything(bookie, explicit_lacs=explicit_lacs)
        await bookie.crash()
    assert bookie.failures == []


async def test_an_acknowledged_entry_of_a_ledger_without_a_key_survives(tmp_path: Path) -> None:
    bookie = ServedBookie(tmp_path)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_code(await client.ask(v2_add(entry(1, 0), NO_KEY))) == 0
    async with await RawClient.connect(bookie.port) as client:
        assert v3_status(await client.ask(v3_add(entry(2, 0), b""))) == 0
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        for ledger_id in (1, 2):
            assert v2_entry(await client.ask(v2_read(ledger_id, 0))) == entry(ledger_id, 0)
            assert v2_code(await client.ask(v2_add(entry(ledger_id, 1)))) == 102
            assert v2_code(await client.ask(v2_add(entry(ledger_id, 2), NO_KEY))) == 0
    await bookie.stop()


async def test_without_journaled_data(tmp_path: Path) -> None:
    """Adds are answered from memory: a crash loses entries, never a key or a fence; a clean stop loses nothing."""
    bookie = ServedBookie(tmp_path, {"journalWriteData": "false"})
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        client.send(*(v2_add(entry(ledger_id, 0)) for ledger_id in range(1, 50)))
        for _ in range(1, 50):
            assert v2_code(await client.frame()) == 0
        assert v2_code(await client.ask(v2_fence(1))) == 0
    await bookie.stop()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        for ledger_id in range(1, 50):
            assert v2_entry(await client.ask(v2_read(ledger_id, 0))) == entry(ledger_id, 0)
        assert v2_code(await client.ask(v2_add(entry(1, 1)))) == 104
        assert v2_code(await client.ask(v2_add(entry(60, 0)))) == 0
        assert v2_code(await client.ask(v2_fence(60))) == 0
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_code(await client.ask(v2_read(60, 0))) == 2  # known, and not held
        assert v2_code(await client.ask(v2_add(entry(60, 0)))) == 104
    await bookie.stop()


async def test_the_known_lac_after_a_restart(tmp_path: Path) -> None:
    bookie = ServedBookie(tmp_path)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        for e in range(10):
            assert v3_status(await client.ask(v3_add(entry(1, e)))) == 0
        assert v3_status(await client.ask(v3_write_lac(1, 3))) == 0
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v3_answer(await client.ask(v3_poll(1, 5))).readResponse.maxLAC == 8
        assert v3_answer(await client.ask(v3_read(1, 0))).readResponse.maxLAC == 8
    await bookie.stop()


async def test_a_deleted_ledger_does_not_come_back(tmp_path: Path) -> None:
    bookie = ServedBookie(tmp_path)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_code(await client.ask(v2_add(entry(1, 0)))) == 0
        await bookie.checkpoint()
        bookie.side.storage.delete_ledger(1)
        assert v2_code(await client.ask(v2_read(1, 0))) == 1
        assert v2_code(await client.ask(v2_add(entry(1, 1)))) == 0  # made anew, with its new entries only
        assert v2_code(await client.ask(v2_read(1, 0))) == 2
        await bookie.checkpoint()
        assert v2_entries(await client.ask(v2_batch(1, 1))) == [entry(1, 1)]
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_entry(await client.ask(v2_read(1, 1))) == entry(1, 1)
        assert v2_code(await client.ask(v2_read(1, 0))) == 2
    await bookie.stop()


AT_ONCE = {"gcDeletionGracePeriod": "0"}  # one pass of garbage collection is to delete


async def collect(bookie: ServedBookie, alive: int) -> None:
    """A pass of garbage collection, of which the metadata service knows one ledger."""
    collection = make_collection(
        bookie.config,
        bookie.files,
        bookie.side.storage,
        DictatedMetadata({alive: None}),
        Registry(),
        lambda: False,
        bookie.server.context.operations.ledgers.fenced_and_deleted,
    )
    for collector in collection.collectors:
        assert (await asyncio.to_thread(collector.run_pass)).errors == []


@pytest.mark.parametrize("how", ["crash", "clean stop"])
@pytest.mark.parametrize("engine", list(ENGINES))
async def test_the_writer_of_a_fenced_and_collected_ledger_is_refused(tmp_path: Path, engine: str, how: str) -> None:
    """For it the ledger is still open: an acknowledgement would promise what nobody will ever read."""
    folders = f"{tmp_path}/l0,{tmp_path}/l1"
    settings = {"ledgerStorageClass": ENGINES[engine], "ledgerDirectories": folders}
    bookie = ServedBookie(tmp_path, settings | AT_ONCE)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        for ledger_id in range(1, 6):
            assert v2_code(await client.ask(v2_add(entry(ledger_id, 0)))) == 0
        for ledger_id in (1, 2):
            assert v2_code(await client.ask(v2_fence(ledger_id))) == 0
    await collect(bookie, alive=5)
    for begins in range(3):
        await (bookie.stop() if how == "clean stop" else bookie.crash())
        await bookie.start()
        async with await RawClient.connect(bookie.port) as client:
            for ledger_id in (1, 2):
                assert v2_code(await client.ask(v2_add(entry(ledger_id, 1)))) == 104
            assert v2_code(await client.ask(v2_add(entry(3 + begins, 1)))) == 0  # those were not fenced
            if begins:  # from here on it is there, fenced, as healing made it
                assert v2_code(await client.ask(v2_add(entry(1, 0), flags=Flag.RECOVERY_ADD))) == 0
    await bookie.crash()


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
async def test_without_what_is_remembered_of_fenced_ledgers_a_bookie_starts(tmp_path: Path, damage: str) -> None:
    bookie = ServedBookie(tmp_path, AT_ONCE)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        for ledger_id in (1, 2):
            assert v2_code(await client.ask(v2_add(entry(ledger_id, 0)))) == 0
        assert v2_code(await client.ask(v2_fence(1))) == 0
    await collect(bookie, alive=2)
    await bookie.stop()
    path = tmp_path / "ledgers/current" / NAME
    data = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(data[:-1])
        case _:
            path.write_bytes(data[:12] + bytes([data[12] ^ 1]) + data[13:])
    with capture_logs() as logs:
        await bookie.start()
    told = [line for line in logs if line.get("path") == str(path)]
    assert len(told) == (damage != "missing")
    async with await RawClient.connect(bookie.port) as client:
        assert v2_entry(await client.ask(v2_read(2, 0))) == entry(2, 0)
        assert v2_code(await client.ask(v2_add(entry(1, 1)))) == 0
    await bookie.crash()
