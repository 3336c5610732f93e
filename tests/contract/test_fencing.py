"""Fencing: after it is acknowledged nothing that an ordinary writer sees acknowledged is out of recovery's sight."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.frames import (
    KEY,
    NO_KEY,
    OTHER_KEY,
    entry,
    v2_add,
    v2_code,
    v2_entry,
    v2_fence,
    v2_read,
    v3_add,
    v3_answer,
    v3_fence,
    v3_status,
)
from tests.support.gated_files import GatedFiles
from tests.support.served_bookie import RawClient, ServedBookie

EFENCED_V2, EFENCED_V3 = 104, 504


class Writer:
    """Adds entries of one ledger, pipelined, until it is fenced."""

    def __init__(self, client: RawClient, ledger_id: int, first: int, step: int, version: int) -> None:
        self.client = client
        self.ledger_id = ledger_id
        self.next = first
        self.step = step
        self.version = version
        self.acknowledged: set[int] = set()
        self.fenced: set[int] = set()
        self.sent = 0

    def send(self, count: int) -> None:
        ids = range(self.next, self.next + count * self.step, self.step)
        self.next += count * self.step
        self.sent += count
        make = v2_add if self.version == 2 else v3_add
        self.client.send(*(make(entry(self.ledger_id, entry_id)) for entry_id in ids))

    async def answer(self) -> None:
        frame = await self.client.frame()
        if self.version == 2:
            code, entry_id = v2_code(frame), struct.unpack_from(">q", frame, 20)[0]
        else:
            response = v3_answer(frame)
            code, entry_id = response.status, response.addResponse.entryId
        if code == 0:
            self.acknowledged.add(entry_id)
        else:
            assert code in (EFENCED_V2, EFENCED_V3), code
            self.fenced.add(entry_id)

    async def all_answers(self) -> None:
        while len(self.acknowledged) + len(self.fenced) < self.sent:
            await self.answer()


async def stored(client: RawClient, ledger_id: int, entry_ids: Iterable[int]) -> set[int]:
    """Those of the entries that are there."""
    asked, found = list(entry_ids), set()
    client.send(*(v2_read(ledger_id, entry_id) for entry_id in asked))
    for _ in asked:
        frame = await client.frame()
        if v2_code(frame) != 2:
            entry_id = struct.unpack_from(">q", frame, 20)[0]
            assert v2_entry(frame) == entry(ledger_id, entry_id)
            found.add(entry_id)
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_against_adds_in_flight(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    journals = ",".join(str(tmp_path / f"journal{n}") for n in range(1 + seed % 2))
    async with ServedBookie(tmp_path, {"journalDirectories": journals}) as bookie:
        writers = [
            Writer(await RawClient.connect(bookie.port), 7, index, 4, version=2 + index % 2) for index in range(4)
        ]
        fencer = await RawClient.connect(bookie.port)
        for writer in writers:
            writer.send(rng.randrange(1, 40))
        await writers[0].answer()
        for writer in rng.sample(writers, 4):
            writer.send(rng.randrange(80))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() / 500)
        fencer.send(v2_fence(7))
        for writer in writers:
            writer.send(rng.randrange(50))
        last = struct.unpack_from(">q", v2_entry(await fencer.frame()), 8)[0]
        behind = [set(range(writer.next, writer.next + 20 * 4, 4)) for writer in writers]
        for writer in writers:
            writer.send(20)  # sent after the fence was acknowledged
        # What recovery sees from now on has to be all that any writer ever sees acknowledged.
        seen = await stored(fencer, 7, range(last + 1))
        for writer, late in zip(writers, behind, strict=True):
            await writer.all_answers()
            assert writer.acknowledged <= seen
            assert late <= writer.fenced
        assert sum(len(writer.acknowledged) for writer in writers)
        for client in (fencer, *(writer.client for writer in writers)):
            await client.close()
        await bookie.crash()
        await bookie.start()
        async with await RawClient.connect(bookie.port) as client:
            for writer in writers:
                assert await stored(client, 7, writer.acknowledged) == writer.acknowledged
            assert v2_code(await client.ask(v2_add(entry(7, 10_000)))) == EFENCED_V2


async def test_an_unknown_ledger_is_fenced_for_ever(tmp_path: Path) -> None:
    bookie = ServedBookie(tmp_path)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_code(await client.ask(v2_fence(5))) == 2
        assert v2_code(await client.ask(v2_add(entry(5, 0)))) == EFENCED_V2
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_code(await client.ask(v2_add(entry(5, 0)))) == EFENCED_V2
        assert v2_code(await client.ask(v2_add(entry(5, 0), flags=6))) == 0
    await bookie.checkpoint()
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_code(await client.ask(v2_add(entry(5, 1)))) == EFENCED_V2
        assert v2_entry(await client.ask(v2_read(5, 0))) == entry(5, 0)
    await bookie.stop()


@pytest.mark.parametrize("version", [2, 3])
async def test_add_and_fence_in_one_segment_survive_a_crash(tmp_path: Path, version: int) -> None:
    """The key record of the add has to be in the journal before the fence record, or replay skips the fence."""
    bookie = ServedBookie(tmp_path)
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        if version == 2:
            client.send(v2_add(entry(5, 0)) + v2_fence(5))
            codes = [v2_code(await client.frame()) for _ in range(2)]
        else:
            client.send(v3_add(entry(5, 0), txn=1) + v3_fence(5, txn=2))
            codes = [v3_status(await client.frame()) for _ in range(2)]
        assert codes == [0, 0]
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        assert v2_code(await client.ask(v2_add(entry(5, 1)))) == EFENCED_V2
        assert v2_entry(await client.ask(v2_read(5, 0))) == entry(5, 0)
    await bookie.stop()


async def test_keys(tmp_path: Path) -> None:
    bookie = ServedBookie(tmp_path)
    await bookie.start()
    for _ in range(2):
        async with await RawClient.connect(bookie.port) as client:
            assert v2_code(await client.ask(v2_add(entry(5, 0)))) == 0
            for wrong in (OTHER_KEY, NO_KEY):
                assert v2_code(await client.ask(v2_add(entry(5, 1), wrong))) == 102
                assert v2_code(await client.ask(v2_fence(5, key=wrong))) == 102
        async with await RawClient.connect(bookie.port) as client:
            assert v3_status(await client.ask(v3_fence(5, key=b""))) == 502
            assert v3_status(await client.ask(v3_add(entry(5, 1), b""))) == 502
            assert v3_status(await client.ask(v3_add(entry(5, 1)))) == 0
        # Again after a restart: the key is known from the journal then.
        await bookie.crash()
        await bookie.start()
    await bookie.stop()


async def test_reads_of_a_fence_wait_for_it(tmp_path: Path) -> None:
    """Also where the read fails: the reference answers those before the fence is durable."""
    files = GatedFiles()
    gate = files.gate("/journal/")
    async with ServedBookie(tmp_path, files=files) as bookie, await RawClient.connect(bookie.port) as client:
        assert v2_code(await client.ask(v2_add(entry(5, 0)))) == 0
        gate.close()
        client.send(v2_fence(5, 0) + v2_fence(5, 99))
        await asyncio.to_thread(gate.reached)
        assert v2_code(await client.ask(v2_read(5, 0))) == 0  # lanes and loop have passed the fencing reads by now
        gate.open()
        codes = sorted([v2_code(await client.frame()), v2_code(await client.frame())])
        assert codes == [0, 2]


async def test_master_key_of_recovery(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie, await RawClient.connect(bookie.port) as client:
        assert v3_status(await client.ask(v3_add(entry(5, 0)))) == 0
        assert v3_status(await client.ask(v3_fence(5, key=KEY))) == 0
        assert v3_status(await client.ask(v3_add(entry(5, 1)))) == EFENCED_V3
        assert v3_status(await client.ask(v3_add(entry(5, 1), recovery=True, priority=True))) == 0
        assert v3_status(await client.ask(v3_add(entry(5, 2), OTHER_KEY, recovery=True))) == 502
