"""What a loss of power does to the files of a process that has just been killed: writes that no sync covered are taken
back, whole, in part or not at all, as the seed draws.

The record is what shim.c has kept. Of each file a first number of unsynced writes stays; of the next one some sectors
stay (it is torn); the rest is lost. So files lose their tails independently of each other, as disks do. Names (files
that were created, renamed or removed) are not taken back.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

_HEAD: Final = struct.Struct("<IIQQQQ")
_MAGIC: Final = 0x4F444E55
_SECTOR: Final = 512
_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    length: int
    old_size: int
    saved: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """What was taken back."""

    files: int = 0
    writes: int = 0
    torn: int = 0


def lose_power(watched: Path, undo: Path, random: Random) -> Lost:
    """Take back what is not durable of the files below `watched`; the process that wrote them is dead. The record is
    empty afterwards."""
    records: dict[str, list[Path]] = defaultdict(list)
    for part in undo.iterdir():
        records[part.name.partition(".")[0]].append(part)
    lost = Lost()
    if records:
        for path in sorted(watched.rglob("*")):
            key = _key(path)
            if key in records:
                writes = [write for part in sorted(records[key]) for write in _writes(part)]
                lost = _take_back(path, writes, random, lost)
    for parts in records.values():
        for part in parts:
            part.unlink()
    return lost


def _key(path: Path) -> str | None:
    if not path.is_file() or path.is_symlink():
        return None
    stat = os.stat(path)
    return f"{stat.st_ino}-{_birth(path)}"


def _birth(path: Path) -> int:
    """In nanoseconds; Python's `os.stat` has no birth time on Linux."""
    found = ctypes.create_string_buffer(256)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found) != 0:
        raise OSError(ctypes.get_errno(), "no birth time", str(path))
    seconds, nanoseconds = struct.unpack_from("<qI", found, 80)
    return int(seconds * 1_000_000_000 + nanoseconds)


def _writes(part: Path) -> Iterator[_Write]:
    data = part.read_bytes()
    at = 0
    while at + _HEAD.size <= len(data):
        magic, _, offset, length, old_size, saved = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if magic != _MAGIC or at + saved > len(data):
            return  # the process died while it recorded this one, before it wrote
        yield _Write(offset, length, old_size, data[at : at + saved])
        at += saved


def _take_back(path: Path, writes: list[_Write], random: Random, lost: Lost) -> Lost:
    kept = random.choice((0, 0, random.randint(0, len(writes)), len(writes)))
    torn = kept < len(writes) and random.random() < 0.5
    with path.open("r+b") as file:
        for number in range(len(writes) - 1, kept - 1, -1):
            write = writes[number]
            if torn and number == kept:
                _tear(file.fileno(), write, random)
            else:
                os.pwrite(file.fileno(), write.saved, write.offset)
                os.ftruncate(file.fileno(), max(write.old_size, 0))
    return Lost(lost.files + 1, lost.writes + len(writes) - kept, lost.torn + torn)


def _tear(fd: int, write: _Write, random: Random) -> None:
    """Of its sectors some are as they were before, each by itself."""
    end = write.offset + write.length
    at = write.offset
    while at < end:
        stop = min(end, (at // _SECTOR + 1) * _SECTOR)
        if random.random() < 0.5:
            before = write.saved[at - write.offset : stop - write.offset]
            os.pwrite(fd, before + bytes(stop - at - len(before)), at)
        at = stop
    if random.random() < 0.5:
        os.ftruncate(fd, max(write.old_size, random.randint(write.offset, end)))
