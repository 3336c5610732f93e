"""Commands of `bookie disk` that look change nothing: every byte and every name in the directories stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_pod.cli.disk import disk as disk_group
from bookie_pod.cli.main import run
from bookie_pod.storage.inspect.layout import DiskLayout
from tests.support.stored_disks import golden_disk

LOOKING = {
    "at": ("0", "1100"),
    "check": (),
    "cookie": (),
    "files": (),
    "lastmark": (),
    "ledger": ("7", "--check"),
    "ledgers": ("--entries",),
    "locate": ("7", "3"),
    "logs": (),
    "readjournal": (),
    "readlog": ("0",),
    "readlogmetadata": ("0",),
}
CHANGING = {
    *("convert", "finish", "format", "rebuild-index-files", "rebuild-ledgers", "rebuild-locations", "rename-bookie")
}


def state(layout: DiskLayout) -> dict[str, bytes | None]:
    """By path: the bytes of a file, None for a folder."""
    tops = {Path(folder).parent for folder in (*layout.journals, *layout.ledgers, *layout.indexes)}
    return {str(path): path.read_bytes() if path.is_file() else None for top in tops for path in top.rglob("*")}


def test_every_command_is_of_one_kind() -> None:
    assert set(disk_group.commands) == LOOKING.keys() | CHANGING


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_looking_changes_nothing(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    layout = golden_disk(engine, tmp_path)
    before = state(layout)
    options: list[str] = []
    for flag, folders in (("--journal-dir", layout.journals), ("--ledger-dir", layout.ledgers)):
        for folder in folders:
            options += [flag, folder.removesuffix("/current")]
    for name, arguments in LOOKING.items():
        assert run(["disk", name, *arguments, *options]) == 0, name
        assert state(layout) == before, name
