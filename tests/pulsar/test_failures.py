"""Bookies end while a producer goes on: what it was told is there, once and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.pulsar.conftest import Pulsar

STEP = 300
"""Messages that are to be acknowledged between two events."""
STEP_S = 300
SIZES = (20, 500, 3000)


@contextmanager
def producing(pulsar: Pulsar, topic: str) -> Iterator[Callable[[], None]]:
    """Gives what waits for the next messages. In the end all that was acknowledged is there, once and in order: for a
    subscription that has been there from the first message on, and for one that comes when it is over."""
    client = pulsar.client
    client.subscribe(f"{topic}-follower", topic, "follower")
    client.load(topic, topic, sizes=SIZES)

    def progress() -> None:
        before = client.progress(topic, 0, 0)
        assert client.progress(topic, STEP, STEP_S) >= before + STEP

    progress()
    yield progress
    progress()
    count = client.unload(topic)
    assert client.consumed(topic, count) == list(range(count))
    followed = client.numbers(f"{topic}-follower", count)
    assert followed == list(range(count))
    assert client.nothing_more(f"{topic}-follower")
    client.call("close", name=f"{topic}-follower")


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_all_bookies_are_restarted_in_turn(pulsar, end):
    with producing(pulsar, f"in-turn-{end}") as progress:
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
