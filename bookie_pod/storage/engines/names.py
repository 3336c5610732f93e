"""Names of the storage engines, as `ledgerStorageClass` spells them (reference bookie behaviour, section
1.5)."""

from __future__ import annotations

from typing import Final

from bookie_protocol.errors import InvalidConfiguration

DB_LEDGER_STORAGE: Final = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
SORTED_LEDGER_STORAGE: Final = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
INTERLEAVED_LEDGER_STORAGE: Final = "org.apache.bookkeeper.bookie.InterleavedLedgerStorage"

DEFAULT_ENGINE: Final = DB_LEDGER_STORAGE
"""The reference defaults to SortedLedgerStorage; `detection` refuses a disk that was written under that
default."""

KNOWN_ENGINES: Final = (DB_LEDGER_STORAGE, SORTED_LEDGER_STORAGE, INTERLEAVED_LEDGER_STORAGE)


def is_db(class_name: str) -> bool:
    return class_name == DB_LEDGER_STORAGE


def short_name(class_name: str) -> str:
    """The class name without its package."""
    return class_name.rsplit(".", 1)[-1]


def check_name(class_name: str) -> str:
    """The name itself; `InvalidConfiguration` if no engine has it."""
    if class_name not in KNOWN_ENGINES:
        raise InvalidConfiguration(
            f"ledgerStorageClass={class_name} is not a storage engine; known are {', '.join(KNOWN_ENGINES)}"
        )
    return class_name
