"""Packed sizes per ledger: they behave like the dict that they replace, in a tenth of its memory."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.entry_log import format as fmt
from bookie_pod.storage.entry_log import ledger_sizes
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizesBuilder
from bookie_pod.storage.entry_log.ledgers_map import read_ledgers_map
from tests.support.memory_files import MemoryFiles

_IDS = st.integers(min_value=0, max_value=2**63 - 1)


@given(st.lists(st.tuples(_IDS, st.integers(1, 2**40)), max_size=60))
def test_sums_per_ledger(pairs: list[tuple[int, int]]) -> None:
    expected: Counter[int] = Counter()
    builder = LedgerSizesBuilder()
    for ledger_id, nbytes in pairs:
        expected[ledger_id] += nbytes
        builder.add(ledger_id, nbytes)
    sizes = builder.build()
    assert sizes == expected
    assert list(sizes.pairs()) == sorted(expected.items())
    assert sizes.total == sum(expected.values())
    assert all(ledger_id not in sizes or ledger_id in expected for ledger_id in (0, 1, 2**63 - 1))


def test_a_million_ledgers_take_16_megabytes() -> None:
    builder = LedgerSizesBuilder()
    ids = np.arange(1_000_000, dtype=np.int64)
    builder.add_array(np.stack([ids, ids + 1], axis=1))
    sizes = builder.build()
    assert len(sizes) == 1_000_000
    assert sizes[999_999] == 1_000_000
    assert sizes.nbytes == 16_000_000


def test_ledgers_that_come_again_and_again_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a log of many flushes: what waits to be added up does not grow with the entries."""
    monkeypatch.setattr(ledger_sizes, "CHUNK", 64)
    builder = LedgerSizesBuilder()
    most = 0
    for _ in range(20):
        for ledger_id in range(1000):
            builder.add(ledger_id, ledger_id + 1)
            most = max(most, sum(map(len, builder._packed)))
    assert most <= 1000 * 5 // 4 + 5 * 64
    assert builder.build() == {ledger_id: 20 * (ledger_id + 1) for ledger_id in range(1000)}


@given(st.dictionaries(_IDS, st.integers(20, 2**14), min_size=1, max_size=50))
def test_map_round_trip(ledgers: dict[int, int]) -> None:
    files = MemoryFiles()
    files.makedirs("/d")
    file = files.create("/d/0.log")
    offset = fmt.HEADER_SIZE + sum(ledgers.values())
    header = fmt.HEADER.pack(fmt.MAGIC, fmt.VERSION, offset, len(ledgers))
    file.pwrite(header.ljust(fmt.HEADER_SIZE, b"\0"), 0)
    file.pwrite(b"".join(fmt.encode_ledgers_map(ledgers)), offset)
    assert read_ledgers_map(file) == (ledgers, False)
