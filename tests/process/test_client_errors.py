"""Every error that the client's handles promise, brought about by what brings it about in life."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest

from bookie_client import BlockingClient, Client, ClientOptions, PlacementOptions
from bookie_client.reading.maintenance import replicas
from bookie_client.replication.fragments import fragments
from bookie_client.replication.replicator import FragmentReplicator
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.entry import ENTRY_IDS
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    BookieReadOnly,
    BookieTimeout,
    BookieUnavailable,
    ConnectionLost,
    DigestMismatch,
    DuplicateEntry,
    EntriesUnreadable,
    LedgerClosed,
    LedgerFenced,
    LedgerIdsExhausted,
    LedgerNotClosed,
    LedgerStateUnknown,
    MetadataDamaged,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    QuorumLost,
    RecoveryFailed,
    StorageFault,
    TooManyRequests,
    Unauthorized,
)
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.embedded.store import NodeStore, _Staged
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.tree.paths import LONG_ID_GENERATION, SHORT_ID_LIMIT, ledger_path
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.bookie_process import free_port
from tests.support.cluster_fixtures import bookies as cluster
from tests.support.cluster_fixtures import metadata_service
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.until import until

__all__ = ["cluster", "metadata_service"]

BOOKIES = 3
"""An ensemble, and no spare."""
PASSWORD = b"pw"
AT_ONCE = {"reconnect_delay": 0.01, "max_reconnect_delay": 0.05}
SHORT = {"add_timeout": 0.4, "read_timeout": 0.4, **AT_ONCE}


@pytest.fixture
async def service(cluster):
    opened = await open_metadata_service(cluster.uri)
    yield opened
    await opened.close()


@pytest.fixture
async def client(cluster):
    async with Client(cluster.uri) as made:
        yield made


@pytest.fixture
async def impatient(cluster):
    """For what fails by a time-out."""
    async with Client(cluster.uri, ClientOptions(**SHORT)) as made:
        yield made


@pytest.fixture
def alone(tmp_path, metadata_service):
    """A cluster of one bookie, which may be spoilt."""
    made = ServeCluster(tmp_path, metadata_service.uri(f"/{tmp_path.name}"))
    try:
        made.add(1)
        yield made
    finally:
        made.stop()


ALONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "password": PASSWORD}


async def started_again(cluster, spoil=lambda bookie: None, **settings):
    """The one bookie, with other settings, after `spoil` has done its work on its directories."""
    (bookie,) = cluster.bookies.values()
    assert await asyncio.to_thread(bookie.stop) == 0
    spoil(bookie)
    bookie.settings |= settings
    await asyncio.to_thread(cluster.start, cluster.bookies)


async def written(client, count=5, ack_quorum=2):
    """An open ledger, all of whose entries but the last are known to be confirmed."""
    ledger = await client.create(write_quorum=3, ack_quorum=ack_quorum, password=PASSWORD)
    for i in range(count):
        await ledger.append(b"%d" % i)
    return ledger


async def closed(client, count=5):
    """Its id."""
    ledger = await written(client, count)
    await ledger.close()
    return ledger.ledger_id


# --- starting, creating --------------------------------------------------------------------------------------------


async def test_a_metadata_service_where_nobody_listens():
    with pytest.raises(MetadataUnavailable, match="check metadataServiceUri"):
        await open_metadata_service(f"embedded://127.0.0.1:{free_port()}/ledgers", timeout=0.5)


async def test_a_topology_file_that_is_not_there(cluster, tmp_path):
    placement = PlacementOptions(topology_file=str(tmp_path / "none.yaml"))
    with pytest.raises(BadRequest, match=r"network topology .*none\.yaml cannot be read"):
        await Client(cluster.uri, placement=placement).start()


async def test_creating(cluster, client):
    with pytest.raises(BadRequest, match="ensemble 2, write quorum 3"):
        await client.create(ensemble=2, write_quorum=3)
    with pytest.raises(BadRequest, match="ledger id -1"):
        await client.create(ledger_id=-1)
    with pytest.raises(NotEnoughBookies, match="needs 4 writable bookies and there are 3"):
        await client.create(ensemble=4)
    taken = await client.create(ledger_id=4711)
    with pytest.raises(MetadataExists, match="4711"):
        await client.create(ledger_id=4711)
    with pytest.raises(MetadataExists, match="4711"):
        await client.create_advanced(ledger_id=4711)
    await taken.close()
    async with Client(cluster.uri, ClientOptions(protocol_version=2)) as old:
        with pytest.raises(BadVersion, match="deferred sync"):
            await old.create(deferred_sync=True)


async def test_the_last_ledger_id_is_taken(tmp_path):
    """The service is stopped while the sequence of ids is moved to its end."""
    metadata, newest = MetadataProcess(tmp_path / "metadata"), f"/ledgers/{LONG_ID_GENERATION}/HOB-{2**31 - 1}"
    try:
        metadata.start()
        async with Client(metadata.uri()) as client:
            service = client.metadata_service
            await service.cluster.initialize()
            for path in (newest.rpartition("/")[0], newest):
                await service.tree.ensure(path, timeout=5)
        metadata.stop()
        move_sequence(tmp_path / "metadata" / "store", newest, SHORT_ID_LIMIT - 1)
        metadata.start()
        async with Client(metadata.uri()) as client:
            generate = client.metadata_service.ledgers.generate_id
            last = (2**31 - 1) << 32 | SHORT_ID_LIMIT - 1
            assert await generate() == last
            with pytest.raises(LedgerIdsExhausted, match=f"/{LONG_ID_GENERATION} has no ledger id left"):
                await generate()
    finally:
        metadata.stop()


def move_sequence(store, parent, number):
    """The next sequential node below `parent` gets this number."""
    nodes = NodeStore(str(store))
    staged = _Staged()
    staged.records[parent] = replace(nodes._require(parent), sequence=number)
    nodes._commit(staged)
    nodes.sync()
    nodes.close()


# --- opening, looking ----------------------------------------------------------------------------------------------


async def test_a_ledger_that_does_not_exist(client):
    for call in (client.metadata, client.recover, lambda ledger_id: client.open(ledger_id)):
        with pytest.raises(NoSuchLedger, match="ledger 99999 does not exist"):
            await call(99999)
    await client.delete(99999)


async def test_a_password_that_is_wrong_fences_nobody(client):
    ledger = await written(client)
    for recover in (False, True):
        with pytest.raises(Unauthorized, match=f"ledger {ledger.ledger_id} .*another password"):
            await client.open(ledger.ledger_id, password=b"guess", recover=recover)
    with pytest.raises(Unauthorized, match=f"ledger {ledger.ledger_id} "):
        await client.recover(ledger.ledger_id, password=b"guess")
    assert (await client.metadata(ledger.ledger_id)).state is LedgerState.OPEN
    assert await ledger.append(b"still mine") == 5
    await ledger.close()


async def test_metadata_that_cannot_be_read(client, service):
    ledger_id = await closed(client)
    layout = await service.cluster.layout()
    await service.tree.set(
        service.root + ledger_path(layout or LedgerLayout.HIERARCHICAL, ledger_id), b"garbage", -1, timeout=5
    )
    for call in (client.metadata, lambda one: client.open(one, password=PASSWORD), client.recover):
        with pytest.raises(MetadataDamaged, match=str(ledger_id)):
            await call(ledger_id)
    await client.delete(ledger_id)


async def test_a_bookie_that_nobody_knows_hangs_or_dies_under_the_request(cluster, client, impatient):
    with pytest.raises(BookieUnavailable, match="bookie-99"):
        await client.bookie_info("bookie-99")
    assert (await client.bookie_info("bookie-1")).total_bytes > 0
    with cluster.paused(["bookie-1"]), pytest.raises(BookieTimeout, match="bookie-1"):
        await impatient.bookie_info("bookie-1")
    with cluster.paused(["bookie-1"]):
        asking = asyncio.ensure_future(client.bookie_info("bookie-1"))
        await asyncio.sleep(0.05)
        cluster.kill("bookie-1")
        with pytest.raises(ConnectionLost, match="bookie-1"):
            await asking
    with pytest.raises(BookieUnavailable, match="bookie-1"):
        await impatient.bookie_info("bookie-1")
    await asyncio.to_thread(cluster.start, ["bookie-1"])


# --- writing -------------------------------------------------------------------------------------------------------


async def test_appends_that_lose_their_quorum(cluster, impatient):
    ledger = await written(impatient)
    with cluster.paused(ledger.metadata.last_ensemble[1:]):
        with pytest.raises(QuorumLost, match=f"ledger {ledger.ledger_id}, entry 5"):
            await ledger.append(b"lost")
        with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}: .*failed before"):
            await ledger.append(b"behind it")
        with pytest.raises(QuorumLost, match=f"entry 5 of ledger {ledger.ledger_id} "):
            await ledger.flush()
        with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}: "):
            await ledger.force()
    await ledger.close()
    assert (await impatient.metadata(ledger.ledger_id)).last_entry_id == 4


async def test_more_ensemble_changes_and_longer_waits_than_allowed(cluster):
    async with Client(cluster.uri, ClientOptions(add_timeout=0.3, max_ensemble_changes=0)) as client:
        ledger = await written(client, ack_quorum=3)
        hung = ledger.metadata.last_ensemble[0]
        what = f"ledger {ledger.ledger_id}, entry 5 .*max_ensemble_changes.*{hung}"
        with cluster.paused([hung]), pytest.raises(QuorumLost, match=what):
            await ledger.append(b"lost")
    async with Client(cluster.uri, ClientOptions(add_timeout=20.0, add_quorum_timeout=0.3)) as client:
        ledger = await written(client, ack_quorum=3)
        with (
            cluster.paused(ledger.metadata.last_ensemble[:1]),
            pytest.raises(QuorumLost, match=f"ledger {ledger.ledger_id}, entry 5"),
        ):
            await ledger.append(b"lost")


async def test_a_writer_whose_ledger_another_client_recovers_or_deletes(cluster, client, impatient):
    fenced = await written(client)
    await impatient.recover(fenced.ledger_id, password=PASSWORD)
    with pytest.raises(LedgerFenced, match=f"ledger {fenced.ledger_id}, entry 5"):
        await fenced.append(b"too late")
    await fenced.close()

    # It has forced nothing, so its end would be another.
    behind = await client.create(write_quorum=3, password=PASSWORD, deferred_sync=True)
    await behind.append_many([b"a", b"b", b"c"])
    await impatient.recover(behind.ledger_id, password=PASSWORD)
    with pytest.raises(
        MetadataVersionConflict, match=f"ledger {behind.ledger_id} .*closed by another client at entry 2"
    ):
        await behind.close()

    deleted = await written(client)
    await impatient.delete(deleted.ledger_id)
    with pytest.raises(MetadataNotFound, match=f"ledger {deleted.ledger_id} does not exist"):
        await deleted.close()

    for take_away, error in (
        (impatient.delete, MetadataNotFound),
        (impatient.recover, (LedgerFenced, LedgerClosed)),  # it has begun, or has ended already
    ):
        changing = await impatient.create(ensemble=2, write_quorum=2)  # there is a spare bookie
        await changing.append(b"before")
        with cluster.paused(changing.metadata.last_ensemble[:1]):
            failing = await changing.submit(b"needs a change")
            await take_away(changing.ledger_id)
            with pytest.raises(error, match=f"ledger {changing.ledger_id}, entry 1"):
                await failing


async def test_an_id_that_another_password_has_used(client):
    """The ledger is deleted, and its id given again; bookies still know the first one's key."""
    first = await written(client)
    await first.close()
    await client.delete(first.ledger_id)
    second = await client.create(write_quorum=3, password=b"other", ledger_id=first.ledger_id)
    with pytest.raises(Unauthorized, match=f"ledger {first.ledger_id}"):
        await second.append(b"x")
    await second.close()


