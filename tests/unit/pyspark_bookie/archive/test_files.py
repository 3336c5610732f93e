"""Which file system a URI means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyspark_bookie.archive.files import Files, file_system
from pyspark_bookie.common.errors import PodkeeperSparkError


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_buckets_in_the_ways_in_which_they_are_written(scheme: str) -> None:
    found, path = file_system("--target", f"{scheme}://bucket/s3a://events/?region=eu-west-1")
    assert (found.type_name, path) == ("s3", "bucket/s3a://events")


def test_folders(tmp_path: Path) -> None:
    for uri in (str(tmp_path), f"file://{tmp_path}", f"file://{tmp_path}/"):
        found, path = file_system("--target", uri)
        assert (found.type_name, path) == ("local", str(tmp_path))


@pytest.mark.parametrize("uri", ["nosuch://x", "", "\udcff", "file:///\udcff", "file:///%ff"])
def test_what_is_none(uri: str) -> None:
    with pytest.raises(PodkeeperSparkError, match=f"--target {uri}: "):
        file_system("--target", uri)


def test_a_name_that_is_no_text_keeps_no_other_file_from_being_found(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff")).touch()
    (tmp_path / "ledger-7.dump").touch()
    assert [each.path for each in Files(str(tmp_path), "--source").list("")] == ["ledger-7.dump"]
