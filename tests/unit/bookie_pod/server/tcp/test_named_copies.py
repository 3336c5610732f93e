"""Copies of entries that name the life of their ledger."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie_pod.ledgers.registry import MOST_LOOKS
from bookie_pod.server.tcp import metadata_questions
from bookie_pod.server.tcp.metadata_questions import MetadataQuestions
from bookie_pod.storage.journal.format import RecordKind
from bookie_protocol.errors import V2Code, V3Status
from bookie_protocol.keys import life_of, life_of_copies, master_key, with_unnamed
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.wire.v2 import Flag
from tests.support.asked_metadata import NEWEST, NOW, YOUNGER, Metadata, ask
from tests.support.frames import KEY, entry, v2_add, v2_code, v3_add, v3_fence, v3_status, v3_write_lac
from tests.support.server_rig import ServerRig, answers
from tests.support.until import until

FORMER = life_of(1)
COPIES_OF_FORMER, COPIES_OF_NOW = life_of_copies(1), life_of_copies(2)
MADE_UP = life_of_copies(77)
OTHER_KEY = master_key(b"another")


@pytest.fixture
async def metadata(rig: ServerRig) -> Metadata:
    made = Metadata()
    rig.handlers.questions = MetadataQuestions(rig.ledgers, NEWEST, made.look, "b1")
    rig.storage.on_ledger_deleted(rig.operations.forget)
    return made


def copy(entry_id: int, life: bytes, payload: bytes = b"copy", key: bytes = KEY, ledger_id: int = YOUNGER) -> bytes:
    return v3_add(entry(ledger_id, entry_id, payload), key, recovery=True, life=life)


def written(entry_id: int, life: bytes, payload: bytes = b"write", key: bytes = KEY) -> bytes:
    return v3_add(entry(YOUNGER, entry_id, payload), key, life=life)


async def statuses(rig: ServerRig, *frames: bytes) -> list[int]:
    return [v3_status(each) for each in await ask(rig, *frames)]


async def keep_copies(rig: ServerRig, metadata: Metadata, *, writer: bool = False) -> None:
    """Store copies of a former ledger, which is deleted then and not collected."""
    metadata.life = FORMER
    (metadata.open if writer else metadata.closed).add(YOUNGER)
    add, life = (written, FORMER) if writer else (copy, COPIES_OF_FORMER)
    assert await statuses(rig, *(add(each, life) for each in range(3))) == [V3Status.EOK] * 3
    metadata.closed.clear()
    metadata.open.add(YOUNGER)
    metadata.life = NOW
    metadata.asked.clear()


def life_here(rig: ServerRig) -> bytes | None:
    record = rig.storage.ledger(YOUNGER)
    return None if record is None else record.life


@pytest.mark.parametrize("is_open", [True, False])
async def test_copies_note_the_life_that_the_metadata_confirm(
    rig: ServerRig, metadata: Metadata, is_open: bool
) -> None:
    (metadata.open if is_open else metadata.closed).add(YOUNGER)
    assert await statuses(rig, *(copy(each, COPIES_OF_NOW) for each in range(40))) == [V3Status.EOK] * 40
    assert metadata.asked == [YOUNGER]
    assert life_here(rig) == COPIES_OF_NOW
    assert rig.ledgers.states[YOUNGER].hot_key == KEY + COPIES_OF_NOW
    kinds = [kind for kind, ledger_id in rig.journal.records if ledger_id == YOUNGER]
    assert kinds == [RecordKind.KEY] + [RecordKind.ENTRY] * 40


@pytest.mark.parametrize("is_gone", [True, False])
async def test_late_copy_of_a_dead_ledger_begins_none(rig: ServerRig, metadata: Metadata, is_gone: bool) -> None:
    if not is_gone:
        metadata.open.add(YOUNGER)
    for each in range(2):
        assert await statuses(rig, copy(each, COPIES_OF_FORMER)) == [V3Status.ENOLEDGER]
    assert rig.storage.ledger(YOUNGER) is None
    assert metadata.asked == [YOUNGER]


async def test_late_copy_of_a_dead_ledger_gets_not_into_the_living_one(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    assert await statuses(rig, written(0, NOW)) == [V3Status.EOK]
    assert await statuses(rig, copy(1, COPIES_OF_FORMER)) == [V3Status.ENOLEDGER]
    assert list(rig.storage.entry_ids(YOUNGER)) == [0]


async def test_made_up_life_changes_nothing(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    for key in (KEY, OTHER_KEY):
        assert await statuses(rig, copy(0, MADE_UP, b"rubbish", key)) == [V3Status.ENOLEDGER]
    assert await statuses(rig, *(copy(each, COPIES_OF_NOW) for each in range(3))) == [V3Status.EOK] * 3
    for key in (KEY, OTHER_KEY):
        refused = await statuses(rig, copy(0, MADE_UP, b"rubbish", key), written(0, life_of(77), b"rubbish", key))
        assert refused == [V3Status.ENOLEDGER, V3Status.EFENCED]
    assert await statuses(rig, written(3, NOW)) == [V3Status.EOK]
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1, 2, 3]
    assert rig.storage.cached(YOUNGER, 0) == entry(YOUNGER, 0, b"copy")


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_writer_that_names_no_life_goes_on_where_copies_were_first(
    rig: ServerRig, metadata: Metadata, is_loaded: bool
) -> None:
    """Apache's clients name none, nor do writers of ledgers whose id the cluster gave."""
    metadata.open.add(YOUNGER)
    await ask(rig, *(copy(each, COPIES_OF_NOW) for each in range(3)))
    if not is_loaded:
        rig.ledgers.states.clear()
    (added,) = await ask(rig, v3_add(entry(YOUNGER, 3)))
    assert v3_status(added) == V3Status.EOK
    assert rig.ledgers.states[YOUNGER].hot_key == KEY, "a writer takes the hot path before copies"
    (binary,) = await ask(rig, v2_add(entry(YOUNGER, 4)))
    assert v2_code(binary) == V2Code.EOK
    assert await statuses(rig, v3_write_lac(YOUNGER, 3), copy(5, COPIES_OF_NOW)) == [V3Status.EOK] * 2
    assert (life_here(rig), metadata.asked) == (with_unnamed(COPIES_OF_NOW), [YOUNGER])
    assert rig.ledgers.states[YOUNGER].hot_key == KEY


