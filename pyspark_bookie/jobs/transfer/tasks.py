"""Bundles of ledgers on an executor.

One ledger's error does not end its bundle.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_bookie.jobs.framework.records import TakenOver
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment, TaskError, task_error
from pyspark_bookie.jobs.transfer.machine import TransferFate, Transferrer, TransferSettings
from pyspark_bookie.jobs.transfer.sources import Source


@dataclass(frozen=True)
class TransferBundle:
    """`uuids` and `lives`: of the ledgers, as in `LedgerRow`. `nbytes`: of all its ledgers, for the progress."""

    ledger_ids: tuple[int, ...]
    uuids: tuple[str, ...]
    lives: tuple[str, ...]
    nbytes: int
    source: Source
    settings: TransferSettings


@dataclass(frozen=True, slots=True)
class TransferOutcome:
    """What became of one ledger: `fate`, or `error`. `target_id`: the ledger that was made, or had been."""

    source_id: int
    fate: TransferFate | None
    error: TaskError | None = None
    target_id: int | None = None
    entries: int = 0
    nbytes: int = 0
    payload_crc: int = 0


def transfer_bundle(bundle: TransferBundle, environment: TaskEnvironment) -> tuple[TransferOutcome, ...]:
    """Transfer one ledger after the other into the cluster of the environment."""
    source = bundle.source.open(environment.throttle())
    transferrer = Transferrer(environment.client(), source, bundle.settings, ledger_ids=bundle.ledger_ids)
    ledgers = zip(bundle.ledger_ids, bundle.uuids, bundle.lives, strict=True)
    return tuple(_transfer(transferrer, *ledger) for ledger in ledgers)


def _transfer(transferrer: Transferrer, ledger_id: int, uuid: str, life: str) -> TransferOutcome:
    try:
        fate, record = transferrer.transfer(ledger_id, uuid, life)
    except TakenOver:
        return TransferOutcome(ledger_id, TransferFate.TAKEN_OVER)
    except Exception as error:
        return TransferOutcome(ledger_id, None, task_error(error))
    if record is None or record.counts is None:
        return TransferOutcome(ledger_id, fate)
    counts = record.counts
    return TransferOutcome(ledger_id, fate, None, record.target_id, counts.entries, counts.nbytes, counts.payload_crc)
