"""Ledgers that this storage has deleted and whose entries may still lie in entry logs: `gc-deleted-ledgers`.

What a log holds of such a ledger is garbage, without a question to the metadata service. It is no proof that a ledger
had no earlier life: that is a fact of its own record (`LedgerRecord.first_log`). Of a ledger whose record does not say
it, because an earlier release made it, nothing else tells.

Rows of the file (`RowsFile` says what is around them): ledger id, and `upto`: logs up to this id may hold entries from
before the deletion; bit 62 of `upto`: the ledger has come back since.

Invariants
- The file is replaced whole and durably. Missing or damaged it is empty: then the metadata service is asked again.
- At most `MAX_LEDGERS`, and up to `CHUNK` more until they are packed; those deleted longest ago (by `upto`) go first.
- In memory they take 16 bytes each, but for those that are not packed yet.

Threads: the garbage collection thread; questions from any.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.packed_ids import CHUNK, Array, Mask, RowsFile, are_in, empty, place_of

NAME: Final = "gc-deleted-ledgers"
MAGIC: Final = b"PKGCDEL1"
MAX_LEDGERS: Final = 1 << 20

_RETURNED: Final = 1 << 62
_ALL_LOGS: Final = _RETURNED - 1


class DeletedLedgers:
    """See the module. `folder` is the `current` folder that the file lies in."""

    def __init__(self, files: Files, folder: str, limit: int = MAX_LEDGERS) -> None:
        self._file = RowsFile(files, folder, NAME, MAGIC, "deleted ledgers unknown, will be asked for")
        self._limit = limit
        self._ids = empty()
        """Ascending."""
        self._upto = empty()
        """The `upto` of each of these ledgers."""
        self._new: dict[int, int] = {}
        """The ledgers added last, and their `upto`, which takes precedence over the arrays."""
        self._changed = False
        self._lock = threading.RLock()
        self._read()

    def __len__(self) -> int:
        self._pack()
        return len(self._ids)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._new or place_of(self._ids, ledger_id) >= 0

    # --- what happened --------------------------------------------------------------------------------------

    def add(self, ledger_id: int) -> None:
        """A ledger was deleted here, or the metadata service said of an unknown one that it does not exist."""
        with self._lock:
            self._new[ledger_id] = _ALL_LOGS
            self._changed = True
            if len(self._new) >= CHUNK:
                self._pack()

    def seal(self, last_log_id: int) -> None:
        """`last_log_id` is that of the newest log now: what comes later holds nothing of what was added before."""
        with self._lock:
            self._pack()
            unsealed = (self._upto & _ALL_LOGS) == _ALL_LOGS
            self._upto[unsealed] -= _ALL_LOGS - max(0, last_log_id)

    def came_back(self, ledger_id: int) -> None:
        """The ledger is known here (again)."""
        upto = self._get(ledger_id)
        if upto is None or upto & _RETURNED:
            return
        if ledger_id in self._new:
            self._new[ledger_id] = upto | _RETURNED
        else:
            self._upto[place_of(self._ids, ledger_id)] = upto | _RETURNED
        self._changed = True

    def retain(self, in_logs: Array, first_unseen_log: int) -> None:
        """Forget ledgers of which no log holds anything: `in_logs`, ascending, are those that were found in logs, all
        below `first_unseen_log` having been looked at."""
        self._pack()
        kept = are_in(self._ids, in_logs)
        kept |= (self._upto & _ALL_LOGS) >= first_unseen_log
        self._keep(kept)

    # --- packing --------------------------------------------------------------------------------------------

    def _pack(self) -> None:
        with self._lock:
            self._pack_new()
            excess = len(self._ids) - self._limit
            if excess > 0:
                kept = np.ones(len(self._ids), np.bool_)
                kept[np.argsort(self._upto & _ALL_LOGS, kind="stable")[:excess]] = False
                self._keep(kept)

    def _pack_new(self) -> None:
        if self._new:
            count = len(self._new)
            ids, upto = np.fromiter(self._new, np.int64, count), np.fromiter(self._new.values(), np.int64, count)
            self._new = {}
            order = np.argsort(ids)
            ids, upto = ids[order], upto[order]
            known = are_in(ids, self._ids)
            self._upto[self._ids.searchsorted(ids[known])] = upto[known]
            ids, upto = ids[~known], upto[~known]
            at = self._ids.searchsorted(ids)
            self._ids = np.insert(self._ids, at, ids)
            self._upto = np.insert(self._upto, at, upto)

    def _keep(self, kept: Mask) -> None:
        if not kept.all():
            with self._lock:
                self._ids, self._upto, self._changed = self._ids[kept], self._upto[kept], True

    # --- questions ------------------------------------------------------------------------------------------

    def _get(self, ledger_id: int) -> int | None:
        with self._lock:
            upto = self._new.get(ledger_id)
            if upto is not None:
                return upto
            at = place_of(self._ids, ledger_id)
            return int(self._upto[at]) if at >= 0 else None

    def is_gone(self, ledger_id: int) -> bool:
        """It was deleted, and did not come back."""
        upto = self._get(ledger_id)
        return upto is not None and not upto & _RETURNED

    def may_be_earlier_life(self, ledger_id: int, log_id: int) -> bool:
        """Return whether this log may hold entries of the ledger from before a deletion."""
        upto = self._get(ledger_id)
        return upto is not None and log_id <= upto & _ALL_LOGS

    # --- the file -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        ids, upto = self._file.read()
        order = np.argsort(ids, kind="stable")
        self._ids, self._upto = ids[order], upto[order]

    def write(self) -> None:
        """Make everything added so far durable. Raises `StorageFault`."""
        if not self._changed:
            return
        self._pack()
        self._file.write(self._ids, self._upto)
        self._changed = False
