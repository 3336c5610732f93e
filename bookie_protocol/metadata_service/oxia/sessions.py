"""One session in every shard of a namespace, which together are the session of a process.

Oxia has sessions of shards only: each ends by itself, and takes the ephemeral records of its shard with it.

Invariants
- They bear one identity, by which a record says whose it is (`owner_of`): the ids of sessions in two shards may be
  equal.
- They end together. When one is lost, the others are closed, and the end is reported when all have ended: from then on
  nothing of this session is there, in any shard.
- A canary record in each shard belongs to the session there. It proves at the opening that the namespace sorts
  hierarchically, and afterwards that the session has kept what it holds: a shard may drop that without an expiry. So a
  canary is written once, under a key of its own: no request puts one back, not even one that was given up and
  arrives late. `touch` is a deletion of a canary that does not exist, which goes through the shard's log as any write,
  changes nothing, and says whether there is one. A shard without a canary holds no records of the session.
- A shard that came of a split has the session of the one that was split, and its canary if that is in this half. The
  other half gets one of its own, as soon as it can be written.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import uuid
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Final

from bookie_protocol.errors import InvalidConfiguration, MetadataUnavailable
from bookie_protocol.metadata_service.oxia import keys
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.connection import OxiaConnection, SessionGone
from bookie_protocol.metadata_service.oxia.shards import ShardMap
from bookie_protocol.metadata_service.oxia.wire import NOT_EXISTING
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost

SHORTEST_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 300.0
"""Oxia takes no other time-outs of sessions."""


class ShardSessions:
    """The sessions of one identity, `owner` as a number. `ids` has the session of each shard."""

    def __init__(self, connection: OxiaConnection, shards: ShardMap, timeout: float) -> None:
        self._connection = connection
        self._map = shards
        self._timeout_ms = math.ceil(clamped(timeout) * 1000)
        self.identity = f"podkeeper-{uuid.uuid4()}"
        self.owner = _number_of(self.identity)
        self.ids: dict[int, int] = {}
        self._canaries: dict[int, str] = {}
        self._numbers = itertools.count()
        self._lost = False

    async def open(self, within: float) -> None:
        """`MetadataUnavailable`, `InvalidConfiguration`: then none stays open that can be closed."""
        self._map.check_complete()
        try:
            await every(self._open_in(shard, within) for shard in self._map.numbers)
        except BaseException:
            with suppress(MetadataUnavailable):
                await self.close(within)
            raise

    async def renew(self, shards: ShardMap, within: float) -> bool:
        """False: they have ended, all of them. `MetadataUnavailable`: one of them cannot be asked."""
        try:
            await self._adopt(shards, within)
            if not self._lost:
                await self.keep_alive(within)
                await every(self._check_canary(shard, within) for shard in self.ids)
        except SessionGone:
            self._lost = True
        if self._lost:
            await self.close(within)
        return not self._lost

    async def keep_alive(self, within: float) -> None:
        """`SessionGone`: one of them has ended."""
        await every(self._connection.keep_alive(shard, session, within) for shard, session in list(self.ids.items()))

    async def touch(self, within: float) -> None:
        """Write to all shards, which only their true leaders can. `SessionGone`: one of them has ended, or has lost
        what it held."""
        await every(self.touch_in(shard, within) for shard in list(self.ids))

    async def touch_in(self, shard: int, within: float) -> None:
        """Do the same in one shard."""
        if shard not in self.ids:
            raise ConnectionLost(f"shard {shard} of Oxia is there no longer: it was split")
        if shard not in self._canaries:
            await self._put_canary(shard, within)
            return
        delete = messages.DeleteRequest(key=self._canaries[shard], expected_version_id=NOT_EXISTING)
        answer = await self._connection.write(shard, messages.WriteRequest(deletes=[delete]), within)
        if answer.deletes[0].status != messages.UNEXPECTED_VERSION_ID:
            raise self._dropped(shard)

    async def close(self, within: float) -> None:
        """End all of them. `MetadataUnavailable`: of one it is not known whether it has ended."""
        await every(self._close_in(shard, session, within) for shard, session in list(self.ids.items()))

    def holds(self, shard: int) -> bool:
        """Return True if records may be given to the session there: it would notice their loss."""
        return shard in self._canaries

    def is_canary(self, key: str) -> bool:
        return key in self._canaries.values()

    async def _open_in(self, shard: int, within: float) -> None:
        self.ids[shard] = await self._connection.create_session(shard, self._timeout_ms, self.identity, within)
        await self._put_canary(shard, within)
        await self._connection.position(shard, within)
        canary = self._canaries[shard]
        if canary not in await self._connection.list(shard, *keys.children(keys.CANARIES), within):
            raise InvalidConfiguration(
                f"the namespace {self._connection.namespace} of Oxia does not sort its keys hierarchically: no node"
                " would be found in any listing there. Set metadataServiceUri to a namespace that was created with"
                " `--key-sorting hierarchical`, as Apache Pulsar needs it too; the order of one that exists cannot be"
                " changed"
            )

    async def _adopt(self, shards: ShardMap, within: float) -> None:
        """Take the shards of now, and put the canaries that are missing: an earlier attempt may have failed."""
        if shards.numbers != self._map.numbers:
            shards.check_complete()
            parents = {each: each if each in self.ids else shards.parent_in(self._map, each) for each in shards.numbers}
            ids = {shard: self.ids[parent] for shard, parent in parents.items() if parent in self.ids}
            self._canaries = {shards.shard_of(key): key for key in self._canaries.values()}
            self.ids = ids
        self._map = shards
        if self.ids.keys() != shards.numbers:
            raise SessionGone("there is a shard that came of none that had our session")
        await every(self._put_canary(shard, within) for shard in self.ids.keys() - self._canaries.keys())

    async def _put_canary(self, shard: int, within: float) -> None:
        numbered = (keys.canary(self.identity, number) for number in self._numbers)
        key = next(key for key in numbered if self._map.shard_of(key) == shard)
        put = messages.PutRequest(key=key, session_id=self.ids[shard], client_identity=self.identity)
        answer = await self._connection.write(shard, messages.WriteRequest(puts=[put]), within)
        if answer.puts[0].status != messages.OK:
            raise SessionGone(f"shard {shard} has ended our session")
        if self._map.shard_of(key) == shard:  # else it was split meanwhile
            self._canaries.setdefault(shard, key)

    async def _check_canary(self, shard: int, within: float) -> None:
        get = messages.GetRequest(key=self._canaries[shard])
        (found,) = await self._connection.read(shard, [get], within)
        if found.status != messages.OK or found.version.session_id != self.ids[shard]:
            raise self._dropped(shard)

    def _dropped(self, shard: int) -> SessionGone:
        self._lost = True  # also if this caller is cancelled now, and no renewal has seen it
        return SessionGone(f"shard {shard} has dropped what our session held")

    async def _close_in(self, shard: int, session: int, within: float) -> None:
        with suppress(SessionGone):
            await self._connection.close_session(shard, session, within)


def clamped(timeout: float) -> float:
    """Return the time-out of a session that Oxia takes."""
    return min(max(timeout, SHORTEST_SECONDS), LONGEST_SECONDS)


def owner_of(shard: int, version: messages.Version) -> int:
    """Return whose an ephemeral record is, as a number; 0: it is persistent."""
    if not version.HasField("session_id"):
        return 0
    return _number_of(version.client_identity or f"{shard}-{version.session_id}")


def _number_of(identity: str) -> int:
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big") >> 1 | 1


async def every(calls: Iterable[Awaitable[object]]) -> None:
    """Wait for all of them, and raise an error of one: that a session has ended before that it cannot be asked."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    errors = [each for each in results if isinstance(each, BaseException)]
    for error in sorted(errors, key=lambda each: not isinstance(each, SessionGone)):
        raise error