async def test_handles_that_are_closed_and_entries_that_cannot_be(cluster, client):
    ledger = await written(client)
    with pytest.raises(BadRequest, match=f"ledger {ledger.ledger_id}.*max_frame_size"):
        await ledger.append(bytes(6 * 1024 * 1024))
    assert await ledger.append(b"fits") == 5
    with pytest.raises(BadRequest, match=f"ledger {ledger.ledger_id}"):
        await ledger.read(0, 6)
    await ledger.close()
    for call in (
        lambda: ledger.append(b"x"),
        lambda: ledger.submit(b"x"),
        lambda: ledger.append_many([b"x"]),
        ledger.force,
    ):
        with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}: .*closed"):
            await call()
    async with Client(cluster.uri) as short_lived:
        abandoned = await written(short_lived)
    with pytest.raises(LedgerClosed, match=f"ledger {abandoned.ledger_id}: .*the client was closed"):
        await abandoned.append(b"x")
    with pytest.raises(RuntimeError, match="not open"):
        await short_lived.metadata(ledger.ledger_id)


async def test_chosen_entry_ids(client):
    ledger = await client.create_advanced(write_quorum=3, password=PASSWORD)
    await ledger.append(0, b"zero")
    with pytest.raises(DuplicateEntry, match=f"ledger {ledger.ledger_id}: entry 0 was appended before"):
        await ledger.append(0, b"again")
    with pytest.raises(BadRequest, match="negative"):
        await ledger.append(-1, b"x")
    gap = await ledger.submit(2, b"behind a gap")
    await ledger.close()
    with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}.*entry 2 was not sent"):
        await gap
    with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}"):
        await ledger.append(1, b"x")


