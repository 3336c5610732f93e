"""Schemas of topics as Pulsar's brokers store them."""

from __future__ import annotations

import base64
import json

from google.protobuf import descriptor_pb2

from tests.support.pulsar_metadata import message


def schema_entry(kind: int, definition: bytes, *, deleted: bool = False) -> bytes:
    """The entry of a version."""
    info = message((1, "id"), (2, "user"), (3, kind), (4, definition), (5, 1), (6, int(deleted)))
    return message((2, info))


def locator(*places: tuple[int, int, int]) -> bytes:
    """The node: version, ledger and entry of each."""
    listed = [message((1, version), (2, message((1, ledger), (2, at))), (3, b"h")) for version, ledger, at in places]
    return message((1, listed[-1]), *((2, each) for each in listed))


def version_field(version: int) -> tuple[int, bytes]:
    """The field of MessageMetadata that names a version."""
    return (16, version.to_bytes(8, "big"))


def native_protobuf(*files: descriptor_pb2.FileDescriptorProto, root: str) -> bytes:
    """The definition of a schema of type PROTOBUFNATIVE."""
    made = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    return json.dumps(
        {
            "fileDescriptorSet": base64.b64encode(made).decode(),
            "rootMessageTypeName": root,
            "rootFileDescriptorName": files[0].name if files else "",
        }
    ).encode()
