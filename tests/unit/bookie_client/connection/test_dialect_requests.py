"""Everything but adds and plain reads, against what the Java client and bookie said to each other."""

import struct

import pytest

from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.dialect_v3 import V3Dialect
from bookie_client.connection.request import BookieInfo, LacAnswer
from bookie_protocol.errors import (
    BadVersion,
    NoSuchEntry,
    NoSuchLedger,
    ProtocolViolation,
    StorageFault,
    Unauthorized,
    V2Code,
    V3Status,
)
from bookie_protocol.keys import life_of
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.auth import AuthMessage, from_protobuf
from bookie_protocol.wire.availability import Availability, encode_availability
from bookie_protocol.wire.v2 import Flag
from bookie_protocol.wire.varint import encode_varint
from tests.support.golden_frames import exchanged

KEY = bytes(range(20))


def requests(operation):
    frames = [v3.parse_request(f.body) for f in exchanged("request") if f.is_v3]
    return [message for message in frames if message.header.operation == operation]


def responses(operation):
    frames = [(f.body, v3.parse_response(f.body)) for f in exchanged("response") if f.is_v3]
    return [(body, message) for body, message in frames if message.header.operation == operation]


def same_request(message, key_and_frame):
    key, frame = key_and_frame
    message.ClearField("requestContext")
    assert v3.parse_request(frame[4:]) == message
    assert key == encode_varint(message.header.txnId)
    return True


# --- version 3 --------------------------------------------------------------------------------------------


def test_long_polls():
    polls = [m for m in requests(pb.READ_ENTRY) if m.readRequest.HasField("previousLAC")]
    assert polls
    for message in polls:
        read = message.readRequest
        piggyback = read.HasField("flag") and read.flag == pb.ReadRequest.ENTRY_PIGGYBACK
        built = V3Dialect().long_poll(
            message.header.txnId, read.ledgerId, read.entryId, read.previousLAC, read.timeOut, piggyback=piggyback
        )
        assert same_request(message, built)


def test_the_long_poll_of_the_protocol_page():
    _, frame = V3Dialect().long_poll(2, 7, -1, 2, 1000, piggyback=True)
    assert frame == bytes.fromhex(
        "000000200a06080310011802a206150807 10ffffffffffffffffff01 2002 28e807 a00602".replace(" ", "")
    )


def test_start_tls_is_the_protocol_pages_frame():
    assert V3Dialect().start_tls(0) == (b"\x00", bytes.fromhex("0000000b0a0608031009 1800d20600".replace(" ", "")))


def test_explicit_lac_requests():
    for message in requests(pb.WRITE_LAC):
        write = message.writeLacRequest
        built = V3Dialect().write_lac(message.header.txnId, write.ledgerId, write.masterKey, write.lac, write.body)
        assert same_request(message, built)
    reads = requests(pb.READ_LAC)
    for message in reads:
        assert same_request(message, V3Dialect().read_lac(message.header.txnId, message.readLacRequest.ledgerId))
    assert reads
    assert requests(pb.WRITE_LAC)


def test_force_space_and_list_requests():
    for message in requests(pb.FORCE_LEDGER):
        built = V3Dialect().force_ledger(message.header.txnId, message.forceLedgerRequest.ledgerId)
        assert same_request(message, built)
    for message in requests(pb.GET_LIST_OF_ENTRIES_OF_LEDGER):
        ledger_id = message.getListOfEntriesOfLedgerRequest.ledgerId
        assert same_request(message, V3Dialect().entries_of_ledger(message.header.txnId, ledger_id))
    for message in requests(pb.GET_BOOKIE_INFO):
        if message.getBookieInfoRequest.requested == 3:
            assert same_request(message, V3Dialect().bookie_info(message.header.txnId))
    for operation in (pb.FORCE_LEDGER, pb.GET_LIST_OF_ENTRIES_OF_LEDGER, pb.GET_BOOKIE_INFO):
        assert requests(operation)


def test_authentication_of_version_3():
    tokens = [m for m in requests(pb.AUTH) if m.HasField("authRequest")]
    assert tokens
    for message in tokens:
        built = V3Dialect().auth(message.header.txnId, from_protobuf(message.authRequest))
        assert same_request(message, built)
    for body, message in responses(pb.AUTH):
        answer = V3Dialect().decode(body)
        if message.status == V3Status.EOK:
            assert answer.detail == from_protobuf(message.authResponse)
        else:
            assert answer.error is Unauthorized


