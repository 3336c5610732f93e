"""The metadata service of a cluster without a client: for programs that keep a lock or a record of their own there."""

from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataTls, SaslLogin, SaslMechanism
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service

__all__ = [
    "MetadataService",
    "MetadataServiceOptions",
    "MetadataTls",
    "SaslLogin",
    "SaslMechanism",
    "open_metadata_service",
]
