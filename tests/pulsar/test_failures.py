"""Bookies, the broker and the metadata service end, hang and leave while a producer goes on: what it was told is there,
once and in order."""

from __future__ import annotations

import shutil
from contextlib import suppress

import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.errors import NoSuchLedger
from tests.pulsar.conftest import OnOurs
from tests.support.auto_recovery import AutoRecoveryProcess
from tests.support.until import until_true

COMMAND_S = 300


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_all_bookies_are_restarted_in_turn(pulsar, end):
    with pulsar.producing(f"in-turn-{end}") as progress:
        for _ in range(2):
            for name, bookie in pulsar.bookies.bookies.items():
                if end == "stopped":
                    assert bookie.stop() == 0
                else:
                    bookie.kill()
                progress()
                pulsar.bookies.start([name])
                pulsar.up()
                progress()


def test_the_broker_is_killed(pulsar):
    with pulsar.producing("broker-killed") as progress:
        for _ in range(2):
            pulsar.broker.kill()
            pulsar.broker.start()
            progress()


def test_the_broker_and_a_bookie_are_killed(pulsar):
    """So the next broker recovers the topic's last ledger without one of its bookies."""
    with pulsar.producing("both-killed") as progress:
        for name in pulsar.last_ensemble("both-killed"):
            pulsar.broker.kill()
            pulsar.bookies.kill(name)
            pulsar.broker.start()
            progress()
            pulsar.up()
            progress()


def test_the_metadata_service_is_killed(pulsar):
    """The broker goes on with the ledger that it has, and makes the next one when the service is back."""
    topic = "metadata-killed"
    with pulsar.producing(topic) as progress:
        pulsar.store.server.stop()
        pulsar.store.server.start()
        progress()
        before = pulsar.ledgers(topic)
        pulsar.broker.admin("PUT", f"persistent/public/default/{topic}/unload")
        progress()
        assert pulsar.ledgers(topic)[-1] not in before


def test_everything_is_killed(pulsar):
    with pulsar.producing("everything-killed") as progress:
        pulsar.broker.kill()
        pulsar.bookies.kill(*pulsar.bookies.bookies)
        pulsar.store.server.stop()
        pulsar.store.server.start()
        pulsar.up()
        progress()


def test_a_bookie_is_killed(pulsar):
    with pulsar.producing("bookie-killed") as progress:
        victim = pulsar.last_ensemble("bookie-killed")[0]
        pulsar.bookies.kill(victim)
        progress()
        assert victim not in pulsar.last_ensemble("bookie-killed")


def test_a_bookie_is_paused(pulsar):
    """Its connections stand and nobody answers, until brokers give it up; then it comes back."""
    with pulsar.producing("paused") as progress:
        victim = pulsar.last_ensemble("paused")[0]
        with pulsar.bookies.paused([victim]):
            progress()
            assert victim not in pulsar.last_ensemble("paused")
        progress()
    pulsar.up()


def test_a_bookie_is_replaced(pulsar, tmp_path):
    """Its disks are lost, auto-recovery makes its copies again, and it joins anew with empty ones."""
    with (
        AutoRecoveryProcess(tmp_path, pulsar.uri) as recovery,
        BlockingClient(pulsar.uri) as client,
        pulsar.producing("replaced") as progress,
    ):
        victim = pulsar.last_ensemble("replaced")[0]
        pulsar.bookies.kill(victim)
        progress()
        until_true(lambda: not ledgers_that_name(client, victim), COMMAND_S)
        assert recovery.metric("replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED") > 0
        joins_anew(pulsar, victim)
        progress()
        pulsar.check_copies("replaced")


def test_a_bookie_is_decommissioned(pulsar):
    """With another one in its place."""
    topic = "decommissioned"
    with pulsar.producing(topic) as progress:
        pulsar.bookies.add(1)
        going = pulsar.last_ensemble(topic)[0]
        pulsar.command("decommission", going, "--grace", "1", "--rate", "0")
        assert pulsar.bookies.bookies.pop(going).stop() == 0
        progress()
        assert going not in pulsar.last_ensemble(topic)
        pulsar.check_copies(topic)
    with BlockingClient(pulsar.uri) as client:
        assert not ledgers_that_name(client, going)


def ledgers_that_name(client: BlockingClient, bookie: str) -> list[int]:
    """In whatever part of their metadata; brokers delete ledgers meanwhile."""
    found = []
    for ledger_id in client.list():
        with suppress(NoSuchLedger):
            if bookie in client.metadata(ledger_id).all_bookies():
                found.append(ledger_id)
    return found


def joins_anew(pulsar: OnOurs, name: str) -> None:
    """A dead bookie that no ledger names is given empty disks."""
    pulsar.command("cookie", "delete", name)
    for disk in ("journal", "ledgers"):
        shutil.rmtree(pulsar.bookies.bookies[name].work / disk)
    pulsar.up()
