"""Exporting one ledger after the other: what is there is not written again, and never another ledger's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from bookie_protocol.errors import EntryDamaged, LedgerNotClosed
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.wire.framing import LEAST_RECEIVED_FRAME_SIZE
from pyspark_bookie.archive.files import ArchiveUnavailable, Files
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs import import_
from pyspark_bookie.jobs.export import ExportBundle, Exporter, ExportFate, export_bundle
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.transfer.dumps import Dumps
from pyspark_bookie.jobs.transfer.running import TransferPlan
from pyspark_bookie.jobs.transfer.sources import OpenCluster
from tests.support.ledger_shelf import LedgerShelf
from tests.support.unsteady_store import UnsteadyStore
from tests.unit.pyspark_bookie.jobs.rig import DriverContext, drive

PAYLOADS = [b"first", b"", b"last"]


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[LedgerShelf]:
    with LedgerShelf(tmp_path) as made:
        yield made


@pytest.fixture
def dumps(tmp_path: Path) -> Dumps:
    return Dumps(Files(f"file://{tmp_path}/dumps", "--target"))


def exporter(shelf: LedgerShelf, dumps: Dumps, *, replace: bool = False, compression: str = "zstd") -> Exporter:
    return Exporter(OpenCluster(shelf, None, Throttle(None)), dumps, compression, replace=replace)


def test_a_ledger_is_dumped_once(shelf: LedgerShelf, dumps: Dumps) -> None:
    shelf.put(7, PAYLOADS, custom={"application": b"mine"})
    outcome = exporter(shelf, dumps).export(7, 3, 9)
    assert (outcome.fate, outcome.entries, outcome.nbytes) == (ExportFate.EXPORTED, 3, 9)
    name = dumps.find(7)
    assert name is not None
    assert [payload for batch in dumps.payloads(name) for payload in batch] == PAYLOADS
    assert dumps.header(name).shape.custom_metadata == {"application": b"mine"}
    assert exporter(shelf, dumps).export(7, 3, 9).fate is ExportFate.ALREADY
    assert exporter(shelf, dumps, replace=True).export(7, 3, 9).fate is ExportFate.EXPORTED


def test_the_dump_of_another_ledger_is_left_alone(shelf: LedgerShelf, dumps: Dumps) -> None:
    shelf.put(7, PAYLOADS)
    exporter(shelf, dumps).export(7, 3, 9)
    shelf.delete(7)
    shelf.put(7, [b"another"], created_ms=1_800_000_000_000)
    assert exporter(shelf, dumps).export(7, 1, 7).fate is ExportFate.ANOTHER
    assert dumps.header(str(dumps.find(7))).entries == 3


@pytest.mark.parametrize("damage", ["header", "empty", "cut", "cut behind the header", "an entry", "stranger"])
def test_a_dump_that_cannot_be_read_is_told_and_replaced_only_on_demand(
    shelf: LedgerShelf, dumps: Dumps, tmp_path: Path, damage: str
) -> None:
    """Wherever it is damaged: the beginning alone says nothing of the rest."""
    shelf.put(7, PAYLOADS)
    exporter(shelf, dumps, compression="none").export(7, 3, 9)
    path = tmp_path / "dumps" / str(dumps.find(7))
    sound = path.read_bytes()
    entry = sound.index(PAYLOADS[2])
    found = {
        "header": flipped(sound, 10),
        "empty": b"",
        "cut": sound[:-3],
        "cut behind the header": sound[: entry - 1],
        "an entry": flipped(sound, entry),
        "stranger": b"somebody's file",
    }[damage]
    path.write_bytes(found)
    with pytest.raises(EntryDamaged, match=rf"{path.name}.*; --replace --ledgers 7"):
        exporter(shelf, dumps).export(7, 3, 9)
    assert path.read_bytes() == found
    assert exporter(shelf, dumps, replace=True, compression="none").export(7, 3, 9).fate is ExportFate.EXPORTED
    assert path.read_bytes() == sound


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def test_a_dry_run_tells_what_the_beginnings_of_dumps_tell(shelf: LedgerShelf, dumps: Dumps, tmp_path: Path) -> None:
    for ledger_id in (5, 6, 7, 8):
        shelf.put(ledger_id, PAYLOADS)
        if ledger_id != 8:
            exporter(shelf, dumps).export(ledger_id, 3, 9)
    (tmp_path / "dumps" / "ledger-6.dump.zst").write_bytes(b"")
    shelf.delete(7)
    shelf.put(7, [b"another"], created_ms=1_800_000_000_000)
    with DriverContext(shelf, "export", "--all", "--dry-run", "--target", f"{tmp_path}/dumps") as context:
        result = drive(context)
    told = {row["ledger_id"]: row["what"] for row in result.findings.to_pylist()}
    assert told == {6: "ENTRY_DAMAGED", 7: "DUMP_EXISTS", 8: "WOULD_EXPORT"}
    assert {each: result.counters[each] for each in ("already_there", "dump_exists", "failed", "pending")} == {
        "already_there": 1,
        "dump_exists": 1,
        "failed": 1,
        "pending": 1,
    }


@pytest.mark.parametrize("failing", ["size", "open", "read"])
def test_a_store_that_does_not_answer_overwrites_nothing(shelf: LedgerShelf, tmp_path: Path, failing: str) -> None:
    shelf.put(7, PAYLOADS)
    files = Files(f"file://{tmp_path}/dumps", "--target")
    exporter(shelf, Dumps(files)).export(7, 3, 9)
    path = tmp_path / "dumps" / "ledger-7.dump.zst"
    path.write_bytes(b"what is there")
    files.system = pafs.PyFileSystem(UnsteadyStore(lambda _: True, failing))
    with pytest.raises(ArchiveUnavailable, match=r"ledger-7\.dump.*reached"):
        exporter(shelf, Dumps(files)).export(7, 3, 9)
    assert [(each, each.read_bytes()) for each in (tmp_path / "dumps").rglob("*") if each.is_file()] == [
        (path, b"what is there")
    ]


def test_an_empty_ledger_is_dumped_and_an_open_one_refused(shelf: LedgerShelf, dumps: Dumps) -> None:
    shelf.put(7, [])
    assert exporter(shelf, dumps).export(7, 0, 0).fate is ExportFate.EXPORTED
    shelf.put(8, [], state=LedgerState.OPEN)
    with pytest.raises(LedgerNotClosed, match="ledger 8 is OPEN"):
        exporter(shelf, dumps).export(8, 0, 0)
    assert dumps.names() == {7: ["ledger-7.dump.zst"]}


def test_entries_as_long_as_the_jobs_client_receives_are_exported_and_imported(
    shelf: LedgerShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever others receive: the dump may be the only copy."""
    payload = bytes(LEAST_RECEIVED_FRAME_SIZE + 1)
    shelf.put(7, [payload])
    target, option = f"file://{tmp_path}/dumps", ("--option", f"client.maxFrameSize={2 * len(payload)}")
    with DriverContext(shelf, "export", "--ledgers", "7", "--target", target, *option) as context:
        environment = context.environment()
    monkeypatch.setattr(TaskEnvironment, "client", lambda _: shelf)
    (outcome,) = export_bundle(ExportBundle((7,), ((1, len(payload)),), (None,), target, "zstd", False), environment)
    assert (outcome.error, outcome.fate) == (None, ExportFate.EXPORTED)
    plans: list[TransferPlan] = []
    monkeypatch.setattr(import_, "run_transfer", lambda _, plan: plans.append(plan))
    for words in ((), option):
        with DriverContext(shelf, "import", "--source", target, *words) as context:
            drive(context)
    refusing, taking = (plan.source.open(Throttle(None)).ledger(7) for plan in plans)
    assert list(taking.payloads()) == [[payload]]
    with pytest.raises(EntryDamaged, match=r"client\.maxFrameSize"):
        list(refusing.payloads())