async def test_deferred_sync_with_a_bookie_that_hangs(cluster, impatient):
    ledger = await impatient.create(write_quorum=3, ack_quorum=2, password=PASSWORD, deferred_sync=True)
    await ledger.append_many([b"a", b"b"])
    await until(lambda: not ledger.pending)
    with (
        cluster.paused(ledger.metadata.last_ensemble[:1]),
        pytest.raises(BookieTimeout, match=f"ledger {ledger.ledger_id}: .*entries to 1 could not be forced"),
    ):
        await ledger.force()
    await ledger.force()
    assert ledger.last_add_confirmed == 1
    await ledger.close()


# --- reading -------------------------------------------------------------------------------------------------------


async def test_ranges_that_are_none(client):
    async with client.open(await closed(client), password=PASSWORD) as reader:
        for first, last in ((0, 5), (-1, 2), (3, 1)):
            with pytest.raises(BadRequest, match=f"ledger {reader.ledger_id}"):
                await reader.read(first, last)
        with pytest.raises(BadRequest, match="-1"):
            reader.tail(-1)


async def test_entries_that_nobody_has_can_tell_or_has_undamaged(cluster, client, impatient):
    ledger = await written(client)
    async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
        with pytest.raises(NoSuchEntry, match=f"entry 5 of ledger {ledger.ledger_id}"):
            await reader.read_unconfirmed(5, 5)
        damaged = bytearray(digest_manager(DigestType.CRC32C, PASSWORD).encode(ledger.ledger_id, 5, 4, 9, b"five"))
        damaged[-1] ^= 1
        operations = client.context.operations
        for bookie in ledger.metadata.last_ensemble:
            await operations.add_entry(bookie, ledger.ledger_id, 5, bytes(damaged), master_key(PASSWORD))
        with pytest.raises(DigestMismatch, match=f"entry 5 of ledger {ledger.ledger_id}"):
            await reader.read_unconfirmed(5, 5)
        assert set(reader.damaged_at) == set(ledger.metadata.last_ensemble)
    await ledger.close()
    async with impatient.open(ledger.ledger_id, password=PASSWORD) as reader:
        one = ledger.metadata.last_ensemble[0]
        with cluster.paused(cluster.bookies):
            with pytest.raises(BookieTimeout, match=f"entry 0 of ledger {ledger.ledger_id}: .*{one}"):
                await reader.read(0, 4)
            with pytest.raises(BookieTimeout, match=one):
                await replicas(reader).read(one, 0)
        with pytest.raises(NoSuchEntry, match=f"{one} .*entry 7 of ledger {ledger.ledger_id}"):
            await replicas(reader).read(one, 7)


