"""Sets of ledger ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_bookie.common.ledger_ids import LedgerIds


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=8))
def test_what_was_written_is_in_it_and_nothing_else(spans: list[tuple[int, int]]) -> None:
    ids = LedgerIds.parse(",".join(f"{first}-{first + more}" for first, more in spans))
    wanted = {each for first, more in spans for each in range(first, first + more + 1)}
    assert {each for each in range(-1, 60) if each in ids} == wanted


def test_asking_does_not_go_through_all_of_them() -> None:
    class Counted(tuple[tuple[int, int], ...]):
        looked = 0

        def __getitem__(self, place: object) -> object:  # type: ignore[override]
            Counted.looked += 1
            return super().__getitem__(place)  # type: ignore[index]

        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("all of them are looked at")

    ids = LedgerIds(Counted((each, each) for each in range(0, 10_000, 2)))
    assert 4_000 in ids
    assert 4_001 not in ids
    assert Counted.looked < 100
