"""A campaign holds what it has to, for a round always and for ten minutes in the long ring; and it finds what is
planted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.planting.defects import DEFECTS

ROOT = Path(__file__).parents[2]


def campaign(tmp_path: Path, *arguments: object, seconds: float) -> subprocess.CompletedProcess[str]:
    """A process of its own: its clients have an event loop, and defects are planted into its modules."""
    command = [sys.executable, "-m", "tests.campaign", "--folder", str(tmp_path / "campaign"), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.timeout(600)
def test_a_round(tmp_path: Path) -> None:
    """One without faults, and one with a dozen: of disks, power, network, clients and metadata service."""
    done = campaign(tmp_path, "--seed", 18, "--minutes", 0, seconds=550)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "breaches: 0" in done.stdout
    assert re.search(r"\b2  rounds$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_ten_minutes(tmp_path: Path) -> None:
    done = campaign(tmp_path, "--seed", 12, "--minutes", 10, seconds=1_400)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_a_planted_defect_is_found(tmp_path: Path, defect: str) -> None:
    """Within so many runs as docs/reliability.md says."""
    for seed in (1, 2, 3):
        done = campaign(tmp_path / str(seed), "--seed", seed, "--minutes", 5, "--planted", defect, seconds=700)
        if done.returncode == 1:
            assert "BREACH" in done.stdout
            return
    pytest.fail(f"{defect} was not found in three runs")
