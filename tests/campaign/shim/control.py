"""The page through which a running process is told which of its system calls fail (shim.c reads it).

    shim = Shim(folder)                       # compiles shim.c once for each state of its source
    with shim.rule(Op.SYNC, errno.EIO, path="/journal/"):
        ...
    shim.set_clock(-3600)

Needs a C compiler (`cc`). One thread uses a `Shim`; the process it belongs to reads at any time.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntFlag
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("shim.c")
_MAGIC: Final = 0x504B
_HEAD: Final = struct.Struct("<IIq256s256s")
_RULE: Final = struct.Struct("<IIIIIIII96s")
_RULES: Final = 8
_ACTIVE: Final = struct.Struct("<I")
_HITS: Final = 24


class Op(IntFlag):
    """Which calls a rule is for."""

    WRITE = 1
    SYNC = 2
    OPEN = 4
    ALLOCATE = 8
    READ = 16
    NAMES = 32

    @classmethod
    def changes(cls) -> Op:
        return cls.WRITE | cls.OPEN | cls.ALLOCATE | cls.NAMES


def library() -> Path:
    """The compiled shim. RuntimeError: this machine has no C compiler, or it refuses the source."""
    name = f"podkeeper-campaign-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}.so"
    path = Path(tempfile.gettempdir()) / name
    if path.exists():
        return path
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("the campaign compiles a shim for system calls: apt-get install gcc libc6-dev")
    made = path.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(_SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the shim cannot be compiled: {done.stderr}")
    made.rename(path)
    return path


class Shim:
    """The control page of one process, and the folder of what it has written and not synced."""

    def __init__(self, folder: Path, watched: Path) -> None:
        """`watched`: the files whose unsynced writes are recorded, those below this folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.undo = folder / "undo"
        self.undo.mkdir(exist_ok=True)
        self._library = library()
        self._path = folder / "control"
        size = _HEAD.size + _RULES * _RULE.size
        self._path.write_bytes(bytes(size))
        with self._path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), size)
        _HEAD.pack_into(self._page, 0, _MAGIC, 1, 0, os.fsencode(self.undo), os.fsencode(f"{watched}/"))

    @property
    def environment(self) -> dict[str, str]:
        """Of the process that is to be shimmed."""
        return {"LD_PRELOAD": str(self._library), "CAMPAIGN_SHIM": str(self._path)}

    def set_clock(self, seconds: float) -> None:
        """How far ahead of the real time the process is from now on."""
        struct.pack_into("<q", self._page, 8, int(seconds * 1e9))

    def clear(self) -> None:
        """No rule is in force, and the clock is right."""
        for number in range(_RULES):
            _ACTIVE.pack_into(self._page, self._offset(number), 0)
        self.set_clock(0)

    @contextmanager
    def rule(
        self,
        ops: Op,
        error: int = 0,
        *,
        path: str = "",
        one_in: int = 1,
        delay: float = 0.0,
        shorten: bool = False,
    ) -> Iterator[RuleHits]:
        """While the body runs, one in so many calls of `ops` on files whose path contains `path` fails with `error`
        (0: it does not fail), takes `delay` seconds longer, or writes half of what it is given."""
        number = next(n for n in range(_RULES) if not _ACTIVE.unpack_from(self._page, self._offset(n))[0])
        offset = self._offset(number)
        row = _RULE.pack(0, ops, error, one_in, int(delay * 1e6), shorten, 0, 0, path.encode())
        self._page[offset : offset + _RULE.size] = row
        _ACTIVE.pack_into(self._page, offset, 1)
        try:
            yield RuleHits(self._page, offset + _HITS)
        finally:
            _ACTIVE.pack_into(self._page, offset, 0)

    @staticmethod
    def _offset(number: int) -> int:
        return _HEAD.size + number * _RULE.size


class RuleHits:
    """How often a rule has struck."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._page, self._offset = page, offset

    def __int__(self) -> int:
        return int(_ACTIVE.unpack_from(self._page, self._offset)[0])
