"""The command line of the jobs, and what happens around each.

Standard output has the summary table and, as its last line, the result row; everything else goes to standard error.
The row is printed however the job ends, a wrong command line included, and `--result FILE` has it too.

A report has the findings as Parquet files: `<report URI>/run=<start>/part-00000.parquet`, so that one URI serves all
runs of a job, and a reader sees them as a partitioned table.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from bookie_client.cpu_priority import yield_processors
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.shown import one_line, take_any_text
from pyspark_bookie.archive.files import Files
from pyspark_bookie.common.errors import PodkeeperSparkError, told
from pyspark_bookie.jobs.framework.arguments import HelpShown, UsageError, parse
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.registry import description, find_job, job_names, summary
from pyspark_bookie.jobs.framework.result import JobExit, JobResult, ResultRow
from pyspark_bookie.jobs.framework.tasks import UNEXPECTED, last_line, task_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import DataFrame, Row

PROGRAM: Final = "bookie job"
_SHOWN_FINDINGS: Final = 20


class _Terminated(BaseException):
    """SIGTERM, as an exception of the main thread, so that everything is closed."""


def main(arguments: Sequence[str], *, own_process: bool = False) -> int:
    """Run a job and return the exit code. `own_process`: it is all that this process is for, so `--niceness` counts,
    and standard output takes any text."""
    if own_process:
        take_any_text(sys.stdout)
    if not arguments or arguments[0] in ("-h", "--help"):
        _print_jobs()
        return JobExit.OK if arguments else JobExit.ERROR
    row = ResultRow(arguments[0])
    began = time.monotonic()
    with _terminable():
        try:
            _run(row, arguments, own_process)
        except HelpShown:
            return JobExit.OK
        except (UsageError, PodkeeperError, PodkeeperSparkError) as error:
            row.exit, row.error = JobExit.ERROR, str(error)
        except KeyboardInterrupt:
            row.exit, row.error, row.complete = JobExit.INTERRUPTED, "interrupted; another run goes on", False
        except _Terminated:
            row.exit, row.error, row.complete = JobExit.TERMINATED, "terminated; another run goes on", False
        except Exception as error:
            row.exit, row.error = JobExit.ERROR, _unexpected(error)
    if row.error is not None:
        row.complete = False
        print(f"bookie: {one_line(row.error)}", file=sys.stderr, flush=True)
    row.seconds = time.monotonic() - began
    return _tell(row, _result_file(arguments))


def run_job(context: JobContext[Any], row: ResultRow) -> JobResult:
    """Run the job of a context and fill the row."""
    result: JobResult = find_job(context.name)().run(context)
    row.counters, row.exit, row.complete = result.counters, result.exit, result.complete
    return result


def _run(row: ResultRow, arguments: Sequence[str], own_process: bool) -> None:
    found = find_job(arguments[0])
    args = parse(found.Arguments, f"{PROGRAM} {arguments[0]}", description(found), arguments[1:])
    row.dry_run = args.dry_run
    if args.report is not None:
        Files(args.report, "--report")  # an invalid URI is reported now, not when the work is done
    if own_process:
        yield_processors(args.niceness)  # before Java starts, which inherits it
    with JobContext(row.job, args) as context:
        result = run_job(context, row)
        context.progress.close()
        _show(row, result, args.report)


def _show(row: ResultRow, result: JobResult, report: str | None) -> None:
    """Findings, then the counters; the report is written first, because it is what lasts."""
    from rich.table import Table

    from bookie_protocol.console import console

    shown = console()
    if result.findings is not None:
        try:
            if report is not None:
                folder = write_report(result.findings, report, row.started)
                print(f"{row.job}: findings in {folder}", file=sys.stderr, flush=True)
        finally:
            _print_findings(shown, result.findings)
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in result.counters.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        table.add_row(name.replace("_", " "), text)
    shown.print(table)


def _print_findings(shown: Any, findings: Any) -> None:
    from rich.table import Table

    names, rows = _first_rows(findings, _SHOWN_FINDINGS + 1)
    if not rows:
        return
    table = Table(box=None)
    for name in names:
        table.add_column(name)
    for values in rows[:_SHOWN_FINDINGS]:
        table.add_row(*("" if value is None else one_line(value) for value in values))
    shown.print(table)
    if len(rows) > _SHOWN_FINDINGS:
        shown.print("... and more; --report URI keeps all of them")


def _first_rows(findings: Any, count: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    import pyarrow as pa

    if isinstance(findings, pa.Table):
        names = list(findings.column_names)
        return names, [tuple(row[name] for name in names) for row in findings.slice(0, count).to_pylist()]
    return list(findings.columns), [tuple(row) for row in findings.limit(count).collect()]


def _tell(row: ResultRow, path: str | None) -> int:
    line = row.line()
    if path is not None:
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            print(f"bookie: --result {path}: {error.strerror}", file=sys.stderr)
            row.exit = row.exit or JobExit.ERROR
    print(line, flush=True)
    return row.exit


def _result_file(arguments: Sequence[str]) -> str | None:
    """Return the value of `--result`, also where the rest of the command line is wrong."""
    for place, text in enumerate(arguments):
        if text.startswith("--result="):
            return text.partition("=")[2]
        if text == "--result" and place + 1 < len(arguments):
            return arguments[place + 1]
    return None


def _unexpected(error: Exception) -> str:
    """Return the message of an unexpected error: the relevant line of Spark's. Print the traceback of unknown ones."""
    if type(error).__module__.startswith(("pyspark", "py4j")):
        return last_line(error)
    foreseen = task_error(error)
    if foreseen.code == UNEXPECTED:
        traceback.print_exc(file=sys.stderr)
    return foreseen.message


