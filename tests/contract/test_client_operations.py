"""Every single request of the client against a bookie of ours, over real sockets, in both protocol versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    BookieReadOnly,
    BookieUnavailable,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    Unauthorized,
)
from bookie_protocol.versioned import LedgerLife
from tests.support.client_operations import Operations, operations_on
from tests.support.frames import KEY, OTHER_KEY, entry, lac_packet
from tests.support.gated_files import GatedFiles
from tests.support.served_bookie import ServedBookie
from tests.support.until import until

B = "bookie"


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[ServedBookie]:
    async with ServedBookie(tmp_path) as bookie:
        yield bookie


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
async def ask(request: pytest.FixtureRequest, bookie: ServedBookie) -> AsyncIterator[Operations]:
    """A client of either version."""
    async with operations_on({B: bookie.port}, protocol_version=request.param) as operations:
        yield operations


@pytest.fixture
async def ask3(bookie: ServedBookie) -> AsyncIterator[Operations]:
    async with operations_on({B: bookie.port}) as operations:
        yield operations


@pytest.fixture
async def ask2(bookie: ServedBookie) -> AsyncIterator[Operations]:
    async with operations_on({B: bookie.port}, protocol_version=2) as operations:
        yield operations


async def fill(ask: Operations, count: int, ledger_id: int = 1) -> None:
    await asyncio.gather(
        *(ask.add_entry(B, LedgerLife(ledger_id, 0), e, entry(ledger_id, e), KEY) for e in range(count))
    )


# --- adds and reads -----------------------------------------------------------------------------------------


async def test_add_and_read(ask: Operations) -> None:
    await fill(ask, 10)
    for e in range(10):
        assert (await ask.read_entry(B, 1, e)).entry == entry(1, e)
    last = await ask.read_entry(B, 1, LAST_ENTRY, high_priority=True)
    assert last.entry == entry(1, 9)
    assert last.max_lac == (8 if ask.pool.options.protocol_version == 3 else None)


async def test_not_there_is_the_bookies_own_word(ask: Operations) -> None:
    with pytest.raises(NoSuchLedger, match=f"bookie {B} .*ENOLEDGER .* entry 0 of ledger 9"):
        await ask.read_entry(B, 9, 0)
    await fill(ask, 1)
    with pytest.raises(NoSuchEntry):
        await ask.read_entry(B, 1, 1)


async def test_the_fence_keeps_the_writer_out_and_lets_the_recovery_in(ask: Operations) -> None:
    await fill(ask, 3)
    with pytest.raises(Unauthorized):
        await ask.read_entry(B, 1, LAST_ENTRY, fence_key=OTHER_KEY)
    await ask.add_entry(B, LedgerLife(1, 0), 3, entry(1, 3), KEY)
    assert (await ask.read_entry(B, 1, LAST_ENTRY, fence_key=KEY)).entry == entry(1, 3)
    with pytest.raises(LedgerFenced):
        await ask.add_entry(B, LedgerLife(1, 0), 4, entry(1, 4), KEY)
    await ask.add_entry(B, LedgerLife(1, 0), 4, entry(1, 4), KEY, recovery=True)
    assert (await ask.read_entry(B, 1, 4, fence_key=KEY, high_priority=True)).entry == entry(1, 4)
    with pytest.raises(NoSuchEntry):
        await ask.read_entry(B, 1, 5, fence_key=KEY, high_priority=True)


async def test_fencing_a_ledger_that_is_unknown_keeps_its_writer_out(ask: Operations) -> None:
    with pytest.raises(NoSuchEntry):
        await ask.read_entry(B, 7, LAST_ENTRY, fence_key=KEY)
    with pytest.raises(LedgerFenced):
        await ask.add_entry(B, LedgerLife(7, 0), 0, entry(7, 0), KEY)


async def test_plain_and_fencing_reads_of_one_entry_do_not_answer_for_each_other(ask: Operations) -> None:
    """In version 2 both would have one key: a plain answer must not pass for a fence."""
    await fill(ask, 1)
    plain = [asyncio.create_task(ask.read_entry(B, 1, 0)) for _ in range(20)]
    with pytest.raises(Unauthorized):
        await ask.read_entry(B, 1, 0, fence_key=OTHER_KEY)
    assert {(await each).entry for each in plain} == {entry(1, 0)}


async def test_another_key_is_refused(ask: Operations) -> None:
    await fill(ask, 1)
    with pytest.raises(Unauthorized):
        await ask.add_entry(B, LedgerLife(1, 0), 1, entry(1, 1), OTHER_KEY)


async def test_a_read_only_bookie_takes_no_adds(ask: Operations, bookie: ServedBookie) -> None:
    await fill(ask, 1)
    bookie.server.admission.set_mode(read_only=True, high_priority_writes=True)
    with pytest.raises(BookieReadOnly):
        await ask.add_entry(B, LedgerLife(1, 0), 1, entry(1, 1), KEY)
    assert (await ask.read_entry(B, 1, 0)).entry == entry(1, 0)


# --- batch reads --------------------------------------------------------------------------------------------


async def test_batch_reads_in_clients_of_both_versions(ask: Operations, bookie: ServedBookie) -> None:
    await fill(ask, 20)
    assert (await ask.batch_read(B, 1, 5, 4, 0)).split() == [entry(1, e) for e in range(5, 9)]
    assert (await ask.batch_read(B, 1, 15, 0, 1 << 20)).split() == [entry(1, e) for e in range(15, 20)]
    size = len(entry(1, 0)) + 4
    assert (await ask.batch_read(B, 1, 0, 0, 36 + 3 * size)).split() == [entry(1, e) for e in range(3)]
    assert (await ask.batch_read(B, 1, 0, 10, 1)).split() == [entry(1, 0)]
    with pytest.raises(NoSuchEntry):
        await ask.batch_read(B, 1, 20, 10, 0)
    with pytest.raises(NoSuchLedger):
        await ask.batch_read(B, 2, 0, 10, 0)
    # Several of one start at a time: each has its own answer.
    batches = await asyncio.gather(*(ask.batch_read(B, 1, 0, count, 0) for count in range(1, 11)))
    assert [len(batch.split()) for batch in batches] == list(range(1, 11))


# --- the last add confirmed ---------------------------------------------------------------------------------


async def test_explicit_lac(ask3: Operations) -> None:
    with pytest.raises(NoSuchEntry):
        await ask3.read_lac(B, 1)
    await fill(ask3, 3)
    found = await ask3.read_lac(B, 1)
    assert (found.explicit, found.last_entry, found.complete) == (None, entry(1, 2), True)
    await ask3.write_lac(B, 1, KEY, 2, lac_packet(1, 2))
    found = await ask3.read_lac(B, 1)
    assert (found.explicit, found.last_entry, found.complete) == (lac_packet(1, 2), entry(1, 2), True)
    assert (await ask3.read_entry(B, 1, 0)).max_lac == 2
    with pytest.raises(Unauthorized):
        await ask3.write_lac(B, 1, OTHER_KEY, 2, lac_packet(1, 2))
    await ask3.read_entry(B, 1, 0, fence_key=KEY)
    await ask3.write_lac(B, 1, KEY, 2, lac_packet(1, 2))


async def test_an_explicit_lac_without_any_entry_is_a_lower_bound(ask3: Operations) -> None:
    await ask3.write_lac(B, 1, KEY, 5, lac_packet(1, 5))
    found = await ask3.read_lac(B, 1)
    assert (found.explicit, found.last_entry, found.complete) == (lac_packet(1, 5), None, False)


async def test_a_long_poll_wakes_with_the_entry(ask3: Operations) -> None:
    await fill(ask3, 3)
    at_once = await ask3.long_poll(B, 1, LAST_ENTRY, 0, 60.0, piggyback_entry=True)
    assert (at_once.max_lac, at_once.entry) == (1, entry(1, 1))
    poll = asyncio.create_task(ask3.long_poll(B, 1, LAST_ENTRY, 1, 60.0, piggyback_entry=True))
    await asyncio.sleep(0)
    await ask3.add_entry(B, LedgerLife(1, 0), 3, entry(1, 3), KEY)
    async with asyncio.timeout(5):
        woken = await poll
    assert (woken.max_lac, woken.entry) == (2, entry(1, 2))


async def test_a_long_poll_ends_when_its_time_is_up(ask3: Operations) -> None:
    await fill(ask3, 3)
    for seconds in (0.05, 0.0):
        in_time = await ask3.long_poll(B, 1, LAST_ENTRY, 1, seconds, piggyback_entry=True)
        assert (in_time.max_lac, in_time.entry) == (1, None)
    plain = await ask3.long_poll(B, 1, 2, 1, 0.05, piggyback_entry=False)
    assert (plain.max_lac, plain.entry) == (1, entry(1, 2))


async def test_a_long_poll_outlives_the_time_out_of_reads(bookie: ServedBookie) -> None:
    async with operations_on({B: bookie.port}, read_timeout=0.2, add_timeout=0.2) as ask:
        await fill(ask, 3)
        assert (await ask.long_poll(B, 1, LAST_ENTRY, 1, 0.6, piggyback_entry=True)).entry is None


async def test_long_polls_of_what_is_not_there(ask3: Operations) -> None:
    with pytest.raises(NoSuchLedger):
        await ask3.long_poll(B, 1, LAST_ENTRY, -1, 5.0, piggyback_entry=True)
    await fill(ask3, 1)
    with pytest.raises(BadRequest):
        await ask3.long_poll(B, 1, 0, -1, 5.0, piggyback_entry=True)


async def test_a_cancelled_long_poll_is_given_up(ask3: Operations) -> None:
    await fill(ask3, 3)
    poll = asyncio.create_task(ask3.long_poll(B, 1, LAST_ENTRY, 1, 60.0, piggyback_entry=True))
    await until(lambda: ask3.pool.health.outstanding(B) == 1)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    # Its answer comes with this add, and meets nobody.
    await ask3.add_entry(B, LedgerLife(1, 0), 3, entry(1, 3), KEY)
    assert (await ask3.read_entry(B, 1, 3)).max_lac == 2
    await until(lambda: ask3.pool.health.outstanding(B) == 0)


# --- the bookie ---------------------------------------------------------------------------------------------


async def test_space_and_entries_in_clients_of_both_versions(ask: Operations) -> None:
    info = await ask.bookie_info(B)
    assert info.total_bytes > info.free_bytes > 0
    with pytest.raises(NoSuchLedger):
        await ask.entries_of_ledger(B, 1)
    for e in (0, 1, 5, 6, 7, 20):
        await ask.add_entry(B, LedgerLife(1, 0), e, entry(1, e), KEY)
    assert list(await ask.entries_of_ledger(B, 1)) == [0, 1, 5, 6, 7, 20]


async def test_a_force_returns_once_the_disk_has_synced(tmp_path: Path) -> None:
    files = GatedFiles()
    disk = files.gate("/journal/", frozenset({"sync", "datasync"}))
    async with ServedBookie(tmp_path, files=files) as bookie, operations_on({B: bookie.port}) as ask:
        await ask.add_entry(B, LedgerLife(1, 0), 0, entry(1, 0), KEY)
        disk.close()
        forced = asyncio.create_task(ask.force_ledger(B, 1))
        await asyncio.to_thread(disk.reached)
        await ask.bookie_info(B)  # the bookie answers what needs no disk
        assert not forced.done()
        disk.open()
        await forced


async def test_what_version_2_has_no_message_for(ask2: Operations) -> None:
    for refused in (
        ask2.read_lac(B, 1),
        ask2.write_lac(B, 1, KEY, 0, lac_packet(1, 0)),
        ask2.force_ledger(B, 1),
        ask2.long_poll(B, 1, LAST_ENTRY, -1, 1.0, piggyback_entry=True),
    ):
        with pytest.raises(BadVersion, match=r"version 2 .*protocol_version=3"):
            await refused
    assert not ask2.pool.channel(B).is_connected


# --- failures -----------------------------------------------------------------------------------------------


async def test_a_bookie_that_stops_under_a_request(ask3: Operations, bookie: ServedBookie, tmp_path: Path) -> None:
    await fill(ask3, 3)
    poll = asyncio.create_task(ask3.long_poll(B, 1, LAST_ENTRY, 1, 60.0, piggyback_entry=True))
    await until(lambda: ask3.pool.health.outstanding(B) == 1)
    await bookie.crash()
    with pytest.raises(BookieUnavailable):
        await poll
    with pytest.raises(BookieUnavailable):
        await ask3.read_entry(B, 1, 0)
    assert ask3.pool.health.failed_lately() == {B}
    await bookie.start()
    ask3.ports = {B: bookie.port}
    await ask3.pool.channel(B).connect()
    assert ask3.pool.health.failed_lately() == frozenset()
    assert (await ask3.read_entry(B, 1, 2)).entry == entry(1, 2)
