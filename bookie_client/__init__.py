"""The BookKeeper client: `Client`, its handles and options; `BlockingClient` for programs without an event loop."""

from bookie_client.blocking import BlockingClient
from bookie_client.client import Client
from bookie_client.options import ClientOptions
from bookie_client.placement.options import PlacementOptions
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.writer import LedgerWriter

__all__ = [
    "AdvancedLedgerWriter",
    "BlockingClient",
    "Client",
    "ClientOptions",
    "LedgerEntry",
    "LedgerReader",
    "LedgerWriter",
    "PlacementOptions",
]
