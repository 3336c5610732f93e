"""Recovery against model bookies: what is found, what ends a ledger, who may do it."""

import asyncio
from itertools import combinations, product

import pytest

from bookie_client.distribution import Quorums
from bookie_client.reading.lac import is_covered
from bookie_protocol.digest import DigestType
from bookie_protocol.entry import read_header
from bookie_protocol.errors import (
    LedgerClosed,
    LedgerFenced,
    LedgerStateUnknown,
    MetadataUnavailable,
    NoSuchLedger,
    RecoveryFailed,
    StorageFault,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.model_bookie import ModelLedger
from tests.unit.bookie_client.recovery.crashed import ABC, LEDGER, CrashedLedger, contents, crashed, length_of, payload

# --- the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", list(DigestType))
async def test_a_dead_writers_ledger_is_closed_behind_its_last_entry(cluster, version, digest):
    ledger = await crashed(cluster, digest=digest)
    ledger.put_all(*range(10))
    async with cluster.client(protocol_version=version) as client:
        metadata = await client.recover(LEDGER, password=b"pw")
        assert metadata == ledger.stored
        ledger.check(9)
        assert await contents(client) == [payload(i) for i in range(10)]
    assert ledger.states == ["OPEN", "IN_RECOVERY", "CLOSED"]
    assert all(ledger.fenced(bookie) for bookie in ABC)


async def test_an_ack_quorum_of_zero_counts_as_one(cluster):
    """Java allows it: such a writer is told of an entry when one bookie has it."""
    ledger = await crashed(cluster, quorums=(3, 3, 0))
    ledger.put_all(*range(5))
    ledger.put(5, "b2")
    async with cluster.client() as client:
        await client.recover(LEDGER, password=b"pw")
    ledger.check(5)


async def test_headers_lag_by_one_and_recovery_finds_the_entry_behind(cluster, version):
    for name in ABC:
        await cluster.add_bookie(name)
    async with cluster.client(protocol_version=version) as client:
        writer = await client.create(write_quorum=3, password=b"pw", ledger_id=LEDGER)
        for i in range(6):
            await writer.append(payload(i))
    assert max(ledger.lac for b in ABC for ledger in cluster.bookie(b).ledgers.values()) == 4
    async with cluster.client(protocol_version=version) as client:
        assert (await client.recover(LEDGER, password=b"pw")).last_entry_id == 5
        assert await contents(client) == [payload(i) for i in range(6)]


@pytest.mark.parametrize("known", [False, True], ids=["nobody knows it", "only fenced"])
async def test_an_empty_ledger(cluster, version, known):
    ledger = await crashed(cluster)
    if known:
        for bookie in ABC:
            cluster.bookie(bookie).ledgers[LEDGER] = ModelLedger(ledger.key, fenced=True)
    async with cluster.client(protocol_version=version) as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(-1)
        assert await contents(client) == []


async def test_a_closed_ledger_is_left_alone(cluster):
    ledger = await crashed(cluster)
    ledger.put_all(0, 1)
    async with cluster.client() as client:
        first = await client.recover(LEDGER, password=b"pw")
        reads = sum(cluster.bookie(b).reads for b in ABC)
        assert await client.recover(LEDGER, password=b"pw") == first
        async with client.open(LEDGER, password=b"pw", recover=True) as reader:
            assert (reader.is_closed, reader.last_add_confirmed, reader.length) == (True, 1, length_of(1))
        assert sum(cluster.bookie(b).reads for b in ABC) == reads
    assert ledger.states == ["OPEN", "IN_RECOVERY", "CLOSED"]


async def test_a_hole_ends_the_ledger_whatever_is_behind_it(cluster, version):
    ledger = await crashed(cluster)
    ledger.put_all(0, 1, 2)
    ledger.put(4, lac=2)
    ledger.put(5, lac=2)
    async with cluster.client(protocol_version=version) as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(2)
        assert await contents(client) == [payload(i) for i in range(3)]


@pytest.mark.parametrize("copies", [1, 2, 3])
async def test_an_entry_with_fewer_copies_than_the_ack_quorum_gets_them(cluster, version, copies):
    ledger = await crashed(cluster)
    ledger.put_all(*range(5))
    order = ledger.metadata.bookies_for(5)
    ledger.put(5, *order[:copies], lac=4)
    async with cluster.client(protocol_version=version) as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(5)


async def test_the_headers_of_stored_entries_carry_the_confirmed_start_and_the_writers_length(cluster):
    ledger = await crashed(cluster)
    ledger.put_all(0, 1)
    for entry_id in range(2, 8):
        ledger.put(entry_id, "b1", lac=0)
        ledger.put(entry_id, "b2", lac=0)
    async with cluster.client() as client:
        await client.recover(LEDGER, password=b"pw")
    ledger.check(7)
    for entry_id in range(2, 8):
        header = read_header(cluster.bookie("b3").ledgers[LEDGER].entries[entry_id])
        assert header == (LEDGER, entry_id, 0, length_of(entry_id))
    assert max(cluster.bookie(b).ledgers[LEDGER].lac for b in ABC) == 0


# --- segments -------------------------------------------------------------------------------------------------


async def test_an_ensemble_change_before_the_crash(cluster, version):
    ledger = await crashed(cluster, segments={0: ABC, 4: ("b1", "b4", "b3")})
    ledger.put_all(*range(8))
    await cluster.servers["b2"].stop()
    async with cluster.client(protocol_version=version) as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(7)
        assert list(ledger.stored.ensembles) == [0, 4]
        assert await contents(client) == [payload(i) for i in range(8)]
    assert not ledger.fenced("b2")


@pytest.mark.parametrize(("quorums", "deniers"), [((3, 3, 3), ["b1"]), ((3, 3, 2), ["b1", "b2"])])
async def test_any_copy_of_the_last_confirmed_entry_tells_the_length(cluster, quorums, deniers):
    """The last ensemble has nothing yet, and bookies of the one before have lost that entry."""
    ledger = await crashed(cluster, quorums, segments={0: ABC, 4: ("b4", "b5", "b6")})
    ledger.put_all(*range(3))
    ledger.put(3, *(bookie for bookie in ABC if bookie not in deniers))
    async with cluster.client() as client:
        await client.recover(LEDGER, password=b"pw")
    assert (ledger.stored.last_entry_id, ledger.stored.length) == (3, length_of(3))


async def test_an_empty_last_segment_starts_where_its_writer_was(cluster, version):
    """Its bookies know nothing, and none of them holds what is confirmed."""
    ledger = await crashed(cluster, segments={0: ABC, 4: ("b4", "b5", "b6")})
    ledger.put_all(*range(4))
    async with cluster.client(protocol_version=version) as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(3)
        assert await contents(client) == [payload(i) for i in range(4)]


async def test_the_length_is_a_guess_when_the_confirmed_end_cannot_be_read(cluster):
    ledger = await crashed(cluster, segments={0: ABC, 4: ("b4", "b5", "b6")})
    ledger.put_all(*range(4))
    for name in ABC:
        await cluster.servers[name].stop()
    async with cluster.client() as client:
        metadata = await client.recover(LEDGER, password=b"pw")
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 3)


