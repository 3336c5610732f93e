"""`bookie disk`: what its commands print and return, on disks of the reference."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bookie_pod.cli.disk import commands
from bookie_pod.cli.exit_codes import exit_code_of
from bookie_pod.cli.main import run
from bookie_pod.node.identity.cookie_check import read_directory
from bookie_pod.node.identity.earlier_life import EarlierLife
from bookie_pod.node.identity.ownership import DirectoryInUse, hold_directories
from bookie_pod.storage.files import Files
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index_rebuild import swap
from bookie_pod.storage.inspect.layout import DiskLayout
from bookie_protocol.errors import BadRequest, ExitCode, InvalidCookie
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID
from tests.support.stored_disks import contents, golden_disk, write_disk

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    monkeypatch.delenv("BOOKIE_LEDGER_PASSWORD", raising=False)


class Disk:
    """A disk, and `bookie disk` on it."""

    def __init__(self, layout: DiskLayout, capture: Capture) -> None:
        self.layout = layout
        self._capture = capture

    @property
    def current(self) -> Path:
        return Path(self.layout.ledgers[0])

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What the command prints to standard output; its last error is kept in `error`."""
        options: list[str] = []
        for flag, folders in (("--journal-dir", self.layout.journals), ("--ledger-dir", self.layout.ledgers)):
            for folder in folders:
                options += [flag, folder.removesuffix("/current")]
        self._capture.readouterr()
        got = run(["disk", *arguments, *options])
        printed = self._capture.readouterr()
        self.error = printed.err
        assert got == code, printed.err
        return printed.out

    def json(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*arguments, "--json", code=code).splitlines()]


