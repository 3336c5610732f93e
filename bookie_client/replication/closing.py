"""Closing a ledger whose writer is gone on behalf of healing, by what a look at it finds.

    metadata = await close_checked(client, LedgerChecker(client), LedgerLife.of(stored))

A reader who recovers a ledger believes a bookie that says "no such entry". Healing has to be more careful: it runs
because bookies were lost, and one that came back under its id with empty disks denies entries which were acknowledged.
With its word, and that of bookies which never got them, a ledger could be closed below them. So

- every bookie of an entry's write set is heard before the entry counts as not there, because any copy decides against
  that. A silent bookie is waited for within the time-outs, and then counts for nothing, as everywhere;
- the ledger is looked at first, with all that its mark asks for, and nothing is closed if the look could not see its
  end. What was seen counts for the last segment that was looked at and for no other: if the writer exchanged a bookie
  meanwhile, nothing is fenced;
- a bookie is not believed about any other entry if it denies confirmed entries, or returns them damaged; if the look
  did not see it in some segment; or if the ledger's mark says, or may say, that it lost entries: they may have been
  filled in since;
- nor is one that the mark names because it was away, and that has nothing of the last segment now, or has a gap there,
  or cannot tell. (Its writer sends it the entries in order, so what it got after its loss has a gap in front of it.)
- if one that the mark names does not answer, and the others alone cannot tell the end, nothing is closed before it
  answers or has gone. If they can, the recovery stores nothing on it;
- any other bookie that is not believed is named by the mark first. The recovery may give it entries, and fail; these
  would look like its own the next time. (One that only the look did not see, and that no mark names, is asked again
  then like any other.)

Limit: one that the mark names because it was away, and that has the beginning of the last segment without a gap, is
believed. It looks like one that its writer went on without. (Ours know if their disks were set back, and are in limbo.)

Then the recovery fails rather than cuts off, and the ledger stays IN_RECOVERY until a bookie that has the entries is
back. Replication workers, decommissions, `recover`, the data integrity check and the Spark jobs close ledgers in this
way and in no other.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 5 and 6.3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from bookie_client.access import LedgerAccess, access_to
from bookie_client.client import Client
from bookie_client.connection.request import EntryAnswer
from bookie_client.metadata_update import check_same
from bookie_client.patience import heard
from bookie_client.reading.lac import LastEntry, is_covered
from bookie_client.recovery.recovery import recover_ledger
from bookie_client.replication.check import FAULTS, FragmentReport, LedgerChecker, LedgerReport, ReplicaVerdict
from bookie_client.replication.targets import unregistered
from bookie_protocol.digest import DigestType
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import (
    DigestMismatch,
    LedgerStateUnknown,
    NotThere,
    PodkeeperError,
    RecoveryFailed,
    StorageFault,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding, Reason, distrusted
from bookie_protocol.together import bounded
from bookie_protocol.versioned import LedgerLife

MAX_LOOKS: Final = 5
"""Looks at a ledger whose mark grows at each of them."""
_UNSEEN: Final = frozenset({ReplicaVerdict.LOST, ReplicaVerdict.UNREACHABLE, ReplicaVerdict.UNTOLD})
"""Verdicts on bookies that say nothing of their copies."""
_SILENT: Final = frozenset({ReplicaVerdict.LOST, ReplicaVerdict.UNREACHABLE})
"""Verdicts on bookies that said nothing at all. They may have everything."""
_CANNOT_TELL: Final = (EntryAnswer, StorageFault, LedgerStateUnknown)
"""Answers of bookies that cannot read their last entry, or do not know what they hold."""


async def close_checked(
    client: Client, checker: LedgerChecker, life: LedgerLife, password: bytes | None = None
) -> LedgerMetadata:
    """Look at this very ledger, close it, and return its final metadata. `password`: None: what the ledger recorded.

    Raises as `recover_ledger`; after `RecoveryFailed` it can be tried again, and the error names the way out if bookies
    that lost entries, or do not tell, are part of the reason. `Unauthorized`: the ledger recorded no digest, and its
    last entries fail the caller's. `MetadataVersionConflict`: its writer exchanged a bookie behind the look, and was
    not fenced. `MetadataReplaced`: a different ledger now has its id, and is left alone. `MetadataError`: its mark
    cannot be read, or added to.
    """
    ledger_id = life.ledger_id
    doubts, report = await _look(client, checker, ledger_id)
    now = await client.stored_metadata(ledger_id)  # the look may have taken long, and another client may have closed it
    check_same(now, life)  # what the caller knows may be older than the look
    if now.value.is_closed:
        return now.value
    if report.lac_error is not None:
        raise RecoveryFailed(
            f"ledger {ledger_id} is not closed, because its bookies could not be checked first, try again when they"
            f" answer: {report.lac_error}"
        ) from report.lac_error
    access = access_to(report.metadata.value, password, DigestType.CRC32C)
    ensemble, named = report.fragments[-1].fragment.ensemble, {each.bookie for each in doubts}
    # Who was not seen may be back, without its entries. Those of an earlier segment may be all that would show it.
    lost, unseen = denying(report) | distrusted(doubts), _with_verdicts(report.fragments, _UNSEEN)
    unproven = (named - lost) & _with_verdicts(report.fragments[-1:], {ReplicaVerdict.EMPTY})
    words = await last_words(client, ledger_id, unproven)
    have_some = {bookie: await _has_some(checker, report, bookie, word, access) for bookie, word in words.items()}
    lost |= {bookie for bookie, has_some in have_some.items() if has_some is False}
    untold = {bookie for bookie, has_some in have_some.items() if has_some is None}
    doubted = lost | untold | unseen
    if report.metadata.value.digest_type is None and any(isinstance(words[each], EntryAnswer) for each in untold):
        silent_so_far = {bookie for bookie in ensemble if not isinstance(words.get(bookie), EntryAnswer)}
        others = await last_words(client, ledger_id, silent_so_far)
        _check_digest(ledger_id, [*words.values(), *others.values()], access)
    silent = {bookie for bookie in untold if not isinstance(words[bookie], _CANNOT_TELL)}
    silent |= named.intersection(ensemble) & _with_verdicts(report.fragments, _SILENT) - lost
    silent -= await unregistered(client, silent)
    trusted = [position for position, bookie in enumerate(ensemble) if bookie not in doubted]
    if silent and not is_covered(report.fragments[-1].fragment.quorums, trusted):
        # A mark would stay until all other bookies have said what they have: one time-out is not a reason for it.
        raise RecoveryFailed(
            f"ledger {ledger_id} is not closed, because {', '.join(sorted(silent))} may have entries of its end, and"
            " do not tell: try again when they answer, or if they never will, close it behind the last entry that is"
            f" left by `bookie ledger recover {ledger_id}`"
        )
    # The recovery stores entries on them, which would vouch for them at the next attempt.
    unmarked = (lost | untold | (unseen & named)).intersection(ensemble) - distrusted(doubts) - silent
    if unmarked:
        await _mark(client, ledger_id, dict.fromkeys(unmarked, Reason.MISSING))
    try:
        closed = await recover_ledger(
            client.context, report.metadata, access, doubted, shunned=frozenset(silent), hears_all=True
        )
        return closed.value
    except RecoveryFailed as error:
        names = ", ".join(sorted(lost.intersection(ensemble)))
        if not names:
            raise
        raise RecoveryFailed(
            f"ledger {ledger_id} lost entries on {names}, or may have, so only its other bookies can tell its end:"
            " bring them back, or if they are gone for good, close it behind the last entry that is left by"
            f" `bookie ledger recover {ledger_id}` ({error})"
        ) from error


async def mark_losses(client: Client, checker: LedgerChecker, ledger_id: int, bookies: Collection[str]) -> None:
    """Name those of these bookies in a ledger's mark that lost entries and are in its last segment; also those that do
    not tell, as absent. To be called before their copies of earlier segments are replaced, which is the last moment at
    which that can be seen.

    Raises as `LedgerChecker.check`; `MetadataError`: the mark cannot be added to.
    """
    report = await checker.check(ledger_id)
    members = report.metadata.value.last_ensemble
    lost = denying(report).intersection(bookies, members)
    unseen = _with_verdicts(report.fragments, _UNSEEN).intersection(bookies, members) - lost
    if lost or unseen:
        await _mark(client, ledger_id, {**dict.fromkeys(unseen, Reason.ABSENT), **dict.fromkeys(lost, Reason.MISSING)})


def denying(report: LedgerReport) -> frozenset[str]:
    """Bookies that deny, or cannot read, entries which they must have."""
    return _with_verdicts(report.fragments, FAULTS)


async def last_words(
    client: Client, ledger_id: int, bookies: Iterable[str]
) -> Mapping[str, EntryAnswer | PodkeeperError]:
    """Ask bookies for their last entries of a ledger. Return the answer of each, or its error. One that is busy is
    asked again."""

    async def ask(bookie: str) -> EntryAnswer | PodkeeperError:
        try:
            return await heard(partial(client.operations.read_entry, bookie, ledger_id, LAST_ENTRY))
        except PodkeeperError as error:
            return error

    asked = sorted(bookies)
    return dict(zip(asked, await bounded(asked, ask), strict=True))


# --- inside -----------------------------------------------------------------------------------------------------


async def _mark(client: Client, ledger_id: int, reasons: Mapping[str, Reason]) -> None:
    findings = [Finding(bookie, reason) for bookie, reason in sorted(reasons.items())]
    await client.metadata_service.under_replication.mark(ledger_id, ctime_ms=None, findings=findings)


async def _look(client: Client, checker: LedgerChecker, ledger_id: int) -> tuple[tuple[Finding, ...], LedgerReport]:
    """Look at the ledger with all that its mark asks for, also with what was added to it during the look."""
    marks, doubts = client.metadata_service.under_replication, tuple[Finding, ...]()
    report: LedgerReport | None = None
    for _ in range(MAX_LOOKS):
        mark = await marks.read(ledger_id)
        more = tuple(each for each in mark.doubts if each not in doubts) if mark is not None else ()
        if report is not None and not more:
            return doubts, report
        doubts += more
        report = await checker.check(ledger_id, findings=doubts)
    raise RecoveryFailed(f"ledger {ledger_id} is not closed, because its mark grew at each look: try again")


async def _has_some(
    checker: LedgerChecker, report: LedgerReport, bookie: str, word: EntryAnswer | PodkeeperError, access: LedgerAccess
) -> bool | None:
    """Return whether a bookie with this last entry has any of the last segment, confirmed or not, and no gap as far as
    it tells; None if that is unknown."""
    if isinstance(word, PodkeeperError):
        return False if isinstance(word, NotThere) else None
    last = _verified(report.ledger_id, word, access)
    if last is None:
        return None
    fragment = report.fragments[-1].fragment
    if last.entry_id < fragment.first_entry:
        return False
    held = FragmentReport(replace(fragment, last_entry=last.entry_id), ())
    try:
        return await checker.lacks(replace(report, fragments=(held,)), bookie) is None
    except PodkeeperError:  # it gives no list
        return True


def _verified(ledger_id: int, word: EntryAnswer, access: LedgerAccess) -> LastEntry | None:
    try:
        return LastEntry.of(access.digest, ledger_id, word.entry)
    except DigestMismatch:
        return None


def _check_digest(ledger_id: int, words: Iterable[EntryAnswer | PodkeeperError], access: LedgerAccess) -> None:
    """Raise `Unauthorized` if no bookie's last entry matches the digest that the caller gave."""
    answers = [word for word in words if isinstance(word, EntryAnswer)]
    if not any(_verified(ledger_id, word, access) for word in answers):
        raise Unauthorized(
            f"ledger {ledger_id} recorded neither its password nor its digest type, and its entries do not match the"
            " ones that were given"
        )


def _with_verdicts(fragments: Iterable[FragmentReport], verdicts: Collection[ReplicaVerdict]) -> frozenset[str]:
    """Bookies with one of these verdicts in some of these fragments."""
    return frozenset(found.bookie for each in fragments for found in each.findings if found.verdict in verdicts)
