"""Many adds at once: encoded together, and their answers taken together, exactly as one by one."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.dialect_v3 import MIN_COLUMNS, V3Dialect, run_of_any_shape, run_of_one_shape
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import V2Code, V3Status
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire import v2, v3_encode
from bookie_protocol.wire.framing import LENGTH, LENGTH_SIZE
from bookie_protocol.wire.v2 import CURRENT_VERSION, OpCode
from tests.support.frames import add_response, raw_ids

KEY = bytes(range(20))
BIG = st.sampled_from([0, 1, 127, 128, 2**14 - 1, 2**14, 2**28 - 1, 2**28, 2**35, 2**62])


@pytest.mark.parametrize("digest", list(DigestType))
@pytest.mark.parametrize("dialect", [V2Dialect(), V3Dialect()])
@given(
    recovery=st.booleans(),
    ledger_id=BIG,
    first=BIG,
    txn_id=BIG,
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
)
def test_adds_that_are_encoded_together_are_the_bytes_of_single_ones(
    dialect, digest, recovery, ledger_id, first, txn_id, sizes
):
    manager = digest_manager(digest, b"password")
    encoder = dialect.add_encoder(LedgerLife(ledger_id, 0), KEY, recovery=recovery)
    adds = []
    for number, size in enumerate(sizes):
        add = PendingAdd(first + number, size, ("a",))
        add.body = bytes([number]) * size
        adds.append(add)
    encoder.make_heads(adds, 5, manager, count(txn_id))
    alone = dialect.add_encoder(LedgerLife(ledger_id, 0), KEY, recovery=recovery)
    for number, add in enumerate(adds):
        entry = manager.encode(ledger_id, add.entry_id, 5, add.length, add.body)
        assert (add.key, add.head + add.body + encoder.tail) == alone(txn_id + number, add.entry_id, entry)


def added(dialect, txn_id, ledger_id, entry_id):
    if dialect.version == 2:
        return v2.encode_response(CURRENT_VERSION, OpCode.ADDENTRY, V2Code.EOK, ledger_id, entry_id)
    return add_response(*raw_ids(txn_id, ledger_id, entry_id))


def something_else(dialect):
    if dialect.version == 2:
        return v2.encode_response(CURRENT_VERSION, OpCode.ADDENTRY, V2Code.EFENCED, 7, 3)
    return v3_encode.read_error(*raw_ids(1, 7, 3), V3Status.ENOENTRY)


def one_by_one(dialect, data):
    """The keys of the answers with which `data` begins, by looking at each frame."""
    keys, position = [], 0
    while len(data) - position >= LENGTH_SIZE:
        (length,) = LENGTH.unpack_from(data, position)
        end = position + LENGTH_SIZE + length
        if end > len(data):
            break
        key = dialect.acknowledged(data, position + LENGTH_SIZE, end)
        if key is None:
            break
        keys.append(key)
        position = end
    return keys, position


@pytest.mark.parametrize("dialect", [V2Dialect(), V3Dialect()])
@given(st.lists(st.tuples(BIG, BIG, BIG), max_size=8), st.integers(0, 60), st.booleans(), st.booleans())
def test_a_run_of_acknowledgements_is_what_its_frames_are(dialect, ids, cut, other_first, other_last):
    """Whatever stands around it: a frame that is cut off, an answer of another kind."""
    other = something_else(dialect)
    frames = [added(dialect, *each) for each in ids]
    data = b"".join([other] * other_first + frames + [other] * other_last)
    data = data[: len(data) - cut] if cut < len(data) else data
    keys, taken = one_by_one(dialect, data)
    run = dialect.acknowledged_run(data)
    if run is None:
        return  # always right: each frame is looked at then
    assert (list(run[0]), run[1]) == (keys, taken)
    assert not other_first


def check_one_shape(data):
    """What is found at once is what looking at each frame finds. Returns how many answers that are."""
    keys, taken = run_of_one_shape(data) or ([], 0)
    assert (list(keys), taken) == one_by_one(V3Dialect(), data[:taken])
    return len(keys)


@given(BIG, BIG, BIG, st.integers(MIN_COLUMNS - 1, 3 * MIN_COLUMNS), st.integers(0, 10**6), st.integers(0, 255))
def test_in_a_long_run_no_frame_is_taken_for_what_it_is_not(txn_id, ledger_id, entry_id, many, at, byte):
    """One byte of it differs, in any frame at any place."""
    data = b"".join(added(V3Dialect(), txn_id + number, ledger_id, entry_id + number) for number in range(many))
    at %= len(data)
    check_one_shape(data[:at] + bytes([byte]) + data[at + 1 :])


@pytest.mark.parametrize("many", [MIN_COLUMNS, 100])
def test_a_byte_that_differs_in_the_last_frame_is_seen(many):
    frames = [added(V3Dialect(), 200 + number, 7, 300 + number) for number in range(many)]
    data = b"".join(frames)
    assert check_one_shape(data) == many
    for at in range(len(data) - len(frames[-1]), len(data)):
        check_one_shape(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert check_one_shape(data[:at]) in {0, many - 1}


@pytest.mark.parametrize("many", [MIN_COLUMNS, 100])
def test_both_ways_of_looking_find_the_same(many):
    data = b"".join(added(V3Dialect(), 200 + number, 7, 300 + number) for number in range(many + 1))[:-1]
    keys, taken = run_of_any_shape(data)
    assert len(keys) == many
    assert run_of_one_shape(data) == (list(keys), taken)


@pytest.mark.parametrize("dialect", [V2Dialect(), V3Dialect()])
def test_a_run_is_recognised(dialect):
    frames = [added(dialect, 200 + number, 7, number) for number in range(100)]
    data = b"".join(frames)
    keys, taken = dialect.acknowledged_run(data)
    assert (list(keys), taken) == one_by_one(dialect, data)
    assert taken == len(data)
    keys, taken = dialect.acknowledged_run(data + frames[0][:-1])
    assert (len(keys), taken) == (100, len(data))


@pytest.mark.parametrize("dialect", [V2Dialect(), V3Dialect()])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_length_word_that_does_not_fit_is_no_run(dialect, wrong):
    frame = bytearray(added(dialect, 200, 7, 3))
    frame[3] += wrong
    assert dialect.acknowledged_run(bytes(frame) * 3) is None


@pytest.mark.parametrize("dialect", [V2Dialect(), V3Dialect()])
def test_acknowledgements_inside_another_answer_are_no_run(dialect):
    inside = b"".join(added(dialect, 200 + number, 7, number) for number in range(3))
    assert dialect.acknowledged_run(LENGTH.pack(len(inside) + 1) + b"\x00" + inside) is None
    assert dialect.acknowledged_run(b"") is None
