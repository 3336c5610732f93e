"""The proto is the documentation of who writes a client: whatever can be sent or received is explained there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from bookie_pod.gateway.messages import _CODES
from bookie_protocol.generate import ROOT

PROTO = "bookie_protocol/ledger_service/ledger_service.proto"
PLACES = {"message": 4, "enum": 5, "service": 6}
"""Field numbers of FileDescriptorProto: what paths of source locations are made of."""


@pytest.fixture(scope="module")
def proto(tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorProto:
    out = tmp_path_factory.mktemp("proto") / "set"
    words = [f"-I{ROOT}", "--include_source_info", f"--descriptor_set_out={out}", PROTO]
    assert protoc.main(["protoc", *words]) == 0
    (found,) = FileDescriptorSet.FromString(out.read_bytes()).file
    return found


def members(messages: Sequence[DescriptorProto], path: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for at, message in enumerate(messages):
        if message.options.map_entry:
            continue
        here = (*path, at)
        yield from ((f"{message.name}.{field.name}", (*here, 2, i)) for i, field in enumerate(message.field))
        yield from members(message.nested_type, (*here, 3))
        for number, enum in enumerate(message.enum_type):
            yield from ((f"{message.name}.{each.name}", (*here, 4, number, 2, i)) for i, each in enumerate(enum.value))


def explained(proto: FileDescriptorProto) -> set[tuple[int, ...]]:
    return {
        tuple(location.path)
        for location in proto.source_code_info.location
        if location.leading_comments.strip() or location.trailing_comments.strip()
    }


def test_every_call_field_and_value_is_explained(proto: FileDescriptorProto) -> None:
    named = dict(members(proto.message_type, (PLACES["message"],)))
    for number, enum in enumerate(proto.enum_type):
        named |= {each.name: (PLACES["enum"], number, 2, i) for i, each in enumerate(enum.value)}
    for number, service in enumerate(proto.service):
        named |= {each.name: (PLACES["service"], number, 2, i) for i, each in enumerate(service.method)}
    assert len(named) > 55
    known = explained(proto)
    assert [name for name, path in named.items() if path not in known] == []


def test_every_status_of_an_error_is_explained() -> None:
    text = (ROOT / PROTO).read_text(encoding="utf-8").partition("syntax =")[0]
    of_errors = {code for _, code in _CODES} | {grpc.StatusCode.UNAUTHENTICATED}
    assert [code.name for code in of_errors if f"//   {code.name} " not in text] == []
