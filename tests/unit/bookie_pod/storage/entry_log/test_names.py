"""File names, and the id that follows after a restart."""

from __future__ import annotations

import pytest

from bookie_pod.storage.entry_log.names import (
    last_id_in_directory,
    log_file_name,
    parse_compacted_name,
    parse_log_name,
)
from bookie_pod.storage.log_ids import MAX_LOG_ID, following_id


@pytest.mark.parametrize(
    ("log_id", "name"), [(0, "0.log"), (10, "a.log"), (255, "ff.log"), (MAX_LOG_ID, "7fffffff.log")]
)
def test_names(log_id: int, name: str) -> None:
    assert log_file_name(log_id) == name
    assert parse_log_name(name) == log_id


@pytest.mark.parametrize(
    "name",
    ["A.log", "00.log", "0a.log", "80000000.log", ".log", "x.log", "1.logs", "1.log.compacting", "1", "-1.log"],
)
def test_other_names_are_no_logs(name: str) -> None:
    assert parse_log_name(name) is None


def test_compacted_names() -> None:
    assert parse_compacted_name("1f.log.3.compacted") == 0x1F
    assert parse_compacted_name("1f.log") is None
    assert parse_compacted_name("1f.log.compacting") is None


def test_ids_wrap() -> None:
    assert following_id(-1) == 0
    assert following_id(6) == 7
    assert following_id(MAX_LOG_ID) == 0


@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        ([], None, -1),
        ([], "5\n", 5),
        (["0.log"], "0\n", 0),
        (["0.log", "1.log", "2.log"], "2\n", 2),
        (["0.log", "a.log"], None, 10),
        (["0.log", "a.log"], "garbage", 10),
        (["0.log", "a.log"], "-3", 10),
        (["0.log", "a.log"], "14\n", 0x14),
        (["3.log", "5.log.3.compacted"], "3\n", 5),
        # wrapped, lastId is right: the ids go on behind the small ones
        (["0.log", "1.log", "7ffffffe.log", "7fffffff.log"], "1\n", 1),
        # the largest gap begins behind the small ids, so a lost lastId costs nothing but the large one's word
        (["7ffffffe.log"], "7ffffffe\n", 0x7FFFFFFE),
        (["0.log", "1.log"], "1000000000\n", 1),
    ],
)
def test_last_id_of_a_directory(names: list[str], text: str | None, expected: int) -> None:
    assert last_id_in_directory(names, text) == expected
