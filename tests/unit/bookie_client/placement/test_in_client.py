"""Placement as a client applies it: new ledgers, ensemble changes, reads."""

import asyncio
from collections import Counter
from random import Random

import pytest

from bookie_client import Client, ClientOptions, PlacementOptions
from bookie_client.placement.rack_aware import RackAwarePlacement
from bookie_client.writing.ensemble_change import IMMEDIATE_CHANGES
from bookie_protocol.errors import BadRequest, NotEnoughBookies, StorageFault, TooManyRequests
from tests.support.until import until
from tests.unit.bookie_client.conftest import FAST

ZONES = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "c1": "c", "c2": "c"}


@pytest.fixture
async def zoned(cluster):
    """Six bookies in three zones, as they publish it."""
    for bookie, zone in ZONES.items():
        await cluster.add_bookie(bookie)
        cluster.metadata.bookies.properties[bookie] = {"zone": zone}
    return cluster


def client_of(cluster, placement=None, **options):
    return Client(cluster.metadata, ClientOptions(**{**FAST, **options}), placement=placement, random=Random(1))


def zones_of(ensemble):
    return sorted(ZONES[bookie] for bookie in ensemble)


async def append_until(ledger, condition):
    """A bookie that fails after an add was complete is dealt with at the next one."""
    async with asyncio.timeout(5):
        while not condition():
            await ledger.append(b"more")
            await asyncio.sleep(0.002)


async def test_by_default_ledgers_span_the_zones_that_bookies_publish(zoned):
    async with client_of(zoned) as client:
        for _ in range(20):
            async with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
                assert zones_of(ledger.metadata.last_ensemble) == ["a", "b", "c"]
    assert zoned.metadata.bookies.info_reads <= 2 * len(ZONES)


async def test_a_failed_bookie_is_replaced_in_its_zone(zoned):
    async with client_of(zoned) as client, client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
        await ledger.append(b"one")
        failed = ledger.metadata.last_ensemble[1]
        await zoned.servers[failed].stop()
        zoned.metadata.bookies.drop(failed)
        await append_until(ledger, lambda: failed not in ledger.metadata.last_ensemble)
        assert zones_of(ledger.metadata.last_ensemble) == ["a", "b", "c"]


async def quarantine(client, cluster, bookie, ledger_id):
    """One read that fails: the client's options make that enough."""
    cluster.bookie(bookie).fail_reads = StorageFault
    with pytest.raises(StorageFault):
        await client.context.operations.read_entry(bookie, ledger_id, 0)
    cluster.bookie(bookie).fail_reads = None


async def test_new_ledgers_leave_out_a_quarantined_bookie_while_the_others_suffice(zoned):
    async with client_of(zoned, "random", quarantine_errors=1) as client:

        async def taken(ensemble):
            ledgers = [await client.create(ensemble=ensemble, write_quorum=2) for _ in range(30)]
            return {bookie for ledger in ledgers for bookie in ledger.metadata.last_ensemble}

        await quarantine(client, zoned, "b1", 0)
        assert await taken(5) == set(ZONES) - {"b1"}
        assert await taken(6) == set(ZONES)
        client.context.health.release("b1")
        assert await taken(5) == set(ZONES)


async def test_a_failed_bookie_is_replaced_in_its_zone_by_a_quarantined_one_that_answers_not_by_a_dead_one(zoned):
    await zoned.add_bookie("a3")
    zoned.metadata.bookies.properties["a3"] = {"zone": "a"}
    async with (
        client_of(zoned, quarantine_errors=1) as client,
        client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger,
    ):
        await ledger.append(b"one")
        (failed,) = {"a1", "a2", "a3"}.intersection(ledger.metadata.last_ensemble)
        first, second = sorted({"a1", "a2", "a3"} - {failed})
        await quarantine(client, zoned, first, ledger.ledger_id)
        await zoned.servers[second].stop()  # and its registration stands
        await zoned.servers[failed].stop()
        zoned.metadata.bookies.drop(failed)
        await append_until(ledger, lambda: failed not in ledger.metadata.last_ensemble)
        assert first in ledger.metadata.last_ensemble


