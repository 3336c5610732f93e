"""The operations of Oxia's clients on the store: keys are paths of nodes, so both kinds of clients see the same.

Invariants
- The puts and deletes of a request are one atomic write, as in Oxia; each is judged by itself, and sees those before
  it. A request that is not valid fails before anything is written (`BadRequest`). It is made ready in steps, between
  which others may read the store, but not write.
- A record's version id is the sum of the node's creation and version, so no other state of its key has it. Its
  modifications are the node's version.
- Numbers of sequential nodes, and the modifications that a put makes, never meet below one node: Pulsar takes ids of
  ledgers from the one, and our own clients from the other.
- A range is deleted in steps, each of which is durable by itself and is notified if it removed something. The
  notification of the whole range comes with the last one in any case.
- A run looks at few rows (`oxia_scan.Budget`). Lists, comparisons and deletions of ranges that want more go on in later
  ones, from the place that the one before returned. So lists and deletions see changes that come meanwhile. An answer
  to a comparison is that of one state: a search begins again after a change, and is given up after many.

Threads: one thread at a time (`commits.StoreThread`).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bookie_protocol.errors import BadRequest, MetadataUnavailable
from bookie_protocol.metadata_service.embedded import oxia_keys as keys
from bookie_protocol.metadata_service.embedded.oxia_extras import (
    Extras,
    decode_index_value,
    extras_row,
    index_prefix,
    index_row,
    index_value,
)
from bookie_protocol.metadata_service.embedded.oxia_scan import (
    ROWS,
    Budget,
    Rest,
    Unfinished,
    after,
    ascending,
    descending,
)
from bookie_protocol.metadata_service.embedded.records import (
    NodeRecord,
    SessionRecord,
    children_rows,
    path_of,
    session_row,
)
from bookie_protocol.metadata_service.embedded.staging import Staged
from bookie_protocol.metadata_service.embedded.store import NodeStore
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia
from bookie_protocol.metadata_service.oxia.wire import NOT_EXISTING

PROCESS: Final = "oxia "
"""The process of a session that a client of Oxia opened, before the client's identity."""
MAX_WORK_BYTES: Final = 16 << 20
"""Bytes of all keys that a request makes rows of, with those of the nodes above them, at most."""
MAX_INDEXES: Final = 16
MAX_IDENTITY: Final = 512
MAX_OPERATIONS: Final = 10_000
"""Puts and deletes of a request, at most; and gets."""
MAX_RANGES: Final = 100
PAGE_BYTES: Final = 1 << 20
GETS_AT_ONCE: Final = 100
MAX_SEARCHES: Final = 20
"""The times that a search begins, at most, which changes overtake."""
_MAX_SEQUENCE: Final = 2**64 - 1
"""The number that no key of a sequence has: the last key is looked for below it, as in Oxia."""
_MAX_NUMBER: Final = 2**62
_LAST_NUMBERS: Final = "-" + "9" * 20


def check_write(request: oxia.WriteRequest) -> None:
    """Raise `BadRequest` for a request that is not valid."""
    if len(request.puts) + len(request.deletes) > MAX_OPERATIONS or len(request.delete_ranges) > MAX_RANGES:
        raise BadRequest(f"a request has at most {MAX_OPERATIONS} puts and deletes, and {MAX_RANGES} ranges")
    for each in request.delete_ranges:
        check_range(each.start_inclusive, each.end_exclusive)
    work = 0
    for put in request.puts:
        work += _check_put(put)
    for delete in request.deletes:
        work += len(delete.key)
    if work > MAX_WORK_BYTES:
        raise BadRequest(f"a request whose keys and the keys above them have {work} bytes; at most {MAX_WORK_BYTES}")