async def test_the_guess_is_what_the_header_that_told_the_end_counted(cluster):
    """Two entries behind the end are in it, of which one is lost and the other behind that hole."""
    ledger = await crashed(cluster, segments={0: ABC, 4: ("b4", "b5", "b6")})
    ledger.put_all(*range(4))
    ledger.put(5, "b4", lac=3)
    for name in ABC:
        await cluster.servers[name].stop()
    async with cluster.client() as client:
        metadata = await client.recover(LEDGER, password=b"pw")
    assert (metadata.last_entry_id, metadata.length) == (3, length_of(5))


@pytest.mark.parametrize(("pushed", "lac"), [(4, 4), (5, 4), (9, 4)])
async def test_the_length_is_that_of_the_last_entry_whatever_the_header_counted(cluster, pushed, lac):
    """The entry that tells LAC 4 counts itself and, with a pipelining writer, others that are lost."""
    ledger = await crashed(cluster, quorums=(3, 3, 3))
    ledger.put_all(*range(5))
    if pushed > 4:
        ledger.put(pushed, "b1", lac=lac)
        # The others deny entry 5, and that is enough.
        order = ledger.metadata.bookies_for(5)
        assert order[0] != "b1"
    async with cluster.client() as client:
        await client.recover(LEDGER, password=b"pw")
    ledger.check(4)


