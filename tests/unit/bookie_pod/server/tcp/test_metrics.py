"""What a bookie's metrics say after adds, reads, forces and lists in both wire versions."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.requests import RequestMetrics
from tests.support.frames import (
    entry,
    v2_add,
    v2_batch,
    v2_fence,
    v2_read,
    v3_add,
    v3_fence,
    v3_force,
    v3_list,
    v3_poll,
    v3_read,
)
from tests.support.production import production
from tests.support.server_rig import PaperTransport, ServerRig
from tests.support.until import until

ENTRY_BYTES = len(entry(1, 0, bytes(100)))


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
async def rig(registry: Registry) -> AsyncIterator[ServerRig]:
    made = ServerRig()
    made.context.metrics = RequestMetrics(registry, BookieMetrics(registry))
    yield made
    made.close()


def value(registry: Registry, name: str, *, labels: str = "") -> float:
    (found,) = re.findall(rf"^{name}{re.escape(labels)} (\S+)$", registry.render(), re.MULTILINE)
    return float(found)


def count(registry: Registry, name: str, success: str = "true") -> float:
    return value(registry, f"{name}_count", labels=f'{{success="{success}"}}')


async def answered(rig: ServerRig, transport: PaperTransport, number: int) -> None:
    rig.journal.acknowledge()
    await rig.settle(lambda: (rig.journal.acknowledge(), len(transport.frames) >= number)[1])


@pytest.mark.parametrize("add", [v2_add, v3_add])
@pytest.mark.parametrize("write_data", [True, False])
async def test_adds_and_their_bytes(rig: ServerRig, registry: Registry, add, write_data: bool) -> None:
    rig.operations.write_data = write_data
    conn, transport = rig.connect()
    conn.data_received(b"".join(add(entry(1, entry_id, bytes(100))) for entry_id in range(5)))
    await answered(rig, transport, 5)
    conn.data_received(add(entry(2, 0, bytes(100))))
    await answered(rig, transport, 6)
    assert value(registry, "bookie_WRITE_BYTES") == 6 * ENTRY_BYTES
    assert count(registry, "bookie_BOOKIE_ADD_ENTRY") == 6
    assert value(registry, "bookie_BOOKIE_ADD_ENTRY_BYTES_sum", labels='{success="true"}') == 6 * ENTRY_BYTES
    assert count(registry, "bookkeeper_server_ADD_ENTRY_REQUEST") == 6


@pytest.mark.parametrize(("add", "read"), [(v2_add, v2_read), (v3_add, v3_read)])
async def test_reads_and_their_bytes(rig: ServerRig, registry: Registry, add, read) -> None:
    conn, transport = rig.connect()
    conn.data_received(b"".join(add(entry(1, entry_id, bytes(100))) for entry_id in range(3)))
    await answered(rig, transport, 3)
    for number in range(2):  # not cached in the sense of the hot path at first, and then in one go
        conn.data_received(read(1, 0) + read(1, 1) + read(1, 9))
        await answered(rig, transport, 6 + 3 * number)
    await until(lambda: value(registry, "bookie_READ_BYTES") == 4 * ENTRY_BYTES)
    assert count(registry, "bookie_BOOKIE_READ_ENTRY") == 4
    assert count(registry, "bookkeeper_server_READ_ENTRY_REQUEST") == 4
    assert count(registry, "bookkeeper_server_READ_ENTRY_REQUEST", "false") == 2


async def test_the_entries_of_a_batch_count_each_and_the_request_once(rig: ServerRig, registry: Registry) -> None:
    conn, transport = rig.connect()
    conn.data_received(b"".join(v2_add(entry(1, entry_id, bytes(100))) for entry_id in range(3)))
    await answered(rig, transport, 3)
    conn.data_received(v2_batch(1, 0, 10))
    await answered(rig, transport, 4)
    assert value(registry, "bookie_READ_BYTES") == 3 * ENTRY_BYTES
    assert count(registry, "bookie_BOOKIE_READ_ENTRY") == 3
    assert count(registry, "bookkeeper_server_READ_ENTRY_REQUEST") == 1


async def test_a_fencing_read_counts_its_entry_and_a_long_poll_without_one_does_not(
    rig: ServerRig, registry: Registry
) -> None:
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(1, 0, bytes(100))))
    await answered(rig, transport, 1)
    conn.data_received(v3_poll(1, 5, 1))
    await answered(rig, transport, 2)
    assert value(registry, "bookie_READ_BYTES") == 0
    conn.data_received(v3_fence(1))
    await answered(rig, transport, 3)
    assert value(registry, "bookie_READ_BYTES") == ENTRY_BYTES


async def test_forces_and_lists_of_entries(rig: ServerRig, registry: Registry) -> None:
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(1, 0)))
    await answered(rig, transport, 1)
    conn.data_received(v3_force(1) + v3_list(1))
    await answered(rig, transport, 3)
    assert value(registry, "bookie_BOOKIE_FORCE_LEDGER") == 1
    assert count(registry, "bookie_BOOKIE_GET_LIST_OF_ENTRIES_OF_LEDGER") == 1


def phases(registry: Registry, *names: str) -> list[tuple[float, float]]:
    """(succeeded, failed) of each."""
    name = "bookkeeper_server_READ_ENTRY_{}"
    return [(count(registry, name.format(each)), count(registry, name.format(each), "false")) for each in names]


@pytest.mark.parametrize(("add", "fence"), [(v2_add, v2_fence), (v3_add, v3_fence)])
async def test_a_fencing_read_waits_for_its_fence(rig: ServerRig, registry: Registry, add, fence) -> None:
    conn, transport = rig.connect()
    conn.data_received(add(entry(1, 0)))
    await answered(rig, transport, 1)
    conn.data_received(fence(1))
    await rig.settle(lambda: phases(registry, "FENCE_READ") == [(1, 0)])
    assert phases(registry, "FENCE_WAIT") == [(0, 0)], "the fence is not durable yet"
    await answered(rig, transport, 2)
    assert phases(registry, "FENCE_READ", "FENCE_WAIT") == [(1, 0), (1, 0)]
    conn.data_received(fence(1, 9))
    await answered(rig, transport, 3)
    assert phases(registry, "FENCE_READ", "FENCE_WAIT") == [(1, 1), (2, 0)]


async def test_the_parts_of_a_long_poll(rig: ServerRig, registry: Registry) -> None:
    names = ("LONG_POLL_PRE_WAIT", "LONG_POLL_WAIT", "LONG_POLL_READ", "LONG_POLL_REQUEST")
    conn, transport = rig.connect()
    for entry_id in range(2):
        conn.data_received(v3_add(entry(1, entry_id)))
        await answered(rig, transport, entry_id + 1)
    conn.data_received(v3_poll(1, 0))
    await rig.settle(lambda: rig.polls.waiting == 1)
    assert phases(registry, *names) == [(1, 0), (0, 0), (0, 0), (0, 0)]
    conn.data_received(v3_add(entry(1, 2)))
    await answered(rig, transport, 4)
    assert phases(registry, *names) == [(1, 0), (1, 0), (1, 0), (1, 0)]
    conn.data_received(v3_poll(1, 5, 1))
    await answered(rig, transport, 5)
    assert phases(registry, *names) == [(2, 0), (1, 1), (2, 0), (2, 0)], "its time was up"
    conn.data_received(v3_poll(1, -1))
    await answered(rig, transport, 6)
    assert phases(registry, *names) == [(2, 0), (1, 1), (3, 0), (3, 0)], "nothing to wait for"


@pytest.mark.parametrize(("add", "read"), [(v2_add, v2_read), (v3_add, v3_read)])
async def test_a_last_entry_that_is_not_there(rig: ServerRig, registry: Registry, add, read) -> None:
    rig.storage.set_master_key(2, b"k" * 20)
    conn, transport = rig.connect()
    conn.data_received(add(entry(1, 0)))
    await answered(rig, transport, 1)
    conn.data_received(read(2, -1) + read(1, -1) + read(1, 9))
    await answered(rig, transport, 4)
    assert value(registry, "bookkeeper_server_READ_LAST_ENTRY_NOENTRY_ERROR") == 1


async def test_how_long_reads_were_left_in_the_socket(registry: Registry) -> None:
    rig = ServerRig(production(max_reads_in_progress=1))
    rig.context.metrics = RequestMetrics(registry, BookieMetrics(registry))
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)))
    await answered(rig, transport, 1)
    name = "bookkeeper_server_READ_ENTRY_BLOCKED_WAIT"
    conn.data_received(v2_read(1, -1))
    assert count(registry, name) == 0
    await answered(rig, transport, 2)
    assert count(registry, name) == 1
    rig.close()
