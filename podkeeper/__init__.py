"""The public API of Podkeeper: a BookKeeper client for asyncio, and one without an event loop.

    from podkeeper import BlockingClient, Client

- `podkeeper`: the clients, their handles, options, logins, and errors
- `podkeeper.errors`: the errors, and what each kind of them means
- `podkeeper.metadata`: the metadata service itself, for locks and records of your own
- `podkeeper.placement`: which bookies a ledger goes to
- `podkeeper.replication`: the copies of a ledger: check, move, restore
- `podkeeper.streams`: endless logs made of ledgers, and Pulsar's topics

What these modules list in `__all__` is public. Everything else in `bookie_client` and `bookie_protocol` may change with
any release. Data source and sink for Spark are in `pyspark_bookie`.
"""

from bookie_client.blocking import (
    BlockingAdvancedLedgerWriter,
    BlockingClient,
    BlockingLedgerReader,
    BlockingLedgerWriter,
)
from bookie_client.client import Client
from bookie_client.connection.request import BookieInfo
from bookie_client.options import ClientOptions, TlsOptions
from bookie_client.placement.options import PlacementOptions
from bookie_client.reading.entry import LedgerEntry, payloads_of
from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.auth.kerberos import KerberosAuth
from bookie_protocol.auth.sasl import JaasAuth, SaslAuth
from bookie_protocol.auth.shared_token import TokenAuth
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataTls, SaslLogin, SaslMechanism
from bookie_protocol.traffic_class import TrafficClass
from bookie_protocol.wire.auth import OptionalLogin
from podkeeper import errors
from podkeeper.errors import *  # noqa: F403 - all of them are public here, too

__all__ = [
    "AdvancedLedgerWriter",
    "BlockingAdvancedLedgerWriter",
    "BlockingClient",
    "BlockingLedgerReader",
    "BlockingLedgerWriter",
    "BookieInfo",
    "Client",
    "ClientOptions",
    "DigestType",
    "JaasAuth",
    "KerberosAuth",
    "LedgerEntry",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "MetadataServiceOptions",
    "MetadataTls",
    "OptionalLogin",
    "PlacementOptions",
    "SaslAuth",
    "SaslLogin",
    "SaslMechanism",
    "TlsOptions",
    "TokenAuth",
    "TrafficClass",
    "payloads_of",
]
__all__ += errors.__all__
