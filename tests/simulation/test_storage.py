"""Histories of one bookie's storage: every rule holds for every seed, and each planted bug is found.

`python -m tests.simulation.test_storage ENGINE FIRST:END` runs more of them, and prints what is wrong. With `any` for
the engine it draws the configuration too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import structlog

from bookie_pod.node import recovery
from bookie_pod.node.identity.places import DirectoryPlaces
from bookie_pod.node.recovery import ReplayedJournals, ReplayIntoStorage
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_pod.storage.index.ledger_data import FirstLogs
from bookie_pod.storage.integrity.entry_check import EntryCheck, ReadCheck
from bookie_pod.storage.integrity.ledger_scrub import LedgerScrub
from bookie_pod.storage.journal import replay
from bookie_protocol.digest import Crc32cDigest, DigestManager, MacDigest
from tests.support.storage_world import ENGINES, broken_rule, draw, draw_configuration

NORMAL = 12
CONFIGURED = 16
LONG = 600
PARTS = 6


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@pytest.mark.parametrize("engine", ENGINES)
def test_everything_holds(engine: str) -> None:
    assert _broken(range(NORMAL), engine) == []


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(NORMAL, LONG, LONG // PARTS))
@pytest.mark.parametrize("engine", ENGINES)
def test_everything_holds_for_many_more(engine: str, first: int) -> None:
    assert _broken(range(first, first + LONG // PARTS), engine) == []


@pytest.mark.parametrize("first", [0, CONFIGURED // 2])
def test_everything_holds_however_it_is_configured(first: int) -> None:
    assert _broken_as_configured(range(first, first + CONFIGURED // 2)) == []


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(CONFIGURED, LONG, LONG // PARTS))
def test_everything_holds_however_it_is_configured_for_many_more(first: int) -> None:
    assert _broken_as_configured(range(first, first + LONG // PARTS)) == []


def _broken_as_configured(seeds: range) -> list[str]:
    return [broken for seed in seeds if (broken := broken_rule(draw_configuration(seed)))]


def _broken(seeds: range, engine: str) -> list[str]:
    return [broken for seed in seeds if (broken := broken_rule(draw(seed, engine)))]


@dataclass(frozen=True, slots=True)
class StorageBug:
    """A defect that one of `rules` finds within `seeds`, with this engine."""

    name: str
    patch: Callable[[pytest.MonkeyPatch], None]
    rules: tuple[str, ...]
    engine: str
    seeds: range


def _lives_have_no_beginning(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FirstLogs, "of_new", lambda self, ledger_id: 0)


def _deletions_are_not_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplayIntoStorage, "on_deletion", lambda *arguments: None)
    patch.setattr(replay, "_deletions_in", lambda survey: iter(()))


def _fences_are_not_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplayIntoStorage, "on_fence", lambda self, ledger_id: None)


def _a_dead_process_counts_as_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "settle_end", lambda *arguments, **named: None)
    patch.setattr(ReplayedJournals, "go_on_at", lambda *arguments: None)


def _logs_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogWriter, "sync", lambda self: setattr(self, "synced_to", self.written_to))


def _the_map_is_named_before_it_is_synced(patch: pytest.MonkeyPatch) -> None:
    write_map = LogWriter.write_map

    def early(self: LogWriter) -> None:
        write_map(self)
        assert self._map_pointer is not None
        self._write_map_pointer(self._map_pointer)

    patch.setattr(LogWriter, "write_map", early)


def _places_are_alike(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DirectoryPlaces, "_fits", lambda *arguments: True)


def _reads_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadCheck, "problem", lambda *arguments: None)


def _scrubs_check_no_digest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntryCheck, "problem", lambda *arguments: None)
    patch.setattr(LedgerScrub, "met", lambda *arguments: None)  # what a read has refused


def _the_last_byte_is_not_digested(kind: type[DigestManager]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        whole = kind.digest
        patch.setattr(kind, "digest", lambda self, header, payload: whole(self, header, payload[:-1]))

    return plant


_CRC32C = _the_last_byte_is_not_digested(Crc32cDigest)
_MAC = _the_last_byte_is_not_digested(MacDigest)

BUGS = [
    StorageBug("lives have no beginning", _lives_have_no_beginning, ("returned", "denied"), "db", range(40)),
    StorageBug("lives have no beginning", _lives_have_no_beginning, ("returned", "denied"), "sorted", range(40)),
    StorageBug("deletions are not replayed", _deletions_are_not_replayed, ("returned",), "interleaved", range(40)),
    StorageBug("fences are not replayed", _fences_are_not_replayed, ("unfenced",), "sorted", range(10)),
    StorageBug(
        "a dead process counts as synced", _a_dead_process_counts_as_synced, ("refused", "denied"), "sorted", range(150)
    ),
    StorageBug("logs are not synced", _logs_are_not_synced, ("lost", "denied", "wrong", "damage"), "db", range(20)),
    StorageBug("places are alike", _places_are_alike, ("denied", "refused", "unfenced"), "db", range(20)),
    StorageBug("reads are not checked", _reads_are_not_checked, ("wrong",), "db", range(60)),
    StorageBug("scrubs check no digest", _scrubs_check_no_digest, ("unfound",), "sorted", range(60)),
    StorageBug("the last byte is not digested", _CRC32C, ("wrong",), "interleaved", range(60)),
    StorageBug("the last byte is not digested by clients", _MAC, ("wrong",), "db", range(60)),
    StorageBug(
        "a map that is not synced is named", _the_map_is_named_before_it_is_synced, ("damage",), "db", range(150, 450)
    ),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.name}, {bug.engine}")
def test_the_bug_is_found(bug: StorageBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.patch(monkeypatch)
    for seed in bug.seeds:
        broken = broken_rule(draw(seed, bug.engine))
        if broken is not None:
            assert broken.split(" ")[0].rstrip(":") in bug.rules, broken
            return
    pytest.fail(f"not found with {bug.seeds}: {bug.name}")


def main(engine: str, seeds: str) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    first, end = map(int, seeds.split(":"))
    failed = 0
    for seed in range(first, end):
        broken = broken_rule(draw_configuration(seed) if engine == "any" else draw(seed, engine))
        if broken is not None:
            failed += 1
            print(broken, flush=True)
    print(f"{end - first} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
