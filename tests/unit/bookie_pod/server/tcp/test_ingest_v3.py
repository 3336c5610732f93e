"""Runs of frames of one shape, and what looks like one: each add is stored and answered as if it came alone."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.keys import NO_LIFE, life_of
from tests.support.frames import KEY, entry, v3_add
from tests.support.server_rig import ServerRig

# Ids and transaction ids around the places where a varint grows by one byte, so that frames of equal length differ in
# shape; flags change the shape of equal fields.
_EDGES = st.sampled_from([0, 1, 127, 128, 129, 16_383, 16_384])
_ADDS = st.tuples(
    _EDGES, _EDGES, _EDGES, st.sampled_from([0, 1, 2, 127, 128]), st.sampled_from(["", "recovery", "late", "life"])
)


@pytest.fixture(autouse=True)
def no_shapes_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_protocol.wire.v3_hot._add_shapes", {})


async def _answers(chunks: list[bytes], count: int) -> tuple[list[bytes], dict[bytes, bytes]]:
    """The answers to `count` frames, and what went to the journal by its ids."""
    rig = ServerRig()
    conn, transport = rig.connect()
    try:
        for chunk in chunks:
            conn.data_received(chunk)
        async with asyncio.timeout(10):
            while len(transport.frames) < count:
                rig.journal.acknowledge()
                await rig.settle()
        records = [body for batch in rig.journal.batches for body in batch.pieces[1::2]]
        return sorted(transport.frames), {body[:16]: bytes(body) for body in records}
    finally:
        rig.close()


@given(adds=st.lists(_ADDS, min_size=2, max_size=24))
async def test_a_run_of_adds_is_handled_like_single_ones(adds: list[tuple[int, int, int, int, str]]) -> None:
    unique = {(ledger, entry_id): (txn, size, kind) for ledger, entry_id, txn, size, kind in adds}
    frames = [
        v3_add(
            entry(ledger, entry_id, bytes(size)),
            KEY,
            txn=txn,
            recovery=kind == "recovery",
            sync=kind != "late",
            life=life_of(5) if kind == "life" else NO_LIFE,
        )
        for (ledger, entry_id), (txn, size, kind) in unique.items()
    ]
    assert await _answers([b"".join(frames)], len(frames)) == await _answers(frames, len(frames))
