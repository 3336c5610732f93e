"""The arguments that every job has.

Passwords of ledgers are read from a file only; without one the password that a ledger recorded counts, because jobs are
administration: whoever can read the metadata could read it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from pyspark_bookie.common.access import URI_VARIABLE, AccessOptions
from pyspark_bookie.common.options import parse
from pyspark_bookie.jobs.framework.arguments import COUNT, DURATION, NICENESS, RATE, UsageError, argument

GENTLE_BYTES_PER_SECOND: Final = 16 * 1024 * 1024
"""For each slot, of a job that walks everything: the rate of an auto-recovery (`replicationRateByBytes`)."""


@dataclass(frozen=True, kw_only=True)
class CommonArguments:
    """Each job's `Arguments` extend this."""

    slot_bytes_per_second: ClassVar[int | None] = None
    """What each slot may move where `--max-bytes-per-second` is not given; None: no limit."""

    metadata: str = argument(help="URI of the cluster's metadata service.", metavar="URI", env=URI_VARIABLE)
    option: tuple[str, ...] = argument(
        (),
        help="How the cluster is reached, by the data source's option names, such as tls.caFile or client.readTimeout;"
        " may be given several times.",
        metavar="NAME=VALUE",
    )
    password_file: str | None = argument(
        None,
        help="File with the ledgers' password, on every executor too. Default: what each ledger recorded.",
        metavar="FILE",
    )
    dry_run: bool = argument(False, help="Say what would be done, and change nothing.")
    older_than: float | None = argument(None, help="Only ledgers made at least so long ago, such as 3d.", kind=DURATION)
    where: str | None = argument(
        None, help='Only ledgers for which this SQL condition holds, such as "bytes > 1e9".', metavar="SQL"
    )
    max_concurrent: int | None = argument(
        None, help="Pieces of work at a time. Default: as many as Spark has slots.", metavar="N", kind=COUNT
    )
    max_bytes_per_second: float | None = argument(
        None,
        help="Limit of the whole job, such as 100m; none: no limit. Default: 16m for each slot of a job that walks"
        " everything (audit, scrub, offload, recover), no limit for others.",
        metavar="SIZE|none",
        kind=RATE,
    )
    time_limit: float | None = argument(
        None, help="Begin nothing new after so long; the next run goes on.", kind=DURATION
    )
    report: str | None = argument(None, help="Write findings and details there as Parquet.", metavar="URI")
    result: str | None = argument(None, help="Write the result row, one line of JSON, there too.", metavar="FILE")
    niceness: int = argument(
        19,
        help="How far the processes that a job starts on this machine step back from the processors, as nice counts.",
        metavar="0..19",
        kind=NICENESS,
    )
    master: str | None = argument(None, help="Spark's master. Default: spark-submit's, else local[*].", metavar="URL")

    def bytes_per_second(self, slots: int) -> float | None:
        """The limit of all that so many slots move together; None: no limit."""
        if self.max_bytes_per_second is not None:
            return None if math.isinf(self.max_bytes_per_second) else self.max_bytes_per_second
        return None if self.slot_bytes_per_second is None else float(self.slot_bytes_per_second * slots)

    def access(self) -> AccessOptions:
        """How tasks and driver reach the cluster. Raises `PodkeeperSparkError` (OPTION), or `UsageError`."""
        return access_options(self.metadata, self.option, self.password_file)


def access_options(metadata: str, options: tuple[str, ...], password_file: str | None) -> AccessOptions:
    """As `CommonArguments.access`, for a second cluster. `password_file` None: recorded passwords count."""
    raw = {"metadataServiceUri": metadata}
    for text in options:
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError("--option: must be NAME=VALUE")  # a word alone may be a secret
        raw[name] = value
    if password_file is not None:
        raw["passwordFile"] = password_file
    else:
        raw["recordedPasswords"] = "true"
    return parse(raw, AccessOptions)
