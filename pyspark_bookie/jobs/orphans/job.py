"""The job `orphans`; see `searching`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_bookie.jobs.framework.arguments import DAY_S, DURATION, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult

SINK_ATTEMPTS: Final = "sink-attempts"
STREAM_LEDGERS: Final = "stream-ledgers"
STREAM_SEGMENTS: Final = "stream-segments"
OFFLOADS: Final = "offload-files"
GONE_STREAMS: Final = "gone-streams"
MANAGED_LEDGERS: Final = "managed-ledgers"
KINDS: Final = (SINK_ATTEMPTS, STREAM_LEDGERS, STREAM_SEGMENTS, OFFLOADS, GONE_STREAMS, MANAGED_LEDGERS)
DEFAULT_KINDS: Final = (SINK_ATTEMPTS, STREAM_LEDGERS, STREAM_SEGMENTS, OFFLOADS)


@dataclass(frozen=True, kw_only=True)
class OrphansArguments(SelectionArguments):
    """By default all ledgers, older than three days, and nothing is removed."""

    dry_run: bool = argument(True, help="List what is left behind, and remove nothing. --no-dry-run removes it.")
    older_than: float | None = argument(
        3 * DAY_S, help="Only what was made at least so long ago: until then its writer may live.", kind=DURATION
    )
    kind: tuple[str, ...] = argument(
        (),
        help=f"What to look for; may be given several times: {', '.join(KINDS)}. Default: all but the last"
        " two: ledgers of a stream that was deleted may have been kept, and Pulsar removes its own.",
        metavar="KIND",
    )
    target: str | None = argument(None, help="Archive of the job offload, for offload-files.", metavar="URI")
    managed_ledgers: str = argument("/managed-ledgers", help="Where Pulsar keeps its lists.", metavar="PATH")


@job("orphans")
class OrphansJob:
    """List, and on demand remove, what failed attempts and dead writers left behind.

    Ledgers of Spark's sink and of streams that no manifest lists, segments of manifests that nobody names, files of
    offloads that were given up. Removes nothing without --no-dry-run, and nothing that is younger than --older-than.
    Exit code 2: something was found and not removed.
    """

    Arguments = OrphansArguments

    def run(self, context: JobContext[OrphansArguments]) -> JobResult:
        """See the class."""
        from pyspark_bookie.jobs.orphans.searching import search

        return search(context)
