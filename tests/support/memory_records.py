"""Records in memory, with faults on demand.

`before` and `after` are called around every write with a line such as "update stream orders"; what they raise is what
the writer gets. So a test dies, or loses an answer, at any step it likes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from bookie_protocol.errors import MetadataExists, MetadataNotFound, MetadataVersionConflict
from bookie_protocol.metadata_service.interface import ANY_VERSION, Identified, Identity, Versioned
from bookie_protocol.metadata_service.records import check_kind, check_name
from bookie_protocol.metadata_service.subscription import Subscription

Hook = Callable[[str], None]


class MemoryRecords:
    """All kinds. `writes`: the lines of all writes that took effect."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], Versioned[bytes]] = {}
        self.writes: list[str] = []
        self._made: dict[tuple[str, str], int] = {}
        self._clock = itertools.count(1)
        self.before: Hook = lambda line: None
        self.after: Hook = lambda line: None
        self._changed = asyncio.Event()

    def of(self, kind: str) -> _Kind:
        return _Kind(self, check_kind(kind))

    def write(self, line: str, key: tuple[str, str], found: Versioned[bytes] | None) -> None:
        """`found` None: delete."""
        if found is not None and key not in self.stored:
            self._made[key] = next(self._clock)
        if found is None:
            del self.stored[key]
        else:
            self.stored[key] = found
        self.writes.append(line)
        done, self._changed = self._changed, asyncio.Event()
        done.set()
        self.after(line)

    def identified(self, key: tuple[str, str]) -> Identified[bytes]:
        found = self.stored.get(key)
        if found is None:
            raise MetadataNotFound(f"record {key[1]}")
        made = self._made.setdefault(key, next(self._clock))
        return Identified(found.value, found.version, Identity(found.version, made, session_id=1))

    @property
    def changed(self) -> asyncio.Event:
        return self._changed


class _Kind:
    """Implements `RecordStore`."""

    def __init__(self, records: MemoryRecords, kind: str) -> None:
        self._records = records
        self._kind = kind

    async def create(self, name: str, data: bytes, *, timeout: float | None = None) -> int:
        key = self._begin("create", name)
        if key in self._records.stored:
            raise MetadataExists(f"record {name} exists")
        self._records.write(self._line("create", name), key, Versioned(data, 0))
        return 0

    async def read(self, name: str, *, timeout: float | None = None) -> Identified[bytes]:
        await asyncio.sleep(0)
        return self._records.identified((self._kind, check_name(name)))

    async def update(self, name: str, data: bytes, version: int, *, timeout: float | None = None) -> int:
        await asyncio.sleep(0)
        key = self._begin("update", name)
        stored = Versioned(data, self._check(key, version).version + 1)
        self._records.write(self._line("update", name), key, stored)
        return stored.version

    async def delete(self, name: str, *, timeout: float | None = None) -> None:
        key = self._begin("delete", name)
        self._check(key, ANY_VERSION)
        self._records.write(self._line("delete", name), key, None)

    async def delete_this(self, name: str, record: Identity, *, timeout: float | None = None) -> None:
        key = self._begin("delete", name)
        if self._records.identified(key).identity != record:
            raise MetadataVersionConflict(f"record {name} is another one than {record}")
        self._records.write(self._line("delete", name), key, None)

    async def names(self, *, timeout: float | None = None) -> frozenset[str]:
        await asyncio.sleep(0)
        return frozenset(name for kind, name in self._records.stored if kind == self._kind)

    def watch(self, name: str) -> Subscription[Versioned[bytes] | None]:
        key = self._kind, check_name(name)

        async def feed(publish: Callable[[Versioned[bytes] | None], None]) -> None:
            seen: list[Versioned[bytes] | None] = []
            while True:
                changed, found = self._records.changed, self._records.stored.get(key)
                if [found] != seen:
                    seen[:] = [found]
                    publish(found)
                await changed.wait()

        return Subscription(feed)

    def _begin(self, verb: str, name: str) -> tuple[str, str]:
        key = self._kind, check_name(name)
        self._records.before(self._line(verb, name))
        return key

    def _line(self, verb: str, name: str) -> str:
        return f"{verb} {self._kind} {name}"

    def _check(self, key: tuple[str, str], version: int) -> Versioned[bytes]:
        stored = self._records.stored.get(key)
        if stored is None:
            raise MetadataNotFound(f"record {key[1]}")
        if version not in (ANY_VERSION, stored.version):
            raise MetadataVersionConflict(f"version {version} of {key[1]} is not {stored.version}")
        return stored


class MemoryManagedLedgers:
    """Implements `ManagedLedgerNodes`; `nodes`: bytes by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}

    async def read(self, name: str, *, timeout: float | None = None) -> Versioned[bytes]:
        try:
            return Versioned(self.nodes[name], 3)
        except KeyError:
            raise MetadataNotFound(f"node {name}") from None

    async def children(self, name: str, *, timeout: float | None = None) -> tuple[str, ...]:
        prefix = f"{name}/" if name else ""
        below = (node[len(prefix) :] for node in self.nodes if node.startswith(prefix))
        return tuple(sorted({each.split("/")[0] for each in below}))
