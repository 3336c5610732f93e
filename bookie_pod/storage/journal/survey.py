"""What is sound in a journal file, and whether its end is clean, torn or damaged.

A journal file is preallocated, so it ends in zeros, and a crash may lose any part of what was not synced: whole
sectors in any order (they read as zeros), the rest of a sector, or the end of the file. What was synced must be there.

Files with group checks (`journal.format`)
- Sound are the leading groups that match their check. If only zeros follow, the end is clean.
- Else the first group that is not sound is *damaged* if a later intact check says that it had been synced, or if its
  own check is intact and none of its sectors ends in zeros, as every torn one would (or it matches its check and
  still holds an impossible record). Otherwise it is a torn tail: nothing from there on was ever acknowledged.

Files without (written by the reference, or with `group_checks` off)
- Sound are the leading records. A zero length word with only zeros behind it is a clean end.
- A zero length word, or a record longer than the rest of the file, is a torn tail unless a whole group (records and
  the padding that ends them at a sector boundary) follows at some later sector: then it is damage. After a power cut
  that reordered sectors this may refuse a file that is only torn; it cannot be told, and refusing loses nothing.
- A record of nothing but zeros counts as a zero length word: its length was written and its body was not.
- The last record is left out if it ends inside a sector without padding behind it, and that sector holds nothing but
  zeros: the process died between two writes of one group. A client could read such an entry, but its digest fails,
  and the ledger could not be recovered. No group without its padding was ever acknowledged.
- A negative length is damage, but for a padding marker cut short by zeros. A record below 16 bytes is damage if
  anything but zeros follows it.

Pure judgement over reads; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bookie_pod.storage.files import File
from bookie_pod.storage.journal.format import (
    CHECK_LENGTH,
    CHECKS_MAGIC,
    FIRST_VERSION_WITH,
    FIRST_VERSION_WITH_PADDING,
    LENGTH,
    MAGIC,
    PADDING_HEAD,
    SECTOR,
    SHORT_HEADER_LENGTH,
    GroupCheck,
    JournalHeader,
    RecordKind,
    crc32c,
    kind_of,
    parse_group_check,
    parse_header,
    tail_of_special_record,
)
from bookie_pod.storage.journal.reader import (
    CHUNK,
    FileWindow,
    JournalRecord,
    RecordWalk,
    Step,
    Stop,
    records_between,
)
from bookie_protocol.errors import JournalDamaged

_MAGIC_IN_PADDING = PADDING_HEAD.size
_LONGEST_GROUP_SEARCHED = 100_000
"""Records after which the search for a whole group gives a candidate up."""


@dataclass(frozen=True, slots=True)
class JournalSurvey:
    """What one pass over a file found; offsets of the file.

    `start`, `end`  what is sound and to be replayed
    `torn`          the file ends in a torn tail
    `damage`        what is wrong at `end`; None if nothing is
    `blank`         nothing but zeros follows the header: a file in which nothing was ever written
    `size`          length of the file
    """

    path: str
    journal_id: int
    header: JournalHeader
    start: int
    end: int
    size: int
    torn: bool = False
    damage: str | None = None
    blank: bool = False

    @property
    def resume_at(self) -> int:
        """Where a later replay may start so that it finds nothing again: the sound end, or the end of the file."""
        return self.size if self.torn or self.damage else self.end

    def as_damaged(self, damage: str) -> JournalSurvey:
        return replace(self, torn=False, damage=damage)

    def error(self) -> JournalDamaged:
        return JournalDamaged(
            f"journal {self.path} is damaged at offset {self.end}: {self.damage}; restore the file, or set "
            "skipReplayJournalInvalidRecord=true to give up the rest of it"
        )


def survey_journal(file: File, journal_id: int, mark_offset: int = 0) -> JournalSurvey:
    """Find the sound part of a file, from `mark_offset` (0: from its first record)."""
    return _Surveyor(file, journal_id).survey(mark_offset)


def read_records(file: File, journal_id: int, start: int = 0, *, skip_invalid: bool = False) -> Iterator[JournalRecord]:
    """The sound records of a file from `start` (0: its first), in order.

    Raises `JournalDamaged` after them if the file is damaged there, unless `skip_invalid`.
    """
    survey = survey_journal(file, journal_id, start)
    window = FileWindow(file, survey.size)
    yield from records_between(window, survey.header.version, survey.start, survey.end)
    if survey.damage is not None and not skip_invalid:
        raise survey.error()


class _Surveyor:
    def __init__(self, file: File, journal_id: int) -> None:
        self._file = file
        self._journal_id = journal_id
        self._window = FileWindow(file, file.size())

    def survey(self, mark_offset: int) -> JournalSurvey:
        if 0 < mark_offset >= self._window.size:
            return self._found(JournalHeader(1, group_checks=False), mark_offset, mark_offset)
        first = self._window.read(0, SHORT_HEADER_LENGTH + len(CHECKS_MAGIC))
        try:
            header = parse_header(first)
        except ValueError as error:
            if first[4:8] == bytes(4) and self._only_zeros_from(len(MAGIC)):
                return self._found(JournalHeader(1, group_checks=False), 0, 0, blank=True)
            return self._found(JournalHeader(1, group_checks=False), 0, 0, damage=str(error))
        if header.version == 1 and self._is_unwritten(first):
            return self._found(header, 0, 0, blank=True)
        start = max(mark_offset, header.length)
        if start >= self._window.size or self._only_zeros_from(start):
            return self._found(header, start, start, blank=start == header.length)
        return self._checked(header, start) if header.group_checks else self._unchecked(header, start)

    def _is_unwritten(self, first: bytes) -> bool:
        """Whether this is a header that was never synced: some first bytes of it, then zeros."""
        kept = first.rstrip(b"\0")
        return MAGIC.startswith(kept) and self._only_zeros_from(len(kept))

    # --- with group checks ----------------------------------------------------------------------------------

    def _checked(self, header: JournalHeader, start: int) -> JournalSurvey:
        sound = start
        walk = RecordWalk(self._window, header.version, start, skip_entries=True)
        for step in walk:
            if step.is_padding:
                check = self._check_at(step.offset)
                if check is None or not self._matches(check, sound, step.offset):
                    break
                sound = step.end
            elif self._impossible(step, header) is not None:
                break
        if self._only_zeros_from(sound):
            return self._found(header, start, sound)
        damage = self._proof_of_damage(sound)
        return self._found(header, start, sound, torn=damage is None, damage=damage)

    def _matches(self, check: GroupCheck, start: int, end: int) -> bool:
        return check.start == start and check.crc == self._crc(start, end)

    def _crc(self, start: int, end: int) -> int:
        crc = 0
        for chunk in self._window.chunks(start, end):
            crc = crc32c(chunk, crc)
        return crc

    def _check_at(self, position: int) -> GroupCheck | None:
        inside = self._window.read(position + PADDING_HEAD.size, CHECK_LENGTH)
        return parse_group_check(inside, self._journal_id, position)

    def _proof_of_damage(self, sound: int) -> str | None:
        """Why the group at `sound` cannot be a torn tail; None if it can."""
        for position, check in self._checks_from(sound):
            if check.synced > sound:
                return f"its group does not match its checksum, yet all below {check.synced} had been synced"
            if check.start == sound and check.crc == self._crc(sound, position):
                return "its group matches its checksum and holds an impossible record"
            if check.start == sound and not self._may_be_torn(sound, position):
                return "its group does not match its checksum, and no part of it is missing"
        return None

    def _checks_from(self, begin: int) -> Iterator[tuple[int, GroupCheck]]:
        """Every intact check from an offset to the end of the file, with the offset of its padding record."""
        overlap = len(CHECKS_MAGIC) - 1
        for base in range(begin, self._window.size, CHUNK):
            data = self._window.read(base, CHUNK + overlap)
            at = data.find(CHECKS_MAGIC)
            while at >= 0:
                position = base + at - _MAGIC_IN_PADDING
                if position >= begin and (check := self._check_at(position)) is not None:
                    yield position, check
                at = data.find(CHECKS_MAGIC, at + 1)

    def _may_be_torn(self, start: int, end: int) -> bool:
        """Whether some sector of a group ends in zeros. The one that holds the check is whole, as the check is."""
        begin = start - start % SECTOR
        sectors = self._window.chunks(begin, end - end % SECTOR)
        return any(0 in chunk[SECTOR - 1 :: SECTOR] for chunk in sectors)

    # --- without --------------------------------------------------------------------------------------------

    def _unchecked(self, header: JournalHeader, start: int) -> JournalSurvey:
        walk = RecordWalk(self._window, header.version, start, skip_entries=True)
        for step in walk:
            if step.is_padding:
                continue
            if (damage := self._impossible(step, header)) is not None:
                return self._found(header, start, step.offset, damage=damage)
            if self._is_hollow(step):
                walk.stop = Stop.ZERO
                break
        end = walk.offset
        if self._only_zeros_from(end):
            return self._found(header, start, self._before_cut_record(header, start, end))
        damage = self._damage_at_stop(walk, header, end == header.length)
        return self._found(header, start, end, torn=damage is None, damage=damage)

    def _before_cut_record(self, header: JournalHeader, start: int, end: int) -> int:
        """`end`, or where the last record begins if its own end was never written."""
        within = end % SECTOR
        if header.version < FIRST_VERSION_WITH_PADDING or not within or end - within < start:
            return end
        if self._window.read(end - within, within).strip(b"\0"):
            return end
        last = end
        for step in RecordWalk(self._window, header.version, start):
            if step.end > end:
                break
            last = end if step.is_padding else step.offset
        return last

    def _is_hollow(self, step: Step) -> bool:
        """Whether only the length word of a record was written: no client writes an entry of zeros."""
        return step.ledger_id == step.entry_id == 0 and not any(
            chunk.strip(b"\0") for chunk in self._window.chunks(step.body_offset, step.end)
        )

    def _damage_at_stop(self, walk: RecordWalk, header: JournalHeader, is_first: bool) -> str | None:
        end, length = walk.offset, walk.stop_length
        if walk.stop is Stop.NEGATIVE:
            return None if self._is_cut_marker(end) else f"a record has length {length}"
        if walk.stop is Stop.SHORT:
            if self._only_zeros_from(end + LENGTH.size + length):
                return None
            return f"a record has length {length}, at least 16 are needed"
        if header.version == 1 and is_first and walk.stop is Stop.CUT:
            return f"no journal header, and no record either (length {length})"
        if (group := self._whole_group_after(end, header.version)) is not None:
            return f"{walk.stop.value}, yet a whole group of records follows at offset {group}"
        return None

    def _is_cut_marker(self, offset: int) -> bool:
        word = self._window.read(offset, LENGTH.size)
        return word in (b"\xff\0\0\0", b"\xff\xff\0\0") and self._only_zeros_from(offset + LENGTH.size)

    def _whole_group_after(self, offset: int, version: int) -> int | None:
        """Offset of a later sector at which records start that end in a padding at a sector boundary."""
        if version < FIRST_VERSION_WITH_PADDING:
            return None
        first = (offset // SECTOR + 1) * SECTOR
        for base in range(first, self._window.size, CHUNK):
            data = self._window.read(base, CHUNK)
            for at in range(0, len(data), SECTOR):
                if data[at : at + LENGTH.size] > bytes(LENGTH.size) and self._is_group(base + at, version):
                    return base + at
        return None

    def _is_group(self, offset: int, version: int) -> bool:
        walk = RecordWalk(self._window, version, offset)
        for count, step in enumerate(walk):
            if step.is_padding:
                return count > 0 and step.end % SECTOR == 0
            unlikely = step.ledger_id < 0 or kind_of(step.entry_id) is RecordKind.UNKNOWN
            if unlikely or count == _LONGEST_GROUP_SEARCHED:
                return False
        return False

    # --- both -----------------------------------------------------------------------------------------------

    def _impossible(self, step: Step, header: JournalHeader) -> str | None:
        """What makes a record impossible in a file of this version; None if nothing does."""
        kind = kind_of(step.entry_id)
        if header.version < FIRST_VERSION_WITH.get(kind, 0):
            return f"a {kind.value} record, which version {header.version} does not know"
        if kind in (RecordKind.KEY, RecordKind.EXPLICIT_LAC):
            try:
                tail_of_special_record(self._window.read(step.body_offset, step.length))
            except ValueError as error:
                return f"a {kind.value} record is malformed: {error}"
        return None

    def _only_zeros_from(self, offset: int) -> bool:
        return all(
            chunk.count(0) == len(chunk) if len(chunk) < CHUNK else chunk == _ZEROS
            for chunk in self._window.chunks(offset, self._window.size)
        )

    def _found(
        self,
        header: JournalHeader,
        start: int,
        end: int,
        *,
        torn: bool = False,
        damage: str | None = None,
        blank: bool = False,
    ) -> JournalSurvey:
        size = self._window.size
        return JournalSurvey(self._file.path, self._journal_id, header, start, end, size, torn, damage, blank)


_ZEROS = bytes(CHUNK)
