"""Bundles of ledgers on an executor.

One ledger's error does not end its bundle.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_bookie.archive.files import Files
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment, TaskError, task_error
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings
from pyspark_bookie.jobs.offload.machine import Fate, Offloader, OffloadSettings
from pyspark_bookie.jobs.offload.store import TakenOver


@dataclass(frozen=True, slots=True)
class OffloadBundle:
    """Ledgers to be brought to COMPLETE. `nbytes`: of all of them, for the progress."""

    ledger_ids: tuple[int, ...]
    nbytes: int
    settings: OffloadSettings
    instance_id: str


@dataclass(frozen=True, slots=True)
class DeletionBundle:
    """Ledgers to be deleted, if they may be."""

    ledger_ids: tuple[int, ...]
    settings: DeletionSettings


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    """What became of one ledger: `fate`, or `error`. The numbers are those of a ledger that was offloaded."""

    ledger_id: int
    fate: Fate | DeletionFate | None
    error: TaskError | None = None
    entries: int = 0
    nbytes: int = 0
    files: int = 0
    file_bytes: int = 0


def offload_bundle(bundle: OffloadBundle, environment: TaskEnvironment) -> tuple[LedgerOutcome, ...]:
    """Offload one ledger after the other."""
    throttle = environment.throttle()
    files = Files(bundle.settings.target, "--target")
    password = environment.access.password.read()
    offloader = Offloader(
        environment.client(), files, bundle.settings, password, throttle, instance_id=bundle.instance_id
    )
    return tuple(_offload(offloader, ledger_id) for ledger_id in bundle.ledger_ids)


def delete_bundle(bundle: DeletionBundle, environment: TaskEnvironment) -> tuple[LedgerOutcome, ...]:
    """Delete one ledger after the other."""
    files = Files(bundle.settings.target, "--target")
    throttle = environment.throttle()
    deleter = Deleter(environment.client(), files, bundle.settings, throttle, ledger_ids=bundle.ledger_ids)
    return tuple(_delete(deleter, ledger_id) for ledger_id in bundle.ledger_ids)


def prove_bundle(bundle: DeletionBundle, environment: TaskEnvironment) -> tuple[LedgerOutcome, ...]:
    """Prove one ledger after the other: those that may go are PROVEN."""
    files = Files(bundle.settings.target, "--target")
    throttle = environment.throttle()
    deleter = Deleter(environment.client(), files, bundle.settings, throttle, ledger_ids=bundle.ledger_ids)
    return tuple(_prove(deleter, ledger_id) for ledger_id in bundle.ledger_ids)


def _offload(offloader: Offloader, ledger_id: int) -> LedgerOutcome:
    try:
        fate, record = offloader.offload(ledger_id)
    except TakenOver:
        return LedgerOutcome(ledger_id, Fate.TAKEN_OVER)
    except Exception as error:
        return LedgerOutcome(ledger_id, None, task_error(error))
    if fate is not Fate.OFFLOADED or record is None or record.counts is None:
        return LedgerOutcome(ledger_id, fate)
    return LedgerOutcome(
        ledger_id,
        fate,
        None,
        record.counts.entries,
        record.counts.nbytes,
        len(record.files),
        sum(file.nbytes for file in record.files),
    )


def _delete(deleter: Deleter, ledger_id: int) -> LedgerOutcome:
    try:
        return LedgerOutcome(ledger_id, deleter.delete(ledger_id))
    except TakenOver:
        return LedgerOutcome(ledger_id, Fate.TAKEN_OVER)
    except Exception as error:
        return LedgerOutcome(ledger_id, None, task_error(error))


def _prove(deleter: Deleter, ledger_id: int) -> LedgerOutcome:
    try:
        return LedgerOutcome(ledger_id, DeletionFate.PROVEN if deleter.prove(ledger_id) else DeletionFate.NOT_DUE)
    except Exception as error:
        return LedgerOutcome(ledger_id, None, task_error(error))
