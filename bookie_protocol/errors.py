"""The one error taxonomy of Podkeeper, with the codes that errors have elsewhere.

It stays in one file although that is long: it is read as one table, in which each class is beside its codes, and a new
error has to be weighed against all the others.

Invariants
- "Not there" and "could not tell" never share a type below `PodkeeperError`: `NotThere` is a promise that the
  store knows; `CouldNotTell` is everything that a retry, another replica or a person must settle.
- Every error that can cross the wire knows its v2 code, its v3 status and the client code of Apache BookKeeper.
- A message names the thing and, where a person can act, the remedy.

Any thread may raise or read these; they hold no state but their message (and `EntriesUnreadable` the entries that it
names, `NotDecommissioned` a reason).

Sources: docs/internals/wire-protocol.md, section 9 (codes); BookKeeper's client return codes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final, TypeVar

UNREADABLE: Final = (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""Errors of taking apart JSON from elsewhere; the caller turns them into an error of this module."""
E = TypeVar("E", bound=BaseException)


class V2Code(IntEnum):
    """Error codes of the binary protocol (versions 0 to 2)."""

    EOK = 0
    ENOLEDGER = 1
    ENOENTRY = 2
    EBADREQ = 100
    EIO = 101
    EUA = 102
    EBADVERSION = 103
    EFENCED = 104
    EREADONLY = 105
    ETOOMANYREQUESTS = 106
    EUNKNOWNLEDGERSTATE = 107


class V3Status(IntEnum):
    """`StatusCode` of the protobuf protocol (version 3)."""

    EOK = 0
    ENOLEDGER = 402
    ENOENTRY = 403
    EBADREQ = 404
    EIO = 501
    EUA = 502
    EBADVERSION = 503
    EFENCED = 504
    EREADONLY = 505
    ETOOMANYREQUESTS = 506
    EUNKNOWNLEDGERSTATE = 507


class ClientCode(IntEnum):
    """Return codes of the Java client, for messages that its users recognise."""

    OK = 0
    READ = -1
    NOT_ENOUGH_BOOKIES = -6
    DIGEST_MISMATCH = -5
    BOOKIE_HANDLE_NOT_AVAILABLE = -8
    ZK = -9
    LEDGER_RECOVERY = -10
    LEDGER_CLOSED = -11
    WRITE = -12
    NO_SUCH_ENTRY = -13
    NO_SUCH_LEDGER_ON_METADATA_SERVER = -25
    NO_SUCH_LEDGER = -7
    PROTOCOL_VERSION = -16
    METADATA_VERSION = -17
    LEDGER_EXIST = -20
    DUPLICATE_ENTRY_ID = -22
    TIMEOUT = -23
    LEDGER_FENCED = -101
    UNAUTHORIZED_ACCESS = -102
    WRITE_ON_READ_ONLY = -104
    TOO_MANY_REQUESTS = -105
    LEDGER_ID_OVERFLOW = -106
    METADATA_SERIALIZATION = -107
    DATA_UNKNOWN = -108
    UNEXPECTED = -999


class ExitCode(IntEnum):
    """Exit codes of `bookie serve`, those of the reference implementation."""

    OK = 0
    INVALID_CONFIGURATION = 1
    SERVER_EXCEPTION = 2
    METADATA_SESSION_EXPIRED = 3
    REGISTRATION_FAILED = 4
    BOOKIE_EXCEPTION = 5


class PodkeeperError(Exception):
    """Root of every error that Podkeeper raises on purpose."""

    v2: ClassVar[V2Code] = V2Code.EIO
    v3: ClassVar[V3Status] = V3Status.EIO
    client: ClassVar[ClientCode] = ClientCode.UNEXPECTED


def fresh(kept: E) -> E:
    """Return a copy of an error that is kept, or that was kept and is raised, without the frames that it has
    passed.

    One of these frames usually refers to the object that keeps the error, so that only the collector of cycles would
    free what a failed call leaves; and an error that is raised again collects ever more of them. A defect is returned
    as it is, with the frames that show its origin.
    """
    if not isinstance(kept, PodkeeperError):
        return kept
    raised = type(kept).__new__(type(kept), *kept.args)
    raised.__dict__.update(kept.__dict__)
    raised.__cause__, raised.__suppress_context__ = kept.__cause__, kept.__suppress_context__
    return raised


