"""`bookie scrub` against a server of the admin API over fake ports."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.main import run
from bookie_pod.storage.integrity.entry_check import ScrubCounts
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub import ScrubState
from bookie_pod.storage.integrity.scrub_part import PartState, ScrubPhase
from tests.support.served_admin import ServedAdmin

Capture = pytest.CaptureFixture[str]
COUNTS = ScrubCounts(entries=5000, digests=4, restored=1, logs=2, journals=0, rows=9)
PART = PartState("/data/ledgers/current", ScrubPhase.INDEX, 7, 3, 1200, 1_000, 1_000_000_000_000, COUNTS, ())
DAMAGE = Damage(DamageKind.ENTRY, "wrong digest", file_id=3, ledger_id=8, entry_id=0, found_ms=1_000_000_000_000)


def test_status(served: ServedAdmin, capsys: Capture) -> None:
    served.admin.integrity.scrub = ScrubState(True, True, None, (replace(PART, errors=("3.log: no",)),), (DAMAGE,), 2)
    assert run(["scrub", "status"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "a pass goes on",
        "1, and 2 more that are not kept",
        "/data/ledgers",
        "index, 3 of 1,200",
        "2001-09-09 01:46:40 UTC",
        "5,000 entries (4 digests), 9 index rows (1 put back), 2 entry logs, 0 journals",
        "3.log: no",
    ):
        assert text in shown
    assert run(["scrub", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["directories"][0]["passNumber"] == 7


@pytest.mark.parametrize(
    ("next_pass", "text"), [(None, "waits for a request"), (1_000_000_000_000, "begins at 2001-09-09 01:46:40 UTC")]
)
def test_status_of_a_scrubber_that_waits(
    served: ServedAdmin, capsys: Capture, next_pass: int | None, text: str
) -> None:
    never = PartState("/data", ScrubPhase.WAITING, 0, 0, 0, 0, 0, ScrubCounts(), ())
    served.admin.integrity.scrub = ScrubState(next_pass is not None, False, next_pass, (never,), (), 0)
    assert run(["scrub", "status"]) == 0
    shown = capsys.readouterr().out
    assert text in shown
    assert "never" in shown
    assert "none known" in shown


def test_run(served: ServedAdmin, capsys: Capture) -> None:
    assert run(["scrub", "run"]) == 0
    assert capsys.readouterr().out == "a pass begins\n"
    assert run(["scrub", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"triggered": False}
    assert served.admin.integrity.requests == 2


@pytest.mark.parametrize(("errors", "code"), [((), CommandExit.OK), (("3.log: no",), CommandExit.COULD_NOT_TELL)])
def test_run_and_wait_for_the_end(
    served: ServedAdmin, capsys: Capture, monkeypatch: pytest.MonkeyPatch, errors: tuple[str, ...], code: int
) -> None:
    from bookie_pod.cli import scrub

    port = served.admin.integrity
    port.scrub = ScrubState(True, False, 5, (PART,), (), 0)
    looks = iter([replace(PART, number=8), replace(PART, number=8, completed_ms=9, errors=errors)])
    states: list[bool] = []

    def sleep(seconds: float) -> None:
        states.append(port.scrub.running)
        port.scrub = replace(port.scrub, parts=(next(looks),), running=len(states) == 1)

    monkeypatch.setattr(scrub, "time", SimpleNamespace(sleep=sleep))
    assert run(["scrub", "run", "--watch", "--json"]) == code
    assert states == [False, True]  # asked before it began, and while it went on
    assert json.loads(capsys.readouterr().out)["directories"][0]["completedTime"] == 9


def test_damages(served: ServedAdmin, capsys: Capture) -> None:
    assert run(["scrub", "damages"]) == 0
    assert capsys.readouterr().out == "nothing is known to be damaged\n"
    served.admin.integrity.scrub = ScrubState(True, False, 5, (), (DAMAGE, replace(DAMAGE, ledger_id=-1)), 0)
    assert run(["scrub", "damages"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3:6] for line in lines[1:]] == [["entry", "8", "0"], ["entry", "-", "0"]]
    assert run(["scrub", "damages", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1]["ledgerId"] is None
