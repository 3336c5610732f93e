"""Which file system a URI means."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie_protocol.shown import one_line
from pyspark_bookie.archive.files import ArchiveUnavailable, Files, absolute_uri, file_system
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
    with pytest.raises(PodkeeperSparkError, match=f"--target {one_line(uri)}: "):
        file_system("--target", uri)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://KEY:S3/CRET@bucket",
        "s3://KEY:S3CRET@bucket:x",
        "s3://bucket?S3CRET=1",
        "nosuch://KEY:S3CRET@b",
        "s3://S3 C@",
    ],
)
def test_secrets_of_a_uri_that_is_refused_are_not_told(uri: str) -> None:
    """Neither by this error nor by another that a traceback would show."""
    with pytest.raises(PodkeeperSparkError, match=r"--target \w+://.*credentials") as caught:
        file_system("--target", uri)
    assert not any(secret in str(caught.value) for secret in ("KEY", "S3", "CRET"))
    assert caught.value.__cause__ is None


def test_secrets_of_a_uri_that_is_used_are_not_told() -> None:
    files = Files("s3://KEY:S3CRET@bucket/path?region=eu-west-1", "--target")
    assert files.shown("ledger-7.dump") == "s3://...@bucket/path/ledger-7.dump"
    assert "S3" not in str(files.failed("x", OSError("no")))


@pytest.mark.parametrize("name", ["100%25", "a#b", "what?", "a b", "{x}", "ü", "a@b:c"])
def test_a_folder_is_itself_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    uri = absolute_uri(f"{tmp_path}/{name}/")
    assert file_system("--target", uri) == file_system("--target", f"{tmp_path}/{name}")
    Files(uri, "--target").write("x", b"", "_tmp/x")
    assert (tmp_path / name / "x").exists()


def test_what_is_read_whole_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"manifest")
    files = Files(str(tmp_path), "--source")
    assert (files.read("x"), files.read("x", 8), files.read("x", 3)) == (b"manifest", b"manifest", b"man")


def test_the_root_of_a_machine_is_no_folder_of_ours() -> None:
    assert file_system("--source", absolute_uri("/"))[1] == "/"
    assert file_system("--source", absolute_uri("file:///"))[1] == "/"


def test_below_a_file_nothing_can_be(tmp_path: Path) -> None:
    """So that is not where nothing is yet."""
    (tmp_path / "file").touch()
    files = Files(str(tmp_path), "--target")
    asked: list[Callable[[], object]] = [
        lambda: list(files.list("file/below")),
        lambda: files.size("file/below/it"),
        lambda: Files(f"{tmp_path}/file/below", "--target").check_there(),
    ]
    for ask in asked:
        with pytest.raises(ArchiveUnavailable, match=r"--target: .*/file/below.* Not a"):
            ask()


def test_a_name_that_is_no_text_keeps_no_other_file_from_being_found(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff")).touch()
    (tmp_path / "ledger-7.dump").touch()
    assert [each.path for each in Files(str(tmp_path), "--source").list("")] == ["ledger-7.dump"]
