"""Racks and isolation groups as administrators set them in Pulsar (`pulsar-admin bookies set-bookie-rack`)."""

from __future__ import annotations

from bookie_client.blocking import BlockingClient
from tests.support.auto_recovery import AutoRecoveryProcess
from tests.support.until import until_true

SECONDS = 300
COUNT = 6000
"""A ledger of the broker's takes 5000 entries."""
RACKS = {"reppDnsResolverClass": "org.apache.pulsar.bookie.rackawareness.BookieRackAffinityMapping"}
TOLD = "repairs keep to the racks of bookies and not to Pulsar's isolation groups"


def test_a_bookie_of_a_group_is_lost(pulsar, tmp_path):
    """A namespace's topics lie on its group. What one of the two had is copied into the rack that the other is not in,
    although its only bookie belongs to another group, and this is told."""
    pulsar.bookies.add(1)
    stays, lost, beside, other = list(pulsar.bookies.bookies)[-4:]
    groups = {"east": {stays: "/r1", lost: "/r2"}, "west": {beside: "/r1", other: "/r2"}}
    namespace, admin = "public/east", pulsar.broker.admin
    for group, racks in groups.items():
        for bookie, rack in racks.items():
            admin("POST", f"bookies/racks-info/{bookie}?group={group}", {"rack": rack, "hostname": bookie})
    admin("PUT", f"namespaces/{namespace}", {})
    admin("POST", f"namespaces/{namespace}/persistence/bookieAffinity", {"bookkeeperAffinityGroupPrimary": "east"})
    topic = f"{namespace}/topic"
    pulsar.client.subscribe(topic, topic, "keeps it")
    pulsar.client.produce(topic, COUNT, producer={"batchingEnabled": False})
    pulsar.client.call("close", name=topic)
    ledgers = pulsar.ledgers(topic)
    assert len(ledgers) > 1
    admin("PUT", f"persistent/{topic}/unload")
    with BlockingClient(pulsar.uri) as client, AutoRecoveryProcess(tmp_path, pulsar.uri, RACKS) as recovery:

        def bookies() -> set[str]:
            return set().union(*(client.metadata(ledger).all_bookies() for ledger in ledgers))

        assert bookies() == {stays, lost}
        pulsar.bookies.kill(lost)
        until_true(lambda: lost not in bookies(), SECONDS)
        assert bookies() == {stays, other}
        assert recovery.logged(TOLD)
    pulsar.up()
    assert pulsar.client.consumed(topic, COUNT) == list(range(COUNT))
    for bookie in (stays, lost, beside, other):
        admin("DELETE", f"bookies/racks-info/{bookie}")
