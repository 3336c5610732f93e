"""Judging a journal file without group checks: written by the reference, or with `group_checks` off.

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

Pure judgement over reads; one thread for each survey.
"""

from __future__ import annotations

from bookie_pod.storage.journal.format import (
    FIRST_VERSION_WITH_PADDING,
    LENGTH,
    SECTOR,
    JournalHeader,
    RecordKind,
    kind_of,
)
from bookie_pod.storage.journal.reader import CHUNK, RecordWalk, Step, Stop
from bookie_pod.storage.journal.surveyed_file import JournalSurvey, SurveyedFile

_LONGEST_GROUP_SEARCHED = 100_000
"""Records after which the search for a whole group gives a candidate up."""


class UncheckedSurvey:
    """Of one file whose header announces no group checks."""

    def __init__(self, file: SurveyedFile) -> None:
        self._file = file

    def survey(self, header: JournalHeader, start: int) -> JournalSurvey:
        """From the record at `start` on."""
        walk = RecordWalk(self._file.window, header.version, start, skip_entries=True)
        for step in walk:
            if step.is_padding:
                continue
            if (damage := self._file.impossible(step, header)) is not None:
                return self._file.result(header, start, step.offset, damage=damage)
            if self._is_hollow(step):
                walk.stop = Stop.ZERO
                break
        end = walk.offset
        if self._file.only_zeros_from(end):
            return self._file.result(header, start, self._before_cut_record(header, start, end))
        damage = self._damage_at_stop(walk, header, end == header.length)
        return self._file.result(header, start, end, torn=damage is None, damage=damage)

    def _before_cut_record(self, header: JournalHeader, start: int, end: int) -> int:
        """`end`, or where the last record begins if its own end was never written."""
        within = end % SECTOR
        if header.version < FIRST_VERSION_WITH_PADDING or not within or end - within < start:
            return end
        if self._file.window.read(end - within, within).strip(b"\0"):
            return end
        last = end
        for step in RecordWalk(self._file.window, header.version, start):
            if step.end > end:
                break
            last = end if step.is_padding else step.offset
        return last

    def _is_hollow(self, step: Step) -> bool:
        """Whether only the length word of a record was written: no client writes an entry of zeros."""
        return step.ledger_id == step.entry_id == 0 and not any(
            chunk.strip(b"\0") for chunk in self._file.window.chunks(step.body_offset, step.end)
        )

    def _damage_at_stop(self, walk: RecordWalk, header: JournalHeader, is_first: bool) -> str | None:
        end, length = walk.offset, walk.stop_length
        if walk.stop is Stop.NEGATIVE:
            return None if self._is_cut_marker(end) else f"a record has length {length}"
        if walk.stop is Stop.SHORT:
            if self._file.only_zeros_from(end + LENGTH.size + length):
                return None
            return f"a record has length {length}, at least 16 are needed"
        if header.version == 1 and is_first and walk.stop is Stop.CUT:
            return f"no journal header, and no record either (length {length})"
        if (group := self._whole_group_after(end, header.version)) is not None:
            return f"{walk.stop.value}, yet a whole group of records follows at offset {group}"
        return None

    def _is_cut_marker(self, offset: int) -> bool:
        word = self._file.window.read(offset, LENGTH.size)
        return word in (b"\xff\0\0\0", b"\xff\xff\0\0") and self._file.only_zeros_from(offset + LENGTH.size)

    def _whole_group_after(self, offset: int, version: int) -> int | None:
        """Offset of a later sector at which records start that end in a padding at a sector boundary."""
        if version < FIRST_VERSION_WITH_PADDING:
            return None
        first = (offset // SECTOR + 1) * SECTOR
        for base in range(first, self._file.window.size, CHUNK):
            data = self._file.window.read(base, CHUNK)
            for at in range(0, len(data), SECTOR):
                if data[at : at + LENGTH.size] > bytes(LENGTH.size) and self._is_group(base + at, version):
                    return base + at
        return None

    def _is_group(self, offset: int, version: int) -> bool:
        walk = RecordWalk(self._file.window, version, offset)
        for count, step in enumerate(walk):
            if step.is_padding:
                return count > 0 and step.end % SECTOR == 0
            unlikely = step.ledger_id < 0 or kind_of(step.entry_id) is RecordKind.UNKNOWN
            if unlikely or count == _LONGEST_GROUP_SEARCHED:
                return False
        return False
