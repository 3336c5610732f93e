"""Commands that change something leave a line in the audit log, and nothing secret in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_pod.cli.audited import CHANGES
from bookie_pod.cli.main import cli, run
from tests.support.command_lines import leaves

ASKS_A_BOOKIE = {
    "drain-clients",
    "gc allow-deletions",
    "gc resume",
    "gc run",
    "gc suspend",
    "index rebuild",
    "index stop",
    "scrub run",
}
"""They change something, and stand in the trail of the bookie that they ask."""
SERVES = {"autorecovery", "gateway", "metadata-service", "serve", "standalone", "trial"}
LOOKS = {
    "bench read",
    "bench write",  # ledgers of its own, which it deletes
    *(f"cluster {name}" for name in ("autorecovery status", "bookies", "cookie generate", "cookie get")),
    *(
        f"cluster {name}"
        for name in ("health-check", "list-under-replicated", "metadata backup", "lost-delay get", "placement")
    ),
    *(f"cluster {name}" for name in ("replicas", "safety-check", "status", "who-is-auditor", "whoami")),
    *(f"config {name}" for name in ("check", "docs", "print")),
    *(f"disk {name}" for name in ("at", "check", "cookie", "files", "lastmark", "ledger", "ledgers", "locate", "logs")),
    *(f"disk {name}" for name in ("readjournal", "readlog", "readlogmetadata")),
    *(f"gc {name}" for name in ("forecast", "logs", "quarantine", "status", "why")),
    "completion",
    "doctor",
    "index status",
    "man",
    "job",  # Spark's own, in a process of its own
    *(f"ledger {name}" for name in ("doctor", "info", "list", "tail")),
    *(f"scrub {name}" for name in ("damages", "status")),
    "support-bundle",
    "shell",  # runs others of these
    *(f"stream {name}" for name in ("info", "list", "read", "tail")),
    "version",
}


def test_every_command_is_judged() -> None:
    assert sorted([*CHANGES, *ASKS_A_BOOKIE, *SERVES, *LOOKS]) == sorted(leaves(cli))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BK_auditLogFile", str(tmp_path / "audit.log"))
    return tmp_path / "audit.log"


def test_a_command_that_fails_leaves_its_line_without_what_is_secret(log: Path) -> None:
    uri = "nonsense://user:s3cret@nowhere/ledgers"
    assert run(["ledger", "delete", "7", "8", "--yes", "--metadata", uri]) != 0
    (line,) = [json.loads(each) for each in log.read_text().splitlines()]
    assert (line["via"], line["what"], line["of"]) == ("cli", "bookie ledger delete", {"ledger_ids": [7, 8]})
    assert (line["outcome"], line["reason"]) == ("failed", "InvalidConfiguration")
    assert "s3cret" not in log.read_text()


def test_what_only_looks_leaves_none(log: Path) -> None:
    assert run(["config", "print"]) == 0
    assert not log.exists()


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("BK_auditLogFile", str(tmp_path / "none" / "audit.log"))
    assert run(["ledger", "delete", "7", "--yes", "--metadata", "nonsense://nowhere/ledgers"]) != 0
    assert "No such file or directory: this is not in it" in capsys.readouterr().err


def test_a_read_leaves_a_line_if_it_recovers(log: Path) -> None:
    read = ["ledger", "read", "7", "--metadata", "nonsense://nowhere/ledgers"]
    assert run(read) != 0
    assert not log.exists()
    assert run([*read, "--recover"]) != 0
    (line,) = [json.loads(each) for each in log.read_text().splitlines()]
    assert (line["what"], line["outcome"], line["of"]) == (
        "bookie ledger read",
        "failed",
        {"ledger_id": 7, "recover": True},
    )
