"""The arguments of the job `offload`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_bookie.archive.manifest import PARTITIONS
from pyspark_bookie.jobs.framework.arguments import DAY_S, DURATION, GENTLE_BYTES_PER_SECOND, SIZE, UsageError, argument
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments, check_selection

DEFAULT_CATALOG: Final = "default"
"""Name of the catalogue that pyiceberg takes if it is given none."""


@dataclass(frozen=True, kw_only=True)
class OffloadArguments(SelectionArguments):
    """The arguments of `offload`."""

    slot_bytes_per_second = GENTLE_BYTES_PER_SECOND

    target: str = argument(help="The archive: a folder, s3://bucket/path, hdfs://... or file:///...", metavar="URI")
    partition_by: str = argument("date", help="How data files are laid out.", choices=PARTITIONS)
    max_file_bytes: int = argument(1 << 30, help="A ledger with more payload gets several files.", kind=SIZE)
    delete_after: float | None = argument(
        None, help="Delete ledgers from the cluster so long after they were archived. Default: never.", kind=DURATION
    )
    keep_listed: bool = argument(
        False,
        help="Delete what streams list, too, and leave it in them: the Spark source reads it from the archive, other"
        " readers of a stream do not. A cursor that has not passed a ledger keeps it.",
    )
    iceberg_table: str | None = argument(
        None,
        help="Add the archived files to this Iceberg table, each once; it is created if there is none.",
        metavar="NAMESPACE.TABLE",
    )
    iceberg_catalog: str = argument(
        DEFAULT_CATALOG,
        help="The catalogue of --iceberg-table, by its name in pyiceberg's configuration.",
        metavar="NAME",
    )
    orphans_older_than: float = argument(
        3 * DAY_S, help="Remove files of dead attempts that are at least so old.", kind=DURATION
    )


def check_arguments(args: OffloadArguments) -> None:
    """Raises `UsageError` for arguments that do not fit together."""
    check_selection(args)
    if args.keep_listed and args.delete_after is None:
        raise UsageError("--keep-listed is about ledgers that are deleted: give --delete-after, too")
    if args.iceberg_table is None and args.iceberg_catalog != DEFAULT_CATALOG:
        raise UsageError("--iceberg-catalog is about a table: give --iceberg-table, too")
