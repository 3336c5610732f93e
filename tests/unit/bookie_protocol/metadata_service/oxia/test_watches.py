"""Watches: each fires once, for what its reader looked at."""

from __future__ import annotations

import pytest

from bookie_protocol.metadata_service.oxia.watches import Watches


@pytest.mark.parametrize(
    ("key", "names", "fired"),
    [
        ("/a", False, {"data"}),
        ("/a", True, {"data", "children"}),
        ("/a/b", True, {"children"}),
        ("/a/b", False, set()),
        ("/a/b/c", True, set()),
        ("/ab", True, set()),
        ("/", True, set()),
    ],
)
def test_what_a_change_fires(key: str, names: bool, fired: set[str]) -> None:
    watches, seen = Watches(), []
    watches.add("/a", lambda: seen.append("data"))
    watches.add("/a", lambda: seen.append("children"), names=True)
    for _ in range(2):
        watches.hear(key, names=names)
        assert sorted(seen) == sorted(fired)
    assert len(watches) == 2 - len(fired)


def test_a_watch_that_was_taken_back_does_not_fire() -> None:
    watches, seen = Watches(), []
    standing = watches.add("/a", lambda: seen.append("a"), names=True)
    watches.add("/a", lambda: seen.append("b"), names=True)
    watches.remove(standing)
    watches.remove(standing)
    watches.fire_all()
    watches.fire_all()
    watches.remove(watches.add("/a", None))
    assert seen == ["b"]
    assert len(watches) == 0


def test_a_reader_that_sets_its_watch_again_at_once_is_not_fired_twice() -> None:
    watches, seen = Watches(), []

    def fire() -> None:
        seen.append("again")
        watches.add("/a", fire)

    watches.add("/a", fire)
    watches.hear("/a", names=True)
    assert (seen, len(watches)) == (["again"], 1)