async def test_a_ledger_whose_entries_are_nowhere(client):
    """Its metadata promise entries that no bookie has ever seen."""
    ledger = await client.create(write_quorum=3, password=PASSWORD)
    stored = await client.context.ledgers.read(ledger.ledger_id)
    await client.context.ledgers.write(stored.value.closed(9, 90), stored.version)
    async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
        with pytest.raises(NoSuchLedger, match=f"entry 0 of ledger {ledger.ledger_id}"):
            await reader.read(0, 9)
    await client.delete(ledger.ledger_id)


async def test_the_end_of_an_open_ledger_that_too_few_bookies_can_tell(cluster, client, impatient):
    ledger = await written(client)
    async with impatient.open(ledger.ledger_id, password=PASSWORD) as reader:
        # Two of three cover every ack quorum of two; one does not.
        with cluster.paused(ledger.metadata.last_ensemble[:1]):
            assert await reader.read_last_add_confirmed() == 3
        with cluster.paused(ledger.metadata.last_ensemble[:2]):
            too_few = f"ledger {ledger.ledger_id}: .*too few bookies of its ensemble answered"
            with pytest.raises(BookieUnavailable, match=too_few):
                await reader.read_last_add_confirmed()
            with pytest.raises(BookieUnavailable, match=too_few):
                await impatient.open(ledger.ledger_id, password=PASSWORD)
            assert await reader.try_read_last_add_confirmed() == 3
        with cluster.paused(cluster.bookies), pytest.raises(BookieUnavailable, match=f"ledger {ledger.ledger_id}"):
            await reader.try_read_last_add_confirmed()
    await ledger.close()


