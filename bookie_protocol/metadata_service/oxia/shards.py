"""Which shard of a namespace has a key, and which server leads it. Pure; any thread."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bookie_protocol.metadata_service.oxia import keys
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost

_HASHES: Final = 2**32


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard with the hashes of its keys, both ends included. `leader` is host:port; empty during an election."""

    number: int
    leader: str
    first: int
    last: int


class ShardMap:
    """All shards of a namespace at one moment."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = sorted(shards, key=lambda each: each.first)
        self._firsts = [each.first for each in self._shards]
        self.leaders = {each.number: each.leader for each in self._shards}

    @staticmethod
    def of_answer(answer: messages.NamespaceShardsAssignment) -> ShardMap:
        """Read an answer of `GetShardAssignments`."""
        return ShardMap(
            Shard(
                each.shard,
                each.leader,
                each.int32_hash_range.min_hash_inclusive,
                each.int32_hash_range.max_hash_inclusive,
            )
            for each in answer.assignments
        )

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(self.leaders)

    def shard_of(self, key: str) -> int:
        """Return the shard that has the key. `ConnectionLost`: none at present, as while a shard is being made."""
        found = self._at(keys.hash_of(key))
        if found is None:
            raise ConnectionLost(f"no shard has {key} at present: a shard of the namespace is being made or moved")
        return found.number

    def check_complete(self) -> None:
        """Raise `ConnectionLost` unless every key has a shard. A listing without one of the shards would leave out
        what is there."""
        end = 0
        for each in self._shards:
            if each.first > end:
                break
            end = max(end, each.last + 1)
        if end < _HASHES:
            raise ConnectionLost("not all shards of the namespace are known at present: one is being made or moved")

    def parent_in(self, earlier: ShardMap, number: int) -> int | None:
        """Return the shard of an earlier map that had all keys of this one, which came of its split."""
        (shard,) = (each for each in self._shards if each.number == number)
        found = earlier._at(shard.first)
        return found.number if found is not None and shard.last <= found.last else None

    def _at(self, hashed: int) -> Shard | None:
        place = bisect_right(self._firsts, hashed) - 1
        found = self._shards[place] if place >= 0 else None
        return found if found is not None and hashed <= found.last else None
