"""How many entries one batch read brings, and which reads need no lane."""

from __future__ import annotations

import pytest

from bookie_protocol.errors import EntryDamaged, LedgerStateUnknown, V2Code
from bookie_protocol.wire import v2
from bookie_protocol.wire.v2 import Flag
from tests.support.frames import KEY, NO_KEY, entry, v2_add, v2_batch, v2_code, v2_entries, v2_fence, v2_read, v3_add
from tests.support.production import production
from tests.support.server_rig import ServerRig, answers

PAYLOADS = [0, 0, 100, 0]
"""With 32 bytes of header, and 4 of length in an answer that has 36 itself: 72, 108, 244 and 280 bytes."""


async def written(rig: ServerRig, payloads: list[int], *, on_disk: bool = False) -> list[bytes]:
    stored = [entry(1, each, bytes(size)) for each, size in enumerate(payloads)]
    conn, transport = rig.connect()
    conn.data_received(b"".join(map(v2_add, stored)))
    await answers(rig, transport, len(stored))
    if on_disk:
        rig.storage.flush()
    return stored


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
@pytest.mark.parametrize(
    ("count", "size", "brings"),
    [
        (0, 1, 1),
        (0, 72, 1),
        (0, 107, 1),
        (0, 108, 2),
        (0, 243, 2),
        (0, 244, 3),
        (0, 279, 3),
        (0, 280, 4),
        (-1, 280, 4),
        (2, 280, 2),
        (9, 1000, 4),
    ],
)
async def test_a_batch_brings_what_fits_and_one_entry_at_least(
    count: int, size: int, brings: int, on_disk: bool
) -> None:
    rig = ServerRig(read_cache_bytes=0)
    stored = await written(rig, PAYLOADS, on_disk=on_disk)
    conn, transport = rig.connect()
    conn.data_received(v2_batch(1, 0, count, size))
    await rig.settle(lambda: transport.frames)
    assert v2_entries(transport.frames[0]) == stored[:brings]
    assert rig.context.reads_in_progress.count == 0
    rig.close()


async def test_no_batch_is_larger_than_the_bookie_allows() -> None:
    rig = ServerRig(production(max_batch_read_size_bytes=108))
    stored = await written(rig, PAYLOADS)
    conn, transport = rig.connect()
    conn.data_received(v2_batch(1, 0, 0, 1 << 20))
    await rig.settle(lambda: transport.frames)
    assert v2_entries(transport.frames[0]) == stored[:2]
    rig.close()


async def test_no_entry_is_looked_for_behind_the_last_id_there_is(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await written(rig, [0] * 4)
    monkeypatch.setattr(rig.storage, "max_entry_id", 2)
    conn, transport = rig.connect()
    conn.data_received(v2_batch(1, 0) + v2_batch(1, 2))
    await rig.settle(lambda: len(transport.frames) == 2)
    assert [v2_entries(frame) for frame in transport.frames] == [stored[:3], stored[2:3]]


@pytest.mark.parametrize(
    ("error", "code"), [(EntryDamaged("bits have flipped"), V2Code.EIO), (LedgerStateUnknown("limbo"), V2Code.EIO)]
)
async def test_a_batch_ends_in_front_of_what_cannot_be_read(error: Exception, code: V2Code) -> None:
    """And says so only of its first entry."""
    rig = ServerRig(read_cache_bytes=0)
    stored = await written(rig, [0] * 4, on_disk=True)
    read = rig.storage.read

    def damaged(ledger_id: int, entry_id: int) -> bytes:
        if entry_id == 2:
            raise error
        return read(ledger_id, entry_id)

    rig.storage.read = damaged  # type: ignore[method-assign]
    conn, transport = rig.connect()
    conn.data_received(v2_batch(1, 0) + v2_batch(1, 2))
    await rig.settle(lambda: len(transport.frames) == 2)
    assert v2_entries(transport.frames[0]) == stored[:2]
    assert v2_code(transport.frames[1]) == code
    rig.close()


@pytest.mark.parametrize(
    ("frame", "at_once"),
    [
        (v2_read(1, 1, Flag.HIGH_PRIORITY), True),
        (v2_read(1, -1, Flag.HIGH_PRIORITY), False),
        (v2_read(1, 9, Flag.HIGH_PRIORITY), False),
        (v2_read(1, 1, Flag.BATCH_CLASS), False),
    ],
    ids=["in memory", "the last one", "not there", "of a job"],
)
async def test_what_memory_has_is_answered_without_a_lane(rig: ServerRig, frame: bytes, at_once: bool) -> None:
    await written(rig, [0] * 3)
    conn, transport = rig.connect()
    conn.data_received(frame)
    assert len(transport.frames) == at_once
    await rig.settle(lambda: transport.frames)
    pace = rig.reads.batch_pace
    assert (pace.entries, pace.nbytes) == ((1, 32) if frame == v2_read(1, 1, Flag.BATCH_CLASS) else (0, 0))


@pytest.mark.parametrize("frame", [v2_fence(1, 0, NO_KEY), v2_fence(1, 0, b"x" * 20)])
async def test_a_fence_with_a_wrong_password_reads_nothing(rig: ServerRig, frame: bytes) -> None:
    await written(rig, [0])
    conn, transport = rig.connect()
    conn.data_received(frame)
    assert [v2_code(each) for each in transport.frames] == [V2Code.EUA]
    assert not rig.ledgers.states[1].fenced
    assert (rig.context.reads_in_progress.count, rig.lanes.pending) == (0, 0)
    conn.data_received(v2_add(entry(1, 1)))
    assert [v2_code(each) for each in await answers(rig, transport, 2)] == [V2Code.EUA, V2Code.EOK]


async def test_a_fence_that_cannot_be_made_durable_is_no_fence_for_its_client(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(1, 0)))
    await answers(rig, transport, 1)
    other, told = rig.connect()
    other.data_received(v2_fence(1, 0))
    durable = rig.ledgers.states[1].fence_durable
    assert durable is not None
    durable.cancel()
    await rig.settle(lambda: told.frames)
    assert [v2_code(each) for each in told.frames] == [V2Code.EIO]
    assert rig.ledgers.states[1].fenced


async def test_a_fencing_batch_is_answered_once_and_when_its_fence_is_durable(rig: ServerRig) -> None:
    stored = await written(rig, [0] * 3)
    conn, transport = rig.connect()
    conn.data_received(v2.encode_batch_read_request(1, 1, 5, 0, 1000, Flag.DO_FENCING, KEY))
    await rig.settle()
    assert transport.frames == []
    assert rig.ledgers.states[1].fenced
    rig.journal.acknowledge()
    await rig.settle(lambda: transport.frames)
    await rig.settle()
    assert [v2_entries(frame) for frame in transport.frames] == [stored[1:]]
    assert (rig.context.reads_in_progress.count, rig.context.requests.count) == (0, 0)
