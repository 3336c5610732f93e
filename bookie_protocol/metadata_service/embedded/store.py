"""Nodes, sessions and ephemeral ownership in one RocksDB database.

Keys: `n` parent NUL name -> node; `e` owner path -> nothing (an ephemeral node of a session); `s` session ->
session; `g` number -> nothing (a generation); `format` -> `FORMAT`. Numbers are big-endian 64-bit; all children
of a node lie side by side.

A node is a header of eight numbers (-1, creation, version, child version, creation time in ms, owner, number of
children, next sequence number) and its bytes; stores of the first release have nodes without the first two, whose
creation is 0. A session is its time-out in ms, its password of 16 bytes, one byte (1: a session of
the owner's own process) and the name of its process (`processes`).

Invariants
- Each call is one atomic write. It is durable once `sync` returned; no caller may be answered before.
- A sequence number is given out once for each parent, also after deletes.
- A creation is a random number, so that no two nodes have the same one, also when the store was restored from a backup.
- After a failed write or sync the store refuses everything: memory and disk may differ. Its owner has
  to end (`broken`).
- What was durable is there, or the store does not open: RocksDB refuses most damage, and drops an end of its log, or of
  the list of its tables, that it cannot read. The first is for the `seal` to say. For the second each memory table
  begins with the number of its generation, and none may be missing. So a table is written out before the next begins,
  and no two logs are in use.
- A store that is refused stays as it is, so that it can still be repaired.

Threads: one thread at a time (`commits.StoreThread`).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeVar

from rocksdict import AccessType, Options, Rdict, WriteBatch

from bookie_protocol.errors import (
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.embedded import seal
from bookie_protocol.metadata_service.tree.nodes import Node, NodeStat, parent_of
from bookie_protocol.rocksdb import common_options

ANY_VERSION: Final = -1
_NODE: Final = struct.Struct(">qqqqqq")
_LIFE: Final = struct.Struct(">qq")
_WITH_CREATION: Final = -1
"""Marker in the place of the version, with which nodes of the first release begin."""
_SESSION: Final = struct.Struct(">q16s")
assert (_NODE.size, _LIFE.size, _SESSION.size) == (48, 16, 24)

FORMAT: Final = b"podkeeper embedded metadata 2"
_FORMAT_1: Final = b"podkeeper embedded metadata 1"
"""Opened, and made the present one, which releases before it refuse."""
_FORMAT_KEY: Final = b"format"
_OWNED: Final = ("While lock file: ", "lock hold by current process")
"""RocksDB says this of a lock that is taken."""
_OURS: Final = re.compile(
    r"CURRENT|IDENTITY|LOCK|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+(\.dbtmp)?|\d+\.(log|sst|dbtmp|blob)"
    rf"|rocksdict-config\.json|{seal.NAME}(\.new)?|start-reserve|lost\+found"
)
"""RocksDB and we make these in its folder, also when its first start is interrupted; a new volume has the last one. Who
runs the store holds room for a start on a full disk there."""
TABLE_BYTES: Final = 16 << 20
"""Bytes of a memory table that is written out, which takes a tenth of a second or two."""
_ID: Final = struct.Struct(">q")
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A stored session. `local`: of the owner's own process. `process`: its name, empty if it is unknown."""

    session_id: int
    password: bytes
    timeout_ms: int
    local: bool = False
    process: str = ""

    def encode(self) -> bytes:
        return _SESSION.pack(self.timeout_ms, self.password) + bytes([self.local]) + self.process.encode()

    @staticmethod
    def decode(session_id: int, raw: bytes) -> SessionRecord:
        timeout_ms, password = _SESSION.unpack_from(raw)
        rest = raw[_SESSION.size :]  # empty in stores of the first release
        return SessionRecord(session_id, password, timeout_ms, rest[:1] == b"\1", rest[1:].decode())


