"""The output of `bookie trial`: progress on a terminal, one table at the end."""

from __future__ import annotations

from dataclasses import fields

from rich.console import Console
from rich.progress import DownloadColumn, TaskID, TransferSpeedColumn
from rich.table import Table

from bookie_pod.cli.progress import Shown, bars
from bookie_pod.node.standalone.trial import ACK_QUORUM, ENSEMBLE, WRITE_QUORUM, TrialReport

_MB = 1_000_000
_REPORT_BYTES = 1 << 20


class TrialProgress(Shown):
    """A bar per phase on a terminal; elsewhere one line per event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = bars(console, DownloadColumn(), TransferSpeedColumn())
        self._task: TaskID | None = None
        self._unreported = 0

    def phase(self, text: str, total: int | None = None) -> None:
        """The next phase begins; `total` in bytes."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(text, total=total)
        self._unreported = 0
        if not self._console.is_terminal:
            self._console.print(f"{text} ...")

    def advance(self, nbytes: int) -> None:
        """Show so many bytes more."""
        self._unreported += nbytes
        if self._unreported >= _REPORT_BYTES and self._task is not None:
            self._bars.advance(self._task, self._unreported)
            self._unreported = 0

    def event(self, text: str) -> None:
        """Something worth a line."""
        self._console.print(text, highlight=False)


def report_members(report: TrialReport) -> dict[str, object]:
    """The report as JSON shows it; latencies are quantiles, in seconds."""
    members = {field.name: getattr(report, field.name) for field in fields(report) if field.name != "latencies"}
    latencies = {name: report.latency(at) for name, at in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
    return members | {"append_seconds": latencies, "served_by": dict(report.served_by)}


def report_table(report: TrialReport) -> Table:
    """The report for people."""
    passed = report.problem is None
    table = Table(title="bookie trial: " + ("every byte came back" if passed else "FAILED"), show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _rows(report):
        table.add_row(name, value)
    return table


def _rows(report: TrialReport) -> list[tuple[str, str]]:
    rows = [
        ("file", f"{report.file}, {report.size:,} bytes"),
        (
            "ledger",
            f"{report.ledger_id}, ensemble {ENSEMBLE}, write quorum {WRITE_QUORUM}, ack quorum {ACK_QUORUM}"
            f" on {', '.join(report.ensemble)}",
        ),
        ("start", f"{report.start_seconds:.2f} s until all bookies served"),
        ("written", _rate(report.entries, report.size, report.write_seconds)),
        (
            "acknowledgement",
            f"p50 {report.latency(0.5) * 1000:.1f} ms, p99 {report.latency(0.99) * 1000:.1f} ms,"
            f" max {report.latency(1) * 1000:.1f} ms",
        ),
    ]
    if report.killed is not None:
        rows += [
            ("killed", f"{report.killed} (SIGKILL) {report.killed_at:.2f} s after the first append"),
            (
                "acknowledged",
                f"{report.acknowledged_before_kill:,} entries before the kill,"
                f" {report.acknowledged_after_kill:,} after it",
            ),
            ("ensemble", _ensemble(report)),
        ]
    rows += [
        ("read back", _rate(report.entries_read, report.bytes_equal, report.read_seconds)),
        ("served by", ", ".join(f"{name} {count:,}" for name, count in sorted(report.served_by.items())) or "nobody"),
        ("equal", f"{report.bytes_equal:,} of {report.size:,} bytes"),
        ("sha256", f"{report.digest_read or '-'}" + (" (written and read)" if report.problem is None else "")),
    ]
    if report.problem is not None:
        rows.append(("problem", report.problem))
    return rows


def _ensemble(report: TrialReport) -> str:
    if report.final_ensemble != report.ensemble:
        return f"changed to {', '.join(report.final_ensemble)}"
    if report.replicas_missing:
        return f"no spare bookie: went on without {', '.join(report.replicas_missing)}"
    return "unchanged"


def _rate(entries: int, nbytes: int, seconds: float) -> str:
    if seconds <= 0:
        return f"{entries:,} entries"
    return (
        f"{entries:,} entries in {seconds:.2f} s: {entries / seconds:,.0f} entries/s, {nbytes / seconds / _MB:.1f} MB/s"
    )