def _check_put(put: oxia.PutRequest) -> int:
    longest = put.key + (_LAST_NUMBERS * len(put.sequence_key_delta))[: keys.MAX_KEY_BYTES]
    if (refusal := keys.refusal(longest)) is not None:
        raise BadRequest(f"{refusal} is not possible")
    if len(put.client_identity) > MAX_IDENTITY:
        raise BadRequest(f"an identity of {len(put.client_identity)} characters; at most {MAX_IDENTITY} are possible")
    if put.sequence_key_delta and not (put.HasField("partition_key") and put.sequence_key_delta[0]):
        raise BadRequest("a key with a sequence needs a partition key, and a first delta above 0")
    if len(put.secondary_indexes) > MAX_INDEXES:
        raise BadRequest(f"{len(put.secondary_indexes)} secondary indexes of a record; at most {MAX_INDEXES}")
    for entry in put.secondary_indexes:
        if "\0" in entry.index_name or len(entry.index_name) + len(entry.secondary_key) > keys.MAX_KEY_BYTES:
            raise BadRequest(
                f"an index, and a key in it, of {keys.MAX_KEY_BYTES} bytes at most, and no NUL in its name"
            )
    for override in (put.override_version_id, put.override_modifications_count):
        if not 0 <= override <= _MAX_NUMBER:
            raise BadRequest(f"{override} is not possible as a number of versions")
    indexes = sum(len(each.index_name) + len(each.secondary_key) + len(put.key) for each in put.secondary_indexes)
    return len(longest) * (1 + put.key.count("/")) + indexes


def write(store: NodeStore, request: oxia.WriteRequest) -> Generator[None, None, oxia.WriteResponse]:
    """Carry out puts and deletes; the caller does the rest (`delete_range`). Yields between two steps. Raises
    `BadRequest`."""
    staged, answer = store.stage(), oxia.WriteResponse()
    for put in request.puts:
        answer.puts.append(_put(store, staged, put))
        if staged.is_step_over():
            yield
    for delete in request.deletes:
        answer.deletes.add(status=_delete(staged, delete))
        if staged.is_step_over():
            yield
    if staged.rows:
        store.commit(staged)
    return answer


