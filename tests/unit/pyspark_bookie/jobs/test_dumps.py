"""Dumps: what was written is read; whatever is changed in one is found."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.digest import DigestType
from bookie_protocol.errors import EntryDamaged, NoSuchLedger, Refused
from bookie_protocol.wire.framing import LEAST_RECEIVED_FRAME_SIZE
from pyspark_bookie.archive.files import ArchiveUnavailable, Files
from pyspark_bookie.archive.manifest import LedgerShape
from pyspark_bookie.jobs.transfer.dumps import SUFFIXES, DumpHeader, Dumps, read_header, read_payloads, write_dump
from tests.support.unsteady_store import RESET, UnsteadyStore, goes

SHAPE = LedgerShape(3, 2, 2, DigestType.MAC, 1_700_000_000_000, {"application": b"\0\xff", "x": b""})
PAYLOADS = [b"first", b"", b"x" * 1000, b""]


def header(payloads: list[bytes]) -> DumpHeader:
    return DumpHeader(7, len(payloads), sum(map(len, payloads)), SHAPE)


def read_all(data: bytes) -> tuple[DumpHeader, list[bytes]]:
    stream = io.BytesIO(data)
    found = read_header(stream, "dump")
    return found, [payload for batch in read_payloads(stream, found, "dump") for payload in batch]


@given(st.lists(st.lists(st.binary(max_size=50), max_size=5), max_size=10))
def test_what_was_written_is_read(batches: list[list[bytes]]) -> None:
    payloads = [payload for batch in batches for payload in batch]
    stream = io.BytesIO()
    write_dump(stream, header(payloads), batches)
    assert read_all(stream.getvalue()) == (header(payloads), payloads)


def test_every_cut_and_every_flipped_byte_is_found() -> None:
    stream = io.BytesIO()
    write_dump(stream, header(PAYLOADS), [PAYLOADS])
    data = stream.getvalue()
    for end in range(len(data)):
        with pytest.raises(EntryDamaged):
            read_all(data[:end])
    with pytest.raises(EntryDamaged):
        read_all(data + b"x")
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x01
        with pytest.raises(EntryDamaged):
            read_all(bytes(changed))


def test_an_entry_is_no_longer_than_any_is() -> None:
    """Whatever length a dump claims, no more memory is taken."""
    asked: list[int] = []

    class Noting(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().read(size)

    for claimed, said in (
        (LEAST_RECEIVED_FRAME_SIZE, "middle"),
        (LEAST_RECEIVED_FRAME_SIZE + 1, "entry 0 claims"),
        (2**32 - 1, r"client\.maxFrameSize"),
    ):
        text = json.dumps({"ledger_id": 7, "entries": 1, "bytes": 2**40, "ledger": SHAPE.as_json()}).encode()
        start = struct.pack(">8sHII", b"PKLEDGER", 1, len(text), google_crc32c.value(text)) + text
        stream = Noting(start + struct.pack(">qII", 0, claimed, 0))
        with pytest.raises(EntryDamaged, match=f"x.* {said}"):
            list(read_payloads(stream, read_header(stream, "x"), "x"))
    assert max(asked) == LEAST_RECEIVED_FRAME_SIZE


def test_a_source_that_gives_less_or_more_is_told() -> None:
    for batches in ([PAYLOADS[:-1]], [[*PAYLOADS, b""]]):
        with pytest.raises(EntryDamaged, match="ledger 7 gave"):
            write_dump(io.BytesIO(), header(PAYLOADS), batches)


@pytest.mark.parametrize("compression", sorted(SUFFIXES))
def test_dumps_in_a_folder(tmp_path: Path, compression: str) -> None:
    dumps = Dumps(Files(f"file://{tmp_path}/dumps", "--target"))
    assert dumps.names() == {}
    assert dumps.find(7) is None
    counts, size = dumps.write(header(PAYLOADS), [PAYLOADS[:2], PAYLOADS[2:]], compression)
    name = f"ledger-7.dump{SUFFIXES[compression]}"
    assert (counts.entries, size) == (4, (tmp_path / "dumps" / name).stat().st_size)
    assert dumps.names() == {7: [name]}
    assert dumps.find(7) == name
    assert dumps.header(name) == header(PAYLOADS)
    assert [payload for batch in dumps.payloads(name) for payload in batch] == PAYLOADS
    path = tmp_path / "dumps" / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(EntryDamaged, match="ledger-7"):
        dumps.count(name)
    with pytest.raises(NoSuchLedger):
        dumps.header("ledger-8.dump")


@pytest.mark.parametrize("compression", sorted(SUFFIXES))
@pytest.mark.parametrize("closes", [False, True], ids=["stays open", "closes"])
@pytest.mark.parametrize("failing", ["open", "read"])
def test_a_store_that_does_not_answer_is_no_damage(
    tmp_path: Path, failing: str, closes: bool, compression: str
) -> None:
    """And no file stays open."""
    files = Files(f"file://{tmp_path}", "--target")
    dumps = Dumps(files)
    dumps.write(header(PAYLOADS), [PAYLOADS], compression)
    name = f"ledger-7.dump{SUFFIXES[compression]}"
    path = tmp_path / name
    store = UnsteadyStore(lambda _: False, failing)
    files.system = pafs.PyFileSystem(store)
    assert dumps.count(name) == len(PAYLOADS)
    for error in (RESET, pa.ArrowInvalid("google::cloud::Status: 400"), ValueError("closed file")):
        for broken in range(1, store.requests + 1):
            unsteady = UnsteadyStore(lambda number, at=broken: number == at, failing, error=error, closes=closes)
            files.system = pafs.PyFileSystem(unsteady)
            with pytest.raises(ArchiveUnavailable, match=f"{name} .*: {error}; is --target"):
                dumps.count(name)
            assert unsteady.all_closed()
    path.write_bytes(b"not what it was" * 9)
    files.system = pafs.PyFileSystem(store)
    with pytest.raises(EntryDamaged, match=name):
        dumps.count(name)
    assert store.all_closed()


def test_a_dump_that_is_gone_when_it_is_read_is_not_there(tmp_path: Path) -> None:
    files = Files(f"file://{tmp_path}", "--target")
    dumps = Dumps(files)
    dumps.write(header(PAYLOADS), [PAYLOADS], "zstd")
    for failing in ("open", "read"):
        store = UnsteadyStore(lambda _: True, failing, error=FileNotFoundError(2, "no such key"))
        files.system = pafs.PyFileSystem(store)
        with pytest.raises(NoSuchLedger, match=r"ledger-7\.dump\.zst"):
            dumps.count("ledger-7.dump.zst")


@pytest.mark.parametrize("error", [RESET, ValueError("closed file")], ids=repr)
def test_a_dump_that_goes_while_it_is_read_is_not_there_whatever_the_store_says(
    tmp_path: Path, error: Exception
) -> None:
    files = Files(f"file://{tmp_path}", "--target")
    dumps = Dumps(files)
    dumps.write(header(PAYLOADS), [PAYLOADS], "none")
    files.system = pafs.PyFileSystem(UnsteadyStore(goes(tmp_path / "ledger-7.dump", 2), error=error))
    with pytest.raises(NoSuchLedger, match=r"ledger-7\.dump"):
        dumps.count("ledger-7.dump")


def test_what_could_not_be_written_to_its_end_has_no_name(tmp_path: Path) -> None:
    dumps = Dumps(Files(f"file://{tmp_path}/dumps", "--target"))
    with pytest.raises(EntryDamaged):
        dumps.write(header(PAYLOADS), [PAYLOADS[:1]], "zstd")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_dump_replaces_that_of_another_compression(tmp_path: Path) -> None:
    dumps = Dumps(Files(f"file://{tmp_path}/dumps", "--target"))
    for compression in sorted(SUFFIXES):
        dumps.write(header(PAYLOADS), [PAYLOADS], compression)
        assert dumps.names() == {7: [f"ledger-7.dump{SUFFIXES[compression]}"]}


def test_which_of_two_dumps_of_a_ledger_counts_nobody_can_tell(tmp_path: Path) -> None:
    dumps = Dumps(Files(str(tmp_path), "--source"))
    for name in ("ledger-7.dump.zst", "ledger-7.dump"):
        (tmp_path / name).touch()
    named = r"ledger-7\.dump\.zst"
    with pytest.raises(Refused, match=named):
        dumps.find(7)
    with pytest.raises(Refused, match=named):
        dumps.only(dumps.names()[7])


@pytest.mark.parametrize("number", ["07", "\u0667", str(2**63), "7" * 100, "-7"])
def test_a_file_with_another_name_than_dumps_have_is_none(tmp_path: Path, number: str) -> None:
    (tmp_path / f"ledger-{number}.dump").touch()
    assert Dumps(Files(str(tmp_path), "--source")).names() == {}


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"ledger_id": 7, "entries": 1e400, "bytes": 0}',
        b'{"ledger_id": 7, "entries": -1, "bytes": 0}',
        b'{"ledger_id": 7, "entries": 0, "bytes": 9999999999999999999}',
        b'{"\xff',
    ],
    ids=["deep", "infinite", "negative", "large", "no text"],
)
def test_a_header_that_says_nonsense_is_damage(text: bytes) -> None:
    start = struct.pack(">8sHII", b"PKLEDGER", 1, len(text), google_crc32c.value(text))
    with pytest.raises(EntryDamaged, match="x: ") as caught:
        read_header(io.BytesIO(start + text), "x")
    assert len(str(caught.value)) < 5000


def test_a_process_without_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = Dumps(Files(str(tmp_path), "--source"))
    dumps.write(header(PAYLOADS), [PAYLOADS], "zstd")

    def fails(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 64")

    monkeypatch.setattr("pyspark_bookie.jobs.transfer.dumps.read_header", fails)
    with pytest.raises(ArchiveUnavailable, match=r"ledger-7\.dump\.zst .*: malloc"):
        dumps.count("ledger-7.dump.zst")


def test_a_store_that_is_away_is_told_by_every_request(tmp_path: Path) -> None:
    """With the argument, the place and a remedy, and never as an empty folder."""
    (tmp_path / "file").write_bytes(b"no folder")
    dumps = Dumps(Files(f"file://{tmp_path}/file/dumps", "--target"))
    with pytest.raises(ArchiveUnavailable, match=r"--target: .*/file/dumps/_tmp/.*; is --target"):
        dumps.write(header(PAYLOADS), [PAYLOADS], "none")
    for place in (tmp_path / "file", Path("/dev/null")):
        with pytest.raises(ArchiveUnavailable, match=f"--target: {place} .*; is --target"):
            Dumps(Files(str(place), "--target")).names()
    files = Files(f"file://{tmp_path}", "--source")
    files.system = pafs.PyFileSystem(UnsteadyStore(lambda _: True, "size"))
    for ask in (Dumps(files).names, lambda: Dumps(files).find(7), files.check_there):
        with pytest.raises(ArchiveUnavailable, match=r"--source: .* peer; is --source"):
            ask()
