"""Which entries of a ledger a bookie stores: the answer of GET_LIST_OF_ENTRIES_OF_LEDGER.

Layout, big-endian (reference wire protocol, section 8.8):

    offset     size  field
    0          4     version i32 = 0
    4          4     number of groups G, i32
    8          56    zero
    64 + 24k   8     first entry id of the first run of group k, i64
    +8         8     first entry id of the last run of the group, i64
    +16        4     entries of each run, i32
    +20        4     period i32: distance between the starts of two runs; 0 when there is one run

Groups ascend and do not overlap.

Invariants
- The encoder holds one group for any number of runs that follow one another at one distance (a striped
  ledger), so it needs memory for irregularities only.
- It writes one group per run, as the reference implementation does, while that fits the size allowed; beyond
  that it writes periods.

Pure functions and immutable results; any thread.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from bookie_protocol.errors import BadRequest, ProtocolViolation
from bookie_protocol.wire.framing import DEFAULT_MAX_FRAME_SIZE

HEADER: Final = struct.Struct(">ii56x")
GROUP: Final = struct.Struct(">qqii")
HEADER_SIZE: Final = 64
GROUP_SIZE: Final = 24
assert HEADER.size == HEADER_SIZE
assert GROUP.size == GROUP_SIZE

DEFAULT_MAX_SIZE: Final = DEFAULT_MAX_FRAME_SIZE - 500
"""Bytes of an encoding that a frame of the default limit surely takes."""

_VERSION: Final = 0
_MAX_I32: Final = 0x7FFFFFFF


class _Group(NamedTuple):
    first: int
    last: int
    size: int
    period: int

    @property
    def runs(self) -> int:
        return (self.last - self.first) // self.period + 1 if self.period else 1

    @property
    def end(self) -> int:
        """The first entry id behind the group."""
        return self.last + self.size


# --- encoding -----------------------------------------------------------------------------------------------


def encode_availability(entry_ids: Iterable[int], max_size: int = DEFAULT_MAX_SIZE) -> bytes:
    """The encoding of ascending entry ids, which are consumed one by one; equal neighbours count once. It holds no more
    than `max_size` bytes, twice.

    Raises ValueError when the ids do not ascend, BadRequest as soon as no encoding fits `max_size` bytes.
    """
    most = (max_size - HEADER_SIZE) // GROUP_SIZE
    merged, count, runs = bytearray(), 0, 0
    for group in _merge(_runs(entry_ids)):
        if count >= most:
            raise BadRequest(
                f"the list of entries takes more than {max_size} bytes, the limit: raise nettyMaxFrameSizeBytes"
            )
        merged += GROUP.pack(*group)
        count, runs = count + 1, runs + group.runs
    if count < runs <= most:
        groups = map(_Group._make, GROUP.iter_unpack(merged))
        merged = bytearray().join(GROUP.pack(*single) for group in groups for single in _singles(group))
        count = runs
    return HEADER.pack(_VERSION, count) + merged


def _runs(entry_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Start and size of each run of consecutive ids; a run's size fits 31 bits."""
    start = size = 0
    for entry_id in entry_ids:
        end = start + size
        if size and entry_id == end and size < _MAX_I32:
            size += 1
        elif size and entry_id == end - 1:
            continue
        elif size and entry_id < end:
            raise ValueError(f"entry id {entry_id} follows {end - 1}: ids must ascend")
        else:
            if size:
                yield start, size
            start, size = entry_id, 1
    if size:
        yield start, size


def _merge(runs: Iterable[tuple[int, int]]) -> Iterator[_Group]:
    group: _Group | None = None
    for start, size in runs:
        if group is not None:
            distance = start - group.last
            if size == group.size and distance <= _MAX_I32 and group.period in (0, distance):
                group = _Group(group.first, start, size, distance)
                continue
            yield group
        group = _Group(start, start, size, 0)
    if group is not None:
        yield group


def _singles(group: _Group) -> Iterator[_Group]:
    for run in range(group.runs):
        start = group.first + run * group.period
        yield _Group(start, start, group.size, 0)


# --- decoding -----------------------------------------------------------------------------------------------


class Availability:
    """The entries that a bookie says it stores."""

    def __init__(self, groups: list[_Group]) -> None:
        self._groups = groups
        self._starts = [group.first for group in groups]
        self.count = sum(group.runs * group.size for group in groups)
        """Number of entries; what a bookie claims, so it may be absurdly large."""

    @property
    def last(self) -> int | None:
        """The highest entry; None if there is none."""
        return self._groups[-1].end - 1 if self._groups else None

    def __contains__(self, entry_id: int) -> bool:
        index = bisect_right(self._starts, entry_id) - 1
        if index < 0:
            return False
        group = self._groups[index]
        if entry_id >= group.end:
            return False
        distance = entry_id - group.first
        return (distance % group.period if group.period else distance) < group.size

    def __iter__(self) -> Iterator[int]:
        """Entry ids, ascending and lazily."""
        for run in self.runs():
            yield from run

    def runs(self) -> Iterator[range]:
        """Ranges of consecutive ids, ascending; neighbours may touch."""
        for group in self._groups:
            for run in range(group.runs):
                start = group.first + run * group.period
                yield range(start, start + group.size)

    def runs_between(self, start: int, stop: int) -> Iterator[range]:
        """The same, cut to ids of `start <= id < stop`; costs nothing for what lies outside."""
        for group in self._groups[max(0, bisect_right(self._starts, start) - 1) :]:
            if group.first >= stop:
                return
            if group.end <= start:
                continue
            behind, period = max(0, start - group.first), group.period or group.size
            for run in range(behind // period, min(group.runs, (stop - group.first - 1) // period + 1)):
                begin = group.first + run * group.period
                cut = range(max(begin, start), min(begin + group.size, stop))
                if cut:
                    yield cut


def decode_availability(data: bytes) -> Availability:
    """Raises ProtocolViolation when `data` is no encoding of version 0, damaged, or not in order."""
    if len(data) < HEADER_SIZE:
        raise ProtocolViolation(f"list of entries has {len(data)} bytes, its header needs {HEADER_SIZE}")
    version, count = HEADER.unpack_from(data)
    if version > _VERSION:
        raise ProtocolViolation(f"list of entries has version {version}, this reader knows {_VERSION}")
    if len(data) != HEADER_SIZE + GROUP_SIZE * count:
        raise ProtocolViolation(f"list of entries names {count} groups and has {len(data)} bytes")
    groups = [_Group(*fields) for fields in GROUP.iter_unpack(data[HEADER_SIZE:])]
    behind: int | None = None
    for index, group in enumerate(groups):
        if not _is_sound(group) or (behind is not None and group.first < behind):
            raise ProtocolViolation(f"list of entries is damaged in group {index}: {tuple(group)}")
        behind = group.end
    return Availability(groups)


def _is_sound(group: _Group) -> bool:
    first, last, size, period = group
    if size < 1:
        return False
    if period == 0:
        return first == last
    return period >= size and last >= first and (last - first) % period == 0
