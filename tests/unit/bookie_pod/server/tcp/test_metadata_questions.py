"""Ledgers that are older than the bookie and unknown to it, and ledgers that are named by their life: the metadata
service is asked before the first entry."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from bookie_pod.server.tcp import metadata_questions
from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_pod.server.tcp.metadata_questions import Asker, MetadataQuestions
from bookie_pod.storage.index.ledger_data import MAX_KEY_BYTES
from bookie_pod.storage.journal.format import RecordKind
from bookie_protocol.errors import MetadataWentBack, V2Code, V3Status
from bookie_protocol.keys import NO_LIFE, life_of
from bookie_protocol.wire.v2 import Flag
from tests.support.asked_metadata import NEWEST, NOW, YOUNGER, Metadata, ask
from tests.support.frames import (
    KEY,
    entry,
    lac_packet,
    v2_add,
    v2_code,
    v2_fence,
    v3_add,
    v3_answer,
    v3_fence,
    v3_read_lac,
    v3_status,
    v3_write_lac,
)
from tests.support.server_rig import ServerRig, answers
from tests.support.until import until

FORMER = life_of(1)
RECOVERY = int(Flag.RECOVERY_ADD)


@pytest.fixture
async def metadata(rig: ServerRig) -> Metadata:
    made = Metadata()
    rig.handlers.questions = MetadataQuestions(rig.ledgers, NEWEST, made.look, "b1")
    return made


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
    monkeypatch.setattr(metadata_questions, "KEPT_S", 0.0)
    metadata.down = True
    if silent:
        metadata.answers.clear()
    (protobuf,) = await ask(rig, v3_add(entry(7, 5)))
    (binary,) = await ask(rig, v2_add(entry(7, 5)))
    assert (v3_status(protobuf), v2_code(binary)) == (V3Status.ETOOMANYREQUESTS, V2Code.ETOOMANYREQUESTS)
    metadata.down = False
    metadata.answers.set()
    metadata.open.add(7)
    (taken,) = await ask(rig, v2_add(entry(7, 5)))
    assert v2_code(taken) == V2Code.EOK


async def test_connections_share_a_question_and_their_other_ledgers_go_on(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(7)
    metadata.answers.clear()
    connections = [rig.connect() for _ in range(3)]
    for conn, _ in connections:
        conn.data_received(v2_add(entry(7, 0)) + v2_add(entry(NEWEST + 1, 0)))
    gone, _ = connections.pop()
    gone.connection_lost(None)
    await until(lambda: metadata.asked)
    for conn, transport in connections:
        (other,) = await answers(rig, transport, 1)
        assert (v2_code(other), conn.wire.stalled, transport.reading) == (V2Code.EOK, False, True)
    assert rig.storage.ledger(7) is None
    metadata.answers.set()
    for _, transport in connections:
        assert [v2_code(each) for each in await answers(rig, transport, 2)] == [V2Code.EOK] * 2
    assert metadata.asked == [7]


async def test_requests_of_a_ledger_stay_in_order_while_they_wait(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    metadata.answers.clear()
    conn, transport = rig.connect()
    txns = range(1, 41)
    for txn in txns:
        lac = v3_write_lac(YOUNGER, txn, txn=txn, life=NOW)
        conn.data_received(v3_add(entry(YOUNGER, txn), txn=txn, life=NOW) if txn % 4 else lac)
    metadata.answers.set()
    found = [v3_answer(each).header.txnId for each in await answers(rig, transport, len(txns))]
    assert sorted(found) == list(txns)
    assert rig.ledgers.states[YOUNGER].explicit_lac == lac_packet(YOUNGER, 40)
    assert [txn for txn in found if txn % 4] == [txn for txn in txns if txn % 4]
    assert (len(conn.wire.asked), conn.wire.asked_bytes) == (0, 0)


@pytest.mark.parametrize("nbytes", [1, 100_000])
async def test_connection_of_which_too_much_waits_for_answers_reads_nothing_more(
    rig: ServerRig, metadata: Metadata, nbytes: int
) -> None:
    metadata.open.add(YOUNGER)
    metadata.answers.clear()
    conn, transport = rig.connect()
    sent = 0
    while not conn.wire.stalls & Stall.LEDGER_ASKED:
        conn.data_received(v3_add(entry(YOUNGER, sent, bytes(nbytes)), life=NOW))
        sent += 1
        await asyncio.sleep(0)  # it is not for the turns of the event loop that it stalls
    assert sent <= metadata_questions.MOST_OF_ONE
    assert sent * nbytes <= metadata_questions.BYTES_OF_ONE + nbytes
    assert conn.wire.share.held >= sent * nbytes
    metadata.answers.set()
    assert [v3_status(each) for each in await answers(rig, transport, sent)] == [V3Status.EOK] * sent
    assert not conn.wire.stalled


@pytest.mark.parametrize("down", [True, False], ids=["failed", "negative"])
async def test_refusal_counts_for_requests_that_come_soon_after(
    rig: ServerRig, metadata: Metadata, monkeypatch: pytest.MonkeyPatch, down: bool
) -> None:
    metadata.down = down
    expected = V3Status.ETOOMANYREQUESTS if down else V3Status.EFENCED
    for each in range(3):
        (refused,) = await ask(rig, v3_add(entry(YOUNGER, each), life=NOW))
        assert v3_status(refused) == expected
    assert metadata.asked == [YOUNGER]
    metadata.down = False
    metadata.open.add(YOUNGER)
    monkeypatch.setattr(metadata_questions, "KEPT_S", 0.0)
    (other,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=FORMER))
    assert v3_status(other) == V3Status.EFENCED
    (again,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=FORMER))
    assert v3_status(again) == V3Status.EFENCED
    assert metadata.asked == [YOUNGER] * 3


async def test_refusals_that_are_kept_are_bounded(
    rig: ServerRig, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_questions, "MOST_KEPT", 4)
    for ledger_id in range(YOUNGER, YOUNGER + 6):
        await ask(rig, v3_add(entry(ledger_id, 0), life=NOW))
    questions = rig.handlers.questions
    assert questions is not None
    assert len(questions._refused) == 4
    await ask(rig, v3_add(entry(YOUNGER + 5, 0), life=NOW))
    await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    assert metadata.asked == [*range(YOUNGER, YOUNGER + 6), YOUNGER]


async def test_answer_from_before_a_deletion_here_lets_no_late_add_in(rig: ServerRig, metadata: Metadata) -> None:
    metadata.life = FORMER
    metadata.open.add(YOUNGER)
    await ask(rig, v3_add(entry(YOUNGER, 0), recovery=True))
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(YOUNGER, 1), life=FORMER))
    await until(lambda: metadata.asked)
    metadata.open.clear()
    rig.storage.delete_ledger(YOUNGER)
    metadata.answers.set()
    (late,) = await answers(rig, transport, 1)
    assert v3_status(late) == V3Status.EFENCED
    assert rig.storage.ledger(YOUNGER) is None
    assert metadata.asked == [YOUNGER] * 2


async def test_client_that_names_no_life_and_has_another_key_causes_no_question(
    rig: ServerRig, metadata: Metadata
) -> None:
    await ask(rig, v3_add(entry(YOUNGER, 0), recovery=True))
    (added,) = await ask(rig, v3_add(entry(YOUNGER, 1), bytes(19) + b"x"))
    (lac,) = await ask(rig, v3_write_lac(YOUNGER, 0, bytes(19) + b"x"))
    assert [v3_status(each) for each in (added, lac)] == [V3Status.EUA] * 2
    assert metadata.asked == []


async def test_bookie_that_is_read_only_asks_nothing(rig: ServerRig, metadata: Metadata) -> None:
    rig.admission.set_mode(read_only=True, high_priority_writes=False)
    (added,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    (lac,) = await ask(rig, v3_write_lac(YOUNGER, 0, life=NOW))
    assert [v3_status(each) for each in (added, lac)] == [V3Status.EREADONLY] * 2
    assert metadata.asked == []


async def test_questions_under_way_are_bounded_when_parked_adds_are_let_in(rig: ServerRig, metadata: Metadata) -> None:
    ledgers = range(YOUNGER, YOUNGER + 3 * metadata_questions.MOST_AT_ONCE)
    metadata.open.update(ledgers)
    rig.journal.full = True
    conn, transport = rig.connect()
    conn.data_received(b"".join(v3_add(entry(each, 0), life=NOW) for each in ledgers))
    await until(lambda: conn.wire.parked is not None and len(conn.wire.parked) == len(ledgers))
    metadata.most_at_once = 0
    metadata.answers.clear()
    rig.journal.full = False
    rig.admission.refresh()
    await rig.settle()
    assert metadata.most_at_once == metadata_questions.MOST_AT_ONCE
    metadata.answers.set()
    found = await answers(rig, transport, len(ledgers))
    assert [v3_status(each) for each in found] == [V3Status.EOK] * len(ledgers)
    assert metadata.most_at_once == metadata_questions.MOST_AT_ONCE


@pytest.mark.parametrize("is_same_ledger", [False, True])
async def test_connection_that_names_many_ledgers_does_not_delay_others(
    rig: ServerRig, metadata: Metadata, is_same_ledger: bool
) -> None:
    """Even if it names the other's ledger, too, as the last one."""
    metadata.answers.clear()
    most = metadata_questions.MOST_AT_ONCE
    greedy = range(YOUNGER, YOUNGER + 3 * most)
    ledger = greedy[-1] if is_same_ledger else greedy[-1] + 1
    conn, _ = rig.connect()
    conn.data_received(b"".join(v3_add(entry(each, 0), life=NOW) for each in greedy))
    await until(lambda: len(metadata.asked) == most)
    other, _ = rig.connect()
    other.data_received(v3_add(entry(ledger, 0), life=NOW))
    await rig.settle()
    metadata.answers.set()
    await until(lambda: len(metadata.asked) == len({*greedy, ledger}))
    assert metadata.asked.index(ledger) <= most + 1
    assert metadata.most_at_once == most


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


