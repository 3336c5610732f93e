"""The BookKeeper client: `Client`, and `BlockingClient` without an event loop, with their handles, options and errors.

Streams of ledgers are in `bookie_client.streams`.
"""

from bookie_client.blocking import BlockingClient
from bookie_client.client import Client
from bookie_client.options import ClientOptions, TlsOptions
from bookie_client.placement.options import PlacementOptions
from bookie_client.reading.entry import LedgerEntry, payloads_of
from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.auth.kerberos import KerberosAuth
from bookie_protocol.auth.sasl import JaasAuth, SaslAuth
from bookie_protocol.auth.shared_token import TokenAuth
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    BookieBusy,
    BookieReadOnly,
    BookieTimeout,
    BookieUnavailable,
    ConnectionLost,
    CouldNotTell,
    DigestMismatch,
    DuplicateEntry,
    EntriesUnreadable,
    InvalidConfiguration,
    LedgerClosed,
    LedgerDeleted,
    LedgerFenced,
    LedgerIdInUse,
    LedgerIdsExhausted,
    LedgerNotClosed,
    MetadataDamaged,
    MetadataError,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    NotThere,
    PodkeeperError,
    ProtocolViolation,
    QuorumLost,
    RecoveryFailed,
    Refused,
    SessionEnded,
    TooManyRequests,
    Unauthorized,
)
from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataTls, SaslLogin
from bookie_protocol.traffic_class import TrafficClass

__all__ = [
    "AdvancedLedgerWriter",
    "BadRequest",
    "BadVersion",
    "BlockingClient",
    "BookieBusy",
    "BookieReadOnly",
    "BookieTimeout",
    "BookieUnavailable",
    "Client",
    "ClientOptions",
    "ConnectionLost",
    "CouldNotTell",
    "DigestMismatch",
    "DuplicateEntry",
    "EntriesUnreadable",
    "InvalidConfiguration",
    "JaasAuth",
    "KerberosAuth",
    "LedgerClosed",
    "LedgerDeleted",
    "LedgerEntry",
    "LedgerFenced",
    "LedgerIdInUse",
    "LedgerIdsExhausted",
    "LedgerNotClosed",
    "LedgerReader",
    "LedgerWriter",
    "MetadataDamaged",
    "MetadataError",
    "MetadataServiceOptions",
    "MetadataTls",
    "MetadataUnavailable",
    "NoSuchEntry",
    "NoSuchLedger",
    "NotEnoughBookies",
    "NotThere",
    "PlacementOptions",
    "PodkeeperError",
    "ProtocolViolation",
    "QuorumLost",
    "RecoveryFailed",
    "Refused",
    "SaslAuth",
    "SaslLogin",
    "SessionEnded",
    "TlsOptions",
    "TokenAuth",
    "TooManyRequests",
    "TrafficClass",
    "Unauthorized",
    "payloads_of",
]
