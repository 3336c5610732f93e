"""Encodes decoded v2 messages again, whatever they are."""

from __future__ import annotations

from bookie_protocol.wire import v2


def encode_add_request(
    master_key: bytes, entry: bytes, flags: int = v2.Flag.NONE, version: int = v2.CURRENT_VERSION
) -> bytes:
    return v2.add_request_head(master_key, len(entry), flags, version) + entry


def reencode_request(request: v2.Request) -> bytes:
    if isinstance(request, v2.AddRequest):
        return encode_add_request(request.master_key, request.entry, request.flags, request.version)
    if isinstance(request, v2.ReadRequest):
        key = request.master_key or b""
        return v2.encode_read_request(request.ledger_id, request.entry_id, request.flags, key, request.version)
    if isinstance(request, v2.BatchReadRequest):
        return v2.encode_batch_read_request(
            request.ledger_id,
            request.entry_id,
            request.request_id,
            request.max_count,
            request.max_size,
            request.flags,
            request.master_key or b"",
            request.version,
            request.step,
        )
    return v2.encode_auth(request.message, request.version)


def reencode_response(response: v2.Response | v2.BatchReadResponse | v2.AuthFrame) -> bytes:
    if isinstance(response, v2.AuthFrame):
        return v2.encode_auth(response.message, response.version)
    if isinstance(response, v2.BatchReadResponse):
        return b"".join(
            v2.encode_batch_read_response(
                response.version,
                response.code,
                response.ledger_id,
                response.entry_id,
                response.request_id,
                response.entries.split(),
                v2.Flag.STEPPED if response.entries.stepped else v2.Flag.NONE,
            )
        )
    if response.entry:
        return b"".join(
            v2.encode_read_response(response.version, response.ledger_id, response.entry_id, response.entry)
        )
    return v2.encode_response(response.version, response.opcode, response.code, response.ledger_id, response.entry_id)
