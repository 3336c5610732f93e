"""What the trial shows."""

from array import array

from rich.console import Console

from bookie_pod.cli.trial_view import TrialProgress, report_table
from bookie_pod.node.standalone.trial import TrialReport


def shown(renderable):
    console = Console(width=100, force_terminal=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(renderable)
        return console.export_text()


def report(**changes):
    settings = {
        "file": "some.log",
        "size": 3000,
        "ensemble": ("b1", "b2", "b3"),
        "final_ensemble": ("b1", "b2", "b3"),
        "entries": 3,
        "write_seconds": 0.5,
        "latencies": array("d", [0.003, 0.001, 0.002]),
        "killed": "b2",
        "acknowledged_before_kill": 1,
        "acknowledged_after_kill": 2,
        "replicas_missing": ("b2",),
        "entries_read": 3,
        "bytes_equal": 3000,
        "read_seconds": 0.1,
        "served_by": {"b3": 1, "b1": 2},
        "digest_written": "abc",
        "digest_read": "abc",
    }
    return TrialReport(**{**settings, **changes})


def test_a_trial_that_passed():
    text = shown(report_table(report()))
    assert "every byte came back" in text
    assert "3 entries in 0.50 s: 6 entries/s" in text
    assert "p50 2.0 ms, p99 3.0 ms, max 3.0 ms" in text
    assert "1 entries before the kill, 2 after it" in text
    assert "went on without b2" in text
    assert "b1 2, b3 1" in text
    assert "3,000 of 3,000 bytes" in text


def test_a_trial_that_failed_says_why():
    text = shown(report_table(report(problem="entry 1 differs", bytes_equal=1000, digest_read="")))
    assert "FAILED" in text
    assert "entry 1 differs" in text
    assert "1,000 of 3,000 bytes" in text
    assert "came back" not in text


def test_an_ensemble_change_and_a_trial_without_a_kill():
    text = shown(report_table(report(final_ensemble=("b1", "b4", "b3"))))
    assert "changed to b1, b4, b3" in text
    assert "kill" not in shown(report_table(report(killed=None)))


def test_a_trial_without_entries():
    text = shown(report_table(report(latencies=array("d"), entries=0, size=0, write_seconds=0.0, served_by={})))
    assert "p50 0.0 ms" in text
    assert "nobody" in text


def test_without_a_terminal_phases_are_lines_and_bars_are_none(capsys):
    console = Console(force_terminal=False)
    with TrialProgress(console) as progress:
        progress.phase("writing", 10)
        progress.advance(10)
        progress.event("something happened")
    assert capsys.readouterr().out == "writing ...\nsomething happened\n"
