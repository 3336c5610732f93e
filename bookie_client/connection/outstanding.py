"""The requests of one connection that wait for their answer, by key.

Invariants
- Several may wait under one key, for in version 2 it is the entry. Answers end them oldest first, time-outs the one
  that is due first.
- A request waits under one key, once.

It is a dictionary itself, so that whoever handles many answers at once needs no call for each.
Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from bookie_client.connection.request import BookieRequest


class SameKey(list[BookieRequest]):
    """Two and more requests with one key, oldest first."""


class Outstanding(dict[bytes, BookieRequest | SameKey]):
    """The requests of one connection that have no answer yet."""

    def put(self, key: bytes, request: BookieRequest) -> None:
        """It waits from now on."""
        before = self.setdefault(key, request)
        if before is not request:
            self.put_behind(key, before, request)

    def put_behind(self, key: bytes, before: BookieRequest | SameKey, request: BookieRequest) -> None:
        """As `put`, where others were found under its key."""
        if isinstance(before, SameKey):
            before.append(request)
        else:
            self[key] = SameKey((before, request))

    def take(self, key: bytes) -> BookieRequest | None:
        """The oldest with this key, which waits no more."""
        found = self.pop(key, None)
        return self.oldest(key, found) if isinstance(found, SameKey) else found

    def oldest(self, key: bytes, popped: SameKey) -> BookieRequest:
        """The oldest of those that were popped; the others go on waiting."""
        request = popped[0]
        self._leave(key, popped, request)
        return request

    def due(self, now: int, later: Callable[[BookieRequest], int]) -> list[tuple[bytes, BookieRequest]]:
        """The requests to be given up by now, with their keys: one at most of each. `later`: ticks behind its
        deadline that a request has."""
        firsts = ((key, _due_first(waiting)) for key, waiting in self.items())
        return [(key, request) for key, request in firsts if request.deadline + later(request) <= now]

    def drop(self, key: bytes, request: BookieRequest) -> bool:
        """It waits no more; whether it did."""
        waiting = self.get(key)
        if waiting is request:
            del self[key]
        elif isinstance(waiting, SameKey) and request in waiting:
            self._leave(key, waiting, request)
        else:
            return False
        return True

    def requests(self) -> Iterator[BookieRequest]:
        """All of them."""
        for waiting in self.values():
            if isinstance(waiting, SameKey):
                yield from waiting
            else:
                yield waiting

    def _leave(self, key: bytes, waiting: SameKey, request: BookieRequest) -> None:
        waiting.remove(request)
        self[key] = waiting if len(waiting) > 1 else waiting[0]


def _due_first(waiting: BookieRequest | SameKey) -> BookieRequest:
    return min(waiting, key=attrgetter("deadline")) if isinstance(waiting, SameKey) else waiting
