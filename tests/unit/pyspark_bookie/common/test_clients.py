"""One client per process and cluster."""

from __future__ import annotations

import os
import threading
import weakref

import pytest

from bookie_client import BlockingClient, ClientOptions, PlacementOptions
from bookie_protocol.errors import BadRequest, PodkeeperError
from pyspark_bookie.common import clients


@pytest.fixture(autouse=True)
def no_clients():
    clients.close_clients()
    yield
    clients.close_clients()


@pytest.fixture
def made(monkeypatch):
    """What is made, without a cluster."""
    found = []

    class Fake:
        def __init__(self, uri, options, *, placement):
            self.uri, self.options, self.placement, self.is_closed = uri, options, placement, False
            self.ran = []
            found.append(weakref.ref(self))

        def start(self):
            pass

        def run(self, function):
            self.ran.append(function)

        def close(self):
            self.is_closed = True

    monkeypatch.setattr("bookie_client.blocking.BlockingClient", Fake)
    return found


def client(uri, placement=None, **options):
    return clients.client(uri, ClientOptions(**options), placement or PlacementOptions())


def test_the_same_cluster_and_options_share_one(made):
    first = client("embedded://a")
    assert client("embedded://a") is first
    assert client("embedded://b") is not first
    assert client("embedded://a", read_timeout=1.0) is not first
    placed = [PlacementOptions(policy="zone-aware"), PlacementOptions(local_location="/zone-a")]
    for placement in placed:
        assert client("embedded://a", placement).placement is placement
    assert client("embedded://a", PlacementOptions(policy="zone-aware")).placement is placed[0]
    assert len(made) == 5


@pytest.mark.parametrize("told", ["local_location", "topology_file", "topology_script"])
def test_one_that_knows_where_it_stands_looks_where_bookies_stand_each_time_it_is_asked_for(made, told):
    placement = PlacementOptions(**{told: "/zone-a"})
    for times in (1, 2):
        assert len(client("embedded://a", placement).ran) == times
    assert client("embedded://a").ran == []


def test_several_threads_get_one(made):
    found = []
    barrier = threading.Barrier(8)

    def ask():
        barrier.wait()
        found.append(client("embedded://a"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert len(made) == 1


def test_idle_ones_are_let_go_but_not_those_that_are_held(made):
    held = client("embedded://held")
    client("embedded://idle")
    later = clients._clients["embedded://idle", ClientOptions(), PlacementOptions()].asked_at + clients.IDLE_SECONDS
    clients._let_go(later)
    assert [reference() is None for reference in made] == [False, True]
    assert not held.is_closed
    assert client("embedded://held") is not held, "whoever comes later gets a new one"


def test_their_number_is_bounded(made):
    for number in range(3 * clients.MAX_CLIENTS):
        client(f"embedded://{number}")
    assert sum(reference() is not None for reference in made) == clients.MAX_CLIENTS


def test_a_forked_process_makes_its_own(made):
    before = client("embedded://a")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            after = client("embedded://a")
            code = 0 if after is not before and not before.is_closed else 2
        finally:
            os._exit(code)
    os.close(writing)
    os.close(reading)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client("embedded://a") is before


def test_what_cannot_be_started_is_not_kept():
    for _ in range(2):
        with pytest.raises(PodkeeperError) as caught:
            client("nonsense://x")
        assert isinstance(caught.value, BadRequest) or "nonsense" in str(caught.value)
    assert not clients._clients


def test_it_is_never_pickled(made):
    with pytest.raises(TypeError, match="where"):
        BlockingClient("embedded://a").__reduce__()
