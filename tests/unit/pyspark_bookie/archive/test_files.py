"""Which file system a URI means."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_bookie.archive.files import file_system
from pyspark_bookie.common.errors import PodkeeperSparkError


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_buckets_in_the_ways_in_which_they_are_written(scheme: str) -> None:
    found, path = file_system("--target", f"{scheme}://bucket/s3a://events/?region=eu-west-1")
    assert (found.type_name, path) == ("s3", "bucket/s3a://events")


def test_folders(tmp_path: Path) -> None:
    for uri in (str(tmp_path), f"file://{tmp_path}", f"file://{tmp_path}/"):
        found, path = file_system("--target", uri)
        assert (found.type_name, path) == ("local", str(tmp_path))


def test_what_is_none() -> None:
    with pytest.raises(PodkeeperSparkError, match="--target nosuch://x: "):
        file_system("--target", "nosuch://x")
