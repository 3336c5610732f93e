"""Bookies of Apache BookKeeper become ours and Apache's again on the disks that they have, one after the other as a
StatefulSet rolls its pods, while producers and consumers go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.cluster import SMALL
from tests.pulsar.broker import PROJECT
from tests.pulsar.conftest import BOOKIES, Pulsar
from tests.pulsar.stores import Store, started
from tests.support.bookie_process import BookieProcess, free_port, loopback_configuration, podkeeper_bookie
from tests.support.java import SHORT_LIVED
from tests.support.java_bookie import java_bookie

COUNT = 3
BACKLOG = 6000
"""More than a ledger of the broker's takes."""
STEP = 50
SECONDS = 300
START_S = 240.0
TOPICS = {
    "kept": {"sizes": (20, 500, 3000), "compressionType": "LZ4", "rate": 150},
    "given-back": {"sizes": (100, 10_000), "batchingEnabled": False, "rate": 50},
}
"""What goes on meanwhile. A second subscription keeps all of the first topic; what is consumed of the other one is
deleted, so that bookies collect garbage that those of the other kind have left."""


class Rolled(Pulsar):
    """`bookies` keep their disks and their addresses, whoever runs them."""

    def __init__(self, work: Path, store: Store) -> None:
        super().__init__(work, store)
        self._hosts = store.url.removeprefix("zk:")
        self.bookies: list[BookieProcess] = []
        for number in range(COUNT):
            folder = work / f"bookie-{number}"
            place = loopback_configuration(folder, self.uri, free_port())
            self.bookies.append(self._run_by("java", {**SMALL, **BOOKIES, **place}, folder))

    def start(self) -> None:
        for bookie in self.bookies:
            bookie.start(START_S)
        self.broker.start()

    def roll(self, kind: str, progress: Callable[[], None]) -> None:
        """The highest number first, each once the one before serves. The one in the middle dies. On the way to ours so
        does the broker, and the next one recovers what was open from bookies of both kinds."""
        for number in reversed(range(COUNT)):
            ending = self.bookies[number]
            if number == 1:
                ending.kill()
                if kind == "ours":
                    self.broker.kill()
                    self.broker.start()
            else:
                ending.stop()
            progress()
            self.bookies[number] = self._run_by(kind, ending.configuration, ending.work)
            self.bookies[number].start(START_S)
            progress()

    def stop(self) -> None:
        super().stop()
        for bookie in self.bookies:
            if bookie.process is not None:
                bookie.kill()

    def _run_by(self, kind: str, configuration: dict[str, str], work: Path) -> BookieProcess:
        if kind == "java":
            return java_bookie(PROJECT.class_path(), configuration, work, self._hosts, options=SHORT_LIVED)
        return podkeeper_bookie(configuration, work, self._hosts, warm=True)


@pytest.fixture
def rolled(tmp_path: Path) -> Iterator[Rolled]:
    """On a ZooKeeper of its own: Pulsar's metadata are there once."""
    with started("zookeeper", tmp_path / "zookeeper") as store:
        made = Rolled(tmp_path, store)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def test_bookies_of_apache_become_ours_and_apaches_again(rolled):
    client = rolled.client
    received = dict.fromkeys(TOPICS, 0)
    for name in ("first", "second"):
        client.subscribe(name, "backlog", name)
        client.call("close", name=name)
    client.produce("backlog", BACKLOG, producer={"batchingEnabled": False})
    client.subscribe("keeper", "kept", "keeper")
    client.call("close", name="keeper")
    for topic, options in TOPICS.items():
        client.subscribe(topic, topic, "follower")
        client.load(topic, topic, **options)

    def consume(topic: str, count: int) -> None:
        """All up to that number, which come next and in order."""
        before, received[topic] = received[topic], count
        assert client.numbers(topic, count - before, acknowledge="up_to") == list(range(before, count))

    def progress() -> None:
        for topic in TOPICS:
            before = client.progress(topic, 0, 0)
            acknowledged = client.progress(topic, STEP, SECONDS)
            assert acknowledged >= before + STEP
            consume(topic, acknowledged)

    progress()
    for kind, subscription in (("ours", "first"), ("java", "second")):
        rolled.roll(kind, progress)
        assert {bookie.kind for bookie in rolled.bookies} == {kind}
        assert client.consumed("backlog", BACKLOG, subscription) == list(range(BACKLOG))
        rolled.check_copies("kept")
    counts = {topic: client.unload(topic) for topic in TOPICS}
    for topic, count in counts.items():
        consume(topic, count)
        assert client.nothing_more(topic)
    assert client.consumed("kept", counts["kept"], "keeper") == list(range(counts["kept"]))
