"""`bookie cluster rename-bookie` and `bookie disk rename-bookie`: what they print, refuse and write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_pod.cli.main import run
from bookie_pod.node.identity import rename
from bookie_pod.node.identity.cookies import COOKIE_FILE, Cookie, format_cookie, parse_cookie
from bookie_pod.node.identity.ownership import hold_directories
from tests.support.stored_disks import golden_disk

NEW = "new-0:3181"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    monkeypatch.setattr(rename, "SETTLE_S", 0.0)


def test_the_cookies_of_all_directories_get_the_new_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = golden_disk("db", tmp_path)
    paths = [Path(folder) / COOKIE_FILE for folder in layout.folders]
    before = [parse_cookie(path.read_bytes(), str(path)) for path in paths]
    old = before[0].bookie_id
    options = [f"--journal-dir={each}" for each in layout.journals] + [
        f"--ledger-dir={each}" for each in layout.ledgers
    ]
    words = ["disk", "rename-bookie", old, NEW, *options]
    assert run(["disk", "rename-bookie", "other:1", NEW, *options]) == 10
    assert "not of other:1; nothing was changed" in capsys.readouterr().err
    with hold_directories(layout.folders):
        assert run(words) != 0
    assert [parse_cookie(path.read_bytes(), str(path)) for path in paths] == before
    paths[-1].write_bytes(format_cookie(Cookie(NEW, "j", "1\tl")))  # as after a first try that was killed
    assert run(words) == 0
    assert run(words) == 0
    shown = capsys.readouterr().out.splitlines()
    number = len(paths)
    assert shown == [
        f"{changed} of {number} directories were of {old}; all are of {NEW} now" for changed in (number - 1, 0)
    ]
    after = [parse_cookie(path.read_bytes(), str(path)) for path in paths]
    assert {cookie.bookie_id for cookie in after} == {NEW}
    assert [cookie.instance_id for cookie in after[:-1]] == [cookie.instance_id for cookie in before[:-1]]
    paths[0].unlink()
    assert run(words) == 10
    assert "is not there: is this a directory of bookie" in capsys.readouterr().err


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A cluster with the cookie of a bookie that is stopped."""
    uri = str(tmp_path / "metadata")
    assert run(["cluster", "init", uri]) == 0
    file = tmp_path / "cookie"
    made = ["old:1", "-j", "/j", "-l", "/l", "-o", str(file), "--metadata", uri]
    assert run(["cluster", "cookie", "generate", *made]) == 0
    assert run(["cluster", "cookie", "create", "old:1", "-cf", str(file), "--metadata", uri]) == 0
    return uri


def test_the_command_looks_asks_and_renames(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cluster", "rename-bookie", "old:1", NEW, "--metadata", uri]
    capsys.readouterr()
    assert run([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out == "0 ledgers seen, 0 renamed; 0 name old:1 and can be renamed, 0 cannot\n"
    assert run(words) == 1
    assert (
        "rename-bookie asks before it changes ledgers, and there is no terminal: give --yes" in capsys.readouterr().err
    )
    assert run([*words, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["renamed"] == 0
    assert run([*words, "--yes"]) == 11
    assert "bookie old:1 has no cookie" in capsys.readouterr().err
    assert run(["cluster", "cookie", "get", NEW, "--metadata", uri]) == 0


@pytest.mark.parametrize(
    ("new", "told"), [("a/b", "'a/b' is not a valid bookie id"), ("old:1", "old:1 is its id already")]
)
def test_what_makes_no_sense(new: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "rename-bookie", "old:1", new, "--metadata", "file:///does/not/exist"]) == 1
    assert told in capsys.readouterr().err
