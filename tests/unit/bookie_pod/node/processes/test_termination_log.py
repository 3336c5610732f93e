"""The file in which Kubernetes looks for a reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bookie_pod.node.processes.until_signal import MAX_BYTES, tell_kubernetes


def test_the_line_replaces_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("an old reason that is much longer than the new one")
    tell_kubernetes("disk gone", str(file))
    assert file.read_text() == "disk gone\n"


def test_nothing_is_created(tmp_path: Path) -> None:
    tell_kubernetes("disk gone", str(tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []


def test_it_is_short(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    tell_kubernetes("x" * 10_000, str(file))
    assert file.stat().st_size == MAX_BYTES


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    other.write_text("kept")
    match kind:
        case "link":
            path.symlink_to(other)
        case "directory":
            path.mkdir()
        case _:
            os.mkfifo(path)
    tell_kubernetes("disk gone", str(path))
    assert other.read_text() == "kept"
