"""Batch reads with a step: every so many-th entry, as bookies hold them of a striped ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import V2Code
from bookie_protocol.wire import v2
from bookie_protocol.wire.v2 import Flag
from tests.support.frames import entry, v2_add
from tests.support.server_rig import ServerRig

IDS = st.sets(st.integers(0, 60))


def ask(first: int, count: int, step: int, *, size: int = 1 << 20, flags: int = Flag.NONE) -> bytes:
    return v2.encode_batch_read_request(1, first, 5, count, size, flags, step=step)


async def holding(on_disk: set[int], in_memory: set[int]) -> ServerRig:
    rig = ServerRig()
    conn, _ = rig.connect()
    for ids in (on_disk, in_memory):
        conn.data_received(b"".join(v2_add(entry(1, each)) for each in sorted(ids)))
        rig.journal.acknowledge()
        await rig.settle()
        if ids is on_disk:
            rig.storage.flush()
    return rig


async def answered(rig: ServerRig, request: bytes) -> v2.BatchReadResponse:
    conn, transport = rig.connect()
    conn.data_received(request)
    await rig.settle()
    (frame,) = transport.frames
    response = v2.decode_response(frame[4:])
    assert isinstance(response, v2.BatchReadResponse)
    return response


@given(
    IDS, IDS, st.integers(0, 60), st.integers(0, 20), st.integers(2, 7), st.sampled_from([Flag.NONE, Flag.BATCH_CLASS])
)
def test_it_brings_what_is_there_of_every_so_many_th_up_to_the_first_that_is_not(
    on_disk: set[int], in_memory: set[int], first: int, count: int, step: int, flags: Flag
) -> None:
    async def run() -> v2.BatchReadResponse:
        rig = await holding({*on_disk, 99}, in_memory)
        try:
            return await answered(rig, ask(first, count, step, flags=flags))
        finally:
            rig.close()

    held, expected = {*on_disk, *in_memory}, []
    while (each := first + len(expected) * step) in held and (len(expected) < count or count == 0):
        expected.append(entry(1, each))
    response = asyncio.run(run())
    assert response.entries.split() == expected
    assert (response.code, response.entry_id) == (V2Code.EOK if expected else V2Code.ENOENTRY, first)
    assert response.entries.stepped == bool(expected)


@pytest.mark.parametrize("flags", [Flag.NONE, Flag.BATCH_CLASS])
async def test_behind_a_gap_nothing_is_brought(flags: Flag) -> None:
    rig = await holding({0, 3, 9, 12, 99}, set())
    response = await answered(rig, ask(0, 0, 3, flags=flags))
    assert response.entries.split() == [entry(1, 0), entry(1, 3)]
    rig.close()


async def test_its_answer_is_no_larger_than_asked_for_and_has_an_entry_at_least() -> None:
    rig = await holding(set(range(0, 300, 3)), set())
    size = len(entry(1, 0)) + 4
    assert len((await answered(rig, ask(0, 0, 3, size=36 + 40 * size))).entries.split()) == 40
    assert len((await answered(rig, ask(0, 0, 3, size=1))).entries.split()) == 1
    rig.close()


@pytest.mark.parametrize(("first", "step"), [(0, 0), (0, -1), (-1, 2), (-5, 2)])
async def test_what_is_no_step_is_refused(first: int, step: int) -> None:
    rig = await holding({0, 1}, set())
    assert (await answered(rig, ask(first, 2, step))).code == V2Code.EBADREQ
    rig.close()


async def test_steps_beyond_all_ids_bring_the_first() -> None:
    rig = await holding({0, 1}, {2})
    for first in (0, 2):
        assert (await answered(rig, ask(first, 0, 2**31 - 1))).entries.split() == [entry(1, first)]
    rig.close()


async def test_an_answer_without_a_step_does_not_claim_one() -> None:
    rig = await holding({0, 1}, set())
    response = await answered(rig, ask(0, 2, 1))
    assert (response.entries.stepped, len(response.entries.split())) == (False, 2)
    rig.close()


@pytest.mark.parametrize("flags", [Flag.NONE, Flag.BATCH_CLASS])
async def test_no_more_is_read_than_its_answer_has_room_for(flags: Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the first entry is much smaller than those behind it."""
    rig = ServerRig(read_cache_bytes=0)
    conn, _ = rig.connect()
    stored = [entry(1, each, bytes(1000 if each else 0)) for each in range(0, 60, 2)]
    conn.data_received(b"".join(map(v2_add, stored)))
    rig.journal.acknowledge()
    rig.storage.flush()
    read_each, read = rig.storage.read_each, list[int]()

    def counted(ledger_id: int, entry_ids: Sequence[int], **how: bool) -> Iterator[bytes | Exception]:
        for entry_id, found in zip(entry_ids, read_each(ledger_id, entry_ids, **how), strict=True):
            read.append(entry_id)
            yield found

    monkeypatch.setattr(rig.storage, "read_each", counted)
    response = await answered(rig, ask(0, 0, 2, size=3300, flags=flags))
    assert response.entries.split() == stored[:4]
    assert len([each for each in read if each]) <= 5
    rig.close()
