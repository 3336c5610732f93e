"""One connection: what came in one read stays in order, is one batch, and is answered in one write."""

from __future__ import annotations

import socket

import pytest

from bookie_pod.server.tcp.connection import Connection
from bookie_protocol.errors import EntryDamaged
from tests.support.frames import (
    KEY,
    NO_KEY,
    OTHER_KEY,
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
    v3_status,
    v3_write_lac,
)
from tests.support.production import production
from tests.support.server_rig import HeldJournal, PaperTransport, ServerRig, answers


async def test_adds_of_one_read_are_one_batch_and_their_answers_one_write(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(b"".join(v2_add(entry(1, entry_id)) for entry_id in range(100)))
    assert len(rig.journal.batches) == 1
    assert rig.journal.batches[0].entries == 100
    await rig.settle()
    assert transport.writes == []
    rig.journal.acknowledge()
    await rig.settle()
    assert len(transport.writes) == 1
    assert len(transport.frames) == 100


async def test_what_one_read_brings_is_answered_in_one_write_without_another_turn_of_the_loop(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(b"".join(v2_add(entry(1, entry_id)) for entry_id in range(10)))
    rig.journal.acknowledge()
    conn.data_received(v2_read(1, 5) + v2_read(1, 6) + v2_batch(1, 20, 1) + v2_read(1, 7))
    assert len(transport.writes) == 1
    await rig.settle()
    assert len(transport.frames) == 14


async def test_large_answers_leave_before_the_turn_ends() -> None:
    rig = ServerRig(production(write_buffer_high_water_mark_bytes=10_000, write_buffer_low_water_mark_bytes=5_000))
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0, bytes(4000))))
    rig.journal.acknowledge()
    for _ in range(8):
        conn.data_received(v2_read(1, 0))
    assert len(transport.writes) >= 2  # the loop has not turned yet
    await rig.settle()
    assert len(transport.frames) == 9
    rig.close()


@pytest.mark.parametrize(
    ("add", "special"),
    [
        (v2_add(entry(1, 0)), v2_fence(1)),
        (v3_add(entry(1, 0)), v3_fence(1)),
        (v3_add(entry(1, 0)), v3_write_lac(1, 0)),
        (v3_add(entry(1, 0)), v3_force(1)),
    ],
    ids=["v2 fence", "fence", "explicit LAC", "force"],
)
async def test_the_key_record_of_an_add_precedes_the_special_record_behind_it(
    rig: ServerRig, add: bytes, special: bytes
) -> None:
    """Replay skips the fence of a ledger whose key it has not met yet."""
    conn, transport = rig.connect()
    conn.data_received(add + special)
    kinds = [kind.name for kind, _ in rig.journal.records]
    assert kinds[:2] == ["KEY", "ENTRY"]
    assert not rig.journal.batches[-1].pieces or kinds[2:] in (["FENCE"], ["EXPLICIT_LAC"])
    await answers(rig, transport, 2)


async def test_deferred_and_synced_adds_of_one_read_are_apart(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(
        b"".join(v3_add(entry(1, entry_id), txn=entry_id, sync=entry_id % 2 == 0) for entry_id in range(4))
    )
    assert [(batch.sync, batch.entries) for batch in rig.journal.batches] == [(True, 1), (False, 1)] * 2
    conn.data_received(v3_add(entry(1, 4), sync=False, recovery=True))
    assert rig.journal.batches[-1].sync  # recovery adds ignore the flag
    await answers(rig, transport, 5)


async def test_an_add_without_a_key_does_not_pass_for_the_ledgers_owner(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)))
    for key in (NO_KEY, OTHER_KEY):
        conn.data_received(v2_add(entry(1, 1), key))
    codes = sorted(v2_code(frame) for frame in await answers(rig, transport, 3))
    assert codes == [0, 102, 102]
    assert rig.storage.cached(1, 1) is None


