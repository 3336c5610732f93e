"""Damage done to good bytes, for the fuzz ring."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with up to three changes: a byte replaced, a bit flipped, bytes inserted, taken out, or cut off."""
    out = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        if not out:
            break
        at = draw(st.integers(0, min(len(out) - 1, 70)))
        kind = draw(st.sampled_from(["replace", "flip", "insert", "delete", "cut"]))
        if kind == "replace":
            out[at] = draw(st.integers(0, 255))
        elif kind == "flip":
            out[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "insert":
            out[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif kind == "delete":
            del out[at : at + draw(st.integers(1, 4))]
        else:
            del out[at:]
    return bytes(out)