# --- the store knows, and the answer is no ----------------------------------------------------------------


class NotThere(PodkeeperError):
    """A promise: the store knows that it does not hold this."""


class NoSuchLedger(NotThere):
    """The ledger is unknown to this bookie (or to the metadata service, if that was asked)."""

    v2, v3, client = V2Code.ENOLEDGER, V3Status.ENOLEDGER, ClientCode.NO_SUCH_LEDGER


class LedgerDeleted(NoSuchLedger):
    """The metadata service answered that there is no such ledger (any more): no bookie's word, which tells of its own
    copies alone."""

    client = ClientCode.NO_SUCH_LEDGER_ON_METADATA_SERVER


class NoSuchEntry(NotThere):
    """The ledger is known here and this entry was never stored here."""

    v2, v3, client = V2Code.ENOENTRY, V3Status.ENOENTRY, ClientCode.NO_SUCH_ENTRY


class NoLedgerIndex(NoSuchLedger):
    """An error: no index of this ledger exists here; it was never stored, or it was deleted."""


class NoSuchStream(NotThere):
    """An error: there is no stream of ledgers of this name, or no such cursor of it."""

    client = ClientCode.NO_SUCH_LEDGER_ON_METADATA_SERVER


class NoCookie(NotThere):
    """The metadata service keeps no cookie of this bookie."""


class NotDecommissioned(NotThere):
    """An error: this bookie is not being decommissioned, and was not. `refusal`: why the last attempt ended;
    empty: there was none."""

    def __init__(self, message: str, refusal: str = "") -> None:
        super().__init__(message)
        self.refusal = refusal


class StreamPositionGone(NotThere):
    """The place in a stream is no part of it, or no longer: it was truncated, overwritten, or never belonged to it."""

    client = ClientCode.NO_SUCH_ENTRY


# --- the request is refused -------------------------------------------------------------------------------


class Refused(PodkeeperError):
    """The store understood the request and will not do it."""


class BadRequest(Refused):
    """The request is malformed or names an operation that this version does not serve."""

    v2, v3, client = V2Code.EBADREQ, V3Status.EBADREQ, ClientCode.WRITE


class BadVersion(Refused):
    """The request speaks a protocol version that this operation does not accept."""

    v2, v3, client = V2Code.EBADVERSION, V3Status.EBADVERSION, ClientCode.PROTOCOL_VERSION


class Unauthorized(Refused):
    """Wrong master key, or a connection that has not authenticated."""

    v2, v3, client = V2Code.EUA, V3Status.EUA, ClientCode.UNAUTHORIZED_ACCESS


class LedgerFenced(Refused):
    """An ordinary add on a ledger that a recovery has fenced."""

    v2, v3, client = V2Code.EFENCED, V3Status.EFENCED, ClientCode.LEDGER_FENCED


class LedgerClosed(Refused):
    """An append through a closed handle, or on a ledger that another client has closed."""

    client = ClientCode.LEDGER_CLOSED


class DuplicateEntry(Refused):
    """An append with an entry id that was given before: what the first one became counts."""

    client = ClientCode.DUPLICATE_ENTRY_ID


class LedgerNotClosed(Refused):
    """The ledger is still open or in recovery, and the operation needs its end."""

    client = ClientCode.READ


class NotEnoughBookies(Refused):
    """Fewer writable bookies than the ensemble, or its replacement, needs."""

    client = ClientCode.NOT_ENOUGH_BOOKIES


class SparesUnreachable(NotEnoughBookies):
    """There are bookies that could take the place, and none of them can be reached just now."""


class BookieReadOnly(Refused):
    """The bookie takes no writes at present."""

    v2, v3, client = V2Code.EREADONLY, V3Status.EREADONLY, ClientCode.WRITE_ON_READ_ONLY