async def test_life_that_the_writer_names_too_is_demanded_from_then_on(rig: ServerRig, metadata: Metadata) -> None:
    metadata.open.add(YOUNGER)
    await ask(rig, *(copy(each, COPIES_OF_NOW) for each in range(3)))
    assert await statuses(rig, written(3, NOW), copy(4, COPIES_OF_NOW)) == [V3Status.EOK] * 2
    assert (life_here(rig), metadata.asked) == (NOW, [YOUNGER])
    assert await statuses(rig, v3_add(entry(YOUNGER, 4))) == [V3Status.EFENCED]
    copied = v3_add(entry(YOUNGER, 5), recovery=True)
    assert await statuses(rig, copied) == [V3Status.EOK], "Apache's healers name none"


@pytest.mark.parametrize("closed", [False, True])
async def test_life_is_not_named_by_an_answer_that_is_older_than_a_copy_that_names_none(
    rig: ServerRig, metadata: Metadata, closed: bool
) -> None:
    """The id is used again while the bookie asks, and a worker of an earlier release fills it with copies of the next
    ledger. Under the name of the former one they would be deleted with it."""
    metadata.life = FORMER
    (metadata.closed if closed else metadata.open).add(YOUNGER)
    assert await statuses(rig, UNNAMED["copies"]) == [V3Status.EOK]
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(copy(0, COPIES_OF_FORMER) if closed else written(0, FORMER))
    await until(lambda: metadata.asked)
    metadata.life = NOW
    assert await statuses(rig, v3_add(entry(YOUNGER, 6, b"now"), recovery=True)) == [V3Status.EOK]
    metadata.answers.set()
    await answers(rig, transport, 1)
    assert (life_here(rig), metadata.asked) == (b"", [YOUNGER] * 2)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("add", [v2_add, v3_add])
