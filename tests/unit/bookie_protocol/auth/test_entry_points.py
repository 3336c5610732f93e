"""Providers that other packages declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_protocol.auth.entry_points import BOOKIE, CLIENT, make_provider
from bookie_protocol.errors import InvalidConfiguration
from tests.support.auth import TwoTokens, TwoTokensClient

DECLARED = f"""
[{BOOKIE}]
ours = tests.unit.bookie_protocol.auth.test_entry_points:bookie_auth
gone = tests.no_such_module:anything
[{CLIENT}]
ours = tests.unit.bookie_protocol.auth.test_entry_points:client_auth
"""


def bookie_auth(config_file: str | None) -> TwoTokens:
    if config_file is None:
        raise ValueError("it needs authProviderConfigFile")
    return TwoTokens()


def client_auth(config_file: str | None) -> TwoTokensClient:
    return TwoTokensClient(Path(str(config_file)).read_bytes())


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with these entry points, and the provider's file."""
    information = tmp_path / "ours-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(DECLARED)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "file"
    file.write_bytes(b"secret")
    return file


def test_both_sides(installed: Path) -> None:
    assert make_provider(BOOKIE, "ours", str(installed)).plugin_name == "TestAuth"
    assert make_provider(CLIENT, "ours", str(installed)).secret == b"secret"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("theirs", "authProviderEntryPoint=theirs"),
        ("ours", "authProviderEntryPoint=ours"),
        ("gone", "authProviderEntryPoint=gone"),
    ],
)
def test_what_refuses_a_start(name: str, says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        make_provider(BOOKIE, name, None)
