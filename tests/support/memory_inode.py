"""The durable and the volatile half of one in-memory file, and of the names that lead to it."""

from __future__ import annotations

import posixpath
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SECTOR = 512
PAGE = 4096


@dataclass(frozen=True)
class _Write:
    offset: int
    data: bytes

    def sectors(self) -> Iterator[_Write]:
        """This write cut at the sector boundaries of the file."""
        begin = 0
        while begin < len(self.data):
            end = min(len(self.data), begin + SECTOR - (self.offset + begin) % SECTOR)
            yield _Write(self.offset + begin, self.data[begin:end])
            begin = end


@dataclass(frozen=True)
class _Truncate:
    size: int


@dataclass
class Inode:
    """Bytes of a file: `data` as running processes see it, and what a crash would leave."""

    now_ms: Callable[[], int]
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[_Write | _Truncate] = field(default_factory=list)
    pages: set[int] = field(default_factory=set)
    reserved: int = 0
    """Bytes from the beginning that have their room, written or not."""
    modified_ms: int = 0
    settled_changes: int = 0

    def __post_init__(self) -> None:
        self.modified_ms = self.now_ms()

    @property
    def allocated(self) -> int:
        """Bytes that the file takes on the volume: pages ever written or reserved, holes are free."""
        reserved = self.reserved // PAGE
        return (reserved + sum(page >= reserved for page in self.pages)) * PAGE

    def growth(self, length: int, offset: int) -> int:
        """Bytes that a write would add to `allocated`."""
        reserved = self.reserved // PAGE
        return sum(PAGE for page in _pages(length, offset) if page not in self.pages and page >= reserved)

    def data_from(self, offset: int) -> tuple[int, int] | None:
        """The first range at or behind `offset` that was written, in whole pages."""
        page = next((page for page in sorted(self.pages) if (page + 1) * PAGE > offset), None)
        if page is None or offset >= len(self.data):
            return None
        begin = max(offset, page * PAGE)
        while page in self.pages:
            page += 1
        return begin, min(page * PAGE, len(self.data))

    def write(self, data: bytes, offset: int) -> None:
        if not data:
            return
        write = _Write(offset, data)
        _put(self.data, write)
        self.unsynced.append(write)
        self.pages.update(_pages(len(data), offset))
        self.modified_ms = self.now_ms()

    def truncate(self, size: int) -> None:
        _cut(self.data, size)
        self.unsynced.append(_Truncate(size))
        self.pages = {page for page in self.pages if page * PAGE < size}
        self.modified_ms = self.now_ms()

    @property
    def changes(self) -> int:
        """How many writes and truncations there were so far: what a sync called now covers."""
        return self.settled_changes + len(self.unsynced)

    def sync(self, covers: int) -> None:
        count = max(0, covers - self.settled_changes)
        for change in self.unsynced[:count]:
            _apply(self.durable, change)
        del self.unsynced[:count]
        self.settled_changes += count

    def lose(self, covers: int) -> None:
        """A sync that covered these changes failed: their bytes are in memory, and will never be written. What is left
        to be synced is how long they made the file."""
        size = len(self.durable)
        for index in range(max(0, covers - self.settled_changes)):
            change = self.unsynced[index]
            size = change.size if isinstance(change, _Truncate) else max(size, change.offset + len(change.data))
            self.unsynced[index] = _Truncate(size)

    def copy(self) -> Inode:
        """The same for another process: what is not synced yet still is not."""
        data, durable = bytearray(self.data), bytearray(self.durable)
        copy = Inode(self.now_ms, data, durable, list(self.unsynced), set(self.pages), self.reserved)
        copy.modified_ms, copy.settled_changes = self.modified_ms, self.settled_changes
        return copy

    def after_crash(self, rng: random.Random, *, whole_sectors: bool = False) -> Inode:
        """A copy that holds what was synced and a random part of what was not, torn within sectors or not."""
        kept = bytearray(self.durable)
        mood = rng.choice(["nothing", "everything", "prefix", "sectors"])
        if mood == "everything":
            for change in self.unsynced:
                _apply(kept, change)
        elif mood == "prefix" and self.unsynced:
            last = rng.randrange(len(self.unsynced))
            for change in self.unsynced[:last]:
                _apply(kept, change)
            torn = self.unsynced[last]
            _apply(kept, _torn(torn, rng, whole_sectors) if isinstance(torn, _Write) else torn)
        elif mood == "sectors":
            self._keep_sectors(kept, rng, whole_sectors)
        copy = Inode(self.now_ms, kept, bytearray(kept), [], set(_pages(len(kept), 0)))
        copy.modified_ms = self.modified_ms
        return copy

    def _keep_sectors(self, kept: bytearray, rng: random.Random, whole_sectors: bool) -> None:
        """Of each sector some first writes: the page cache holds one copy of it, so that none survives without those
        before it."""
        chance = rng.choice([0.1, 0.5, 0.9])
        lost: set[int] = set()
        begin = 0
        truncations = [i for i, change in enumerate(self.unsynced) if isinstance(change, _Truncate)]
        if truncations and rng.random() < 0.5:
            begin = rng.choice(truncations)
            _apply(kept, self.unsynced[begin])
        size = len(kept)
        for change in self.unsynced[begin:]:
            if isinstance(change, _Truncate):
                _apply(kept, change)
                size = change.size
                lost = {each for each in lost if each * SECTOR < size}
                continue
            size = max(size, change.offset + len(change.data))
            for sector in change.sectors():
                number = sector.offset // SECTOR
                if number in lost:
                    continue
                survives, whole = rng.random() < chance, rng.random() < 0.9
                if survives:
                    _put(kept, sector if whole else _torn(sector, rng, whole_sectors))
                if not (survives and whole):
                    lost.add(number)
        if rng.random() < 0.5 and len(kept) < size:
            kept.extend(bytes(size - len(kept)))