async def test_lost_connection_leaves_nothing_of_requests_that_wait(rig: ServerRig, metadata: Metadata) -> None:
    """Not even if one of its reads ends afterwards, which counts again what the client holds."""
    await ask(rig, v2_add(entry(YOUNGER, 0, bytes(100_000))))
    rig.storage.flush()
    metadata.answers.clear()
    conn, _ = rig.connect()
    many = metadata_questions.MOST_AT_ONCE + 1
    conn.data_received(b"".join(v3_add(entry(YOUNGER + each, 0), life=NOW) for each in range(1, many + 1)))
    disk = threading.Event()
    rig.lanes.run(YOUNGER, disk.wait, lambda result, error: None)
    conn.data_received(v3_write_lac(YOUNGER + 1, 0, life=NOW) + v3_read_lac(YOUNGER))
    await until(lambda: len(metadata.asked) == metadata_questions.MOST_AT_ONCE)
    conn.connection_lost(None)
    asyncio.get_running_loop().call_soon(disk.set)
    questions = rig.handlers.questions
    assert questions is not None
    assert (questions._waiting, len(questions._asking)) == (0, metadata_questions.MOST_AT_ONCE)
    assert not any(question.askers for asking in questions._asking.values() for question in asking.values())
    await rig.settle()
    metadata.answers.set()
    await until(lambda: not questions._asking)
    assert len(metadata.asked) == metadata_questions.MOST_AT_ONCE
    assert (rig.context.memory.total, rig.context.requests.count) == (0, 0)
    assert rig.storage.ledger(YOUNGER + 1) is None