# --- how many bookies it takes --------------------------------------------------------------------------------


def dead_subsets(size):
    return [set(c) for n in range(size + 1) for c in combinations(range(size), n)]


@pytest.mark.parametrize("quorums", [(5, 5, 3), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2)])
async def test_recovery_works_for_exactly_the_subsets_that_cover_every_write_set(cluster, quorums):
    for number, dead in enumerate(dead_subsets(quorums[0])):
        prefix = f"n{number}-"
        names = tuple(f"{prefix}b{i}" for i in range(quorums[0]))
        cluster.metadata.bookies.writable.clear()
        for name in (*names, f"{prefix}s1", f"{prefix}s2", f"{prefix}s3"):
            await cluster.add_bookie(name)
        ledger = CrashedLedger(cluster, quorums, {0: names})
        ledger.put_all(*range(8))
        for position in dead:
            await cluster.servers[names[position]].stop()
            cluster.metadata.bookies.drop(names[position])
        async with cluster.client() as client:
            alive = set(range(quorums[0])) - dead
            if is_covered(Quorums(*quorums), alive):
                metadata = await client.recover(LEDGER, password=b"pw")
                assert metadata.last_entry_id == 7, dead
                assert len(ledger.holders(7)) >= quorums[2], dead
            else:
                with pytest.raises(RecoveryFailed, match="fenced"):
                    await client.recover(LEDGER, password=b"pw")
                assert ledger.stored.state is LedgerState.IN_RECOVERY
        for name in names:
            await cluster.servers[name].stop()


@pytest.mark.parametrize("answers", list(product(["found", "no", "limbo"], repeat=3)), ids="-".join)
async def test_the_decision_about_the_next_entry(cluster, answers):
    """Qw=3, Qa=2: any copy keeps it, two denials end the ledger, anything else leaves it to a later attempt."""
    ledger = await crashed(cluster)
    ledger.put_all(*range(5))
    order = ledger.metadata.bookies_for(5)
    for bookie, answer in zip(order, answers, strict=True):
        if answer == "found":
            ledger.put(5, bookie)
        elif answer == "limbo":
            deny(cluster.bookie(bookie), 5, LedgerStateUnknown)
    first_found = answers.index("found") if "found" in answers else 3
    async with cluster.client() as client:
        if answers[:first_found].count("no") >= 2:
            await client.recover(LEDGER, password=b"pw")
            ledger.check(4)
        elif first_found < 3:
            await client.recover(LEDGER, password=b"pw")
            ledger.check(5)
        else:
            with pytest.raises(RecoveryFailed, match="entry 5 of ledger 7"):
                await client.recover(LEDGER, password=b"pw")
            assert ledger.stored.state is LedgerState.IN_RECOVERY
            for bookie in ABC:
                undeny(cluster.bookie(bookie))
            await client.recover(LEDGER, password=b"pw")
            ledger.check(4)


def deny(bookie, entry_id, error):
    read = bookie.read

    def failing(ledger_id, asked, fence_key=None):
        if asked == entry_id:
            raise error("model fault")
        return read(ledger_id, asked, fence_key)

    bookie.read = failing


def undeny(bookie):
    vars(bookie).pop("read", None)


async def test_silence_is_never_a_denial(cluster, version):
    ledger = await crashed(cluster)
    ledger.put_all(*range(5))
    order = ledger.metadata.bookies_for(5)
    seen = asyncio.Event()
    bookie = cluster.bookie(order[1])
    read = bookie.read

    def silent_from_here(ledger_id, asked, fence_key=None):
        if asked == 5:
            cluster.servers[order[1]].silent = cluster.servers[order[2]].silent = True
            seen.set()
        return read(ledger_id, asked, fence_key)

    bookie.read = silent_from_here
    async with cluster.client(protocol_version=version) as client:
        with pytest.raises(RecoveryFailed, match="answer"):
            await client.recover(LEDGER, password=b"pw")
        assert seen.is_set()
        assert ledger.stored.state is LedgerState.IN_RECOVERY
        cluster.servers[order[1]].silent = cluster.servers[order[2]].silent = False
        undeny(bookie)
        await client.recover(LEDGER, password=b"pw")
        ledger.check(4)


