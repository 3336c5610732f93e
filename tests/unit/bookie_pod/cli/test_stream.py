"""`bookie stream` on a stream without ledgers, on a metadata store in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bookie_client.streams import Manifest, StreamCursor, StreamPosition, StreamSettings
from bookie_client.streams.model import START, StreamLedger
from bookie_pod.cli.main import run
from bookie_pod.cli.stream.showing import _as_dict
from bookie_protocol.versioned import UNSTORED

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> str:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    uri = str(tmp_path / "metadata")
    monkeypatch.setenv("BK_metadataServiceUri", uri)
    assert run(["cluster", "init", uri]) == 0
    assert run(["stream", "create", "logs"]) == 0
    capsys.readouterr()
    return "logs"


def test_a_seal_as_json(stream: str, capsys: Capture) -> None:
    assert run(["stream", "seal", stream]) == 0
    end = capsys.readouterr().out.strip()
    assert run(["stream", "seal", stream, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stream": stream, "end": end}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_truncation_at_a_position_that_never_was_is_told(
    stream: str, capsys: Capture, as_json: tuple[str, ...]
) -> None:
    assert run(["stream", "truncate", stream, "--before", "99:5", "--yes", *as_json]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "warning: stream logs begins at -1:0, and 99:5 is not a position in it: it was truncated already, or it never"
        " was; nothing more was truncated\n"
    )


@pytest.mark.parametrize("where", [("--before", "latest"), ("--before", "earliest"), ("--retention",)])
def test_other_truncations_warn_of_nothing(stream: str, capsys: Capture, where: tuple[str, ...]) -> None:
    assert run(["stream", "truncate", stream, *where, *([] if where == ("--retention",) else ["--yes"])]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_stream_that_is_created_by_the_command_has_the_default_settings(stream: str, capsys: Capture) -> None:
    assert run(["stream", "info", stream, "--json"]) == 0
    made = StreamSettings()
    assert json.loads(capsys.readouterr().out)["settings"] == {**asdict(made), "digest": made.digest.name}


def info(*ledgers: StreamLedger, end: StreamPosition, cursors: Sequence[StreamPosition] = ()) -> dict[str, Any]:
    manifest = Manifest("logs", UNSTORED, 0, ledgers, StreamSettings())
    moved = {
        f"c{at}": StreamCursor("logs", f"c{at}", each, manifest.ordinal(each), 0) for at, each in enumerate(cursors)
    }
    return _as_dict(manifest, end, moved, frozenset(), frozenset())


def test_info_of_a_stream_without_ledgers() -> None:
    found = info(end=START)
    assert (found["end"], found["last_confirmed_entry"], found["newest_ledger"]) == (None, None, None)
    assert found["pending_adds"] == 0


def test_info_of_a_stream_whose_first_ledger_is_open() -> None:
    found = info(StreamLedger(7, 0, None, None, None), end=START, cursors=[START])
    assert (found["earliest"], found["end"], found["last_confirmed_entry"]) == ("7:0", "7:0", None)
    assert (found["newest_ledger"], found["pending_adds"], found["waiting_cursors"]) == (7, None, 1)
    assert [each["entries"] for each in found["ledgers"]] == [0]


def test_info_of_a_stream_that_is_being_written() -> None:
    closed = StreamLedger(7, 0, 5, 50, 1)
    found = info(
        closed,
        StreamLedger(9, 5, None, None, None),
        end=StreamPosition(9, 3),
        cursors=[StreamPosition(9, 3), StreamPosition(7, 1)],
    )
    assert (found["end"], found["last_confirmed_entry"], found["waiting_cursors"]) == ("9:3", "9:2", 1)
    assert [each["entries"] for each in found["ledgers"]] == [5, 3]
    assert info(closed, StreamLedger(9, 5, None, None, None), end=StreamPosition(7, 5))["last_confirmed_entry"] == "7:4"
