"""Ledgers that are older than the bookie and unknown to it, and ledgers that are named by their life: the metadata
service is asked before the first entry."""

from __future__ import annotations

import asyncio
import gc

import pytest

from bookie_pod.server.tcp import metadata_questions
from bookie_pod.server.tcp.metadata_questions import MetadataQuestions
from bookie_pod.storage.index.ledger_data import MAX_KEY_BYTES
from bookie_protocol.errors import MetadataUnavailable, V2Code, V3Status
from bookie_protocol.keys import NO_LIFE, creation_token_of, life_of
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.wire.v2 import Flag
from tests.support.frames import KEY, entry, v2_add, v2_code, v2_fence, v3_add, v3_status, v3_write_lac
from tests.support.server_rig import ServerRig, answers
from tests.support.until import until

NEWEST = 100
YOUNGER = NEWEST + 1
FORMER, NOW = life_of(1), life_of(2)
RECOVERY = int(Flag.RECOVERY_ADD)


class Metadata:
    """What the metadata service says of each ledger, when it is let."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.closed: set[int] = set()
        self.life = NOW
        """Of all ledgers."""
        self.down = False
        self.asked: list[int] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def look(self, ledger_id: int) -> LedgerMetadata | None:
        self.asked.append(ledger_id)
        await self.answers.wait()
        if self.down:
            raise MetadataUnavailable("nobody answers")
        metadata = LedgerMetadata(ledger_id, 1, 1, 1, {0: ("b1",)}, creation_token=creation_token_of(self.life))
        if ledger_id in self.open:
            return metadata
        return metadata.closed(9, 90) if ledger_id in self.closed else None


@pytest.fixture
async def metadata(rig: ServerRig) -> Metadata:
    made = Metadata()
    rig.context.questions = MetadataQuestions(rig.ledgers, NEWEST, made.look)
    return made


async def ask(rig: ServerRig, *frames: bytes) -> list[bytes]:
    """Send all at once; the answers, as the journal acknowledges."""
    conn, transport = rig.connect()
    conn.data_received(b"".join(frames))
    return await answers(rig, transport, len(frames))


async def test_the_writer_of_a_ledger_that_was_closed_meanwhile_is_refused(rig: ServerRig, metadata: Metadata) -> None:
    (binary,) = await ask(rig, v2_add(entry(7, 5)))
    (protobuf,) = await ask(rig, v3_add(entry(7, 5)))
    assert (v2_code(binary), v3_status(protobuf)) == (V2Code.EFENCED, V3Status.EFENCED)
    assert rig.storage.ledger(7) is None
    assert not rig.journal.records


async def test_of_a_ledger_that_is_still_open_entries_are_taken_and_it_is_asked_once(
    rig: ServerRig, metadata: Metadata
) -> None:
    metadata.open.add(7)
    found = await ask(rig, *(v2_add(entry(7, each)) for each in range(5)))
    assert [v2_code(each) for each in found] == [V2Code.EOK] * 5
    assert metadata.asked == [7]
    (again,) = await ask(rig, v2_add(entry(7, 5)))
    assert v2_code(again) == V2Code.EOK
    assert metadata.asked == [7]


async def test_who_waited_for_an_answer_does_not_wait_for_ever(
    rig: ServerRig, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata.open.add(7)

    def broken(*request: object, **options: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.operations, "add", broken)
    monkeypatch.setattr(rig.context.complaints, "error", lambda *text, **fields: None)
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(7, 0)))
    await until(lambda: transport.closing)


async def test_a_younger_ledger_and_one_that_is_here_are_not_asked_for(rig: ServerRig, metadata: Metadata) -> None:
    (fenced,) = await ask(rig, v2_fence(7))
    assert v2_code(fenced) == V2Code.ENOENTRY
    younger, refused = await ask(rig, v2_add(entry(NEWEST + 1, 0)), v2_add(entry(7, 0)))
    assert sorted((v2_code(younger), v2_code(refused))) == sorted((V2Code.EOK, V2Code.EFENCED))
    assert metadata.asked == []


async def test_copies_of_a_closed_ledger_come_in_and_it_is_fenced_for_ever(rig: ServerRig, metadata: Metadata) -> None:
    (copied,) = await ask(rig, v2_add(entry(7, 5), flags=RECOVERY))
    assert v2_code(copied) == V2Code.EOK
    (refused,) = await ask(rig, v2_add(entry(7, 6)))
    assert v2_code(refused) == V2Code.EFENCED
    record = rig.storage.ledger(7)
    assert record is not None
    assert record.fenced
    assert [kind.name for kind, _ in rig.journal.records][:2] == ["KEY", "FENCE"], "a replay fences it too"


async def test_a_copy_with_a_key_that_cannot_be_stored_is_refused(rig: ServerRig, metadata: Metadata) -> None:
    (refused,) = await ask(rig, v3_add(entry(7, 5), bytes([1]) * (MAX_KEY_BYTES + 1), recovery=True))
    assert v3_status(refused) == V3Status.EBADREQ
    assert rig.storage.ledger(7) is None


async def test_an_explicit_lac_makes_no_ledger_that_is_over(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(8)
    (over,) = await ask(rig, v3_write_lac(7, 3))
    (written,) = await ask(rig, v3_write_lac(8, 3))
    assert (v3_status(over), v3_status(written)) == (V3Status.ENOLEDGER, V3Status.EOK)
    assert rig.storage.ledger(7) is None


@pytest.mark.parametrize("silent", [False, True])
async def test_what_cannot_be_asked_is_no_word_on_the_fence(
    rig: ServerRig, metadata: Metadata, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    monkeypatch.setattr(metadata_questions, "ASK_S", 0.01 if silent else 60.0)
    metadata.down = True
    if silent:
        metadata.answers.clear()
    (protobuf,) = await ask(rig, v3_add(entry(7, 5)))
    (binary,) = await ask(rig, v2_add(entry(7, 5)))
    assert (v3_status(protobuf), v2_code(binary)) == (V3Status.EUNKNOWNLEDGERSTATE, V2Code.EIO)
    metadata.down = False
    metadata.answers.set()
    metadata.open.add(7)
    (taken,) = await ask(rig, v2_add(entry(7, 5)))
    assert v2_code(taken) == V2Code.EOK


async def test_one_question_for_all_who_wait_and_nothing_more_is_read_from_them(
    rig: ServerRig, metadata: Metadata
) -> None:
    metadata.open.add(7)
    metadata.answers.clear()
    connections = [rig.connect() for _ in range(3)]
    for conn, _ in connections:
        conn.data_received(v2_add(entry(7, 0)) + v2_add(entry(NEWEST + 1, 0)))
    gone, _ = connections.pop()
    gone.connection_lost(None)
    await until(lambda: metadata.asked)
    assert all(conn.stalled and not transport.reading for conn, transport in connections)
    assert not rig.journal.batches
    metadata.answers.set()
    for conn, transport in connections:
        assert [v2_code(each) for each in await answers(rig, transport, 2)] == [V2Code.EOK] * 2
        assert not conn.stalled
    assert metadata.asked == [7]


async def test_whose_connection_is_closed_while_it_waits_is_no_request_under_way(
    rig: ServerRig, metadata: Metadata
) -> None:
    metadata.answers.clear()
    gone, _ = rig.connect()
    gone.data_received(v3_write_lac(7, 3))
    await until(lambda: metadata.asked)
    assert rig.context.requests.count == 1
    gone.connection_lost(None)
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    metadata.down = True
    metadata.answers.set()
    await rig.settle()
    gc.collect()
    assert rig.context.requests.count == 0
    assert rig.storage.ledger(7) is None
    assert unhandled == []


async def test_a_question_that_ends_without_an_answer_is_no_word_on_the_fence(
    rig: ServerRig, metadata: Metadata
) -> None:
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(7, 5)))
    questions = rig.context.questions
    assert questions is not None
    questions._asking[7, NO_LIFE].cancel()
    await until(lambda: transport.frames)
    assert [v3_status(each) for each in transport.frames] == [V3Status.EUNKNOWNLEDGERSTATE]
    assert not conn.stalled
    assert not questions._asking


async def test_the_newest_ledger_that_there_was_is_an_older_one(rig: ServerRig, metadata: Metadata) -> None:
    (refused,) = await ask(rig, v2_add(entry(NEWEST, 0)))
    assert (v2_code(refused), metadata.asked) == (V2Code.EFENCED, [NEWEST])


# --- ledgers that are named by their life -----------------------------------------------------------------------


async def test_writer_that_names_the_living_ledger_is_asked_about_once(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    frames = [v3_add(entry(YOUNGER, each), life=NOW) for each in range(40)]
    assert [v3_status(each) for each in await ask(rig, *frames)] == [V3Status.EOK] * 40
    assert metadata.asked == [YOUNGER]
    state = rig.ledgers.states[YOUNGER]
    assert (state.life, state.hot_key) == (NOW, KEY + NOW)


@pytest.mark.parametrize("life", [FORMER, NO_LIFE], ids=["former", "none"])
@pytest.mark.parametrize("is_hot", [True, False])
async def test_writer_of_a_former_ledger_is_refused_where_the_living_one_is(
    rig: ServerRig, metadata: Metadata, life: bytes, is_hot: bool
) -> None:
    metadata.open.add(YOUNGER)
    await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    if not is_hot:
        rig.ledgers.states[YOUNGER].cool_down()
    (late,) = await ask(rig, v3_add(entry(YOUNGER, 0, b"late"), life=life))
    (lac,) = await ask(rig, v3_write_lac(YOUNGER, 3, life=life))
    assert (v3_status(late), v3_status(lac)) == (V3Status.EFENCED, V3Status.ENOLEDGER)
    assert rig.storage.cached(YOUNGER, 0) == entry(YOUNGER, 0)
    assert not rig.ledgers.states[YOUNGER].explicit_lac
    (binary,) = await ask(rig, v2_add(entry(YOUNGER, 0, b"late")))
    assert v2_code(binary) == V2Code.EFENCED
    (again,) = await ask(rig, v3_add(entry(YOUNGER, 1), life=NOW))
    assert v3_status(again) == V3Status.EOK


async def test_writer_of_a_former_ledger_begins_none(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    (late,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=FORMER))
    (lac,) = await ask(rig, v3_write_lac(YOUNGER, 3, life=FORMER))
    assert (v3_status(late), v3_status(lac)) == (V3Status.EFENCED, V3Status.ENOLEDGER)
    assert rig.storage.ledger(YOUNGER) is None


async def test_living_ledger_is_refused_while_a_former_one_is_stored(rig: ServerRig, metadata: Metadata) -> None:
    """The writer replaces this bookie, whose garbage collection has not deleted the former one."""
    metadata.open.add(YOUNGER)
    metadata.life = FORMER
    await ask(rig, v3_add(entry(YOUNGER, 0), life=FORMER))
    metadata.life = NOW
    (refused,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    assert v3_status(refused) == V3Status.EUNKNOWNLEDGERSTATE
    rig.ledgers.forget(YOUNGER, False)
    rig.storage.delete_ledger(YOUNGER)
    (taken,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    assert v3_status(taken) == V3Status.EOK


async def test_copies_come_in_whatever_the_life(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    (copied,) = await ask(rig, v3_add(entry(YOUNGER, 0), recovery=True))
    assert metadata.asked == []
    (taken,) = await ask(rig, v3_add(entry(YOUNGER, 1), life=NOW))
    (more,) = await ask(rig, v3_add(entry(YOUNGER, 2), recovery=True))
    assert [v3_status(each) for each in (copied, taken, more)] == [V3Status.EOK] * 3


async def test_what_was_parked_is_asked_about_again(rig: ServerRig, metadata: Metadata) -> None:
    """Its ledger is deleted, here too, while it waits for room."""
    metadata.open.add(YOUNGER)
    metadata.life = FORMER
    rig.journal.full = True
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(YOUNGER, 0), life=FORMER))
    await until(lambda: conn.parked is not None and len(conn.parked) == 1)
    metadata.life = NOW
    rig.journal.full = False
    rig.admission.refresh()
    (late,) = await answers(rig, transport, 1)
    assert v3_status(late) == V3Status.EFENCED
    assert rig.storage.ledger(YOUNGER) is None


async def test_last_entries_that_come_after_the_close_are_taken(rig: ServerRig, metadata: Metadata) -> None:
    """Their writer had its ack quorum; what a fence forbids, this bookie would know."""
    metadata.closed.add(YOUNGER)
    (taken,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    assert v3_status(taken) == V3Status.EOK


async def test_writer_of_a_closed_ledger_that_is_older_is_refused(rig: ServerRig, metadata: Metadata) -> None:
    metadata.closed.add(7)
    (plain,) = await ask(rig, v3_add(entry(7, 5)))
    (named,) = await ask(rig, v3_add(entry(7, 5), life=NOW))
    assert (v3_status(plain), v3_status(named)) == (V3Status.EFENCED, V3Status.EFENCED)