@dataclass(frozen=True, slots=True)
class NodeRecord:
    version: int
    child_version: int
    ctime_ms: int
    owner: int
    children: int
    sequence: int
    data: bytes
    creation: int

    @staticmethod
    def new(data: bytes, owner: int = 0) -> NodeRecord:
        return NodeRecord(0, 0, time.time_ns() // 1_000_000, owner, 0, 0, data, secrets.randbits(62) + 1)

    def encode(self) -> bytes:
        header = (self.version, self.child_version, self.ctime_ms, self.owner, self.children, self.sequence)
        return _LIFE.pack(_WITH_CREATION, self.creation) + _NODE.pack(*header) + self.data

    @staticmethod
    def decode(raw: bytes) -> NodeRecord:
        mark, creation = _LIFE.unpack_from(raw)
        start, creation = (_LIFE.size, creation) if mark == _WITH_CREATION else (0, 0)
        version, child_version, ctime_ms, owner, children, sequence = _NODE.unpack_from(raw, start)
        data = raw[start + _NODE.size :]
        return NodeRecord(version, child_version, ctime_ms, owner, children, sequence, data, creation)

    @property
    def stat(self) -> NodeStat:
        return NodeStat(self.version, self.creation, self.ctime_ms, self.owner, self.children)


assert _ID.size == 8


class StoreIsOwned(MetadataUnavailable):
    """The store is open already, usually in another process."""


class StoreFull(MetadataUnavailable):
    """The disk has no room for what the store writes. No other process has the store open."""


class Change(Enum):
    """The change that a watch waits for: the node itself (made, written, deleted), or the set of its children."""

    NODE = "node"
    CHILDREN = "children"


class NodeStore:
    """Open a folder; `StoreIsOwned` if another process has it, `StoreFull` if its disk has no room, another
    `MetadataUnavailable` if it cannot be opened, or is no such store. `make`: a folder that
    is empty or missing becomes one, otherwise it is `MetadataNotFound`."""

    def __init__(self, folder: str, *, make: bool = True) -> None:
        self._folder = folder
        self.broken: str | None = None
        """Reason why the store refuses everything; None: it does not."""
        self.revision = 0
        """Number of durable changes, of all processes. Any thread may read it."""
        self._unsynced = False
        self._generation = 0
        self._closed = False
        self.changes: set[tuple[Change, str]] = set()
        """Changes since the owner looked last; it takes and clears them."""
        self._seal = seal.StoreSeal(folder)
        options = common_options()
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(2)
        self._look(options)
        if not make and not os.path.exists(os.path.join(folder, "CURRENT")):
            raise MetadataNotFound(
                f"there is no metadata store in {folder}: correct metadataServiceUri, or create a cluster with"
                " `bookie cluster init`"
            )
        try:
            os.makedirs(folder, exist_ok=True)
            names = sorted(os.listdir(folder))
        except OSError as error:
            raise MetadataUnavailable(
                f"cannot open the embedded metadata store in {folder}: {error.strerror}; is metadataServiceUri right,"
                " and may this process write there?"
            ) from error
        foreign = [name for name in names if not _OURS.fullmatch(name)]
        if (
            foreign and "CURRENT" not in names
        ):  # an existing store may have other files beside it: it has to open all the same
            raise MetadataUnavailable(
                f"{folder} is not a folder of an embedded metadata store, it holds {foreign[0]!r}: correct"
                " metadataServiceUri, or name an empty folder"
            )
        try:
            self._db = Rdict(folder, options)
        except Exception as error:  # the binding knows no narrower type
            if any(words in str(error) for words in _OWNED):
                raise StoreIsOwned(
                    f"the embedded metadata store in {folder} is open already; connect to its owner with"
                    f" metadataServiceUri=embedded://<host>:<port>/ledgers ({error})"
                ) from error
            if os.strerror(errno.ENOSPC) in str(error):
                raise StoreFull(
                    f"cannot open the embedded metadata store in {folder}, whose disk is full; nothing is lost: make"
                    f" room there, and start again ({error})"
                ) from error
            raise MetadataUnavailable(f"cannot open the embedded metadata store in {folder}: {error}") from error
        try:
            self._check_whole()
        except BaseException:
            self.close()
            raise

    # --- reading ------------------------------------------------------------------------------------------

    def get(self, path: str) -> Node:
        record = self._require(path)
        return Node(record.data, record.stat)

    def exists(self, path: str) -> NodeStat | None:
        record = self._load(path)
        return None if record is None else record.stat

    def children(self, path: str) -> tuple[tuple[str, ...], NodeRecord]:
        """Their names, and the parent."""
        record = self._require(path)
        prefix = b"n" + path.encode() + b"\0"
        names = tuple(key[len(prefix) :].decode() for key in self._keys(prefix))
        return names, record

    def sessions(self) -> list[SessionRecord]:
        return [SessionRecord.decode(_ID.unpack(key[1:])[0], self._read(key) or b"") for key in self._keys(b"s")]

    # --- writing ------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes, owner: int, sequential: bool) -> tuple[str, NodeStat]:
        """`owner` 0: persistent. Returns the path, with its number if sequential, and the node."""
        staged = _Staged()
        created, record = self._stage_create(staged, path, data, owner, sequential)
        self._commit(staged)
        return created, record.stat

    def create_all(self, nodes: Sequence[tuple[str, bytes]]) -> None:
        staged = _Staged()
        for path, data in nodes:
            self._stage_create(staged, path, data, 0, False)
        self._commit(staged)

    def set(self, path: str, data: bytes, version: int, creation: int | None) -> NodeStat:
        """`creation`: of the node that is meant; None: any, as is a `version` of `ANY_VERSION`."""
        record = self._require(path)
        _check(path, record, version, creation)
        record = replace(record, version=record.version + 1, data=data)
        staged = _Staged()
        staged.records[path] = record
        staged.changes.add((Change.NODE, path))
        self._commit(staged)
        return record.stat

    def delete(self, path: str, version: int, creation: int | None) -> None:
        """Delete a node; raises as `set`."""
        staged = _Staged()
        self._stage_delete(staged, path, version, creation)
        self._commit(staged)

    def open_session(self, timeout_ms: int, *, local: bool = False, process: str = "") -> SessionRecord:
        session = SessionRecord(secrets.randbits(62) + 1, secrets.token_bytes(16), timeout_ms, local, process)
        batch = WriteBatch(raw_mode=True)
        batch.put(b"s" + _ID.pack(session.session_id), session.encode())
        self._write(batch)
        return session

    def end_session(self, session_id: int) -> None:
        """Delete the session and its ephemeral nodes."""
        staged = _Staged()
        prefix = b"e" + _ID.pack(session_id)
        for key in self._keys(prefix):
            self._stage_delete(staged, key[len(prefix) :].decode(), ANY_VERSION, None)
        staged.deleted_keys.append(b"s" + _ID.pack(session_id))
        self._commit(staged)

    def sync(self) -> None:
        """Make everything written durable."""
        if self._unsynced or self.broken is not None:
            self._guard(self._sync, breaks=True)
            self._unsynced = False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._db.close()
        except Exception as error:  # the binding knows no narrower type; what was answered is durable
            _log.warning("the embedded metadata store in %s could not be closed: %s", self._folder, error)
        self._seal.close()

    # --- inside -------------------------------------------------------------------------------------------

    def _stage_create(
        self, staged: _Staged, path: str, data: bytes, owner: int, sequential: bool
    ) -> tuple[str, NodeRecord]:
        _check_path(f"{path}0" if sequential else path)
        parent_path = parent_of(path)
        parent = staged.records.get(parent_path) or self._load(parent_path)
        if parent is None:
            raise MetadataNotFound(f"{parent_path} does not exist")
        if parent.owner:
            raise MetadataUnavailable(f"{parent_path} is ephemeral and cannot have children")
        sequence = parent.sequence
        if sequential:
            path, sequence = f"{path}{sequence:010d}", sequence + 1
        if path in staged.records or self._load(path) is not None:
            raise MetadataExists(f"{path} exists already")
        record = staged.records[path] = NodeRecord.new(data, owner)
        staged.records[parent_path] = replace(
            parent, child_version=parent.child_version + 1, children=parent.children + 1, sequence=sequence
        )
        if owner:
            staged.new_keys.append(b"e" + _ID.pack(owner) + path.encode())
        staged.changes |= {(Change.NODE, path), (Change.CHILDREN, parent_path)}
        return path, record

    def _stage_delete(self, staged: _Staged, path: str, version: int, creation: int | None) -> None:
        record = self._require(path)
        _check(path, record, version, creation)
        if record.children:
            raise MetadataNotEmpty(f"{path} has children")
        parent_path = parent_of(path)
        if parent_path == path:
            raise MetadataNotEmpty("the root of the tree cannot be deleted")
        parent = staged.records.get(parent_path) or self._require(parent_path)
        staged.records[path] = None
        staged.records[parent_path] = replace(
            parent, child_version=parent.child_version + 1, children=parent.children - 1
        )
        if record.owner:
            staged.deleted_keys.append(b"e" + _ID.pack(record.owner) + path.encode())
        staged.changes |= {(Change.NODE, path), (Change.CHILDREN, path), (Change.CHILDREN, parent_path)}

    def _commit(self, staged: _Staged) -> None:
        batch = WriteBatch(raw_mode=True)
        for path, record in staged.records.items():
            if record is None:
                batch.delete(_node_key(path))
            else:
                batch.put(_node_key(path), record.encode())
        for key in staged.new_keys:
            batch.put(key, b"")
        for key in staged.deleted_keys:
            batch.delete(key)
        self._write(batch)
        self.changes |= staged.changes

    def _look(self, options: Options) -> None:
        """Refuse a store before RocksDB opens it, which throws away what it takes for the leftovers of a crash.

        Should another process own the store, and write a table out just now, this may take it for one that lost
        something; it is refused anyway then.
        """
        sealed = self._seal.read()
        if sealed is None:
            return
        if not os.path.exists(os.path.join(self._folder, "CURRENT")):
            raise self._seal.lost("its file CURRENT is missing")
        try:
            self._db = Rdict(self._folder, options, access_type=AccessType.read_only(False))
        except Exception:  # the binding knows no narrower type; to open it tells why
            return
        try:
            self._generations(sealed)
        finally:
            self._db.close()

    def _generations(self, sealed: int | None) -> tuple[int, Collection[int]]:
        """The newest, and those that are missing. `MetadataUnavailable`: it has less than was sealed."""
        found = self._guard(self._db.latest_sequence_number, breaks=False)
        if sealed is not None and found < sealed:
            raise self._seal.lost(f"it had {sealed} changes, and has {found}")
        numbers = {_ID.unpack(key[1:])[0] for key in self._keys(b"g")}
        newest = max(numbers, default=0)
        missing = {*range(1, newest)} - numbers
        if sealed is not None and missing:
            raise self._seal.lost("it misses a table of its database")
        return newest, missing

    def _check_whole(self) -> None:
        self._generation, missing = self._generations(self._seal.read())
        found = self._read(_FORMAT_KEY)
        if found is None and next(self._keys(b""), None) is None:
            batch = WriteBatch(raw_mode=True)
            batch.put(_FORMAT_KEY, FORMAT)
            batch.put(_node_key("/"), NodeRecord.new(b"").encode())
            self._write(batch)
        elif found == _FORMAT_1:
            batch = WriteBatch(raw_mode=True)
            batch.put(_FORMAT_KEY, FORMAT)
            self._write(batch)
        elif found != FORMAT:
            raise MetadataUnavailable(
                f"{self._folder} is not an embedded metadata store of this release: correct metadataServiceUri, or"
                " start the release that made it"
            )
        self._unsynced = True
        # Of a new memory table, since RocksDB has written out what was in its log; and those of what was given up.
        self._guard(lambda: self._begin_generation(missing), breaks=True)
        self.sync()

    def _require(self, path: str) -> NodeRecord:
        record = self._load(path)
        if record is None:
            raise MetadataNotFound(f"{path} does not exist")
        return record

    def _load(self, path: str) -> NodeRecord | None:
        _check_path(path)
        raw = self._read(_node_key(path))
        return None if raw is None else NodeRecord.decode(raw)

    def _read(self, key: bytes) -> bytes | None:
        values = self._guard(lambda: self._db.get([key]), breaks=False)
        return None if not values or values[0] is None else bytes(values[0])

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        rows = self._guard(self._db.iter, breaks=False)
        self._guard(lambda: rows.seek(prefix), breaks=False)
        while self._guard(rows.valid, breaks=False):
            key = bytes(rows.key())
            if not key.startswith(prefix):
                return
            yield key
            self._guard(rows.next, breaks=False)
        self._guard(rows.status, breaks=False)

    def _write(self, batch: WriteBatch) -> None:
        self._unsynced = True
        self._guard(lambda: self._put(batch), breaks=True)

    def _put(self, batch: WriteBatch) -> None:
        if (self._db.property_int_value("rocksdb.cur-size-active-mem-table") or 0) > TABLE_BYTES:
            self._db.flush(True)
            self._begin_generation()
        self._db.write(batch)

    def _begin_generation(self, given_up: Collection[int] = ()) -> None:
        self._generation += 1
        batch = WriteBatch(raw_mode=True)
        for number in (*given_up, self._generation):
            batch.put(b"g" + _ID.pack(number), b"")
        self._db.write(batch)

    def _sync(self) -> None:
        self._db.flush_wal(True)
        revision = self._db.latest_sequence_number()
        self._seal.renew(revision)
        self.revision = revision

    def _guard(self, operation: Callable[[], T], *, breaks: bool) -> T:
        if self.broken is not None:
            raise MetadataUnavailable(self.broken)
        try:
            return operation()
        except Exception as error:  # the binding knows no narrower type
            message = f"embedded metadata store in {self._folder} failed: {error}"
            if breaks:
                self.broken = f"{message}; restart its owner once the disk is well and has room"
            kind = StoreFull if os.strerror(errno.ENOSPC) in str(error) else MetadataUnavailable
            raise kind(message) from error


class _Staged:
    """The writes of one call; a record of None is a delete."""

    def __init__(self) -> None:
        self.records: dict[str, NodeRecord | None] = {}
        self.new_keys: list[bytes] = []
        self.deleted_keys: list[bytes] = []
        self.changes: set[tuple[Change, str]] = set()


def _node_key(path: str) -> bytes:
    if path == "/":
        return b"n\0"
    parent, _, name = path.rpartition("/")
    return b"n" + (parent or "/").encode() + b"\0" + name.encode()


def _check_path(path: str) -> None:
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise MetadataUnavailable(f"{path!r} is not a valid path of a node")


def _check(path: str, record: NodeRecord, version: int, creation: int | None) -> None:
    if creation not in (None, record.creation):
        raise MetadataReplaced(f"{path} was deleted, and another node has its name")
    if version not in (ANY_VERSION, record.version):
        raise MetadataVersionConflict(f"{path} has version {record.version}, not {version}")
