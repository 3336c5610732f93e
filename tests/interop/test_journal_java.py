"""The reference's own tool reads our journals, with group checks and without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.journal import JournalBatch
from bookie_pod.storage.journal import format as fmt
from tests.support.java_bookie import java_shell
from tests.support.journal_rig import JournalRig, an_entry

BATCHES = [
    [fmt.key_record(7, b"k" * 20), fmt.entry_record(an_entry(7, 0, b"a" * 40))],
    [fmt.entry_record(an_entry(7, 1, b"x" * 900)), fmt.fence_record(7)],
    [fmt.explicit_lac_record(7, bytes(20)), fmt.entry_record(an_entry(7, 2, b"y" * 469))],
    [fmt.entry_record(an_entry(8, 0, b"z" * 40))],
]
EXPECTED = [(7, -0x1000), (7, 0), (7, 1), (7, -0x2000), (7, -0x8000), (7, 2), (8, 0)]


@pytest.mark.parametrize("checks", [True, False])
def test_readjournal(class_path: str, tmp_path: Path, checks: bool) -> None:
    directory = str(tmp_path / "journal" / "current")
    (tmp_path / "ledgers" / "current").mkdir(parents=True)
    with JournalRig(PosixFiles(), JournalConfig(group_checks=checks), directory=directory) as rig:
        for records in BATCHES:
            rig.add(JournalBatch.of(*records))
    configuration = tmp_path / "bookie.conf"
    configuration.write_text(
        f"journalDirectory={tmp_path}/journal\n"
        f"ledgerDirectories={tmp_path}/ledgers\n"
        "metadataServiceUri=zk+null://127.0.0.1:1/ledgers\n"
    )
    (name,) = rig.journals()
    output = java_shell(class_path, configuration, "readjournal", f"{directory}/{name}")
    found = [
        (int(ledger), int(entry)) for ledger, entry in re.findall(r"Entry ledgerId=(-?\d+) entryId=(-?\d+) pos", output)
    ]
    assert found == EXPECTED, output
