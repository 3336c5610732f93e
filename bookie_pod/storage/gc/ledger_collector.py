"""Deletes ledgers here that the metadata service no longer has, and those that it has moved elsewhere.

Invariants
- The local ledgers are listed *before* the service is: a ledger's metadata exists before its first entry, so one that
  is local and not in the later listing was deleted.
- A ledger whose state could not be determined is kept: an error ends the listing, and only ledgers that were compared
  before are deleted. `LedgerCollection.doubt` reports that: else a service that is away for weeks would keep all space
  unnoticed.
- An id may be used again, and its new ledger written here, between the word of the service and the deletion: a ledger
  of which entries are put meanwhile stays, and is looked at again by the next pass. That its writer may be one that has
  not heard of the deletion is no proof: what is acknowledged to a new one would go.
- What the listing lacks is deleted after a grace, and not if it is an unusual part of what is here (`absent_ledgers`).
- A listing that names no ledger at all while there are some here is believed only when it says so twice in a row and
  the service answers for each ledger that it does not exist.
- A ledger that is named in any ensemble together with this bookie is never deleted.
- A ledger that lives elsewhere is deleted only under its lock, and only when every bookie that the metadata name is
  there with its copies: names alone may be those of bookies that have gone, or that never got them.
- That a ledger was fenced is remembered durably (`FencedAndDeleted`) before it is deleted, with one write
  for a batch; if it cannot be, or the ledger is fenced in the middle, the ledger stays.
- No answer of a service that is not this bookie's cluster counts, or that was put back to an older state
  (`check_instance`, once in each pass).

Threads: the garbage collection thread.

Source: docs/internals/bookie-behaviour.md, sections 6.3 and 6.4.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import structlog

from bookie_pod.storage.gc.absent_ledgers import AbsentLedgers
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted
from bookie_pod.storage.gc.storage import READS_PER_REQUEST, CollectedStorage, GcMetadata
from bookie_protocol.errors import MetadataDamaged, MetadataError, MetadataWentBack, PodkeeperError, StorageFault
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState

_log = structlog.get_logger(__name__)

DELETIONS_PER_TURN: Final = READS_PER_REQUEST
MAX_ELSEWHERE: Final = 65_536
"""Answers about ledgers that only logs know, kept for the other logs of the pass; with more of them some are asked
twice."""


@dataclass(slots=True)
class LedgerCollection:
    """The result of one search."""

    deleted: int = 0
    kept_in_doubt: int = 0
    """Candidates that could not be verified, or that the service turned out to have after all."""
    failed: int = 0
    complete: bool = False
    """True if a search for ledgers that are whole elsewhere compared every local ledger."""
    doubt: str | None = None
    """The reason why it ended early, or what it did not believe."""
    wants_second_look: bool = False
    """The service listed no ledger at all; another search that finds the same is believed."""


class LedgerCollector:
    """Searches of one storage. `pay` is called before each metadata operation (rate limit)."""

    def __init__(
        self,
        storage: CollectedStorage,
        metadata: GcMetadata,
        pay: Callable[[], None],
        deleted: DeletedLedgers,
        fenced: FencedAndDeleted,
        absent: AbsentLedgers,
        *,
        verify: bool,
    ) -> None:
        self.absent = absent
        self.deleted = deleted
        self.fenced = fenced
        self.doubt: str | None = None
        """The reason why the last search for deleted ledgers may have missed some. Any thread may read."""
        self._storage = storage
        self._metadata = metadata
        self._pay = pay
        self._verify = verify
        self._saw_nothing = False
        self._instance_checked = False
        self._elsewhere: dict[int, bool] = {}
        self._remembered: Container[int] = frozenset()
        """Fenced ledgers of which it is durable that they were: of those that are being deleted."""

    def begin_pass(self) -> None:
        """Answers of the pass before are void, and so is its permission."""
        self.absent.begin_pass()
        self._instance_checked = False
        self._elsewhere.clear()

    def _check_instance(self) -> None:
        if not self._instance_checked:
            self._pay()
            self._metadata.check_instance()
            self._instance_checked = True

    # --- ledgers that no longer exist -----------------------------------------------------------------------

    def collect_deleted(self, *, at_once: bool = False) -> LedgerCollection:
        """Compare and delete; `at_once`: without a grace. Never raises for the metadata service: what it could not tell
        is kept."""
        result = LedgerCollection()
        local = sorted(self._storage.ledger_ids())
        if not local:
            self.doubt = None
            self.absent.missed([], compared=[], at_once=at_once)
            return result
        try:
            self._check_instance()
            if not self._verify:
                self._storage.watch(local)
            self._compare(local, result, at_once)
        except MetadataError as error:
            _log.warning("search for deleted ledgers ended early: nothing more is deleted", reason=str(error))
            result.doubt = f"the search for deleted ledgers ended early: {error}"
            if isinstance(error, MetadataWentBack):
                self.absent.held = str(error)
        result.doubt = result.doubt or self.absent.held
        self.doubt = result.doubt
        return result

    def _compare(self, local: Sequence[int], result: LedgerCollection, at_once: bool) -> None:
        at, absent, seen_any = 0, list[int](), False
        ended_early: MetadataError | None = None
        try:
            self._pay()
            for span in self._metadata.ranges():
                upto = bisect_right(local, span.end, at)
                present = set(span.ids) if upto > at else frozenset[int]()
                absent += [ledger_id for ledger_id in local[at:upto] if ledger_id not in present]
                at = upto
                seen_any = seen_any or bool(span.ids)
                self._pay()
        except MetadataError as error:
            ended_early = error  # what was compared before counts
        if seen_any:
            self._saw_nothing = False
        elif ended_early is not None or not self._saw_nothing_again(absent, result):
            absent = []  # until some ledger was listed, what is absent is not believed
        if (seen_any and at) or ended_early is None:
            ripe = self.absent.missed(absent, compared=local[:at], at_once=at_once)
            self._delete_all(ripe, result, verify=self._verify or not seen_any)
            self.absent.gone(ripe)
        if ended_early is not None:
            raise ended_early

    def _saw_nothing_again(self, absent: Sequence[int], result: LedgerCollection) -> bool:
        if self._saw_nothing:
            return True
        self._saw_nothing = result.wants_second_look = True
        result.kept_in_doubt += len(absent)
        result.doubt = (
            f"the metadata service lists no ledger at all, {len(absent)} are here: they are deleted when the next pass"
            " finds the same"
        )
        _log.error(
            "the metadata service lists no ledger at all, this bookie holds some: nothing is deleted before the next"
            " pass has seen the same; check metadataServiceUri if that is not expected",
            ledgers_here=len(absent),
        )
        return False

    def _delete_all(self, ledger_ids: Sequence[int], result: LedgerCollection, *, verify: bool) -> None:
        ledger_ids = self._with_fences_remembered(ledger_ids, result)
        if not verify:
            self._delete_each(ledger_ids, result)
            return
        self._storage.watch(ledger_ids)
        answers = self._metadata.read_many(self._paid(ledger_ids))
        while some := list(islice(answers, READS_PER_REQUEST)):
            garbage = [ledger_id for ledger_id, metadata in some if self._is_garbage(ledger_id, metadata)]
            result.kept_in_doubt += len(some) - len(garbage)
            self._delete_each(garbage, result)

    def _delete_each(self, ledger_ids: Sequence[int], result: LedgerCollection) -> None:
        """Delete in turns of the event loop of about a millisecond: one turn per ledger would cost much more."""
        for first in range(0, len(ledger_ids), DELETIONS_PER_TURN):
            some = ledger_ids[first : first + DELETIONS_PER_TURN]
            self._storage.in_one_turn(partial(self._delete_now, some, result))

    def _delete_now(self, ledger_ids: Sequence[int], result: LedgerCollection) -> None:
        for ledger_id in ledger_ids:
            self._delete(ledger_id, result)

    def _with_fences_remembered(self, ledger_ids: Sequence[int], result: LedgerCollection) -> Sequence[int]:
        """The ledgers that may be deleted now: all these, fenced ones with one write for them all.

        To remember one that turns out to stay does no harm.
        """
        self._remembered = frozenset()
        fenced = {ledger_id for ledger_id in ledger_ids if self._storage.is_fenced(ledger_id)}
        if fenced:
            try:
                self.fenced.remember(fenced)
            except StorageFault as error:
                result.failed += len(fenced)
                _log.error(
                    "fenced ledgers cannot be deleted before it is durable that they were fenced, will be tried again",
                    ledgers=len(fenced),
                    reason=str(error),
                )
                return [ledger_id for ledger_id in ledger_ids if ledger_id not in fenced]
            self._remembered = fenced
        return ledger_ids

    def _paid(self, ledger_ids: Iterable[int]) -> Iterator[int]:
        """Pay for each request of `read_many`, which reads this many ledgers with one."""
        for number, ledger_id in enumerate(ledger_ids):
            if not number % READS_PER_REQUEST:
                self._pay()
            yield ledger_id

    def _is_garbage(self, ledger_id: int, metadata: LedgerMetadata | MetadataError | None) -> bool:
        """Return whether the service said of the ledger itself that it is gone."""
        if isinstance(metadata, MetadataError):
            _log.warning("ledger kept: its metadata could not be read", ledger=ledger_id, reason=str(metadata))
            return False
        if metadata is None:
            return True
        if names(metadata, self._metadata.bookie_id):
            _log.error("ledger kept: the listing lacks it, but it exists and names this bookie", ledger=ledger_id)
            return False
        return metadata.state is LedgerState.CLOSED

    def _delete(self, ledger_id: int, result: LedgerCollection) -> None:
        goes = False

        def consent(untouched: bool) -> bool:
            nonlocal goes
            # A fence that came since they were remembered is in memory only.
            goes = untouched and (ledger_id in self._remembered or not self._storage.is_fenced(ledger_id))
            if goes:
                # Before the deletion: a client that creates it again at once, and a scrub after that, must find that
                # there was another one.
                self.deleted.add(ledger_id)
            return goes

        try:
            self._storage.delete_ledger(ledger_id, consent)
        except PodkeeperError as error:
            result.failed += 1
            _log.error("ledger could not be deleted, will be tried again", ledger=ledger_id, reason=str(error))
            return
        if not goes:
            result.kept_in_doubt += 1
            _log.warning(
                "ledger kept: it was deleted or moved, but a client still writes to it or has just fenced it."
                " Each pass checks again, and frees its space once that stops",
                ledger=ledger_id,
            )
            return
        result.deleted += 1

    # --- ledgers that live elsewhere ------------------------------------------------------------------------

    def collect_over_replicated(self) -> LedgerCollection:
        """Delete closed ledgers whose metadata names this bookie nowhere (any more)."""
        result = LedgerCollection()
        try:
            self._check_instance()
            answers = self._metadata.read_many(self._paid(sorted(self._storage.ledger_ids())))
            while some := list(islice(answers, READS_PER_REQUEST)):
                candidates, error = self._candidates(some, result)
                for ledger_id in self._with_fences_remembered(candidates, result):
                    self._delete_under_lock(ledger_id, result)
                if error is not None:
                    raise error
        except MetadataError as error:
            _log.warning("search for over-replicated ledgers ended early", reason=str(error))
            result.doubt = f"the search for over-replicated ledgers ended early: {error}"
        else:
            result.complete = True
        return result

    def _candidates(
        self, answers: Iterable[tuple[int, LedgerMetadata | MetadataError | None]], result: LedgerCollection
    ) -> tuple[list[int], MetadataError | None]:
        """Return the ledgers that live elsewhere, up to the error that ends the search."""
        found: list[int] = []
        for ledger_id, metadata in answers:
            if isinstance(metadata, MetadataDamaged):  # it alone: the ledgers behind it shall not stay for ever
                result.kept_in_doubt += 1
                _log.warning("ledger kept: its metadata could not be read", ledger=ledger_id, reason=str(metadata))
            elif isinstance(metadata, MetadataError):
                return found, metadata
            elif self._lives_elsewhere(metadata):
                found.append(ledger_id)
        return found, None

    def _lives_elsewhere(self, metadata: LedgerMetadata | None) -> bool:
        if metadata is None or metadata.state is not LedgerState.CLOSED:
            return False  # gone: the other search's; open: a writer may still learn of this bookie
        return not names(metadata, self._metadata.bookie_id)

    def _is_placed_elsewhere(self, ledger_id: int) -> bool:
        self._pay()
        return self._lives_elsewhere(self._metadata.read(ledger_id))

    def _delete_under_lock(self, ledger_id: int, result: LedgerCollection) -> None:
        with self._metadata.re_replication_lock(ledger_id) as still_held:
            if still_held is None:
                result.kept_in_doubt += 1
                return
            if not self._is_placed_elsewhere(ledger_id):
                return
            if not self._metadata.is_whole_elsewhere(ledger_id):
                result.kept_in_doubt += 1
                return
            # Looking at copies may take minutes; a recovery by hand takes no lock, and may have placed it here since.
            self._storage.watch([ledger_id])
            if not self._is_placed_elsewhere(ledger_id):
                return
            if not still_held():
                result.kept_in_doubt += 1
                return
            _log.info("ledger deleted: no ensemble of it names this bookie", ledger=ledger_id)
            self._delete(ledger_id, result)

    # --- ledgers that only entry logs know ------------------------------------------------------------------

    def is_dead(self, ledger_id: int) -> bool:
        """Return whether log entries of a ledger that is not known here are garbage.

        An index that lost a row must not make data garbage: unless the ledger was deleted here, the metadata service is
        asked, once in a pass for each ledger. Raises `MetadataError`.
        """
        if self.deleted.is_gone(ledger_id):
            return True
        known = self._elsewhere.get(ledger_id)
        if known is not None:
            return known
        self._check_instance()
        self._pay()
        metadata = self._metadata.read(ledger_id)
        if metadata is None:
            self.deleted.add(ledger_id)
            return True
        elsewhere = not names(metadata, self._metadata.bookie_id)
        if len(self._elsewhere) >= MAX_ELSEWHERE:
            self._elsewhere.clear()
        self._elsewhere[ledger_id] = elsewhere
        return elsewhere


def names(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Return whether any ensemble of the ledger holds this bookie."""
    return any(bookie_id in ensemble for ensemble in metadata.ensembles.values())