async def test_late_entry_does_not_replace_one_of_the_next_ledger_that_came_while_the_bookie_asked(
    rig: ServerRig, metadata: Metadata, add: Callable[[bytes], bytes], closed: bool
) -> None:
    """The id is used again while the bookie asks, and the writer of the next ledger names no life, as Apache's."""
    metadata.life = FORMER
    (metadata.closed if closed else metadata.open).add(YOUNGER)
    await ask(rig, UNNAMED["copies"])
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(copy(0, COPIES_OF_FORMER) if closed else written(0, FORMER))
    await until(lambda: metadata.asked)
    metadata.life = NOW
    acknowledged = entry(YOUNGER, 0, b"acknowledged")
    await ask(rig, add(acknowledged))
    metadata.answers.set()
    (late,) = await answers(rig, transport, 1)
    assert v3_status(late) != V3Status.EOK
    assert (rig.storage.cached(YOUNGER, 0), life_here(rig)) == (acknowledged, b"")
    assert await statuses(rig, v3_add(entry(YOUNGER, 1))) == [V3Status.EOK], "its writer goes on"


async def test_late_copy_of_a_closed_ledger_does_not_get_under_the_fence_of_the_next_one(
    rig: ServerRig, metadata: Metadata
) -> None:
    """The recovery of the next ledger is told that nothing is here, while the bookie asks about the former one."""
    await ask(rig, v3_fence(YOUNGER))
    metadata.life = FORMER
    metadata.closed.add(YOUNGER)
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(copy(0, COPIES_OF_FORMER))
    await until(lambda: metadata.asked)
    metadata.life = NOW
    await ask(rig, v3_fence(YOUNGER))
    metadata.answers.set()
    (late,) = await answers(rig, transport, 1)
    assert (v3_status(late), life_here(rig), metadata.asked) == (V3Status.ENOLEDGER, b"", [YOUNGER] * 2)


async def test_busy_writer_that_names_no_life_does_not_keep_its_ledger_from_being_healed(
    rig: ServerRig, metadata: Metadata
) -> None:
    await ask(rig, UNNAMED["adds"])
    metadata.open.add(YOUNGER)
    look = metadata.look

    async def look_while_it_appends(ledger_id: int) -> LedgerMetadata | None:
        found = await look(ledger_id)
        await ask(rig, v3_add(entry(YOUNGER, 6 + len(metadata.asked))))
        return found

    rig.handlers.questions = MetadataQuestions(rig.ledgers, NEWEST, look_while_it_appends, "b1")
    assert await statuses(rig, copy(1, COPIES_OF_NOW)) == [V3Status.EOK]
    assert len(metadata.asked) == MOST_LOOKS


@pytest.mark.parametrize("life", [COPIES_OF_NOW, b""], ids=["named", "unnamed"])
async def test_fences_of_a_closed_ledger_keep_no_copy_waiting(rig: ServerRig, metadata: Metadata, life: bytes) -> None:
    await ask(rig, UNNAMED["copies"])
    metadata.closed.add(YOUNGER)
    look = metadata.look

    async def look_while_it_is_fenced(ledger_id: int) -> LedgerMetadata | None:
        found = await look(ledger_id)
        await ask(rig, v3_fence(YOUNGER))
        return found

    rig.handlers.questions = MetadataQuestions(rig.ledgers, NEWEST, look_while_it_is_fenced, "b1")
    assert await statuses(rig, copy(1, life)) == [V3Status.EOK]
    assert len(metadata.asked) == (MOST_LOOKS if life else 0)


