"""A folder of backups, of one cluster or of several: how they are named, and which of them go.

    metadata-6f0b1c2d-1111-4222-8333-944445555666-20260301T020000Z      cluster and time, in UTC

Invariants
- An unfinished file goes once no process writes it any more (`unfinished_file`).
- A file goes only once a newer backup of the same cluster was read back, and only if it was there when that one began:
  runs that overlap do not remove each other's.
- Files with a later time than the new backup go first: the clock was wrong when they were written.
- Whatever has another name is left alone: backups of other clusters, and files of people.

Threads: any, one at a time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Final

from bookie_protocol.errors import InvalidConfiguration, StorageFault
from bookie_protocol.metadata_service.moving.unfinished_file import remove_left

_TIME: Final = "%Y%m%dT%H%M%SZ"
_AS_TIME: Final = r"[0-9]{8}T[0-9]{6}Z"
_PART: Final = rf"{_AS_TIME}\.[0-9a-f]+\.part"
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")


class BackupFolder:
    """The backups of one cluster in a folder."""

    def __init__(self, path: str, instance_id: str) -> None:
        """Raises InvalidConfiguration: there is no id, or no file can be named after it."""
        if not _ID.fullmatch(instance_id):
            raise InvalidConfiguration(
                f"--keep names files after the instance id of the cluster, and {instance_id!r} is not one of letters, "
                "digits, dots, dashes and underscores: leave --keep out, and give the path of a file"
            )
        self._path = path
        self._prefix = f"metadata-{instance_id}-"
        self._before: frozenset[str] = frozenset()

    def new_path(self, now: float) -> str:
        """Return where a backup of this time (seconds since 1970) goes, and remove what killed processes left.

        Raises InvalidConfiguration: there is no such folder.
        """
        self._before = frozenset(self._names(_AS_TIME))
        for name in self._names(_PART):
            remove_left(os.path.join(self._path, name), now)
        return os.path.join(self._path, f"{self._prefix}{time.strftime(_TIME, time.gmtime(now))}")

    def keep_newest(self, number: int, new: str) -> list[str]:
        """Remove all but so many backups, of which `new` is one; return the paths that are gone.

        The clock may have been put back, so `new` stays whatever its name is.
        """
        last = os.path.basename(new)
        there = self._before.intersection(self._names(_AS_TIME)) - {last}
        others = sorted(there, key=lambda name: (name <= last, name))
        gone = [os.path.join(self._path, name) for name in others[: max(0, len(others) - number + 1)]]
        for path in gone:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageFault(f"{path}: {error.strerror or error}") from error
        return gone

    def _names(self, pattern: str) -> Iterator[str]:
        try:
            with os.scandir(self._path) as entries:
                found = [each.name for each in entries if each.is_file(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InvalidConfiguration(f"{self._path} is not a folder: --keep needs one") from error
        except OSError as error:
            raise StorageFault(f"{self._path}: {error.strerror or error}") from error
        return (name for name in found if re.fullmatch(re.escape(self._prefix) + pattern, name))
