"""Only `storage_fault` and its siblings turn the operating system's error into a fault of the storage: they know which
errors are the machine's, and say nothing about what is stored."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bookie_pod
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted, fenced_files
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.integrity.scrub_part import ScrubStateFile
from bookie_protocol.errors import DirectoryFault, EntryDamaged, JournalDamaged, ResourcesShort, StorageFault
from tests.support.memory_files import MemoryFiles

ROOT = Path(bookie_pod.__path__[0])
THE_JUDGE = ROOT / "storage" / "files.py"
FAULTS = {each.__name__ for each in (StorageFault, DirectoryFault, EntryDamaged, JournalDamaged)}
WIDE = {"OSError", "Exception", "BaseException"}


def offences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Faults that are built of an error which may be the operating system's."""
    for handler in ast.walk(tree):
        if isinstance(handler, ast.ExceptHandler) and handler.name and words(handler.type) & WIDE:
            for call in ast.walk(handler):
                if isinstance(call, ast.Call) and words(call.func) & FAULTS and handler.name in words(call):
                    yield call.lineno, ast.unparse(call)


def words(node: ast.AST | None) -> set[str]:
    """The names in an expression."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} if node else set()


def test_no_code_but_one_module_judges_an_error_of_the_operating_system() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(ROOT.rglob("*.py"))
        if path != THE_JUDGE
        for line, text in offences(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


def test_rule_sees_such_a_fault() -> None:
    text = (
        "try:\n    f()\nexcept (StorageFault, OSError) as error:\n    raise StorageFault(f'no: {error}') from error\n"
    )
    assert list(offences(ast.parse(text))) == [(4, "StorageFault(f'no: {error}')")]


class ShortOfDescriptors(MemoryFiles):
    def open(self, path: str, *, writable: bool = False) -> object:  # type: ignore[override]
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


def _fences(files: Files) -> object:
    return FencedAndDeleted(fenced_files(files, ["/l/current"]))


READS: dict[str, Callable[[Files], object]] = {
    "fences of deleted ledgers": _fences,
    "deleted ledgers": lambda files: DeletedLedgers(files, "/l/current"),
    "state of the collector": lambda files: GcStateFile(files, "/l/current").read(0),
    "state of the scrubber": lambda files: ScrubStateFile(files, "/l/current").read(),
}


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_memory_that_a_machine_cannot_read_just_now_is_not_taken_for_lost(read: Callable[[Files], object]) -> None:
    """What is taken for lost is written over later: fences, logs that are set aside, damage that is to be told."""
    with pytest.raises(ResourcesShort):
        read(ShortOfDescriptors())
