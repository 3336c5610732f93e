"""`docs/reference/grpc.md`: calls and messages of `LedgerService`, from the comments of its .proto."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)
from grpc_tools import protoc

from bookie_protocol.generate import ROOT
from website.pages.text import code, heading, plain, table

_PROTO: Final = "bookie_protocol/ledger_service/ledger_service.proto"
_INTRODUCTION: Final = f"""\
`podkeeper.ledger.v1.LedgerService` is what programs in every language use, through the gRPC port of a bookie (3182) or
`bookie gateway`. Compile [{_PROTO.rpartition("/")[2]}](../../{_PROTO}) for your language; the port also answers
reflection and `grpc.health.v1`. [grpc.md](../grpc.md) has examples.

What is said at the head of the file:"""
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
"""Numbers of the fields of FileDescriptorProto, of which the paths of comments are made."""
_REPEATED: Final = FieldDescriptorProto.LABEL_REPEATED


def grpc_page() -> str:
    """Return the page."""
    return "\n".join([*_page(_read())]).rstrip() + "\n"


def _read() -> FileDescriptorProto:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        words = [f"-I{ROOT}", "--include_source_info", f"--descriptor_set_out={out}", _PROTO]
        assert protoc.main(["protoc", *words]) == 0
        (found,) = FileDescriptorSet.FromString(out.read_bytes()).file
        return found


def _page(proto: FileDescriptorProto) -> Iterator[str]:
    said = {
        tuple(each.path): each.leading_comments or each.trailing_comments for each in proto.source_code_info.location
    }
    head = next(each.leading_comments for each in proto.source_code_info.location if list(each.path) == [12])
    yield from heading("gRPC", "the comments of the .proto", _INTRODUCTION)
    yield "```text"
    yield from (line.removeprefix(" ").rstrip() for line in head.strip("\n").splitlines())
    yield "```"
    yield ""
    for at, service in enumerate(proto.service):
        yield f"## {service.name}"
        yield ""
        for number, method in enumerate(service.method):
            yield f"### {method.name}"
            yield ""
            yield from _prose(said[_SERVICES, at, 2, number])
            yield f"{code('request')}: {_side(method, True)}, {code('response')}: {_side(method, False)}"
            yield ""
    yield "## Messages"
    yield ""
    for at, message in enumerate(proto.message_type):
        yield from _message(message, message.name, (_MESSAGES, at), said)
    for at, enum in enumerate(proto.enum_type):
        yield from _enum(enum, enum.name, (_ENUMS, at), said)


def _side(method: MethodDescriptorProto, request: bool) -> str:
    kind = method.input_type if request else method.output_type
    streams = method.client_streaming if request else method.server_streaming
    return ("stream of " if streams else "") + _link(kind)


def _link(kind: str) -> str:
    name = kind.rpartition(".")[2]
    return f"[{name}](#{name.lower()})"


def _prose(comment: str) -> Iterator[str]:
    for paragraph in comment.split("\n\n"):
        if paragraph.strip():
            yield plain(paragraph)
            yield ""


Said = dict[tuple[int, ...], str]


def _message(message: DescriptorProto, name: str, path: tuple[int, ...], said: Said) -> Iterator[str]:
    if message.options.map_entry:
        return
    yield f"### {name}"
    yield ""
    yield from _prose(said.get(path, ""))
    rows = [
        (code(each.name), _type(each, message), plain(said.get((*path, 2, at), "")))
        for at, each in enumerate(message.field)
    ]
    yield from table(("field", "type", "meaning"), rows)
    for at, nested in enumerate(message.nested_type):
        yield from _message(nested, nested.name, (*path, 3, at), said)
    for at, enum in enumerate(message.enum_type):
        yield from _enum(enum, enum.name, (*path, 4, at), said)


def _enum(enum: EnumDescriptorProto, name: str, path: tuple[int, ...], said: Said) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield from _prose(said.get(path, ""))
    rows = [(code(each.name), plain(said.get((*path, 2, at), ""))) for at, each in enumerate(enum.value)]
    yield from table(("value", "meaning"), rows)


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    if not field.type_name:
        kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    else:
        for nested in message.nested_type:
            if nested.options.map_entry and field.type_name.endswith(f".{nested.name}"):
                key, value = nested.field
                return f"map of {_type(key, nested)} to {_type(value, nested)}"
        kind = _link(field.type_name)
    return f"list of {kind}" if field.label == _REPEATED else kind
