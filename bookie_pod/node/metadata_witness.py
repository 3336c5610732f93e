"""The check whether the metadata service was put back to an older state, such as a backup.

Its memory is the file `metadata-seen` in the first ledger directory.

A service that was put back denies every ledger that was created since. Garbage collection must not believe it: the
newest metadata may be brought back, and then the entries have to be there. So the bookie leaves a mark of its own in
the service and remembers it here:

    {"format": 1, "bookie": "...", "written": "...", "next": "...", "position": 0, "wentBack": "", "markLost": false,
     "history": ""}

    bookie     the id under which the marks are; of another one, before a rename, they say nothing
    written    the mark that the service has (kind `gc-witness`, the bookie's id); empty: none yet
    next       the mark that the service may have: it is being written
    position   how far the history of the service had gone (`Session.position`); 0: not known
    wentBack   why the service is not believed; empty: it is
    markLost   it did not have the mark since
    history    the place to which the metadata were moved last (the record `history`); empty: never. Positions of
               another place say nothing
    counts     what positions count there (`Session.counts`)

Invariants
- The service went back if it has an older mark, or none although it had one; or if it gave an answer at an older
  position than before, to any process of this bookie; or if it was restored from a backup since; or if it is the
  ZooKeeper that the metadata had left for Oxia; or if the session has a reason of its own to doubt it. Neither mark nor
  position tell what the bookie got between their last note and the backup.
- A finding remains, through restarts: the service catches up, and nothing but this file would know it a day later. It
  ends when the mark that was lost is there again, because the newest state was brought back, or when a person says that
  the older state counts (`accept`). The notes of the newest state stay until then.
- A bookie that holds no ledger believes any place: nothing can be lost.
- The mark is renewed with each pass of garbage collection; the position is noted every minute, and when the bookie
  stops. A full disk prevents that, but not the collection.

Threads: event loop; the file on others. `went_back` may be read by any.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import structlog

from bookie_pod.config.sections.journal import CURRENT_FOLDER
from bookie_pod.storage.files import Files, storage_fault
from bookie_protocol.errors import (
    UNREADABLE,
    InvalidConfiguration,
    MetadataNotFound,
    MetadataRefused,
    MetadataUnavailable,
    MetadataWentBack,
    StorageFault,
)
from bookie_protocol.metadata_service.records import history_of, split_history
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.versioned import Versioned

NAME: Final = "metadata-seen"
KIND: Final = "gc-witness"
FORMAT: Final = 1
LOOK_S: Final = 5.0
"""Seconds between two looks at the session."""
NOTE_S: Final = 60.0
"""Seconds between two notes of the position."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A service that has the metadata. Only positions of the same place can be compared."""

    history: str = ""
    counts: str = ""

    @property
    def restored(self) -> str:
        """The restoration from a backup that made this place. Empty if it was not restored."""
        return split_history(self.history)[1]

    def why_older(self, seen: Place) -> str:
        """Return why a service at this place is older than one that was `seen`. Empty if nothing says so.

        Pulsar's live migration goes from ZooKeeper to Oxia. A copy back makes another history.
        """
        if self.restored != seen.restored:
            return "it was restored from a backup"
        if seen.counts and self == replace(seen, counts=""):
            return "the metadata had moved from it to Oxia"
        return ""


NOWHERE: Final = Place()


@dataclass(frozen=True, slots=True)
class Seen:
    """The content of the witness file."""

    bookie: str
    written: str = ""
    next: str = ""
    position: int = 0
    went_back: str = ""
    mark_lost: bool = False
    place: Place = NOWHERE

    @property
    def known(self) -> set[str]:
        """The marks, of which the service has one."""
        return {self.written, self.next} - {""}

    def encode(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "bookie": self.bookie,
                "written": self.written,
                "next": self.next,
                "position": self.position,
                "wentBack": self.went_back,
                "markLost": self.mark_lost,
                "history": self.place.history,
                "counts": self.place.counts,
            }
        ).encode()

    @staticmethod
    def decode(data: bytes) -> Seen:
        """Raises one of `UNREADABLE`."""
        stored = json.loads(data)
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']}")
        return Seen(
            str(stored["bookie"]),
            str(stored["written"]),
            str(stored["next"]),
            int(stored["position"]),
            str(stored["wentBack"]),
            bool(stored["markLost"]),
            Place(str(stored.get("history", "")), str(stored.get("counts", ""))),  # earlier releases noted none
        )


