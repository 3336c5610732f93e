"""A bookie is killed while the stock client writes; after its restart every acknowledged entry is read back."""

from __future__ import annotations

import pytest

from tests.interop.acknowledged import _ACKNOWLEDGED_BYTES, read_back, write_until


@pytest.mark.parametrize("protocol", ["V2", "V3"])
def test_killed_while_writing(class_path, solo, bookie_kind, tmp_path, protocol):
    bookie = solo.bookie(bookie_kind, {"flushInterval": "500"})
    try:
        bookie.start()
        acks = tmp_path / "acks"
        write_until(class_path, solo, acks, protocol, bookie.kill)
        bookie.start()
        count = read_back(class_path, solo, acks, protocol, bookie_kind)
        assert count * 12 >= _ACKNOWLEDGED_BYTES / 2
    finally:
        solo.discard(bookie)


def test_killed_again_during_replay(class_path, solo, bookie_kind, tmp_path):
    """Two crashes in a row, the second before a checkpoint: replay is idempotent."""
    bookie = solo.bookie(bookie_kind, {"flushInterval": "60000"})
    try:
        bookie.start()
        acks = tmp_path / "acks"
        write_until(class_path, solo, acks, "V2", bookie.kill)
        bookie.start()
        bookie.kill()
        bookie.start()
        read_back(class_path, solo, acks, "V3", bookie_kind)
        bookie.stop()
        bookie.start()
        read_back(class_path, solo, acks, "V2", bookie_kind)
    finally:
        solo.discard(bookie)
