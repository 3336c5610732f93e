"""Room for large frames: in turn, one in any case, and none for those who do not use it."""

from __future__ import annotations

import asyncio

import pytest

from bookie_pod.client_memory import LEAVES, MemoryGovernor
from bookie_pod.server.tcp.frame_rooms import PARTS, PATIENCE_S, FrameRoom, FrameRooms

LIMIT = 800
MOST = LIMIT - LIMIT // LEAVES


class Frame:
    """Of one connection, which counts its room as held."""

    def __init__(self, rooms: FrameRooms, memory: MemoryGovernor) -> None:
        self.share = memory.share(lambda: None)
        self.gave_up = 0
        self.room: FrameRoom = rooms.of(self._count, self._give_up)

    def begin(self, nbytes: int) -> bool:
        began = self.room.begin(nbytes)
        self._count()
        return began

    def end(self) -> None:
        self.room.end()
        self._count()

    def _count(self) -> None:
        self.share.hold(self.room.nbytes - self.share.held)

    def _give_up(self) -> None:
        self.gave_up += 1
        self.end()


@pytest.fixture
def memory() -> MemoryGovernor:
    return MemoryGovernor(LIMIT)


@pytest.fixture
async def rooms(memory: MemoryGovernor) -> FrameRooms:
    return FrameRooms(asyncio.get_running_loop(), memory, lambda: False)


async def test_frames_have_room_in_the_order_in_which_they_began(rooms: FrameRooms, memory: MemoryGovernor) -> None:
    first, large, small = (Frame(rooms, memory) for _ in range(3))
    assert first.begin(200)
    assert not large.begin(MOST - 199)
    assert not small.begin(1), "others were there before"
    first.end()
    assert large.room.waits, "in the next turn"
    await asyncio.sleep(0)
    assert (large.room.nbytes, small.room.nbytes) == (MOST - 199, 1)
    assert memory.held == MOST - 198


async def test_one_is_read_in_any_case(rooms: FrameRooms, memory: MemoryGovernor) -> None:
    memory.share(lambda: None).hold(LIMIT)
    first, second = (Frame(rooms, memory) for _ in range(2))
    assert first.begin(5 * LIMIT)
    assert not second.begin(1)
    first.end()
    await asyncio.sleep(0)
    assert second.room.nbytes == 1


async def test_who_does_not_use_its_room_makes_way_for_those_that_wait(
    rooms: FrameRooms, memory: MemoryGovernor
) -> None:
    idle, busy, waiting = (Frame(rooms, memory) for _ in range(3))
    assert idle.begin(MOST // 2)
    assert busy.begin(MOST // 2)
    late = busy.room.moved_at + PATIENCE_S + 0.001
    rooms.look(late)
    assert (idle.gave_up, busy.gave_up) == (0, 0), "nobody waits"
    assert not waiting.begin(MOST // 2)
    busy.room.moved_at = idle.room.moved_at = 0.0
    idle.room.came(MOST // 2 // PARTS - 1)  # a trickle is not enough
    busy.room.came(MOST // 2 // PARTS + 1)
    rooms.look(busy.room.moved_at + PATIENCE_S)
    assert (idle.gave_up, busy.gave_up, waiting.room.nbytes) == (1, 0, MOST // 2)
    await asyncio.sleep(0)


async def test_a_bookie_that_slept_takes_no_room_away(rooms: FrameRooms, memory: MemoryGovernor) -> None:
    reading, waiting = (Frame(rooms, memory) for _ in range(2))
    assert reading.begin(MOST)
    assert not waiting.begin(1)
    slept = 100 * PATIENCE_S
    awake = reading.room.moved_at + slept
    rooms.look(awake, slept)
    assert reading.gave_up == 0
    rooms.look(awake + 2 * PATIENCE_S)
    assert (reading.gave_up, waiting.room.nbytes) == (1, 1)
    await asyncio.sleep(0)


async def test_who_is_gone_waits_no_more(rooms: FrameRooms, memory: MemoryGovernor) -> None:
    first, gone, last = (Frame(rooms, memory) for _ in range(3))
    assert first.begin(MOST)
    assert not gone.begin(MOST)
    assert not last.begin(1)
    gone.end()
    first.end()
    await asyncio.sleep(0)
    assert (gone.room.nbytes, gone.room.waits, last.room.nbytes) == (0, False, 1)