@dataclass(frozen=True)
class NameChange:
    """`path` leads to `inode` from now on (None: to nothing) and `removes` leads nowhere any more."""

    path: str
    inode: Inode | None
    removes: str | None = None

    def apply(self, names: dict[str, Inode]) -> None:
        if self.removes is not None:
            names.pop(self.removes, None)
        if self.inode is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.inode

    def touches_folder(self, folder: str) -> bool:
        return posixpath.dirname(self.path) == folder or (
            self.removes is not None and posixpath.dirname(self.removes) == folder
        )


class FolderMove(NameChange):
    """The folder `removes` is called `path` from now on, with every name below it."""

    def apply(self, names: dict[str, Inode]) -> None:
        assert self.removes is not None
        for name in [name for name in names if name.startswith(self.removes + "/")]:
            names[self.path + name[len(self.removes) :]] = names.pop(name)

    def folders_with_it(self, folders: set[str]) -> set[str]:
        """What the folders are called afterwards."""
        assert self.removes is not None
        return {_moved(folder, self.removes, self.path) for folder in folders}

    def folders_without_it(self, folders: set[str]) -> set[str]:
        """What the folders are called if it was lost."""
        assert self.removes is not None
        return {_moved(folder, self.path, self.removes) for folder in folders}


def _moved(folder: str, old: str, new: str) -> str:
    return new + folder[len(old) :] if folder == old or folder.startswith(old + "/") else folder


def survivors_in_order(pending: list[NameChange], rng: random.Random) -> list[NameChange]:
    """What a file system with an ordered metadata journal keeps."""
    return pending[: rng.randint(0, len(pending))]


def survivors_in_any_order(pending: list[NameChange], rng: random.Random) -> list[NameChange]:
    """The least that POSIX promises."""
    chance = rng.choice([0.0, 0.3, 0.7, 1.0])
    return [change for change in pending if rng.random() < chance]


def _pages(length: int, offset: int) -> range:
    return range(offset // PAGE, (offset + length + PAGE - 1) // PAGE) if length else range(0)


def _apply(data: bytearray, change: _Write | _Truncate) -> None:
    if isinstance(change, _Write):
        _put(data, change)
    else:
        _cut(data, change.size)


def _put(data: bytearray, write: _Write) -> None:
    if not write.data:
        return
    if len(data) < write.offset:
        data.extend(bytes(write.offset - len(data)))
    data[write.offset : write.offset + len(write.data)] = write.data


def _cut(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _torn(write: _Write, rng: random.Random, whole_sectors: bool) -> _Write:
    length = rng.randint(0, len(write.data))
    if whole_sectors and length < len(write.data):
        length = max(0, length - (write.offset + length) % SECTOR)
    return _Write(write.offset, write.data[:length])