async def test_one_stall_costs_no_rack_once_the_bookie_answers(cluster):
    for bookie in ("a1", "a2", "b1"):
        await cluster.add_bookie(bookie)
    placement = PlacementOptions(locations={"a1": "/a", "a2": "/a", "b1": "/b"})
    async with client_of(cluster, placement) as client:
        health = client.context.health
        ledger = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
        await ledger.append(b"all are well")
        cluster.servers["b1"].hold = True
        adds = [await ledger.submit(b"into the stall") for _ in range(300)]
        await until(lambda: "b1" in health.failed_lately())
        other = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
        assert set(other.metadata.last_ensemble) == {"a1", "a2"}, "who does not answer protects nothing"
        await asyncio.gather(*adds)
        cluster.servers["b1"].release()
        await until(lambda: "b1" not in health.failed_lately())
        assert health.quarantined() == frozenset()
        for _ in range(10):
            other = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
            assert "b1" in other.metadata.last_ensemble


RACKS = PlacementOptions(locations={"a1": "/a", "a2": "/a", "a3": "/a", "b1": "/b", "b2": "/b"})


@pytest.mark.parametrize("enforce", [False, True])
async def test_one_refusal_costs_no_rack(cluster, enforce):
    for bookie in ("a1", "a2", "b1"):
        await cluster.add_bookie(bookie)
    options = {"enforce_fault_domains": enforce, "add_quorum_timeout": 20.0, "degraded_retry_interval": 60.0}
    async with client_of(cluster, RACKS, **options) as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        for bookie in ("a3", "b2"):
            await cluster.add_bookie(bookie)
        await until(lambda: client.context.bookies.known_writable == {"a1", "a2", "a3", "b1", "b2"})
        for refusing, other in (("b1", "b2"), ("b2", "b1")):
            cluster.bookie(refusing).fail_adds = TooManyRequests
            await append_until(ledger, lambda other=other: other in ledger.metadata.last_ensemble)
            cluster.bookie(refusing).fail_adds = None
        assert ledger.metadata.last_ensemble.count("b1") == 1


async def test_a_rack_that_refuses_keeps_no_writer_waiting(cluster):
    for bookie in ("a1", "a2", "b1"):
        await cluster.add_bookie(bookie)
    async with client_of(cluster, RACKS) as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=3)
        for bookie in ("a3", "b2"):
            await cluster.add_bookie(bookie)
        await until(lambda: client.context.bookies.known_writable == {"a1", "a2", "a3", "b1", "b2"})
        for bookie in ("b1", "b2"):
            cluster.bookie(bookie).fail_adds = StorageFault
        async with asyncio.timeout(5):
            await ledger.append(b"one")
        assert set(ledger.metadata.last_ensemble) == {"a1", "a2", "a3"}
        assert ledger.ensemble_changes <= IMMEDIATE_CHANGES


async def test_no_spare_is_better_than_one_with_which_nothing_could_be_acknowledged(cluster):
    for bookie in ("a1", "a2", "b1"):
        await cluster.add_bookie(bookie)
    async with client_of(cluster, RACKS, enforce_fault_domains=True, add_quorum_timeout=20.0) as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await cluster.add_bookie("a3")
        await until(lambda: client.context.bookies.known_writable == {"a1", "a2", "a3", "b1"})
        cluster.bookie("b1").fail_adds = StorageFault
        added = asyncio.create_task(ledger.append(b"one"))
        await until(lambda: "b1" in ledger.degraded.values())
        assert set(ledger.metadata.last_ensemble) == {"a1", "a2", "b1"}
        cluster.bookie("b1").fail_adds = None
        async with asyncio.timeout(5):
            assert await added == 0


