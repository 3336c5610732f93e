"""The adds of one piece of a copy: to whom they go, whose answers are waited for, and what ends them."""

from __future__ import annotations

import asyncio
from itertools import count
from types import SimpleNamespace

import pytest

from bookie_client.replication import copying
from bookie_client.replication.copying import BUSY_TRIES, CopyAdds, TargetFailed
from bookie_protocol.errors import StorageFault, TooManyRequests

ENTRIES = [(10, b"ten"), (11, b"eleven"), (12, b"twelve")]


class Channel:
    """Notes what it is to send."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.sent: list[bytes] = []
        self.adds: list = []

    def send_adds(self, frames, adds):
        self.sent.append(bytes(frames))
        self.adds += adds

    def send_add(self, frame, key, add):
        self.sent.append(bytes(frame))


def encode(txn_id, entry_id, entry):
    return txn_id, b"%d=%b;" % (entry_id, entry)


def piece(monkeypatch):
    monkeypatch.setattr(copying, "BUSY_SECONDS", 0.0)
    channels = {0: Channel("a"), 2: Channel("b")}
    return SimpleNamespace(adds=CopyAdds(7, channels), a=channels[0], b=channels[2])


async def storing(made, needs=None):
    task = asyncio.ensure_future(made.adds.store(ENTRIES, encode, count(1), needs))
    await asyncio.sleep(0)
    return task


async def test_it_is_stored_when_every_target_has_acknowledged_everything(monkeypatch):
    made = piece(monkeypatch)
    task = await storing(made)
    assert made.a.sent == made.b.sent == [b"10=ten;11=eleven;12=twelve;"]
    assert [(add.entry_id, add.key) for add in made.a.adds] == [(10, 1), (11, 2), (12, 3)]
    for number, add in enumerate([*made.a.adds, *made.b.adds]):
        assert not task.done()
        assert add.is_wanted
        if number % 2:
            add.acknowledged("a")
        else:
            add.accepted("a", None)
        await asyncio.sleep(0)
    assert await task == 6
    assert (made.adds.is_over, made.a.adds[0].is_wanted) == (True, False)
    made.adds.refused("b", made.b.adds[0], StorageFault("later"))
    made.adds.acknowledged()
    made.adds.close()


async def test_each_target_gets_what_it_needs(monkeypatch):
    made = piece(monkeypatch)
    task = await storing(made, lambda position, entry_id: entry_id == 11 if position == 2 else entry_id < 12)
    assert (made.a.sent, made.b.sent) == ([b"10=ten;11=eleven;"], [b"11=eleven;"])
    for add in [*made.a.adds, *made.b.adds]:
        add.acknowledged("a")
    assert await task == 3
    nobody = piece(monkeypatch)
    assert await nobody.adds.store(ENTRIES, encode, count(1), lambda *_: False) == 0
    assert (nobody.a.sent, nobody.b.sent) == ([], [])
    nobody.adds.close()


async def test_who_is_too_busy_gets_an_entry_again_so_many_times(monkeypatch):
    made = piece(monkeypatch)
    task = await storing(made)
    busy, other = made.a.adds[1], made.b.adds[1]
    for number in range(BUSY_TRIES):
        made.adds.refused("a", busy, TooManyRequests("busy"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert made.a.sent[1:] == [b"11=eleven;"] * (number + 1)
    made.adds.refused("b", other, TooManyRequests("busy"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert made.b.sent[1:] == [b"11=eleven;"], "each target has tries of its own"
    assert not task.done()
    made.adds.refused("a", busy, TooManyRequests("busy"))
    await asyncio.sleep(0)
    assert task.done()
    with pytest.raises(TargetFailed) as failed:
        await task
    assert (failed.value.bookie, type(failed.value.error)) == ("a", TooManyRequests)


@pytest.mark.parametrize("end", ["refused", "closed"])
async def test_nothing_is_sent_again_once_it_is_over(monkeypatch, end):
    made = piece(monkeypatch)
    task = await storing(made)
    made.adds.refused("a", made.a.adds[0], TooManyRequests("busy"))
    if end == "refused":
        made.adds.refused("b", made.b.adds[0], StorageFault("full"))
        with pytest.raises(TargetFailed, match="full"):
            await task
    else:
        made.adds.close()
        await asyncio.wait([task])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(made.a.sent) == 1
