"""`bookie disk check`: index against entry logs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from bookie_pod.cli.disk.group import disk, print_json
from bookie_pod.cli.disk.place import Place, need_ledgers, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON_LINES


@disk.command()
@click.option("--rows-only", is_flag=True, help="Only from the index to the logs, not back.")
@click.option("--allow-unindexed", is_flag=True, help="Entries without a row are no damage.")
@click.option(
    "--findings", default=100, show_default=True, type=click.IntRange(0, 100_000), help="Print at most these."
)
@AS_JSON_LINES
@on_disk()
def check(place: Place, rows_only: bool, allow_unindexed: bool, findings: int, as_json: bool) -> int:
    """Check that every row of the index points to its entry, and that every entry of a known ledger has a row.

    Every entry is read. Exit code 13 if something is wrong. Entries without a row are also what a ledger leaves that
    was removed from this bookie and came back: --allow-unindexed. (Apache: localconsistencycheck)
    """
    from bookie_pod.cli.progress import Bar
    from bookie_pod.storage.integrity.consistency import ConsistencyCheck

    need_ledgers(place)
    with place.spaces() as spaces:
        running = ConsistencyCheck(spaces.spaces, logs=not rows_only, max_findings=findings)
        report, shown = running.report, 0
        with Bar("checking rows and entries") as bar:
            while running.step():
                done = report.rows + report.entries
                bar.advance(done - shown)
                shown = done
    _print(report, as_json)
    failed = report.damages > 0 or (report.unindexed > 0 and not allow_unindexed)
    return CommandExit.DAMAGED if failed else CommandExit.OK


def _print(report: Any, as_json: bool) -> None:
    if as_json:
        shown = asdict(report)
        shown["counts"] = {kind.value: count for kind, count in report.counts.items()}
        shown["findings"] = [asdict(finding) | {"kind": finding.kind.value} for finding in report.findings]
        print_json(shown | {"sound": report.sound})
        return
    for finding in report.findings:
        click.echo(f"{finding.kind.value}: {finding.detail}")
    click.echo(
        f"{report.ledgers} ledgers, {report.rows} rows; {report.logs} entry logs, {report.entries} entries, "
        f"{report.unknown_ledger_entries} of them of ledgers that the index does not know"
    )
    for kind, count in report.counts.items():
        click.echo(f"{kind.value}: {count}")
    if report.sound:
        click.echo("Index and entry logs agree.")
