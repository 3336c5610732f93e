"""Mutated logs: readers end by themselves, within bounded memory, and with errors of the taxonomy only."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bookie_pod.storage.entry_log import EntryLogger
from bookie_pod.storage.entry_log.names import last_id_in_directory
from bookie_protocol.errors import EntryDamaged, StorageFault
from tests.support.entry_logs import FOLDER, entry, logger_with, open_logger
from tests.support.memory_files import MemoryFiles

LOG = f"{FOLDER}/0.log"


def _closed_log(direct: bool) -> tuple[bytes, dict[int, tuple[int, int]]]:
    files = MemoryFiles()
    logger = open_logger(files, direct_io_entry_logger=direct, direct_buffer_bytes=4096, log_size_limit_bytes=1 << 16)
    locations = {}
    for ledger_id in range(4):
        for first in (0, 5):
            entries = [entry(ledger_id, i, 40 + 60 * i) for i in range(first, first + 5)]
            placed = logger.append_run(ledger_id, range(first, first + 5), entries)
            locations.update({loc: (ledger_id, i) for loc, i in zip(placed, range(first, first + 5), strict=True)})
    logger.close()
    return files.read_bytes(LOG), locations


PLAIN, PLAIN_LOCATIONS = _closed_log(direct=False)
DIRECT, DIRECT_LOCATIONS = _closed_log(direct=True)

INTERESTING = st.sampled_from(
    [struct.pack(">i", n) for n in (0, -1, 1, 15, 16, 17, 2**31 - 1, -(2**31))]
    + [struct.pack(">q", n) for n in (-1, -2, 0, 2**63 - 1, -(2**63), 1024, 1 << 40)]
    + [b"\xf0" * 4, b"\xf0", bytes(64)]
)
MUTATION = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 1 << 16), INTERESTING | st.binary(min_size=1, max_size=24)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 16), st.just(b"")),
    st.tuples(st.just("insert"), st.integers(0, 1 << 16), st.binary(min_size=1, max_size=5000)),
    st.tuples(st.just("drop"), st.integers(0, 1 << 16), st.binary(min_size=1, max_size=400)),
)


def _mutate(data: bytes, mutations: list[tuple[str, int, bytes]]) -> bytes:
    for kind, where, piece in mutations:
        at = where % (len(data) + 1)
        if kind == "put":
            data = data[:at] + piece + data[at + len(piece) :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + piece + data[at:]
        else:
            data = data[:at] + data[at + len(piece) :]
    return data


def _exercise(data: bytes, locations: dict[int, tuple[int, int]]) -> None:
    logger = logger_with(data)
    try:
        scan = logger.scan(0)
        found = list(scan)
        assert 0 <= scan.end.position <= max(len(data), 1024)
        sizes = logger.scan_sizes(0)
        assert [(loc, ledger, i, len(body)) for loc, ledger, i, body in found] == list(sizes)
        assert sum(4 + len(body) for *_, body in found) <= len(data)
        for location, ledger_id, entry_id, body in found[:10]:
            assert logger.read(location, ledger_id, entry_id) == body
        total = logger.ledgers_map(0)
        assert sum(total.ledgers.values()) <= len(data)
        assert all(ledger >= 0 and nbytes > 0 for ledger, nbytes in total.ledgers.items())
        for location, (ledger_id, entry_id) in locations.items():
            _read(logger, location, ledger_id, entry_id)
    finally:
        logger.close()


def _read(logger: EntryLogger, location: int, ledger_id: int, entry_id: int) -> None:
    try:
        run = logger.read_run(location, ledger_id, entry_id, 20, 100_000)
    except (EntryDamaged, StorageFault):
        return
    assert run[0][0] == entry_id
    for (earlier, _, before), (later, _, behind) in pairwise(run):
        assert earlier < later, "ids ascend"
        assert before < behind, "and so do places"
    for found_id, body, place in run:
        assert struct.unpack_from(">qq", body) == (ledger_id, found_id)
        assert logger.read(place, ledger_id, found_id) == body


@settings(max_examples=300, deadline=None)
@given(st.lists(MUTATION, min_size=1, max_size=4))
def test_mutated_logs(mutations: list[tuple[str, int, bytes]]) -> None:
    _exercise(_mutate(PLAIN, mutations), PLAIN_LOCATIONS)


@settings(max_examples=200, deadline=None)
@given(st.lists(MUTATION, min_size=1, max_size=4))
def test_mutated_direct_logs(mutations: list[tuple[str, int, bytes]]) -> None:
    _exercise(_mutate(DIRECT, mutations), DIRECT_LOCATIONS)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=3000))
def test_arbitrary_bytes(data: bytes) -> None:
    _exercise(data, {})
    _exercise(PLAIN[:1024] + data, {})


@given(st.integers(-(2**63), 2**63 - 1), st.integers(), st.integers())
def test_arbitrary_locations(location: int, ledger_id: int, entry_id: int) -> None:
    logger = logger_with(PLAIN)
    _read(logger, location, ledger_id, entry_id)
    logger.close()


NAMES = st.one_of(
    st.from_regex(r"[0-9a-f]{1,9}\.log(\.[0-9a-f]{1,9}\.compacted)?", fullmatch=True), st.text(max_size=12)
)


@given(st.lists(NAMES, max_size=20), st.none() | st.text(max_size=12))
def test_arbitrary_directories(names: list[str], text: str | None) -> None:
    assert -1 <= last_id_in_directory(names, text) <= 0x7FFFFFFF
