"""Judging a journal file with group checks (`journal.format`).

- Sound are the leading groups that match their check. If only zeros follow, the end is clean.
- Else the first group that is not sound is *damaged* if a later intact check says that it had been synced, or if its
  own check is intact and none of its sectors ends in zeros, as every torn one would (or it matches its check and
  still holds an impossible record). Otherwise it is a torn tail: nothing from there on was ever acknowledged.

Pure judgement over reads; one thread for each survey.
"""

from __future__ import annotations

from collections.abc import Iterator

from bookie_pod.storage.journal.format import (
    CHECK_LENGTH,
    CHECKS_MAGIC,
    PADDING_HEAD,
    SECTOR,
    GroupCheck,
    JournalHeader,
    crc32c,
    parse_group_check,
)
from bookie_pod.storage.journal.reader import CHUNK, RecordWalk
from bookie_pod.storage.journal.surveyed_file import JournalSurvey, SurveyedFile

_MAGIC_IN_PADDING = PADDING_HEAD.size


class CheckedSurvey:
    """Of one file whose header announces group checks."""

    def __init__(self, file: SurveyedFile) -> None:
        self._file = file

    def survey(self, header: JournalHeader, start: int) -> JournalSurvey:
        """From the record at `start` on."""
        sound = start
        walk = RecordWalk(self._file.window, header.version, start, skip_entries=True)
        for step in walk:
            if step.is_padding:
                check = self._check_at(step.offset)
                if check is None or not self._matches(check, sound, step.offset):
                    break
                sound = step.end
            elif self._file.impossible(step, header) is not None:
                break
        if self._file.only_zeros_from(sound):
            return self._file.result(header, start, sound)
        damage = self._proof_of_damage(sound)
        return self._file.result(header, start, sound, torn=damage is None, damage=damage)

    def _matches(self, check: GroupCheck, start: int, end: int) -> bool:
        return check.start == start and check.crc == self._crc(start, end)

    def _crc(self, start: int, end: int) -> int:
        crc = 0
        for chunk in self._file.window.chunks(start, end):
            crc = crc32c(chunk, crc)
        return crc

    def _check_at(self, position: int) -> GroupCheck | None:
        inside = self._file.window.read(position + PADDING_HEAD.size, CHECK_LENGTH)
        return parse_group_check(inside, self._file.journal_id, position)

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
        for base in range(begin, self._file.window.size, CHUNK):
            data = self._file.window.read(base, CHUNK + overlap)
            at = data.find(CHECKS_MAGIC)
            while at >= 0:
                position = base + at - _MAGIC_IN_PADDING
                if position >= begin and (check := self._check_at(position)) is not None:
                    yield position, check
                at = data.find(CHECKS_MAGIC, at + 1)

    def _may_be_torn(self, start: int, end: int) -> bool:
        """Whether some sector of a group ends in zeros. The one that holds the check is whole, as the check is."""
        begin = start - start % SECTOR
        sectors = self._file.window.chunks(begin, end - end % SECTOR)
        return any(0 in chunk[SECTOR - 1 :: SECTOR] for chunk in sectors)
