"""Archives that only their owner may read: whole or not at all, and bounded."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pytest

from bookie_protocol.private_archive import PrivateArchive


def test_archive_is_private_and_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with PrivateArchive(str(path), "top") as archive:
        archive.add("x/y.txt", "text")
        (unfinished,) = tmp_path.iterdir()
        assert unfinished != path
        assert stat.S_IMODE(unfinished.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["a.tar.gz"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as read:
        assert [(each.name, each.mode) for each in read.getmembers()] == [("top/x/y.txt", 0o600)]


def test_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    os.symlink(tmp_path / "victim", tmp_path / "a.tar.gz")
    with PrivateArchive(str(tmp_path / "a.tar.gz"), "top") as archive:
        archive.add("x", "text")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "a.tar.gz").is_symlink()


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), PrivateArchive(str(tmp_path / "a.tar.gz"), "top") as archive:
        archive.add("x", str(1 // 0))
    assert list(tmp_path.iterdir()) == []


def test_all_texts_together_are_bounded(tmp_path: Path) -> None:
    with PrivateArchive(str(tmp_path / "a.tar.gz"), "top", most_bytes=10) as archive:
        for name, text in (("a", "123456"), ("b", "abcdefgh"), ("c", "more")):
            archive.add(name, text)
        assert [line.partition(":")[0] for line in archive.cut] == ["b", "c"]
    with tarfile.open(tmp_path / "a.tar.gz") as read:
        contents = [read.extractfile(each).read() for each in read.getmembers()]  # type: ignore[union-attr]
    assert contents == [b"123456", b"efgh", b""]
