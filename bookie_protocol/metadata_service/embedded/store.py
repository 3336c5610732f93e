"""Nodes, sessions and ephemeral ownership in one RocksDB database.

Rows and what they hold: `records`; besides `g` number -> nothing (a generation), and `format` -> `FORMAT`.

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
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import islice
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
from bookie_protocol.metadata_service.embedded.notices import ROWS as NOTICES
from bookie_protocol.metadata_service.embedded.notices import News, NoticeLog, notice_row
from bookie_protocol.metadata_service.embedded.oxia_extras import EXTRAS
from bookie_protocol.metadata_service.embedded.records import (
    ANY_VERSION,
    NUMBER,
    ROOT,
    NodeRecord,
    SessionRecord,
    children_rows,
    node_row,
    owner_row,
    session_row,
)
from bookie_protocol.metadata_service.embedded.staging import Staged
from bookie_protocol.metadata_service.tree.nodes import Node, NodeStat, parent_of
from bookie_protocol.rocksdb import common_options

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
SESSION_STEP: Final = 1_000
"""The ephemeral nodes that go in one write when their session ends."""
TABLE_BYTES: Final = 16 << 20
"""Bytes of a memory table that is written out, which takes a tenth of a second or two."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


class StoreIsOwned(MetadataUnavailable):
    """The store is open already, usually in another process."""


class StoreFull(MetadataUnavailable):
    """The disk has no room for what the store writes. No other process has the store open."""


