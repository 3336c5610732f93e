"""`bookie index` against a server of the admin API over fake ports."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.main import run
from bookie_pod.storage.index_rebuild.state import RebuildOutcome, RebuildPhase, RebuildRequest, RebuildState
from tests.support.served_admin import ServedAdmin

Capture = pytest.CaptureFixture[str]
RUNNING = RebuildState(
    "/data/ledgers/current", RebuildPhase.LOGS, RebuildOutcome.RUNNING, bytes_done=2_000_000, bytes_total=4_000_000
)


def ended(outcome: RebuildOutcome) -> RebuildState:
    return replace(
        RUNNING,
        outcome=outcome,
        phase=RebuildPhase.WAITING,
        detail="" if outcome is RebuildOutcome.DONE else "because",
        rows_changed=1234,
        started_ms=1,
        ended_ms=1_000_000_000_000,
        backups=["/data/x"],
    )


def test_status(served: ServedAdmin, capsys: Capture) -> None:
    assert run(["index", "status"]) == 0
    assert "no databases" in capsys.readouterr().out
    served.admin.integrity.rebuilds = [RUNNING, RebuildState("/other/current"), ended(RebuildOutcome.FAILED)]
    assert run(["index", "status"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "entry logs, 2.0 MB of 4.0 MB",
        "none since",
        "because",
        "1,234 rows changed",
        "/data/x",
        "2001-09-09",
    ):
        assert text in shown
    assert run(["index", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["phase"] == "entry logs"


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (RebuildOutcome.DONE, CommandExit.OK),
        (RebuildOutcome.DAMAGED, CommandExit.DAMAGED),
        (RebuildOutcome.FAILED, CommandExit.COULD_NOT_TELL),
        (RebuildOutcome.STOPPED, CommandExit.INTERRUPTED),
    ],
)
def test_rebuild_and_wait_for_the_end(
    served: ServedAdmin, capsys: Capture, monkeypatch: pytest.MonkeyPatch, outcome: RebuildOutcome, code: int
) -> None:
    from bookie_pod.cli import index

    port = served.admin.integrity
    port.rebuilds = [ended(RebuildOutcome.DONE), RUNNING]
    monkeypatch.setattr(
        index, "time", SimpleNamespace(sleep=lambda seconds: port.rebuilds.__setitem__(1, ended(outcome)))
    )
    assert run(["index", "rebuild", "--directory", "/data/a", "--no-locations", "--accept-damage"]) == code
    assert port.rebuild_requests == [RebuildRequest(("/data/a/current",), False, True, True)]
    assert outcome.value in capsys.readouterr().out


def test_an_interruption_stops_it(served: ServedAdmin, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from bookie_pod.cli import index

    port = served.admin.integrity
    port.rebuilds = [RUNNING]
    looks: list[bool] = []

    def sleep(seconds: float) -> None:
        looks.append(port.rebuild_running)
        if len(looks) == 1:
            raise KeyboardInterrupt
        port.rebuilds = [ended(RebuildOutcome.STOPPED)]

    monkeypatch.setattr(index, "time", SimpleNamespace(sleep=sleep))
    assert run(["index", "rebuild", "--json"]) == CommandExit.INTERRUPTED
    assert looks == [True, False], "stopped, and waited for"
    assert json.loads(capsys.readouterr().out)[0]["outcome"] == "stopped"


def test_one_at_a_time(served: ServedAdmin, capsys: Capture) -> None:
    assert run(["index", "rebuild", "--no-watch"]) == 0
    assert capsys.readouterr().out == "a rebuild begins\n"
    assert run(["index", "rebuild", "--no-watch"]) == CommandExit.REFUSED
    assert "runs already" in capsys.readouterr().err


def test_stop(served: ServedAdmin, capsys: Capture) -> None:
    assert run(["index", "stop"]) == 0
    assert capsys.readouterr().out == "no rebuild runs\n"
    served.admin.integrity.rebuild_running = True
    assert run(["index", "stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopping": True}