class TooManyRequests(Refused):
    """A bounded queue is full, or what the request has to wait for does not answer; try again later."""

    v2, v3, client = V2Code.ETOOMANYREQUESTS, V3Status.ETOOMANYREQUESTS, ClientCode.TOO_MANY_REQUESTS


class StreamExists(Refused):
    """A stream of ledgers of this name exists already."""

    client = ClientCode.LEDGER_EXIST


class StreamFenced(Refused):
    """Another writer has taken this stream of ledgers over: this one appends no more."""

    client = ClientCode.LEDGER_FENCED


class StreamInUse(Refused):
    """A writer has a ledger of this stream open, or a cursor has not passed what is to be removed."""

    client = ClientCode.LEDGER_EXIST


class StreamTransactionConflict(Refused):
    """A batch that contradicts what its application has published to this stream before."""

    client = ClientCode.METADATA_VERSION


# --- could not tell ---------------------------------------------------------------------------------------


class CouldNotTell(PodkeeperError):
    """A fault, damage or doubt: never evidence that something does not exist."""

    v2, v3, client = V2Code.EIO, V3Status.EIO, ClientCode.READ


class CopyLost(CouldNotTell):
    """A copy that a bookie acknowledged a moment ago is not there. It says nothing of the entry's other copies."""


class StorageFault(CouldNotTell):
    """An I/O error below the storage engine."""


class EntryDamaged(StorageFault):
    """The bytes found where the index points are not the entry that was asked for."""


class ResourcesShort(StorageFault):
    """The machine has no descriptors, memory or room left just now: this says nothing about what is stored. Clients
    take a copy for damaged after an I/O error, so the answer is "too many requests", after which they try again."""

    v2, v3 = V2Code.ETOOMANYREQUESTS, V3Status.ETOOMANYREQUESTS


class DirectoryFault(StorageFault):
    """The disk of one directory refuses what is written to it; those of others may go on."""

    def __init__(self, message: str, directory: str) -> None:
        super().__init__(message)
        self.directory = directory


class StorageFailed(StorageFault):
    """The storage cannot go on in this process: it must end, and the next start replays the journals."""


class NoWritableDirectory(StorageFault):
    """Every ledger directory is full or failed: the bookie must turn read-only."""


class LedgerStateUnknown(CouldNotTell):
    """The ledger is in limbo: the store lost data and does not know whether it held the entry."""

    v2, v3, client = V2Code.EUNKNOWNLEDGERSTATE, V3Status.EUNKNOWNLEDGERSTATE, ClientCode.DATA_UNKNOWN


class DigestMismatch(CouldNotTell):
    """An entry whose digest, ledger id or entry id is not what the reader expects."""

    client = ClientCode.DIGEST_MISMATCH


class NoTls(CouldNotTell):
    """An error: the peer accepted the connection, but does not speak TLS."""


class BookieUnavailable(CouldNotTell):
    """An error: there is no connection to the bookie, or no answer in time."""

    client = ClientCode.BOOKIE_HANDLE_NOT_AVAILABLE


class BookieTimeout(BookieUnavailable):
    """The bookie got the request and did not answer in time: it may still carry it out."""

    client = ClientCode.TIMEOUT


class BookieBusy(BookieUnavailable):
    """The bookie has not yet taken what this client sent to it before, for longer than a request may take: the request
    was not sent."""


class ConnectionLost(BookieUnavailable):
    """The connection ended between request and answer: the request may have been carried out."""


class QuorumLost(CouldNotTell):
    """Too few bookies can still store an entry that was sent: whether it survives is unknown."""

    client = ClientCode.WRITE


class LedgerIdInUse(QuorumLost):
    """An error: bookies refuse a ledger because they may hold a deleted one of its id, and no other bookie is left.

    They take it once they have collected the deleted one."""


class RecoveryFailed(CouldNotTell):
    """The end of a ledger could not be found because too few bookies answered: it stays in recovery, and a later
    attempt may succeed."""

    client = ClientCode.LEDGER_RECOVERY


