"""Apache's classes, one by one. `PEER_BOOKIES=java` runs them with the bookies that they were written for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.peer.classes import CLASSES, ClassRanOut, cluster_classes, run_class
from tests.peer.conftest import Note

KIND = os.environ.get("PEER_BOOKIES", "ours")


def test_every_class_that_starts_bookies_is_listed() -> None:
    assert sorted(cluster_classes()) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_class(name: str, tmp_path: Path, note: Note) -> None:
    listed = CLASSES[name]
    for test, why in listed.inside.items():
        note(name, test, "inside", why)
    if "*" in listed.inside:
        return
    try:
        results = run_class(
            name, tmp_path, listed.seconds, kind=KIND, without=tuple(listed.inside), networked=listed.networked
        )
        ended = ""
    except ClassRanOut as error:
        results, ended = error.results, str(error)
        note(name, "*", "failed", ended)
    for result in results:
        note(name, result.test, result.state, result.why.partition("\n")[0])
    failed = [result for result in results if result.state == "failed"]
    assert not failed, "\n\n".join(f"{each.test}: {each.why}" for each in failed)
    assert not ended
    assert results
