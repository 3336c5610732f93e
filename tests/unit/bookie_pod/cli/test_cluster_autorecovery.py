"""Auto-recovery of a cluster from the command line, on a metadata store in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check, Failure, Finished, Running, Runs
from bookie_pod.cli.main import run
from bookie_protocol.metadata_service.findings import Failure as FailedRepair
from bookie_protocol.metadata_service.findings import Finding, Reason, Trouble
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.tree.under_replication.election import AuditorElection
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from tests.support.metadata_access import with_service

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> str:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    uri = str(tmp_path / "metadata")
    monkeypatch.setenv("BK_metadataServiceUri", uri)
    assert run(["cluster", "init", uri]) == 0
    capsys.readouterr()
    return uri


def printed(capsys: Capture, *words: str, code: int = 0) -> str:
    assert run(["cluster", *words]) == code
    return capsys.readouterr().out


def test_on_and_off(uri: str, capsys: Capture) -> None:
    for word, state in (("disable", "disabled"), ("disable", "disabled"), ("enable", "enabled"), ("enable", "enabled")):
        assert printed(capsys, "autorecovery", word) == f"auto-recovery is {state}\n"
        assert with_service(uri, lambda service: service.under_replication.is_enabled()) is (state == "enabled")


def test_the_delay(uri: str, capsys: Capture) -> None:
    assert run(["cluster", "lost-delay", "get"]) == 11
    assert "no auditor has run" in capsys.readouterr().err
    printed(capsys, "lost-delay", "set", "0")
    assert printed(capsys, "lost-delay", "get") == "0\n"
    assert run(["cluster", "lost-delay", "set", "--", "-1"]) == 1


def test_setting_the_same_delay_asks_for_no_audit(uri: str, capsys: Capture) -> None:
    async def version(service: MetadataService) -> int:
        async with service.under_replication.watch_lost_bookie_recovery_delay() as values:
            async for value in values:
                assert value is not None
                return value.version
        raise AssertionError

    printed(capsys, "lost-delay", "set", "300")
    before = with_service(uri, version)
    printed(capsys, "lost-delay", "set", "300")
    assert with_service(uri, version) == before


def test_without_an_auditor(uri: str, capsys: Capture) -> None:
    assert run(["cluster", "who-is-auditor"]) == 11
    assert run(["cluster", "trigger-audit"]) == 10
    assert "there is no auditor" in capsys.readouterr().err
    status = json.loads(printed(capsys, "autorecovery", "status", "--json", code=12))
    assert status["auditor"] is None
    assert status["checks"]["ledgers"]["last"] is None


def test_who_is_auditor(uri: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def current_auditor(_: object) -> str:
        return "bookie-1"

    monkeypatch.setattr(AuditorElection, "current_auditor", current_auditor)
    assert printed(capsys, "who-is-auditor") == "bookie-1\n"
    assert json.loads(printed(capsys, "who-is-auditor", "--json")) == {"auditor": "bookie-1"}


def test_marks(uri: str, capsys: Capture) -> None:
    async def mark(service: MetadataService) -> None:
        await service.under_replication.mark(7, ("b1:1", "b2:1"), ctime_ms=1_700_000_000_000)
        await service.under_replication.mark(8, ("b3:1",), ctime_ms=1 << 62)
        await service.under_replication.mark(9, (), ctime_ms=None)

    with_service(uri, mark)
    assert printed(capsys, "list-under-replicated").splitlines() == [
        "7  b1:1,b2:1  since 2023-11-14 22:13:20 UTC",
        f"8  b3:1  since {1 << 62} ms since 1970",
        "9  placement",
    ]
    assert printed(capsys, "list-under-replicated", "--count", "--missing", "b2:1") == "1\n"
    _, line = printed(capsys, "list-under-replicated", "--excluding", "b2:1", "--json").splitlines()
    assert json.loads(line) == {
        "ledger": 9,
        "missing_replicas": [],
        "marked_ms": None,
        "findings": [],
        "failures": [],
        "worker": None,
    }


def test_why_a_ledger_is_marked_and_why_it_is_not_repaired(uri: str, capsys: Capture) -> None:
    damaged = Finding("b2:1", Reason.DAMAGED, ((137, 137),), "check of ledgers")

    async def mark(service: MetadataService) -> None:
        marks = service.under_replication
        await marks.mark(7, ["b1:1"], ctime_ms=1, findings=[damaged])
        lock = await marks.lock(7)
        await marks.note_failure(
            lock, FailedRepair("w1", Trouble.NO_COPY, entries=(137,), reason="no copy of entry 137")
        )
        await marks.release(lock)

    with_service(uri, mark)
    (line,) = printed(capsys, "list-under-replicated").splitlines()
    assert "b2:1 (damaged)" in line
    found = json.loads(printed(capsys, "list-under-replicated", "--json"))
    assert {"bookie": "b2:1", "reason": "damaged", "entries": [[137, 137]]} in found["findings"]
    assert {"bookie": "b1:1", "reason": "unknown", "entries": []} in found["findings"]
    assert [(each["worker"], each["trouble"], each["attempts"]) for each in found["failures"]] == [("w1", "no copy", 1)]


def test_what_checks_did(uri: str, capsys: Capture) -> None:
    runs = Runs(
        "b1:1",
        Running(1, 55, 2, {"ledgers": 4}),
        Finished(1, 2, 3500, {"ledgers": 1234, "marked": 0}),
        Failure(9, "so"),
    )
    with_service(uri, lambda service: AuditRecords(service).write(Check.REPLICAS, runs))
    text = printed(capsys, "autorecovery", "status", code=12)
    assert "3.5 s" in text
    assert "1,234 ledgers" in text
    assert "at ledger 55: 4 ledgers; broken off: so" in text


def test_checks_are_asked_for(uri: str, capsys: Capture) -> None:
    assert printed(capsys, "force-auditor-checks", "--replicas") == "asked for: replicas\n"
    assert printed(capsys, "force-auditor-checks") == "asked for: ledgers, placement, replicas\n"

    async def look(service: MetadataService) -> tuple[int | None, int | None]:
        requested = await AuditRecords(service).requested_ms(Check.LEDGERS)
        return requested, await service.under_replication.check_time(AuditorCheck.ALL_LEDGERS)

    requested, reset = with_service(uri, look)
    assert requested - reset == 21 * 86_400_000
