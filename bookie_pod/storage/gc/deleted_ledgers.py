"""Ledgers that this storage has deleted and whose entries may still lie in entry logs: `gc-deleted-ledgers`.

Two questions are answered from it. Is what a log holds of an unknown ledger garbage? Yes without asking anybody, if the
ledger was deleted here. And: does an entry without a row belong to the ledger, or to an earlier ledger of the same id
(deleted, then made anew by an application that chooses ids, or re-replicated back)? The latter is garbage, and must
never get a row.

Format
    8 bytes    "PKGCDEL1"
    16 bytes each: ledger id i64, upto i64, big-endian: logs up to this id may hold entries from before the deletion;
                   bit 62 of `upto`: the ledger has come back since
    4 bytes    CRC32C of all that is before it

Invariants
- The file is replaced whole and durably. Missing or damaged it is empty: then the metadata service is asked again.
- At most `MAX_LEDGERS`; the oldest go first.

Threads: the garbage collection thread.
"""

from __future__ import annotations

import posixpath
from collections.abc import Container
from struct import Struct
from typing import Final

import google_crc32c
import numpy as np
import structlog

from bookie_pod.storage.files import Files
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)

NAME: Final = "gc-deleted-ledgers"
MAGIC: Final = b"PKGCDEL1"
MAX_LEDGERS: Final = 1 << 20

_CRC: Final = Struct(">I")
_RETURNED: Final = 1 << 62
_ALL_LOGS: Final = _RETURNED - 1


class DeletedLedgers:
    """See the module. `folder` is the `current` folder that the file lies in."""

    def __init__(self, files: Files, folder: str, limit: int = MAX_LEDGERS) -> None:
        self._files = files
        self._path = posixpath.join(folder, NAME)
        self._limit = limit
        self._upto: dict[int, int] = {}
        self._unsealed: list[int] = []
        self._changed = False
        self._read()

    def __len__(self) -> int:
        return len(self._upto)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._upto

    # --- what happened --------------------------------------------------------------------------------------

    def add(self, ledger_id: int) -> None:
        """A ledger was deleted here, or the metadata service said of an unknown one that it does not exist."""
        self._upto.pop(ledger_id, None)  # to the end: the newest
        self._upto[ledger_id] = _ALL_LOGS
        self._unsealed.append(ledger_id)
        self._changed = True
        while len(self._upto) > self._limit:
            del self._upto[next(iter(self._upto))]

    def seal(self, last_log_id: int) -> None:
        """`last_log_id` is that of the newest log now: what comes later holds nothing of what was added before."""
        for ledger_id in self._unsealed:
            if ledger_id in self._upto:
                self._upto[ledger_id] = last_log_id
        self._unsealed.clear()

    def came_back(self, ledger_id: int) -> None:
        """The ledger is known here (again)."""
        upto = self._upto[ledger_id]
        if not upto & _RETURNED:
            self._upto[ledger_id] = upto | _RETURNED
            self._changed = True

    def retain(self, in_logs: Container[int], first_open_log: int) -> None:
        """Forget ledgers of which no log holds anything: `in_logs` are those that were found in logs, all below
        `first_open_log` having been looked at."""
        gone = [
            ledger_id
            for ledger_id, upto in self._upto.items()
            if ledger_id not in in_logs and upto & _ALL_LOGS < first_open_log
        ]
        for ledger_id in gone:
            del self._upto[ledger_id]
        self._changed = self._changed or bool(gone)

    # --- questions ------------------------------------------------------------------------------------------

    def is_gone(self, ledger_id: int) -> bool:
        """It was deleted, and did not come back."""
        upto = self._upto.get(ledger_id)
        return upto is not None and not upto & _RETURNED

    def may_be_earlier_life(self, ledger_id: int, log_id: int) -> bool:
        """Whether this log may hold entries of the ledger from before a deletion."""
        upto = self._upto.get(ledger_id)
        return upto is not None and log_id <= upto & _ALL_LOGS

    # --- the file -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("deleted ledgers unknown, will be asked for", path=self._path, reason=str(error))
            return
        body, crc = data[: -_CRC.size], data[-_CRC.size :]
        pairs = body[len(MAGIC) :]
        if not body.startswith(MAGIC) or len(pairs) % 16 or _CRC.pack(google_crc32c.value(body)) != crc:
            _log.warning("deleted ledgers unknown, will be asked for", path=self._path, reason="the file is damaged")
            return
        rows = np.frombuffer(pairs, ">i8").reshape(-1, 2)
        self._upto = dict(zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True))

    def write(self) -> None:
        """Make what was told so far durable. `StorageFault`."""
        if not self._changed:
            return
        count = len(self._upto)
        rows = np.empty((count, 2), ">i8")
        rows[:, 0] = np.fromiter(self._upto.keys(), np.int64, count)
        rows[:, 1] = np.fromiter(self._upto.values(), np.int64, count)
        body = MAGIC + rows.tobytes()
        try:
            self._files.write_bytes_atomic(self._path, body + _CRC.pack(google_crc32c.value(body)))
        except OSError as error:
            raise StorageFault(f"cannot write {self._path}: {error}") from error
        self._changed = False