class NodeStore:
    """Open a folder; `StoreIsOwned` if another process has it, `StoreFull` if its disk has no room, another
    `MetadataUnavailable` if it cannot be opened, or is no such store. `make`: a folder that
    is empty or missing becomes one, otherwise it is `MetadataNotFound`. `keep_notices`: for clients of Oxia."""

    def __init__(self, folder: str, *, make: bool = True, keep_notices: bool = False) -> None:
        self._folder = folder
        self.broken: str | None = None
        """Reason why the store refuses everything; None: it does not."""
        self.revision = 0
        """Number of durable changes, of all processes. Any thread may read it."""
        self.changes = 0
        """Number of changes of nodes since the store was opened."""
        self._unsynced = False
        self._generation = 0
        self._closed = False
        self._news = News()
        self._has_extras = True
        self.notices: NoticeLog | None = None
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
            self._has_extras = next(self._keys(EXTRAS), None) is not None
            if keep_notices:
                self.notices = NoticeLog(self.rows(NOTICES))
        except BaseException:
            self.close()
            raise

    # --- reading ------------------------------------------------------------------------------------------

    def get(self, path: str) -> Node:
        record = self._require(path)
        return Node(record.data, record.stat)

    def exists(self, path: str) -> NodeStat | None:
        _check_path(path)
        record = self.load(path)
        return None if record is None else record.stat

    def children(self, path: str) -> tuple[tuple[str, ...], NodeRecord]:
        """Their names, and the parent."""
        record = self._require(path)
        prefix = children_rows(path)
        names = tuple(key[len(prefix) :].decode() for key in self._keys(prefix))
        return (names if "" not in names else tuple(filter(None, names))), record  # that one is no path

    def sessions(self) -> list[SessionRecord]:
        return [SessionRecord.decode(NUMBER.unpack(key[1:])[0], value) for key, value in self.rows(b"s")]

    def load(self, path: str) -> NodeRecord | None:
        """Return the record of a node, whatever its path."""
        raw = self.row(node_row(path))
        return None if raw is None else NodeRecord.decode(raw)

    def row(self, key: bytes) -> bytes | None:
        if key.startswith(EXTRAS) and not self._has_extras:
            return None
        values = self._guard(lambda: self._db.get([key]), breaks=False)
        return None if not values or values[0] is None else bytes(values[0])

    def rows(self, prefix: bytes, start: bytes = b"", *, backwards: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The rows whose keys have this prefix, in order: from the first that is not below `prefix + start`; backwards
        from the last that is below it."""
        rows = self._guard(self._db.iter, breaks=False)
        if backwards:
            self._guard(lambda: rows.seek_for_prev(prefix + start), breaks=False)
        else:
            self._guard(lambda: rows.seek(prefix + start), breaks=False)
        while self._guard(rows.valid, breaks=False):
            key = bytes(rows.key())
            if not key.startswith(prefix):
                return
            if not backwards or key != prefix + start:
                yield key, bytes(rows.value())
            self._guard(rows.prev if backwards else rows.next, breaks=False)
        self._guard(rows.status, breaks=False)

    # --- writing ------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes, owner: int, sequential: bool) -> tuple[str, NodeStat]:
        """`owner` 0: persistent. Returns the path, with its number if sequential, and the node."""
        staged = self.stage()
        created, record = _stage_create(staged, path, data, owner, sequential)
        self.commit(staged)
        return created, record.stat

    def create_all(self, nodes: Sequence[tuple[str, bytes]]) -> Generator[None, None, None]:
        """Create all nodes, or none. Yields between two steps: others may read then, but not write."""
        staged = self.stage()
        for path, data in nodes:
            _stage_create(staged, path, data, 0, False)
            if staged.is_step_over():
                yield
        self.commit(staged)

    def set(self, path: str, data: bytes, version: int, creation: int | None) -> NodeStat:
        """`creation`: of the node that is meant; None: any, as is a `version` of `ANY_VERSION`."""
        before = self._require(path)
        _check(path, before, version, creation)
        record = replace(before, version=before.writes + 1, data=data)
        staged = self.stage()
        staged.write(path, before, record)
        self.commit(staged)
        return record.stat

    def delete(self, path: str, version: int, creation: int | None) -> None:
        """Delete a node; raises as `set`."""
        record = self._require(path)
        _check(path, record, version, creation)
        if record.children:
            raise MetadataNotEmpty(f"{path} has children")
        if path == ROOT:
            raise MetadataNotEmpty("the root of the tree cannot be deleted")
        staged = self.stage()
        staged.remove(path)
        self.commit(staged)

    def open_session(
        self, timeout_ms: int, *, local: bool = False, process: str = "", heard: bool = False
    ) -> SessionRecord:
        """`heard`: of a client of Oxia, to which the id is a place in the notifications."""
        session_id = secrets.randbits(62) + 1
        batch = WriteBatch(raw_mode=True)
        if heard and self.notices is not None:
            session_id, value = self.notices.begin_session()
            batch.put(notice_row(session_id), value)
            self._news.batches.append((session_id, value))
        session = SessionRecord(session_id, secrets.token_bytes(16), timeout_ms, local, process)
        batch.put(session_row(session.session_id), session.encode())
        self._write(batch)
        return session

    def end_session(self, session_id: int) -> bool:
        """Delete the first ephemeral nodes of a session, and with the last of them the session. Return True if that was
        all. From the first step on the session counts as ended, also after another open."""
        staged, row = self.stage(), session_row(session_id)
        prefix = owner_row(session_id, "")
        nodes = self._keys(prefix)
        for key in islice(nodes, SESSION_STEP):
            staged.remove(key[len(prefix) :].decode())
            if staged.is_step_over():
                break
        is_all = next(nodes, None) is None
        if is_all:
            staged.rows[row] = None
        elif (raw := self.row(row)) is not None:
            ending = replace(SessionRecord.decode(session_id, raw), local=True, process="")
            staged.rows[row] = ending.encode()
        self.commit(staged)
        return is_all

    def stage(self) -> Staged:
        return Staged(self.row)

    def commit(self, staged: Staged) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in staged.rows.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
                self._has_extras |= key.startswith(EXTRAS)
        batches: list[tuple[int, bytes]] = []
        if self.notices is not None and staged.notices:
            batches, gone = self.notices.append(staged.notices)
            for offset, value in batches:
                batch.put(notice_row(offset), value)
            for row in gone:  # some of these batches, if they are more than is kept
                batch.delete(row)
        self._write(batch)
        self.changes += 1
        self._news.changes |= staged.changes
        self._news.batches += batches
        self._news.sequences |= staged.sequences

    def take_news(self) -> News:
        """Return what changed since the last call."""
        news, self._news = self._news, News()
        return news

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
        """Return the newest, and those that are missing. `MetadataUnavailable`: it has less than was sealed."""
        found = self._guard(self._db.latest_sequence_number, breaks=False)
        if sealed is not None and found < sealed:
            raise self._seal.lost(f"it had {sealed} changes, and has {found}")
        numbers = {NUMBER.unpack(key[1:])[0] for key in self._keys(b"g")}
        newest = max(numbers, default=0)
        missing = {*range(1, newest)} - numbers
        if sealed is not None and missing:
            raise self._seal.lost("it misses a table of its database")
        return newest, missing

    def _check_whole(self) -> None:
        self._generation, missing = self._generations(self._seal.read())
        found = self.row(_FORMAT_KEY)
        if found is None and next(self._keys(b""), None) is None:
            batch = WriteBatch(raw_mode=True)
            batch.put(_FORMAT_KEY, FORMAT)
            batch.put(node_row(ROOT), NodeRecord.new(b"").encode())
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
        _check_path(path)
        record = self.load(path)
        if record is None:
            raise MetadataNotFound(f"{path} does not exist")
        return record

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        return (key for key, _ in self.rows(prefix))

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
            batch.put(b"g" + NUMBER.pack(number), b"")
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


def _stage_create(staged: Staged, path: str, data: bytes, owner: int, sequential: bool) -> tuple[str, NodeRecord]:
    _check_path(f"{path}0" if sequential else path)
    if sequential:
        parent_path = parent_of(path)
        parent = staged.load(parent_path)
        if parent is None:
            raise MetadataNotFound(f"{parent_path} does not exist")
        path = f"{path}{parent.sequence:010d}"
        staged.keep(parent_path, replace(parent, sequence=parent.sequence + 1))
    if staged.load(path) is not None:
        raise MetadataExists(f"{path} exists already")
    record = NodeRecord.new(data, owner)
    staged.create(path, record)
    return path, record


def _check_path(path: str) -> None:
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise MetadataUnavailable(f"{path!r} is not a valid path of a node")


def _check(path: str, record: NodeRecord, version: int, creation: int | None) -> None:
    if creation not in (None, record.creation):
        raise MetadataReplaced(f"{path} was deleted, and another node has its name")
    if version not in (ANY_VERSION, record.writes):
        raise MetadataVersionConflict(f"{path} has version {record.writes}, not {version}")