def test_answers_to_read_lac():
    checked = 0
    for body, message in responses(pb.READ_LAC):
        answer, inner = V3Dialect().decode(body), message.readLacResponse
        if message.status == V3Status.EOK:
            assert isinstance(answer.detail, LacAnswer)
            assert answer.detail.complete
            assert (answer.detail.explicit or b"") == inner.lacBody
            assert (answer.detail.last_entry or b"") == inner.lastEntryBody
            checked += 1
    assert checked


@pytest.mark.parametrize(
    ("status", "explicit", "error"),
    [(V3Status.EIO, None, StorageFault), (V3Status.ENOENTRY, None, NoSuchEntry), (V3Status.EIO, b"packet", None)],
)
def test_what_read_lac_can_say_without_an_entry(status, explicit, error):
    response = v3.new_response(v3.new_request(pb.READ_LAC, 9), status)
    response.readLacResponse.status = v3.status_code(status)
    response.readLacResponse.ledgerId = 1
    if explicit is not None:
        response.readLacResponse.lacBody = explicit
    answer = V3Dialect().decode(v3.encode_frame(response)[4:])
    assert answer.error is error
    assert answer.detail == (LacAnswer(explicit, None, complete=False) if explicit else None)


def test_answers_to_space_force_and_write_lac():
    for body, message in responses(pb.GET_BOOKIE_INFO):
        answer, inner = V3Dialect().decode(body), message.getBookieInfoResponse
        if inner.HasField("totalDiskCapacity") and inner.HasField("freeDiskSpace"):
            assert answer.detail == BookieInfo(inner.totalDiskCapacity, inner.freeDiskSpace)
        else:
            assert answer.detail is None
    for operation in (pb.FORCE_LEDGER, pb.WRITE_LAC):
        for body, message in responses(operation):
            answer = V3Dialect().decode(body)
            assert (answer.error is None) == (message.status == V3Status.EOK)
    for operation in (pb.GET_BOOKIE_INFO, pb.FORCE_LEDGER, pb.WRITE_LAC):
        assert responses(operation)


def list_answer(status, data=None):
    response = v3.new_response(v3.new_request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, 9), status)
    response.getListOfEntriesOfLedgerResponse.status = v3.status_code(status)
    response.getListOfEntriesOfLedgerResponse.ledgerId = 1
    if data is not None:
        response.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger = data
    return v3.encode_frame(response)[4:]


def test_answers_to_the_list_of_entries():
    answer = V3Dialect().decode(list_answer(V3Status.EOK, encode_availability([0, 1, 5])))
    assert isinstance(answer.detail, Availability)
    assert list(answer.detail) == [0, 1, 5]
    assert V3Dialect().decode(list_answer(V3Status.ENOLEDGER)).error is NoSuchLedger
    for damaged in (None, b"rubbish"):
        with pytest.raises(ProtocolViolation):
            V3Dialect().decode(list_answer(V3Status.EOK, damaged))


def test_version_3_has_no_batch_read():
    with pytest.raises(BadVersion, match=r"version 3 .*BATCH_READ_ENTRY"):
        V3Dialect().batch_read(1, 1, 0, 10, 1000, recovery=False)


def test_deferred_sync():
    _, frame = V3Dialect().add_encoder(LedgerLife(1, 0), KEY, deferred_sync=True)(5, 3, bytes(40))
    assert v3.parse_request(frame[4:]).addRequest.writeFlags == v3.DEFERRED_SYNC
    assert len(frame) <= 40 + V3Dialect.add_overhead
    _, frame = V3Dialect().add_encoder(LedgerLife(2**62, 0), KEY, recovery=True, deferred_sync=True)(
        2**63, 2**62, bytes(3000)
    )
    assert len(frame) <= 3000 + V3Dialect.add_overhead
    with pytest.raises(BadVersion, match="deferred"):
        V2Dialect().add_encoder(LedgerLife(1, 0), KEY, deferred_sync=True)


def test_life_of_the_ledger_goes_with_adds_and_explicit_lacs_of_version_3():
    life = life_of(2**63 - 1)
    ledger = LedgerLife(2**62, 0, 2**63 - 1)
    for options in ({"deferred_sync": True}, {"restored": True}):
        _, frame = V3Dialect().add_encoder(ledger, KEY, **options)(2**63, 2**62, bytes(3000))
        add = v3.parse_request(frame[4:]).addRequest
        assert (add.life, add.HasField("lifeOfCopies"), add.HasField("flag")) == (
            ledger.token,
            False,
            "restored" in options,
        )
    for options in ({"recovery": True, "deferred_sync": True}, {"background": True}):
        _, frame = V3Dialect().add_encoder(ledger, KEY, **options)(2**63, 2**62, bytes(3000))
        assert len(frame) <= 3000 + V3Dialect.add_overhead
        add = v3.parse_request(frame[4:]).addRequest
        assert (add.lifeOfCopies, add.HasField("life"), add.HasField("flag")) == (ledger.token, False, True)
    _, frame = V3Dialect().write_lac(1, 1, KEY, 0, b"packet", life)
    assert v3.parse_request(frame[4:]).writeLacRequest.life == 2**63 - 1
    _, frame = V3Dialect().add_encoder(ledger.unnamed(), KEY)(1, 3, bytes(40))
    assert not v3.parse_request(frame[4:]).addRequest.HasField("life")


