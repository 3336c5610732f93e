"""Keys derived from the ledger password (reference wire protocol, sections 7.4 and 12)."""

from __future__ import annotations

import pytest

from bookie_protocol.keys import NO_KEY, is_unknown_key, mac_key, master_key, takes_the_place_of


def test_keys_of_the_worked_example():
    assert master_key(b"secret").hex() == "e793cbc379107648537183605cd361d3bb789a39"
    assert mac_key(b"secret").hex() == "190c685bae851574f5ab47c960a00c0466f96603"


def test_master_key_of_the_empty_password():
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


@pytest.mark.parametrize(
    ("key", "unknown"),
    [(b"", True), (bytes(20), True), (bytes(19) + b"\1", False), (master_key(b""), False)],
)
def test_a_key_without_a_set_bit_is_unknown(key, unknown):
    assert is_unknown_key(key) is unknown


@pytest.mark.parametrize(
    ("key", "stored", "takes"),
    [
        (master_key(b""), b"", True),
        (master_key(b""), NO_KEY, True),  # as it was stored while zeros were no key of their own
        (NO_KEY, b"", True),
        (b"\0", NO_KEY, False),
        (b"", NO_KEY, False),
        (b"", b"", False),
        (NO_KEY, master_key(b""), False),
        (master_key(b"a"), master_key(b""), False),
    ],
)
def test_which_key_counts_of_two_that_were_journaled(key, stored, takes):
    assert takes_the_place_of(key, stored) is takes
