"""The BookKeeper client: `Client`, its handles and options; `BlockingClient` for programs without an event loop."""

from bookie_client.blocking import BlockingClient
from bookie_client.client import Client
from bookie_client.options import ClientOptions, TlsOptions
from bookie_client.placement.options import PlacementOptions
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.entry_batch import payloads_of
from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.auth.sasl import SaslAuth
from bookie_protocol.auth.shared_token import TokenAuth
from bookie_protocol.metadata_service.options import MetadataServiceOptions, SaslLogin
from bookie_protocol.traffic_class import TrafficClass

__all__ = [
    "AdvancedLedgerWriter",
    "BlockingClient",
    "Client",
    "ClientOptions",
    "LedgerEntry",
    "LedgerReader",
    "LedgerWriter",
    "MetadataServiceOptions",
    "PlacementOptions",
    "SaslAuth",
    "SaslLogin",
    "TlsOptions",
    "TokenAuth",
    "TrafficClass",
    "payloads_of",
]
