"""Ten minutes of mixed load on a bookie with auto-recovery and the gateway: nothing that it holds goes on growing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_minutes_of_mixed_load(tmp_path: Path) -> None:
    assert run(10, 64, tmp_path, tmp_path / "soak.png")
