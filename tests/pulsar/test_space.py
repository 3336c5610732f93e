"""What is consumed, older than its retention or offloaded is deleted by the broker, and bookies give the space back."""

from __future__ import annotations

import time
import zipfile

import pytest

from bookie_client.blocking import BlockingClient
from bookie_client.streams.managed_ledgers import managed_ledger
from bookie_protocol.errors import NoSuchLedger
from tests.pulsar.conftest import OnOurs
from tests.support.until import until_true

SPACE_S = 240
SIZE = 4000
COUNT = 10_000
"""Two of the broker's ledgers, and `MORE` begins a third one: what a broker writes to is not deleted."""
MORE = 10
STORED = 2 * COUNT * SIZE
"""Bytes, of both copies."""
OFFLOADER = (
    "META-INF/services/pulsar-offloader.yaml",
    "name: folder\ndescription: a folder\noffloaderFactoryClass: dev.podkeeper.pulsar.FolderOffloader$Factory\n",
)
"""All that a broker needs to find the class that it has among its own."""


def stored_bytes(pulsar: OnOurs) -> int:
    """Of all entry logs."""
    total = 0
    for bookie in pulsar.bookies.bookies.values():
        for path in (bookie.work / "ledgers" / "current").glob("*.log"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:  # removed meanwhile
                continue
    return total


def settled(pulsar: OnOurs) -> int:
    """What is stored when nothing of other tests is given back any more."""
    found = stored_bytes(pulsar)
    while True:
        time.sleep(3)
        before, found = found, stored_bytes(pulsar)
        if before == found:
            return found


def filled(pulsar: OnOurs, topic: str) -> int:
    """A topic whose first subscription is "one". Returns what was stored before it."""
    before = settled(pulsar)
    pulsar.client.subscribe(topic, topic, "one")
    pulsar.client.produce(topic, COUNT + MORE, sizes=[SIZE], producer={"batchingEnabled": False})
    until_true(lambda: stored_bytes(pulsar) >= before + STORED, SPACE_S)
    return before


def test_space_comes_back_when_all_is_consumed(pulsar):
    topic, client = "public/default/consumed", pulsar.client
    before = filled(pulsar, topic)
    assert client.numbers(topic, COUNT // 2, acknowledge="up_to") == list(range(COUNT // 2))
    until_true(lambda: stored_bytes(pulsar) < before + STORED * 0.7, SPACE_S)
    assert client.numbers(topic, COUNT // 2 + MORE, acknowledge="up_to") == list(range(COUNT // 2, COUNT + MORE))
    until_true(lambda: stored_bytes(pulsar) < before + STORED * 0.2, SPACE_S)


def test_what_is_retained_stays_until_its_time(pulsar):
    """Consumed all the same; a subscription that comes later still reads it."""
    namespace, client, admin = "public/retained", pulsar.client, pulsar.broker.admin
    admin("PUT", f"namespaces/{namespace}", {})
    for_ever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin("POST", f"namespaces/{namespace}/retention", for_ever)
    topic = f"{namespace}/topic"
    before = filled(pulsar, topic)
    assert client.numbers(topic, COUNT + MORE, acknowledge="up_to") == list(range(COUNT + MORE))
    assert settled(pulsar) >= before + STORED
    assert client.consumed(topic, COUNT + MORE, "late") == list(range(COUNT + MORE))
    admin("DELETE", f"namespaces/{namespace}/retention")
    until_true(lambda: stored_bytes(pulsar) < before + STORED * 0.2, SPACE_S)


def test_a_topic_that_is_deleted_leaves_nothing(pulsar):
    topic = "public/default/deleted"
    before = filled(pulsar, topic)
    assert pulsar.client.numbers(topic, 10) == list(range(10))
    pulsar.client.call("close", name=topic)
    pulsar.broker.admin("DELETE", f"persistent/{topic}?force=true")
    until_true(lambda: stored_bytes(pulsar) < before + STORED * 0.2, SPACE_S)


def test_what_is_offloaded_leaves_the_bookies(pulsar, tmp_path):
    """Consumers read on from where it went, and our client says which ledgers are gone."""
    namespace, client, admin = "public/offloaded", pulsar.client, pulsar.broker.admin
    with zipfile.ZipFile(tmp_path / "folder.nar", "w") as nar:
        nar.writestr(*OFFLOADER)
    policies = {
        "offloadersDirectory": str(tmp_path),
        "managedLedgerOffloadDriver": "filesystem",
        "managedLedgerOffloadDeletionLagInMillis": 1000,
        "fileSystemURI": tmp_path.as_uri(),
    }
    admin("PUT", f"namespaces/{namespace}", {})
    admin("POST", f"namespaces/{namespace}/offloadPolicies", policies)
    topic = f"{namespace}/topic"
    before = filled(pulsar, topic)
    first, second, last = pulsar.ledgers(topic)
    admin("PUT", f"persistent/{topic}/offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1})

    def is_offloaded() -> bool:
        status = admin("GET", f"persistent/{topic}/offload")
        assert status["status"] != "ERROR", status
        return bool(status["status"] == "SUCCESS")

    until_true(is_offloaded, SPACE_S)
    until_true(lambda: stored_bytes(pulsar) < before + STORED * 0.2, SPACE_S)
    with BlockingClient(pulsar.uri) as ours:
        for gone in (first, second):
            with pytest.raises(NoSuchLedger):
                ours.metadata(gone)
        found = ours.run(lambda each: managed_ledger(each, f"{namespace}/persistent/topic"))
    assert {ledger: each.is_deleted for ledger, each in found.offloaded.items()} == {first: True, second: True}
    assert client.numbers(topic, COUNT + MORE) == list(range(COUNT + MORE))