async def test_requests_of_others_wait_on_when_the_first_connection_is_lost(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    metadata.answers.clear()
    first, _ = rig.connect()
    first.data_received(v3_add(entry(YOUNGER, 0), life=NOW))
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(YOUNGER, 1), life=NOW))
    first.connection_lost(None)
    metadata.answers.set()
    (taken,) = await answers(rig, transport, 1)
    assert (v3_status(taken), rig.storage.cached(YOUNGER, 0)) == (V3Status.EOK, None)
    assert metadata.asked == [YOUNGER]


async def test_a_question_that_ends_without_an_answer_is_no_word_on_the_fence(
    rig: ServerRig, metadata: Metadata
) -> None:
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(7, 5)))
    questions = rig.handlers.questions
    assert questions is not None
    task = questions._asking[7][NO_LIFE].task
    assert task is not None
    task.cancel()
    await until(lambda: transport.frames)
    assert [v3_status(each) for each in transport.frames] == [V3Status.ETOOMANYREQUESTS]
    assert not conn.wire.stalled
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


async def test_life_is_known_when_the_state_of_a_ledger_was_dropped(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    rig.ledgers.states.clear()
    (late,) = await ask(rig, v3_add(entry(YOUNGER, 0, b"late")))
    (again,) = await ask(rig, v3_add(entry(YOUNGER, 1), life=NOW))
    assert (v3_status(late), v3_status(again)) == (V3Status.EFENCED, V3Status.EOK)
    assert metadata.asked == [YOUNGER]


async def test_writer_of_a_former_ledger_begins_none(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    (late,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=FORMER))
    (lac,) = await ask(rig, v3_write_lac(YOUNGER, 3, life=FORMER))
    assert (v3_status(late), v3_status(lac)) == (V3Status.EFENCED, V3Status.ENOLEDGER)
    assert rig.storage.ledger(YOUNGER) is None


async def keep_former(rig: ServerRig, metadata: Metadata, *, fenced: bool = False) -> None:
    """Store a former ledger, which is deleted then and not collected."""
    metadata.open.add(YOUNGER)
    metadata.life = FORMER
    await ask(rig, *(v3_add(entry(YOUNGER, each), life=FORMER) for each in range(3)))
    if fenced:
        await ask(rig, v3_fence(YOUNGER))
    metadata.life = NOW


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("is_loaded", [False, True])
async def test_dead_ledger_gives_way_to_the_next_one_of_its_id(
    rig: ServerRig, metadata: Metadata, fenced: bool, is_loaded: bool
) -> None:
    rig.storage.on_ledger_deleted(rig.operations.forget)
    await keep_former(rig, metadata, fenced=fenced)
    if not is_loaded:
        rig.ledgers.states.clear()  # as behind a restart
    found = await ask(rig, *(v3_add(entry(YOUNGER, each, b"now"), life=NOW) for each in range(2)))
    assert [v3_status(each) for each in found] == [V3Status.EOK] * 2
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1]
    assert rig.storage.cached(YOUNGER, 0) == entry(YOUNGER, 0, b"now")
    record = rig.storage.ledger(YOUNGER)
    assert record is not None
    assert (record.life, record.fenced) == (NOW, False)
    kinds = [kind for kind, ledger_id in rig.journal.records if ledger_id == YOUNGER]
    assert kinds[kinds.index(RecordKind.DELETION) + 1 :] == [RecordKind.KEY, RecordKind.ENTRY, RecordKind.ENTRY]
    (late,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=FORMER))
    assert v3_status(late) == V3Status.EFENCED


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("doubt", ["no token", "several ensembles", "closed"])
async def test_ledger_that_is_not_surely_dead_stays_and_the_next_writer_replaces_this_bookie(
    rig: ServerRig, metadata: Metadata, doubt: str, fenced: bool
) -> None:
    await keep_former(rig, metadata, fenced=fenced)
    if doubt == "no token":
        metadata.life = NO_LIFE
    elif doubt == "closed":
        metadata.open.clear()
        metadata.closed.add(YOUNGER)
    else:
        metadata.ensembles = {0: ("b2",), 1: ("b1",)}
    (refused,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    assert v3_status(refused) == V3Status.EUNKNOWNLEDGERSTATE
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1, 2]


