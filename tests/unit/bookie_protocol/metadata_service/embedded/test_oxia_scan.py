"""Scans of the tree give what a sorted list of all keys gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie_protocol.errors import BadRequest, MetadataUnavailable
from bookie_protocol.metadata_service.embedded import oxia_keys as keys
from bookie_protocol.metadata_service.embedded import oxia_records as records
from bookie_protocol.metadata_service.embedded import oxia_scan, staging
from bookie_protocol.metadata_service.embedded.oxia_scan import Budget, Found, Unfinished, after, ascending, descending
from bookie_protocol.metadata_service.embedded.records import key_of, node_row, path_of
from bookie_protocol.metadata_service.embedded.store import NodeStore
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia

ANY_KEY = st.text("/a0-é", max_size=9)
KEYS = st.lists(ANY_KEY.filter(lambda key: keys.refusal(key) is None), max_size=25, unique=True)


def write(store: NodeStore, request: oxia.WriteRequest) -> oxia.WriteResponse:
    """All steps of a request."""
    steps = records.write(store, request)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: oxia.WriteResponse = end.value
            return answer


def put(store: NodeStore, *names: str) -> None:
    answer = write(store, oxia.WriteRequest(puts=[oxia.PutRequest(key=name) for name in names]))
    assert [each.status for each in answer.puts] == [oxia.OK] * len(names)


def delete(store: NodeStore, *names: str) -> None:
    answer = write(store, oxia.WriteRequest(deletes=[oxia.DeleteRequest(key=name) for name in names]))
    assert [each.status for each in answer.deletes] == [oxia.OK] * len(names)


def up(store: NodeStore, start: keys.Place, end: keys.Place | None = None, rows: int = 1000) -> list[str]:
    """All of the scan, of which each run looks at so many rows."""
    return whole(lambda rest: ascending(store, rest, end, Budget(rows)), start, 1)


def down(store: NodeStore, end: keys.Place, rows: int = 1000) -> list[str]:
    return whole(lambda rest: descending(store, rest, Budget(rows)), end, -1)


def whole(scan: Callable[[Any], Iterator[Found]], start: keys.Place, way: int) -> list[str]:
    found: list[str] = []
    places: list[Any] = [start]
    while True:
        try:
            found.extend(key for key, _ in scan(places[-1]))
        except Unfinished as left:
            places.append(left.rest)
        else:
            assert places == sorted(set(places))[::way], "each goes on beyond the one before"
            return found


def listed(store: NodeStore, start: str = "", end: str = "", rows: int = 1000) -> list[str]:
    return up(store, keys.bound(start), keys.bound(end) if end else None, rows)


def all_rows(store: NodeStore) -> dict[bytes, bytes]:
    return dict(store.rows(b"n"))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KEYS, ANY_KEY, ANY_KEY, st.integers(1, 9), st.randoms())
def test_scans_are_those_of_a_sorted_list(
    store: NodeStore, names: list[str], start: str, end: str, rows: int, random: Random
) -> None:
    # All is drawn before the first write: an example that Hypothesis gives up leaves nothing in the store.
    gone = random.sample(names, len(names))
    empty = all_rows(store)
    put(store, *names)
    ordered = sorted(names, key=keys.encoded)
    assert listed(store) == ordered
    low, high = keys.packed(keys.bound(start)), keys.packed(keys.bound(end))
    between = [key for key in ordered if low <= keys.encoded(key) and (not end or keys.encoded(key) < high)]
    assert listed(store, start, end) == between
    assert listed(store, start, end, rows) == between
    below = [key for key in ordered if keys.encoded(key) < keys.packed(keys.place(end))]
    assert down(store, keys.place(end)) == below[::-1]
    assert down(store, keys.place(end), rows) == below[::-1]
    for place, key in enumerate(ordered):
        assert up(store, after(key)) == ordered[place + 1 :]
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


def runs(store: NodeStore, monkeypatch: pytest.MonkeyPatch, call: Any) -> list[Any]:
    """The results of a call that is repeated with what it returned last as its start, until that is None. No run looks
    into the store much more often than its budget says."""
    results, start = [], None
    with counted(store, monkeypatch) as looks:
        while True:
            looks.clear()
            result, start = call(start)
            results.append(result)
            assert len(looks) <= 3 * oxia_scan.ROWS
            if start is None:
                return results


@contextmanager
def counted(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """A list with one item for each look into the store: for each iterator, each row that it yields, and each row that
    is read by itself."""
    rows, row = store.rows, store.row
    looks: list[None] = []

    def counted_rows(*arguments: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        looks.append(None)
        for each in rows(*arguments, **options):
            looks.append(None)
            yield each

    def counted_row(key: bytes) -> bytes | None:
        looks.append(None)
        return row(key)

    with monkeypatch.context() as patch:
        patch.setattr(store, "rows", counted_rows)
        patch.setattr(store, "row", counted_row)
        yield looks


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oxia_scan, "ROWS", 40)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kind", [oxia.FLOOR, oxia.LOWER, oxia.CEILING, oxia.HIGHER])
@pytest.mark.parametrize("end", ["/a/x", "/a/500/x", "/z"])
def test_no_run_of_comparisons_looks_at_many_rows(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch, kind: Any, end: str
) -> None:
    """Nodes that only lead to others are looked at as well."""
    put(store, "/0", *(f"/a/{number}/x/y" for number in range(300)), "/b/b/b/b/b/b")
    asked = [oxia.GetRequest(key=end, comparison_type=kind)] * 5
    answers = runs(store, monkeypatch, lambda start: records.gets(store, asked[:1], start))
    is_next_to_it = end == "/z" and kind in (oxia.FLOOR, oxia.LOWER)
    assert is_next_to_it or len(answers) > 3
    (answer,) = (each for found in answers for each in found)
    ordered = sorted(["/0", *(f"/a/{number}/x/y" for number in range(300)), "/b/b/b/b/b/b"], key=keys.encoded)
    lower = [key for key in ordered if keys.encoded(key) < keys.encoded(end)]
    higher = [key for key in ordered if keys.encoded(key) > keys.encoded(end)]
    assert answer.key == (lower[-1] if kind in (oxia.FLOOR, oxia.LOWER) else higher[0])
    given: list[oxia.GetResponse] = []

    def several(start: Any) -> Any:
        found, rest = records.gets(store, asked[len(given) :], start or None)
        given.extend(found)
        return found, rest if len(given) < 5 and rest is not None else None if len(given) == 5 else ()

    runs(store, monkeypatch, several)
    assert given == [answer] * 5


FORK = "x" * 1_000
TREES = {
    "long names that two and two share": [f"/{number:02d}{FORK}{end}/y/z/w" for number in range(50) for end in "ab"],
    "a long name that each shares a bit more of": [f"/{'x' * length}w/y/z/w" for length in range(1_000)],
    "names that all begin the next one": [f"/{'x' * length}/y/z/w" for length in range(1, 1_000)],
}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", [oxia.LOWER, oxia.HIGHER])
@pytest.mark.parametrize("key", ["/z/z/0", f"/{FORK}/z/0", f"/{FORK}/z", "/0/0/0"])
def test_no_comparison_pays_for_what_long_names_share(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch, tree: str, kind: Any, key: str
) -> None:
    """Neither in one run, nor in all of them together."""
    put(store, "0", *TREES[tree])
    asked = [oxia.GetRequest(key=key, comparison_type=kind)]
    total = 0

    def get(start: Any) -> Any:
        nonlocal total
        with counted(store, monkeypatch) as looks:
            found = records.gets(store, asked, start)
        total += len(looks)
        return found

    (answer,) = (each for found in runs(store, monkeypatch, get) for each in found)
    assert total <= 20 * len(TREES[tree])
    ordered = sorted(["0", *TREES[tree]], key=keys.encoded)
    lower = [each for each in ordered if keys.encoded(each) < keys.encoded(key)]
    higher = [each for each in ordered if keys.encoded(each) > keys.encoded(key)]
    assert answer.key == (lower[-1:] or [""] if kind == oxia.LOWER else higher[:1] or [""])[0]


@pytest.mark.parametrize("kind", [oxia.FLOOR, oxia.LOWER, oxia.CEILING, oxia.HIGHER])
def test_all_comparisons_of_a_run_have_one_budget(store: NodeStore, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """Each of these finds its answer beside its key, deep in the tree."""
    monkeypatch.setattr(oxia_scan, "ROWS", 400)
    deep = "/" + "/".join("abcdefgh" * 7)
    put(store, f"{deep}/0", f"{deep}/9")
    asked = [oxia.GetRequest(key=f"{deep}/5", comparison_type=kind)] * records.GETS_AT_ONCE
    with counted(store, monkeypatch) as looks:
        answers, rest = records.gets(store, asked, None)
    assert answers
    assert {each.key for each in answers} == {f"{deep}/{0 if kind in (oxia.FLOOR, oxia.LOWER) else 9}"}
    assert rest is None
    assert len(looks) <= 3 * oxia_scan.ROWS


@pytest.mark.usefixtures("few")
def test_no_run_of_a_list_or_of_deletions_looks_at_many_rows(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, *(f"/a/{number:03d}/x" for number in range(300)), "/a/150")
    asked = oxia.ListRequest(start_inclusive="/a/", end_exclusive="/a//")

    def page(start: Any) -> Any:
        made = records.page(store, asked, start)
        return made.keys, made.rest

    assert [key for made in runs(store, monkeypatch, page) for key in made] == ["/a/150"]
    asked = oxia.ListRequest()
    made = runs(store, monkeypatch, page)
    assert sum(map(len, made)) == 301
    assert len(made) < 150, "each depth takes its own, and those that nothing has take none"
    part = oxia.DeleteRangeRequest(start_inclusive="/a/", end_exclusive="/a//")
    runs(store, monkeypatch, lambda start: (None, records.delete_range(store, part, start)))
    assert len(listed(store)) == 300
    everything = oxia.DeleteRangeRequest(start_inclusive="", end_exclusive="")
    runs(store, monkeypatch, lambda start: (None, records.delete_range(store, everything, start)))
    assert listed(store) == []


@pytest.mark.usefixtures("few")
def test_no_run_of_a_search_in_an_index_looks_at_many_rows(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at those of one secondary key, nor at those of records that are gone, which older releases leave."""
    for number in range(100):
        entry = oxia.SecondaryIndex(index_name="i", secondary_key="5")
        request = oxia.PutRequest(key=f"/{number:03d}", secondary_indexes=[entry])
        write(store, oxia.WriteRequest(puts=[request]))
    for key, secondary in (("/low", "2"), ("/high", "7")):
        entry = oxia.SecondaryIndex(index_name="i", secondary_key=secondary)
        write(store, oxia.WriteRequest(puts=[oxia.PutRequest(key=key, secondary_indexes=[entry])]))

    def found(key: str, kind: Any) -> str:
        asked = [oxia.GetRequest(key=key, comparison_type=kind, secondary_index_name="i")]
        answers = runs(store, monkeypatch, lambda start: records.gets(store, asked, start))
        (answer,) = (each for found in answers for each in found)
        return str(answer.key)

    assert found("5", oxia.HIGHER) == "/high"
    monkeypatch.setattr(
        records, "_real", lambda store, key, real=records._real: real(store, key) if key > "/a" else None
    )
    assert found("5", oxia.FLOOR) == found("6", oxia.LOWER) == "/low"
    assert found("5", oxia.CEILING) == found("3", oxia.HIGHER) == "/high"
    assert found("5", oxia.EQUAL) == ""
    listing = oxia.ListRequest(secondary_index_name="i")

    def page(start: Any) -> Any:
        made = records.page(store, listing, start)
        return made.keys, made.rest

    assert [key for made in runs(store, monkeypatch, page) for key in made] == ["/low", "/high"]


