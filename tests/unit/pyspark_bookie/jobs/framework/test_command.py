"""What happens around a job: exit codes, the result row, progress, signals. No Spark."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bookie_protocol.errors import MetadataUnavailable
from pyspark_bookie.jobs.framework import command
from pyspark_bookie.jobs.framework.arguments import CommonArguments, argument
from pyspark_bookie.jobs.framework.command import main
from pyspark_bookie.jobs.framework.context import JobContext, Progress
from pyspark_bookie.jobs.framework.result import MAX_ROW_BYTES, JobExit, JobResult, ResultRow
from pyspark_bookie.jobs.framework.tasks import last_line


@dataclass(frozen=True, kw_only=True)
class SampleArguments(CommonArguments):
    end: str = argument("ok", help="How it ends.")


class SampleJob:
    """Ends in some way.

    For tests.
    """

    Arguments = SampleArguments

    def run(self, context: JobContext[SampleArguments]) -> JobResult:
        context.progress(1, 2, "ledgers")
        match context.args.end:
            case "findings":
                table = pa.table({"ledger_id": list(range(30)), "what": ["LOST"] * 30})
                return JobResult({"ledgers": 30}, table, JobExit.FINDINGS, complete=False)
            case "refused":
                raise MetadataUnavailable("zk1:2181 does\nnot answer")
            case "bug":
                raise KeyError("x")
            case "interrupt":
                raise KeyboardInterrupt
            case "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
        return JobResult({"ledgers": 3, "bytes": 1234567})


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    find = command.find_job
    monkeypatch.setattr(command, "find_job", lambda name: SampleJob if name == "sample" else find(name))
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str, str]:
    code = main(["sample", "--metadata", "m", *arguments])
    printed = capsys.readouterr()
    return code, json.loads(printed.out.splitlines()[-1]), printed.out, printed.err


def test_a_good_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    code, row, out, err = run(capsys, "--result", str(path), "--dry-run")
    assert (code, row["job"], row["status"], row["exit_code"], row["complete"]) == (0, "sample", "ok", 0, True)
    assert (row["dry_run"], row["ledgers"], row["bytes"]) == (True, 3, 1234567)
    assert "1,234,567" in out
    assert err == "sample: 1 of 2 ledgers (50 %)\n"
    assert json.loads(path.read_text()) == row


def test_findings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, row, out, err = run(capsys, "--end", "findings", "--report", str(tmp_path / "report"))
    assert (code, row["status"], row["complete"]) == (2, "findings", False)
    assert out.count("LOST") == 20
    assert "... and more; --report URI keeps all of them" in out
    assert "findings in " in err
    assert pq.ParquetDataset(tmp_path / "report").read().num_rows == 30
    main(["sample", "--metadata", "m", "--end", "findings", "--report", str(tmp_path / "report")])
    assert pq.ParquetDataset(tmp_path / "report").read().num_rows == 60


def test_a_report_that_cannot_be_written_takes_no_findings_away(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    code, row, out, err = run(capsys, "--end", "findings", "--report", f"{tmp_path}/file/report")
    assert (code, row["ledgers"], out.count("LOST")) == (1, 30, 20)
    assert row["error"].startswith(f"--report: {tmp_path}/file/report/run=")
    assert row["error"].endswith("; is --report right, and may this process use it?")
    assert "Traceback" not in err


def test_a_report_that_means_nothing_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    code, row, _, err = run(capsys, "--end", "findings", "--report", "nosuch://x")
    assert (code, "ledgers" in row, "Traceback" in err) == (1, False, False)
    assert "--report nosuch://x: " in row["error"]


@pytest.mark.parametrize(
    ("end", "code", "status", "told"),
    [
        ("refused", 1, "error", "zk1:2181 does not answer"),
        ("bug", 1, "error", "KeyError: 'x'"),
        ("interrupt", 130, "interrupted", "interrupted; another run goes on"),
        ("terminate", 143, "interrupted", "terminated; another run goes on"),
    ],
)
def test_bad_ends_are_one_line_and_have_a_row(
    capsys: pytest.CaptureFixture[str], end: str, code: int, status: str, told: str
) -> None:
    ended, row, _, err = run(capsys, "--end", end)
    assert (ended, row["exit_code"], row["status"], row["complete"]) == (code, code, status, False)
    assert row["error"] == told
    assert err.splitlines()[-1] == f"bookie: {told}"
    assert ("Traceback" in err) is (end == "bug")


def test_a_wrong_command_line_has_a_row_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    code, row, _, _ = run(capsys, "--ende", "x", f"--result={path}")
    assert (code, row["status"]) == (1, "error")
    assert row["error"] == "bookie job sample: unknown argument --ende: did you mean --end?"
    assert json.loads(path.read_text()) == row
    assert run(capsys, "--result", str(tmp_path / "no" / "row.json"))[0] == 1


def test_the_list_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "  offload " in capsys.readouterr().out
    assert main([]) == 1
    capsys.readouterr()


def test_no_job_ends_because_a_terminal_does_not_know_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "latin-1", "strict"))
    monkeypatch.setattr(command, "summary", lambda _: "cut\N{HORIZONTAL ELLIPSIS}")
    assert main(["--help"], own_process=True) == 0
    sys.stdout.flush()
    assert b"cut\\u2026\n" in output.getvalue()


def test_a_row_fits_into_a_containers_last_words() -> None:
    row = ResultRow("x", counters={f"counter_{n}": "y" * 300 for n in range(100)}, error="z " * 3000)
    line = row.line()
    assert len(line) <= MAX_ROW_BYTES
    assert json.loads(line)["job"] == "x"


def test_progress_is_a_line_each_two_seconds() -> None:
    stream, now = io.StringIO(), [0.0]
    progress = Progress("x", stream, clock=lambda: now[0])
    for step in range(100):
        now[0] = step / 10
        progress(step * 1e6, 1e8, "bytes", "7 ledgers")
    progress.close()
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "x: 0 of 100 MB (0 %), 7 ledgers"
    assert lines[-1] == "x: 99 of 100 MB (99 %), 0 s to go, 7 ledgers"
    assert len(lines) == 6


def test_how_much_there_is_to_do_is_shown_at_once() -> None:
    """Of each part of the work, and only once."""
    stream = io.StringIO()
    progress = Progress("x", stream, clock=lambda: 0.0)
    progress(1, None, "ledgers", "reading metadata")
    progress(2, None, "ledgers", "reading metadata")
    for done in (0, 0, 1e6):
        progress(done, 2e6, "bytes")
    progress(0, 3, "ledgers", "deleted")
    progress(1, 3, "ledgers", "deleted")
    assert stream.getvalue().splitlines() == [
        "x: 1 ledgers, reading metadata",
        "x: 0 of 2 MB (0 %)",
        "x: 0 of 3 ledgers (0 %), deleted",
    ]


def test_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    context = JobContext("x", SampleArguments(metadata="m", time_limit=5.0), clock=lambda: now[0])
    assert (context.in_time, context.deadline) == (True, 105.0)
    now[0] = 105.0
    assert not context.in_time
    assert JobContext("x", SampleArguments(metadata="m"), clock=lambda: 1e9).in_time


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("An error occurred\n  File\nx.PodkeeperSparkError: [BOOKIE_X] ledger 7\n\tat y", "[BOOKIE_X] ledger 7"),
        (
            "An error\norg.apache.spark.SparkException: Job aborted\nTraceback (most recent call last):\n  File\n"
            "ModuleNotFoundError: No module named 'x'\n\n\tat org.apache.spark",
            "ModuleNotFoundError: No module named 'x'",
        ),
        ("[PARSE_SYNTAX_ERROR] near 'x'\n== SQL ==", "[PARSE_SYNTAX_ERROR] near 'x'"),
        ("", "Exception"),
    ],
)
def test_of_sparks_errors_the_line_that_matters(text: str, told: str) -> None:
    assert last_line(Exception(text)) == told