async def test_what_names_no_life_lets_the_bookie_ask_no_more_where_nothing_can_be_proven(
    rig: ServerRig, metadata: Metadata
) -> None:
    await keep_copies(rig, metadata, writer=True)
    await ask(rig, UNNAMED["copies"])
    asked = len(metadata.asked)
    look = metadata.look

    async def look_while_more_come(ledger_id: int) -> LedgerMetadata | None:
        found = await look(ledger_id)
        if len(metadata.asked) < asked + 5:
            await ask(rig, UNNAMED["copies"])
            await ask(rig, v3_fence(YOUNGER))
        return found

    rig.handlers.questions = MetadataQuestions(rig.ledgers, NEWEST, look_while_more_come, "b1")
    assert await statuses(rig, written(0, NOW, b"late")) == [V3Status.EUNKNOWNLEDGERSTATE]
    assert len(metadata.asked) == asked + 1


@pytest.mark.parametrize("writer", [False, True])
@pytest.mark.parametrize("key", [KEY, OTHER_KEY], ids=["same password", "another password"])
@pytest.mark.parametrize("is_loaded", [False, True])
async def test_copies_of_a_dead_ledger_give_way_to_the_writer_of_the_next_one(
    rig: ServerRig, metadata: Metadata, writer: bool, key: bytes, is_loaded: bool
) -> None:
    await keep_copies(rig, metadata, writer=writer)
    metadata.password = b"another" if key == OTHER_KEY else None
    if not is_loaded:
        rig.ledgers.states.clear()
    found = await statuses(rig, *(written(each, NOW, b"now", key) for each in range(2)))
    assert found == [V3Status.EOK] * 2
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1]
    assert rig.storage.cached(YOUNGER, 0) == entry(YOUNGER, 0, b"now")
    record = rig.storage.ledger(YOUNGER)
    assert record is not None
    assert (record.life, record.key) == (NOW, key)
    assert await statuses(rig, copy(2, COPIES_OF_FORMER)) == [V3Status.ENOLEDGER]


UNNAMED = {
    "copies": v3_add(entry(YOUNGER, 5, b"now"), recovery=True),
    "copies, version 2": v2_add(entry(YOUNGER, 5, b"now"), flags=int(Flag.RECOVERY_ADD)),
    "adds": v3_add(entry(YOUNGER, 5, b"now")),
    "explicit LAC": v3_write_lac(YOUNGER, 5),
}


@pytest.mark.parametrize("came", UNNAMED)
@pytest.mark.parametrize("is_loaded", [False, True])
async def test_dead_ledger_under_which_something_came_that_names_no_life_stays(
    rig: ServerRig, metadata: Metadata, came: str, is_loaded: bool
) -> None:
    """A worker of an earlier release fills this bookie in place, whose writer's first add is still on its way."""
    by_writer = "copies" in came
    await keep_copies(rig, metadata, writer=by_writer)
    await ask(rig, UNNAMED[came])
    await ask(rig, UNNAMED[came])
    if not is_loaded:
        rig.ledgers.states.clear()
    held = list(rig.storage.entry_ids(YOUNGER))
    assert await statuses(rig, written(0, NOW, b"late")) == [V3Status.EUNKNOWNLEDGERSTATE]
    assert list(rig.storage.entry_ids(YOUNGER)) == held
    assert rig.storage.cached(YOUNGER, 0) != entry(YOUNGER, 0, b"late")
    keys = [kind for kind, ledger_id in rig.journal.records if (kind, ledger_id) == (RecordKind.KEY, YOUNGER)]
    assert len(keys) == 2, "it is journaled once more, and once"
    metadata.life = FORMER
    more = written(6, FORMER), copy(7, COPIES_OF_FORMER), written(8, FORMER)
    assert await statuses(rig, *more) == [V3Status.EOK] * 3, "its own clients go on"
    assert rig.ledgers.states[YOUNGER].hot_key == KEY + FORMER
    assert await statuses(rig, UNNAMED["adds"]) == [V3Status.EFENCED], "as its writer has named it"
    metadata.life = NOW
    rig.ledgers.states.clear()
    assert await statuses(rig, written(0, NOW, b"late")) == [V3Status.EUNKNOWNLEDGERSTATE]


