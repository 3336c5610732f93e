"""The `DIRTY` marker."""

from __future__ import annotations

from bookie_pod.node.dirty import DirtyMarker
from tests.support.memory_files import MemoryFiles

FOLDERS = ["/a/current", "/b/current"]


def test_written_and_removed_everywhere() -> None:
    files = MemoryFiles()
    for folder in FOLDERS:
        files.makedirs(folder)
    marker = DirtyMarker(files, FOLDERS)
    assert not marker.is_set()
    marker.write()
    assert [files.read_bytes(f"{folder}/DIRTY") for folder in FOLDERS] == [b"", b""]
    assert DirtyMarker(files, FOLDERS).is_set()
    files.unlink("/a/current/DIRTY")
    assert marker.is_set()  # one is enough
    marker.remove()
    assert not marker.is_set()
    marker.remove()


def test_a_disk_that_takes_no_marker_does_not_matter() -> None:
    files = MemoryFiles()
    for folder in FOLDERS:
        files.makedirs(folder)
    files.faults.read_only("/a/")
    marker = DirtyMarker(files, FOLDERS)
    marker.write()
    assert marker.is_set()
    marker.remove()
    assert not marker.is_set()
