"""The last bound: what is resident, whatever it is made of."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from bookie_pod.callers import Address
from bookie_pod.server.grpc.resident import ALLOWED, DRIFT_PER_S, FIRST, GROWTH, SETTLE_S, ResidentBound

MOST = 100 << 20


class World:
    def __init__(self) -> None:
        self.resident, self.trims, self.ends = 0, 0, 0
        self.known: set[Address] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.bound = ResidentBound(MOST, lambda: self.resident, self._trim, lambda: self.known, self._end)
        self.bound.port = self._listener.getsockname()[1]
        self.sockets = [self._listener]

    def _trim(self) -> None:
        self.trims += 1

    def _end(self) -> None:
        self.ends += 1

    def connect(self, sends: int = FIRST) -> socket.socket:
        """A connection that has sent so much."""
        client = socket.create_connection(self._listener.getsockname())
        server, address = self._listener.accept()
        client.sendall(bytes(sends))
        while sends:
            sends -= len(server.recv(sends))
        self.sockets += [client, server]
        client.setblocking(False)
        self.last: Address = address
        return client

    def close(self) -> None:
        for each in self.sockets:
            each.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def is_open(client: socket.socket) -> bool:
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_a_look_that_fails_is_not_the_last_one(world: World) -> None:
    looked = threading.Event()

    def resident() -> int:
        if not looks:
            looks.append(1)
            raise MemoryError
        looked.set()
        return 0

    looks: list[int] = []
    bound = ResidentBound(MOST, resident, None, lambda: ())
    bound.start(world.bound.port)
    try:
        assert looked.wait(30)
    finally:
        bound.stop()


def test_a_look_of_which_nothing_can_be_told_is_not_the_last_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the look lacked, the line lacks too."""
    looked = threading.Event()
    told = list[object]()

    def resident() -> int:
        if told:
            looked.set()
        raise MemoryError

    def error(*line: object, **fields: object) -> None:
        told.append(line)
        raise MemoryError

    bound = ResidentBound(MOST, resident, None, lambda: ())
    monkeypatch.setattr(bound._lines, "error", error)
    bound.start(world.bound.port)
    try:
        assert looked.wait(30)
    finally:
        bound.stop()


def test_nobody_is_reset_below_the_bound(world: World) -> None:
    client = world.connect()
    world.resident = MOST
    world.bound.look(0.0)
    assert is_open(client)
    assert world.trims == 0


def test_strangers_who_sent_much_are_reset_where_it_grows_far_below_the_bound(world: World) -> None:
    """Memory that gRPC has taken for headers comes back late, so the bound itself is too late a time."""
    known = world.connect(ALLOWED)
    world.known = {world.last}
    stranger, newcomer = world.connect(ALLOWED), world.connect(ALLOWED - 1)
    world.bound.look(0.0)
    world.resident = GROWTH
    world.bound.look(0.02)
    assert is_open(stranger)
    world.resident = GROWTH + DRIFT_PER_S // 10
    world.bound.look(0.04)
    assert (is_open(stranger), is_open(newcomer), is_open(known)) == (False, True, True)
    assert world.trims == 0


def test_slow_growth_resets_nobody(world: World) -> None:
    stranger = world.connect(ALLOWED)
    for second in range(10):
        world.resident = second * DRIFT_PER_S
        world.bound.look(float(second))
    assert is_open(stranger)


def test_growth_resets_nobody_where_every_caller_is_let_in(world: World) -> None:
    client = world.connect(ALLOWED)
    bound = ResidentBound(MOST, lambda: world.resident, None, None)
    bound.port = world.bound.port
    bound.look(0.0)
    world.resident = MOST
    bound.look(0.02)
    assert is_open(client)
    world.resident = MOST + 1
    bound.look(0.04)
    assert not is_open(client)


def test_strangers_are_reset_first_and_everybody_where_that_does_not_help(world: World) -> None:
    stranger = world.connect()
    known = world.connect()
    world.known = {world.last}
    world.resident = MOST + 1
    world.bound.look(0.0)
    assert (is_open(stranger), is_open(known)) == (False, True)
    assert world.trims == 1
    world.bound.look(SETTLE_S / 2)
    assert is_open(known)
    world.bound.look(SETTLE_S)
    assert not is_open(known)
    assert world.ends == 0


@pytest.mark.parametrize("sends", [0, FIRST - 1])
def test_who_has_just_come_is_spared_as_long_as_strangers_send_more(world: World, sends: int) -> None:
    stranger, newcomer = world.connect(), world.connect(sends)
    world.resident = MOST + 1
    world.bound.look(0.0)
    assert (is_open(stranger), is_open(newcomer)) == (False, True)
    world.bound.look(SETTLE_S)
    assert not is_open(newcomer)


def test_who_is_known_is_spared_as_long_as_strangers_come(world: World) -> None:
    known = world.connect()
    world.known = {world.last}
    world.resident = MOST + 1
    for second in range(5):
        stranger = world.connect()
        world.bound.look(second * SETTLE_S)
        assert (is_open(stranger), is_open(known)) == (False, True)
    world.bound.look(5 * SETTLE_S)
    assert not is_open(known)


def test_who_is_known_is_reset_at_once_where_it_grows_on(world: World) -> None:
    known = world.connect()
    world.known = {world.last}
    world.resident = MOST + 1
    world.bound.look(0.0)
    world.resident += MOST // 4
    world.bound.look(0.01)
    assert not is_open(known)


def test_whoever_is_known_is_not_reset_again_before_it_can_have_helped(world: World) -> None:
    """What strangers made gRPC hold is freed late: else a known client would lose each connection that it opens."""
    world.resident = MOST * 3 // 2
    for now, grown, stays in (
        (0.0, 0, False),
        (0.01, 0, True),
        (0.02, MOST // 4, False),
        (0.03, 0, True),
        (0.1 + SETTLE_S, 0, False),
    ):
        world.connect()
        known = world.connect()
        world.known = {world.last}
        world.resident += grown
        world.bound.look(now)
        assert is_open(known) == stays


def test_a_process_that_is_far_beyond_ends(world: World) -> None:
    world.resident = 2 * MOST
    world.bound.look(0.0)
    assert world.ends == 1


def test_what_was_freed_last_is_given_back_by_one_more_trim(world: World) -> None:
    for now, resident in ((0.0, MOST + 1), (0.1, MOST), (0.1 + SETTLE_S / 2, MOST)):
        world.resident = resident
        world.bound.look(now)
        assert world.trims == 1
    for now in (0.1 + SETTLE_S, 9.0):
        world.bound.look(now)
        assert world.trims == 2


def test_it_begins_afresh_once_the_process_is_small_again(world: World) -> None:
    known = world.connect()
    world.known = {world.last}
    for now, resident in ((0.0, MOST + 1), (0.1, MOST), (SETTLE_S + 1, MOST + 1)):
        world.resident = resident
        world.bound.look(now)
    assert is_open(known)