@pytest.mark.usefixtures("few")
def test_the_last_of_a_sequence_is_looked_for_beside_it_alone(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *(f"/a/{number}/x" for number in range(300)))
    put(store, "/a/s-00000000000000000005", "/a/s-00000000000000000007/x", "/a/s-x")

    def last(prefix: str) -> str | None:
        (found,) = runs(store, monkeypatch, lambda start: (records.last_in_sequence(store, prefix), None))
        assert found is None or isinstance(found, str)
        return found

    assert last("/a/s") == "/a/s-00000000000000000005"
    assert last("/a/t") is None
    assert last("x") is None
    put(store, *(f"/b/s-{number:03d}/x" for number in range(100)))
    with pytest.raises(BadRequest):
        last("/b/s")


@pytest.mark.usefixtures("few")
def test_each_step_of_a_deletion_tells_what_it_removed(tmp_path: Path) -> None:
    """One that is given up between two steps has removed the records of those before."""
    store = NodeStore(str(tmp_path / "heard"), keep_notices=True)
    put(store, *(f"/a/{number:03d}" for number in range(100)), *(f"/b/{number:03d}/x" for number in range(100)))
    store.take_news()
    part = oxia.DeleteRangeRequest(start_inclusive="/a/", end_exclusive="/b//")
    rest, removed, empty = None, [], 0
    while True:
        before = len(listed(store))
        rest = records.delete_range(store, part, rest)
        told = [oxia.NotificationBatch.FromString(raw).notifications for _, raw in store.take_news().batches]
        ranged = {"/a/": oxia.Notification(type=oxia.KEY_RANGE_DELETED, key_range_last="/b//")}
        went = before - len(listed(store))
        if rest is None:
            assert [dict(each) for each in told] == [ranged]
            break
        assert [dict(each) for each in told] == ([ranged] if went else [])
        removed.append(went)
        empty += not went
    assert sum(1 for went in removed if went) > 2
    assert empty, "the rows that lead to others are no records"
    store.close()


