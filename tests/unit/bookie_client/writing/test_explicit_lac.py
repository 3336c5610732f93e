"""When a LAC is sent by itself; and that bookies get it."""

from types import SimpleNamespace

import pytest

from bookie_client.distribution import Quorums
from bookie_client.writing.add_state import AddState
from bookie_client.writing.explicit_lac import ExplicitLac, LacAnnouncements
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import BadRequest, StorageFault
from tests.support.until import until

CRC32C = digest_manager(DigestType.CRC32C, b"")


def test_a_lac_that_rides_on_entries_is_not_sent():
    announcements = LacAnnouncements()
    assert announcements.due(4, 5) is None
    assert announcements.due(8, 9) is None


def test_a_pause_sends_the_last_lac_once():
    announcements = LacAnnouncements()
    assert announcements.due(8, 9) is None
    assert announcements.due(8, 9) == 9
    announcements.sent(9)
    assert announcements.due(8, 9) is None


def test_a_lac_without_enough_answers_is_sent_again():
    announcements = LacAnnouncements()
    assert [announcements.due(-1, 0) for _ in range(3)] == [0, 0, 0]


def test_nothing_confirmed_or_everything_known_sends_nothing():
    announcements = LacAnnouncements()
    assert announcements.due(-1, -1) is None
    announcements.due(5, 5)
    assert announcements.due(5, 5) is None


def explicit_lac(cluster, name, ledger_id=0):
    ledger = cluster.bookie(name).ledgers.get(ledger_id)
    if ledger is None or ledger.explicit_lac is None:
        return None
    return CRC32C.verify_lac(ledger.explicit_lac, ledger_id)


def explicit_lacs(cluster):
    return {name: explicit_lac(cluster, name) for name in cluster.servers}


async def test_bookies_of_the_write_set_learn_the_lac_of_a_writer_that_pauses(three):
    async with three.client(explicit_lac_interval=0.01) as client, client.create(write_quorum=2) as ledger:
        await ledger.append_many([b"x"] * 5)
        write_set = [ledger.metadata.last_ensemble[(4 + i) % 3] for i in range(2)]
        await until(lambda: {n for n, lac in explicit_lacs(three).items() if lac == 4} == set(write_set))
        before = [three.bookie(name).lac_writes for name in three.servers]
        await ledger.append(b"one more")
        await until(lambda: 5 in explicit_lacs(three).values())
        after = [three.bookie(name).lac_writes for name in three.servers]
        assert sum(after) - sum(before) == 2


async def test_a_failed_announcement_is_repeated_and_never_ends_the_writer(three):
    async with three.client(explicit_lac_interval=0.01) as client, client.create(write_quorum=3) as ledger:
        for name in three.servers:
            three.bookie(name).fail_lac_writes = StorageFault
        await ledger.append(b"one")
        await until(lambda: all(three.bookie(name).lac_writes >= 2 for name in three.servers))
        for name in three.servers:
            three.bookie(name).fail_lac_writes = None
        await until(lambda: set(explicit_lacs(three).values()) == {0})
        await ledger.append(b"two")
        assert ledger.failure is None


async def test_announcements_end_with_the_handle(three):
    async with three.client(explicit_lac_interval=0.01) as client:
        ledger = await client.create(write_quorum=3)
        await ledger.append(b"one")
        await ledger.close()
        writes = [three.bookie(name).lac_writes for name in three.servers]
        async with client.create(write_quorum=3) as other:
            await other.append(b"x")
            await until(lambda: all(explicit_lac(three, n, other.ledger_id) == 0 for n in three.servers))
        again = [three.bookie(name).lac_writes for name in three.servers]
        assert [b - a for a, b in zip(writes, again, strict=True)] == [1, 1, 1]


async def test_a_client_of_version_2_cannot_have_it(three):
    with pytest.raises(BadRequest, match="explicit_lac_interval needs protocol_version=3"):
        three.client(explicit_lac_interval=1.0, protocol_version=2)


@pytest.mark.parametrize(("refusing", "counts"), [(1, True), (2, False)])
async def test_a_lac_that_an_ack_quorum_has_is_known(refusing, counts):
    """Two of three."""
    state, asked = AddState(7, Quorums(3, 3, 2), ("A", "B", "C")), []

    async def write_lac(bookie, *_):
        asked.append(bookie)
        if len(asked) <= refusing:
            raise StorageFault("full")

    context = SimpleNamespace(operations=SimpleNamespace(write_lac=write_lac))
    explicit = ExplicitLac(context, state, CRC32C, b"key")
    add = state.begin(1)
    for bookie in ("A", "B"):
        state.acknowledged(add, bookie)
    state.deliver()
    await explicit._announce()
    assert asked == ["A", "B", "C"]
    await explicit._announce()
    assert len(asked) == (3 if counts else 6)