@pytest.mark.parametrize("key", [KEY, OTHER_KEY], ids=["same password", "another password"])
@pytest.mark.parametrize("doubt", ["not the first entry", "several ensembles"])
async def test_copies_that_are_not_surely_dead_stay_and_the_next_writer_replaces_this_bookie(
    rig: ServerRig, metadata: Metadata, key: bytes, doubt: str
) -> None:
    await keep_copies(rig, metadata)
    metadata.password = b"another" if key == OTHER_KEY else None
    if doubt == "several ensembles":
        metadata.ensembles = {0: ("b2",), 1: ("b1",)}
    refused = await statuses(rig, written(1, NOW, b"now", key))
    assert refused == [V3Status.EUNKNOWNLEDGERSTATE]
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1, 2]


async def test_key_of_a_dead_ledger_counts_if_the_metadata_tell_no_other(rig: ServerRig, metadata: Metadata) -> None:
    await keep_copies(rig, metadata)
    assert await statuses(rig, written(0, NOW, b"now", OTHER_KEY)) == [V3Status.EUA]
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1, 2]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("recovery", [False, True])
async def test_stranger_who_names_the_living_ledger_neither_begins_nor_ends_anything(
    rig: ServerRig, metadata: Metadata, stored: bool, recovery: bool
) -> None:
    """Its life is in the metadata, which many may read; so the password decides."""
    if stored:
        await keep_copies(rig, metadata)
    metadata.open.add(YOUNGER)
    metadata.password = b"another"
    metadata.answers.clear()
    strangers, transport = rig.connect()
    lives = (NOW, COPIES_OF_NOW) if recovery else (NOW,)
    for life in lives:
        strangers.data_received(v3_add(entry(YOUNGER, 0, b"rubbish"), recovery=recovery, life=life))
    await until(lambda: metadata.asked)
    conn, to_writer = rig.connect()
    conn.data_received(written(0, NOW, b"now", OTHER_KEY))
    metadata.answers.set()
    refused = await answers(rig, transport, len(lives))
    assert [v3_status(each) for each in refused] == [V3Status.EUA] * len(lives)
    (taken,) = await answers(rig, to_writer, 1)
    assert v3_status(taken) == V3Status.EOK
    assert list(rig.storage.entry_ids(YOUNGER)) == [0]
    assert rig.storage.cached(YOUNGER, 0) == entry(YOUNGER, 0, b"now")


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("key", [KEY, OTHER_KEY], ids=["same password", "another password"])
async def test_copies_of_the_next_ledger_are_refused_where_those_of_a_dead_one_are(
    rig: ServerRig, metadata: Metadata, closed: bool, key: bytes
) -> None:
    """Apache's bookie may have taken entries of it here before, so copies prove nothing. Their client takes another
    bookie."""
    await keep_copies(rig, metadata)
    metadata.password = b"another" if key == OTHER_KEY else None
    if closed:
        metadata.open.clear()
        metadata.closed.add(YOUNGER)
    assert await statuses(rig, copy(0, COPIES_OF_NOW, b"now", key)) == [V3Status.EUNKNOWNLEDGERSTATE]
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1, 2]
    assert life_here(rig) == COPIES_OF_FORMER


async def test_copies_are_not_taken_while_the_metadata_cannot_be_asked(
    rig: ServerRig, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_questions, "KEPT_S", 0.0)
    metadata.down = True
    assert await statuses(rig, copy(0, COPIES_OF_NOW)) == [V3Status.ETOOMANYREQUESTS]
    assert rig.storage.ledger(YOUNGER) is None
    assert await statuses(rig, v3_add(entry(YOUNGER, 0), recovery=True)) == [V3Status.EOK], "Apache's healers"
    metadata.down = False
    metadata.closed.add(YOUNGER)
    assert await statuses(rig, copy(1, COPIES_OF_NOW)) == [V3Status.EOK]
    assert life_here(rig) == COPIES_OF_NOW