async def test_a_damaged_copy_is_no_denial_and_no_entry(cluster):
    ledger = await crashed(cluster)
    ledger.put_all(*range(6))
    order = ledger.metadata.bookies_for(5)
    for bookie in order[:2]:
        cluster.bookie(bookie).damage(LEDGER, 5)
    async with cluster.client() as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(5)
        assert await contents(client) == [payload(i) for i in range(6)]


async def test_damage_that_the_bookies_find_themselves_keeps_no_ledger_open(cluster, version):
    """Two of three cannot read their last entry, and all three are fenced: the good copy is found."""
    ledger = await crashed(cluster)
    ledger.put_all(*range(6))
    for bookie in ledger.metadata.bookies_for(5)[:2]:
        cluster.bookie(bookie).verifies = True
        cluster.bookie(bookie).damage(LEDGER, 5)
    async with cluster.client(protocol_version=version) as client:
        await client.recover(LEDGER, password=b"pw")
        ledger.check(5)
        assert await contents(client) == [payload(i) for i in range(6)]
    assert all(ledger.fenced(bookie) for bookie in ABC)


async def test_a_bookie_that_reads_nothing_behind_the_fence_proves_none(cluster):
    ledger = await crashed(cluster)
    ledger.put_all(*range(6))
    for bookie in ABC[:2]:
        cluster.bookie(bookie).fail_reads = StorageFault
    async with cluster.client() as client:
        with pytest.raises(RecoveryFailed):
            await client.recover(LEDGER, password=b"pw")
    assert ledger.stored.state is LedgerState.IN_RECOVERY


async def test_copies_that_are_all_damaged_fail_the_recovery(cluster):
    ledger = await crashed(cluster)
    ledger.put_all(*range(6))
    ledger.put(6, lac=4)
    for bookie in ABC:
        cluster.bookie(bookie).damage(LEDGER, 5)
    async with cluster.client() as client:
        with pytest.raises(RecoveryFailed, match="entry 5 of ledger 7"):
            await client.recover(LEDGER, password=b"pw")
    assert ledger.stored.state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize(("dead", "end"), [("b3", 5), ("b1", 4), (("b1", "b3"), None)])
async def test_the_worked_example_of_the_reference(cluster, dead, end):
    """0 to 4 acknowledged by two of three, 5 stored on the first alone."""
    ledger = await crashed(cluster)
    ledger.put_all(*range(4))
    ledger.put(4, "b1", "b2")
    ledger.put(5, "b1")
    for name in [dead] if isinstance(dead, str) else dead:
        await cluster.servers[name].stop()
    async with cluster.client() as client:
        if end is None:
            with pytest.raises(RecoveryFailed):
                await client.recover(LEDGER, password=b"pw")
        else:
            await client.recover(LEDGER, password=b"pw")
            ledger.check(end)


# --- passwords ------------------------------------------------------------------------------------------------


async def test_a_wrong_password_fences_nobody(cluster, version):
    ledger = await crashed(cluster)
    ledger.put_all(0, 1)
    async with cluster.client(protocol_version=version) as client:
        for attempt in (client.recover(LEDGER, password=b"other"), client.open(LEDGER, recover=True)):
            with pytest.raises(Unauthorized):
                await attempt
    assert (ledger.states, [cluster.bookie(b).reads for b in ABC]) == (["OPEN"], [0, 0, 0])
    assert not any(ledger.fenced(b) for b in ABC)


async def test_the_recorded_password_serves_administration(cluster):
    ledger = await crashed(cluster, digest=DigestType.MAC)
    ledger.put_all(0, 1)
    async with cluster.client() as client:
        await client.recover(LEDGER, password=None)
        async with client.open(LEDGER, password=None) as reader:
            assert len(await reader.read(0, 1)) == 2
    ledger.check(1)


async def test_without_a_recorded_password_the_bookies_refuse_a_wrong_one(cluster, version):
    ledger = await crashed(cluster, recorded=False)
    ledger.put_all(0, 1)
    async with cluster.client(protocol_version=version) as client:
        with pytest.raises(Unauthorized):
            await client.recover(LEDGER, password=b"other")
        assert not any(ledger.fenced(b) for b in ABC)
        await client.recover(LEDGER, password=b"pw")
    ledger.check(1)


