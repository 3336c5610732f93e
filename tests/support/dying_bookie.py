"""The `bookie` command, but for a compaction in which the process dies (SIGKILL) at a given step.

    python dying_bookie.py STEP serve --config FILE

The files and the index are real; only the functions at which a step begins or ends are wrapped.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from bookie_pod.storage.files_posix import PosixFile, PosixFiles
from bookie_pod.storage.gc.storage import CollectedDirectory, CollectedEngine

PROGRAM = [sys.executable, os.path.abspath(__file__)]


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def _around(owner: type, name: str, concerns: Callable[..., bool], *, before: bool = False) -> None:
    """Die before, or after, the first call of a method that `concerns` its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        hit = concerns(*arguments)
        if hit and before:
            _die()
        result = original(*arguments, **options)
        if hit:
            _die()
        return result

    setattr(owner, name, wrapper)


def _in_the_middle_of_a_move() -> None:
    for owner in _ENGINES:
        _move_half(owner)


def _move_half(owner: type) -> None:
    original = owner.move  # type: ignore[attr-defined]

    def move(self: Any, moves: Any) -> int:
        if len(moves) < 2:  # a log in which a single entry lives has no half
            return int(original(self, moves))
        original(self, moves[: len(moves) // 2])
        _die()

    owner.move = move  # type: ignore[attr-defined]


_ENGINES = (CollectedDirectory, CollectedEngine)


def _at_a_move(*, before: bool) -> None:
    for owner in _ENGINES:
        _around(owner, "move", lambda _, moves: len(moves) > 0, before=before)


def _at_the_unlink_of_the_source(*, before: bool) -> None:
    moved = []
    for owner in _ENGINES:
        _note(owner, moved)
    _around(PosixFiles, "unlink", lambda _, path: bool(moved) and path.endswith(".log"), before=before)


def _note(owner: type, moved: list[bool]) -> None:
    original = owner.move  # type: ignore[attr-defined]

    def move(self: Any, moves: Any) -> int:
        moved.append(True)
        return int(original(self, moves))

    owner.move = move  # type: ignore[attr-defined]


def _on_copy(file: PosixFile, *_: object) -> bool:
    return file.path.endswith(".compacting")


STEPS: dict[str, Callable[[], None]] = {
    "copy begun": lambda: _around(PosixFiles, "create", lambda _, path: path.endswith(".compacting")),
    "copying": lambda: _around(PosixFile, "pwrite", _on_copy),
    "copied, not synced": lambda: _around(PosixFile, "datasync", _on_copy, before=True),
    "copy synced": lambda: _around(PosixFile, "datasync", _on_copy),
    "copy complete, two names": lambda: _around(PosixFiles, "link", lambda _, __, to: to.endswith(".compacted")),
    "copy complete": lambda: _around(PosixFiles, "unlink", lambda _, path: path.endswith(".compacting")),
    "copy readable": lambda: _around(PosixFiles, "link", lambda _, __, to: to.endswith(".log")),
    "before the index": lambda: _at_a_move(before=True),
    "half of the index": _in_the_middle_of_a_move,
    "index done": lambda: _at_a_move(before=False),
    "finished": lambda: _around(PosixFiles, "unlink", lambda _, path: path.endswith(".compacted")),
    "before unlink": lambda: _at_the_unlink_of_the_source(before=True),
    "unlinked": lambda: _at_the_unlink_of_the_source(before=False),
}
PLAIN_STEPS = ("before the index", "half of the index", "index done", "before unlink", "unlinked")
"""Those that the plain form has too."""

if __name__ == "__main__":
    STEPS[sys.argv[1]]()
    from bookie_pod.cli.main import run

    sys.exit(run(sys.argv[2:]))