async def test_tails_whose_ledger_or_handle_goes(client):
    ledger = await written(client)
    async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
        tail = asyncio.ensure_future(anext(reader.tail(5)))
        await client.delete(ledger.ledger_id)
        with pytest.raises(NoSuchLedger, match=f"ledger {ledger.ledger_id} was deleted"):
            await tail
    other = await written(client)
    reader = await client.open(other.ledger_id, password=PASSWORD)
    tail = asyncio.ensure_future(anext(reader.tail(5)))
    await asyncio.sleep(0)
    await reader.close()
    with pytest.raises(LedgerClosed, match=f"ledger {other.ledger_id}: .*reader was closed"):
        await tail
    await other.close()


# --- copying -------------------------------------------------------------------------------------------------------


async def moved(client, ledger_id):
    """The last segment's first bookie gives way to the one that is left."""
    fragment = fragments(ledger_id, await client.metadata(ledger_id), -1)[-1]
    return await FragmentReplicator(client).replicate(fragment, {0: fragment.ensemble[0]})


async def test_a_copy_of_what_may_still_grow(client):
    ledger = await client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=PASSWORD)
    await ledger.append(b"zero")
    with pytest.raises(LedgerNotClosed, match=f"ledger {ledger.ledger_id} is OPEN, .*may still grow"):
        await moved(client, ledger.ledger_id)
    assert await ledger.append(b"the writer does not notice") == 1
    await ledger.close()
    assert (await moved(client, ledger.ledger_id)).entries == 2


async def test_a_copy_of_what_nobody_has(client):
    """The ledger's metadata promise more entries than its bookies were given."""
    ledger = await client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=PASSWORD)
    await ledger.append_many([b"%d" % i for i in range(5)])
    stored = await client.context.ledgers.read(ledger.ledger_id)
    promised = (await client.context.ledgers.write(stored.value.closed(7, 8), stored.version)).value
    with pytest.raises(EntriesUnreadable, match=f"ledger {ledger.ledger_id}: entry 5 .*does not have it") as failure:
        await moved(client, ledger.ledger_id)
    assert failure.value.entries == (5, 6, 7)
    assert (await client.metadata(ledger.ledger_id)).ensembles == promised.ensembles
    await client.delete(ledger.ledger_id)


# --- recovery ------------------------------------------------------------------------------------------------------


async def test_a_recovery_that_reaches_too_few_bookies(cluster, client, impatient):
    ledger = await written(client)
    with cluster.paused(ledger.metadata.last_ensemble[:2]):
        for attempt in (
            impatient.recover(ledger.ledger_id, password=PASSWORD),
            impatient.open(ledger.ledger_id, password=PASSWORD, recover=True),
        ):
            with pytest.raises(RecoveryFailed, match=f"ledger {ledger.ledger_id}.*stays IN_RECOVERY"):
                await attempt
    assert (await client.recover(ledger.ledger_id, password=PASSWORD)).last_entry_id == 4


# --- a bookie that cannot or may not -------------------------------------------------------------------------------


async def test_a_bookie_that_takes_no_writes(alone):
    async with Client(alone.uri, ClientOptions(**AT_ONCE)) as client:
        ledger = await client.create(**ALONE)
        await ledger.append(b"zero")
        await started_again(alone, forceReadOnlyBookie="true")
        key = master_key(PASSWORD)
        entry = digest_manager(DigestType.CRC32C, PASSWORD).encode(ledger.ledger_id, 1, 0, 5, b"one")
        with pytest.raises(BookieReadOnly, match=f"bookie-1 .* entry 1 of ledger {ledger.ledger_id}"):
            await client.context.operations.add_entry("bookie-1", ledger.ledger_id, 1, entry, key)
        with pytest.raises(QuorumLost, match=rf"ledger {ledger.ledger_id}, entry 1 on bookie-1: .*EREADONLY"):
            await ledger.append(b"one")
        await until(lambda: client.context.bookies.known_read_only == {"bookie-1"})
        with pytest.raises(NotEnoughBookies, match="needs 1 writable bookies and there are 0"):
            await client.create(**ALONE)
        async with client.open(ledger.ledger_id, password=PASSWORD, recover=False) as reader:
            assert [entry.payload for entry in await reader.read_unconfirmed(0, 0)] == [b"zero"]


