"""One client per process and cluster."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

from bookie_client import BlockingClient, ClientOptions
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
        def __init__(self, uri, options):
            self.uri, self.options, self.is_closed = uri, options, False
            found.append(weakref.ref(self))

        def start(self):
            pass

        def close(self):
            self.is_closed = True

    monkeypatch.setattr("bookie_client.blocking.BlockingClient", Fake)
    return found


def test_the_same_cluster_and_options_share_one(made):
    first = clients.client("embedded://a", ClientOptions())
    assert clients.client("embedded://a", ClientOptions()) is first
    assert clients.client("embedded://b", ClientOptions()) is not first
    assert clients.client("embedded://a", ClientOptions(read_timeout=1.0)) is not first
    assert len(made) == 3


def test_several_threads_get_one(made):
    found = []
    barrier = threading.Barrier(8)

    def ask():
        barrier.wait()
        found.append(clients.client("embedded://a", ClientOptions()))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert len(made) == 1


def test_idle_ones_are_let_go_but_not_those_that_are_held(made):
    held = clients.client("embedded://held", ClientOptions())
    clients.client("embedded://idle", ClientOptions())
    later = clients._clients["embedded://idle", ClientOptions()].asked_at + clients.IDLE_SECONDS
    clients._let_go(later)
    gc.collect()
    assert [reference() is None for reference in made] == [False, True]
    assert not held.is_closed
    assert clients.client("embedded://held", ClientOptions()) is not held, "whoever comes later gets a new one"


def test_their_number_is_bounded(made):
    for number in range(3 * clients.MAX_CLIENTS):
        clients.client(f"embedded://{number}", ClientOptions())
    gc.collect()
    assert sum(reference() is not None for reference in made) == clients.MAX_CLIENTS


def test_a_forked_process_makes_its_own(made):
    before = clients.client("embedded://a", ClientOptions())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            after = clients.client("embedded://a", ClientOptions())
            code = 0 if after is not before and not before.is_closed else 2
        finally:
            os._exit(code)
    os.close(writing)
    os.close(reading)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert clients.client("embedded://a", ClientOptions()) is before


def test_what_cannot_be_started_is_not_kept():
    for _ in range(2):
        with pytest.raises(PodkeeperError) as caught:
            clients.client("nonsense://x", ClientOptions())
        assert isinstance(caught.value, BadRequest) or "nonsense" in str(caught.value)
    assert not clients._clients


def test_it_is_never_pickled(made):
    with pytest.raises(TypeError, match="make the client where it is used"):
        BlockingClient("embedded://a").__reduce__()
