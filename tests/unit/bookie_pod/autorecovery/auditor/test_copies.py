"""Counting copies against striping, entry by entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.autorecovery.auditor import copies
from bookie_pod.autorecovery.auditor.copies import NOTHING, Segment, Stored, count_copies
from bookie_protocol.ledger_metadata.model import holds_entry
from bookie_protocol.wire.availability import decode_availability, encode_availability


@st.composite
def segments(draw: st.DrawFn) -> tuple[Segment, int, dict[str, set[int] | None]]:
    size = draw(st.integers(1, 5))
    quorum = draw(st.integers(1, size))
    first = draw(st.integers(0, 50))
    last = first + draw(st.integers(0, 40))
    ensemble = [f"b{n}" for n in range(size)]
    ids = st.sets(st.integers(max(0, first - 5), last + 5))
    stored = {bookie: draw(st.none() | ids) for bookie in ensemble}
    return Segment(first, last, ensemble), quorum, stored


@given(segments(), st.sampled_from((3, 1 << 18)))
def test_against_a_count_of_single_entries(case, piece: int) -> None:
    segment, quorum, stored = case
    size = len(segment.ensemble)
    fewest = quorum
    missing: dict[str, set[int]] = {}
    for entry_id in range(segment.first, segment.last + 1):
        there = 0
        for position, bookie in enumerate(segment.ensemble):
            if not holds_entry(position, entry_id, size, quorum):
                continue
            held = stored[bookie]
            there += held is None or entry_id in held
            if held is not None and entry_id not in held:
                missing.setdefault(bookie, set()).add(entry_id)
        fewest = min(fewest, there)
    lists: dict[str, Stored] = {
        bookie: None if ids is None else decode_availability(encode_availability(sorted(ids)))
        for bookie, ids in stored.items()
    }
    whole, copies.PIECE = copies.PIECE, piece  # type: ignore[misc]
    try:
        pieces = list(count_copies(segment, quorum, lists))
    finally:
        copies.PIECE = whole  # type: ignore[misc]
    assert min(each.fewest for each in pieces) == fewest
    for bookie in segment.ensemble:
        assert sum(each.missing.get(bookie, 0) for each in pieces) == len(missing.get(bookie, ()))
        firsts = [each.first_missing[bookie] for each in pieces if bookie in each.first_missing]
        assert min(firsts, default=None) == min(missing.get(bookie, ()), default=None)


def test_a_long_segment_is_counted_in_pieces() -> None:
    segment = Segment(0, 3 * copies.PIECE, ("a", "b"))
    found = list(count_copies(segment, 2, {"a": NOTHING, "b": None}))
    assert len(found) == 4
    assert sum(each.missing["a"] for each in found) == 3 * copies.PIECE + 1
    assert {each.fewest for each in found} == {1}