async def test_copies_of_a_closed_ledger_that_is_older_make_it_fenced(rig: ServerRig, metadata: Metadata) -> None:
    metadata.closed.add(7)
    metadata.password = b"another"
    refused = await statuses(rig, copy(5, COPIES_OF_NOW, key=KEY, ledger_id=7))
    assert refused == [V3Status.EUA]
    assert rig.storage.ledger(7) is None
    taken = await statuses(rig, copy(5, COPIES_OF_NOW, key=OTHER_KEY, ledger_id=7))
    assert taken == [V3Status.EOK]
    record = rig.storage.ledger(7)
    assert record is not None
    assert (record.fenced, record.life) == (True, COPIES_OF_NOW)
    metadata.closed.clear()
    assert await statuses(rig, copy(5, COPIES_OF_NOW, key=OTHER_KEY, ledger_id=8)) == [V3Status.ENOLEDGER]


async def test_recovery_that_fences_here_first_names_the_life_too(rig: ServerRig, metadata: Metadata) -> None:
    metadata.closed.add(YOUNGER)
    assert await statuses(rig, v3_fence(YOUNGER)) == [V3Status.ENOENTRY]
    assert await statuses(rig, copy(0, COPIES_OF_NOW), copy(1, COPIES_OF_NOW)) == [V3Status.EOK] * 2
    record = rig.storage.ledger(YOUNGER)
    assert record is not None
    assert (record.fenced, record.life) == (True, COPIES_OF_NOW)
    assert await statuses(rig, written(2, NOW)) == [V3Status.EFENCED]


@pytest.mark.parametrize("flags", [Flag.RECOVERY_ADD, Flag.NONE], ids=["copy", "writer"])
async def test_add_without_a_life_that_comes_while_the_bookie_asks_is_noticed(
    rig: ServerRig, metadata: Metadata, flags: Flag
) -> None:
    """Of copies that a healer of Apache sends nothing tells which ledger they are of."""
    await keep_copies(rig, metadata)
    (hot,) = await ask(rig, v2_add(entry(YOUNGER, 3)))
    assert (v2_code(hot), rig.ledgers.states[YOUNGER].hot_key) == (V2Code.EOK, KEY)
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(written(0, NOW))
    await until(lambda: metadata.asked)
    await ask(rig, v2_add(entry(YOUNGER, 5), flags=int(flags)))
    metadata.ensembles = {0: ("b2",), 6: ("b1",)}
    metadata.answers.set()
    (refused,) = await answers(rig, transport, 1)
    assert v3_status(refused) == V3Status.EUNKNOWNLEDGERSTATE
    assert metadata.asked == [YOUNGER], "entry 3 named none either: nothing can be proven any more"
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1, 2, 3, 5]


async def test_restored_ledger_takes_the_place_of_a_dead_one(rig: ServerRig, metadata: Metadata) -> None:
    """Its writer sends copies, and names the life as writers do."""
    await keep_copies(rig, metadata)
    assert await statuses(rig, copy(0, NOW, b"now"), copy(1, NOW, b"now")) == [V3Status.EOK] * 2
    assert list(rig.storage.entry_ids(YOUNGER)) == [0, 1]
    assert life_here(rig) == NOW
    metadata.open.clear()
    assert await statuses(rig, copy(2, life_of(3))) == [V3Status.ENOLEDGER]


async def test_life_of_copies_in_an_ordinary_add_is_none(rig: ServerRig, metadata: Metadata) -> None:
    assert await statuses(rig, written(0, COPIES_OF_NOW)) == [V3Status.EOK]
    assert (life_here(rig), metadata.asked) == (b"", [])


COME_BEFORE = {
    "copy": copy(0, COPIES_OF_NOW),
    "explicit LAC": v3_write_lac(YOUNGER, 3, life=NOW),
    "nothing": b"",
}


