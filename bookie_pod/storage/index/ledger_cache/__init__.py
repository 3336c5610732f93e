"""The index of InterleavedLedgerStorage and SortedLedgerStorage: one file of slots per ledger, cached in pages."""

from bookie_pod.storage.index.ledger_cache.cache import LedgerCache

__all__ = ["LedgerCache"]