async def test_an_enforced_rule_leaves_a_position_degraded_rather_than_break_it(cluster):
    for bookie in ("a1", "a2", "b1"):
        await cluster.add_bookie(bookie)
    placement = PlacementOptions(locations={"a1": "/a", "a2": "/a", "b1": "/b"}, enforce_racks=True)
    async with client_of(cluster, placement) as client:
        ledger = await client.create(ensemble=2, write_quorum=2, ack_quorum=1)
        await cluster.servers["b1"].stop()
        await append_until(ledger, lambda: "b1" in ledger.degraded.values())
        assert "b1" in ledger.metadata.last_ensemble
        with pytest.raises(NotEnoughBookies, match="2 racks"):
            cluster.metadata.bookies.drop("b1")
            await until(lambda: client.context.bookies.known_writable == {"a1", "a2"})
            await client.create(ensemble=2, write_quorum=2, ack_quorum=2)


async def test_a_rule_that_was_given_up_is_told_once(zoned, caplog):
    caplog.set_level("INFO")
    for bookie in ("a1", "a2", "b1", "b2"):
        await zoned.servers[bookie].stop()
        zoned.metadata.bookies.drop(bookie)
    async with client_of(zoned) as client:
        for _ in range(3):
            await client.create(ensemble=2, write_quorum=2)
    assert caplog.text.count("placement rules relaxed") == 1


async def test_without_any_known_place_there_is_nothing_to_tell(cluster, caplog):
    caplog.set_level("INFO")
    for bookie in ("b1", "b2"):
        await cluster.add_bookie(bookie)
    async with client_of(cluster) as client:
        await client.create(ensemble=2, write_quorum=2)
    assert "relaxed" not in caplog.text


async def test_a_policy_by_name_or_of_ones_own(zoned):
    async with client_of(zoned, "random") as client:
        await client.create()
        assert zoned.metadata.bookies.info_reads == 0  # nobody has to know where bookies stand
    mine = RackAwarePlacement(min_racks=3, enforce=True)
    async with client_of(zoned, mine) as client, client.create(ensemble=3, write_quorum=3) as ledger:
        assert zones_of(ledger.metadata.last_ensemble) == ["a", "b", "c"]
    with pytest.raises(BadRequest, match="'rackaware'"):
        client_of(zoned, "rackaware")


async def test_a_topology_file_that_cannot_be_read_is_refused_at_the_start(zoned, tmp_path):
    client = client_of(zoned, PlacementOptions(topology_file=str(tmp_path / "missing")))
    with pytest.raises(BadRequest, match=r"missing.*No such"):
        await client.start()
    await client.close()


async def test_free_space_decides_how_often_a_bookie_is_taken(zoned):
    for server in zoned.servers.values():
        server.bookie.free_bytes = 1000
    zoned.bookie("a1").free_bytes = zoned.bookie("b1").free_bytes = 100
    async with client_of(zoned, PlacementOptions(weighted=True)) as client:
        await until(lambda: len(client.context.placement_inputs._free_space.known) == len(ZONES))
        taken = Counter()
        for _ in range(150):
            taken.update((await client.create(ensemble=3, write_quorum=3)).metadata.last_ensemble)
    assert all(taken[poor] < 35 and taken[rich] > 115 for poor, rich in (("a1", "a2"), ("b1", "b2")))
    assert 50 < taken["c1"] < 100


async def test_reads_go_to_the_own_zone(zoned):
    async with client_of(zoned) as client, client.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
        await ledger.append_many([b"entry"] * 30)
    for zone in "abc":
        near = next(bookie for bookie in ledger.metadata.last_ensemble if ZONES[bookie] == zone)
        # A client that has never written: nothing but the reading makes it ask where bookies stand.
        async with (
            client_of(zoned, PlacementOptions(local_location=f"/{zone}")) as client,
            client.open(ledger.ledger_id) as reader,
        ):
            assert len(await reader.read(0, 29)) == 30
            assert reader.served_by == {near: 30}


async def test_a_reader_that_does_not_know_where_it_stands_asks_for_no_locations(zoned):
    async with client_of(zoned) as client, client.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
        await ledger.append(b"entry")
    async with client_of(zoned) as client, client.open(ledger.ledger_id) as reader:
        await reader.read(0, 0)
        assert client.context.topology.locations == {}