def read_seen(directory: str) -> Seen:
    """Read what the bookie of this ledger directory has seen. Raises `InvalidConfiguration`."""
    path = os.path.join(directory, CURRENT_FOLDER, NAME)
    try:
        with open(path, "rb") as file:
            return Seen.decode(file.read())
    except OSError as error:
        raise InvalidConfiguration(
            f"{path}: {error.strerror}: name the first ledger directory of a bookie that has run"
        ) from error
    except UNREADABLE as error:
        raise InvalidConfiguration(f"{path} cannot be understood: {error!r}") from error


class MetadataWitness:
    """One per bookie. `begin` first; `check` before the word of the service counts; `stop` at the end."""

    def __init__(
        self,
        service: MetadataService,
        files: Files,
        folder: str,
        bookie_id: str,
        ledger_ids: Callable[[], Sequence[int]],
    ) -> None:
        """`folder`: the `current` folder of the first ledger directory. `ledger_ids`: what the bookie holds."""
        self._service = service
        self._files = files
        self._path = f"{folder}/{NAME}"
        self._bookie_id = bookie_id
        self._seen = Seen(bookie_id)
        self._ledger_ids = ledger_ids
        self._is_empty = False
        """True if the bookie held nothing when it began."""
        self._turn = asyncio.Lock()
        self._begun = self._passed = 0
        """The number of the check that began last, and of the one that passed last."""
        self._place: Place | None = None
        """This place as it was read last; None: not known yet. The position of `_seen` counts if it is the same."""

    @property
    def went_back(self) -> str | None:
        """Return why the service is not believed; None if it is."""
        return self._seen.went_back or None

    async def begin(self) -> None:
        """Read what earlier processes saw. Raises `StorageFault`."""
        async with self._turn:
            seen = await asyncio.to_thread(self._read)
            renamed = seen.bookie != self._bookie_id
            self._seen = replace(seen, bookie=self._bookie_id, written="", next="") if renamed else seen
            self._is_empty = not await asyncio.to_thread(self._ledger_ids)
            if self._seen.went_back:
                _log.error("garbage collection deletes nothing", reason=self._seen.went_back)
            with suppress(MetadataUnavailable):  # later, then
                await self._read_history()
            await self._look()

    async def follow(self) -> None:
        """Look at the session again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        noted_at = loop.time()
        while True:
            await asyncio.sleep(LOOK_S)
            async with self._turn:
                if not self._is_there():
                    with suppress(MetadataUnavailable):
                        await self._read_history()
                await self._look()
                if loop.time() - noted_at >= NOTE_S:
                    noted_at = loop.time()
                    await self._note()

    async def stop(self) -> None:
        """Note how far the service had got."""
        async with self._turn:
            await self._look()
            await self._note()

    async def check(self) -> None:
        """Raises `MetadataWentBack` unless the service knows all that it knew; renews the mark. `MetadataError`.

        A check that begins while callers wait for their turns is that of all of them: questions about many ledgers come
        at once, and a mark is two writes to the disk and one to the service.
        """
        asked = self._begun
        async with self._turn:
            if self._passed > asked and not self._seen.went_back:
                return
            self._begun = number = self._begun + 1
            await self._read_history()
            stored = await self._stored()  # in step with everything that was written before
            await self._look()
            if not self._has_mark(stored) and not self._seen.mark_lost:
                which = "none" if stored is None else "an older one"
                await self._found_out(f"of the marks that this bookie left there it has {which}", mark_lost=True)
            elif self._seen.mark_lost and self._has_mark(stored) and not self._is_older():
                await self._begin_anew(stored)
                _log.warning("the newest state of the metadata service is back: it is believed again")
            if self._seen.went_back:
                raise MetadataWentBack(self._seen.went_back)
            await self._renew(stored)
            self._passed = number

    async def accept(self) -> None:
        """A person says that the state of now counts. `MetadataError`, `StorageFault`."""
        async with self._turn:
            await self._read_history()
            stored = await self._stored()
            await self._begin_anew(stored)
            await self._renew(stored)
            _log.warning("the older state of the metadata service counts from now on: its ledgers are all there are")

    # --- inside: `_turn` is held ------------------------------------------------------------------------------

    async def _stored(self) -> Versioned[bytes] | None:
        try:
            return await self._service.records(KIND).read(self._bookie_id)
        except MetadataNotFound:
            return None

    async def _read_history(self) -> None:
        """Read the record, and compare it with the one of before. A place may be restored under a bookie that was
        paused or cut off meanwhile. Raises `MetadataUnavailable`."""
        counts = self._service.session.counts
        before, self._place = self._place, Place(await history_of(self._service.records), counts)
        if before is not None and before != self._place:
            self._is_empty = False  # it may hold ledgers by now
        if self._place == self._seen.place:
            return
        why_older = self._place.why_older(self._seen.place)
        if not why_older:
            self._seen = replace(self._seen, place=self._place, position=0)
        elif self._is_empty:
            self._seen = Seen(self._bookie_id, place=self._place)
        else:
            if not self._seen.went_back:
                await self._found_out(why_older, mark_lost=bool(self._seen.known))
            return
        await self._write(self._seen)

    def _is_there(self) -> bool:
        """Return whether the record was read from the current service: the metadata may have moved since."""
        return self._place is not None and self._place.counts == self._service.session.counts

    def _is_older(self) -> bool:
        """Tell an older place, and the place of then at an older position."""
        if self._place is None or self._place != self._seen.place:
            return self._place is not None and bool(self._place.why_older(self._seen.place))
        return 0 < self._service.session.position < self._seen.position

    def _has_mark(self, stored: Versioned[bytes] | None) -> bool:
        return not self._seen.known or _mark_of(stored) in self._seen.known

    async def _begin_anew(self, stored: Versioned[bytes] | None) -> None:
        """Accept the present state of the service. Raises `StorageFault`."""
        self._service.session.begin_history()
        seen = Seen(self._bookie_id, written=_mark_of(stored), place=self._place or NOWHERE)
        await asyncio.to_thread(self._store, seen)
        self._seen = seen

    async def _look(self) -> None:
        session, seen = self._service.session, self._seen
        if seen.went_back:
            return
        if session.doubt:
            await self._found_out(session.doubt)
        elif session.went_back_to is not None:
            await self._found_out(f"it answered at position {session.went_back_to}, after later ones")
        elif self._place == seen.place and self._is_there() and 0 < session.position < seen.position:
            await self._found_out(f"it is at position {session.position}, and was at {seen.position}")

    async def _found_out(self, what: str, *, mark_lost: bool = False) -> None:
        reason = (
            f"the metadata service was put back to an older state ({what}). Bring the newest metadata back, or, if all"
            " ledgers since are to be given up, let the older state count: `bookie gc allow-deletions --older-metadata`"
        )
        self._seen = replace(self._seen, went_back=reason, mark_lost=mark_lost)
        _log.error("garbage collection deletes nothing", reason=reason)
        await self._write(self._seen)

    async def _note(self) -> None:
        position = self._service.session.position
        if self._is_there() and not self._seen.went_back and position > self._seen.position:
            await self._write(replace(self._seen, position=position))

    async def _renew(self, stored: Versioned[bytes] | None) -> None:
        """The file comes first: whichever mark the service has after a crash is known."""
        mark = secrets.token_hex(8)
        if not await self._write(replace(self._seen, written=_mark_of(stored), next=mark)):
            return
        records = self._service.records(KIND)
        try:
            if stored is None:
                await records.create(self._bookie_id, mark.encode())
            else:
                await records.update(self._bookie_id, mark.encode(), stored.identity)
        except MetadataRefused as error:  # then what is known is the position alone
            _log.warning("the metadata service takes no mark of this bookie", reason=str(error))
            await self._write(replace(self._seen, next=""))
            return
        position = max(self._seen.position, self._service.session.position)
        await self._write(replace(self._seen, written=mark, next="", position=position))

    async def _write(self, seen: Seen) -> bool:
        """Return whether it is durable. What was found out counts in any case."""
        try:
            await asyncio.to_thread(self._store, seen)
        except StorageFault as error:
            _log.warning("what the metadata service had last is not noted", reason=str(error))
            return False
        self._seen = seen
        return True

    def _store(self, seen: Seen) -> None:
        try:
            self._files.write_bytes_atomic(self._path, seen.encode())
        except OSError as error:
            raise storage_fault(f"cannot write {self._path}", error) from error

    def _read(self) -> Seen:
        try:
            return Seen.decode(self._files.read_bytes(self._path))
        except FileNotFoundError:
            return Seen(self._bookie_id)
        except OSError as error:
            raise storage_fault(f"cannot read {self._path}", error) from error
        except UNREADABLE as error:
            return Seen(
                self._bookie_id,
                went_back=f"{self._path} cannot be understood ({error!r}), so it is unknown whether the metadata"
                " service was put back to an older state. If it was not, say so:"
                " `bookie gc allow-deletions --older-metadata`",
            )


def _mark_of(stored: Versioned[bytes] | None) -> str:
    return "" if stored is None else stored.value.decode("ascii", "replace")
