"""`bookie stream` on a stream without ledgers, on a metadata store in a folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bookie_client.streams import StreamSettings
from bookie_pod.cli.main import run

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