def test_version_2_has_no_place_for_the_life():
    plain, named = (
        V2Dialect().add_encoder(LedgerLife(7, 0), KEY),
        V2Dialect().add_encoder(LedgerLife(7, 0, 5), KEY),
    )
    assert plain(1, 3, bytes(40)) == named(1, 3, bytes(40))


# --- version 2 --------------------------------------------------------------------------------------------


def test_batch_reads_are_the_java_clients_bytes():
    sent = [f for f in exchanged("request") if f.decoded.get("opcode") == "BATCH_READ_ENTRY"]
    assert sent
    for golden in sent:
        request = v2.decode_request(golden.body)
        key, built = V2Dialect().batch_read(
            request.request_id,
            request.ledger_id,
            request.entry_id,
            request.max_count,
            request.max_size,
            recovery=bool(request.flags & Flag.HIGH_PRIORITY),
        )
        assert built == golden.frame
        assert key == built[4:6] + b"\0\0" + struct.pack(">q", request.request_id)


def test_answers_to_batch_reads():
    entries = [bytes(range(i, i + 40)) for i in range(3)]
    frame = b"".join(v2.encode_batch_read_response(2, V2Code.EOK, 1, 0, 77, entries))
    answer = V2Dialect().decode(frame[4:])
    key, _ = V2Dialect().batch_read(77, 1, 0, 0, 100, recovery=False)
    assert (answer.key, answer.error, answer.detail.split()) == (key, None, entries)
    frame = b"".join(v2.encode_batch_read_response(2, V2Code.ENOENTRY, 1, 0, 77, []))
    assert V2Dialect().decode(frame[4:]).error is NoSuchEntry
    cut = b"".join(v2.encode_batch_read_response(2, V2Code.EOK, 1, 0, 77, entries))[4:-1]
    with pytest.raises(ProtocolViolation):
        V2Dialect().decode(cut).detail.split()


def test_authentication_of_version_2():
    tokens = [f for f in exchanged("request") if f.decoded.get("opcode") == "AUTH"]
    assert tokens
    for golden in tokens:
        message = v2.decode_request(golden.body).message
        key, frame = V2Dialect().auth(1, message)
        assert frame == golden.frame
        answer = V2Dialect().decode(v2.encode_auth(AuthMessage("TestAuth", b"token"))[4:])
        assert (answer.key, answer.detail) == (key, AuthMessage("TestAuth", b"token"))


@pytest.mark.parametrize(
    ("build", "operation"),
    [
        (lambda d: d.read_lac(1, 1), "READ_LAC"),
        (lambda d: d.write_lac(1, 1, KEY, 0, b"packet"), "WRITE_LAC"),
        (lambda d: d.force_ledger(1, 1), "FORCE_LEDGER"),
        (lambda d: d.long_poll(1, 1, -1, 0, 100, piggyback=True), "poll"),
        (lambda d: d.bookie_info(1), "GET_BOOKIE_INFO"),
        (lambda d: d.entries_of_ledger(1, 1), "GET_LIST_OF_ENTRIES_OF_LEDGER"),
    ],
)
def test_what_version_2_refuses(build, operation):
    with pytest.raises(BadVersion, match=f"version 2 .* {operation}: .*ClientOptions"):
        build(V2Dialect())


def test_background_adds_are_those_of_a_recovery_without_its_priority():
    entry = bytes(40)
    _, frame = V3Dialect().add_encoder(LedgerLife(7, 0), KEY, background=True)(1, 3, entry)
    request = v3.parse_request(frame[4:])
    assert (request.addRequest.flag, request.header.priority) == (pb.AddRequest.RECOVERY_ADD, 0)
    _, frame = V2Dialect().add_encoder(LedgerLife(7, 0), KEY, background=True)(1, 3, entry)
    assert v2.decode_request(frame[4:]).flags == Flag.RECOVERY_ADD
    _, frame = V2Dialect().add_encoder(LedgerLife(7, 0), KEY, recovery=True)(1, 3, entry)
    assert v2.decode_request(frame[4:]).flags == Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
