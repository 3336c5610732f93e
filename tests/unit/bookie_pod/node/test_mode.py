"""Read-only and writable: who decides, who is told, what survives a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.config.sections.gc import DisksConfig
from bookie_pod.node.mode import BookieMode, BookieStatus
from bookie_pod.storage.disks import DiskVerdict
from bookie_protocol.errors import MetadataUnavailable, NoWritableDirectory, PodkeeperError


def verdict(writable: int, full: int = 0, room: bool = True) -> DiskVerdict:
    return DiskVerdict(writable, full, room, {}, tuple(f"/disk{n}" for n in range(full)))


@dataclass
class World:
    """Everything that a mode talks to."""

    options: DisksConfig = field(default_factory=DisksConfig)
    remembered: BookieStatus | None = None

    def __post_init__(self) -> None:
        self.gate = (False, True)
        self.fatal: list[PodkeeperError] = []
        self.announced: list[bool] = []
        self.written: list[tuple[bool, bool]] = []
        self.unavailable = False
        self.flushes = 0
        self.mode = BookieMode(
            self.options,
            self,
            self._run,
            self.fatal.append,
            remembered=self.remembered,
            store=self,
            request_flush=self._flush,
        )

    def _flush(self) -> None:
        self.flushes += 1

    def _run(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        asyncio.run(run())

    def set_mode(self, *, read_only: bool, high_priority_writes: bool) -> None:
        self.gate = (read_only, high_priority_writes)

    async def to_read_only(self) -> None:
        self._announce(True)

    async def to_writable(self) -> None:
        self._announce(False)

    def _announce(self, read_only: bool) -> None:
        assert self.gate[0] == read_only, "the gate changes first"
        self.announced.append(read_only)
        if self.unavailable:
            raise MetadataUnavailable("no answer")

    def write(self, mode: Callable[[], tuple[bool, bool]]) -> None:
        self.written.append(mode())

    def attached(self) -> World:
        self.mode.attach(self, announced_read_only=self.mode.read_only)
        return self


def test_full_disks_and_back() -> None:
    world = World().attached()
    world.mode.on_disks(verdict(0, 1, room=False))
    assert (world.mode.read_only, world.gate, world.announced) == (True, (True, False), [True])
    world.mode.on_disks(verdict(0, 1, room=True))
    assert (world.gate, world.announced) == ((True, True), [True])
    world.mode.on_disks(verdict(1))
    assert (world.mode.read_only, world.gate, world.announced) == (False, (False, True), [True, False])


@pytest.mark.parametrize("any_disk", [True, False])
def test_one_of_two_disks_is_full(any_disk: bool) -> None:
    world = World(DisksConfig(read_only_on_any_disk_full=any_disk)).attached()
    world.mode.on_disks(verdict(1, 1))
    assert world.mode.read_only == any_disk
    world.mode.on_disks(verdict(2))
    assert not world.mode.read_only


def test_an_operators_word_lasts_whatever_the_disks_say() -> None:
    world = World().attached()
    world.mode.set_by_operator(True)
    world.mode.on_disks(verdict(1))
    assert world.mode.read_only
    world.mode.on_disks(verdict(0, 1))
    world.mode.on_disks(verdict(1))
    assert world.mode.read_only
    world.mode.set_by_operator(False)
    assert not world.mode.read_only
    assert world.announced == [True, False]


def test_an_operator_cannot_make_full_disks_writable() -> None:
    world = World().attached()
    world.mode.on_disks(verdict(0, 1))
    world.mode.set_by_operator(False)
    assert world.mode.read_only
    assert world.announced == [True]
    world.mode.on_disks(verdict(1))
    assert not world.mode.read_only


def test_forced_never_changes() -> None:
    world = World(DisksConfig(force_read_only=True)).attached()
    assert world.gate == (True, False)
    world.mode.set_by_operator(False)
    world.mode.on_disks(verdict(1))
    assert world.gate == (True, False)
    assert world.announced == []


def test_forbidden_read_only_mode_stops_the_bookie() -> None:
    world = World(DisksConfig(read_only_mode=False)).attached()
    world.mode.on_disks(verdict(1))
    assert world.fatal == []
    world.mode.on_disks(verdict(0, 1))
    (error,) = world.fatal
    assert "/disk0" in str(error)
    assert "readOnlyModeEnabled=false" in str(error)
    assert not world.mode.read_only


def test_a_flush_without_a_directory() -> None:
    world = World().attached()
    world.mode.no_writable_directory(NoWritableDirectory("all full"))
    world.mode.no_writable_directory(NoWritableDirectory("all full"))
    assert world.announced == [True]


def test_disks_with_room_do_not_end_what_a_flush_has_found() -> None:
    """Whatever makes each flush fail: the bookie does not come and go with the looks at its disks."""
    world = World().attached()
    world.mode.flushed()
    world.mode.no_writable_directory(NoWritableDirectory("cannot be flushed: Input/output error"))
    for looks in range(3):
        world.mode.on_disks(verdict(1))
        assert (world.mode.read_only, world.announced, world.flushes) == (True, [True], looks + 1)
    world.mode.set_by_operator(False)
    assert world.mode.read_only
    world.mode.flushed()
    assert (world.mode.read_only, world.announced) == (False, [True, False])
    world.mode.on_disks(verdict(1))
    assert world.flushes == 3


def test_a_flush_that_succeeds_ends_nothing_else() -> None:
    world = World().attached()
    world.mode.no_writable_directory(NoWritableDirectory("all full"))
    world.mode.on_disks(verdict(0, 1))
    world.mode.flushed()
    assert world.mode.read_only
    world.mode.on_disks(verdict(1))
    assert world.announced == [True, False]


def test_a_change_before_the_registration_is_announced_by_it() -> None:
    world = World()
    world.mode.on_disks(verdict(0, 1))
    assert world.announced == []
    world.mode.attach(world, announced_read_only=False)
    assert world.announced == [True]
    world.mode.detach()
    world.mode.on_disks(verdict(1))
    assert world.announced == [True]


def test_the_gate_changes_even_if_nobody_can_be_told() -> None:
    world = World().attached()
    world.unavailable = True
    world.mode.on_disks(verdict(0, 1))
    assert world.gate[0]


@pytest.mark.parametrize(("manual", "lasts"), [(True, True), (False, False)])
def test_what_is_remembered(manual: bool, lasts: bool) -> None:
    """An automatic read-only mode ends with the first look at disks that have room."""
    world = World(remembered=BookieStatus(True, 5, manual)).attached()
    assert world.gate[0]
    world.mode.on_disks(verdict(1))
    assert world.mode.read_only == lasts
    world.mode.set_by_operator(False)
    assert not world.mode.read_only
    assert world.written[-1] == (False, False)


def test_changes_are_remembered() -> None:
    world = World().attached()
    world.mode.on_disks(verdict(0, 1))
    world.mode.set_by_operator(True)
    world.mode.on_disks(verdict(1))
    world.mode.set_by_operator(False)
    assert world.written == [(True, False), (True, True), (False, False)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("disks"), st.integers(0, 2), st.integers(0, 2)), st.tuples(st.just("operator"), st.booleans())
    ),
    max_size=30,
)


@given(STEPS, st.booleans(), st.booleans())
def test_the_mode_follows_from_the_last_words(steps: list[tuple], any_disk: bool, forced: bool) -> None:
    """Read-only if an operator's last word was so, or the last look found the disks full, or it is forced."""
    world = World(DisksConfig(read_only_on_any_disk_full=any_disk, force_read_only=forced)).attached()
    manual = full = False
    for step in steps:
        if step[0] == "operator":
            manual = step[1]
            world.mode.set_by_operator(manual)
        else:
            full = step[1] == 0 or (any_disk and step[2] > 0)
            world.mode.on_disks(verdict(step[1], step[2]))
        assert world.mode.read_only == world.gate[0] == (manual or full or forced)
    assert all(a != b for a, b in zip(world.announced, world.announced[1:], strict=False))
    assert world.fatal == []


