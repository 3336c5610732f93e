"""Snapshots of ledgers: the readable end of each, and a check of the password.

Invariants
- The writer of an open ledger notices nothing, unless `openLedgers=recover` says so.
- A wrong password is rejected here, before any task starts.
- What a snapshot says of a ledger stays right: entries up to `last_entry_id` never change.
- A ledger that a stream lists with so many entries is read with so many, or it is an error or a loss.

Event loop of the client only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bookie_client.access import access_to
from bookie_protocol.errors import LedgerNotClosed, MetadataDamaged, NoSuchLedger, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.metadata_service.records import archived_ledger
from bookie_protocol.together import bounded
from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError, code_of, spark_error
from pyspark_bookie.source.archived import holds_listed, is_as_listed
from pyspark_bookie.source.options import OpenLedgers, SourceOptions
from pyspark_bookie.source.planning import LedgerSnapshot, LostLedger, Range, without_bookies
from pyspark_bookie.source.positions import EARLIEST, LATEST
from pyspark_bookie.source.selection import Chosen, stored_metadata

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_client.streams.model import StreamLedger

_OPEN_AT_A_TIME: Final = 32


@dataclass(frozen=True, slots=True)
class Readable:
    """The ranges that can be read, in the order of the chosen ledgers, and the lost ledgers."""

    ranges: list[Range]
    lost: list[LostLedger]


async def readable_ranges(client: Client, chosen: Sequence[Chosen], options: SourceOptions) -> Readable:
    """Return the ranges between the positions of the options. Raises `PodkeeperSparkError`: wrong password, a lost
    ledger with `failOnDataLoss`, an open ledger whose end is unknown."""
    password = options.password.read()
    ranges: list[Range] = []
    lost: list[LostLedger] = []
    snapshots = await bounded(chosen, lambda each: _snapshot_or_loss(client, each, options, password), _OPEN_AT_A_TIME)
    for each, snapshot in zip(chosen, snapshots, strict=True):
        if isinstance(snapshot, LostLedger):
            lost.append(snapshot)
        elif snapshot is not None:
            ranges.append(_range(each, snapshot, options))
    if lost and options.fail_on_data_loss:
        raise PodkeeperSparkError(lost[0].code, f"{lost[0].text}; set failOnDataLoss=false to go on without it")
    return Readable([each for each in ranges if each.entries > 0], lost)


async def snapshot_of(
    client: Client, stored: Versioned[LedgerMetadata], options: SourceOptions, stream: str | None = None
) -> LedgerSnapshot | None:
    """A ledger as it can be read now; None for one that is left out because it is open (`openLedgers=skip`). Raises
    `PodkeeperError`."""
    password = options.password.read()
    access_to(stored.value, password, options.digest_type)
    if not stored.value.is_closed:
        if options.open_ledgers is OpenLedgers.SKIP:
            return None
        if options.open_ledgers is OpenLedgers.LAC:
            return await _open_snapshot(client, stored, options, password, stream)
        await client.recover(stored.value.ledger_id, password=password, digest=options.digest_type)
        stored = await client.stored_metadata(stored.value.ledger_id)
    return _snapshot(stored, options, stream, stored.value.last_entry_id, stored.value.length)


async def moved_snapshot(
    client: Client,
    ledger_id: int,
    options: SourceOptions,
    stream: str | None = None,
    listed: StreamLedger | None = None,
) -> LedgerSnapshot | None:
    """A ledger that is gone from the cluster, as it can be read from the archive; None: it is not there either, or not
    to be looked for. `listed`: as a stream has it. Raises `MetadataUnavailable`, `MetadataDamaged`."""
    found = await archived_ledger(client.metadata_service.records, ledger_id) if options.reads_archive else None
    if found is None or not holds_listed(found, listed):
        return None
    return without_bookies(ledger_id, options.digest_type, stream, found)


async def listed_snapshot(
    client: Client, ledger_id: int, options: SourceOptions, stream: str | None, listed: StreamLedger | None
) -> LedgerSnapshot | None:
    """A ledger as a stream lists it, in the cluster or in the archive; None: it is in neither. Raises
    `PodkeeperError`."""
    stored = await stored_metadata(client, ledger_id)
    if stored is not None and is_as_listed(stored.value, listed):
        with suppress(NoSuchLedger):
            return await snapshot_of(client, stored, options, stream)
    moved = await moved_snapshot(client, ledger_id, options, stream, listed)
    if moved is None and stored is not None and listed is not None:
        check_finished(stored.value, stream, listed)
    return moved


def check_finished(metadata: LedgerMetadata, stream: str | None, listed: StreamLedger) -> None:
    """Check that a ledger which is not as it is listed is another one, and not the same that is written again.
    Raises `LedgerNotClosed`."""
    if listed.entries is not None and not metadata.is_closed:
        raise LedgerNotClosed(
            f"ledger {metadata.ledger_id} is {metadata.state.value}, and {stream} lists it with {listed.entries}"
            " entries: it is being restored; wait for the job `restore`, or run it again if it was interrupted"
        )


# --- inside -----------------------------------------------------------------------------------------------------


async def _snapshot_or_loss(
    client: Client, chosen: Chosen, options: SourceOptions, password: bytes | None
) -> LedgerSnapshot | LostLedger | None:
    what = f"ledger {chosen.ledger_id}"
    if chosen.archive is not None:
        return without_bookies(chosen.ledger_id, options.digest_type, chosen.stream, chosen.archive)
    if chosen.damaged is not None:
        return LostLedger(chosen.ledger_id, chosen.stream, code_of(MetadataDamaged()), chosen.damaged)
    if chosen.stored is None:
        where = f", which {chosen.stream} lists," if chosen.stream is not None else ""
        fate = "was offloaded by Pulsar and deleted from the bookies" if chosen.is_offloaded else "does not exist"
        return LostLedger(chosen.ledger_id, chosen.stream, code_of(NoSuchLedger()), f"{what}{where} {fate}")
    try:
        if chosen.listed is not None and not is_as_listed(chosen.stored.value, chosen.listed):
            check_finished(chosen.stored.value, chosen.stream, chosen.listed)
            text = f"{what} is not the one that {chosen.stream} lists: it has another end"
            return LostLedger(chosen.ledger_id, chosen.stream, DATA_LOSS, text)
        return await snapshot_of(client, chosen.stored, options, chosen.stream)
    except NoSuchLedger as error:  # deleted since it was listed
        moved = await moved_snapshot(client, chosen.ledger_id, options, chosen.stream, chosen.listed)
        if moved is not None:
            return moved
        told_as = spark_error(error, what)
        return LostLedger(chosen.ledger_id, chosen.stream, told_as.code, told_as.message)
    except PodkeeperError as error:
        raise spark_error(error, what) from None


async def _open_snapshot(
    client: Client,
    stored: Versioned[LedgerMetadata],
    options: SourceOptions,
    password: bytes | None,
    stream: str | None,
) -> LedgerSnapshot:
    reader = client.open_stored(stored, password=password, digest=options.digest_type)
    try:
        last = await reader.read_last_add_confirmed()
        if reader.is_closed:  # closed meanwhile
            stored = await client.stored_metadata(stored.value.ledger_id)
            return _snapshot(stored, options, stream, stored.value.last_entry_id, stored.value.length)
        # The header of an entry tells how many bytes the ledger has up to it.
        length = (await reader.read(last, last))[0].length if last >= 0 else 0
        return _snapshot(Versioned(reader.metadata, stored.identity), options, stream, last, length)
    finally:
        await reader.close()


def _snapshot(
    stored: Versioned[LedgerMetadata], options: SourceOptions, stream: str | None, last: int, length: int
) -> LedgerSnapshot:
    metadata = stored.value
    return LedgerSnapshot(
        ledger_id=metadata.ledger_id,
        identity=stored.identity,
        ensemble_size=metadata.ensemble_size,
        write_quorum_size=metadata.write_quorum_size,
        ack_quorum_size=metadata.ack_quorum_size,
        ensembles=tuple(metadata.ensembles.items()),
        is_closed=metadata.is_closed,
        last_entry_id=last,
        length=length,
        digest_type=metadata.digest_type or options.digest_type,
        stream=stream,
        token=metadata.creation_token,
    )


def _range(chosen: Chosen, ledger: LedgerSnapshot, options: SourceOptions) -> Range:
    first, end = chosen.first, ledger.entries if chosen.end is None else min(chosen.end, ledger.entries)
    if chosen.stream is None:
        first = options.starting_position.of(ledger.ledger_id, ledger.entries, EARLIEST)
        if chosen.position is not None:
            first = ledger.entries if chosen.position == LATEST else min(chosen.position, ledger.entries)
        end = options.ending_position.of(ledger.ledger_id, ledger.entries, LATEST)
    return Range(ledger, first, end - 1)
