"""Watches of one process, which hear the notifications of all shards. Each fires once.

Invariant: a watch is set before its reader reads. So no change is missed between the two, however late its
notification comes; one of a change that was read already fires the watch for no reason, and the reader reads again.

Threads: event loop only.
"""

from __future__ import annotations

from bookie_protocol.metadata_service.tree.nodes import Watch, parent_of


class Standing:
    """A watch that is set. `key` is that of a node; with `names` the creation and deletion of its children count, and
    its own, but no change of its data."""

    def __init__(self, key: str, names: bool, fire: Watch) -> None:
        self.key = key
        self.names = names
        self.fire = fire


class Watches:
    """All watches of one tree."""

    def __init__(self) -> None:
        self._of_node: dict[str, set[Standing]] = {}
        self._of_children: dict[str, set[Standing]] = {}

    def __len__(self) -> int:
        return len(
            {standing for each in (self._of_node, self._of_children) for found in each.values() for standing in found}
        )

    def add(self, key: str, fire: Watch | None, *, names: bool = False) -> Standing | None:
        if fire is None:
            return None
        standing = Standing(key, names, fire)
        self._of_node.setdefault(key, set()).add(standing)
        if names:
            self._of_children.setdefault(key, set()).add(standing)
        return standing

    def remove(self, standing: Standing | None) -> None:
        """Take a watch back, if it is still set."""
        if standing is None:
            return
        for each in (self._of_node, self._of_children):
            found = each.get(standing.key)
            if found is not None:
                found.discard(standing)
                if not found:
                    del each[standing.key]

    def hear(self, key: str, *, names: bool) -> None:
        """The node of this key has changed; `names`: it was made or deleted."""
        fired = {each for each in self._of_node.get(key, ()) if names or not each.names}
        if names:
            fired |= self._of_children.get(parent_of(key), set())
        self._fire(fired)

    def fire_all(self) -> None:
        self._fire({each for found in self._of_node.values() for each in found})

    def _fire(self, fired: set[Standing]) -> None:
        for standing in fired:
            self.remove(standing)
        for standing in fired:
            standing.fire()