async def test_hot_adds_are_refused_after_a_fence_from_elsewhere(rig: ServerRig) -> None:
    writer, written = rig.connect()
    writer.data_received(v2_add(entry(1, 0)) + v2_add(entry(1, 1)))
    fencer, fenced = rig.connect()
    fencer.data_received(v2_fence(1))
    writer.data_received(v2_add(entry(1, 2)) + v2_add(entry(1, 3), flags=6))
    await rig.settle()
    assert fenced.frames == []  # not durable yet
    assert [v2_code(frame) for frame in written.frames] == [104]
    await answers(rig, written, 4)
    assert len(await answers(rig, fenced, 1)) == 1
    assert rig.storage.cached(1, 2) is None


async def test_a_batch_of_many_ledgers(rig: ServerRig) -> None:
    journals = [HeldJournal(), HeldJournal(), HeldJournal()]
    rig = ServerRig(journals=journals, directories=2)
    conn, transport = rig.connect()
    talk = [v2_add(entry(ledger_id, entry_id)) for entry_id in range(3) for ledger_id in range(12)]
    conn.data_received(b"".join(talk))
    conn.data_received(b"".join(v2_add(entry(ledger_id, 3)) for ledger_id in range(12)))
    for index, journal in enumerate(journals):
        assert {ledger_id % 3 for _, ledger_id in journal.records} == {index}
        assert len(journal.batches) == 2
        journal.acknowledge()
    await rig.settle()
    assert len(transport.frames) == 48
    assert rig.admission.adds_in_progress == 0
    for ledger_id in range(12):
        assert list(rig.storage.entry_ids(ledger_id)) == [0, 1, 2, 3]
    rig.close()


async def test_a_read_of_an_entry_does_not_depend_on_the_last_one(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer carries the LAC of the last entry; if that one is damaged, this one is served all the same."""
    rig.storage.set_master_key(1, KEY)
    rig.storage.active_entries(1)[3] = entry(1, 3)

    def damaged(ledger_id: int) -> int:
        raise EntryDamaged("bits have flipped")

    monkeypatch.setattr(rig.storage, "last_entry_id", damaged)
    conn, transport = rig.connect()
    conn.data_received(v3_read(1, 3))
    (frame,) = await answers(rig, transport, 1)
    assert v3_status(frame) == 0
    assert not rig.ledgers.states[1].lac_known


async def test_every_operation_is_observed_once(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        rig.context.metrics, "read_done", lambda kind, elapsed_ms, success: seen.append((kind, success)), raising=False
    )
    conn, transport = rig.connect()
    talk = [v3_add(entry(1, 0)), v3_write_lac(1, 0), v3_force(1), v3_read_lac(1), v3_read_lac(2), v3_fence(1)]
    conn.data_received(b"".join((*talk, v3_poll(1, 5, 1), v3_read(1, 9))))
    await answers(rig, transport, len(talk) + 2)
    assert sorted(seen) == [
        ("fence", True),
        ("force", True),
        ("long_poll", True),
        ("read", False),
        ("read_lac", False),
        ("read_lac", True),
        ("write_lac", True),
    ]


class WithSocket(PaperTransport):
    """Over a real socket, of which nothing is read."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock

    def get_extra_info(self, name: str) -> object:
        return self.sock if name == "socket" else super().get_extra_info(name)


@pytest.mark.parametrize("told", [True, False])
async def test_keep_alives_are_sent_as_told_or_as_the_system_has_it(told: bool) -> None:
    rig = ServerRig(
        production(tcp_keep_idle_seconds=70, tcp_keep_interval_seconds=11, tcp_keep_count=4) if told else production()
    )
    options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
    with socket.socket() as sock, socket.socket() as untouched:
        conn = Connection(rig.clients)
        conn.connection_made(WithSocket(sock))  # type: ignore[arg-type]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options]
        assert found == ([70, 11, 4] if told else [untouched.getsockopt(socket.IPPROTO_TCP, each) for each in options])
    rig.close()
