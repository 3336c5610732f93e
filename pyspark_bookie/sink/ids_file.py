"""The file on the driver that tells which ledgers were written (`idsFile`).

Invariants
- It is there wholly or not at all, and is known to be writable before a batch is published.
- It tells of published ledgers alone. Of a batch that was published before, those at hand are of a repetition, which
  nobody sees: then the file stays as it is.

Pure but for that file; any process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError
from pyspark_bookie.sink.messages import Batch


@dataclass(frozen=True)
class IdsFile:
    """What is to be told, in a file beside it until it counts. `path` None: nobody wants to know."""

    path: str | None

    @classmethod
    def prepared(cls, path: str | None, batch: Batch) -> IdsFile:
        """Raises `PodkeeperSparkError` (OPTION) when it cannot be written."""
        if path is not None:
            with _told(path), open(f"{path}.tmp", "w") as file:
                json.dump(_document(batch), file)
        return cls(path)

    def settle(self, *, is_published: bool) -> None:
        """From now on it counts, or it is forgotten. Raises as `prepared`."""
        if self.path is None:
            return
        with _told(self.path):
            if is_published:
                os.replace(f"{self.path}.tmp", self.path)
            else:
                os.unlink(f"{self.path}.tmp")


def _document(batch: Batch) -> dict[str, object]:
    return {
        "rows": batch.rows,
        "ledgers": [
            {
                "ledger_id": ledger.ledger_id,
                "entries": ledger.entries,
                "bytes": ledger.nbytes,
                "crc32c": ledger.crc,
            }
            for ledger in batch.ledgers
        ],
    }


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PodkeeperSparkError(OPTION, f"option idsFile={path}: {error.strerror}") from None
