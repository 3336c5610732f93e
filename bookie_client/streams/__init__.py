"""Streams of ledgers: `Streams`, its handles and errors. An endless log is a list of ledgers, see `model`."""

from bookie_client.streams.cursors import StreamCursor
from bookie_client.streams.manifest import LedgerSpan, Manifest
from bookie_client.streams.model import (
    START,
    PublishedLedger,
    StreamLedger,
    StreamPosition,
    StreamSettings,
    Transaction,
    Txn,
)
from bookie_client.streams.publishing import PublishResult
from bookie_client.streams.reader import StreamReader
from bookie_client.streams.streams import Streams
from bookie_client.streams.writer import StreamWriter
from bookie_protocol.errors import (
    NoSuchStream,
    StreamExists,
    StreamFenced,
    StreamInUse,
    StreamPositionGone,
    StreamTransactionConflict,
)

__all__ = [
    "START",
    "LedgerSpan",
    "Manifest",
    "NoSuchStream",
    "PublishResult",
    "PublishedLedger",
    "StreamCursor",
    "StreamExists",
    "StreamFenced",
    "StreamInUse",
    "StreamLedger",
    "StreamPosition",
    "StreamPositionGone",
    "StreamReader",
    "StreamSettings",
    "StreamTransactionConflict",
    "StreamWriter",
    "Streams",
    "Transaction",
    "Txn",
]