@pytest.fixture(params=["db", "sorted", "interleaved"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, capsys: Capture) -> Disk:
    return Disk(golden_disk(request.param, tmp_path), capsys)


@pytest.fixture
def interleaved(tmp_path: Path, capsys: Capture) -> Disk:
    return Disk(golden_disk("interleaved", tmp_path), capsys)


@pytest.fixture
def database(tmp_path: Path, capsys: Capture) -> Disk:
    return Disk(golden_disk("db", tmp_path), capsys)


# --- looking ------------------------------------------------------------------------------------------------


def test_files_are_listed_by_kind(interleaved: Disk) -> None:
    listed = interleaved.json("files")
    assert {line["kind"] for line in listed} == {"journal", "entry log", "index", "cookie", "mark", "state"}
    for line in listed:
        assert Path(line["path"]).stat().st_size == line["bytes"]
    summary = {line["kind"]: line for line in interleaved.json("files", "--summary")}
    assert summary["index"] == {"kind": "index", "files": 8, "bytes": 8 * 9216 - 8192}
    only = interleaved("files", "--kind", "mark")
    assert only.count("lastMark") == 1
    assert "mark                   16 in 1 files" in only


def test_the_last_mark(disk: Disk) -> None:
    (mark,) = disk.json("lastmark")
    journal = next(Path(disk.layout.journals[0]).glob("*.txn"))
    assert f"{mark['id']:x}.txn" == journal.name
    assert mark["offset"] > 512
    assert journal.name in disk("lastmark")
    (disk.current / "lastMark").unlink()
    disk("lastmark", code=11)
    assert "replayed" in disk.error


def test_the_cookie(disk: Disk) -> None:
    (cookie,) = disk.json("cookie")
    assert cookie["bookie_id"].startswith("127.0.0.1:")
    assert disk("cookie").startswith("5\nbookieHost:")
    (disk.current / "VERSION").unlink()
    disk("cookie", code=13)
    assert "is not there" in disk.error


def test_ledgers(disk: Disk) -> None:
    listed = {line["ledger_id"]: line for line in disk.json("ledgers", "--entries")}
    assert sorted(listed) == [0, 1, 7, 8, 9, 10, 17, 27]
    assert listed[7] == {
        "ledger_id": 7,
        "fenced": True,
        "limbo": False,
        "key": "set",
        "explicit_lac": 4,
        "entries": 6,
        "first_entry": 0,
        "last_entry": 9,
    }
    assert "ledger 27, fenced, 0 entries" in disk("ledgers", "--entries")


def test_a_ledger_and_where_its_entries_lie(disk: Disk) -> None:
    state, *entries = disk.json("ledger", "7", "--check")
    assert state["fenced"]
    assert [entry["entry_id"] for entry in entries] == [0, 1, 2, 3, 4, 9]
    assert all("error" not in entry for entry in entries)
    text = disk("ledger", "7", "--payload", "ascii")
    assert "pthello" in text
    disk("ledger", "28", code=11)
    assert disk.error == "bookie: ledger 28 is not in the index\n"


def test_locations_and_back(disk: Disk) -> None:
    (found,) = disk.json("locate", "7", "3", "--payload", "hex")
    assert found["payload"].endswith(b"hello".hex())
    (back,) = disk.json("at", Path(found["log"]).name, str(found["position"] + 20))
    assert (back["ledger_id"], back["entry_id"], back["index"]) == (7, 3, "the index points here")
    disk("locate", "7", "5", code=11)
    disk("at", "0", "10", code=11)
    disk("at", "77.log", "1028", code=11)


def test_the_superseded_copy_of_an_entry_is_told_apart(interleaved: Disk) -> None:
    copies = interleaved.json("readlog", "0", "--ledger", "7", "--entry", "4")
    assert len(copies) == 2
    states = [interleaved.json("at", "0", str(copy["position"]))[0]["index"] for copy in copies]
    assert states == [f"the index points to another copy, location {copies[1]['location']}", "the index points here"]


# --- logs and journals --------------------------------------------------------------------------------------


def test_readlog(interleaved: Disk) -> None:
    all_entries = interleaved.json("readlog", "0")
    by_name = interleaved.json("readlog", "0.log", "--ledger", "0x7")
    assert by_name == [line for line in all_entries if line["ledger_id"] == 7]
    by_path = interleaved.json("readlog", str(interleaved.current / "0.log"), "--from", "1073", "--to", "1200")
    assert by_path == [line for line in all_entries if 1073 <= line["position"] < 1200]
    first = by_name[1]
    assert (first["entry_id"], first["last_add_confirmed"], first["bytes"]) == (1, 0, 41)
    interleaved("readlog", "x", code=1)
    assert interleaved("readlog", "2") == "", "an empty preallocated log"


def test_readlog_stops_at_damage_or_goes_on(interleaved: Disk) -> None:
    entries = interleaved.json("readlog", "0")
    path = interleaved.current / "0.log"
    data = bytearray(path.read_bytes())
    broken = entries[10]["position"] - 4
    data[broken : broken + 8] = b"\x7f" * 8
    path.write_bytes(data)
    assert interleaved.json("readlog", "0", code=13) == entries[:10]
    assert f"0.log at {broken}" in interleaved.error
    assert interleaved.json("readlog", "0", "--resync", code=13) == entries[:10] + entries[11:]


def test_log_metadata(disk: Disk) -> None:
    summary, *ledgers = disk.json("readlogmetadata", "0")
    assert summary["ledgers"] == len(ledgers)
    assert sum(line["bytes"] for line in ledgers) == summary["entry_bytes"]
    assert summary["usage"] == 1.0
    assert all(line["known"] for line in ledgers)
    then = time.time() - 3 * 86_400
    os.utime(disk.current / "0.log", (then, then))
    listed = disk.json("logs")
    assert 3 * 86_400 <= listed[0]["age_seconds"] < 3 * 86_400 + 600
    assert "written 3 days ago" in disk("logs")
    assert [line["log_id"] for line in listed] == list(range(len(listed)))
    assert listed[-1]["bytes"] == 0
    assert "usage: 1.0" in disk("readlogmetadata", "0.log")


def test_readjournal(disk: Disk) -> None:
    *records, end = disk.json("readjournal")
    assert {record["kind"] for record in records} == {"ledger key", "entry", "fence", "explicit LAC"}
    assert not end["torn"]
    shown = disk.json("readjournal", "--payload=hex")[:-1]
    assert {record["kind"] for record in shown if "payload" in record} == {"entry", "fence", "explicit LAC"}
    (mark,) = disk.json("lastmark")
    assert disk.json("readjournal", str(mark["id"])) == [*records, end]
    assert disk.json("readjournal", f"{mark['id']:x}.txn", "--ledger", "27")[0]["kind"] == "fence"
    assert disk.json("readjournal", records[0]["file"], "--from", str(records[3]["offset"]))[0] == records[3]
    disk("readjournal", "5", code=11)


@pytest.mark.parametrize("named", ["README.md", "zz.txn", ".txn", "5.txn.old"])
def test_readjournal_of_what_is_no_journal_is_one_clear_line(disk: Disk, tmp_path: Path, named: str) -> None:
    file = tmp_path / named
    file.write_text("# Podkeeper\n")
    disk("readjournal", str(file), code=exit_code_of(BadRequest("")))
    assert disk.error == f"bookie: {file} is not named like a journal: <hexadecimal id>.txn\n"


def test_readjournal_tells_where_the_damage_is(disk: Disk) -> None:
    *records, _ = disk.json("readjournal")
    path = Path(records[0]["file"])
    data = bytearray(path.read_bytes())
    broken = records[20]["offset"]
    data[broken : broken + 4] = b"\x80\0\0\0"
    path.write_bytes(data)
    assert disk.json("readjournal", code=13) == records[:20]
    assert f"damaged at offset {broken}" in disk.error


# --- checks, rebuilds, conversions --------------------------------------------------------------------------


def test_check(disk: Disk) -> None:
    (report,) = disk.json("check")
    assert report["sound"]
    assert (report["ledgers"], report["rows"]) == (8, 79)
    path = disk.current / "0.log"
    data = bytearray(path.read_bytes())
    data[1032:1036] = b"\xff" * 4
    path.write_bytes(data)
    (report,) = disk.json("check", code=13)
    assert report["findings"][0]["kind"] == "wrong entry"
    text = disk("check", "--rows-only", code=13)
    assert "wrong entry: 1" in text


def test_convert_there_and_back(interleaved: Disk) -> None:
    before = contents(interleaved.layout, "interleaved")
    (report,) = interleaved.json("convert", "--to", "db")
    assert report["ledgerStorageClass"].endswith("DbLedgerStorage")
    assert (report["changed"], report["ledgers"]) == (True, 8)
    assert contents(interleaved.layout, "db") == before
    text = interleaved("convert", "--to", "sorted")
    assert "Set ledgerStorageClass=org.apache.bookkeeper.bookie.SortedLedgerStorage" in text
    assert contents(interleaved.layout, "sorted") == before
    assert "has that form already" in interleaved("convert", "--to", "interleaved")
    assert "Nothing was interrupted" in interleaved("finish")


def test_a_killed_bookie_s_index_files_are_changed_only_if_the_operator_is_sure(interleaved: Disk) -> None:
    (interleaved.current / "DIRTY").touch()
    interleaved("convert", "--to", "db", code=10)
    assert "--unclean" in interleaved.error
    assert len(interleaved.error.splitlines()) == 1
    interleaved("convert", "--to", "db", "--unclean")


def test_rebuilds_of_databases(database: Disk) -> None:
    before = contents(database.layout, "db")
    (locations,) = database.json("rebuild-locations")
    (ledgers,) = database.json("rebuild-ledgers")
    assert (locations["entries"], locations["damaged_logs"], ledgers["kept"]) == (80, 0, 8)
    assert (database.current / locations["backup"] / "CURRENT").exists()
    assert contents(database.layout, "db") == before


def test_of_ledgers_that_a_rebuild_may_lack_the_metadata_service_is_asked(database: Disk) -> None:
    life = EarlierLife(PosixFiles(), [str(database.current)])
    database.json("rebuild-ledgers")
    assert life.newest() == -1, "the old database was whole"
    shutil.rmtree(database.current / "ledgers")
    database.json("rebuild-ledgers")
    assert life.newest() == MAX_LEDGER_ID


@pytest.mark.parametrize("named", ["in another order", "not all"])
def test_ledgers_are_not_rebuilt_with_other_directories_than_the_bookie_has(
    named: str, tmp_path: Path, capsys: Capture
) -> None:
    """A ledger is in the directory of its number, and those of another one are left out."""
    layout = write_disk("db", tmp_path, {1: 3, 3: 3}, directories=3)
    (tmp_path / "journal/current").mkdir(parents=True)
    folders = layout.ledgers[::-1] if named == "in another order" else layout.ledgers[:2]
    for folder in folders:
        shutil.rmtree(f"{folder}/ledgers")
    wrong = Disk(DiskLayout((str(tmp_path / "journal/current"),), folders), capsys)
    wrong.json("rebuild-ledgers", code=ExitCode.INVALID_CONFIGURATION)
    assert not [folder for folder in folders if Path(folder, "ledgers").exists()]


def test_a_rebuild_over_damage_has_to_be_accepted(database: Disk) -> None:
    path = database.current / "0.log"
    data = bytearray(path.read_bytes())
    data[1024:1032] = b"\x7f" * 8
    path.write_bytes(data)
    (refused,) = database.json("rebuild-locations", code=13)
    assert refused["backup"] == ""
    assert "--accept-damage" in database.error
    assert not list(database.current.glob("*.BACKUP-*"))
    assert not list(database.current.glob("*.building"))
    (report,) = database.json("rebuild-locations", "--accept-damage")
    assert (report["salvaged"], report["lost"]) == (69, 1)


def test_a_rebuild_of_databases_without_a_log_that_they_name_has_to_be_accepted(database: Disk) -> None:
    (database.current / "0.log").unlink()
    (refused,) = database.json("rebuild-locations", code=13)
    assert (refused["backup"], refused["lost"], refused["damaged_logs"]) == ("", 70, 0)
    (report,) = database.json("rebuild-locations", "--accept-damage")
    assert report["lost"] == 70


def test_a_rebuild_of_index_files_without_a_log_that_they_name_has_to_be_accepted(interleaved: Disk) -> None:
    (interleaved.current / "0.log").unlink()
    (refused,) = interleaved.json("rebuild-index-files", "-l", "7", code=13)
    assert refused["lost"] > 0
    assert not refused["changed"]
    (report,) = interleaved.json("rebuild-index-files", "-l", "7", "--accept-damage")
    assert report["changed"]


def test_one_damaged_directory_keeps_the_others_as_they_are_too(
    database: Disk, tmp_path: Path, capsys: Capture
) -> None:
    second = tmp_path / "second/current"
    shutil.copytree(database.current, second)
    data = bytearray((second / "0.log").read_bytes())
    data[1024:1032] = b"\x7f" * 8
    (second / "0.log").write_bytes(data)
    both = Disk(DiskLayout(database.layout.journals, (str(database.current), str(second))), capsys)
    refused = both.json("rebuild-locations", code=13)
    assert [report["damaged_logs"] for report in refused] == [0, 1]
    assert "nothing was changed" in both.error
    for folder in (database.current, second):
        assert not [*folder.glob("*.BACKUP-*"), *folder.glob("*building*")]
    reports = both.json("rebuild-locations", "--accept-damage")
    assert all(report["backup"] for report in reports)


def test_rebuild_of_index_files(interleaved: Disk, tmp_path: Path) -> None:
    before = contents(interleaved.layout, "interleaved")
    (interleaved.current / "0/8/8.idx").unlink()
    (report,) = interleaved.json("rebuild-index-files", "--missing", "--dry-run")
    assert (report["ledgers"], report["changed"]) == (1, False)
    password = tmp_path / "password"
    password.write_text("secret\n")
    (report,) = interleaved.json("rebuild-index-files", "--missing", "--password-file", str(password))
    assert (report["fenced_in_doubt"], report["without_key"]) == (1, 0)
    record, entries = contents(interleaved.layout, "interleaved")[8]
    old_record, old_entries = before[8]
    assert entries == old_entries
    assert getattr(record, "key", None) == getattr(old_record, "key", None), "the golden ledgers' password"
    interleaved("rebuild-index-files", "--missing", code=11)
    interleaved("rebuild-index-files", code=1)


def test_rebuild_of_index_files_refuses_a_ledger_that_was_never_here(interleaved: Disk) -> None:
    before = contents(interleaved.layout, "interleaved")
    interleaved("rebuild-index-files", "-l", "7", "-l", "12345", code=11)
    assert "12345" in interleaved.error
    assert contents(interleaved.layout, "interleaved") == before
    assert not list(interleaved.current.rglob("*.building"))


def test_an_old_index_that_cannot_be_read_has_to_be_accepted(database: Disk) -> None:
    manifest = next((database.current / "locations").glob("MANIFEST-*"))
    manifest.write_bytes(b"")
    (refused,) = database.json("rebuild-locations", code=13)
    assert (refused["old_index_unreadable"] is None, refused["backup"]) == (False, "")
    assert manifest.exists()
    (report,) = database.json("rebuild-locations", "--accept-damage")
    assert report["backup"]


def test_rebuild_of_index_files_is_not_for_databases(database: Disk) -> None:
    database("rebuild-index-files", "-l", "7", code=10)


# --- format -------------------------------------------------------------------------------------------------


def test_format_asks(disk: Disk) -> None:
    disk("format", code=1)
    assert (disk.current / "VERSION").exists()
    (report,) = disk.json("format", "--yes")
    assert report["removed"] > 5
    assert [list(Path(folder).iterdir()) for folder in disk.layout.folders] == [[], []]


def test_format_leaves_alone_what_is_no_bookie_s(disk: Disk) -> None:
    (disk.current / "holiday.jpg").touch()
    disk("format", "--yes", code=10)
    assert "holiday.jpg" in disk.error
    assert (disk.current / "VERSION").exists()


def test_format_that_was_ended_leaves_a_mark_until_it_is_run_to_its_end(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = len(disk.layout.folders)

    def ended(files: Files, path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(swap, "remove_tree", ended)
        disk("format", "--yes", code=130)
    for folder in disk.layout.folders:
        with pytest.raises(InvalidCookie, match=r"format` .*ended"):
            read_directory(PosixFiles(), folder)
    (report,) = disk.json("format", "--yes")
    assert report["removed"] > cookies
    assert [list(Path(folder).iterdir()) for folder in disk.layout.folders] == [[], []]


def test_format_owns_the_directories_from_before_its_question(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> bool:
        with pytest.raises(DirectoryInUse), hold_directories(disk.layout.folders):
            pass
        return False

    monkeypatch.setattr(commands, "confirmed", asked)
    disk("format", code=1)
    with hold_directories(disk.layout.folders):
        disk("format", "--yes", code=2)
    assert (disk.current / "VERSION").exists()


# --- places -------------------------------------------------------------------------------------------------


def test_directories_come_from_the_configuration(tmp_path: Path, capsys: Capture) -> None:
    golden_disk("db", tmp_path)
    conf = tmp_path / "bk.conf"
    conf.write_text(
        f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n"
        "metadataServiceUri=zk+null://127.0.0.1:2181/ledgers\n"
    )
    assert run(["disk", "ledgers", "-c", str(conf)]) == 0
    assert "ledger 27, fenced" in capsys.readouterr().out


def test_a_wrong_directory_is_named(tmp_path: Path, capsys: Capture) -> None:
    assert run(["disk", "files", "--ledger-dir", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/current is not a folder" in line


def test_without_directories_it_says_how_to_name_them(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    monkeypatch.setenv("BK_ledgerDirectories", str(tmp_path))
    monkeypatch.setenv("BK_journalDirectories", str(tmp_path))
    assert run(["disk", "files"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bookie: {tmp_path}/current is not a folder: ")
    assert line.endswith("; give the bookie's configuration with -c, or its directories with --ledger-dir")


def test_journals_are_asked_for_where_they_are_needed(tmp_path: Path, capsys: Capture) -> None:
    layout = golden_disk("db", tmp_path)
    assert run(["disk", "rebuild-ledgers", "--ledger-dir", layout.ledgers[0]]) == 10
    assert "--journal-dir" in capsys.readouterr().err
    assert run(["disk", "readjournal", "--ledger-dir", layout.ledgers[0]]) == 1
    assert "--journal-dir" in capsys.readouterr().err


_HOLDER = """
import sys
from pathlib import Path
from bookie_pod.storage.inspect.layout import DiskLayout
from tests.support.stored_disks import open_engine_on
storage = open_engine_on(DiskLayout((), (sys.argv[1],)), sys.argv[2])
log = open(Path(sys.argv[1]) / "7f.log", "wb")
print("open", file=sys.stderr, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("engine", ["db", "sorted"])
def test_directories_that_a_running_process_holds_are_refused(engine: str, tmp_path: Path, capsys: Capture) -> None:
    disk = Disk(write_disk(engine, tmp_path, {1: 3}), capsys)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, disk.layout.ledgers[0], engine],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[5],
    )
    try:
        assert holder.stderr is not None
        for line in holder.stderr:
            if line == "open\n":
                break
        for command in (["ledgers"], ["convert", "--to", "db"], ["format", "--yes"], ["files"]):
            disk(*command, code=10)
            (line,) = disk.error.splitlines()
            assert f"process {holder.pid}" in line
        assert "entry log" in disk("files", "--live")
    finally:
        holder.communicate()
    disk("ledgers")
