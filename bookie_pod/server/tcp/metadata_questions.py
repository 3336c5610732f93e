"""Questions to the metadata service that come before the first entry of a ledger is taken.

Two kinds of ledgers are asked about.

A ledger that is older than the bookie. A bookie may have the id of one that is gone (`node.identity.earlier_life`). A
client that sends it an entry of an older ledger that it does not hold may be a writer that does not know that its
ledger was closed: with the earlier bookie the memory of the fence is gone here.

A ledger that is named by its life (`bookie_protocol.keys`). Its id may have had a ledger before, or have one again:
what a writer, or a client that copies entries, sent may be on its way for long, and arrive when its ledger is deleted
and another one has the id and the password.

    still open                     goes on: its fence would come here, as to every bookie of the last ensemble
    still open, and of this life   goes on likewise. A ledger of another life that is stored here is deleted first, if
                                   it is certainly dead, and the fence of a former ledger does not count
    being recovered, or closed     goes on if it is no older ledger: fences are known here. Otherwise an ordinary add
                                   gets LedgerFenced, an explicit LAC NoSuchLedger, and a copy makes the ledger fenced
    gone, or of another life       likewise, but a copy that names its life gets NoSuchLedger
    could not be asked             TooManyRequests: this passes, so a client may try again here, or replace this bookie
    another password               Unauthorized, if a life was named and the metadata tell the password

Copies are those of healers, and the adds of recoveries.

Invariants
- What was never asked is never asked twice at the same time. A refusal is kept for `KEPT_S`, so that the adds of one
  writer do not ask again one by one; a permission is not kept, as the ledger is here afterwards. If one who asked had a
  wrong password, the right one is kept, so that strangers do not ask again and again.
- Requests that wait for the same answer are served in the order in which they came, in one turn of the event loop.
  Other ledgers of their connections do not wait.
- An answer counts only if nothing of the ledger was deleted here, nor begun, under another life or under none, since
  the question began; otherwise the bookie asks again.
- A stored ledger of another life is dead if the metadata, asked for after it was stored, name the life in question, and
  the ledger is open and has its first ensemble: then no client has fenced it, or copied entries of it to new bookies.
  A worker may have filled this one with copies, so nothing that names no life must ever have come under the stored
  life. A fence that came since the question began may be its own: then the bookie asks again.
  The first request of its writer has to be the first entry that goes to this bookie, too: Apache's bookie may have
  taken entries of this life here before, and left the stored life as it was. So a copy proves nothing of that kind. If
  the stored ledger is not deleted, the request gets LedgerStateUnknown.
- The key of a named ledger is that of the password which its metadata tell. Where another key is stored, it is that of
  a dead ledger, or of a stranger: it does not count, and the request gets LedgerStateUnknown.
- Of a ledger that is here with this life, which its writer or copies named, and of one that is here or younger than the
  bookie if it is named by its id alone, nothing is asked.
- A request leaves when its connection is gone: nothing of it is kept or counted then. A question that no request waits
  for is not asked any more, unless it is under way.
- Bounds: `MOST_AT_ONCE` questions are under way. Connections get turns in rotation, so that one which names very many
  ledgers does not make the others wait for `ASK_S`. A connection reads nothing more while `MOST_OF_ONE` of its
  requests, or `BYTES_OF_ONE`, wait for answers, nor after its first one while all connections have `MOST_OF_ALL` or
  memory is short. The bytes that wait count as held by their client.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import structlog

from bookie_pod.ledgers.operations import another_is_stored
from bookie_pod.ledgers.registry import Ledgers, LedgerWatch
from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_pod.server.tcp.question_turns import QuestionTurns, Turn
from bookie_pod.server.tcp.wire import Wire
from bookie_protocol.errors import (
    BookieUnavailable,
    LedgerFenced,
    MetadataError,
    NoSuchLedger,
    PodkeeperError,
    TooManyRequests,
    Unauthorized,
)
from bookie_protocol.keys import is_named_by_copies, is_same_life, life_of, master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState

_log = structlog.get_logger(__name__)

ASK_S: Final = 5.0
"""The longest that a request waits for the metadata service, in seconds."""
KEPT_S: Final = 1.0
"""Seconds for which a refusal counts for later requests."""
MOST_KEPT: Final = 1024
"""The number of refusals that are kept."""
MOST_AT_ONCE: Final = 32
"""The number of questions that are under way at a time; others wait for their turn, within `ASK_S`."""
MOST_OF_ONE: Final = 256
BYTES_OF_ONE: Final = 1024 * 1024
MOST_OF_ALL: Final = 4096
_REQUEST_BYTES: Final = 256
"""Bytes that a request counts besides its entry."""

Look = Callable[[int], Awaitable[LedgerMetadata | None]]
"""Returns the metadata of a ledger, uncached; None: there is none of this id. Raises MetadataError."""


class _Answer(Enum):
    GOES_ON = "goes on"
    ALIVE = "goes on: it is open, and of this life"
    OVER = "over"
    GONE = "over: it was deleted"
    UNKNOWN = "unknown"


_REFUSALS: Final = (_Answer.OVER, _Answer.GONE, _Answer.UNKNOWN)


@dataclass(eq=False, frozen=True, slots=True)
class Asker:
    """A request that waits for an answer: exactly one of the four is called.

    `refuse` is called too when the connection is gone, so that each request comes to its end.
    """

    wire: Wire
    key: bytes
    """The master key that it presents."""
    nbytes: int
    """The size of what waits."""
    entry_id: int | None
    """None: it is not an add."""
    go_on: Callable[[], None]
    over: Callable[[], None]
    gone: Callable[[], None]
    refuse: Callable[[PodkeeperError], None]


@dataclass(eq=False, slots=True)
class _Question:
    ledger_id: int
    life: bytes
    turn: Turn
    """Done when it has had its turn."""
    askers: OrderedDict[Asker, Callable[[], None]] = field(default_factory=OrderedDict)
    """The requests that wait, in the order in which they came, each with its entry in `Wire.asked`."""
    key: bytes | None = None
    """The master key of the ledger that is named by its life, as the metadata tell its password, which never changes;
    None: they did not tell it yet."""
    reason: str = "no answer"
    """The reason why the answer is unknown."""
    task: asyncio.Task[None] | None = None


async def _nothing() -> None:
    """Check nothing."""


class MetadataQuestions:
    """`newest`: the highest id of a ledger that there was when this bookie was new; -1: none. `bookie_id`: its name in
    ensembles. `check` raises MetadataError unless the word of the service is enough to delete a ledger."""

    def __init__(
        self,
        ledgers: Ledgers,
        newest: int,
        look: Look,
        bookie_id: str,
        check: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._check = check
        self._bookie_id = bookie_id
        self._ledgers = ledgers
        self._newest = newest
        self._look = look
        self._asking: dict[int, dict[bytes, _Question]] = {}
        """Questions by ledger and life."""
        self._turns = QuestionTurns(MOST_AT_ONCE)
        self._refused: OrderedDict[tuple[int, bytes], tuple[float, _Answer, str, bytes | None]] = OrderedDict()
        """Refusals that are kept, by ledger and life: until when, the answer, its reason and the key."""
        self._waiting = 0
        """Requests that wait, of all connections."""

    def must_ask(self, ledger_id: int, life: bytes) -> bool:
        """Return whether an add of this ledger has to wait for `when_open`."""
        if life:
            return not is_same_life(self._ledgers.life_of(ledger_id), life)
        return self._is_older(ledger_id) or bool(self._asking and life in self._asking.get(ledger_id, ()))

    def when_open(self, ledger_id: int, life: bytes, asker: Asker) -> None:
        """Serve the request when the answer has come; at once if one was refused a moment ago."""
        question = self._asking.get(ledger_id, {}).get(life)
        if question is None:
            question = _Question(ledger_id, life, asyncio.get_running_loop().create_future())
            if self._is_kept(question, asker):
                return
            self._asking.setdefault(ledger_id, {})[life] = question
            question.task = asyncio.ensure_future(self._run(question))
            question.task.add_done_callback(lambda task: self._ended(question, task))
        self._wait(question, asker)

    async def _run(self, question: _Question) -> None:
        async with asyncio.timeout(ASK_S), self._turns.one(question.turn):
            with self._ledgers.watch(question.ledger_id, question.life, question.key) as watch:
                answer = await self._ask(question, watch)
        self._tell(question, answer)  # in this turn of the event loop: in the next one it may be wrong

    def _ended(self, question: _Question, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._asking.get(question.ledger_id, {}).get(question.life) is question:
            if isinstance(error, MetadataError):
                question.reason = str(error)
            self._tell(question, _Answer.UNKNOWN)

    async def _ask(self, question: _Question, watch: LedgerWatch) -> _Answer:
        ledger_id, life = question.ledger_id, question.life
        while True:
            watch.begin()
            metadata = await self._look(ledger_id)
            # Metadata of an older format, or rewritten by an older client, have no token: that is no other life.
            token = 0 if metadata is None else metadata.creation_token
            is_another = bool(life and token) and not is_same_life(life_of(token), life)
            if metadata is not None and life and not is_another:
                question.key = watch.key = _key_of(metadata)
            alive = metadata if _is_alive(metadata, life) else None
            is_dead = alive is not None and watch.stores_another and self._begins(alive, question)
            if is_dead:
                await self._check()
            if watch.is_outdated:
                continue
            if metadata is None or is_another:
                return _Answer.GONE
            if not watch.must_look_again(is_open=alive is not None):
                break
        if alive is not None:
            if is_dead:
                _log.info("ledger deleted: the id has another ledger now", ledger=ledger_id)
                self._ledgers.storage.delete_ledger(ledger_id)
            return _Answer.ALIVE
        is_written = metadata.state is LedgerState.OPEN or not self._is_older(ledger_id)
        return _Answer.GOES_ON if is_written else _Answer.OVER

    def _begins(self, metadata: LedgerMetadata, question: _Question) -> bool:
        """Return whether the first request that waits, of those with the right key, is one of the ledger's writer, and
        the first that this bookie gets of the ledger."""
        if is_named_by_copies(question.life) or len(metadata.ensembles) != 1:
            return False
        first = next((asker for asker in question.askers if self._has_right_key(asker, question)), None)
        entries = range(metadata.ensemble_size)
        mine = [each for each in entries if self._bookie_id in metadata.bookies_for(each)]
        return first is not None and [first.entry_id] == mine[:1]

    def _has_right_key(self, asker: Asker, question: _Question) -> bool:
        if question.key is None:
            return self._ledgers.has_key(question.ledger_id, asker.key)
        return asker.key == question.key

    def _tell(self, question: _Question, answer: _Answer) -> None:
        """Serve all who asked, in the order in which they did."""
        self._forget(question)
        if answer in _REFUSALS or any(_has_another_key(asker, question) for asker in question.askers):
            self._keep(question, answer)
        self._ledgers.alive = question.ledger_id if answer is _Answer.ALIVE else None
        wires: dict[Wire, None] = {}
        while question.askers:
            asker, lost = question.askers.popitem(last=False)
            wires[asker.wire] = None
            self._leave(question, asker, lost)
            try:
                self._serve(question, asker, answer)
            except Exception as defect:
                asker.wire.broke(defect)
        self._ledgers.alive = None
        for wire in wires:
            try:
                wire.submit_lanes()
                if len(wire.asked) <= MOST_OF_ONE // 2 and wire.asked_bytes <= BYTES_OF_ONE // 2:
                    wire.unstall(Stall.LEDGER_ASKED)
            except Exception as defect:
                wire.broke(defect)

    def _serve(self, question: _Question, asker: Asker, answer: _Answer) -> None:
        if answer is _Answer.GONE:
            asker.gone()
        elif _has_another_key(asker, question):
            asker.refuse(Unauthorized(f"ledger {question.ledger_id} has another password"))
        elif self._is_of_another(question):
            # Nor does the key of that one count, which the client would take for the word on its password.
            asker.refuse(another_is_stored(question.ledger_id))
        elif answer in (_Answer.GOES_ON, _Answer.ALIVE):
            asker.go_on()
        elif answer is _Answer.OVER:
            asker.over()
        else:
            asker.refuse(
                TooManyRequests(
                    f"ledger {question.ledger_id}: this bookie cannot find out whether it is still written:"
                    f" {question.reason}"
                )
            )

    def _is_of_another(self, question: _Question) -> bool:
        """Return whether what is stored has another life or key than the ledger that is named, as the metadata tell."""
        ledger_id, key = question.ledger_id, question.key
        if key is None:
            return False
        return self._ledgers.has_another_key(ledger_id, key) or _is_another(
            self._ledgers.life_of(ledger_id), question.life
        )

    # --- what is kept ---------------------------------------------------------------------------------------

    def _is_kept(self, question: _Question, asker: Asker) -> bool:
        """Answer the request if a kept answer refuses it."""
        kept = self._refused.get((question.ledger_id, question.life))
        if kept is None or asker.wire.context.loop.time() >= kept[0]:
            return False
        question.reason, question.key = kept[2:]
        if kept[1] not in _REFUSALS and not _has_another_key(asker, question):
            return False
        self._serve(question, asker, kept[1])
        return True

    def _keep(self, question: _Question, answer: _Answer) -> None:
        named = question.ledger_id, question.life
        self._refused[named] = asyncio.get_running_loop().time() + KEPT_S, answer, question.reason, question.key
        self._refused.move_to_end(named)
        if len(self._refused) > MOST_KEPT:
            self._refused.popitem(last=False)

    # --- what waits -----------------------------------------------------------------------------------------

    def _wait(self, question: _Question, asker: Asker) -> None:
        wire, nbytes = asker.wire, asker.nbytes + _REQUEST_BYTES

        def lost() -> None:  # without its own name, it is no cycle: the entry goes with the last reference
            self._leave(question, asker, question.askers.pop(asker))
            asker.refuse(BookieUnavailable("the connection that asked is closed"))
            if not question.askers and not question.turn.done() and question.task is not None:
                self._forget(question)
                question.turn.cancel()
                question.task.cancel()

        question.askers[asker] = lost
        self._turns.wait(question.turn, wire)
        wire.asked[lost] = None
        wire.asked_bytes += nbytes
        wire.share.hold(nbytes)
        self._waiting += 1
        memory = wire.context.memory
        is_enough = len(wire.asked) >= MOST_OF_ONE or wire.asked_bytes > BYTES_OF_ONE
        if is_enough or self._waiting >= MOST_OF_ALL or memory.total > memory.most_kept:
            wire.stall(Stall.LEDGER_ASKED)

    def _leave(self, question: _Question, asker: Asker, lost: Callable[[], None]) -> None:
        wire, nbytes = asker.wire, asker.nbytes + _REQUEST_BYTES
        self._turns.leave(question.turn, wire)
        del wire.asked[lost]
        wire.asked_bytes -= nbytes
        wire.share.hold(-nbytes)
        self._waiting -= 1
        wire.context.frame_rooms.given_back()

    def _forget(self, question: _Question) -> None:
        """Let the next request ask again."""
        asking = self._asking[question.ledger_id]
        del asking[question.life]
        if not asking:
            del self._asking[question.ledger_id]

    def _is_older(self, ledger_id: int) -> bool:
        return ledger_id <= self._newest and not self._ledgers.is_known(ledger_id)


def _is_alive(metadata: LedgerMetadata | None, life: bytes) -> bool:
    """Return whether the metadata say that the ledger of this life is open."""
    if metadata is None or not life or not metadata.creation_token:
        return False
    return is_same_life(life_of(metadata.creation_token), life) and metadata.state is LedgerState.OPEN


def _is_another(stored: bytes, life: bytes) -> bool:
    """Return whether a life is known of what is stored, and it is not this one."""
    return bool(stored) and not is_same_life(stored, life)


def _has_another_key(asker: Asker, question: _Question) -> bool:
    """Return whether the metadata show that the request has a wrong password."""
    return question.key is not None and asker.key != question.key


def _key_of(metadata: LedgerMetadata) -> bytes | None:
    return None if metadata.password is None else master_key(metadata.password)


def refused_as(kind: type[LedgerFenced] | type[NoSuchLedger], ledger_id: int) -> PodkeeperError:
    """Return the error for a ledger that is not written any more."""
    return kind(f"ledger {ledger_id} was closed, or deleted, before this request arrived")
