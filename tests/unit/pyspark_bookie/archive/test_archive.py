"""Archives: what is counted, written, told and read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import EntryDamaged, MetadataDamaged
from pyspark_bookie.archive.checksum import Counter
from pyspark_bookie.archive.files import ArchivedFileMissing, Files, absolute_uri
from pyspark_bookie.archive.instance import claim, other_owner
from pyspark_bookie.archive.manifest import (
    LedgerShape,
    Manifest,
    data_file,
    data_folder,
    manifest_file,
    parse_data_file,
    parse_manifest_file,
)
from pyspark_bookie.archive.reading import archived_ledgers, count_files, read_manifest, read_payloads
from pyspark_bookie.archive.writing import write_ledger
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.throttle import Throttle

UUID = "0123456789abcdef" * 2
SHAPE = LedgerShape(3, 2, 2, DigestType.CRC32C, None, {"application": b"\0\xff"})
FREE = Throttle(None)

STRANGE = [b"1e400", b"-1", b"NaN", b"null", b"9" * 19, b"9" * 5000, b"[]"]
"""What is no number of entries."""


def entries(payloads: list[bytes]) -> list[LedgerEntry]:
    return [LedgerEntry(7, entry_id, 0, payload) for entry_id, payload in enumerate(payloads)]


@given(st.lists(st.binary(max_size=30)), st.integers(0, 5))
def test_counts_of_files_are_those_of_the_ledger(payloads: list[bytes], skipped: int) -> None:
    there, read = Counter(), Counter()
    there.add(payloads)
    ids = pa.array(range(-skipped, len(payloads)), pa.int64())[skipped:]
    values = pa.array([b"before"] * skipped + payloads, pa.binary())[skipped:]
    read.add_arrow(0, ids, values)
    assert read.counts() == there.counts()
    assert read.counts().nbytes == sum(map(len, payloads))


@given(st.lists(st.binary(max_size=5), min_size=1), st.data())
def test_counts_tell_order_borders_and_content(payloads: list[bytes], data: st.DataObject) -> None:
    other = data.draw(st.one_of(st.permutations(payloads), st.lists(st.binary(max_size=5))))
    one, two = Counter(), Counter()
    one.add(payloads)
    two.add(other)
    assert (one.counts() == two.counts()) is (payloads == other)


def test_entries_in_the_wrong_place_are_damage() -> None:
    for ids in ([0, 2], [1, 0], [0, None]):
        with pytest.raises(EntryDamaged):
            Counter().add_arrow(0, pa.array(ids, pa.int64()), pa.array([b"a", b"b"], pa.binary()))
    with pytest.raises(EntryDamaged):
        Counter().add_arrow(0, pa.array([0], pa.int64()), pa.array([None], pa.binary()))


def test_files_are_sorted_compressed_and_read_back(tmp_path: Path) -> None:
    files = Files(str(tmp_path), "--target")
    payloads = [b"%d" % number for number in range(1000)]
    written = write_ledger(files, "data", 7, UUID, [entries(payloads)], 1 << 30, FREE)
    [file] = written.files
    parts = [type(file)(f"data/{file.path}", file.nbytes, file.first_entry, file.entries)]
    assert count_files(files, 7, parts, FREE) == written.counts
    assert [payload for batch in read_payloads(files, 7, parts, FREE) for payload in batch] == payloads
    group = pq.read_metadata(tmp_path / "data" / file.path).row_group(0)
    assert group.column(3).compression == "ZSTD"
    assert [column.column_index for column in group.sorting_columns] == [0, 1]
    with pytest.raises(EntryDamaged, match="than 8"):
        count_files(files, 8, parts, FREE)


def test_manifests_survive_their_bytes_and_damage_is_told(tmp_path: Path) -> None:
    counter = Counter()
    counter.add([b"x", b""])
    manifest = Manifest(7, UUID, "instance", counter.counts(), (), SHAPE)
    data = manifest.encode()
    assert Manifest.decode(data, "m") == manifest
    assert b"password" not in data
    strange = {b'"version": 1': [b'"version": 2'], b'"entries": 2': [b'"entries": %s' % each for each in STRANGE]}
    bad_ones = [data.replace(was, each) for was, others in strange.items() for each in others]
    assert data not in bad_ones
    for bad in (b"", b"{}", data[:-9], b"[" * 100_000, *bad_ones):
        with pytest.raises(MetadataDamaged, match="manifest"):
            Manifest.decode(bad, "m")
    files = Files(str(tmp_path), "--target")
    assert read_manifest(files, 7, UUID) is None
    files.write(f"_manifests/ledger-7-{UUID}.json", data, "_tmp/x/manifest.json")
    files.write("_manifests/ledger-8.json", data, "_tmp/x/manifest.json")
    assert read_manifest(files, 7, UUID) == manifest
    with pytest.raises(MetadataDamaged, match="of ledger 7"):
        read_manifest(files, 8, UUID)
    assert archived_ledgers(files) == {7: [UUID], 8: [None]}


@pytest.mark.parametrize("created_ms", [-1, -(2**63), 0, 2**63 - 1])
def test_when_a_ledger_was_created_may_be_any_number_of_its_metadata(created_ms: int) -> None:
    """The ledger says so itself, and nothing is lost of it for that."""
    shape = replace(SHAPE, created_ms=created_ms)
    manifest = Manifest(7, UUID, None, Counter().counts(), (), shape)
    assert Manifest.decode(manifest.encode(), "m") == manifest
    with pytest.raises(MetadataDamaged):
        Manifest.decode(manifest.encode().replace(b'"created_ms": ', b'"created_ms": 1' + b"0" * 19), "m")


@pytest.mark.parametrize("size", ["ensemble_size", "write_quorum_size", "ack_quorum_size"])
def test_no_ledger_has_more_bookies_than_its_metadata_can_say(size: str) -> None:
    """One that says so would end the job that looks at it beside others."""
    for number in (2**31 - 1, 2**31):
        encoded = Manifest(7, UUID, None, Counter().counts(), (), replace(SHAPE, **{size: number})).encode()
        if number < 2**31:
            assert getattr(Manifest.decode(encoded, "m").shape, size) == number
        else:
            with pytest.raises(MetadataDamaged, match="0 and 2147483647"):
                Manifest.decode(encoded, "m")


def test_a_manifest_of_an_older_version_is_that_of_its_attempt_alone(tmp_path: Path) -> None:
    manifest = Manifest(7, UUID, None, Counter().counts(), (), SHAPE)
    files = Files(str(tmp_path), "--target")
    files.write("_manifests/ledger-7.json", manifest.encode(), "_tmp/x/manifest.json")
    assert read_manifest(files, 7, UUID) == manifest
    assert read_manifest(files, 7, "f" * 32) is None


def test_an_archive_is_one_clusters(tmp_path: Path) -> None:
    files = Files(str(tmp_path), "--target")
    assert other_owner(files, "a") is None
    assert claim(files, "a") is None
    assert claim(files, "a") is None
    assert (claim(files, "b"), other_owner(files, "b")) == ("a", "a")
    assert claim(files, "a") is None, "whoever was refused leaves nothing"


def test_of_two_clusters_that_claim_an_archive_at_once_at_most_one_has_it(tmp_path: Path) -> None:
    files = Files(str(tmp_path), "--target")
    write = files.write

    def another_claims(path: str, content: bytes, temporary: str) -> None:
        files.write = write  # type: ignore[method-assign]
        assert claim(files, "b") is None
        write(path, content, temporary)

    files.write = another_claims  # type: ignore[method-assign]
    assert claim(files, "a") == "b"
    assert claim(files, "b") is None


def test_an_archive_of_an_older_version_is_that_of_its_manifests_cluster(tmp_path: Path) -> None:
    files = Files(str(tmp_path), "--target")
    for ledger_id, instance in ((7, None), (8, "a")):
        manifest = Manifest(ledger_id, UUID, instance, Counter().counts(), (), SHAPE)
        files.write(f"_manifests/ledger-{ledger_id}.json", manifest.encode(), "_tmp/x/manifest.json")
    assert (claim(files, "b"), claim(files, "a")) == ("a", None)


def test_names() -> None:
    assert parse_data_file(data_file(7, UUID, 3)) == (7, UUID)
    assert parse_data_file("ledger-7.parquet") is None
    for other in ("07", "\u0667", f"{2**63}", "1" * 5000, ""):
        assert parse_data_file(f"ledger-{other}-{UUID}-0.parquet") is None
        assert parse_manifest_file(f"ledger-{other}.json") is None
    assert parse_manifest_file(f"ledger-{2**63 - 1}.json") == (2**63 - 1, None)
    assert data_folder("date", 2**63 - 1, None) == "data/date=__HIVE_DEFAULT_PARTITION__"
    assert (parse_manifest_file("ledger-7.json"), parse_manifest_file("x.json")) == ((7, None), None)
    assert parse_manifest_file(manifest_file(7, UUID).rpartition("/")[2]) == (7, UUID)
    assert data_folder("date", 1_700_000_000_000, None) == "data/date=2023-11-14"
    assert data_folder("date", None, None) == "data/date=__HIVE_DEFAULT_PARTITION__"
    assert data_folder("stream", None, "a/b") == "data/stream=a%2Fb"
    assert data_folder("none", 0, "x") == "data"


def test_uris() -> None:
    assert absolute_uri("/a/b/") == "file:///a/b"
    assert absolute_uri("s3://bucket/x/") == "s3://bucket/x"
    with pytest.raises(PodkeeperSparkError, match="nosuch://x"):
        Files("nosuch://x", "--target")


def test_a_login_that_is_part_of_a_buckets_name_is_told_before_a_store_says_it() -> None:
    told = r"--target s3://\.\.\.@bucket/p\?\.\.\."
    with pytest.raises(PodkeeperSparkError, match=told) as caught:
        Files("s3://KEY%3AS3CRET%40bucket/p?region=x", "--target")
    assert "S3CRET" not in str(caught.value)


def test_a_folder_on_a_file_system(tmp_path: Path) -> None:
    files = Files(f"file://{tmp_path}", "--target")
    assert files.size("a") is None
    assert list(files.list("a")) == []
    files.delete("a")
    files.delete_folder("a")
    files.write("a/b", b"old", "_tmp/b")
    files.write("a/b", b"new", "_tmp/b")
    assert (files.read("a/b"), files.size("a/b")) == (b"new", 3)
    assert [listed.path for listed in files.list("")] == ["a/b"]
    with pytest.raises(ArchivedFileMissing, match=r"--target: .*/a/c is"):
        files.read("a/c")