async def test_a_ledger_that_does_not_exist(cluster):
    async with cluster.client() as client:
        with pytest.raises(NoSuchLedger):
            await client.recover(99)
        with pytest.raises(NoSuchLedger):
            await client.open(99, recover=True)


# --- the old writer -------------------------------------------------------------------------------------------


async def test_a_fenced_writer_is_told_and_nothing_acknowledged_is_lost(three, version):
    async with three.client(protocol_version=version) as zombie, three.client(protocol_version=version) as client:
        writer = await zombie.create(write_quorum=3, password=b"pw", ledger_id=LEDGER)
        for i in range(5):
            await writer.append(payload(i))
        async with client.open(LEDGER, password=b"pw", recover=True) as reader:
            with pytest.raises(LedgerFenced):
                await writer.append(b"too late")
            with pytest.raises(LedgerClosed):
                await writer.append(b"even later")
            assert [e.payload async for e in reader.entries()] == [payload(i) for i in range(5)]
        await writer.close()
        assert three.stored(LEDGER).last_entry_id == 4


async def test_the_writer_closes_first(cluster):
    """Fenced, it may still store its own end; the recovery adopts that, with all that it stored again above."""
    ledger = await crashed(cluster)
    ledger.put_all(*range(5))
    store = cluster.metadata.ledgers
    bookie, read = cluster.bookie("b1"), cluster.bookie("b1").read

    def closing(ledger_id, asked, fence_key=None):
        if not ledger.stored.is_closed:
            store.change(ledger.stored.closed(3, length_of(3)))
        return read(ledger_id, asked, fence_key)

    bookie.read = closing
    async with cluster.client() as client:
        metadata = await client.recover(LEDGER, password=b"pw")
        assert (metadata.last_entry_id, metadata.length) == (3, length_of(3))
        assert await contents(client) == [payload(i) for i in range(4)]
    ledger.check(3)


def on_read(cluster, bookie, do):
    """Whenever the bookie is asked for an entry, `do` comes first."""
    read = cluster.bookie(bookie).read

    def asked(*args, **more):
        do()
        return read(*args, **more)

    cluster.bookie(bookie).read = asked


async def without_reads(cluster):
    """A ledger of three entries whose bookies refuse to read."""
    ledger = await crashed(cluster)
    ledger.put_all(*range(3))
    for bookie in ABC:
        cluster.bookie(bookie).fail_reads = StorageFault
    return ledger


async def test_a_failed_recovery_adopts_what_somebody_else_stored(cluster):
    ledger = await without_reads(cluster)
    store = cluster.metadata.ledgers
    on_read(cluster, "b3", lambda: store.change(ledger.stored.closed(2, length_of(2))))
    async with cluster.client() as client:
        assert (await client.recover(LEDGER, password=b"pw")).last_entry_id == 2


async def test_a_failed_recovery_that_cannot_ask_what_others_stored_tells_its_own_failure(cluster):
    """Not that of the metadata service: bookies are what has to come back. Nothing is lost: the next one closes it."""
    ledger = await without_reads(cluster)
    store = cluster.metadata.ledgers
    away = True
    on_read(cluster, "b3", lambda: setattr(store, "unavailable", away))
    async with cluster.client() as client:
        with pytest.raises(RecoveryFailed, match="IN_RECOVERY") as caught:
            await client.recover(LEDGER, password=b"pw")
        assert not isinstance(caught.value.__cause__, MetadataUnavailable)
        away = store.unavailable = False
        assert ledger.stored.state is LedgerState.IN_RECOVERY
        for bookie in ABC:
            cluster.bookie(bookie).fail_reads = None
        assert (await client.recover(LEDGER, password=b"pw")).last_entry_id == 2
    ledger.check(2)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_ledger_that_is_deleted_meanwhile(cluster, fails):
    if fails:
        await without_reads(cluster)
    else:
        (await crashed(cluster)).put_all(*range(3))
    on_read(cluster, "b1", lambda: cluster.metadata.ledgers.stored.pop(LEDGER, None))
    async with cluster.client() as client:
        with pytest.raises(NoSuchLedger):
            await client.recover(LEDGER, password=b"pw")
