"""What must hold of streams, judged as things happen.

| rule | says |
|---|---|
| T1 list | what a list names is there: in the cluster, or whole in the archive; with as many entries as it says |
| T2 loss | what was acknowledged stays listed until it is removed as a whole, and no ledger goes that is to be listed |
| T3 owner | no two streams have one ledger, and none comes back in a later stream of its name |
| T4 order | a list changes at its ends only; the entries of one writer are in it in their order, each once |
| T5 batches | a batch that was published is in the stream once, and no part of it |
| T6 cursors | what a cursor that counts has not passed stays, but for an overwrite or the end of the stream |
| T7 readers | a reader is given what was written, without a gap |
| T8 archive | what only the archive has is whole in it, each life of a number for itself |
| T9 retired | who began before an overwrite has the promised time; what is due goes when something is published |

Lives: a name is used again for another stream, and a number for another ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from bookie_client.streams.encoding import Loaded, decode_head, put_together
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import GOING_KEY
from bookie_protocol.ledger_metadata.codec import decode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.records import STREAM, STREAM_CURSOR
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.versioned import Identity
from tests.support.simulation.history import History, LedgerHistory
from tests.support.simulation.metadata import NEW_NODE
from tests.support.simulation.nodes import NodeRecord

MANY_RETIRED: Final = 0


def payload_of(maker: str, number: int, of: str = "") -> bytes:
    """An entry of a stream: who made it, and which of his it is. `of`: the batch that it is a part of."""
    return json.dumps({"by": maker, "n": number, "of": of}).encode()


@dataclass
class Ledger:
    """One life of a ledger number."""

    ledger_id: int
    content: dict[int, bytes] = field(default_factory=dict)
    metadata: LedgerMetadata | None = None
    is_there: bool = True
    acked: dict[int, bytes] = field(default_factory=dict)
    unread: dict[str, dict[str, int]] | None = None
    """The cursors that counted when somebody said that it goes: later ones find it in the archive."""
    listed_by: frozenset[str] = frozenset()
    """The streams that listed it then: who began to read before a later overwrite finds it there, too."""

    def payloads(self, entries: int) -> list[bytes | None]:
        return [self.content.get(entry_id) for entry_id in range(entries)]


@dataclass
class Stream:
    """One life of a name."""

    name: str
    manifest: Manifest
    listed: dict[int, Ledger] = field(default_factory=dict)
    """Everything that it ever had, in order."""
    entries: dict[int, int] = field(default_factory=dict)
    """Of those that were listed as closed."""
    cursors: dict[str, int] = field(default_factory=dict)
    """Ordinals that their movers were told of."""
    batches: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    """Published ones, by what their payloads name."""
    is_over: bool = False


class StreamJudge:
    """A `Judge` that leaves replicas to the others. `archived`: the payloads of a ledger's attempts in the archive."""

    def __init__(self, root: str, clock: Callable[[], float]) -> None:
        self._root = root
        self._heads = f"{root}/{paths.PODKEEPER}/{STREAM}/"
        self._cursors = f"{root}/{paths.PODKEEPER}/{STREAM_CURSOR}/"
        self._records = f"{root}/{paths.PODKEEPER}/"
        self._clock = clock
        self.history: History
        self.streams: dict[str, list[Stream]] = {}
        self.ledgers: dict[int, list[Ledger]] = {}
        self.only_archived: list[Ledger] = []
        self.archived: Callable[[int], list[list[bytes]]] = lambda ledger_id: []
        self._states: dict[tuple[str, Identity], Stream] = {}
        self._stored: dict[str, int] = {}
        """Ordinals of cursors as they are stored: whoever moved one may have died before he was told."""
        self._made: dict[str, int] = {}
        """How often each cursor was made."""
        self._wrote: dict[tuple[str, str], int] = {}
        """By host and cursor: which one of these it wrote last."""
        self._transferred: set[int] = set()
        """Ledgers that were made for a stream."""
        self._forgotten: dict[str, int] = {}
        """Cursors that so many are about to give up."""

    # --- what is there ----------------------------------------------------------------------------------------

    def stream(self, name: str) -> Stream | None:
        """The one of this name that is there now."""
        lives = self.streams.get(name)
        return lives[-1] if lives and not lives[-1].is_over else None

    def ledger(self, ledger_id: int) -> Ledger | None:
        lives = self.ledgers.get(ledger_id)
        return lives[-1] if lives else None

    def living(self) -> list[Stream]:
        return [lives[-1] for lives in self.streams.values() if not lives[-1].is_over]

    def at(self, manifest: Manifest) -> Stream | None:
        """The stream that a manifest was read of."""
        return self._states.get((manifest.name, manifest.identity))

    def of(self, ledger_id: int) -> Stream | None:
        """The stream that lists a ledger, or did."""
        ledger = self.ledger(ledger_id)
        for lives in self.streams.values():
            for stream in reversed(lives):
                if ledger is not None and stream.listed.get(ledger_id) is ledger:
                    return stream
        return None

    # --- the metadata service ---------------------------------------------------------------------------------

    def written(self, host: str, path: str, data: bytes, version: int, stored: Identity) -> None:
        """`stored`: what it is now."""
        if path.startswith(self._heads):
            self._head_written(host, path.removeprefix(self._heads), data, stored)
            self.history.on_event("list", host)
        elif path.startswith(self._cursors):
            self._cursor_written(host, path.removeprefix(self._cursors), data, is_new=version == NEW_NODE)
            self.history.on_event("cursor", host)
        elif path.startswith(self._records):
            self.history.on_event("record", host)
        elif (ledger_id := self.ledger_at(path)) is not None:
            metadata = decode_ledger_metadata(ledger_id, data, 0)
            if version == NEW_NODE:
                self.ledgers.setdefault(ledger_id, []).append(Ledger(ledger_id))
            ledger = self.ledgers[ledger_id][-1]
            ledger.metadata = metadata
            if GOING_KEY in metadata.custom_metadata and ledger.unread is None:
                ledger.unread = {stream.name: dict(stream.cursors) for stream in self.living()}
                ledger.listed_by = frozenset(each.name for each in self.living() if ledger_id in each.manifest)
            elif GOING_KEY not in metadata.custom_metadata:
                ledger.unread, ledger.listed_by = None, frozenset()

    def listed(self, host: str, path: str) -> None:
        """Somebody asked for the children of a node."""
        if path == self._cursors.rstrip("/"):
            self.history.on_event("cursors listed", host)

    def deleted(self, host: str, path: str, record: NodeRecord) -> None:
        if path.startswith(self._heads):
            name = path.removeprefix(self._heads)
            if (stream := self.stream(name)) is not None:
                stream.is_over = True
                if not stream.manifest.is_deleting:
                    self._violated("T2 loss", name, f"{host} removed its head")
            return
        if path.startswith(self._cursors):
            self._cursor_deleted(host, path.removeprefix(self._cursors))
            return
        ledger_id = self.ledger_at(path)
        if ledger_id is None:
            return
        ledger = self.ledgers[ledger_id][-1]
        ledger.is_there = False
        self.history.count(f"deleted by {host.partition('-')[0]}")
        if host.startswith("offloader"):
            self.only_archived.append(ledger)
            self._must_be_archived(ledger, f"{host} took it out of the cluster")
        if ledger_id in self._transferred and self.of(ledger_id) is None and not self._is_archived(ledger):
            self._violated("T2 loss", f"ledger {ledger_id}", f"{host} deletes it before it is in its stream")
        for stream in self.living():
            self._counts_on(stream, ledger, host)
        self.history.on_event("gone", host)

    def ledger_at(self, path: str) -> int | None:
        """The ledger whose metadata a node is."""
        directory, _, name = path.removeprefix(self._root).rpartition("/")
        return paths.leaf_ledger_id(directory, name) if path.startswith(self._root) else None

    # --- cursors ----------------------------------------------------------------------------------------------

    def _cursor_written(self, host: str, path: str, data: bytes, *, is_new: bool) -> None:
        self._stored[path] = int(json.loads(data)["ordinal"])
        self._made[path] = self._made.get(path, 0) + is_new
        self._wrote[host, path] = self._made[path]

    def _cursor_deleted(self, host: str, path: str) -> None:
        name, _, cursor = path.partition(":")
        self._stored.pop(path, None)
        stream = self.stream(name)
        if stream is None or stream.cursors.pop(cursor, None) is None:
            return
        if not self._forgotten.get(path) and not stream.manifest.is_deleting:
            self._violated("T6 cursors", name, f"{host} removes cursor {cursor}, which counts")

    # --- lists ------------------------------------------------------------------------------------------------

    def _head_written(self, host: str, name: str, data: bytes, identity: Identity) -> None:
        after = put_together(name, identity, decode_head(name, data), Loaded())
        lives = self.streams.setdefault(name, [])
        stream = self.stream(name)
        if after.is_gone:
            if stream is not None:
                stream.is_over = True
                self.history.count("stream deleted")
            return
        if stream is None:
            stream = Stream(name, after)
            if after.ledgers:
                self._violated("T3 owner", name, f"{host} made it with ledgers {after.ledgers}")
            lives.append(stream)
            self.history.count("stream made" if len(lives) == 1 else "name used again")
        self._states[name, identity] = stream
        before, stream.manifest = stream.manifest, after
        self._list_changed(host, stream, before, after)

    def _list_changed(self, host: str, stream: Stream, before: Manifest, after: Manifest) -> None:
        old, new = [each.ledger_id for each in before.ledgers], [each.ledger_id for each in after.ledgers]
        if old != new:
            self.history.count("list changed")
        for each in after.ledgers:
            if each.ledger_id not in before:
                self._listed_anew(host, stream, each.ledger_id)
            if each.entries is not None:
                self._listed_closed(host, stream, each.ledger_id, each.entries)
        if after.generation == before.generation:
            kept = [each for each in old if each in after]
            first = old.index(kept[0]) if kept else len(old)
            dropped_open = old[-1:] if before.open_ledger is not None and old[-1] not in after else []
            if (kept + dropped_open != old[first:] and kept != old[first:]) or new[: len(kept)] != kept:
                self._violated("T4 order", stream.name, f"{host} made {new} of {old}")
        for each in before.ledgers:
            if each.ledger_id not in after:
                self._unlisted(host, stream, before, after, each.ledger_id)

    def _listed_anew(self, host: str, stream: Stream, ledger_id: int) -> None:
        ledger = self.ledger(ledger_id)
        if ledger is None:
            self._violated("T1 list", stream.name, f"{host} lists ledger {ledger_id}, which never was")
            return
        if not ledger.is_there and not self._is_archived(ledger):
            self._violated("T1 list", stream.name, f"{host} lists ledger {ledger_id}, which was deleted")
        for other in self.living():
            if other is not stream and ledger_id in other.manifest.owned_ids:
                self._violated("T3 owner", stream.name, f"{host} lists ledger {ledger_id}, which {other.name} has")
        for former in self.streams[stream.name][:-1]:
            if former.listed.get(ledger_id) is ledger:
                self._violated("T3 owner", stream.name, f"{host} lists ledger {ledger_id} of its predecessor")
        stream.listed[ledger_id] = ledger

    def _listed_closed(self, host: str, stream: Stream, ledger_id: int, entries: int) -> None:
        if stream.entries.get(ledger_id) == entries:
            return
        ledger = stream.listed.get(ledger_id)
        if ledger is None:
            return
        if ledger_id in stream.entries:
            self._violated("T1 list", stream.name, f"{host} gives ledger {ledger_id} {entries} entries, it had others")
        stream.entries[ledger_id] = entries
        metadata = ledger.metadata
        if metadata is not None and ledger.is_there and metadata.last_entry_id + 1 != entries:
            self._violated("T1 list", stream.name, f"{host} gives ledger {ledger_id} {entries} entries: {metadata}")
        if lost := [each for each in ledger.acked if each >= entries]:
            self._violated(
                "T2 loss", stream.name, f"{host} ends ledger {ledger_id} at {entries}; acknowledged were {lost}"
            )

    def _unlisted(self, host: str, stream: Stream, before: Manifest, after: Manifest, ledger_id: int) -> None:
        ledger = stream.listed.get(ledger_id)
        listed = before.ledger(ledger_id)
        if ledger is None or listed is None or after.is_deleting or after.generation != before.generation:
            return
        if listed.entries is None:
            if ledger.acked:
                self._violated(
                    "T2 loss", stream.name, f"{host} drops ledger {ledger_id} as empty: it has {len(ledger.acked)}"
                )
            return
        end = listed.first_ordinal + listed.entries
        for cursor in self._behind(stream, stream.cursors, end):
            what = f"{host} removes ledger {ledger_id}, which ends at {end}, before cursor {cursor}"
            self._violated("T6 cursors", stream.name, what)

    def _behind(self, stream: Stream, cursors: Iterable[str], end: int) -> list[str]:
        """Those of these cursors that count and have not passed this ordinal."""
        counting = [each for each in cursors if each in stream.cursors]
        return [
            each for each in counting if max(stream.cursors[each], self._stored.get(f"{stream.name}:{each}", 0)) < end
        ]

    def _counts_on(self, stream: Stream, ledger: Ledger, host: str) -> None:
        """A ledger was deleted: may it?"""
        manifest, ledger_id = stream.manifest, ledger.ledger_id
        if stream.listed.get(ledger_id) is not ledger or manifest.is_deleting:
            return
        listed = manifest.ledger(ledger_id)
        if listed is not None and not self._is_archived(ledger):
            self._violated("T2 loss", stream.name, f"{host} deletes ledger {ledger_id}, which it lists")
        if listed is not None and listed.entries is not None:
            end = listed.first_ordinal + listed.entries
            known = stream.cursors if ledger.unread is None else ledger.unread.get(stream.name, {})
            if unread := self._behind(stream, [each for each in known if known[each] < end], end):
                self._violated("T6 cursors", stream.name, f"{host} deletes ledger {ledger_id} before {unread}")
        went_before = stream.name in ledger.listed_by and self._is_archived(ledger)
        for group in manifest.retired:
            if ledger_id in group.ledger_ids and group.due_ms > self._clock() * 1000 and not went_before:
                self._violated("T9 retired", stream.name, f"{host} deletes ledger {ledger_id} before its time")

    # --- bookies (`Judge`) ------------------------------------------------------------------------------------

    def metadata_changed(self, *_: object) -> None:
        """The other simulations look at this."""

    def written_blindly(self, *_: object) -> None:
        """The other simulations look at this."""

    def stored_by_writer(self, *_: object) -> None:
        """The other simulations look at this."""

    def fenced(self, *_: object) -> None:
        """The other simulations look at this."""

    def entry_stored(
        self, history: History, ledger: LedgerHistory, bookie_id: str, entry_id: int, entry: bytes
    ) -> None:
        held = self.ledgers[ledger.ledger_id][-1]
        payload = entry[entry.rindex(b"{") :]
        if held.content.setdefault(entry_id, payload) != payload:
            self._violated("T7 readers", f"ledger {ledger.ledger_id}", f"entry {entry_id} has two contents")

    # --- those who work on streams ----------------------------------------------------------------------------

    def appended(self, name: str, ledger_id: int, entry_id: int, payload: bytes) -> None:
        """A writer was told this place."""
        self.history.count("acknowledged")
        ledger = self.ledger(ledger_id)
        stream = self.of(ledger_id)
        if ledger is None or stream is None or stream.name != name:
            self._violated("T2 loss", name, f"an append ended in ledger {ledger_id}, which it never listed")
            return
        ledger.acked[entry_id] = payload
        if ledger.content.get(entry_id) != payload:
            self._violated("T2 loss", name, f"entry {entry_id} of ledger {ledger_id} is not what was appended")
        entries = stream.entries.get(ledger_id)
        if entries is not None and entry_id >= entries:
            self._violated("T2 loss", name, f"entry {entry_id} was acknowledged, ledger {ledger_id} has {entries}")

    def published(self, manifest: Manifest, batch: str, payloads: Iterable[bytes]) -> None:
        """A publisher was told that the batch is in the stream."""
        self.history.count("published")
        if (stream := self.at(manifest)) is not None:
            stream.batches[batch] = tuple(payloads)

    def transferred(self, ledger_id: int) -> None:
        """A ledger was made for a stream, and is about to be added to it."""
        self._transferred.add(ledger_id)

    @contextmanager
    def forgetting(self, name: str, cursor: str) -> Iterator[None]:
        """Somebody gives a cursor up."""
        path = f"{name}:{cursor}"
        self._forgotten[path] = self._forgotten.get(path, 0) + 1
        try:
            yield
        finally:
            self._forgotten[path] -= 1

    def moved(self, host: str, stream: Stream, cursor: str, ordinal: int) -> None:
        """A consumer was told that the cursor which it has written counts."""
        self.history.count("cursor moved")
        path = f"{stream.name}:{cursor}"
        is_its = path in self._stored and self._wrote.get((host, path)) == self._made[path]
        if is_its and not stream.is_over and not stream.manifest.is_deleting:
            stream.cursors[cursor] = max(ordinal, stream.cursors.get(cursor, 0))
            if ordinal < stream.manifest.base_ordinal and self._has_cut(stream, ordinal):
                self._violated("T6 cursors", stream.name, f"cursor {cursor} counts at {ordinal}, which is gone")

    def _has_cut(self, stream: Stream, ordinal: int) -> bool:
        return stream.manifest.generation == 0 and stream.manifest.first_ordinal > ordinal

    def read(self, who: str, ledger_id: int, entry_id: int, payload: bytes) -> None:
        self.history.count("entries read")
        lives = self.ledgers.get(ledger_id, [])
        if all(ledger.content.get(entry_id) != payload for ledger in lives):
            self._violated("T7 readers", who, f"entry {entry_id} of ledger {ledger_id} is not what was written")

    # --- the end ----------------------------------------------------------------------------------------------

    def ended(self, stream: Stream, read: dict[int, list[bytes]]) -> None:
        """Everything is quiet, and this is what was read of each listed ledger."""
        for each in stream.manifest.ledgers:
            ledger = stream.listed[each.ledger_id]
            expected = ledger.payloads(each.entries or 0)
            if read.get(each.ledger_id) != expected:
                self._violated(
                    "T1 list", stream.name, f"of ledger {each.ledger_id} {read.get(each.ledger_id)} is read: {expected}"
                )
        if not stream.name.startswith("restored"):
            self._once(stream)

    def _once(self, stream: Stream) -> None:
        found: dict[bytes, int] = {}
        newest: dict[str, int] = {}
        for ledger_id, ledger in stream.listed.items():
            for payload in ledger.payloads(stream.entries.get(ledger_id, 0)):
                if payload is None:
                    continue
                found[payload] = found.get(payload, 0) + 1
                told: dict[str, Any] = json.loads(payload)
                if told["of"] == "" and newest.get(told["by"], -1) >= told["n"]:
                    self._violated("T4 order", stream.name, f"{payload!r} comes behind {newest[told['by']]}")
                newest[told["by"]] = told["n"]
        twice = [payload for payload, times in found.items() if times > 1]
        if twice:
            self._violated("T4 order", stream.name, f"twice in it: {twice[:5]}")
        acked = [payload for ledger in stream.listed.values() for payload in ledger.acked.values()]
        if missing := [payload for payload in acked if payload not in found]:
            self._violated("T2 loss", stream.name, f"acknowledged, and never listed: {missing[:5]}")
        for batch, payloads in stream.batches.items():
            if missing := [payload for payload in payloads if payload not in found]:
                self._violated("T5 batches", stream.name, f"batch {batch} was published without {missing}")

    def swept(self, stream: Stream) -> None:
        """Something was published just now."""
        due = [group for group in stream.manifest.retired if group.due_ms + 1000 < self._clock() * 1000]
        if sum(len(group.ledger_ids) for group in due) > MANY_RETIRED:
            self._violated("T9 retired", stream.name, f"nobody deletes what is due: {due}")

    def archive_ended(self) -> None:
        for ledger in self.only_archived:
            self._must_be_archived(ledger, "at the end")

    # --- inside -----------------------------------------------------------------------------------------------

    def _must_be_archived(self, ledger: Ledger, when: str) -> None:
        if not self._is_archived(ledger):
            self._violated("T8 archive", f"ledger {ledger.ledger_id}", f"its content is not in the archive, {when}")

    def _is_archived(self, ledger: Ledger) -> bool:
        entries = 0 if ledger.metadata is None else ledger.metadata.last_entry_id + 1
        return ledger.payloads(entries) in self.archived(ledger.ledger_id)

    def _violated(self, rule: str, where: str, what: str) -> None:
        self.history.violated(rule, None, f"{where}: {what}")