@pytest.mark.parametrize("before", COME_BEFORE.values(), ids=COME_BEFORE)
@pytest.mark.parametrize("is_loaded", [False, True])
async def test_fence_of_a_dead_ledger_without_a_life_does_not_end_the_next_one(
    rig: ServerRig, metadata: Metadata, before: bytes, is_loaded: bool
) -> None:
    """Its writer replaces this bookie, also after clients that name its life came here."""
    assert await statuses(rig, v3_add(entry(YOUNGER, 0, b"old")), v3_fence(YOUNGER)) == [V3Status.EOK] * 2
    metadata.open.add(YOUNGER)
    if not is_loaded:
        rig.ledgers.states.clear()
    if before:
        assert await statuses(rig, before) == [V3Status.EUNKNOWNLEDGERSTATE]
    assert await statuses(rig, written(7, NOW)) == [V3Status.EUNKNOWNLEDGERSTATE]
    assert (life_here(rig), list(rig.storage.entry_ids(YOUNGER))) == (b"", [0])
    metadata.open.clear()
    metadata.closed.add(YOUNGER)
    assert await statuses(rig, copy(0, COPIES_OF_NOW)) == [V3Status.EOK]
    assert await statuses(rig, written(7, NOW)) == [V3Status.EFENCED]


async def test_remembered_fence_of_a_dead_ledger_does_not_end_the_next_one(rig: ServerRig, metadata: Metadata) -> None:
    """A copy of Apache's healer, which names no life, made it fenced."""
    rig.ledgers.fenced_and_deleted.add(YOUNGER)
    metadata.open.add(YOUNGER)
    assert await statuses(rig, v3_add(entry(YOUNGER, 0), recovery=True)) == [V3Status.EOK]
    refused = await statuses(rig, copy(1, COPIES_OF_NOW), written(2, NOW))
    assert refused == [V3Status.EUNKNOWNLEDGERSTATE] * 2
    assert life_here(rig) == b""


async def test_fence_that_comes_while_the_bookie_asks_is_the_living_ledgers(rig: ServerRig, metadata: Metadata) -> None:
    """The adds of its recovery wait for the same answer."""
    metadata.open.add(YOUNGER)
    assert await statuses(rig, v3_add(entry(YOUNGER, 0))) == [V3Status.EOK]
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(copy(1, COPIES_OF_NOW))
    await until(lambda: metadata.asked)
    metadata.open.clear()
    metadata.closed.add(YOUNGER)
    assert await statuses(rig, v3_fence(YOUNGER)) == [V3Status.EOK]
    conn.data_received(copy(2, COPIES_OF_NOW))
    metadata.answers.set()
    assert [v3_status(each) for each in await answers(rig, transport, 2)] == [V3Status.EOK] * 2
    assert (life_here(rig), metadata.asked) == (COPIES_OF_NOW, [YOUNGER] * 2)


@pytest.mark.parametrize("is_open", [True, False])
async def test_ledger_that_begins_without_a_life_while_the_bookie_asks_is_not_that_of_a_late_copy(
    rig: ServerRig, metadata: Metadata, is_open: bool
) -> None:
    """The former one was there when the metadata were read; then an Apache client made the next one."""
    metadata.life = FORMER
    (metadata.open if is_open else metadata.closed).add(YOUNGER)
    metadata.answers.clear()
    conn, transport = rig.connect()
    conn.data_received(copy(0, COPIES_OF_FORMER, b"late"))
    await until(lambda: metadata.asked)
    metadata.life = NOW
    metadata.open.add(YOUNGER)
    assert await statuses(rig, v3_add(entry(YOUNGER, 0, b"acknowledged"))) == [V3Status.EOK]
    metadata.answers.set()
    (refused,) = await answers(rig, transport, 1)
    assert v3_status(refused) == V3Status.ENOLEDGER
    assert rig.storage.cached(YOUNGER, 0) == entry(YOUNGER, 0, b"acknowledged")
    assert (life_here(rig), metadata.asked) == (b"", [YOUNGER] * 2)


