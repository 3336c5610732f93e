"""A disk that `bookie disk` converted, or whose indexes it rebuilt, is opened by the Java bookie and misses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bookie_pod.cli.main import run
from tests.interop.acknowledged import read_back
from tests.interop.java_programs import run_program
from tests.support.bookie_process import DB_STORAGE, INTERLEAVED_STORAGE, SORTED_STORAGE

# (who writes, with which engine, commands, engine of the Java bookie that reads)
_CASES = {
    "sorted-of-ours-to-db": ("ours", SORTED_STORAGE, [["convert", "--to", "db"]], DB_STORAGE),
    "java-db-rebuilt-to-interleaved": (
        "java",
        DB_STORAGE,
        [["rebuild-ledgers"], ["rebuild-locations"], ["convert", "--to", "interleaved"]],
        INTERLEAVED_STORAGE,
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_java_opens_what_our_tools_made(class_path, solo, tmp_path, case):
    writer, storage, commands, reading = _CASES[case]
    bookie = solo.bookie(writer, {"ledgerStorageClass": storage, "flushInterval": "500"})
    try:
        bookie.start()
        states, acks = tmp_path / "states", tmp_path / "acks"
        run_program(class_path, "LedgerStates", solo.metadata_uri, "write", str(states))
        run_program(class_path, "AckWriter", solo.metadata_uri, str(acks), "V2", "4", "3000")
        bookie.stop()
        directories = bookie.configuration
        folders = ["--journal-dir", directories["journalDirectories"], "--ledger-dir", directories["ledgerDirectories"]]
        if ["rebuild-locations"] in commands:
            shutil.rmtree(Path(directories["ledgerDirectories"]) / "current/locations")
        for command in commands:
            assert run(["disk", *command, *folders]) == 0, command
        assert run(["disk", "check", *folders]) == 0
        directories["ledgerStorageClass"] = reading
        bookie = solo.successor(bookie, "java")
        bookie.start()
        # With index files the reference takes any key for a ledger that it knows from its index only.
        verb = "verify" if reading == DB_STORAGE else "verify-without-keys"
        run_program(class_path, "LedgerStates", solo.metadata_uri, verb, str(states))
        read_back(class_path, solo, acks, "V3", "java")
    finally:
        solo.discard(bookie)