def _print_jobs() -> None:
    print(f"Usage: {PROGRAM} NAME [arguments]; {PROGRAM} NAME --help tells about one.\n\nJobs:")
    names = job_names()
    width = max(map(len, names), default=0)
    for name in names:
        print(f"  {name:{width}}  {summary(find_job(name))}")


@contextmanager
def _terminable() -> Iterator[None]:
    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def write_report(findings: DataFrame | pa.Table, uri: str, started: datetime) -> str:
    """Write them; returns the folder, for messages. Raises `PodkeeperSparkError` (OPTION), `ArchiveUnavailable`."""
    import pyarrow as pa

    files = Files(uri, "--report")
    folder = f"run={started.strftime('%Y%m%dT%H%M%S.%fZ')}"
    files.make_folder(folder)
    if not isinstance(findings, pa.Table):
        try:
            rows = findings.rdd
        except Exception:  # Spark Connect has none: by way of the driver
            findings = findings.toArrow()
        else:
            _write_parts(rows, findings.schema.json(), uri, folder)
            return files.shown(folder)
    write_part(findings, files, folder, 0)
    return files.shown(folder)


def write_part(table: pa.Table, files: Files, folder: str, number: int) -> None:
    """One file; another of this number is replaced."""
    import pyarrow.parquet as pq

    path = f"{folder}/part-{number:05d}.parquet"
    with files.requests(path):
        pq.write_table(table, files.path(path), filesystem=files.system, compression="zstd")


def _write_parts(rows: RDD[Row], schema: str, uri: str, folder: str) -> None:
    """Write each partition to a file named by its number: a second attempt overwrites the first one's."""

    def write(number: int, part: Iterable[Row]) -> Iterator[int]:
        import json

        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        arrow = to_arrow_schema(StructType.fromJson(json.loads(schema)))
        table = pa.Table.from_pylist([row.asDict(recursive=True) for row in part], schema=arrow)
        if table.num_rows:
            with told("--report"):
                write_part(table, Files(uri, "--report"), folder, number)
        yield table.num_rows

    rows.mapPartitionsWithIndex(write).collect()