@pytest.mark.parametrize("mine", [False, True], ids=["strangers", "recovery"])
async def test_refused_fences_count_for_a_question_only_with_the_key_of_the_living_ledger(
    rig: ServerRig, metadata: Metadata, mine: bool
) -> None:
    """Else strangers could let the bookie ask until the writer gives up. The first answer tells the key."""
    await keep_copies(rig, metadata, writer=True)
    metadata.password = b"another"
    keys = [OTHER_KEY] if mine else [master_key(b"a stranger's %d" % each) for each in range(40)]
    fences = b"".join(v3_fence(YOUNGER, key=key) for key in keys)
    strangers, transport = rig.connect()
    look = metadata.look

    async def look_while_fences_come(ledger_id: int) -> LedgerMetadata | None:
        found = await look(ledger_id)
        if len(metadata.asked) <= 3:
            strangers.data_received(fences)
        return found

    rig.handlers.questions = MetadataQuestions(rig.ledgers, NEWEST, look_while_fences_come, "b1")
    assert await statuses(rig, written(0, NOW, b"now", OTHER_KEY)) == [V3Status.EOK]
    assert len(metadata.asked) == (4 if mine else 2)
    assert {v3_status(each) for each in transport.frames} == {V3Status.EUA}


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("before", [v3_fence(YOUNGER), v3_add(entry(YOUNGER, 0))], ids=["fence", "former"])
async def test_key_of_another_ledger_without_a_life_does_not_end_the_named_one(
    rig: ServerRig, metadata: Metadata, before: bytes, closed: bool, is_loaded: bool
) -> None:
    """A stranger may have sent the fence, with a key that it made up. The metadata tell which key is the ledger's."""
    await ask(rig, before)
    (metadata.closed if closed else metadata.open).add(YOUNGER)
    metadata.password = b"another"
    if not is_loaded:
        rig.ledgers.states.clear()
    entries = list(rig.storage.entry_ids(YOUNGER))
    named = (
        written(0, NOW, b"now", OTHER_KEY),
        copy(1, COPIES_OF_NOW, b"now", OTHER_KEY),
        v3_write_lac(YOUNGER, 3, OTHER_KEY, life=NOW),
    )
    assert await statuses(rig, *named) == [V3Status.EUNKNOWNLEDGERSTATE] * 3
    assert await statuses(rig, written(0, NOW), copy(1, COPIES_OF_NOW)) == [V3Status.EUA] * 2, "the metadata tell so"
    unnamed = v3_add(entry(YOUNGER, 0), OTHER_KEY), v3_add(entry(YOUNGER, 0), OTHER_KEY, recovery=True)
    assert await statuses(rig, *unnamed) == [V3Status.EUA] * 2
    assert (life_here(rig), list(rig.storage.entry_ids(YOUNGER))) == (b"", entries)


@pytest.mark.parametrize("stored", [False, True])
async def test_clients_with_another_password_cause_one_question(
    rig: ServerRig, metadata: Metadata, stored: bool
) -> None:
    """The password of a life never changes."""
    metadata.open.add(YOUNGER)
    if stored:
        assert await statuses(rig, v3_add(entry(YOUNGER, 0), recovery=True)) == [V3Status.EOK]
    metadata.password = b"another"
    for each in range(3):
        key = master_key(b"a stranger's %d" % each)
        refused = await statuses(rig, written(0, NOW, key=key), v3_write_lac(YOUNGER, 0, key, life=NOW))
        assert refused == [V3Status.EUA] * 2
    assert metadata.asked == [YOUNGER]
    taken = await statuses(rig, written(0, NOW, key=OTHER_KEY))
    assert taken == [V3Status.EUNKNOWNLEDGERSTATE if stored else V3Status.EOK]
    assert metadata.asked == [YOUNGER] * 2
