"""The job `space`; see `reporting`."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_bookie.jobs.framework.arguments import DAY_S, DURATION, argument
from pyspark_bookie.jobs.framework.common import CommonArguments
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult


@dataclass(frozen=True, kw_only=True)
class AdminArguments(CommonArguments):
    """Of jobs that ask the bookies' admin API."""

    admin_token_file: str | None = argument(None, help="File with the token of the admin API.", metavar="FILE")
    admin_ca_file: str | None = argument(
        None, help="Authorities to trust, of bookies that serve HTTPS.", metavar="FILE"
    )
    admin_certificate_file: str | None = argument(None, help="Certificate shown to the admin API.", metavar="FILE")
    admin_key_file: str | None = argument(None, help="Its key.", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class SpaceArguments(SelectionArguments, AdminArguments):
    """By default all ledgers."""

    entry_logs: int = argument(0, help="Look at so many entry logs of each bookie one by one.", metavar="N")
    window: float = argument(
        7 * DAY_S, help="The forecast goes by what was written in so long, and is still there.", kind=DURATION
    )
    leaked_after: float = argument(
        3 * DAY_S, help="A ledger that its owner does not list is leaked when it is so old.", kind=DURATION
    )
    managed_ledgers: str = argument("/managed-ledgers", help="Where Pulsar keeps its lists.", metavar="PATH")


@job("space")
class SpaceJob:
    """Tell why disks are full: bytes by owner, garbage by bookie, leaked ledgers, and when the space will be used up.

    Owners come from the ledgers' custom metadata and from the lists of streams and of Pulsar; garbage from the bookies'
    admin API. Changes nothing. Exit code 2: there are leaked ledgers, or bookies that could not be asked.
    """

    Arguments = SpaceArguments

    def run(self, context: JobContext[SpaceArguments]) -> JobResult:
        """See the class."""
        from pyspark_bookie.jobs.space.reporting import report

        return report(context)
