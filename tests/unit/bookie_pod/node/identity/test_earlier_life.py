"""A bookie that comes back empty under the id of one that is gone."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie_client import Client
from bookie_pod.node.bookie import Bookie
from bookie_pod.node.identity.earlier_life import NAME, EarlierLife, metadata_questions
from bookie_pod.node.metadata import open_metadata
from bookie_protocol.errors import V2Code, V3Status
from bookie_protocol.keys import NO_LIFE, life_of, master_key
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID, LedgerMetadata, LedgerState
from tests.support.bookie_process import free_port
from tests.support.frames import entry, v2_add, v2_code, v3_add, v3_read, v3_status
from tests.support.live_bookie import started_bookie
from tests.support.memory_files import MemoryFiles
from tests.support.memory_metadata import MemoryLedgers
from tests.support.served_bookie import RawClient
from tests.support.server_rig import ServerRig, answers
from tests.support.simulation.process import no_check
from tests.support.until import until

ENGINES = ["DbLedgerStorage", "SortedLedgerStorage", "InterleavedLedgerStorage"]
PASSWORD = b"pw"
KEY = master_key(PASSWORD)


# --- the file ---------------------------------------------------------------------------------------------------


def lives(*folders: str) -> tuple[MemoryFiles, EarlierLife]:
    files = MemoryFiles()
    for folder in folders:
        files.makedirs(folder)
    return files, EarlierLife(files, folders)


def test_a_new_bookie_remembers_that_nobody_has_looked_yet() -> None:
    _, life = lives("/a", "/b")
    assert (life.is_unknown(), life.newest()) == (False, -1), "as of an older release"
    life.begin()
    assert life.is_unknown()
    life.note(17)
    assert (life.is_unknown(), life.newest()) == (False, 17)
    life.note(-1)
    assert (life.is_unknown(), life.newest()) == (False, -1)


def test_copies_that_an_interrupted_start_left_count_as_unknown() -> None:
    files, life = lives("/a", "/b")
    life.note(17)
    files.write_bytes(f"/b/{NAME}", b"")
    assert life.is_unknown()


def test_where_ledgers_may_have_been_forgotten_it_asks_for_every_ledger() -> None:
    _, life = lives("/a")
    life.doubt()
    assert life.newest() == MAX_LEDGER_ID
    life.begin()
    life.doubt()
    assert life.is_unknown(), "somebody has to look all the same"


@pytest.mark.parametrize("at", range(12))
def test_a_damaged_copy_makes_it_ask_for_every_ledger(at: int) -> None:
    files, life = lives("/a", "/b")
    life.note(17)
    data = bytearray(files.read_bytes(f"/a/{NAME}"))
    data[at] ^= 1
    files.write_bytes(f"/a/{NAME}", bytes(data))
    assert life.newest() == MAX_LEDGER_ID
    files.write_bytes(f"/a/{NAME}", bytes(data[:at]) or b"x")
    assert life.newest() == MAX_LEDGER_ID


# --- a whole bookie ---------------------------------------------------------------------------------------------


class Replaced:
    """A bookie of one engine that can be started, and replaced by an empty one of the same id."""

    def __init__(self, work: Path, engine: str) -> None:
        self.work = work
        self.settings = {
            "ledgerStorageClass": engine,
            "bookieId": "old-id",
            "bookiePort": str(free_port()),
            "gcWaitTime": "3600000",
        }

    @asynccontextmanager
    async def started(self) -> AsyncIterator[tuple[Bookie, Client, RawClient]]:
        async with started_bookie(self.work, self.settings) as bookie, Client(bookie._metadata) as client:
            raw = await RawClient.connect(bookie.port)
            yield bookie, client, raw
            await raw.close()

    async def replace(self, bookie: Bookie) -> None:
        """What an operator does with one that is stopped: empty disks, and no cookie."""
        service = await open_metadata(bookie.config.metadata, str(bookie.config.metadata.service_uri), make_store=True)
        await service.cookies.delete("old-id")
        await service.close()
        for name in ("journal", "ledgers"):
            shutil.rmtree(self.work / name)


@pytest.fixture(params=ENGINES)
def replaced(request: pytest.FixtureRequest, tmp_path: Path) -> Replaced:
    return Replaced(tmp_path, request.param)


async def abandoned(client: Client, entries: int = 3) -> int:
    """A ledger whose writer is idle."""
    writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1, password=PASSWORD)
    for number in range(entries):
        await writer.append(b"%d" % number)
    return writer.ledger_id


async def test_the_idle_writer_of_a_ledger_that_was_moved_and_closed_is_refused(replaced: Replaced) -> None:
    """As a replacement by the operator does it: the copies are elsewhere, and no ledger names the bookie any more."""
    async with replaced.started() as (bookie, client, _):
        moved = await abandoned(client)
        still_open = await abandoned(client)
        held = await bookie._metadata.ledgers.read(moved)
        elsewhere = {first: ("another",) * len(each) for first, each in held.value.ensembles.items()}
        await bookie._metadata.ledgers.write(
            replace(held.value, ensembles=elsewhere, state=LedgerState.CLOSED, last_entry_id=2, length=3), held.identity
        )
        held = await bookie._metadata.ledgers.read(still_open)
        await bookie._metadata.ledgers.write(replace(held.value, ensembles={0: ("another",)}), held.identity)
    await replaced.replace(bookie)
    async with replaced.started() as (_, client, raw):
        assert v2_code(await raw.ask(v2_add(entry(moved, 3), KEY))) == V2Code.EFENCED
        assert v2_code(await raw.ask(v2_add(entry(still_open, 3), KEY))) == V2Code.EOK, "its writer may have come here"
        younger = await abandoned(client)
        assert younger > still_open
    async with replaced.started() as (_, client, raw):
        assert v2_code(await raw.ask(v2_add(entry(moved, 3), KEY))) == V2Code.EFENCED, "after a restart as well"


async def test_what_the_metadata_still_place_here_is_in_limbo_and_fenced(replaced: Replaced) -> None:
    async with replaced.started() as (bookie, client, _):
        ledger_id = await abandoned(client)
    await replaced.replace(bookie)
    async with replaced.started() as (bookie, client, raw):
        assert v3_status(await raw.ask(v3_read(ledger_id, 1))) == V3Status.EUNKNOWNLEDGERSTATE
    async with replaced.started() as (bookie, client, raw):
        assert v2_code(await raw.ask(v2_add(entry(ledger_id, 3), KEY))) == V2Code.EFENCED
        await until(lambda: bookie.upkeep.integrity.data_check.state.last_error)
        assert bookie.upkeep.integrity.data_check.state.needed, "nobody else has the entries"
        assert (await bookie._metadata.ledgers.read(ledger_id)).value.state is not LedgerState.CLOSED


async def test_a_start_that_ended_before_anybody_looked_looks_again(replaced: Replaced) -> None:
    async with replaced.started() as (bookie, client, _):
        ledger_id = await abandoned(client)
    await replaced.replace(bookie)
    async with replaced.started():
        pass
    current = replaced.work / "ledgers" / "current"
    (current / NAME).write_bytes(b"")
    async with replaced.started() as (_, _, raw):
        assert (current / NAME).stat().st_size == 12
        assert v2_code(await raw.ask(v2_add(entry(ledger_id, 3), KEY))) == V2Code.EFENCED


# --- what the metadata service is asked -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "life", "is_this"),
    [(5, life_of(5), True), (5, NO_LIFE, True), (5, life_of(6), False), (0, life_of(6), True), (-5, life_of(-5), True)],
)
@pytest.mark.parametrize("newest", [-1, 7], ids=["younger", "older"])
@pytest.mark.parametrize("state", LedgerState)
async def test_first_entry_is_taken_for_no_other_life_and_of_an_older_ledger_if_it_is_open(
    token: int, life: bytes, is_this: bool, newest: int, state: LedgerState
) -> None:
    """Metadata without a token say nothing of the life."""
    store: Any = MemoryLedgers()
    metadata = LedgerMetadata(7, 1, 1, 1, {0: ("b1",)}, creation_token=token)
    store.make(replace(metadata, state=state) if state is not LedgerState.CLOSED else metadata.closed(0, 1))
    rig = ServerRig()
    rig.handlers.questions = metadata_questions(rig.ledgers, newest, store, "b1", no_check)
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(7, 0), life=life))
    goes_on = is_this and (newest < 7 or state is LedgerState.OPEN)
    (added,) = await answers(rig, transport, 1)
    assert v3_status(added) == (V3Status.EOK if goes_on else V3Status.EFENCED)
    conn.data_received(v3_add(entry(8, 0), life=life_of(5)))
    (_, missing) = await answers(rig, transport, 2)
    assert v3_status(missing) == V3Status.EFENCED
    rig.close()
