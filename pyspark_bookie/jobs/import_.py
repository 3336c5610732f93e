"""The job `import`: dumps are the source of a transfer, which makes ledgers of them.

A source is opened in any process, and one thread uses it then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bookie_protocol.archive import Counts
from bookie_protocol.errors import NoSuchLedger
from bookie_protocol.wire.framing import LEAST_RECEIVED_FRAME_SIZE
from pyspark_bookie.archive.files import Files, absolute_uri
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.arguments import LEDGERS, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import narrowed
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult, not_at_source, readable
from pyspark_bookie.jobs.transfer.dumps import Dumps
from pyspark_bookie.jobs.transfer.running import TransferArguments, TransferPlan, run_transfer
from pyspark_bookie.jobs.transfer.sources import LedgerAtSource, OpenSource, closed_row


@dataclass(frozen=True, kw_only=True)
class ImportArguments(TransferArguments):
    """The arguments of `import`."""

    source: str = argument(help="The folder that export has written.", metavar="URI")
    ledgers: LedgerIds | None = argument(  # noqa: RUF009 - it makes a field
        None, help="These ledgers, such as 5,7,100-200. Default: all in the folder.", kind=LEDGERS, metavar="IDS"
    )


@job("import")
class ImportJob:
    """Write what `export` has made into a cluster, as new ledgers, under their old ids, or as a stream.

    Entries keep their ids. Dumps are verified while they are read, and ledgers are read again before they count. A run
    that was interrupted is resumed by the next one.
    """

    Arguments = ImportArguments

    def run(self, context: JobContext[ImportArguments]) -> JobResult:
        """Plan by the headers, then transfer."""
        args = context.args
        source = absolute_uri(args.source)
        settings = args.settings("import", source)
        files = Files(source, "--source")
        files.check_there()
        dumps = Dumps(files)
        names = {each: name for each, name in dumps.names().items() if args.ledgers is None or each in args.ledgers}
        headers, unreadable = readable(sorted(names), lambda each: dumps.header(dumps.only(names[each])))
        rows = narrowed(
            context,
            [closed_row(each.ledger_id, each.entries, each.nbytes, each.shape, place=each.place) for each in headers],
        )
        missing = not_at_source(set(args.ledgers.singles()) - set(names)) if args.ledgers is not None else []
        return run_transfer(
            context,
            TransferPlan(
                DumpSource(source, context.access.client_options().received_frame_size),
                rows,
                missing,
                settings,
                context.access,
                unreadable,
            ),
        )


@dataclass(frozen=True)
class DumpSource:
    """The dumps that `export` has written. `longest`: see `Dumps`."""

    uri: str
    longest: int = LEAST_RECEIVED_FRAME_SIZE

    def open(self, throttle: Throttle) -> OpenSource:
        return _OpenDumps(Dumps(Files(self.uri, "--source"), throttle, self.longest))


class _OpenDumps:
    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps

    def ledger(self, ledger_id: int, uuid: str = "") -> LedgerAtSource:
        return _DumpedLedger(self._dumps, ledger_id)


class _DumpedLedger:
    def __init__(self, dumps: Dumps, ledger_id: int) -> None:
        name = dumps.find(ledger_id)
        if name is None:
            raise NoSuchLedger(f"there is no dump of ledger {ledger_id}")
        self.shape = dumps.header(name).shape
        self.password: bytes | None = None
        self._dumps = dumps
        self._name = name

    def payloads(self) -> Iterator[list[bytes]]:
        return self._dumps.payloads(self._name)

    def expected(self) -> Counts | None:
        return None  # a dump is known to be whole when it has been read