async def test_ledger_stays_if_its_next_life_may_have_written_here_before(rig: ServerRig, metadata: Metadata) -> None:
    """Apache's bookie, and earlier releases, take the entries of any life, and leave the stored life as it is."""
    await keep_former(rig, metadata)
    stored = rig.storage.active_entries(YOUNGER)
    stored.update({each: entry(YOUNGER, each, b"now") for each in range(3)})
    (refused,) = await ask(rig, v3_add(entry(YOUNGER, 3, b"now"), life=NOW))
    assert v3_status(refused) == V3Status.EUNKNOWNLEDGERSTATE
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1, 2]


async def test_ledger_stays_on_the_word_of_a_service_that_was_put_back(rig: ServerRig, metadata: Metadata) -> None:
    await keep_former(rig, metadata)

    async def check() -> None:
        raise MetadataWentBack("it lacks the mark of this bookie")

    rig.handlers.questions = MetadataQuestions(rig.ledgers, NEWEST, metadata.look, "b1", check)
    (refused,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    assert v3_status(refused) == V3Status.ETOOMANYREQUESTS
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1, 2]


@pytest.mark.parametrize("came", ["fence", "copy", "next life"])
async def test_ledger_that_was_touched_since_the_question_began_is_asked_about_again(
    rig: ServerRig, metadata: Metadata, came: str
) -> None:
    """A fence and a copy may be of the living ledger, whose metadata are as old as the answer."""
    await keep_former(rig, metadata)
    metadata.asked.clear()
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(YOUNGER, 0), life=NOW))
    await until(lambda: metadata.asked)
    if came == "fence":
        await ask(rig, v3_fence(YOUNGER))
        metadata.open.clear()
        metadata.closed.add(YOUNGER)
    elif came == "copy":
        await ask(rig, v3_add(entry(YOUNGER, 5), recovery=True))
        metadata.ensembles = {0: ("b2",), 6: ("b1",)}
    else:
        rig.ledgers.states[YOUNGER].life = life_of(3)
        metadata.life = life_of(3)
    metadata.answers.set()
    (refused,) = await answers(rig, transport, 1)
    assert v3_status(refused) == (V3Status.EFENCED if came == "next life" else V3Status.EUNKNOWNLEDGERSTATE)
    assert list(rig.storage.entry_ids(YOUNGER))[:3] == [0, 1, 2]
    assert metadata.asked == [YOUNGER] * 2


