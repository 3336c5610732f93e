"""`bookie trial`: the main job, as its users run it."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bookie_pod.node.standalone.trial import TrialOptions, run_trial, write_sample_log
from tests.support.until import until

SIZE = 3 * 2_000_001  # several windows
BOOKIE = Path(sys.executable).with_name("bookie")


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("sample") / "sample.log"
    write_sample_log(path, SIZE)
    return path


@pytest.fixture
def file(sample, tmp_path):
    """One that a test may change."""
    return shutil.copy(sample, tmp_path / "some.log")


class Recorder:
    """A progress that remembers, and acts at a phase."""

    def __init__(self, at=None, action=None):
        self.phases = []
        self.events = []
        self.advanced = 0
        self._at, self._action = at, action

    def phase(self, text, total=None):
        self.phases.append(text)
        if text == self._at:
            self._action()

    def advance(self, nbytes):
        self.advanced += nbytes

    def event(self, text):
        self.events.append(text)


async def test_every_byte_comes_back_although_a_bookie_was_killed(file, warm_bookies):
    progress = Recorder()
    report = await run_trial(TrialOptions(file=file, entry_size=700), progress)
    assert report.problem is None
    assert report.bytes_equal == SIZE
    assert report.entries == report.entries_read == -(-SIZE // 700) == len(report.latencies)
    assert report.digest_read == hashlib.sha256(file.read_bytes()).hexdigest()
    assert report.killed in report.ensemble
    assert report.replicas_missing == (report.killed,)
    assert report.killed not in report.served_by
    assert report.acknowledged_before_kill + report.acknowledged_after_kill == report.entries
    assert 0 < report.acknowledged_before_kill < report.entries
    assert 0 < report.latency(0.5) <= report.latency(0.99) <= report.latency(1)
    assert progress.advanced == 2 * SIZE
    assert len(progress.events) == 1


async def test_with_a_fourth_bookie_the_ensemble_changes(file, warm_bookies):
    report = await run_trial(TrialOptions(file=file, bookies=4), Recorder())
    assert (report.problem, report.replicas_missing) == (None, ())
    assert report.killed in report.ensemble
    assert report.killed not in report.final_ensemble
    assert len({*report.ensemble, *report.final_ensemble}) == 4


@pytest.mark.parametrize("size", [0, 1, 3000])
async def test_files_that_are_smaller_than_the_window(tmp_path, size, warm_bookies):
    small = tmp_path / "small"
    small.write_bytes(bytes(size))
    report = await run_trial(TrialOptions(file=small), Recorder())
    assert (report.problem, report.bytes_equal, report.entries_read) == (None, size, -(-size // 1024))
    assert (report.killed is not None) == (size > 0)


async def test_a_byte_that_did_not_come_back_is_found(file, warm_bookies):
    def flip():
        with file.open("r+b") as changed:
            changed.seek(1_234_567)
            byte = changed.read(1)[0]
            changed.seek(1_234_567)
            changed.write(bytes([byte ^ 1]))

    report = await run_trial(TrialOptions(file=file, kill=False), Recorder("reading back", flip))
    assert report.problem == f"entry 1205 differs from the file at byte {1205 * 1024:,}"
    assert report.bytes_equal == 1205 * 1024


async def test_a_ledger_shorter_than_the_file_is_found(file, warm_bookies):
    def grow():
        with file.open("ab") as longer:
            longer.write(bytes(5000))

    report = await run_trial(TrialOptions(file=file, kill=False, entry_size=2_000_001), Recorder("reading back", grow))
    assert report.problem == "the ledger ends 5,000 bytes before the file does"


def test_the_command_reports_and_ends_with_0(file, tmp_path):
    run = subprocess.run(
        [BOOKIE, "trial", file, "--data", tmp_path / "data"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert "every byte came back" in run.stdout
    assert f"{SIZE:,} of {SIZE:,} bytes" in run.stdout
    assert "SIGKILL to bookie-" in run.stdout
    assert not (tmp_path / "data" / "sample.log").exists()


def test_a_file_that_is_not_there_is_one_line_and_exit_code_1(tmp_path):
    run = subprocess.run(
        [BOOKIE, "trial", tmp_path / "none"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr == f"bookie: {tmp_path}/none is not a file; name an existing file, or none for a generated log\n"


async def test_sigterm_stops_it_and_leaves_neither_processes_nor_files(file, tmp_path):
    output = (tmp_path / "output").open("wb")
    process = subprocess.Popen(  # noqa: ASYNC220 - the test waits for it by itself
        [BOOKIE, "trial", file, "--entry-size", "16"],  # which lasts
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    output.close()
    try:
        await until(lambda: b"writing" in (tmp_path / "output").read_bytes(), 60)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert "trial stopped" in (tmp_path / "output").read_text()
    assert list(tmp_path.glob("bookie-trial-*")) == []