async def test_an_entry_whose_place_on_the_disk_holds_something_else(alone):
    async with Client(alone.uri, ClientOptions(**AT_ONCE)) as client:
        async with client.create(**ALONE) as ledger:
            await ledger.append_many([b"entry %d of many" % i for i in range(5)])

        def spoil(bookie):
            (log,) = (
                path for path in bookie.work.glob("ledgers/current/*.log") if b"entry 2 of many" in path.read_bytes()
            )
            content = bytearray(log.read_bytes())
            content[content.rindex(ENTRY_IDS.pack(ledger.ledger_id, 2), 0, content.index(b"entry 2 of many"))] ^= 0x10
            log.write_bytes(content)

        await started_again(alone, spoil)
        async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
            with pytest.raises(StorageFault, match=rf"entry 2 of ledger {ledger.ledger_id}: .*bookie-1"):
                await reader.read(0, 4)
            with pytest.raises(StorageFault, match=rf"bookie-1 .*entry 2 of ledger {ledger.ledger_id}"):
                await replicas(reader).read("bookie-1", 2)
            assert [entry.entry_id for entry in await reader.read(3, 4)] == [3, 4]


async def test_more_reads_than_a_bookie_lets_wait(alone):
    async with Client(alone.uri, ClientOptions(batch_reads=False, **AT_ONCE)) as client:
        async with client.create(**ALONE) as ledger:
            await ledger.append_many([b"x"] * 300)
        await started_again(alone, maxPendingReadRequestsPerThread="1", numReadWorkerThreads="1")
        async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
            with pytest.raises(TooManyRequests, match=rf"entry \d+ of ledger {ledger.ledger_id}: .*bookie-1"):
                await reader.read(0, 299)
            async with asyncio.timeout(30):
                while True:
                    try:
                        (entry,) = await reader.read(0, 0)
                        break
                    except TooManyRequests:
                        await asyncio.sleep(0.01)  # what was asked before may still wait
            assert entry.payload == b"x"


async def test_a_bookie_that_has_lost_what_it_held_and_knows_it(alone):
    async with Client(alone.uri, ClientOptions(**AT_ONCE)) as client:
        ledger = await client.create(**ALONE)
        await ledger.append(b"zero")
        await ledger.append(b"one")
        reader = await client.open(ledger.ledger_id, password=PASSWORD, recover=False)

        def spoil(bookie):
            for name in ("journal", "ledgers"):
                shutil.rmtree(bookie.work / name)

        await started_again(alone, spoil, dataIntegrityChecking="true", dataIntegrityStampMissingCookies="true")
        with pytest.raises(RecoveryFailed, match=f"ledger {ledger.ledger_id}"):
            await client.recover(ledger.ledger_id, password=PASSWORD)
        with pytest.raises(LedgerStateUnknown, match=rf"ledger {ledger.ledger_id}: .*bookie-1"):
            await client.open(ledger.ledger_id, password=PASSWORD, recover=False)
        with pytest.raises(LedgerStateUnknown, match=rf"entry 0 of ledger {ledger.ledger_id}: .*bookie-1"):
            await reader.read_unconfirmed(0, 0)
        with pytest.raises(LedgerStateUnknown, match=rf"bookie-1 .*entry 0 of ledger {ledger.ledger_id}"):
            await replicas(reader).read("bookie-1", 0)


# --- the blocking client -------------------------------------------------------------------------------------------


def test_the_blocking_client_raises_the_same(cluster):
    with BlockingClient(cluster.uri) as client, BlockingClient(cluster.uri) as other:
        with pytest.raises(NoSuchLedger, match="ledger 99999"):
            client.open(99999)
        with pytest.raises(NotEnoughBookies, match="needs 4 writable"):
            client.create(ensemble=4)
        ledger = client.create(write_quorum=3, password=PASSWORD)
        ledger.append(b"one")
        with pytest.raises(Unauthorized, match=f"ledger {ledger.ledger_id}"):
            other.open(ledger.ledger_id, password=b"guess")
        other.recover(ledger.ledger_id, password=PASSWORD)
        with pytest.raises(LedgerFenced, match=f"ledger {ledger.ledger_id}, entry 1"):
            ledger.append(b"too late")
        with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}"):
            ledger.append(b"too late")
        with (
            other.open(ledger.ledger_id, password=PASSWORD) as reader,
            pytest.raises(BadRequest, match=f"ledger {ledger.ledger_id}"),
        ):
            reader.read(0, 5)
        ledger.close()
    with pytest.raises(RuntimeError, match="not open"):
        client.metadata(ledger.ledger_id)