@pytest.mark.parametrize("is_open", [True, False])
async def test_fence_of_a_former_ledger_that_was_collected_is_not_the_next_ones(
    rig: ServerRig, metadata: Metadata, is_open: bool
) -> None:
    await keep_former(rig, metadata, fenced=True)
    rig.storage.delete_ledger(YOUNGER)
    if not is_open:
        metadata.open.clear()
        metadata.closed.add(YOUNGER)
    (added,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    (late,) = await ask(rig, v3_add(entry(YOUNGER, 1)))
    assert v3_status(added) == (V3Status.EOK if is_open else V3Status.EFENCED)
    assert v3_status(late) == V3Status.EFENCED


async def test_fence_of_a_former_ledger_that_this_bookie_held_nothing_of_ends_no_writer(
    rig: ServerRig, metadata: Metadata
) -> None:
    """It has a copy, which names no life."""
    await ask(rig, v3_add(entry(YOUNGER, 0), recovery=True))
    await ask(rig, v3_fence(YOUNGER))
    metadata.open.add(YOUNGER)
    metadata.life = NOW
    (refused,) = await ask(rig, v3_add(entry(YOUNGER, 0), life=NOW))
    assert v3_status(refused) == V3Status.EUNKNOWNLEDGERSTATE
    assert list(rig.storage.entry_ids(YOUNGER)) == [0]


@pytest.mark.parametrize("is_lost", [False, True])
async def test_nothing_is_kept_of_a_request_that_waited(rig: ServerRig, metadata: Metadata, is_lost: bool) -> None:
    """Not until a collection of cycles either, which is rare here."""

    def waiting() -> int:
        return sum(isinstance(each, Asker) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        metadata.answers.clear()
        conn, transport = rig.connect()
        conn.data_received(v3_add(entry(YOUNGER, 0), life=NOW))
        await asyncio.sleep(0)
        assert waiting() == 1
        if is_lost:
            conn.connection_lost(None)
        else:
            metadata.answers.set()
            await answers(rig, transport, 1)
        await rig.settle()  # the task that asked ends
        assert waiting() == 0
    finally:
        gc.enable()
        metadata.answers.set()


async def test_first_entry_is_that_of_this_bookie(rig: ServerRig, metadata: Metadata) -> None:
    """A bookie that gets all entries may have taken the first one here, as an earlier release does."""
    metadata.ensembles = {0: ("b2", "b1")}
    metadata.write_quorum = 2
    await keep_former(rig, metadata)
    (second,) = await ask(rig, v3_add(entry(YOUNGER, 1, b"now"), life=NOW))
    assert v3_status(second) == V3Status.EUNKNOWNLEDGERSTATE
    metadata.write_quorum = 1
    (first,) = await ask(rig, v3_add(entry(YOUNGER, 1, b"now"), life=NOW))
    assert v3_status(first) == V3Status.EOK
    assert list(rig.storage.entry_ids(YOUNGER)) == [1]


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_copies_of_an_open_ledger_end_no_writer_and_give_way_to_no_stranger(
    rig: ServerRig, metadata: Metadata, is_loaded: bool
) -> None:
    """A worker fills a bookie that was away with the confirmed entries of the only ensemble."""
    metadata.open.add(YOUNGER)
    await ask(rig, *(v3_add(entry(YOUNGER, each), recovery=True) for each in range(3)))
    if not is_loaded:
        rig.ledgers.states.clear()
    (stranger,) = await ask(rig, v3_add(entry(YOUNGER, 0, b"rubbish"), bytes(19) + b"x", life=NOW))
    (writer,) = await ask(rig, v3_add(entry(YOUNGER, 3), life=NOW))
    assert [v3_status(each) for each in (stranger, writer)] == [V3Status.EUA, V3Status.EOK]
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1, 2, 3]
    assert rig.storage.cached(YOUNGER, 0) == entry(YOUNGER, 0)


async def test_fence_of_the_next_ledger_that_comes_while_the_bookie_asks_counts(
    rig: ServerRig, metadata: Metadata
) -> None:
    """The bookie holds nothing of it, and answers the fence by what it remembers of the former one."""
    await keep_former(rig, metadata, fenced=True)
    rig.storage.delete_ledger(YOUNGER)
    metadata.asked.clear()
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(YOUNGER, 0), life=NOW))
    await until(lambda: metadata.asked)
    (fenced,) = await ask(rig, v3_fence(YOUNGER))
    assert v3_status(fenced) == V3Status.ENOLEDGER
    metadata.open.clear()
    metadata.closed.add(YOUNGER)
    metadata.answers.set()
    (refused,) = await answers(rig, transport, 1)
    assert v3_status(refused) == V3Status.EFENCED
    assert rig.storage.ledger(YOUNGER) is None


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
    await until(lambda: conn.wire.parked is not None and len(conn.wire.parked) == 1)
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