@pytest.mark.parametrize("index", [False, True])
def test_a_comparison_that_goes_on_later_answers_of_one_state(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    """A search that was behind the new record when it was made, and then finds an even newer one, would give an answer
    that was never right."""
    monkeypatch.setattr(oxia_scan, "ROWS", 40)
    for number in range(100):
        lead = f"/m/{number:03d}/x/y"
        if index:
            entry = oxia.SecondaryIndex(index_name="i", secondary_key=f"/m/{number:03d}")
            request = oxia.PutRequest(key=lead, secondary_indexes=[entry])
            write(store, oxia.WriteRequest(puts=[request]))
        else:
            put(store, lead)
    if index:  # entries whose records are gone, as older releases leave them
        real = records._real
        monkeypatch.setattr(records, "_real", lambda store, key: None if "/x/y" in key else real(store, key))

    def make(key: str) -> None:
        entries = [oxia.SecondaryIndex(index_name="i", secondary_key=key)] if index else []
        write(store, oxia.WriteRequest(puts=[oxia.PutRequest(key=key, secondary_indexes=entries)]))

    asked = oxia.GetRequest(key="/m/999", comparison_type=oxia.LOWER)
    if index:
        asked.secondary_index_name = "i"
    answers, rest = records.gets(store, [asked], None)
    assert not answers
    make("/m/99")  # behind the search
    make("/a/0")  # in front of it
    while not answers:
        answers, rest = records.gets(store, [asked], rest)
    assert [each.key for each in answers] == ["/m/99"]


def test_a_comparison_that_changes_always_overtake_is_refused(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oxia_scan, "ROWS", 40)
    put(store, *(f"/m/{number:03d}/x/y" for number in range(100)))
    asked, search, runs = oxia.GetRequest(key="/m/999", comparison_type=oxia.LOWER), None, 0
    with pytest.raises(MetadataUnavailable):
        while True:
            _, search = records.gets(store, [asked], search)
            put(store, "/z")
            runs += 1
    assert runs == records.MAX_SEARCHES


def test_a_sequence_goes_on_behind_what_its_own_request_puts(store: NodeStore) -> None:
    grow = oxia.PutRequest(key="/s", sequence_key_delta=[1], partition_key="p")
    given = [oxia.PutRequest(key=key) for key in ("/s-00000000000000000005", "/s-00000000000000000003/x", "/s-x")]
    answer = write(store, oxia.WriteRequest(puts=[grow, given[0], grow, grow, *given[1:], grow]))
    numbers = [1, 6, 7, 8]
    assert [each.key for each in answer.puts if each.key] == [f"/s-{number:020d}" for number in numbers]


def test_a_sequence_ends_before_the_last_number(store: NodeStore) -> None:
    """A key of that number would not be found as the last one, and so one from the middle would be given once more."""
    last = 2**64 - 1
    put(store, f"/s-{last - 5:020d}")

    def grow(delta: int) -> str:
        request = oxia.PutRequest(key="/s", sequence_key_delta=[delta], partition_key="p")
        return write(store, oxia.WriteRequest(puts=[request])).puts[0].key

    with pytest.raises(BadRequest):
        grow(5)
    assert grow(4) == f"/s-{last - 1:020d}"
    with pytest.raises(BadRequest):
        grow(1)


@pytest.mark.usefixtures("few")
def test_a_large_write_is_made_in_steps_and_seen_as_one(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "STEP", 40)
    deep = [f"/{number}/{'x/' * 60}y" for number in range(20)]
    entries = [oxia.SecondaryIndex(index_name="i", secondary_key="1")] * 2
    puts = [oxia.PutRequest(key=key, secondary_indexes=entries) for key in [*deep, *(f"/n/{n}" for n in range(100))]]
    deletes = [oxia.DeleteRequest(key=key) for key in [*deep[:-1], *(f"/none/{number}" for number in range(100))]]
    steps, count = records.write(store, oxia.WriteRequest(puts=puts, deletes=deletes)), 0
    with counted(store, monkeypatch) as looks, pytest.raises(StopIteration) as end:
        while True:
            looks.clear()
            next(steps)
            assert len(looks) <= 3 * 64, "what one deep key costs comes on top"
            assert listed(store) == []
            count += 1
    assert count > 20
    assert [each.status for each in end.value.value.puts] == [oxia.OK] * 120
    assert [each.status for each in end.value.value.deletes] == [oxia.OK] * 19 + [oxia.KEY_NOT_FOUND] * 100
    assert len(listed(store)) == 101


def test_steps_of_other_deletions_are_short_as_well(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these records takes the implied ones above it along."""
    monkeypatch.setattr(staging, "STEP", 200)
    session = store.open_session(10_000, process=records.PROCESS).session_id

    def make() -> None:
        puts = [oxia.PutRequest(key=f"/{n}/{'x/' * 60}y", session_id=session) for n in range(20)]
        assert [each.status for each in write(store, oxia.WriteRequest(puts=puts)).puts] == [oxia.OK] * 20

    make()
    rest, steps = records.delete_range(store, oxia.DeleteRangeRequest(), None), 1
    while rest is not None:
        rest, steps = records.delete_range(store, oxia.DeleteRangeRequest(), rest), steps + 1
    assert steps > 5
    assert listed(store) == []
    make()
    steps = 1
    while not store.end_session(session):
        steps += 1
    assert steps > 5
    assert listed(store) == []
