"""The memory of an earlier bookie with the same id: the file `earlier-ledgers` in the ledger directories.

    empty    ledgers of an earlier life were not looked for yet
    8 bytes  the highest id of a ledger that was there when this bookie was new, i64, big-endian
    4 bytes  CRC32C of these

A bookie whose disks were replaced comes back under its old id, empty. Clients that hold a ledger open since before do
not know: they go on sending to that id. What the ledger's fence was, and whether it was closed meanwhile, only the
metadata service can tell; a bookie that took such an add like any other would acknowledge what is lost
(apache/bookkeeper#4812). So a new bookie

1. stamps this file together with its cookies, before the metadata service knows of it;
2. puts in limbo what the metadata place on it, and notes the highest ledger id there is (`integrity.preboot`);
3. asks the metadata service before it takes the first entry of an older ledger that it does not hold
   (`bookie_pod.server.tcp.metadata_questions`).

No file: there was no ledger when this bookie was new, or the bookie is of an older release. A copy that is damaged
stands for the highest id possible: asking harms nothing; and `bookie disk rebuild-ledgers` notes that id where ledgers
may have been forgotten. Apache BookKeeper looks at no file of this name.

Threads: the files: any one at a time; `metadata_questions` on the event loop.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import google_crc32c
import structlog

from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.server.tcp.metadata_questions import MetadataQuestions
from bookie_pod.storage.files import Files, storage_fault
from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID, LedgerMetadata
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore

_log = structlog.get_logger(__name__)

NAME: Final = "earlier-ledgers"
_ID: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")


class EarlierLife:
    """The copies in the `current` folders of the ledger directories."""

    def __init__(self, files: Files, ledger_folders: Sequence[str]) -> None:
        self._files = files
        self._folders = list(ledger_folders)

    def begin(self) -> None:
        """Note that this bookie is new, and that older ledgers were not looked for yet. Durable on return. Raises
        OSError.
        """
        for folder in self._folders:
            self._files.makedirs(folder)
            self._files.write_bytes_atomic(f"{folder}/{NAME}", b"")

    def is_unknown(self) -> bool:
        """Return whether ledgers of an earlier life have still to be looked for. Raises `StorageFault`."""
        return b"" in self._copies()

    def newest(self) -> int:
        """The highest ledger id that there was when this bookie was new; -1: there was none. `StorageFault`."""
        return max(map(self._parse, self._copies()), default=-1)

    def note(self, newest: int) -> None:
        """Note the highest ledger id found, -1 if there was no ledger. Durable on return. Raises `StorageFault`."""
        data = _ID.pack(newest)
        for folder in self._folders:
            path = f"{folder}/{NAME}"
            try:
                if newest >= 0:
                    self._files.write_bytes_atomic(path, data + _CRC.pack(google_crc32c.value(data)))
                elif self._files.exists(path):
                    self._files.unlink(path)
                    self._files.sync_directory(folder)
            except OSError as error:
                raise storage_fault(f"cannot write {path}", error) from error

    def doubt(self) -> None:
        """Any ledger that is not here may have been here before; durable on return. `StorageFault`."""
        if not self.is_unknown():
            self.note(MAX_LEDGER_ID)

    def _copies(self) -> list[bytes]:
        copies = []
        for folder in self._folders:
            path = f"{folder}/{NAME}"
            try:
                copies.append(self._files.read_bytes(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise storage_fault(f"cannot read {path}", error) from error
        return copies

    def _parse(self, data: bytes) -> int:
        newest = data[: _ID.size]
        if len(newest) < _ID.size or data[_ID.size :] != _CRC.pack(google_crc32c.value(newest)):
            _log.warning("a copy of the file is damaged: any ledger that is not here may be older", name=NAME)
            return MAX_LEDGER_ID
        return int(_ID.unpack(newest)[0])


def metadata_questions(
    ledgers: Ledgers, newest: int, store: LedgerStore, bookie_id: str, check: Callable[[], Awaitable[None]]
) -> MetadataQuestions:
    """Return the questions of the server. `newest` as above; `check` raises `MetadataError` unless the word of the
    service is enough to delete a ledger."""
    return MetadataQuestions(ledgers, newest, partial(look, store), bookie_id, check)


async def look(store: LedgerStore, ledger_id: int) -> LedgerMetadata | None:
    """Return the metadata of a ledger, uncached, or None if no ledger has this id. Raises MetadataError."""
    try:
        return (await store.read(ledger_id, fresh=True)).value
    except MetadataNotFound:
        return None
