"""Records in memory, with faults on demand.

`before` and `after` are called around every write with a line such as "update stream orders"; what they raise is what
the writer gets. So a test dies, or loses an answer, at any step it likes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from bookie_protocol.errors import MetadataExists, MetadataNotFound, MetadataReplaced, MetadataVersionConflict
from bookie_protocol.metadata_service.interface import Identity, Versioned
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree.documents import check_kind, check_name

Hook = Callable[[str], None]
SESSION: Final = 1


def check_identity(what: str, stored: Identity, named: Identity) -> None:
    """As the drivers do: the creation first."""
    if stored.creation != named.creation:
        raise MetadataReplaced(f"{what} was deleted, and another one has its name")
    if stored.version != named.version:
        raise MetadataVersionConflict(f"version {named.version} of {what} is not {stored.version}")


class MemoryRecords:
    """All kinds. `writes`: the lines of all writes that took effect."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], Versioned[bytes]] = {}
        self.writes: list[str] = []
        self.creations = itertools.count(1)
        self.before: Hook = lambda line: None
        self.after: Hook = lambda line: None
        self._changed = asyncio.Event()

    def of(self, kind: str) -> _Kind:
        return _Kind(self, check_kind(kind))

    def write(self, line: str, key: tuple[str, str], found: Versioned[bytes] | None) -> None:
        """`found` None: delete."""
        if found is None:
            del self.stored[key]
        else:
            self.stored[key] = found
        self.writes.append(line)
        done, self._changed = self._changed, asyncio.Event()
        done.set()
        self.after(line)

    @property
    def changed(self) -> asyncio.Event:
        return self._changed


class _Kind:
    """Implements `RecordStore`."""

    def __init__(self, records: MemoryRecords, kind: str) -> None:
        self._records = records
        self._kind = kind

    async def create(self, name: str, data: bytes, *, timeout: float | None = None) -> Identity:
        key = self._begin("create", name)
        if key in self._records.stored:
            raise MetadataExists(f"record {name} exists")
        identity = Identity(0, next(self._records.creations), SESSION)
        self._records.write(self._line("create", name), key, Versioned(data, identity))
        return identity

    async def read(self, name: str, *, timeout: float | None = None) -> Versioned[bytes]:
        await asyncio.sleep(0)
        return self._stored((self._kind, check_name(name)))

    async def update(self, name: str, data: bytes, record: Identity, /, *, timeout: float | None = None) -> Identity:
        await asyncio.sleep(0)
        key = self._begin("update", name)
        check_identity(f"record {name}", self._stored(key).identity, record)
        return self._replace(name, key, data)

    async def overwrite(self, name: str, data: bytes, *, timeout: float | None = None) -> Identity:
        await asyncio.sleep(0)
        return self._replace(name, self._begin("update", name), data)

    async def delete(self, name: str, *, timeout: float | None = None) -> None:
        key = self._begin("delete", name)
        self._stored(key)
        self._records.write(self._line("delete", name), key, None)

    async def delete_this(self, name: str, record: Identity, /, *, timeout: float | None = None) -> None:
        key = self._begin("delete", name)
        check_identity(f"record {name}", self._stored(key).identity, record)
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

    def _stored(self, key: tuple[str, str]) -> Versioned[bytes]:
        stored = self._records.stored.get(key)
        if stored is None:
            raise MetadataNotFound(f"record {key[1]}")
        return stored

    def _replace(self, name: str, key: tuple[str, str], data: bytes) -> Identity:
        before = self._stored(key).identity
        identity = Identity(before.version + 1, before.creation, SESSION)
        self._records.write(self._line("update", name), key, Versioned(data, identity))
        return identity


class MemoryManagedLedgers:
    """`TreeManagedLedgers` in memory; `nodes`: bytes by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}

    async def read(self, name: str, *, timeout: float | None = None) -> Versioned[bytes]:
        try:
            return Versioned(self.nodes[name], Identity(3, 1))
        except KeyError:
            raise MetadataNotFound(f"node {name}") from None

    async def children(self, name: str, *, timeout: float | None = None) -> tuple[str, ...]:
        prefix = f"{name}/" if name else ""
        below = (node[len(prefix) :] for node in self.nodes if node.startswith(prefix))
        return tuple(sorted({each.split("/")[0] for each in below}))