class EntriesUnreadable(CouldNotTell):
    """An error: no replica serves some entries of a ledger at present, so that they cannot be copied.

    `entries` names the first of them. Of the bookies that should have one, `silent` names those that did not answer,
    and `untold` those that answered that they do not know: they may have it.
    """

    client = ClientCode.READ
    entries: tuple[int, ...] = ()
    silent: frozenset[str] = frozenset()
    untold: frozenset[str] = frozenset()


class ProtocolViolation(CouldNotTell):
    """Bytes that are no frame of any version, for which the connection is closed; or an answer that does not hold what
    was asked for, which ends its request only."""


# --- the metadata service ---------------------------------------------------------------------------------


class MetadataError(PodkeeperError):
    """Root of the metadata service's errors."""

    client = ClientCode.ZK


class MetadataUnavailable(MetadataError, CouldNotTell):
    """An error: the metadata service did not answer, so that its content is unknown."""

    client = ClientCode.ZK


class MetadataRefused(MetadataUnavailable):
    """An error: the metadata service answers, but refuses these credentials. A process that reads them only at the
    start waits in vain."""


class SessionEnded(MetadataUnavailable):
    """The session on which a request depended has ended, and with it whatever it held, such as the lock of a ledger:
    the request is not carried out in another one. If it was sent before, it may have been carried out."""


class MetadataNotFound(MetadataError, NotThere):
    """The metadata service answered that this node does not exist."""

    v2, v3, client = V2Code.ENOLEDGER, V3Status.ENOLEDGER, ClientCode.NO_SUCH_LEDGER_ON_METADATA_SERVER


class MetadataExists(MetadataError, Refused):
    """A node of this name exists already."""

    client = ClientCode.LEDGER_EXIST


class MetadataVersionConflict(MetadataError, Refused):
    """Compare-and-set lost against another writer."""

    client = ClientCode.METADATA_VERSION


class MetadataReplaced(MetadataVersionConflict):
    """An error: the object to change was deleted, and another one has its name: a different ledger now has this
    id, say. That one was not changed."""


class MetadataNotEmpty(MetadataError, Refused):
    """An error: the object to delete still holds something: a node its children, a cluster its bookies or ledgers."""


class LedgerIdsExhausted(MetadataError, Refused):
    """The layout's id generator has given out its last id."""

    client = ClientCode.LEDGER_ID_OVERFLOW


class MetadataDamaged(MetadataError, CouldNotTell):
    """Stored metadata that cannot be read."""

    client = ClientCode.METADATA_SERIALIZATION


class MetadataWentBack(MetadataError, CouldNotTell):
    """The metadata service was put back to an older state, so it knows nothing of newer ledgers."""


# --- start-up: each ends the process with one line and its exit code -------------------------------------------


class StartupError(PodkeeperError):
    """The process cannot serve. `str(error)` is the one line that the user sees."""

    exit_code: ClassVar[ExitCode] = ExitCode.BOOKIE_EXCEPTION


class InvalidConfiguration(StartupError):
    """A key or value of the configuration is refused."""

    exit_code = ExitCode.INVALID_CONFIGURATION


class ServerStartFailed(StartupError):
    """The network side could not start (port in use, address not ours)."""

    exit_code = ExitCode.SERVER_EXCEPTION


class RegistrationFailed(StartupError):
    """The bookie could not register in the metadata service."""

    exit_code = ExitCode.REGISTRATION_FAILED


class InvalidCookie(StartupError):
    """The directories belong to another bookie, another cluster or another configuration, or are not there."""

    exit_code = ExitCode.SERVER_EXCEPTION


class WrongStorageEngine(StartupError):
    """The directories were written by another storage engine, or the index is gone."""


class JournalDamaged(StartupError):
    """A journal holds bytes that are neither records nor a torn tail. `offset`: where, in the file at `path`; None:
    the file itself does not belong there."""

    def __init__(self, message: str, path: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class JournalMissing(StartupError):
    """A journal file, at `path`, to which the last mark or a later file points, does not exist."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


def public_kind(error: PodkeeperError) -> type[PodkeeperError]:
    """Return the type by which users know an error, in answers and codes: a ledger that does not exist is
    `NoSuchLedger` from any source."""
    return NoSuchLedger if isinstance(error, NoSuchLedger) else type(error)