def test_before_a_stop_it_is_read_only_and_that_is_not_written_down() -> None:
    world = World().attached()
    world.mode.prepare_to_stop()
    assert (world.mode.read_only, world.gate, world.announced) == (True, (True, True), [True])
    world.mode.on_disks(verdict(1))
    world.mode.set_leaving(True)
    world.mode.set_leaving(False)
    assert world.mode.read_only
    world.mode.on_disks(verdict(0, 1))
    world.mode.prepare_to_stop()
    assert (world.announced, world.written) == ([True], [])


def test_an_operator_calls_the_stop_off() -> None:
    world = World().attached()
    world.mode.prepare_to_stop()
    world.mode.set_by_operator(False)
    assert (world.mode.read_only, world.announced, world.written) == (False, [True, False], [(False, False)])


@pytest.mark.parametrize("other", ["stops", "operator", "is full", "nothing"])
def test_undone_decommission_takes_no_other_reason_along(other: str) -> None:
    world = World()
    mode = world.mode
    mode.set_leaving(True)
    assert mode.leaving
    if other == "stops":
        mode.prepare_to_stop()
    elif other == "operator":
        mode.set_by_operator(True)
    elif other == "is full":
        mode.on_disks(verdict(0, full=1))
    mode.set_leaving(False)
    assert (mode.leaving, mode.read_only, world.gate[0]) == (False, other != "nothing", other != "nothing")
    assert mode.manual == (other == "operator")


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_mode_that_an_operator_set_outlives_the_stop(order: str) -> None:
    world = World().attached()
    if order == "before":
        world.mode.set_by_operator(True)
    world.mode.prepare_to_stop()
    if order == "after":
        world.mode.set_by_operator(True)
    assert (world.announced, world.written) == ([True], [(True, True)])


def test_a_bookie_that_may_not_be_read_only_takes_writes_until_the_end() -> None:
    world = World(DisksConfig(read_only_mode=False)).attached()
    world.mode.prepare_to_stop()
    assert (world.mode.read_only, world.fatal, world.announced) == (False, [], [])
