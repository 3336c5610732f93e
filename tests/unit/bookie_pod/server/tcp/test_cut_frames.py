"""Frames cut anywhere give the same answers, and a large one in small pieces costs no more than its length."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import (
    entry,
    v2_add,
    v2_batch,
    v2_code,
    v2_fence,
    v2_read,
    v3_add,
    v3_fence,
    v3_force,
    v3_poll,
    v3_read,
    v3_read_lac,
    v3_write_lac,
)
from tests.support.server_rig import ServerRig, answers

V2_TALK = [
    *(v2_add(entry(1, entry_id)) for entry_id in range(4)),
    v2_read(1, 2),
    v2_add(entry(2, 0, b"")),
    v2_batch(1, 0, 4),
    v2_add(entry(1, 4), flags=6),
    v2_read(9, 0),
    v2_fence(3),
    v2_add(entry(3, 0)),
]
V3_TALK = [
    *(v3_add(entry(1, entry_id), txn=entry_id) for entry_id in range(4)),
    v3_read(1, 2, txn=10),
    v3_add(entry(2, 0, b""), txn=11),
    v3_add(entry(1, 4), recovery=True, txn=12),
    v3_add(entry(1, 5), sync=False, txn=13),
    v3_read(9, 0, txn=14),
    v3_fence(3, txn=15),
    v3_add(entry(3, 0), txn=16),
    v3_write_lac(1, 3, txn=17),
    v3_read_lac(1, txn=18),
    v3_force(1, txn=19),
    v3_poll(1, 0, 1, txn=20),
]


async def talk(frames: list[bytes], cuts: list[int]) -> tuple[list[bytes], ServerRig]:
    """A conversation on a bookie of its own, cut at these positions; the answers, sorted."""
    rig = ServerRig()
    conn, transport = rig.connect()
    data = b"".join(frames)
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        conn.data_received(data[start:end])
        if start % 3 == 0:
            await asyncio.sleep(0)
    found = sorted(await answers(rig, transport, len(frames)))
    assert len(found) == len(frames)
    rig.close()
    return found, rig


@pytest.mark.parametrize("frames", [V2_TALK, V3_TALK], ids=["v2", "v3"])
@pytest.mark.parametrize("first", [1, 2, 3])
async def test_frames_cut_at_every_byte_position(frames: list[bytes], first: int) -> None:
    whole, _ = await talk(frames, [])
    size = sum(map(len, frames))
    for position in range(first, size, 3):
        found, _ = await talk(frames, [position])
        assert found == whole, position


@pytest.mark.parametrize("frames", [V2_TALK, V3_TALK], ids=["v2", "v3"])
async def test_byte_by_byte(frames: list[bytes]) -> None:
    whole, _ = await talk(frames, [])
    found, _ = await talk(frames, list(range(1, sum(map(len, frames)))))
    assert found == whole


@given(st.data())
def test_frames_cut_anywhere(data: st.DataObject) -> None:
    frames = data.draw(st.sampled_from([V2_TALK, V3_TALK]))
    size = sum(map(len, frames))
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=12)))

    async def both() -> None:
        whole, _ = await talk(frames, [])
        found, _ = await talk(frames, cuts)
        assert found == whole

    asyncio.run(both())


async def test_a_large_frame_in_small_pieces_costs_no_more_than_its_length(rig: ServerRig) -> None:
    """Joining what has come so far for each piece would copy 5 MB 40,000 times."""
    conn, transport = rig.connect()
    frame = v2_add(entry(1, 0, bytes(5 * 1024 * 1024 - 600)))
    began = time.process_time()
    for start in range(0, len(frame), 128):
        conn.data_received(frame[start : start + 128])
    spent = time.process_time() - began
    assert [v2_code(f) for f in await answers(rig, transport, 1)] == [0]
    assert len(rig.storage.cached(1, 0) or b"") == len(frame) - 28
    assert spent < 5  # about 0.05; copying would take minutes
