"""Scans of the tree give what a sorted list of all keys gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie_protocol.metadata_service.embedded import oxia_keys as keys
from bookie_protocol.metadata_service.embedded import oxia_records as records
from bookie_protocol.metadata_service.embedded.oxia_scan import after, ascending, descending
from bookie_protocol.metadata_service.embedded.records import key_of, node_row, path_of
from bookie_protocol.metadata_service.embedded.store import NodeStore
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia

ANY_KEY = st.text("/a0-é", max_size=9)
KEYS = st.lists(ANY_KEY.filter(lambda key: keys.refusal(key) is None), max_size=25, unique=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NodeStore]:
    opened = NodeStore(str(tmp_path / "store"))
    yield opened
    opened.close()


def put(store: NodeStore, *names: str) -> None:
    answer = records.write(store, oxia.WriteRequest(puts=[oxia.PutRequest(key=name) for name in names]))
    assert [each.status for each in answer.puts] == [oxia.OK] * len(names)


def delete(store: NodeStore, *names: str) -> None:
    answer = records.write(store, oxia.WriteRequest(deletes=[oxia.DeleteRequest(key=name) for name in names]))
    assert [each.status for each in answer.deletes] == [oxia.OK] * len(names)


def listed(store: NodeStore, start: str = "", end: str = "") -> list[str]:
    return [key for key, _ in ascending(store, keys.bound(start), keys.bound(end) if end else None)]


def all_rows(store: NodeStore) -> dict[bytes, bytes]:
    return dict(store.rows(b"n"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KEYS, ANY_KEY, ANY_KEY, st.randoms())
def test_scans_are_those_of_a_sorted_list(store: NodeStore, names: list[str], start: str, end: str, random) -> None:
    # All is drawn before the first write: an example that Hypothesis gives up leaves nothing in the store.
    gone = random.sample(names, len(names))
    empty = all_rows(store)
    put(store, *names)
    ordered = sorted(names, key=keys.encoded)
    assert listed(store) == ordered
    low, high = keys.packed(keys.bound(start)), keys.packed(keys.bound(end))
    between = [key for key in ordered if low <= keys.encoded(key) and (not end or keys.encoded(key) < high)]
    assert listed(store, start, end) == between
    below = [key for key in ordered if keys.encoded(key) < keys.packed(keys.place(end))]
    assert [key for key, _ in descending(store, keys.place(end))] == below[::-1]
    for place, key in enumerate(ordered):
        assert [name for name, _ in ascending(store, after(key))] == ordered[place + 1 :]
    for name in gone:
        delete(store, name)
    assert listed(store) == []
    assert all_rows(store).keys() == empty.keys()


def test_children_lie_between_one_slash_and_two(store: NodeStore) -> None:
    put(store, "/ledgers/available/b:1", "/ledgers/available/a:1", "/ledgers/available/readonly/c", "/ledgers-x/y")
    put(store, "/ledgers/available", "/ledgers/availablé/x")
    assert listed(store, "/ledgers/available/", "/ledgers/available//") == [
        "/ledgers/available/a:1",
        "/ledgers/available/b:1",
    ]
    assert listed(store, "/ledgers/", "/ledgers//") == ["/ledgers/available"]
    assert listed(store, "/", "//") == []
    assert store.children("/")[0] == ("ledgers", "ledgers-x")


def test_paths_and_rows_of_keys_differ() -> None:
    names = ["", "/", "a", "a/", "/a", "//a", "/a/", "/a/b", "a/b", "//"]
    assert len({path_of(name) for name in names}) == len(names)
    assert len({node_row(path_of(name)) for name in names}) == len(names)
    assert [key_of(path_of(name)) for name in names] == names
    assert path_of("/a/b") == "/a/b"