def _put(store: NodeStore, staged: Staged, put: oxia.PutRequest) -> oxia.PutResponse:
    key = put.key
    if put.sequence_key_delta:
        if put.HasField("expected_version_id"):
            return oxia.PutResponse(status=oxia.UNEXPECTED_VERSION_ID)
        key = _next_in_sequence(store, staged, put)
    before = staged.load(path_of(key))
    if put.HasField("expected_version_id") and put.expected_version_id != _version_id(before):
        return oxia.PutResponse(status=oxia.UNEXPECTED_VERSION_ID)
    if put.HasField("session_id") and not _is_session(staged, put.session_id):
        return oxia.PutResponse(status=oxia.SESSION_DOES_NOT_EXIST)
    record = _with_overrides(_put_record(before, put), put)
    if before is None:
        staged.create(path_of(key), record, imply_parents=True)
    else:
        staged.write(path_of(key), before, record)
    extras = Extras(record.version_id, time.time_ns() // 1_000_000, _said(put))
    staged.rows[extras_row(path_of(key))] = extras.encode()
    for entry in put.secondary_indexes:
        staged.rows[index_row(path_of(key), entry)] = index_value(key, entry.secondary_key)
    if not put.sequence_key_delta:
        return oxia.PutResponse(version=_version(record, extras))
    staged.sequences[put.key] = key
    return oxia.PutResponse(version=_version(record, extras), key=key)


def _put_record(before: NodeRecord | None, put: oxia.PutRequest) -> NodeRecord:
    if before is None or before.is_implied:
        record, old = NodeRecord.new(put.value, put.session_id), before or NodeRecord.implied()
        return replace(record, children=old.children, child_version=old.child_version, sequence=old.sequence)
    version = max(before.version + 1, before.sequence)  # a number that no node below it has got, and none gets
    return replace(before, version=version, sequence=version + 1, data=put.value, owner=put.session_id)


def _with_overrides(record: NodeRecord, put: oxia.PutRequest) -> NodeRecord:
    if put.HasField("override_modifications_count"):
        version = put.override_modifications_count
        record = replace(record, version=version, sequence=max(record.sequence, version + 1))
    if put.HasField("override_version_id"):
        record = replace(record, creation=put.override_version_id - record.version)
    return record


def _said(put: oxia.PutRequest) -> oxia.PutRequest:
    said = oxia.PutRequest(secondary_indexes=put.secondary_indexes)
    if put.HasField("client_identity"):
        said.client_identity = put.client_identity
    return said


def _delete(staged: Staged, delete: oxia.DeleteRequest) -> oxia.Status:
    record = staged.load(path_of(delete.key)) if keys.refusal(delete.key) is None else None
    found = _version_id(record)
    if delete.HasField("expected_version_id") and delete.expected_version_id != found:
        return oxia.UNEXPECTED_VERSION_ID
    if found == NOT_EXISTING:
        return oxia.KEY_NOT_FOUND
    staged.remove(path_of(delete.key))
    return oxia.OK


def delete_range(store: NodeStore, request: oxia.DeleteRangeRequest, start: Rest | None) -> Rest | None:
    """Delete the first records of a range, from `start` or, with None, its beginning, and return where the rest begins;
    None: that was all."""
    staged = store.stage()
    end = keys.bound(request.end_exclusive) if request.end_exclusive else None
    begin = start if isinstance(start, tuple) else keys.bound(request.start_inclusive)
    rest: Rest | None = None
    try:
        for key, _ in ascending(store, begin, end, Budget()):
            staged.remove(path_of(key))
            if staged.is_step_over():
                rest = after(key)
                break
    except Unfinished as left:
        rest = left.rest
    removed = bool(staged.notices)
    staged.notices.clear()
    if removed or rest is None:
        staged.notices[request.start_inclusive] = oxia.Notification(
            type=oxia.KEY_RANGE_DELETED, key_range_last=request.end_exclusive
        )
    store.commit(staged)
    return rest


def _next_in_sequence(store: NodeStore, staged: Staged, put: oxia.PutRequest) -> str:
    if put.key not in staged.stored_sequences:
        staged.stored_sequences[put.key] = _last_in_sequence(store, put.key)
    last = _later(staged.stored_sequences[put.key], _last_made(staged, put.key))
    numbers = last.removeprefix(put.key).split("-")[1:] if last is not None else []
    if len(numbers) > len(put.sequence_key_delta):
        raise BadRequest(f"the keys of this sequence have {len(numbers)} numbers: as many deltas are needed")
    key = put.key
    for place, delta in enumerate(put.sequence_key_delta):
        text = numbers[place] if place < len(numbers) else "0"
        if not (text.isascii() and text.isdecimal()) or int(text) + delta >= _MAX_SEQUENCE:
            raise BadRequest(f"the key {last!r} is not one of a sequence that goes on")
        key = f"{key}-{int(text) + delta:020d}"
    return key


def _later(one: str | None, other: str | None) -> str | None:
    """Return the higher one of two keys with the same parent."""
    return max((key for key in (one, other) if key is not None), key=str.encode, default=None)


def _sequence_rows(prefix: str) -> tuple[str, bytes, bytes, bytes]:
    """Return what is before the names of a sequence's keys, in keys and in rows, and the bounds of the names."""
    above, slash, name = prefix.rpartition("/")
    rows = children_rows(path_of(above) if slash else None)
    return above + slash, rows, f"{name}-".encode(), f"{name}-{_MAX_SEQUENCE:020d}".encode()


def _last_made(staged: Staged, prefix: str) -> str | None:
    """Return the highest key of a sequence that this request has put."""
    above, rows, first, limit = _sequence_rows(prefix)
    row = staged.last_made(rows + first, rows + limit)
    return None if row is None else above + row[len(rows) :].decode()


def _last_in_sequence(store: NodeStore, prefix: str) -> str | None:
    """Return the highest key of a sequence, of which no other names are looked at. Raises `BadRequest`."""
    above, rows, first, limit = _sequence_rows(prefix)
    budget = Budget()
    for row, raw in store.rows(rows, limit, backwards=True):
        found = row[len(rows) :]
        if not found.startswith(first):
            return None
        if not NodeRecord.decode(raw).is_implied:
            return above + found.decode()
        budget.look()
        try:
            budget.check(found)
        except Unfinished:
            raise BadRequest(f"the sequence {prefix!r} has more than {ROWS} keys that only lead to others") from None
    return None


def last_in_sequence(store: NodeStore, prefix: str) -> str | None:
    """Return the highest key of a sequence; None if it has none."""
    return _last_in_sequence(store, prefix) if keys.refusal(prefix) is None else None


def check_range(start: str, end: str) -> None:
    """Raise `BadRequest` for bounds that are longer than any key."""
    if max(len(start), len(end)) > keys.MAX_KEY_BYTES:
        raise BadRequest(f"a bound of a range of more than {keys.MAX_KEY_BYTES} characters")


def check_read(request: oxia.ReadRequest) -> None:
    """Raise `BadRequest` for a request that is not valid."""
    if len(request.gets) > MAX_OPERATIONS or any(len(each.key) > keys.MAX_KEY_BYTES for each in request.gets):
        raise BadRequest(
            f"a request has at most {MAX_OPERATIONS} gets, and their keys at most {keys.MAX_KEY_BYTES} bytes"
        )


@dataclass(frozen=True, slots=True)
class Search:
    """A comparison that goes on in another run, at `rest`, if the store still has the state of number `change`. It has
    begun so many times."""

    rest: Rest
    change: int
    begun: int


def gets(
    store: NodeStore, requests: Sequence[oxia.GetRequest], search: Search | None
) -> tuple[list[oxia.GetResponse], Search | None]:
    """Return the answers to the first requests, as many as make a page, and the search for the next one; None: it has
    not begun. Raises `MetadataUnavailable`."""
    answers: list[oxia.GetResponse] = []
    nbytes, budget = 0, Budget()
    start, begun = (None, 1) if search is None else (search.rest, search.begun)
    if search is not None and search.change != store.changes:
        start, begun = None, begun + 1
        if begun > MAX_SEARCHES:
            raise MetadataUnavailable(f"changes have overtaken the search for a key {MAX_SEARCHES} times: try again")
    for request in requests[:GETS_AT_ONCE]:
        try:
            answers.append(answer := get(store, request, budget, start))
        except Unfinished as left:
            return answers, Search(left.rest, store.changes, begun)
        start, begun = None, 1
        nbytes += len(answer.value)
        if nbytes > PAGE_BYTES or budget.is_spent:
            break
    return answers, None


class Page:
    """A part of a range: its records, and where the rest begins; None: nothing is left."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.records: list[oxia.GetResponse] = []
        self.rest: Rest | None = None


def page(store: NodeStore, asked: oxia.ListRequest | oxia.RangeScanRequest, start: Rest | None) -> Page:
    """Return a page of a range, which may be empty although there is a rest. `start` is where the rest began; None: at
    the beginning."""
    made, nbytes = Page(), 0
    with_records = isinstance(asked, oxia.RangeScanRequest)
    try:
        for rest, key, record in _found(store, asked, start, Budget()):
            nbytes += len(key)
            if with_records:
                made.records.append(response(store, key, record, include_value=True))
                nbytes += len(record.data)
            else:
                made.keys.append(key)
            if nbytes > PAGE_BYTES:
                made.rest = rest
                break
    except Unfinished as left:
        made.rest = left.rest
    return made


def _found(
    store: NodeStore, asked: oxia.ListRequest | oxia.RangeScanRequest, start: Rest | None, budget: Budget
) -> Iterator[tuple[Rest, str, NodeRecord]]:
    if asked.HasField("secondary_index_name"):
        first = start if isinstance(start, bytes) else keys.packed(keys.bound(asked.start_inclusive))
        yield from indexed(store, asked.secondary_index_name, first, asked.end_exclusive, budget)
        return
    end = keys.bound(asked.end_exclusive) if asked.end_exclusive else None
    begin = start if isinstance(start, tuple) else keys.bound(asked.start_inclusive)
    for key, record in ascending(store, begin, end, budget):
        yield after(key), key, record


def get(store: NodeStore, request: oxia.GetRequest, budget: Budget, start: Rest | None = None) -> oxia.GetResponse:
    """Return the answer. `Unfinished`: the search goes on in another run, from the `start` that this names."""
    found, secondary = _find(store, request, budget, start)
    if found is None:
        return oxia.GetResponse(status=oxia.KEY_NOT_FOUND)
    key, record = found
    answer = response(store, key, record, include_value=request.include_value)
    if request.comparison_type == oxia.EQUAL and secondary is None:
        answer.ClearField("key")
    if secondary is not None:
        answer.secondary_index_key = secondary
    return answer


def _find(
    store: NodeStore, request: oxia.GetRequest, budget: Budget, start: Rest | None
) -> tuple[tuple[str, NodeRecord] | None, str | None]:
    if request.HasField("secondary_index_name"):
        for key, secondary in _candidates(store, request, budget, start):
            if (record := _real(store, key)) is not None:
                return (key, record), secondary
        return None, None
    key, kind = request.key, request.comparison_type
    begin = start if isinstance(start, tuple) else None
    if begin is None and kind in (oxia.EQUAL, oxia.FLOOR, oxia.CEILING) and (record := _real(store, key)) is not None:
        return (key, record), None
    begin = begin or keys.place(key)
    if kind in (oxia.FLOOR, oxia.LOWER):
        return next(descending(store, begin, budget), None), None
    if kind in (oxia.CEILING, oxia.HIGHER):
        return next((found for found in ascending(store, begin, None, budget) if found[0] != key), None), None
    return None, None


def _candidates(
    store: NodeStore, request: oxia.GetRequest, budget: Budget, start: Rest | None
) -> Iterator[tuple[str, str]]:
    """Yield records with their secondary keys, the best first; the first that exists is the answer."""
    prefix, own = index_prefix(request.secondary_index_name), keys.encoded(request.key)
    kind = request.comparison_type
    begin = start if isinstance(start, bytes) else None

    def entries(start: bytes, *, backwards: bool = False) -> Iterator[tuple[str, str]]:
        for row, value in store.rows(prefix, start, backwards=backwards):
            budget.look()
            yield decode_index_value(value)
            at = row[len(prefix) :]
            budget.check(at if backwards else at + b"\0")

    # A search that turned back goes on below the key that is asked for.
    if kind in (oxia.EQUAL, oxia.FLOOR, oxia.CEILING) and (begin is None or begin > own):
        for key, secondary in entries(begin or own):
            if secondary != request.key and kind != oxia.CEILING:
                break
            yield key, secondary
        begin = None
    if kind in (oxia.FLOOR, oxia.LOWER):
        yield from entries(begin or own, backwards=True)
    if kind == oxia.HIGHER:
        yield from (found for found in entries(begin or own) if found[1] != request.key)


def indexed(
    store: NodeStore, index: str, start: bytes, end: str, budget: Budget
) -> Iterator[tuple[bytes, str, NodeRecord]]:
    """Yield the records of an index from `start`, an encoded place, up to `end`, each with the place behind it."""
    prefix = index_prefix(index)
    limit = keys.packed(keys.bound(end)) if end else None
    for row, value in store.rows(prefix, start):
        at = row[len(prefix) :]
        if limit is not None and at >= limit:
            return
        budget.look()
        key, _ = decode_index_value(value)
        if (record := _real(store, key)) is not None:
            yield at + b"\0", key, record
        budget.check(at + b"\0")


def response(store: NodeStore, key: str, record: NodeRecord, *, include_value: bool) -> oxia.GetResponse:
    raw = store.row(extras_row(path_of(key)))
    extras = None if raw is None else Extras.decode(raw)
    value = record.data if include_value else None
    return oxia.GetResponse(key=key, version=_version(record, extras), value=value)


def _version(record: NodeRecord, extras: Extras | None) -> oxia.Version:
    version = oxia.Version(
        version_id=record.version_id,
        modifications_count=record.version,
        created_timestamp=record.ctime_ms,
        modified_timestamp=record.ctime_ms,
    )
    if record.owner:
        version.session_id = record.owner
    if extras is not None and extras.version_id == record.version_id:
        version.modified_timestamp = extras.mtime_ms
        if extras.said.HasField("client_identity"):
            version.client_identity = extras.said.client_identity
    return version


def _real(store: NodeStore, key: str) -> NodeRecord | None:
    record = store.load(path_of(key)) if keys.refusal(key) is None else None
    return None if record is None or record.is_implied else record


def _version_id(record: NodeRecord | None) -> int:
    return NOT_EXISTING if record is None or record.is_implied else record.version_id


def _is_session(staged: Staged, session_id: int) -> bool:
    raw = staged.row(session_row(session_id))
    return raw is not None and SessionRecord.decode(session_id, raw).process.startswith(PROCESS)
